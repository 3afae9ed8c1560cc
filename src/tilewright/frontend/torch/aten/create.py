"""Tensors made from nothing: aranges stay index expressions, fills are broadcast scalars."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, Expr
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .registry import Context, aten


@aten("arange.default")
def arange(c: Context, end: Any, **_: Any) -> Value:
    return arange_step(c, 0, end, 1)


@aten("arange.start")
def arange_start(c: Context, start: Any, end: Any, **_: Any) -> Value:
    return arange_step(c, start, end, 1)


@aten("arange.start_step")
def arange_step(c: Context, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    (n,) = c.shape
    if isinstance(start, (int, Expr)) and isinstance(step, int):
        counts = O.Iota(shape=(n,), axis=0, dtype=c.dtype if c.dtype.is_int else _i64(), start=start, step=step)
        return c.cast(c.emit(counts), c.dtype)
    if isinstance(n, int) and isinstance(start, (int, float)) and isinstance(step, (int, float)):
        if c.dtype.is_int:
            return c.constant((np.arange(n) * int(step) + int(start)).astype(c.dtype.np), "arange")
        return c.constant((np.arange(n) * float(step) + float(start)).astype(c.dtype.np), "arange")
    raise UnsupportedError(f"arange from {start} in steps of {step} needs static floats or integer steps")


def _i64() -> Any:
    from ....core.dtypes import i64

    return i64


@aten("linspace.default")
def linspace(c: Context, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    if not all(isinstance(v, (int, float)) for v in (start, end, steps)):
        raise UnsupportedError("linspace needs static bounds and steps")
    if c.dtype.is_float:
        return c.constant(np.linspace(start, end, steps).astype(c.dtype.np), "linspace")
    # Whole bounds, steps from the nearer one, fractions dropped: as torch does it.
    first, last, at = int(start), int(end), np.arange(int(steps))
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    values = np.where(at < steps // 2, first + step * at, last - step * (steps - at - 1)) if steps != 1 else np.full(1, float(first))
    return c.constant(values.astype(c.dtype.np), "linspace")


def filled(c: Context, value: Any, shape: tuple[Dim, ...]) -> Value:
    return c.expand(c.value(value, c.dtype), shape)


@aten("full.default", "full_like.default")
def full(c: Context, _like: Any, value: Any, **_: Any) -> Value:
    return filled(c, value, c.shape)


@aten("new_full.default")
def new_full(c: Context, x: Value, size: Any, value: Any, **_: Any) -> Value:
    return filled(c, value, c.shape)


@aten(
    "zeros.default",
    "_efficientzerotensor.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def zeros(c: Context, *_: Any, **__: Any) -> Value:
    return filled(c, 0, c.shape)


@aten("ones.default", "ones_like.default", "new_ones.default")
def ones(c: Context, *_: Any, **__: Any) -> Value:
    return filled(c, 1, c.shape)


@aten("scalar_tensor.default")
def scalar_tensor(c: Context, value: Any, **_: Any) -> Value:
    return c.value(value, c.dtype)


@aten("zero.default")
def zero(c: Context, x: Value) -> Value:
    return filled(c, 0, x.shape)


@aten("eye.default", "eye.m")
def eye(c: Context, *_: Any, **__: Any) -> Value:
    shape = c.shape
    if not all(isinstance(d, int) for d in shape):
        raise UnsupportedError("eye needs a static size")
    return c.constant(np.eye(int(shape[0]), int(shape[1])).astype(c.dtype.np), "eye")


@aten("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace_tensor(c: Context, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    """Bounds that are data; integers as above, in f64."""
    kind = c.dtype if c.dtype.is_float else dt.f64
    if not isinstance(steps, int):
        raise UnsupportedError("linspace needs a static number of steps")
    first, last = (c.value(c.value(v, c.dtype), kind) for v in (start, end))
    if steps < 2:
        return c.expand(c.cast(first, c.dtype), (steps,))
    step = c.emit(O.Div(), c.emit(O.Sub(), last, first), c.scalar(float(steps - 1), kind))
    at = np.arange(steps)
    early, late = (c.constant(v.astype(kind.np), "steps") for v in (at, steps - 1 - at))
    up, down = c.emit(O.Add(), first, c.emit(O.Mul(), step, early)), c.emit(O.Sub(), last, c.emit(O.Mul(), step, late))
    return c.cast(c.emit(O.Where(), c.constant(at < steps // 2, "half"), up, down), c.dtype)
