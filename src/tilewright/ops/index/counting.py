"""Counting made of other ops: histograms, numbers by value, sums over bags of rows. Sizes of results are given, never read off the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.dtypes import DType
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, N, bf16, f32, f64, i32, i64, require_kind
from .indexing import check_indices, require_ids


def some_bounds(arrays: list[Any]) -> list[Any]:
    """Rising bounds of bags that cover the ids."""
    table, ids, bounds = arrays
    bounds = np.sort(bounds % (len(ids) + 1))
    bounds[:1], bounds[-1:] = 0, len(ids)
    return [table, ids, bounds]


def owners(bounds: Value, n: Dim) -> Value:
    """The bag of each of n places: the number of bounds at or before it, less one. The last bound is where the last bag ends."""
    graph, bags = bounds.node.graph, bounds.shape[0] - 1
    marks = F.scatter_add(F.full(graph, (n + 1,), 0, dt.i64), F.slice_(bounds, 0, 0, bags), F.full(graph, (bags,), 1, dt.i64))
    return F.sub(F.one("cum_sum", F.slice_(marks, 0, 0, n), axis=0), 1)


def bag_sizes(bounds: Value) -> Value:
    bags = bounds.shape[0] - 1
    return F.sub(F.slice_(bounds, 0, 1, bags), F.slice_(bounds, 0, 0, bags))


@register
class BagSum(Composite):
    """Rows of a table [V, D] that ids [n] name, summed over bags (or the largest of each column, with `largest`): bag b is ids[bounds[b]]
    to ids[bounds[b + 1] - 1], in this order. Bounds [B + 1] rise from 0 to n; a bag of nothing is zeros. Without bounds, ids [B, k] are
    bags of one size, of which there may be the `mean`."""

    whole = True
    faults = True
    largest: bool = False
    mean: bool = False
    samples = [S(f32(9, 5), i64(14), i64(5), low=(-2, 0, 0), high=(2, 8, 14), fit=some_bounds),
               S(f64(3, 70), i32(20), i32(4), low=(-2, 0, 0), high=(2, 2, 20), fit=some_bounds),
               S(bf16(4, 3), i64(6), i64(3), low=(-2, 0, 0), high=(2, 3, 6), fit=some_bounds),
               S(f32(4, 3), i64(0), i64(3), low=0, high=1, fit=some_bounds),
               S(f32(9, 5), i64(14), i64(6), largest=True, low=(-2, 0, 0), high=(2, 8, 14), fit=some_bounds),
               S(bf16(4, 3), i32(6), i64(3), largest=True, low=(-2, 0, 0), high=(2, 3, 6), fit=some_bounds),
               S(f32(4, N), i64(6), i64(3), low=(-2, 0, 0), high=(2, 3, 6), fit=some_bounds),
               S(f32(9, 5), i64(4, 3), low=(-2, 0), high=(2, 8)), S(bf16(9, 70), i32(3, 16), mean=True, low=(-2, 0), high=(2, 8)),
               S(f64(9, 3), i64(2, 11), largest=True, low=(-2, 0), high=(2, 8)),
               S(bf16(9, 8), i64(N, 1), mean=True, low=(-2, 0), high=(2, 8))]
    errors = [E(f32(9), i64(3), i64(2), match="needs a table of rows"), E(f32(9, 2), i64(3), i64(0), match="needs at least one bound"),
              E(f32(9, 2), i64(3), match="needs a table of rows"), E(f32(9, 2), i64(3, 0), match="needs bags of at least one row"),
              E(f32(9, 2), i64(3), i64(2), mean=True, match="means are those of bags of one size"),
              E(f32(9, 2), f32(3), i64(2), match="indices must be integers"), E(i32(9, 2), i64(3), i64(2), match="needs float operands")]

    def infer(self, table: TensorType, ids: TensorType, *bounds_: TensorType) -> TensorType:
        require_kind((table,), "f")
        for v in (ids, *bounds_):
            require_ids(v)
        if not bounds_:
            fits = table.ndim == 2 and ids.ndim == 2
            require(fits, "needs a table of rows, and ids in bags, or in a line with bounds", table=table, ids=ids)
            require(isinstance(ids.shape[1], int) and ids.shape[1] != 0, "needs bags of at least one row", ids=ids)
            return table.with_shape((ids.shape[0], table.shape[1]))
        (bounds,) = bounds_
        require(not self.mean, "means are those of bags of one size", bounds=bounds)
        require(table.ndim == 2 and ids.ndim == 1 and bounds.ndim == 1, "needs a table of rows, and ids and bounds in a line",
                table=table, ids=ids, bounds=bounds)
        require(bounds.shape[0] != 0, "needs at least one bound", bounds=bounds)
        return table.with_shape((bounds.shape[0] - 1, table.shape[1]))

    def ref(self, table: Any, ids: Any, *bounds_: Any) -> Any:
        check_indices(self.name, ids, table.shape[0], 0)
        wide, join = table.astype(np.float64), np.max if self.largest else np.mean if self.mean else np.sum
        if not bounds_:
            return join(wide[ids], axis=1).astype(table.dtype)
        (bounds,) = bounds_
        sums = [join(wide[ids[a:b]], 0) if b > a else wide[:1].sum(0) * 0 for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        return np.array(sums).reshape(len(sums), table.shape[1]).astype(table.dtype)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return len(operands) == 2 and (target is None or target.kind != "cuda")

    def decompose(self, table: Value, ids: Value, *bounds_: Value) -> Value:
        if not bounds_:
            return F.one("max" if self.largest else "mean" if self.mean else "sum", F.gather(table, ids), axes=(1,))
        (bounds,) = bounds_
        rows, own, shape = F.gather(table, ids), owners(bounds, ids.shape[0]), (bounds.shape[0] - 1, table.shape[1])
        if not self.largest:
            return F.scatter_add(F.full(table.node.graph, shape, 0, table.dtype), own, rows)
        out = F.one("scatter", F.full(table.node.graph, shape, float("-inf"), table.dtype), own, rows, mode="max")
        return F.where(F.reshape(F.greater(bag_sizes(bounds), 0), (shape[0], 1)), out, 0)

    def flops(self, *types: TensorType) -> Dim:
        return types[1].numel * types[0].shape[1]


def last_not_above(edges: Value, x: Value) -> Value:
    """i64 places of the last of the ascending edges [n] that is not above each x (0 where all are): a binary search."""
    n = edges.shape[0]
    assert isinstance(n, int)
    low = F.full(x.node.graph, x.shape, 0, dt.i64)
    step = 1 << max(n - 1, 1).bit_length()
    while step > 1:
        step //= 2
        there = F.add(low, step)
        safe = F.minimum(there, n - 1)
        low = F.where(F.logical_and(F.less(there, n), F.less_equal(F.gather(edges, safe), x)), there, low)
    return low


def in_bins(x: Value, edges: Value) -> tuple[Value, Value]:
    """(number of the bin, whether there is one): bins hold their lower edge, the last one its upper edge too."""
    n = edges.shape[0]
    place = F.minimum(last_not_above(edges, x), n - 2)
    low, high = (F.reshape(F.slice_(edges, 0, i, 1), ()) for i in (0, n - 1))
    return place, F.logical_and(F.greater_equal(x, low), F.less_equal(x, high))


def counted(place: Value, inside: Value, size: int, weight: Value | None, dtype: DType) -> Value:
    """How often (or with which weight) each of `size` places is named by what is inside."""
    n = product(place.shape)
    slots = F.where(inside, place, size)
    each = F.full(place.node.graph, (n,), 1, dtype) if weight is None else F.cast(F.reshape(weight, (n,)), dtype)
    start = F.full(place.node.graph, (size + 1,), 0, dtype)
    return F.slice_(F.scatter_add(start, F.reshape(slots, (n,)), each), 0, 0, size)


def even_edges(low: Value, high: Value, bins: int) -> Value:
    """bins + 1 edges from low to high, computed from the nearer end."""
    graph, dtype = low.node.graph, low.dtype
    step = F.div(F.sub(high, low), float(bins))
    up = F.iota(graph, (bins + 1,), 0, dt.i64)
    from_low = F.add(low, F.mul(step, F.cast(up, dtype)))
    from_high = F.sub(high, F.mul(step, F.cast(F.sub(F.full(graph, (), bins, dt.i64), up), dtype)))
    return F.where(F.less(up, (bins + 1) // 2), from_low, from_high)


def own_range(x: Value) -> tuple[Value, Value]:
    """The smallest and the largest element; equal ones are moved apart, and of nothing they are 0 and 1."""
    if product(x.shape) == 0:
        return F.scalar(x.node.graph, 0, x.dtype), F.scalar(x.node.graph, 1, x.dtype)
    axes = tuple(range(len(x.shape)))
    low, high = F.one("min", x, axes=axes), F.max_(x, axes)
    same = F.equal(low, high)
    return F.where(same, F.sub(low, 0.5), low), F.where(same, F.add(high, 0.5), high)


def histogram(x: Value, edges: Sequence[Value], weight: Value | None = None, *, density: bool = False) -> Value:
    """Counts of rows x[N, D] in the boxes between D arrays of edges; with density they are shares of the whole by volume."""
    columns = len(edges)
    require(len(x.shape) == 2 and x.shape[1] == columns, "histogram: needs x[N, D] and D arrays of edges", x=x.type, edges=columns)
    sizes = [e.shape[0] - 1 for e in edges]
    rows = x.shape[0]
    place, inside = None, None
    for d, own in enumerate(edges):
        where, ok = in_bins(F.reshape(F.slice_(x, 1, d, 1), (rows,)), F.cast(own, x.dtype))
        place = where if place is None else F.add(F.mul(place, sizes[d]), where)
        inside = ok if inside is None else F.logical_and(inside, ok)
    assert place is not None and inside is not None
    total = product(sizes)
    assert isinstance(total, int)
    out = F.reshape(counted(place, inside, total, weight, x.dtype), tuple(sizes))
    if not density:
        return out
    out = F.div(out, F.sum_(out, tuple(range(columns))))
    for d, own in enumerate(edges):
        widths = F.sub(F.slice_(own, 0, 1, sizes[d]), F.slice_(own, 0, 0, sizes[d]))
        out = F.div(out, F.reshape(F.cast(widths, x.dtype), tuple(sizes[d] if i == d else 1 for i in range(columns))))
    return out


def bincount(x: Value, weight: Value | None, length: int) -> Value:
    """How often each of 0 … length - 1 stands in x (a sum of weights); others are an error of the run."""
    require(x.dtype.is_int, "bincount: needs integers", dtype=x.dtype)
    n = product(x.shape)
    each = F.full(x.node.graph, (n,), 1, dt.i64) if weight is None else F.reshape(weight, (n,))
    return F.scatter_add(F.full(x.node.graph, (length,), 0, each.dtype), F.reshape(x, (n,)), each)


def gather_by_count(table: Value, ids: Value) -> Value:
    """Rows of a table; the cotangent of a row is divided by how often ids name it."""
    rows = F.gather(table, ids)
    counts = F.gather(bincount(ids, None, table.shape[0]), ids)
    share = F.one("reciprocal", F.cast(F.maximum(counts, 1), rows.dtype))
    still = F.one("stop_gradient", rows)
    return F.add(still, F.mul(F.sub(rows, still), F.reshape(share, (*ids.shape, *(1,) * (len(table.shape) - 1)))))


def embedding_bag(table: Value, ids: Value, offsets: Value, weights: Value | None = None, *, mode: str = "sum",
                  padding: int | None = None, last: bool = False, by_count: bool = False) -> Value:
    """Rows of a table [V, D] that ids [n] name, summed (or the mean, or the largest) over bags: bag b begins at offsets[b]. With `last`
    the last offset is the end. Ids equal to `padding` count for nothing; bags of nothing are zeros. `by_count` is gather_by_count's."""
    graph, n, width = ids.node.graph, ids.shape[0], table.shape[1]
    bags = offsets.shape[0] - 1 if last else offsets.shape[0]
    starts = F.slice_(offsets, 0, 0, bags) if last else offsets
    bounds = offsets if last else F.concat([starts, F.reshape(F.dim_value(graph, n, offsets.dtype), (1,))], 0)
    if weights is None and padding is None and not by_count and table.dtype.is_float:
        out = F.one("bag_sum", table, ids, bounds, largest=mode == "max")
        return out if mode != "mean" else F.div(out, F.reshape(F.cast(F.maximum(bag_sizes(bounds), 1), out.dtype), (bags, 1)))
    rows = gather_by_count(table, ids) if by_count else F.gather(table, ids)
    own = owners(bounds, n)
    kept = None if padding is None else F.logical_not(F.equal(ids, padding))
    if weights is not None:
        rows = F.mul(rows, F.reshape(F.cast(weights, rows.dtype), (n, 1)))
    none = float("-inf") if mode == "max" else 0
    if kept is not None:
        rows = F.where(F.reshape(kept, (n, 1)), rows, none)
    start = F.full(graph, (bags, width), none, rows.dtype)
    out = F.one("scatter", start, own, rows, mode="max") if mode == "max" else F.scatter_add(start, own, rows)
    if mode == "sum":
        return out
    ones = F.full(graph, (n,), 1, rows.dtype) if kept is None else F.cast(kept, rows.dtype)
    sizes: Dim = bags
    count = F.reshape(F.scatter_add(F.full(graph, (sizes,), 0, rows.dtype), own, ones), (bags, 1))
    return F.where(F.greater(count, 0), out, 0) if mode == "max" else F.div(out, F.maximum(count, 1))


COMPARED = 256  # edges that are all compared; in more of them each value is searched by halves


def rising(arrays: list[Any]) -> list[Any]:
    """Rows in order, NaN behind all (NumPy's order of bf16 leaves NaN anywhere)."""
    rows = arrays[0]
    order = np.argsort(rows if rows.dtype.kind in "iu" else rows.astype(np.float64), -1)
    return [np.take_along_axis(rows, order, -1), *arrays[1:]]


@register
class SearchSorted(Composite):
    """How many elements of rising rows [..., n] stand before each value [..., m] (with `right` also those that equal it): rows of the
    same leading axes, or one row for all. NaN among the values comes after everything."""

    right: bool = False
    samples = [S(f32(9), f32(3, 37), fit=rising), S(f64(2, 5), f64(2, 7), right=True, fit=rising), S(i64(300), i64(20), fit=rising),
               S(bf16(2, 3, 300), bf16(2, 3, 5), fit=rising), S(f32(4), f32(0)), S(f32(0), f32(5)), S(f32(6), f32(N, 3), fit=rising),
               S(f32(N), f32(4), fit=rising)]
    errors = [E(f32(2, 5), f32(3, 7), match="needs one row, or rows of the values' leading axes"),
              E(f32(5), f64(3), match="operands must have one dtype"), E(f32(5), f32(), match="needs one row, or rows")]

    def infer(self, rows: TensorType, values: TensorType) -> TensorType:
        require_kind((rows, values), "fiu")
        require(rows.dtype is values.dtype, "operands must have one dtype", rows=rows, values=values)
        fits = values.ndim > 0 and (rows.ndim == 1 or (rows.ndim > 1 and rows.shape[:-1] == values.shape[:-1]))
        require(fits, "needs one row, or rows of the values' leading axes", rows=rows, values=values)
        return values.with_dtype(dt.i64)

    def ref(self, rows: Any, values: Any) -> Any:
        lead = values.shape[:-1]
        wide = [x.astype(np.float64) if x.dtype.kind not in "iu" else x for x in (rows, values)]
        rows = np.broadcast_to(wide[0], (*lead, rows.shape[-1]))
        out = np.zeros(values.shape, np.int64)
        for at in np.ndindex(*lead):
            edges, found = rows[at][:, None], wide[1][at][None, :]
            out[at] = np.where(found[0] == found[0], (edges <= found if self.right else edges < found).sum(0), len(edges))
        return out

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        n = operands[0].shape[-1]
        return target is None or target.kind != "cuda" or not isinstance(n, int) or n == 0

    def decompose(self, rows: Value, values: Value) -> Value:
        n, axis, graph = rows.shape[-1], len(rows.shape) - 1, rows.node.graph
        early = "less_equal" if self.right else "less"
        if not isinstance(n, int) or n <= COMPARED:
            edges = F.reshape(rows, (*rows.shape[:-1], 1, n)) if axis else rows
            before = F.apply(early, edges, F.reshape(values, (*values.shape, 1)))
            found = F.sum_(F.cast(before, dt.i64), (len(values.shape),))
        else:
            found, step = F.full(graph, values.shape, 0, dt.i32), 1 << n.bit_length()
            while step > 1:
                step //= 2
                there = F.add(found, step)
                place = F.minimum(F.sub(there, 1), n - 1)
                edge = F.one("gather_along_axis", rows, place, axis=axis) if axis else F.gather(rows, place, 0)
                found = F.where(F.logical_and(F.apply(early, edge, values), F.less_equal(there, n)), there, found)
            found = F.cast(found, dt.i64)
        return F.where(F.one("is_nan", values), F.dim_value(graph, n, dt.i64), found) if values.dtype.is_float else found
