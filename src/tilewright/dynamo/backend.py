"""`torch.compile(model, backend="tilewright")`: the graphs that dynamo finds, through AOTAutograd, become sessions.

Parameters are arguments like any other: their memory stays torch's, and what an optimizer writes is seen by the next call. Ops that
Tilewright lacks run in PyTorch; a warning names them once a graph.
"""
from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..compile import compile_graph, disabled, graph_signature, target_spec
from ..core.collection import paused
from ..core.config import load as load_config
from ..core.errors import ConfigError, UnsupportedError
from ..core.validation import check_level
from ..frontend.torch.versions import check as check_version
from ..runtime.memory import trim
from .attention import exchange
from .bodies import compile_bodies, write_out
from .call import Call, make_call
from .direct import Traced, direct, metadata
from .fragment import Fragment, Reader, Refusal, Slot, apart
from .freeze import constants, follow, held_tensors, hold, without
from .joint import partition
from .options import Options
from .settle import settle
from .split import Number, Parts, split


class SplitWarning(UserWarning):
    """Parts of a compiled graph run in PyTorch."""


@dataclass(eq=False)
class Step:
    """What a graph's call does: a fragment of ours, or some nodes in PyTorch."""

    run: Call
    ours: bool
    nodes: list[Any]
    refusals: dict[Any, Refusal] = field(default_factory=dict)  # why nodes are not ours
    session: Any = None
    fragment: Fragment | None = None


@dataclass(eq=False)
class Compiled:
    """One graph of AOTAutograd, as its steps. `kind`: inference, forward or backward."""

    kind: str
    steps: list[Step]
    call: Call
    seconds: float = 0.0

    @property
    def refusals(self) -> dict[Any, Refusal]:
        return {n: r for s in self.steps for n, r in s.refusals.items()}

    @property
    def splits(self) -> int:
        """Steps that PyTorch runs."""
        return sum(not s.ours for s in self.steps)


_watchers: list[list[Compiled]] = []
_lock = threading.Lock()


@contextmanager
def watching() -> Iterator[list[Compiled]]:
    """Collects what is compiled inside, in the order of the compiles."""
    found: list[Compiled] = []
    with _lock:
        _watchers.append(found)
    try:
        yield found
    finally:
        with _lock:
            _watchers[:] = [w for w in _watchers if w is not found]  # lists of the same graphs are equal


class Compiler:
    """Compiles the graphs of AOTAutograd."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def graph(self, module: Any, kind: str, constants: Mapping[int, Any] | None = None, examples: Sequence[Any] = ()) -> Compiled:
        """`examples` show how the inputs of a backward graph lie."""
        from torch.utils._python_dispatch import _disable_current_modes

        start = time.perf_counter()
        write_out(module)
        if kind == "inference":
            settle(module)
        with paused(), _disable_current_modes():  # weights are looked at, which torch's fake mode forbids
            module.graph.eliminate_dead_code(is_impure_node=_impure)
            made = self._compiled(module, kind, constants or {}, _lay(module, examples))
        made.seconds = time.perf_counter() - start
        if made.seconds > 1:
            trim()
        if made.refusals:
            _warn(made)
        with _lock:
            for found in _watchers:
                found.append(made)
        return made

    def _compiled(self, module: Any, kind: str, constants: Mapping[int, Any], traced: Mapping[int, Any]) -> Compiled:
        nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        name, guarded = f"{kind}_graph", kind in ("inference", "forward")
        saved = _saved() if kind == "forward" else slice(0)
        restored = [traced.get(i) for i in range(len(module.graph.find_nodes(op="placeholder")))]  # as torch's own ops expect it
        try:
            fragment, refused = Reader(module, name, constants=constants, trusted=1 << 30 if guarded else 0, saved=saved).read()
            fragment.released = _released(module) if kind == "backward" else frozenset()
        except UnsupportedError as e:  # a size of an input that cannot be said in ours: no part would have it
            _lay(module, restored)
            whole = Step(_boxed(module), False, nodes, _all(module, str(e)))
            return Compiled(kind, [whole], _laying(whole.run, traced))
        if not refused:
            step, problem = self._ours(fragment, nodes)
            if step is not None:
                if kind == "forward":
                    _report_strides(fragment)
                return Compiled(kind, [step], step.run)
            refused = _all(module, problem)
        _lay(module, restored)
        known = dict(refused)
        for _ in range(8):  # a part may show what the whole graph did not
            parts = split(module, known)
            steps, more = [], dict[Any, Refusal]()
            for part in parts.parts:
                own = {n: r for n, r in known.items() if n in part.nodes}
                if not part.ours:
                    inside = compile_bodies(part.module, lambda body: self._compiled(body, "body", {}, {}))
                    steps.append(Step(_boxed(part.module), False, part.nodes, own | inside))
                    continue
                names = {n.name: n for n in part.nodes}
                fixed = {k: constants[i] for k, i in enumerate(part.inputs) if i in constants}
                reader = Reader(part.module, name, constants=fixed, trusted=_prefix(part.given) if guarded else 0)
                fragment, refused = reader.read()
                more |= {names[n.name]: r for n, r in refused.items()}
                if not refused:
                    step, problem = self._ours(fragment, part.nodes)
                    if step is None:
                        more |= {names[n.name]: r for n, r in _all(part.module, problem).items()}
                    else:
                        steps.append(step)
            if not more:
                return Compiled(kind, steps, _laying(_chained(parts, steps), traced))
            known |= more
        raise UnsupportedError("torch.compile: the graph cannot be split; run this part of the model outside torch.compile")

    def _ours(self, fragment: Fragment, nodes: list[Any]) -> tuple[Step | None, str]:
        """The step of a fragment, or why it cannot be compiled."""
        o = self.options
        if fragment.device not in ("cpu", "cuda"):
            return None, f"device {fragment.device} is not supported"
        try:
            if not fragment.graph.outputs:
                return Step(_passing(fragment), True, nodes, fragment=fragment), ""
            graph, spec = fragment.graph, target_spec(o.target or fragment.device, o.precision, pytorch=True)
            if spec.kind != fragment.device and (spec.kind, fragment.device) != ("reference", "cpu"):
                return None, f"target {spec.kind} cannot read tensors on the device {fragment.device}"
            level = check_level(load_config().validation if o.validation is None else o.validation)
            session = compile_graph(graph, graph_signature(graph), spec, level=level, disable=disabled(o.passes), threads=o.threads)
            return Step(make_call(fragment, session), True, nodes, session=session, fragment=fragment), ""
        except ConfigError:
            raise
        except Exception as e:  # a kernel that meets a graph it was not written for must not end the compile: the warning shows it
            return None, f"{type(e).__name__}: {e}"


def _saved() -> slice:
    """The outputs of a forward graph that are kept for the backward pass."""
    about = metadata()
    return slice(0) if about is None else about.tensors_saved_for_backwards_slice


def _released(module: Any) -> frozenset[int]:
    """The arguments of a backward graph that the call may be the last to hold: not what the forward pass was given."""
    return frozenset(i for i, hole in enumerate(module.graph.find_nodes(op="placeholder")) if not hole.name.startswith("primals"))


def _report_strides(fragment: Fragment) -> None:
    """Tell AOTAutograd how the outputs of a forward graph lie."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        for r in fragment.results:
            strides = fragment.targets[r.index].strides if isinstance(r, Slot) else ()
            known = tuple(d for d in strides if isinstance(d, int))
            context.output_strides.append(known if known and len(known) == len(strides) else None)


def _lay(module: Any, examples: Sequence[Any]) -> dict[int, Any]:
    """Give the inputs of a graph the strides of examples; those inputs that had others, as they were traced."""
    import torch

    traced = {}
    for i, (hole, example) in enumerate(zip(module.graph.find_nodes(op="placeholder"), examples, strict=False)):
        fake = hole.meta.get("val")
        if isinstance(example, torch.Tensor) and isinstance(fake, torch.Tensor) and example is not fake:
            traced[i], hole.meta["val"] = fake, example
    return traced


def _laying(call: Call, traced: Mapping[int, Any]) -> Call:
    """A call whose arguments get the strides with which its graph was traced."""
    from .call import laid

    def run(args: list[Any]) -> list[Any]:
        for i, fake in traced.items():
            if args[i].stride() != fake.stride():
                args[i] = laid(args[i], tuple(fake.shape), fake.stride())
        return call(args)

    return run if traced else call


def _all(module: Any, problem: str) -> dict[Any, Refusal]:
    from .split import _computes

    return {n: Refusal(" ".join(problem.split()), "") for n in module.graph.nodes if _computes(n)}


def _prefix(given: Sequence[bool]) -> int:
    """How many of the first inputs are arguments of the whole call."""
    return next((i for i, own in enumerate(given) if not own), len(given))


def _impure(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    checks = str(node.target) == "aten._assert_scalar.default"
    return checks or node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _passing(fragment: Fragment) -> Call:
    """A graph that computes nothing."""
    from .call import Plain

    class Nothing:
        class interface:
            inputs: tuple[Any, ...] = ()
            symbols: tuple[Any, ...] = ()

        @staticmethod
        def run_with(*_: Any) -> list[Any]:
            return []

    fragment.sources, fragment.targets = [], []
    return Plain(fragment, Nothing())


def _boxed(module: Any) -> Call:
    """A part that PyTorch runs."""

    def run(args: list[Any]) -> list[Any]:
        return list(module(*args))

    return run


def _chained(parts: Parts, steps: Sequence[Step]) -> Call:
    """Run all steps, over numbered values; each value is dropped after its last reader."""
    count, arity = parts.count, parts.arity
    last = {i: k for k, p in enumerate(parts.parts) for i in p.inputs}
    kept = {r.index for r in _numbers(parts.results)}
    plan = [(s, p.inputs, p.outputs, {i for i in {*p.inputs, *p.outputs} if last.get(i, -1) <= k and i not in kept})
            for k, (s, p) in enumerate(zip(steps, parts.parts, strict=True))]
    results = parts.results

    def call(args: list[Any]) -> list[Any]:
        values = [*args, *[None] * (count - arity)]
        args.clear()
        for step, inputs, outputs, dropped in plan:
            given = [values[i] for i in inputs]
            for i in dropped:
                values[i] = None
            for i, v in zip(outputs, step.run(given), strict=True):
                values[i] = None if i in dropped else v
        return [values[r.index] if isinstance(r, Number) else r for r in results]

    return call


def _numbers(results: Any) -> list[Number]:
    return [r for r in results if isinstance(r, Number)]


def _warn(made: Compiled) -> None:
    """One warning a graph: which ops, how often, and where the first of each stands."""
    found: dict[str, list[Refusal]] = {}
    for node, refusal in made.refusals.items():
        found.setdefault(str(node.target), []).append(refusal)
    lines = [f"  {op} x{len(r)}" + (f" (first at {r[0].place})" if r[0].place else "") + f": {r[0].reason}" for op, r in found.items()]
    warnings.warn(f"torch.compile: {sum(map(len, found.values()))} nodes of the {made.kind} graph run in PyTorch, which splits it in "
                  f"{len(made.steps)} parts; tilewright.explain(model, inputs) says what that costs:\n" + "\n".join(lines), SplitWarning,
                  stacklevel=2)


def tilewright(module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None,
               **unknown: Any) -> Callable[..., Any]:
    """The backend: what `torch.compile(model, backend="tilewright", options={...})` calls with every graph.

    Threads: any number may call a compiled function at once, forward and backward, with the bits of one call after the other. Compiles
    take turns (PyTorch's lock)."""
    import torch
    from torch._dynamo.backends.common import aot_autograd

    if unknown:
        raise ConfigError(f"torch.compile: the backend tilewright does not take {', '.join(unknown)}")
    check_version(torch.__version__)
    chosen = Options.of(mode, options)
    for i, x in enumerate(inputs):
        _check_input(i, x)
    compiler = Compiler(chosen)
    kept, sources = None, dict[str, list[Any]]()
    if chosen.freeze:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            raise ConfigError("torch.compile: options={'freeze': True} is for inference; call the model inside torch.no_grad() or "
                              "torch.inference_mode(), or leave freeze out")
        module, inputs, kept, sources = hold(module, inputs)

    traced: dict[str, Traced] = {}

    def compiled(kind: str) -> Callable[..., Any]:
        def run(graph: Any, examples: Sequence[Any]) -> Any:
            frozen, about = kind == "inference" and kept is not None, metadata()
            if kind == "forward" and about is not None:
                about.bw_donated_idxs = []  # what is saved goes when nobody holds it, so that it may be kept (retain_graph)
            arity = len(graph.graph.find_nodes(op="placeholder"))
            fixed = constants(module, sources, graph, about) if frozen else {}
            found = compiler.graph(graph, kind, fixed, examples if kind == "backward" else ())
            if chosen.freeze == "watch":
                follow(found, list(fixed.values()), partial(compiler.graph, graph, kind, fixed))
            traced[kind] = Traced(found, about, arity, held_tensors() if frozen else ())
            found.call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd gives such a function its arguments in one list
            return found.call

        return run

    exchange(module)
    with _plain_ops(), _free_tangents(module):
        made = aot_autograd(fw_compiler=compiled("forward"), bw_compiler=compiled("backward"), inference_compiler=compiled("inference"),
                            partition_fn=partition, keep_inference_input_mutations=True,
                            decompositions={})(module, inputs)
    made = direct(made, traced, inputs)
    return made if kept is None else without(made, kept)


@contextmanager
def _plain_ops() -> Iterator[None]:
    """Inside, torch traces plain ops, not calls into oneDNN or CUDA's cells, and resizes and gradients of running products whole."""
    import torch

    from .attention import inner_attention
    from .cells import plain_cells
    from .joint import whole_products
    from .resizes import whole_resizes

    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with whole_resizes, whole_products, inner_attention, plain_cells:
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _free_tangents(module: Any) -> Any:
    """Inside, gradients of results whose elements share memory are not laid as those results are: theirs would share memory, too."""
    import torch

    outputs = torch.utils._pytree.tree_leaves(next(n for n in reversed(module.graph.nodes) if n.op == "output").args)
    shown = [n.meta.get("example_value") for n in outputs if isinstance(n, torch.fx.Node)]
    shared = any(isinstance(t, torch.Tensor) and t.requires_grad and not apart(t) for t in shown)
    return torch._functorch.config.patch(guess_tangent_strides_as_outputs=False) if shared else nullcontext()


def _check_input(i: int, x: Any) -> None:
    import torch

    if not isinstance(x, torch.Tensor):
        return
    if x.is_nested or x.layout != torch.strided or x.is_quantized:
        kind = "nested" if x.is_nested else "quantized" if x.is_quantized else f"of layout {x.layout}"
        way = "to_padded_tensor(0)" if x.is_nested else "dequantize()" if x.is_quantized else "to_dense()"
        raise UnsupportedError(f"torch.compile: tensor {i} of the graph's inputs is {kind}; only dense tensors are supported: pass "
                               f"x.{way}, or keep this part of the model out with torch.compiler.disable")
