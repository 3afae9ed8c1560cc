"""On a GPU, scatters take their indices in order, and those of equal indices share it."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, NamedTuple

from ..core.dims import bounds, product
from ..ir.graph import Graph, Node, Value, exchanged
from ..ir.layout import Layout
from ..ops import functions as F
from ..ops.index.indexing import Gather
from ..ops.index.scatter import IndexOrder, ScatterAlong, ScatterOrdered, ScatterRows, claimed
from ..ops.pointwise.binary import Mul
from ..ops.views import Expand
from .base import Log, Pass

FEW = 16  # elements along an axis that one thread takes one after the other
MOST = 1 << 30  # indices and rows that the words of an order hold


class Messages(NamedTuple):
    """Rows that a gather reads: a table, the indices, and what multiplies each row, if anything does."""

    operands: list[Value]
    place: str


def messages(n: Node, users: dict[Value, list[Node]], outputs: Collection[Value]) -> Messages | None:
    """The gather that makes the updates of a scatter along the first axis, where nothing else reads them."""
    ids, rows = n.operands[1:]
    factors: list[Value] = []
    if isinstance(rows.node.op, Mul) and rows.dtype.kind == "f":
        for a, b in permutations(rows.node.operands):
            factor = b.node.operands[0] if isinstance(b.node.op, Expand) else b
            if not factors and isinstance(a.node.op, Gather) and factor.shape == (*ids.shape, *(1 for _ in rows.shape[1:])):
                factors, between, rows = [factor], rows, a
        if factors and (users[between] != [n] or between in outputs):
            return None
    node = rows.node
    alone = len(users[rows]) == 1 and rows not in outputs and len(ids.shape) == 1 and len(rows.shape) > 1
    if not alone or not isinstance(node.op, Gather) or node.op.axis != 0 or getattr(n.op, "axis", 0) != 0:
        return None
    table, at = node.operands
    return Messages([table, at, *factors], node.place) if at.shape == ids.shape and min(bounds(table.shape[0])) > 0 else None


@dataclass(frozen=True)
class OrderScatters(Pass):
    """Before: composites are taken apart; the target is a GPU. After: a scatter of rows of known width is an `index_order` of its indices
    and a `scatter_ordered` of rows along the first axis; so is one that adds more than a few elements along an axis, each of them a row.
    Rows that are a gather, or one times factors, and that nothing else reads are read where the gather would have read them."""

    name: ClassVar[str] = "order-scatters"

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(self.suits(n) for n in graph.nodes):
            return graph
        users = graph.users()

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | None:
            if not self.suits(n):
                return None
            log.hit(n.op.name)
            x, ids, updates = (env[v] for v in n.operands)
            found = messages(n, users, graph.outputs) if isinstance(n.op, ScatterRows) else None
            if found is not None:
                return self.messages(n, x, ids, found, [env[v] for v in found.operands])
            return (self.along if isinstance(n.op, ScatterAlong) else self.ordered)(n, x, ids, updates)

        return exchanged(graph, change)

    def suits(self, n: Node) -> bool:
        if isinstance(n.op, ScatterAlong):
            if n.op.mode == "set" and claimed(n.operands[0].type, n.operands[1].type, n.op.axis):  # needs no order
                return False
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
        along = same.shape[n.op.axis] if len(same.shape) == len(ids.shape) else None
        whole = not any(a != n.op.axis and d != x.shape[a] for a, d in enumerate(ids.shape))
        if whole and product(same.shape) == along == ids.shape[n.op.axis]:
            return self.ordered(n, x, F.reshape(same, (same.shape[n.op.axis],)), updates)
        count, steps = product(x.shape), tuple(s for s in Layout.contiguous(x.shape).strides if isinstance(s, int))  # all of them
        words = IndexOrder(rows=x.shape[n.op.axis], axis=n.op.axis, steps=steps)(ids, place=n.place)
        rows = F.reshape(updates, (product(updates.shape), 1))
        made: Value = ScatterOrdered(mode=n.op.mode)(F.reshape(x, (count, 1)), words, rows, place=n.place)
        return F.reshape(made, x.shape)

    def messages(self, n: Node, x: Value, ids: Value, found: Messages, operands: list[Value]) -> Value:
        assert isinstance(n.op, ScatterRows)
        width, count = product(x.shape[1:]), ids.shape[0]
        words = IndexOrder(rows=x.shape[0])(ids, place=n.place)
        table, read, *factors = operands
        flat = [F.reshape(v, (v.shape[0], width)) for v in (x, table)]
        scales = [F.reshape(v, (count, 1)) for v in factors]
        made: Value = ScatterOrdered(mode=getattr(n.op, "mode", "add"))(flat[0], words, flat[1], read, *scales, place=found.place)
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
