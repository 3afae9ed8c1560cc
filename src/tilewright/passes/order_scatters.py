"""On a GPU, scatters take their indices in order, and those of equal indices share it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.dims import bounds, product
from ..ir.graph import Graph, Node, Value
from ..ir.layout import Layout
from ..ops import functions as F
from ..ops.index.scatter import IndexOrder, ScatterAlong, ScatterOrdered, ScatterRows
from ..ops.views import Expand
from .base import Log, Pass

FEW = 16  # elements along an axis that one thread takes one after the other
MOST = 1 << 30  # indices and rows that the words of an order hold


@dataclass(frozen=True)
class OrderScatters(Pass):
    """Before: composites are taken apart; the target is a GPU. After: a scatter of rows of known width is an `index_order` of its indices
    and a `scatter_ordered` of rows along the first axis; so is one of more than a few elements along an axis, each of them a row."""

    name: ClassVar[str] = "order-scatters"

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(self.suits(n) for n in graph.nodes):
            return graph
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            if not self.suits(n):
                graph.copy_into(new, env, [n])
                continue
            new.place = n.place
            x, ids, updates = (env[v] for v in n.operands)
            env[n.value] = (self.along if isinstance(n.op, ScatterAlong) else self.ordered)(n, x, ids, updates)
            new.place = ""
            log.hit(n.op.name)
        new.take_ends(graph, env)
        return new

    def suits(self, n: Node) -> bool:
        if isinstance(n.op, ScatterAlong):
            sizes = [d for v in n.operands[:2] for d in v.shape]
            known = all(isinstance(d, int) and d > 0 for d in sizes) and n.operands[0].dtype.kind != "b"
            return known and n.operands[1].shape[n.op.axis] > FEW and max(v.type.numel for v in n.operands) <= MOST
        if not isinstance(n.op, ScatterRows):
            return False
        x, ids = n.operands[0].shape, n.operands[1].shape
        least, most = zip(*(bounds(d) for d in (product(ids), x[n.op.axis])), strict=True)
        width = product([d for i, d in enumerate(x) if i != n.op.axis])
        return min(least) > 0 and max(most) <= MOST and isinstance(width, int) and width > 0

    def along(self, n: Node, x: Value, ids: Value, updates: Value) -> Value:
        """Every element is a row of its own, unless indices are the same all along the other axes."""
        assert isinstance(n.op, ScatterAlong)
        same = ids.node.operands[0] if isinstance(ids.node.op, Expand) else ids
        if product(same.shape) == same.shape[n.op.axis] and not any(a != n.op.axis and d != x.shape[a] for a, d in enumerate(ids.shape)):
            return self.ordered(n, x, F.reshape(same, (same.shape[n.op.axis],)), updates)
        count, steps = product(x.shape), tuple(s for s in Layout.contiguous(x.shape).strides if isinstance(s, int))  # all of them
        words = IndexOrder(rows=x.shape[n.op.axis], axis=n.op.axis, steps=steps)(ids, place=n.place)
        rows = F.reshape(updates, (product(updates.shape), 1))
        made: Value = ScatterOrdered(mode=n.op.mode)(F.reshape(x, (count, 1)), words, rows, place=n.place)
        return F.reshape(made, x.shape)

    def ordered(self, n: Node, x: Value, ids: Value, updates: Value) -> Value:
        op = n.op
        assert isinstance(op, (ScatterRows, ScatterAlong))
        axis, k, mode = op.axis, len(ids.shape), getattr(op, "mode", "add")
        rest = [i for i in range(len(x.shape)) if i != axis]
        rows = F.transpose(x, [axis, *rest])
        behind = [i for i in range(len(updates.shape)) if not axis <= i < axis + k]
        moved = F.transpose(updates, [*range(axis, axis + k), *behind])
        count, width = product(ids.shape), product(rows.shape[1:])
        words = IndexOrder(rows=x.shape[axis])(ids, place=n.place)
        flat = F.reshape(rows, (x.shape[axis], width))
        out = F.reshape(ScatterOrdered(mode=mode)(flat, words, F.reshape(moved, (count, width)), place=n.place), rows.shape)
        back = [0] * len(x.shape)
        for i, a in enumerate([axis, *rest]):
            back[a] = i
        return F.transpose(out, back)
