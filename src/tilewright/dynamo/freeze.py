"""Parameters and buffers as constants of a graph: for inference with weights that do not change any more."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError

if TYPE_CHECKING:
    from .backend import Compiled


def hold(module: Any, inputs: Sequence[Any]) -> tuple[Any, list[Any], list[int], dict[str, list[Any]]]:
    """Dynamo's graph with its parameters and buffers as attributes, which AOTAutograd makes its first inputs; the other inputs; the
    positions of those among all; and where each attribute comes from."""
    import torch

    holes = [n for n in module.graph.nodes if n.op == "placeholder"]
    held: dict[int, str] = {}
    sources: dict[str, list[Any]] = {}
    module._param_name_to_source = dict(getattr(module, "_param_name_to_source", None) or {})
    kept = []
    for i, (hole, x) in enumerate(zip(holes, inputs, strict=True)):
        if not isinstance(x, torch.Tensor) or not _static(hole, x):
            kept.append(i)
            continue
        name = held.get(id(x))
        if name is None:
            name = held[id(x)] = f"held_{len(held)}"
            if isinstance(x, torch.nn.Parameter):
                module.register_parameter(name, x)
            else:
                module.register_buffer(name, x)
            module._param_name_to_source[name] = hole._dynamo_source
        sources.setdefault(name, []).append(hole._dynamo_source)
        with module.graph.inserting_before(hole):
            attribute = module.graph.get_attr(name)
        attribute.meta = dict(hole.meta)
        hole.replace_all_uses_with(attribute)
        module.graph.erase_node(hole)
    module.recompile()
    return module, [inputs[i] for i in kept], kept, sources


def _static(hole: Any, x: Any) -> bool:
    """A parameter, or a buffer of a module."""
    import torch

    about = hole.meta.get("tensor_dict") or {}
    return isinstance(x, torch.nn.Parameter) or bool(about.get("_dynamo_static_input_type"))


def held_tensors() -> tuple[Any, ...]:
    """Inside a compiler of AOTAutograd: the tensors that are attributes of the module, its first inputs."""
    from torch._guards import TracingContext

    return tuple(getattr(TracingContext.try_get(), "params_flat", None) or ())


def constants(module: Any, sources: Mapping[str, Sequence[Any]], graph: Any, about: Any) -> dict[int, Any]:
    """The number of each input of a graph that is an attribute of `module` and that the graph does not write -> its tensor. `about` is
    AOTAutograd's metadata; of tensors that share memory with a written one it makes one input, which is none of them."""
    found, asked = {}, set[Any]()
    for i, (hole, info) in enumerate(zip(graph.graph.find_nodes(op="placeholder"), about.input_info, strict=False)):
        name = getattr(hole.meta["desc"], "target", None)
        if name is not None and not (info.mutates_data or info.mutates_metadata):
            found[i] = getattr(module, name)
            asked.update(sources[name])
    _guard(asked)
    return found


def _guard(own: set[Any]) -> None:
    """Code that two modules share (layers behind a break of the graph, a function of a module) is compiled for each: its guards ask for the
    very tensors that are constants, and for nothing else about them. A module that is an argument is asked for, too: torch counts such
    compiles against each module's own limit."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import LocalSource, UnspecializedNNModuleSource
    from torch._guards import Source, TracingContext

    guards = TracingContext.get().guards_context.dynamo_guards
    guards.inner = type(guards.inner)(g for g in guards.inner if g.originating_source not in own)
    for source in list(own):
        while isinstance(inner := getattr(source, "base", None), Source):
            if isinstance(inner, LocalSource) and isinstance(source, UnspecializedNNModuleSource):
                own.add(inner)
            source = inner
    install_guard(*(s.make_guard(GuardBuilder.ID_MATCH) for s in own))


def follow(found: Compiled, tensors: Sequence[Any], again: Callable[[], Compiled]) -> None:
    """Let a graph's call compile again after PyTorch has written to one of the tensors that are constants, or given it other memory."""
    import torch

    version, place = torch.Tensor._version.__get__, torch.Tensor.data_ptr  # type: ignore[attr-defined]
    if any(t.is_inference() for t in tensors):
        raise ConfigError("torch.compile: options={'freeze': 'watch'} needs parameters whose writes PyTorch counts, and it counts none of "
                          "those made in torch.inference_mode(); make the model outside of it, or use {'freeze': True}")

    def state() -> list[int]:
        return [*map(version, tensors), *map(place, tensors)]

    call, known, lock = found.call, state(), threading.Lock()

    def run(args: list[Any]) -> list[Any]:
        nonlocal call, known
        if state() != known:
            with lock:
                now = state()
                if now != known:
                    call = again().call
                    known = now
        return call(args)

    if len(found.steps) == 1 and found.call is found.steps[0].run:
        found.steps[0].run = run
    found.call = run


def without(call: Callable[..., Any], kept: Sequence[int]) -> Callable[..., Any]:
    """A function of all inputs from one of the others. (Dynamo looks at the graph when it writes its calls, and leaves out the inputs that
    are gone.)"""

    def run(*args: Any) -> Any:
        return call(*args) if len(args) == len(kept) else call(*(args[i] for i in kept))

    return run
