"""Reductions over segments of an axis whose lengths are data: every segment looks at the whole axis and takes what is its own."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .registry import Context, aten

KINDS = {"sum": (O.Sum, 0.0), "mean": (O.Sum, 0.0), "prod": (O.Prod, 1.0), "max": (O.Max, float("-inf")), "min": (O.Min, float("inf"))}
JOIN = {"sum": O.Add, "mean": O.Add, "prod": O.Mul, "max": O.Maximum, "min": O.Minimum}


@aten("segment_reduce.default")
def segment_reduce(c: Context, x: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
                   offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None) -> Value:
    if indices is not None or reduce not in KINDS:
        raise UnsupportedError("segment_reduce needs lengths or offsets, and sum, mean, prod, max or min")
    if lengths is not None:
        size = c.cast(lengths, dt.i64)
        ends = c.emit(O.CumSum(axis=len(size.shape) - 1), size)
        starts = c.emit(O.Sub(), ends, size)
    else:
        assert offsets is not None
        bounds = c.cast(offsets, dt.i64)
        last, n = len(bounds.shape) - 1, bounds.shape[-1] - 1
        starts, ends = c.slice(bounds, last, 0, n), c.slice(bounds, last, 1, n)
        size = c.emit(O.Sub(), ends, starts)
    op, neutral = KINDS[reduce]
    lead, n, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    place = c.emit(O.Iota(shape=(n,), axis=0, dtype=dt.i64))
    after = c.emit(O.GreaterEqual(), place, c.reshape(starts, (*starts.shape, 1)))
    own = c.emit(O.LogicalAnd(), after, c.emit(O.Less(), place, c.reshape(ends, (*ends.shape, 1))))
    own = c.reshape(own, (*own.shape, *(1,) * len(rest)))
    spread = c.reshape(x, (*lead, 1, n, *rest))
    out = c.emit(op(axes=(len(lead) + 1,), keepdims=False), c.emit(O.Where(), own, spread, c.scalar(neutral, x.dtype)))
    if initial is not None:
        out = c.emit(JOIN[reduce](), out, c.scalar(float(initial), x.dtype))
    if reduce == "mean":
        count = c.reshape(c.cast(size, x.dtype), (*size.shape, *(1,) * len(rest)))
        empty = c.emit(O.Equal(), count, c.scalar(0.0, x.dtype))
        share = c.emit(O.Div(), out, c.emit(O.Where(), empty, c.scalar(1.0, x.dtype), count))
        out = c.emit(O.Where(), empty, out if initial is not None else c.scalar(float("nan"), x.dtype), share)
    return c.reshape(out, c.shape)
