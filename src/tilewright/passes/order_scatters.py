"""On a GPU, scatters take their indices in order, and those of equal indices share it."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, NamedTuple

import numpy as np

from ..core.dims import bounds, product
from ..core.dtypes import i32, i64
from ..ir.graph import Graph, Node, Value, exchanged
from ..ir.layout import Layout
from ..ops import functions as F
from ..ops.index.counting import BagSum
from ..ops.index.from_end import below
from ..ops.index.indexing import Gather, GatherAlongAxis
from ..ops.index.scatter import IndexOrder, Scatter, ScatterAdd, ScatterAlong, ScatterOrdered, ScatterRows
from ..ops.index.sorting import ArgSort, Sort
from ..ops.pointwise.binary import Mul
from ..ops.pointwise.casts import Cast
from ..ops.rows.cumulative import CumSum
from ..ops.rows.reductions import Max, Mean, Sum
from ..ops.structure import Constant
from ..ops.views import Expand, Reshape, Slice
from .base import Log, Pass

FEW = 16  # elements along an axis that one thread takes one after the other
MOST = 1 << 30  # indices and rows that the words of an order hold
RANKED = 64  # elements that a sort compares with one another in one launch
KNOWN = 1 << 22  # places along an axis whose numbers are made when a graph is compiled, at most
COMPARED = 1 << 24  # comparisons that count how often indices name each row, at most


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


def permutes(v: Value) -> bool:
    """Whether a line of indices is known to name every one of its own places once."""
    if isinstance(v.op, Cast) and v.dtype in (i32, i64):
        return permutes(v.node.operands[0])
    return len(v.shape) == 1 and (isinstance(v.op, ArgSort) or (isinstance(v.op, Sort) and v.index == 1))


def inverse(ids: Value) -> Value:
    """Where a permutation has each of its places."""
    places = F.iota(ids.node.graph, ids.shape, 0, ids.dtype)
    found: Value = ScatterAlong(axis=0, mode="set", unique=True)(places, ids, places)
    return found


def by_order(n: Node, env: dict[Value, Value]) -> Value | tuple[Value, ...] | None:
    """A sort of integers below a known number as the order of the rows that they name: it looks at fewer bytes. The order of a permutation
    is its inverse, and rows written at one are read at its inverse."""
    op, x = n.op, n.operands[0] if n.operands else None
    if x is None or len(x.shape) == 0 or bounds(x.shape[0])[0] < 1 or bounds(x.shape[0])[1] > MOST:
        return None
    if isinstance(op, Scatter) and op.mode == "set" and op.axis == 0 and permutes(n.operands[1]) and x.shape[0] == n.operands[1].shape[0]:
        start, ids, updates = (env[v] for v in n.operands)
        if len(x.shape) > 1:
            return F.gather(updates, inverse(ids), 0)
        made: Value = ScatterAlong(axis=0, mode="set", unique=True)(start, ids, updates)
        return made
    if not isinstance(op, (Sort, ArgSort)) or op.descending or len(x.shape) != 1:
        return None
    if isinstance(op, ArgSort) and permutes(x):
        return F.cast(inverse(env[x]), op.dtype)
    rows = below(x)
    if rows is None or rows > MOST or rows.bit_length() > 8 * (x.dtype.itemsize - 1) or bounds(x.shape[0])[1] <= RANKED:
        return None
    words: Value = IndexOrder(rows=max(rows, 1))(env[x])
    graph = words.node.graph
    order = F.cast(F.one("bitwise_and", words, F.scalar(graph, (1 << 32) - 1, i64)), op.dtype)
    if isinstance(op, ArgSort):
        return order
    return F.cast(F.one("bitwise_right_shift", words, F.scalar(graph, 32, i64)), x.dtype), order


def counting(n: Node) -> bool:
    """Whether a node counts how often indices name each of not too many rows, on top of what is there."""
    if not isinstance(n.op, ScatterAdd) or len(n.operands[0].shape) != 1:
        return False
    (rows,), ids, one = n.operands[0].shape, n.operands[1], n.operands[2]
    count = product(ids.shape)
    while isinstance(one.op, (Expand, Reshape)):
        one = one.node.operands[0]
    if not isinstance(one.op, Constant) or one.op.data.array.size != 1 or one.op.data.array.item() != 1:
        return False
    high = below(ids)
    known = isinstance(rows, int) and isinstance(count, int) and 0 < rows * count <= COMPARED
    return known and high is not None and high <= rows


def by_comparing(n: Node, env: dict[Value, Value]) -> Value | None:
    """Counts as comparisons of every index with every row; running counts as comparisons of their own. A sort does not change them."""
    counts, rows, early = n, n.values[0].shape, "equal"
    if isinstance(n.op, CumSum):
        v = n.operands[0]
        while (isinstance(v.op, Cast) and v.dtype.itemsize >= 4) or (isinstance(v.op, Slice) and (*v.op.starts, *v.op.steps) == (0, 1)):
            v = v.node.operands[0]
        counts, early = v.node, "less" if n.op.exclusive else "less_equal"
        if n.op.reverse or not counting(counts) or not empty(counts.operands[0]):
            return None
    elif not counting(n):
        return None
    ids = counts.operands[1]
    while isinstance(ids.op, Reshape) or (isinstance(ids.op, Sort) and ids.index == 0):
        ids = ids.node.operands[0]
    every = F.iota(env[ids].node.graph, (*rows, 1), 0, ids.dtype)
    hits = F.apply(early, F.reshape(env[ids], (1, product(ids.shape))), every)
    found = F.cast(F.sum_(F.cast(hits, i32), (1,)), n.types[0].dtype)
    return found if counts is not n or empty(n.operands[0]) else F.add(env[n.operands[0]], found)


def by_bags(n: Node, env: dict[Value, Value], users: dict[Value, list[Node]], outputs: Collection[Value]) -> Value | None:
    """Rows that a gather reads, summed (or their mean, or largest) over the last axis of the indices, are read where they are summed."""
    if not isinstance(n.op, (Sum, Mean, Max)) or n.operands[0].dtype.kind != "f":
        return None
    rows, axis = n.operands[0], n.op.axes[0]
    if len(n.op.axes) != 1 or users[rows] != [n] or rows in outputs:
        return None
    shape, rows = rows.shape, rows.node.operands[0] if isinstance(rows.op, Reshape) else rows
    if not isinstance(rows.op, Gather) or rows.op.axis != 0 or users[rows] not in ([n], users[n.operands[0]], [n.operands[0].node]):
        return None
    table, ids = rows.node.operands
    each, width = shape[axis], product(table.shape[1:])
    known = isinstance(each, int) and each > 0 and isinstance(width, int) and width > 0 and min(bounds(table.shape[0])) > 0
    if not known or rows in outputs or product(shape[axis + 1 :]) != width or len(table.shape) < 2:
        return None
    flat = F.reshape(env[table], (table.shape[0], width))
    bags: Value = BagSum(largest=isinstance(n.op, Max), mean=isinstance(n.op, Mean))(
        flat, F.reshape(env[ids], (product(shape[:axis]), each)), place=rows.node.place)
    return F.reshape(bags, n.types[0].shape)


def by_known_places(n: Node, env: dict[Value, Value]) -> Value | None:
    """Elements along an axis at places that are known and the same for all leading axes (relative positions, say) are elements of a longer
    axis, at places that are known whole."""
    if not isinstance(n.op, GatherAlongAxis):
        return None
    x, index, axis = *n.operands, n.op.axis
    ids = index.node.operands[0] if isinstance(index.op, Expand) else index
    if not isinstance(ids.op, Constant) or len(ids.shape) != len(x.shape) or any(d != 1 for d in ids.shape[axis + 1 :]):
        return None
    first = next((a for a in range(axis) if ids.shape[a] != 1), axis)
    own, sizes = ids.shape[first : axis + 1], x.shape[first : axis + 1]
    alike = own[:-1] == sizes[:-1] == index.shape[first:axis] and (*x.shape[:first], *x.shape[axis + 1 :]) == (
        *index.shape[:first], *index.shape[axis + 1 :])
    size, places = sizes[-1], ids.op.data.array.reshape(own)
    if not alike or not isinstance(size, int) or not 0 < places.size <= KNOWN or not 0 <= places.min() <= places.max() < size:
        return None
    rows = np.arange(places.size // own[-1]).reshape((*own[:-1], 1))
    flat = F.reshape(env[x], (*x.shape[:first], product(sizes), *x.shape[axis + 1 :]))
    return F.gather(flat, flat.node.graph.constant((rows * size + places).astype(np.int32)), first)


def empty(v: Value) -> bool:
    """Whether all elements are known to be 0."""
    while isinstance(v.op, (Expand, Reshape)):
        v = v.node.operands[0]
    return isinstance(v.op, Constant) and v.op.data.array.size == 1 and v.op.data.array.item() == 0


@dataclass(frozen=True)
class OrderScatters(Pass):
    """Before: composites are taken apart; the target is a GPU. After: a scatter of rows of known width is an `index_order` of its indices
    and a `scatter_ordered` of rows along the first axis; so is one that adds more than a few elements along an axis, each of them a row.
    Rows that are a gather, or one times factors, and that nothing else reads are read where the gather would have read them. A sort of
    integers below a known number is such an order, too; a permutation is inverted by writing places, and how often indices name each of
    not too many rows is counted by comparing. Rows of a gather that only a sum, mean or maximum over an axis of the indices reads are a
    `bag_sum`; elements along an axis at known places are a gather of a longer axis."""

    name: ClassVar[str] = "order-scatters"

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(isinstance(n.op, (ScatterRows, ScatterAlong, Sort, ArgSort, Gather, GatherAlongAxis)) for n in graph.nodes):
            return graph
        users = graph.users()

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | Sequence[Value] | None:
            for way in (by_order, by_comparing, by_known_places, by_bags):
                more = (users, graph.outputs) if way is by_bags else ()
                if (other := way(n, env, *more)) is not None:
                    log.hit(way.__name__)
                    return other
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
            if n.op.claimed(n.operands[0].type, n.operands[1].type):
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
