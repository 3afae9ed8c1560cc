"""Sums, products, extremes and means at indices: scatter_reduce, index_reduce, scatter with reduce=. Updates are taken in the order of the
index."""

from __future__ import annotations

from functools import partial

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dtypes import DType
from ....ir.graph import Value
from .logic import truth
from .registry import Context, rows
from .scatter import _rows, _scatter

COMBINE = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def scattered(c: Context, mode: str, x: Value, ids: Value, updates: Value) -> Value:
    """Rows of `updates` written at the rows `ids` by "set", "add", "mul", "max" or "min"."""
    return c.emit(O.ScatterAdd() if mode == "add" else O.Scatter(mode=mode), x, ids, updates)


def identity(mode: str, dtype: DType) -> float | int:
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if dtype.is_float:
        return -float("inf") if mode == "max" else float("inf")
    info = np.iinfo(dtype.np)
    return int(info.min if mode == "max" else info.max)


def _filled(c: Context, value: float | int, like: Value) -> Value:
    return c.expand(c.scalar(value, like.dtype), like.shape)


def reduced(reduce: str, include_self: bool, c: Context, x: Value, ids: Value, updates: Value) -> Value:
    mode = COMBINE[reduce]
    if ids.shape[0] == 0 or x.type.numel == 0:
        return x
    if x.dtype.is_bool:
        return truth(c, reduced(reduce, include_self, c, c.cast(x, dt.i32), ids, c.cast(updates, dt.i32)))
    start = x if include_self else scattered(c, "set", x, ids, _filled(c, identity(mode, x.dtype), updates))
    out = scattered(c, mode, start, ids, updates)
    if reduce != "mean":
        return out
    count = scattered(c, "add", _filled(c, 1 if include_self else 0, x), ids, _filled(c, 1, updates))
    count = c.emit(O.Maximum(), count, c.scalar(1, x.dtype))
    return c.emit(O.Div() if x.dtype.is_float else O.FloorDivide(), out, count)


rows({
    "scatter.reduce scatter.value_reduce":
        lambda c, x, dim, index, source, *, reduce: _scatter(c, partial(reduced, reduce, True), x, dim, index, source),
    "scatter_reduce.two": lambda c, x, dim, index, source, reduce, *, include_self=True:
        _scatter(c, partial(reduced, reduce, include_self), x, dim, index, source),
    "index_reduce.default": lambda c, x, dim, index, source, reduce, *, include_self=True:
        _rows(c, partial(reduced, reduce, include_self), x, dim, index, source),
})
