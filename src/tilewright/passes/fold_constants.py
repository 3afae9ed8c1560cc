"""Computes what is known at compile time, within limits that keep weights where they are."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dims import Expr
from ..core.errors import ExecutionError
from ..ir.graph import Graph, Node, Value, replace_values
from ..ir.interp import apply
from ..ir.rewrite import sort_nodes
from .base import Log, Pass

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
                known[n.values[0]] = n.op.data.array
                continue
            if isinstance(n.op, o.PackWords) and (found := n.operands[0]) not in known and isinstance(found.op, o.Transpose) \
                    and (source := found.node.operands[0]) in known:
                known[found] = known[source].transpose(found.op.perm)
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
        if isinstance(n.op, o.PackWords):  # as large as the weights, which are then not needed any more
            return True
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
