"""`tw.from_torch`: a PyTorch module as a pure function of its parameters."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.extras import need
from ..core.pytree import flatten, unflatten
from ..frontend.torch.importer import Imported, import_torch
from ..ir.graph import Graph, inline
from ..passes.pipeline import recognized
from ..runtime.arguments import is_tensor, numpy_to_tensor, tensor_to_numpy
from ..transform.promote import as_tracer
from ..transform.trace import Leaf, current, is_array, leaf_of
from .functions import staged


class Applied:
    """The module's graph for one set of argument types; its first inputs are the parameters that it uses, then the buffers it writes."""

    def __init__(self, module: Any, args: tuple[Any, ...]) -> None:
        keys = {id(p): k for k, p in module.named_parameters()}
        aliases = {k: keys[id(p)] for k, p in module.named_parameters(remove_duplicate=False)}
        found: Imported = import_torch(module, args, weights=aliases)
        self.imported, graph = found, found.graph
        self.names = list(found.weights)  # in the order of the graph's first inputs
        self.buffers = [name for name, _ in found.buffers]
        self.graph: Graph = recognized(graph)

    def __call__(self, params: dict[str, Any], leaves: Sequence[Any], buffers: dict[str, Any] | None, key: Any) -> Any:
        outer, seeded = current(), self.imported.signature.seeded
        if seeded != (key is not None):
            raise InputError("from_torch: the module draws random numbers in its mode (train or eval); give a key: "
                             "apply(params, ..., key=tw.random.key(0)), another one for each call; or call module.eval()" if seeded else
                             "from_torch: the module draws no random numbers in its mode (train or eval); leave out key=")
        if self.buffers and buffers is None:
            raise InputError(f"from_torch: the module updates its buffers {' '.join(self.buffers[:3])} ...; give and take them: "
                             "out, buffers = apply(params, ..., buffers=buffers), first buffers=apply.buffers; or call module.eval()")
        if buffers is not None and not self.buffers:
            raise InputError("from_torch: the module updates no buffers in its mode (train or eval); leave out buffers=")
        state = buffers or {}
        for kind, names, have in (("parameters", self.names, params), ("buffers", self.buffers, state)):
            missing = [n for n in names if n not in have]
            if missing:
                raise InputError(f"from_torch: the {kind} lack {missing[0]!r}; have {' '.join(list(have)[:4])} ...")
        given = [as_tracer(params[n]) for n in self.names] + [as_tracer(state[n]) for n in self.buffers] + [as_tracer(x) for x in leaves]
        given += [as_tracer(key)] if seeded else []
        names = [*self.names, *self.buffers, *(["an argument"] * len(leaves)), *(["the key"] if seeded else [])]
        for name, v, x in zip(names, self.graph.inputs, given, strict=True):
            if v.type != x.type:
                raise InputError(f"from_torch: {name} must be {v.type}, got {x.type}")
        made = inline(self.graph, outer.graph, [outer.lift(x) for x in given])
        results = [outer.wrap(v) for v in made]
        out = self.imported.signature.unflatten(results)
        return (out, {name: results[i] for name, i in self.imported.buffers}) if self.buffers else out


def from_torch(module: Any, args: Sequence[Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """`(apply, params)`: `apply(params, *args)` is what the module computes, as a function that can be traced, differentiated and batched;
    params is a dict of NumPy arrays with the keys of `module.named_parameters()`.

    Buffers stay what they are, unless the module in its mode (train or eval) writes to them, as batch norm does in training. Then
    `apply.buffers` holds those, and a call takes their values and gives the new ones: `out, buffers = apply(params, *args,
    buffers=buffers)`. A module that draws random numbers (dropout in training) takes a key: `apply(params, *args, key=key)`; see
    `tw.random`."""
    need("torch", "from_torch")
    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch: needs a torch.nn.Module, got a {type(module).__name__}")
    examples = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    graphs: dict[Any, Applied] = {}

    def applied(leaves: Sequence[Any], given: tuple[Any, ...]) -> Applied:
        key = tuple(_type(x) for x in leaves)
        if key not in graphs:
            graphs[key] = Applied(module, given)
        return graphs[key]

    first = applied([x for x in flatten(examples)[0] if is_array(x) or is_tensor(x)], examples)

    def apply(params: dict[str, Any], *inputs: Any, buffers: dict[str, Any] | None = None, key: Any = None) -> Any:
        leaves, spec = flatten(inputs)
        arrays = [x for x in leaves if is_array(x)]
        example = unflatten(spec, [_example(x) if is_array(x) else x for x in leaves])
        return applied(arrays, example)(params, arrays, buffers, key)

    apply.__name__ = f"apply_{type(module).__name__}"
    params = {k: np.array(tensor_to_numpy(p), order="C") for k, p in module.named_parameters()}
    made: Any = staged(apply)
    found = dict(module.named_buffers())
    made.buffers = {name: np.array(tensor_to_numpy(found[name]), order="C") for name in first.buffers}
    return made, params


def _type(x: Any) -> Leaf:
    return leaf_of(tensor_to_numpy(x) if is_tensor(x) else x)


def _example(x: Any) -> Any:
    """A tensor of x's type, for export, which looks at no element."""
    t = leaf_of(x).type
    return numpy_to_tensor(np.zeros(t.shape, t.dtype.np))
