"""Calls that go from dynamo, and from autograd, straight to the generated functions.

AOTAutograd returns functions that mend aliases, mutations, subclasses, random states and modes around every call. A graph that needs none
of that (all of it is ours, and its results are new tensors) is called without them: in inference the generated function alone, in training
an `autograd.Function` whose two passes are the generated functions. Everything else stays AOTAutograd's.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .fragment import Fixed, Result

if TYPE_CHECKING:
    from .backend import Compiled

NESTED = ("It looks like you're trying to call a compiled backward function within vmap/grad/vjp, which isn't supported. Try wrapping vmap "
          "inside torch.compile, or skip compiling the backward function.")
TWICE = "torch.compile with aot_autograd does not currently support double backward"
LOOSE = ("This compiled backward function is being run with torch.use_deterministic_algorithms(True), but it was previously generated "
         "during the forward function while torch.use_deterministic_algorithms(False) was set.")


@dataclass(eq=False)
class Traced:
    """A graph of AOTAutograd that was compiled, and what AOTAutograd knows of its call."""

    made: Compiled
    about: Any  # ViewAndMutationMeta
    arity: int
    held: tuple[Any, ...] = ()  # arguments that come with the graph: its first ones


def metadata() -> Any:
    """Inside a compiler of AOTAutograd: what it knows of the call."""
    from torch._guards import TracingContext

    return getattr(TracingContext.try_get(), "fw_metadata", None)


def direct(whole: Callable[..., Any], found: Mapping[str, Traced], inputs: Sequence[Any]) -> Callable[..., Any]:
    """The function that dynamo calls: `whole`, which is AOTAutograd's, or a shorter one of the same meaning."""
    kind = "inference" if "inference" in found else "forward"
    try:
        if kind not in found or not _plain(found[kind], inputs):
            return whole
        return (_inference(found[kind]) or whole) if kind == "inference" else _later(whole, found)
    except (AttributeError, ImportError):  # a version of torch that says it otherwise
        return whole


def _later(whole: Callable[..., Any], found: Mapping[str, Traced]) -> Callable[..., Any]:
    """AOTAutograd's function until it has compiled the backward pass, which it may do in the first one."""
    chosen: Callable[..., Any] | None = None

    def run(*args: Any) -> Any:
        nonlocal chosen
        if chosen is None:
            if "backward" not in found:
                return whole(*args)
            try:
                chosen = _training(whole, found["forward"], found["backward"]) or whole
            except (AttributeError, ImportError):
                chosen = whole
        return chosen(*args)

    return run


def _plain(t: Traced, inputs: Sequence[Any]) -> bool:
    """All of the graph is ours, its arguments are dynamo's, and its results need nothing but to be returned."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    m = t.about
    alone = len(t.made.steps) == 1 and t.made.steps[0].ours and t.made.call is t.made.steps[0].run
    if not alone or m is None or t.arity != len(t.held) + len(inputs) or any(map(is_traceable_wrapper_subclass, inputs)):
        return False
    if m.mutated_inp_runtime_indices or m.num_outputs_aliased or m.num_intermediate_bases:
        return False
    if m.tokens or m.is_rng_op_functionalized or m.grad_enabled_mutation is not None or getattr(m, "num_graphsafe_rng_states", 0):
        return False
    metas = (*m.subclass_inp_meta, *m.subclass_fw_graph_out_meta)
    return not any(hasattr(x, "attrs") for x in metas) and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def _results(t: Traced) -> list[Result]:
    fragment = t.made.steps[0].fragment
    assert fragment is not None
    return fragment.results


def _marked(t: Traced) -> list[int]:
    """Arguments that the graph writes, whose versions must grow."""
    return list(t.about.mutated_graph_handled_indices_seen_by_autograd)


def _inference(t: Traced) -> Callable[..., Any] | None:
    if len(_results(t)) != t.about.num_outputs:
        return None
    import torch

    call: Callable[..., Any] = t.made.call  # which reads a tuple as well as a list
    held, marked, grow = t.held, _marked(t), torch.autograd.graph.increment_version

    def run(*args: Any) -> Any:
        return call(args)

    def complete(*args: Any) -> Any:
        args = held + args
        if marked:
            grow([args[i] for i in marked])
        return call(args)

    return _varying(t.about, complete if marked or held else run)


def _varying(about: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, whose results say which of their sizes vary: graphs behind a break then begin with sizes that do."""
    if not about.dynamic_outputs:
        return run
    from torch._functorch._aot_autograd.runtime_wrappers import mark_dynamo_propagated_dynamic_indices as mark

    sizes = [(i, o.dynamic_dims) for i, o in enumerate(about.output_info) if o.dynamic_dims]

    def marking(*args: Any) -> Any:
        outs = run(*args)
        for i, dims in sizes:
            mark(outs[i], dims)
        return outs

    return marking


def _training(whole: Callable[..., Any], forward: Traced, backward: Traced) -> Callable[..., Any] | None:
    import torch

    m, count = forward.about, forward.about.num_outputs
    steps = backward.made.steps
    if len(steps) != 1 or not steps[0].ours or backward.made.call is not steps[0].run:
        return None
    if m.num_backward_tokens or m.indices_of_inputs_that_requires_grad_with_mutations_in_bw or m.num_forward_returns != count:
        return None
    total = len(_results(forward))
    checked = getattr(m, "tensors_saved_for_backwards_with_vc_check_slice", m.tensors_saved_for_backwards_slice)
    free = getattr(m, "tensors_saved_for_backwards_no_vc_check_slice", slice(total, total))
    sizes = m.symints_saved_for_backwards_slice if m.num_symints_saved_for_bw else slice(0)
    kept, loose, numbers = (len(range(total)[x]) for x in (checked, free, sizes))
    taken = [i for i, o in enumerate(m.output_info) if issubclass(o.raw_type, torch.Tensor)
             and getattr(o, "requires_grad_for_backward", o.requires_grad)]
    gradients = _results(backward)
    if count + kept + loose + numbers != total or backward.arity != total - count + len(taken) or len(gradients) != forward.arity:
        return None  # something else is kept, too
    cut = [i for i, (info, g) in enumerate(zip(m.input_info, gradients, strict=True))
           if isinstance(g, Fixed) and g.value is None and info.requires_grad and not info.is_leaf]
    constant = [i for i, o in enumerate(m.output_info) if issubclass(o.raw_type, torch.Tensor) and not o.requires_grad]
    marked, grow = _marked(forward), torch.autograd.graph.increment_version
    function = _function(forward.made.call, backward.made.call, count, (checked, free, sizes), taken, constant, m.unsafe_view_out_indices,
                         m.deterministic is False)
    apply = super(torch.autograd.Function, function).apply  # without the walk over arguments for functorch, which is asked here
    fragment = steps[0].fragment
    if fragment is not None and any(i >= total - count for i in fragment.released):
        apply = _boxed(function, apply)
    transformed, grads = torch._C._are_functorch_transforms_active, torch.is_grad_enabled

    def run(*args: Any) -> Any:
        if transformed() or not grads():
            return whole(*args)
        if marked:
            grow([args[i] for i in marked])
        if cut:
            args = tuple(a.detach() if i in cut else a for i, a in enumerate(args))
        return apply(*args)

    return _varying(m, run)


def _function(forward: Callable[..., Any], backward: Callable[..., Any], count: int, saved: tuple[slice, slice, slice],
              taken: Sequence[int], constant: Sequence[int], views: Sequence[int], relaxed: bool) -> Any:
    """The autograd function. Saved tensors that are views are detached: a view would keep its base's history. `views`: results that are
    views of what nobody else sees, which autograd is not to know."""
    import torch

    nested, strict, grads = torch._C._functorch.peek_interpreter_stack, torch._C._get_deterministic_algorithms, torch.is_grad_enabled
    checked, free, sizes = saved
    every, PLAIN = list(taken) == list(range(count)), (torch.Tensor, torch.nn.Parameter)

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outs = forward(args)
            for i in views:
                if outs[i]._is_view():
                    outs[i] = torch.ops.aten._unsafe_view.default(outs[i], outs[i].shape)
            ctx.save_for_backward(*[x.detach() if x._is_view() else x for x in outs[checked]])
            ctx.loose = [x.detach() if x._is_view() else x for x in outs[free]]
            ctx.sizes = outs[sizes]
            if constant:
                ctx.mark_non_differentiable(*[outs[i] for i in constant])
                ctx._materialize_non_diff_grads = False
            return tuple(outs[:count])

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            if nested() is not None:
                raise RuntimeError(NESTED)
            if relaxed and strict():
                raise RuntimeError(LOOSE)
            box: list[Any] = []
            if given and type(given[0]) is list:  # see `_boxed`
                (box,) = given
                given = tuple(box)
            for i in taken:
                if type(given[i]) not in PLAIN:
                    raise RuntimeError(f"torch.compile: the gradient of result {i} is a {type(given[i]).__name__}; the graph was compiled "
                                       "for plain tensors")
            args = [*ctx.sizes, *ctx.saved_tensors, *ctx.loose, *(given if every else [given[i] for i in taken])]
            given = ()
            box.clear()
            ctx.maybe_clear_saved_tensors()
            if grads():
                return Once.apply(backward, torch.empty(0, requires_grad=True), *args)  # type: ignore[no-untyped-call]
            return tuple(backward(args))

    class Once(torch.autograd.Function):
        """Gradients that have a history, which ends in an error."""

        @staticmethod
        def forward(ctx: Any, run: Any, _: Any, *args: Any) -> Any:
            return tuple(run(args))

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(TWICE)

    _hide(CompiledFunction.backward.__code__)
    return CompiledFunction


def _boxed(function: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """`apply` of a function whose backward pass gets its gradients in a list that alone holds them, so that it may drop them. The flag
    stands while PyTorch makes the node: compiled autograd, which gives them one by one, refuses functions that have it."""
    import torch

    if not hasattr(torch.autograd.Function, "boxed_grads_call"):
        return apply

    def run(*args: Any) -> Any:
        function.boxed_grads_call = True
        try:
            return apply(*args)
        finally:
            function.boxed_grads_call = False

    return run


def _hide(code: Any) -> None:
    """Dynamo leaves frames of this code alone, and what they call. (What it calls itself, the forward pass, it hides on its own.)"""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
