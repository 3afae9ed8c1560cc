"""The meaning of whole-number programs, continued: windows, gathers and scatters, loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .exact_values import FUNCTIONS, Array, Exact, common, is_float, known, made, summed, wide
from .program import Unfit

__all__ = ["Exact", "OutOfRange"]


# ---- windows, as PyTorch has them in f64


def _windowed(fn: Callable[..., Any], x: Array, w: Array, **options: Any) -> Array:
    dtype = common(x, w)
    a, b = (torch.from_numpy(np.nan_to_num(v.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)) for v in (x, w))
    if not np.isfinite(wide(x)).all():
        raise Unfit
    summed(fn(a.abs(), b.abs(), **options).numpy(), dtype)
    return made(fn(a, b, **options).numpy(), dtype)


@known
def conv(x: Array, w: Array, **options: Any) -> Array:
    return _windowed((F.conv1d, F.conv2d)[x.ndim - 3], x, w, **options)


@known
def conv_transpose(x: Array, w: Array, **options: Any) -> Array:
    return _windowed((F.conv_transpose1d, F.conv_transpose2d)[x.ndim - 3], x, w, **options)


@known
def max_pool(x: Array, kernel: int, *, stride: int, padding: int) -> Array:
    return made((F.max_pool1d, F.max_pool2d)[x.ndim - 3](torch.from_numpy(wide(x)), kernel, stride, padding).numpy(), x.dtype)


@known
def resize(x: Array, sizes: Any) -> Array:
    if not x.size:
        raise Unfit
    return made(F.interpolate(torch.from_numpy(wide(x)), sizes, mode="nearest").numpy(), x.dtype)


@known
def int_matmul(a: Array, b: Array) -> Array:
    return a.astype(np.int32) @ b.astype(np.int32)


# ---- gathers and scatters: indices are in range, or the campaign says what to expect


class OutOfRange(Exception):
    """The program must raise ExecutionError."""


def checked(ids: Any, size: int) -> Array:
    """Indices in range; negative ones count from the end."""
    ids = np.asarray(ids)
    if ((ids < -size) | (ids >= size)).any():
        raise OutOfRange
    ids = ids.astype(np.int64)
    return np.where(ids < 0, ids + size, ids)


@known
def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    return np.take(x, checked(indices, x.size if axis is None else x.shape[axis]), axis)


@known
def wild_take(x: Array, indices: Array, axis: int, lenient: int = 0) -> Array:
    """tw.take with whatever indices there are."""
    last = x.shape[axis] - 1
    if last < 0:
        raise Unfit
    if lenient:
        end = np.clip(indices.astype(np.float64), 0, last)
        inside = (indices >= -last - 1) & (indices <= last)
        indices = np.where(inside, indices, end if lenient == 1 else last - end).astype(np.int64)
    return take(x, indices, axis)


@known
def wild_floor_divide(x: Array, y: Array, lenient: int = 0) -> Array:
    if (y == 0).any() and not lenient:
        raise OutOfRange
    return np.asarray(FUNCTIONS["floor_divide"](x, np.where(y == 0, np.asarray(2 * lenient - 1).astype(y.dtype), y)))


# ---- loops and branches


@known
def scan_carry(step: Any, init: Array, xs: Any = None, length: int | None = None, reverse: bool = False) -> Array:
    for k in _order(xs, length, reverse):
        init = step(init, None if xs is None else np.asarray(xs[k]))[0]
    return init


@known
def scan_stack(step: Any, init: Array, xs: Any = None, length: int | None = None, reverse: bool = False) -> Array:
    found = {}
    for k in _order(xs, length, reverse):
        init, found[k] = step(init, None if xs is None else np.asarray(xs[k]))
    if not found:
        raise Unfit
    return np.stack([found[k] for k in sorted(found)])


def _order(xs: Any, length: int | None, reverse: bool) -> Any:
    count = len(xs) if xs is not None else length or 0
    return range(count)[::-1] if reverse else range(count)


@known
def while_array(test: Any, body: Any, init: Any, max_iterations: int | None = None) -> Array:
    count, carry = 0, tuple(np.asarray(v) for v in init)
    while bool(test(carry)) and (max_iterations is None or count < max_iterations):
        count, carry = count + 1, body(carry)
        if count > 40:
            raise Unfit
    return carry[1]


@known
def cond(predicate: Array, then: Any, other: Any, *operands: Array) -> Array:
    return then(*operands) if bool(predicate) else other(*operands)


@known
def fori_loop(lower: Any, upper: Any, body: Any, init: Array) -> Array:
    if int(upper) - int(lower) > 40:
        raise Unfit
    for i in range(int(lower), int(upper)):
        init = body(np.asarray(i, np.int64), init)
    return init


@known
def take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    return np.take_along_axis(x, checked(indices, x.shape[axis]), axis)


@known
def scatter_add(x: Array, indices: Array, updates: Array, axis: int = 0) -> Array:
    values, adds = wide(np.moveaxis(x, axis, 0)).copy(), np.moveaxis(wide(updates.astype(x.dtype)), axis, 0)
    ids = checked(indices, values.shape[0])
    if is_float(x):
        total = np.abs(values)
        np.add.at(total, ids, np.abs(adds))
        summed(total, x.dtype)
    np.add.at(values, ids, adds)
    return made(np.moveaxis(values, 0, axis), x.dtype)


@known
def scatter(x: Array, indices: Array, updates: Array, axis: int = 0, mode: str = "set") -> Array:
    values, given = wide(np.moveaxis(x, axis, 0)).copy(), np.moveaxis(wide(updates.astype(x.dtype)), axis, 0)
    for i, row in zip(checked(indices, values.shape[0]), given, strict=True):
        if mode == "set":
            values[i] = row
        else:
            values[i] = made({"mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode](values[i], row), x.dtype)
    return made(np.moveaxis(values, 0, axis), x.dtype)


@known
def bincount(x: Array, *, length: int) -> Array:
    return np.bincount(checked(x, length).ravel(), minlength=length)

