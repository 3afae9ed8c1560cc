"""Looking up and counting: sorted search, histograms, running extremes, medians."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.counting import bincount, counted
from ....ops.index.from_end import below
from .reduce import reduce
from .registry import Context, aten, axis_of, rows

EXACT = 1 << 24  # f32 has every integer below it


def _size(d: Dim, what: str) -> int:
    if not isinstance(d, int):
        raise UnsupportedError(f"{what} needs a static size, got {d}")
    return d


def _places(c: Context, rows: Value, values: Any, right: bool) -> Value:
    """How many elements of sorted rows stand before each value: one row for all of them, or rows of the same batch."""
    dtype = c.result_dtype(0, 1) if isinstance(values, Value) else rows.dtype
    dtype = dt.u8 if dtype.is_bool else dtype
    wanted, rows = c.value(values, dtype), c.cast(rows, dtype)
    wanted = wanted if wanted.shape else c.reshape(wanted, (1,))
    return c.reshape(c.cast(c.emit(O.SearchSorted(right=right), rows, wanted), c.dtype), c.shape)


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(c: Context, rows: Value, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
                 sorter: Value | None = None) -> Value:
    if sorter is not None:
        rows = c.emit(O.GatherAlongAxis(axis=len(rows.shape) - 1), rows, sorter)
    return _places(c, rows, values, bool(right) or side == "right")


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(c: Context, values: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    if len(boundaries.shape) != 1:
        raise UnsupportedError(f"bucketize needs boundaries of one axis, got {boundaries.type}")
    return _places(c, boundaries, values, bool(right))


# --- running extremes -----------------------------------------------------------------------------------------------------------------


def _running(c: Context, x: Value, dim: int, op: Any) -> tuple[Value, Value]:
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    best, where = c.emit_all(op(axis=axis_of(dim, len(x.shape))), c.cast(x, dt.u8) if x.dtype.is_bool else x)
    return c.cast(best, x.dtype), where


# --- medians --------------------------------------------------------------------------------------------------------------------------


def _median(c: Context, x: Value, axis: int, skip_nan: bool) -> tuple[Value, Value]:
    """(value, index) with the axis kept: the lower of the two middle elements; NaN (the first) where there is one and none is skipped."""
    n = _size(x.shape[axis], "median")
    middle: Value = c.scalar((n - 1) // 2, dt.i64)
    shape = tuple(1 if a == axis else d for a, d in enumerate(x.shape))
    if not x.dtype.is_float:
        at = c.expand(middle, shape)
    else:
        nans = c.emit(O.Sum(axes=(axis,), keepdims=True), c.cast(c.emit(O.IsNan(), x), dt.i64))
        rest = c.emit(O.Sub(), c.scalar(n, dt.i64), nans)
        if skip_nan:
            half = c.emit(O.FloorDivide(), c.emit(O.Sub(), rest, c.scalar(1, dt.i64)), c.scalar(2, dt.i64))
            at = c.emit(O.Maximum(), half, c.scalar(0, dt.i64))
        else:
            at = c.emit(O.Where(), c.emit(O.Greater(), nans, c.scalar(0, dt.i64)), rest, middle)
    index = c.emit(O.ArgRank(axis=axis), x, at)  # NaN last
    return c.emit(O.GatherAlongAxis(axis=axis), x, index), index


def _median_all(c: Context, x: Value, skip_nan: bool) -> Value:
    n = _size(product(x.shape), "median")
    if n == 0:
        return c.scalar(float("nan") if x.dtype.is_float else -(1 << (8 * x.dtype.itemsize - 1)), x.dtype)
    return c.reshape(_median(c, c.reshape(x, (n,)), 0, skip_nan)[0], ())


def _median_dim(c: Context, x: Value, dim: int, keepdim: bool, skip_nan: bool) -> Any:
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    found = _median(c, x, axis_of(dim, len(x.shape)), skip_nan)
    return tuple(c.reshape(v, s) for v, s in zip(found, c.shapes(), strict=True))


# --- histograms -----------------------------------------------------------------------------------------------------------------------


def _each_integer(c: Context, x: Value, least: int, bins: int) -> Value:
    """How often each of the integers least … least + bins - 1 stands in x."""
    place = c.emit(O.Sub(), x, c.scalar(least, dt.i64)) if least else x
    above = below(place)
    if above is not None and above <= bins:
        return bincount(place, None, bins)
    inside = c.emit(O.LogicalAnd(), c.emit(O.GreaterEqual(), place, c.scalar(0, dt.i64)), c.emit(O.Less(), place, c.scalar(bins, dt.i64)))
    return counted(place, inside, bins, None, dt.i64)


@aten("histc.default")
def histc(c: Context, x: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:  # noqa: A002
    """Counts in `bins` equal parts of min..max (of the data's own range where they are equal)."""
    flat = c.reshape(x, (x.type.numel,))
    n = flat.shape[0] if min != max else _size(flat.shape[0], "histc")
    given = x.node.operands[0] if isinstance(x.op, O.Cast) and x.dtype in (dt.f32, dt.f64) else x
    if given.dtype.is_int and min != max and bins == max - min + 1 and min == int(min) and -EXACT < min and max < EXACT:
        return c.cast(_each_integer(c, c.reshape(c.cast(given, dt.i64), flat.shape), int(min), bins), x.dtype)
    wide = c.cast(flat, dt.f64)
    if min == max:
        if n == 0:
            return c.expand(c.scalar(0, x.dtype), (bins,))
        low, high = reduce(c, O.Min, wide, None, False), reduce(c, O.Max, wide, None, False)
        flatline = c.emit(O.Equal(), low, high)
        low = c.emit(O.Where(), flatline, c.emit(O.Sub(), low, c.scalar(1.0, dt.f64)), low)
        high = c.emit(O.Where(), flatline, c.emit(O.Add(), high, c.scalar(1.0, dt.f64)), high)
    else:
        low, high = c.scalar(float(min), dt.f64), c.scalar(float(max), dt.f64)
    share = c.emit(O.Div(), c.emit(O.Sub(), wide, low), c.emit(O.Sub(), high, low))
    place = c.emit(O.Minimum(), c.emit(O.Floor(), c.emit(O.Mul(), share, c.scalar(float(bins), dt.f64))), c.scalar(float(bins - 1), dt.f64))
    inside = c.emit(O.LogicalAnd(), c.emit(O.GreaterEqual(), wide, low), c.emit(O.LessEqual(), wide, high))
    where = c.cast(c.emit(O.Where(), inside, place, c.scalar(0.0, dt.f64)), dt.i64)
    return c.cast(counted(where, inside, bins, None, dt.compute_dtype(x.dtype)), x.dtype)


@aten("mode.default")
def mode(c: Context, x: Value, dim: int = -1, keepdim: bool = False) -> Any:
    """The value that stands most often (the smallest of several), and where it stands last."""
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    axis = axis_of(dim, len(x.shape))
    n, last = x.shape[axis], len(x.shape)
    rows = c.transpose(x, [*(a for a in range(last) if a != axis), axis])
    lead = rows.shape[:-1]
    same = c.emit(O.Equal(), c.reshape(rows, (*lead, n, 1)), c.reshape(rows, (*lead, 1, n)))
    counts = c.emit(O.Sum(axes=(last,), keepdims=False), c.cast(same, dt.i64))
    often = c.emit(O.Equal(), counts, c.emit(O.Max(axes=(last - 1,), keepdims=True), counts))
    high = float("inf") if x.dtype.is_float else (1 << (8 * x.dtype.itemsize - 1)) - 1
    least = c.emit(O.Min(axes=(last - 1,), keepdims=True), c.emit(O.Where(), often, rows, c.scalar(high, x.dtype)))
    place = c.emit(O.Iota(shape=(n,), axis=0, dtype=dt.i64))
    own = c.emit(O.Where(), c.emit(O.Equal(), rows, least), place, c.scalar(-1, dt.i64))
    index = c.emit(O.Max(axes=(last - 1,), keepdims=True), own)
    found = c.emit(O.GatherAlongAxis(axis=last - 1), rows, index)
    return tuple(c.reshape(v, s) for v, s in zip((found, index), c.shapes(), strict=True))


rows({
    "cummax.default": lambda c, x, dim: _running(c, x, dim, O.CumMax),
    "cummin.default": lambda c, x, dim: _running(c, x, dim, O.CumMin),
    "logcumsumexp.default": lambda c, x, dim: c.emit(O.LogCumSumExp(axis=axis_of(dim, len(x.shape))), x) if x.shape else x,
    "median.default": lambda c, x: _median_all(c, x, False),
    "median.dim": lambda c, x, dim, keepdim=False: _median_dim(c, x, dim, keepdim, False),
    "nanmedian.default": lambda c, x: _median_all(c, x, True),
    "nanmedian.dim": lambda c, x, dim, keepdim=False: _median_dim(c, x, dim, keepdim, True),
})
