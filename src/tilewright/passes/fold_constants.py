"""Computes what is known at compile time, within limits that keep weights where they are.

Values of a symbolic length that depend on nothing but positions (rope tables, position ids) become slices of a constant table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..core.dims import Dim, Expr, bounds
from ..core.errors import ExecutionError
from ..ir.graph import Graph, Node, Value, replace_values
from ..ir.interp import apply
from ..ir.rewrite import Match, P, Rule, X, rule, sort_nodes
from ..ops.matmul.int_products import Words
from ..ops.structure import ConstantData
from .base import Log, Pass, elementwise_classes

SMALL = 1 << 16


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Before: transposes and scalars are absorbed into matmuls (folding would materialise transposed weights).
    After: an op whose operands are all constants is a constant, unless its result is larger than `limit` bytes, it only expands,
    permutes or gathers more than `small` bytes, or it has no fixed shape. Positions stay: kernels count by themselves. What packs weights
    finds transposed ones of any size."""

    name: ClassVar[str] = "fold-constants"
    limit: int = 16 << 20
    small: int = SMALL

    def run(self, graph: Graph, log: Log) -> Graph:
        mapping: dict[Value, Value] = {}
        known: dict[Value, Any] = {}
        for n in list(graph.nodes):
            if isinstance(n.op, o.Constant):
                if not isinstance(n.op.data, Words):
                    known[n.values[0]] = n.op.data.array
                continue
            if isinstance(n.op, o.PackWords):
                found = n.operands[0]
                if found not in known and isinstance(found.op, o.Transpose) and (source := found.node.operands[0]) in known:
                    known[found] = known[source].transpose(found.op.perm)
                if found in known:
                    words, sums = n.values
                    known[sums] = known[found].sum(1, dtype=np.int32)
                    mapping[words] = graph.constant(Words(ConstantData(known[found], n.name)))
                    mapping[sums] = graph.constant(known[sums], n.name)
                    mapping[words].node.place = mapping[sums].node.place = n.place
                    log.hit(n.op.name)
                continue
            if isinstance(n.op, (o.Input, o.Positions)) or not self.worth(n, known):
                continue
            try:
                made = apply(n.op, [known[v] for v in n.operands], n.types)
            except ExecutionError:  # the kernel reports it, if it ever runs
                continue
            for v, array in zip(n.values, made, strict=True):
                known[v] = array
                mapping[v] = graph.constant(array, n.name)
                mapping[v].node.place = n.place
            log.hit(n.op.name)
        if mapping:
            replace_values(graph, mapping)
            _sources_first(graph)
            sort_nodes(graph)
        return graph

    def worth(self, n: Node, known: dict[Value, Any]) -> bool:
        if any(v not in known for v in n.operands) or not all(t.is_static for t in n.types) or _symbolic(n.op):
            return False
        if any(t.dtype.kind == "c" for t in n.types):  # no kernel reads complex constants
            return False
        if isinstance(n.op, (o.Scan, o.While, o.Cond)):  # nobody knows how long it runs
            return False
        sizes = [t.nbytes for t in n.types]
        size = sum(b for b in sizes if isinstance(b, int))
        if isinstance(n.op, (o.Reshape, o.Slice, o.Split)):
            return True  # NumPy views: no bytes move
        if isinstance(n.op, (o.Expand, o.Transpose, o.Concat, o.Gather, o.Flip)):
            return size <= self.small
        return size <= self.limit


def _symbolic(op: o.Op) -> bool:
    """Some attribute depends on a symbol: a start, for instance, even where the result's shape is fixed."""
    return any(isinstance(d, Expr) for value in op.attrs().values() for d in (value if isinstance(value, tuple) else (value,)))


def _sources_first(graph: Graph) -> None:
    """New constants were appended after their readers; sources have no operands and may stand first."""
    graph.nodes.sort(key=lambda n: bool(n.operands))


@dataclass(frozen=True)
class Table:
    """A constant cut to a length: `array` along `axis` (counted from the end, negative) from 0 to `size`; axis 0: uncut."""

    array: np.ndarray[Any, Any]
    axis: int = 0
    size: Dim = 0


def table_of(v: Value) -> Table | None:
    if isinstance(v.op, o.Constant):
        return Table(v.op.data.array)
    if not isinstance(v.op, o.Slice) or not isinstance(v.node.operands[0].op, o.Constant):
        return None
    op, array = v.op, v.node.operands[0].op.data.array
    cut = [k for k, n in enumerate(op.sizes) if n != array.shape[k]]
    if len(cut) != 1 or any(s != 0 for s in op.starts) or any(s != 1 for s in op.steps) or isinstance(op.sizes[cut[0]], int):
        return None
    return Table(array, cut[0] - array.ndim, op.sizes[cut[0]])


def cut(graph: Graph, array: np.ndarray[Any, Any], axis: int, size: Dim, name: str) -> Value:
    at = axis + array.ndim
    sizes = tuple(size if k == at else n for k, n in enumerate(array.shape))
    whole = graph.constant(np.ascontiguousarray(array), name)
    return o.emit(o.Slice(starts=(0,) * array.ndim, sizes=sizes, steps=(1,) * array.ndim), whole)


@rule(P(o.Iota, name="root"))
def iota_table(root: Any, m: Match) -> Value | None:
    op = root.op
    others = [n for k, n in enumerate(op.shape) if k != op.axis]
    most = bounds(op.shape[op.axis])[1]
    if not isinstance(op.start, int) or any(n != 1 for n in others) or most * op.dtype.itemsize > m.known:
        return None
    line = (op.start + op.step * np.arange(most)).astype(op.dtype.np)
    line = line.reshape(tuple(most if k == op.axis else 1 for k in range(len(op.shape))))
    if isinstance(op.shape[op.axis], int):
        return m.graph.constant(line, "range")
    return cut(m.graph, line, op.axis - len(op.shape), op.shape[op.axis], "range")


@rule(P(o.Reshape, X, name="root"))
def reshaped_table(x: Value, root: Any, m: Match) -> Value | None:
    """Only axes of size 1 come or go."""
    table, shape = table_of(x), root.types[0].shape
    if table is None or table.axis == 0 or list(shape).count(table.size) != 1:
        return None
    if [n for n in shape if n != 1] != [n for n in x.shape if n != 1]:
        return None
    at = list(shape).index(table.size)
    full = table.array.reshape(tuple(table.array.shape[table.axis] if k == at else n for k, n in enumerate(shape)))
    return cut(m.graph, full, at - len(shape), table.size, root.name)


@rule(P(elementwise_classes(), name="root"), changes="rounding")
def table_arithmetic(root: Any, m: Match) -> Value | None:
    found = [table_of(v) for v in root.operands]
    tables = [t for t in found if t is not None]
    lengths = {(t.axis, t.size) for t in tables if t.axis}
    if len(tables) != len(found) or len(lengths) != 1:
        return None
    (axis, size), = lengths
    longest = min(t.array.shape[t.axis] for t in tables if t.axis)
    arrays = []
    for t in tables:
        if t.axis:
            arrays.append(np.take(t.array, np.arange(longest), axis=t.axis) if t.array.shape[t.axis] != longest else t.array)
        elif t.array.ndim >= -axis and t.array.shape[axis] != 1:
            return None
        else:
            arrays.append(t.array)
    most = int(np.prod(np.broadcast_shapes(*(a.shape for a in arrays)), dtype=np.int64)) * root.types[0].dtype.itemsize
    if most > m.known:
        return None
    array, = apply(root.op, arrays)
    out = cut(m.graph, array, axis, size, root.name)
    return out if out.type == root.types[0] else None


@dataclass(frozen=True)
class FoldTables(Pass):
    """Before: masks are absorbed (they want to see the iotas).
    After: an iota of bounded length, and elementwise ops of such and constants, are slices of constants no larger than `limit` bytes."""

    name: ClassVar[str] = "fold-tables"
    rules: ClassVar[tuple[Rule, ...]] = (iota_table, reshaped_table, table_arithmetic)
    limit: int = 16 << 20

    def known(self, graph: Graph) -> int:
        return self.limit
