"""Reductions; axes are an attribute at first and an input since opset 13 (ReduceSum) and 18."""
from __future__ import annotations

from typing import Any

from ... import ops as O
from ...core import dtypes as dt
from ...core.dtypes import compute_dtype
from ...ir.graph import Value
from ...ops import functions as F
from .registry import Context, axes_of, axis_of
from .tables import op


def _plain(name: str) -> Any:
    def fn(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
        return F.one(name, x, axes=axes, keepdims=keep)

    return fn


def _mean(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if x.dtype.is_float:
        return F.mean(x, axes, keepdims=keep)
    total = F.sum_(x, axes, keepdims=keep)
    count = F.extent(x, [x.shape[a] for a in axes])
    whole = F.one("floor_divide", F.abs_(total) if x.dtype.kind == "i" else total, F.cast(count, total.dtype))
    return F.cast(F.where(F.less(total, 0), F.neg(whole), whole) if x.dtype.kind == "i" else whole, x.dtype)


def _extreme(name: str) -> Any:
    def fn(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
        if x.dtype.is_bool:
            return F.one("any" if name == "max" else "all", x, axes=axes, keepdims=keep)
        if any(x.shape[a] == 0 for a in axes):  # the least, or largest, of nothing
            import numpy as np

            worst: Any = -np.inf if x.dtype.is_float else np.iinfo(x.dtype.np).min
            worst = -worst if x.dtype.is_float and name == "min" else worst if name == "max" else np.iinfo(x.dtype.np).max
            shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
            return c.full(shape, worst, x.dtype)
        return F.one(name, x, axes=axes, keepdims=keep)

    return fn


def _floats(x: Value) -> Value:
    """What roots and logarithms are taken of: integers as f64."""
    return x if x.dtype.is_float else F.cast(x, dt.f64)


def _l1(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return F.sum_(x if x.dtype.kind == "u" else F.abs_(x), axes, keepdims=keep)


def _l2(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return F.cast(F.sqrt(F.sum_(F.square(F.cast(_floats(x), compute_dtype(_floats(x).dtype))), axes, keepdims=keep)), x.dtype)


def _square(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return F.sum_(F.square(x), axes, keepdims=keep)


def _log_sum(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return F.cast(F.log(F.sum_(_floats(x), axes, keepdims=keep)), x.dtype)


def _log_sum_exp(c: Context, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if any(x.shape[a] == 0 for a in axes):
        return F.log(F.sum_(F.exp(_floats(x)), axes, keepdims=keep))
    return F.cast(F.one("log_sum_exp", _floats(x), axes=axes, keepdims=keep), x.dtype)


REDUCTIONS = {"ReduceSum": _plain("sum"), "ReduceProd": _plain("prod"), "ReduceMean": _mean, "ReduceMax": _extreme("max"),
              "ReduceMin": _extreme("min"), "ReduceL1": _l1, "ReduceL2": _l2, "ReduceSumSquare": _square, "ReduceLogSum": _log_sum,
              "ReduceLogSumExp": _log_sum_exp}


UNIT = {"ReduceL1": F.abs_, "ReduceL2": F.abs_, "ReduceSumSquare": F.square, "ReduceLogSum": F.log}  # over no axis: of one element each


@op(*REDUCTIONS)
def reduced(c: Context, x: Value, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
    name, given = c.node.op_type, c.ints(axes, "the axes")
    found = axes_of(given or None, len(x.shape))
    if not found or (not given and noop_with_empty_axes):
        return UNIT[name](x) if name in UNIT else x
    made: Value = REDUCTIONS[name](c, x, found, bool(keepdims))
    return made


@op("ArgMax", "ArgMin")
def arg_extreme(c: Context, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
    at = axis_of(axis, len(x.shape))
    make = O.ArgMax if c.node.op_type == "ArgMax" else O.ArgMin
    if not select_last_index:
        return F.emit(make(axis=at, keepdims=bool(keepdims)), x)
    found = F.emit(make(axis=at, keepdims=bool(keepdims)), F.flip(x, (at,)))
    return F.sub(c.scalar(x.shape[at] - 1, dt.i64), found)


@op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Context, x: Value) -> Value:
    axes = tuple(range(2, len(x.shape)))
    return F.mean(x, axes, keepdims=True) if c.node.op_type == "GlobalAveragePool" else F.max_(x, axes, keepdims=True)


@op("GlobalLpPool")
def global_lp_pool(c: Context, x: Value, *, p: float = 2) -> Value:
    total = F.sum_(F.pow_(F.abs_(x), float(p)), tuple(range(2, len(x.shape))), keepdims=True)
    return F.pow_(total, 1.0 / p)
