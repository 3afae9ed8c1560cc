"""Parameters and buffers as constants of a graph: for inference with weights that do not change any more."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def hold(module: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any], list[int]]:
    """Dynamo's graph with its parameters and buffers as attributes, which AOTAutograd makes its first inputs; the other inputs; and the
    positions of those among all."""
    import torch

    holes = [n for n in module.graph.nodes if n.op == "placeholder"]
    held: dict[int, str] = {}
    sources = []
    module._param_name_to_source = dict(getattr(module, "_param_name_to_source", None) or {})
    kept = []
    for i, (hole, x) in enumerate(zip(holes, inputs, strict=True)):
        if not isinstance(x, torch.Tensor) or not _static(hole, x):
            kept.append(i)
            continue
        sources.append(hole._dynamo_source)
        name = held.get(id(x))
        if name is None:
            name = held[id(x)] = f"held_{len(held)}"
            if isinstance(x, torch.nn.Parameter):
                module.register_parameter(name, x)
            else:
                module.register_buffer(name, x)
            module._param_name_to_source[name] = hole._dynamo_source
        with module.graph.inserting_before(hole):
            attribute = module.graph.get_attr(name)
        attribute.meta = dict(hole.meta)
        hole.replace_all_uses_with(attribute)
        module.graph.erase_node(hole)
    module.recompile()
    _guard(sources)
    return module, [inputs[i] for i in kept], kept


def _guard(sources: Sequence[Any]) -> None:
    """Code that two modules share (layers behind a break of the graph, a function of a module) is compiled for each: its guards ask for the
    very tensors that are constants, and for nothing else about them. A module that is an argument is asked for, too: torch counts such
    compiles against each module's own limit."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import LocalSource, UnspecializedNNModuleSource
    from torch._guards import Source, TracingContext

    guards, own = TracingContext.get().guards_context.dynamo_guards, set(sources)
    guards.inner = type(guards.inner)(g for g in guards.inner if g.originating_source not in own)
    for source in list(own):
        while isinstance(inner := getattr(source, "base", None), Source):
            if isinstance(inner, LocalSource) and isinstance(source, UnspecializedNNModuleSource):
                own.add(inner)
            source = inner
    install_guard(*(s.make_guard(GuardBuilder.ID_MATCH) for s in own))


def _static(hole: Any, x: Any) -> bool:
    """A parameter, or a buffer of a module."""
    import torch

    about = hole.meta.get("tensor_dict") or {}
    return isinstance(x, torch.nn.Parameter) or bool(about.get("_dynamo_static_input_type"))


def held_tensors() -> dict[int, Any]:
    """Inside a compiler of AOTAutograd: the number of each input that is an attribute of the module -> its tensor."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    found = getattr(context, "params_flat", None) or []
    return dict(enumerate(found))


def without(call: Callable[..., Any], kept: Sequence[int]) -> Callable[..., Any]:
    """A function of all inputs from one of the others. (Dynamo looks at the graph when it writes its calls, and leaves out the inputs that
    are gone.)"""

    def run(*args: Any) -> Any:
        return call(*args) if len(args) == len(kept) else call(*(args[i] for i in kept))

    return run
