"""ONNX graphs as functions that can be differentiated, and graphs as ONNX files."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from ..array.functions import staged
from ..core.errors import InputError, UnsupportedError
from ..core.signature import Slot
from ..frontend.onnx import families as _families  # noqa: F401  fills the tables
from ..frontend.onnx.export import export_graph
from ..frontend.onnx.importer import Blocked, Builder, Pending
from ..frontend.onnx.load import Source
from ..frontend.onnx.model import Frame, items_of, require_all
from ..frontend.onnx.program import Program, Tensor, declared, input_names
from ..ir.graph import Graph, Value, inline
from ..ir.types import TensorType
from ..passes.pipeline import recognized
from ..runtime.session import Session
from ..transform.promote import as_tracer
from ..transform.trace import Leaf, current, is_array, leaf_of, trace

Model = str | PathLike[str] | bytes | Any


class _Function:
    """The graph of a model for one set of argument types; its first inputs are the weights."""

    def __init__(self, source: Source, weights: Mapping[str, Any], types: Sequence[TensorType]) -> None:
        self.fixed: set[str] = set()  # weights whose elements the graph's shapes depend on: they stay what they are
        program = Program(source, source.proto.graph, Frame({}, source.opsets), lambda g: None, source.name)
        while True:
            builder = Builder(source, source.name)
            builder.weights = self._lifted(builder, weights)
            self.given: dict[str, Value] = {}
            builder.scope.constants = dict(program.constants)
            for n, t in zip(input_names(source.proto.graph), types, strict=True):
                builder.scope.bindings[n] = builder.input(t, n)
            builder.run(items_of(source, source.proto.graph.node, Frame({}, source.opsets)))
            needs = {n for b in builder.left if isinstance(b, Blocked) for n in b.needs if n in weights} - self.fixed
            if not needs:
                break
            self.fixed |= needs
        if builder.left:
            first = builder.left[0]
            why = f"{first.item.title}: {first.why}" if isinstance(first, Blocked) else first.title
            raise UnsupportedError(f"onnx: {source.name} is no graph of fixed sizes and has no derivative here: {why}")
        graph = builder.graph
        outs = [builder.scope.get(o) for o in program.outputs]
        if any(isinstance(o, Pending) or not isinstance(o, Value) for o in outs):
            raise UnsupportedError(f"onnx: {source.name} gives sequences or strings; a function gives tensors")
        graph.outputs = outs
        order = [*self.given.values(), *(builder.scope.bindings[n] for n in input_names(source.proto.graph))]
        graph.inputs = order
        graph.nodes.sort(key=lambda n: n.values[0] not in order)  # inputs first; the sort is stable
        if builder.context.seed is not None:
            raise UnsupportedError(f"onnx: {source.name} draws random numbers; from_onnx takes models that do not")
        self.graph: Graph = recognized(graph)

    def _lifted(self, builder: Builder, weights: Mapping[str, Any]) -> Callable[[str], Any]:
        """Weights become inputs of the graph when they are read."""
        def find(name: str) -> Any:
            if name not in weights or name in self.fixed:
                return None
            if name not in self.given:
                self.given[name] = builder.input(leaf_of(weights[name]).type, name)
            return self.given[name]

        return find


def from_onnx(model: Model) -> tuple[Callable[..., Any], dict[str, Any]]:
    """`(apply, params)`: `apply(params, *inputs)` is what the model computes, as a function that can be traced, differentiated and
    batched; params is a dict of the model's float initializers by name."""
    source = Source(model)
    require_all(source)
    graph = source.proto.graph
    params = {t.name: np.array(source.array(t)) for t in graph.initializer if t.data_type in (1, 10, 11, 16)}
    names = input_names(graph)
    made: dict[Any, _Function] = {}
    symbols: dict[str, Any] = {}
    infos = {i.name: i for i in graph.input}
    known = [declared(source, infos[n], symbols) for n in names]
    if not symbols and all(isinstance(k, Tensor) for k in known):
        types = [k.type for k in known]
        made[tuple(types)] = _Function(source, params, types)
        for n in made[tuple(types)].fixed:
            params.pop(n)

    def apply(params: Mapping[str, Any], *inputs: Any) -> Any:
        if len(inputs) != len(names):
            raise InputError(f"from_onnx: takes ({', '.join(names)}), got {len(inputs)} inputs")
        given = [as_tracer(x) for x in inputs]
        types = tuple(x.type for x in given)
        weights = {k: as_tracer(v) for k, v in params.items()}
        if types not in made:
            made[types] = _Function(source, {k: np.zeros(v.shape, v.dtype) for k, v in weights.items()}, types)
        fn = made[types]
        missing = [n for n in fn.given if n not in weights]
        if missing:
            raise InputError(f"from_onnx: the parameters lack {missing[0]!r}; have {' '.join(list(weights)[:4])} ...")
        outer = current()
        out = inline(fn.graph, outer.graph, [outer.lift(x) for x in (*(weights[n] for n in fn.given), *given)])
        results = [outer.wrap(v) for v in out]
        return results[0] if len(results) == 1 else tuple(results)

    apply.__name__ = "apply_onnx"
    return staged(apply), params


def export_onnx(model: Any, path: str | PathLike[str], args: Sequence[Any] = (), *, opset: int = 20) -> None:
    """Write a session, a graph or a function of arrays (with example arguments) as an ONNX file. What ONNX has no op for is written in
    plainer ops; where that is not possible either the error names the op."""
    if isinstance(model, Session):
        model._open()
        graph, _ = model.model.graph.clone()
        slots = [o.index for o in model.model.signature.outputs if isinstance(o, Slot)]
        graph.outputs = [graph.outputs[k] for k in slots] or graph.outputs
    elif isinstance(model, Graph):
        graph = model
    elif callable(model):
        from ..core.pytree import flatten

        leaves, spec = flatten((tuple(args), {}))
        if not leaves or not all(is_array(x) for x in leaves):
            raise InputError("export_onnx: a function needs example arguments that are arrays: export_onnx(f, path, (x, ...))")
        graph = trace(model, spec, [Leaf(leaf_of(x).type) for x in leaves]).graph
    else:
        raise InputError(f"export_onnx: takes a session, a graph or a function, got a {type(model).__name__}")
    export_graph(graph, path, opset=opset)
