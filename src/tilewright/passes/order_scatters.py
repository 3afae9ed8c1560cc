"""On a GPU, scatters take their indices in order, and those of equal indices share it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.dims import bounds, product
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from ..ops.index.scatter import IndexOrder, Scatter, ScatterOrdered, ScatterRows
from .base import Log, Pass

MOST = 1 << 30  # indices and rows that the words of an order hold


@dataclass(frozen=True)
class OrderScatters(Pass):
    """Before: composites are taken apart; the target is a GPU. After: a scatter of rows of known width is an `index_order` of its indices
    and a `scatter_ordered` of rows along the first axis."""

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
            env[n.value] = self.ordered(n, x, ids, updates)
            new.place = ""
            log.hit(n.op.name)
        new.take_ends(graph, env)
        return new

    def suits(self, n: Node) -> bool:
        if not isinstance(n.op, ScatterRows):
            return False
        x, ids = n.operands[0].shape, n.operands[1].shape
        least, most = zip(*(bounds(d) for d in (product(ids), x[n.op.axis])), strict=True)
        width = product([d for i, d in enumerate(x) if i != n.op.axis])
        return min(least) > 0 and max(most) <= MOST and isinstance(width, int) and width > 0

    def ordered(self, n: Node, x: Value, ids: Value, updates: Value) -> Value:
        op = n.op
        assert isinstance(op, ScatterRows)
        axis, k, mode = op.axis, len(ids.shape), op.mode if isinstance(op, Scatter) else "add"
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
