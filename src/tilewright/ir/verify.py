"""Checks a graph's own invariants. Passes run it before and after in tests; it names the node that breaks a rule."""

from __future__ import annotations

from typing import Any

from ..core.dims import Expr
from ..core.dtypes import DType
from ..core.errors import ShapeError, VerifyError
from ..core.validation import Finding, Severity, validator
from .graph import Graph, Node, Value
from .text import all_symbols
from .types import TensorType


def _sound(graph: Graph, phase: str) -> list[Finding]:
    try:
        verify(graph)
    except VerifyError as e:
        return [Finding(Severity.ERROR, phase, str(e))]
    return []


@validator("import")
def imported_graph(graph: Graph) -> list[Finding]:
    """Order, types, names and symbols of a graph from a frontend."""
    return _sound(graph, "import")


@validator("import", strict_only=True)
def constants_are_finite(graph: Graph) -> list[Finding]:
    """A weight with NaN or infinity is usually a broken checkpoint: worth a warning, which strict validation makes an error."""
    import numpy as np

    found = []
    for node in graph.nodes:
        data = node.op.attrs().get("data") if node.op.name == "constant" else None
        if data is not None and data.type.dtype.is_float and data.array.size > 1:  # a lone infinity is how masks are written
            wide = data.array if data.type.dtype.name in ("f32", "f64", "f16") else data.array.astype(np.float32)
            if not np.isfinite(wide).all() and not np.isneginf(wide).any():
                found.append(Finding(Severity.WARNING, "import", f"constant {data.name} holds NaN or infinity"))
    return found


@validator("passes")
def optimised_graph(graph: Graph) -> list[Finding]:
    """The same after the passes."""
    return _sound(graph, "passes")


PLAIN = (bool, int, float, str, type(None))


def verify(graph: Graph) -> None:
    """Raise VerifyError unless order, types, names, symbols, inputs, outputs and regions are sound."""
    _verify(graph, graph.name)
    _check_symbols(graph)


def _verify(graph: Graph, where: str) -> None:
    seen: set[Value] = set()
    names: set[str] = set()
    for n in graph.nodes:
        _check_node(graph, n, seen, where)
        for name in {n.name, *(v.name for v in n.values)}:
            if name in names:
                raise VerifyError(f"{where}: the name %{name} is used twice")
            names.add(name)
        seen.update(n.values)
    _check_ends(graph, seen, where)
    _check_donated(graph, where)


def _check_donated(graph: Graph, where: str) -> None:
    for i, k in graph.donated.items():
        if not (0 <= i < len(graph.inputs) and 0 <= k < len(graph.outputs)):
            raise VerifyError(f"{where}: input {i} cannot be donated to output {k}: there are {len(graph.inputs)} and {len(graph.outputs)}")
        if graph.inputs[i].type != graph.outputs[k].type:
            raise VerifyError(f"{where}: donated input %{graph.inputs[i].name} is {graph.inputs[i].type}, but output {k} is "
                              f"{graph.outputs[k].type}")
    if len(set(graph.donated.values())) != len(graph.donated):
        raise VerifyError(f"{where}: two inputs are donated to one output: {graph.donated}")


def _check_node(graph: Graph, n: Node, seen: set[Value], where: str) -> None:
    if n.graph is not graph:
        raise VerifyError(f"{where}: %{n.name} says it belongs to graph {n.graph.name!r}")
    if len(n.values) != len(n.types) or any(v.node is not n or v.index != i for i, v in enumerate(n.values)):
        raise VerifyError(f"{where}: the values of %{n.name} are not its own")
    for v in n.operands:
        if v.node.graph is not graph:
            raise VerifyError(f"{where}: operand %{v.name} of %{n.name} belongs to another graph")
        if v not in seen:
            raise VerifyError(f"{where}: operand %{v.name} of %{n.name} is not defined before it")
    for key, value in n.op.attrs().items():
        _check_attribute(value, f"{where}: attribute {key} of %{n.name}")
    if wrong := n.op.wrong_arity(len(n.operands)):
        raise VerifyError(f"{where}: %{n.name} = {n.op.name} {wrong}")
    try:
        inferred = n.op.infer(*(v.type for v in n.operands))
    except ShapeError as e:
        raise VerifyError(f"{where}: %{n.name} = {n.op.name} rejects its operands: {e}") from None
    types = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
    if types != n.types:
        raise VerifyError(f"{where}: %{n.name} has type {_show(n.types)}, but {n.op.name} gives {_show(types)}")
    for key, body in n.op.attrs().items():
        if isinstance(body, Graph):
            (_check_region if n.op.name == "fused" else _verify)(body, f"{where}/%{n.name}" + ("" if key == "body" else f".{key}"))


def _check_attribute(value: Any, what: str) -> None:
    if isinstance(value, tuple):
        for v in value:
            _check_attribute(v, what)
    elif isinstance(value, Expr):
        if not value.symbols:
            raise VerifyError(f"{what} is a constant expression {value}; dims without symbols are ints")
    elif not (type(value) in PLAIN or isinstance(value, (DType, TensorType, Graph)) or hasattr(type(value), "digest")):
        # (the class is asked: an instance would hash its bytes to answer)
        raise VerifyError(f"{what} has the Python type {type(value).__name__}; attributes are plain values, dims, types, data or graphs")


def _check_region(body: Graph, where: str) -> None:
    """A body verifies by itself, holds no region, and has at most one anchor among elementwise ops, views and sources
    (ropes before an attention, updates of its caches and the values for them belong to it, the rounding of its result to values to a
    product or norm, and a norm to the products of its result, as does the rounding of a row to products of its values), or else reductions
    of the same rows."""
    _verify(body, where)
    if any(n.op.name == "fused" for n in body.nodes):
        raise VerifyError(f"{where}: a region inside a region")
    anchors = [n for n in body.nodes if n.op.traits.anchor]
    if any(n.op.name in ("attention", "q8_attention") for n in anchors):  # it may rotate queries and keys, and append to its caches
        anchors = [n for n in anchors if n.op.name not in ("rope", "update_slice", "q8_blocks")]
    if len(anchors) == 2 and anchors[1].op.name == "quantize_rows":  # rounding the anchor's result may follow it
        anchors.pop()
    if len(anchors) > 1 and anchors[0].op.name == "rms_norm":  # the products of one row may compute its norm themselves
        row = anchors[0].values[0]
        anchors = [n for n in anchors if n.op.name != "matmul" or n.operands[0] is not row]
    rounding = next((n for n in anchors if n.op.name == "quantize_rows"), None)
    if rounding is not None:  # products of one row may round it to quantized values themselves, and compute its norm
        anchors = [n for n in anchors if n.op.name != "qdot" or n.operands[0] is not rounding.values[0]]
        anchors = [n for n in anchors if n.op.name != "rms_norm" or rounding.operands[0] is not n.values[0]]
    rows = {(n.operands[0].shape, n.types[0].shape) for n in anchors if n.op.traits.reduction}
    if len(anchors) > 1 and not (len(rows) == 1 and all(n.op.traits.reduction for n in anchors)):
        raise VerifyError(f"{where}: a region has at most one anchor, got {', '.join(f'%{n.name} = {n.op.name}' for n in anchors)}")


def _check_ends(graph: Graph, seen: set[Value], where: str) -> None:
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for v in values:
            if v not in seen:
                raise VerifyError(f"{where}: {kind} %{v.name} is not a value of this graph")
    listed = [v.node for v in graph.inputs]
    for n in listed:
        if n.op.name != "input":
            raise VerifyError(f"{where}: input %{n.name} is made by {n.op.name}, not by input")
    declared = [n for n in graph.nodes if n.op.name == "input"]
    if len(set(listed)) != len(listed) or set(listed) != set(declared):
        raise VerifyError(f"{where}: the input ops and the list of inputs differ: {_names(declared)} against {_names(listed)}")


def _check_symbols(graph: Graph) -> None:
    """One range a name, and every symbol can be read off some input's shape."""
    used = all_symbols(graph)
    for a, b in zip(used, used[1:], strict=False):
        if a.name == b.name:
            raise VerifyError(f"{graph.name}: dim {a.name} has two ranges, {a.lo}..{a.hi} and {b.lo}..{b.hi}")
    bound = {s.name for s in graph.symbols()}
    for s in used:
        if s.name not in bound:
            raise VerifyError(f"{graph.name}: dim {s.name} is used but appears in no input's shape")


def _show(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))


def _names(nodes: list[Node]) -> str:
    return ", ".join(f"%{n.name}" for n in nodes) or "none"
