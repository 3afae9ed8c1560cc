"""Indexing: `x[...]` with ints, slices, None, an ellipsis and integer arrays, and the gathers behind it."""
from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Expr, at_least, at_most, ceildiv, maximum, minimum
from ...core.errors import ShapeError, SizeError
from ...ops import Expand, Flip, Gather, GatherAlongAxis, Index, Reshape, Scatter, ScatterAdd, Slice, Transpose
from ...ops.index.from_end import from_end
from ..promote import RANK, as_tracer, dtype_of
from ..trace import Functions, Tracer, apply, as_array, built, called_name, dtype_given, install, user_place
from .elementwise import FUNCTIONS as ELEMENTWISE
from .reductions import one_axis

public = FUNCTIONS = Functions()


def whole(ids: Any, size: Any) -> Tracer:
    """Integer indices; negative ones count from the end."""
    if not isinstance(ids, Tracer) and isinstance(size, int):
        known = as_array(ids)
        if known.dtype.kind in "iu":
            bad = np.flatnonzero((known < -size) | (known >= size))
            if bad.size:
                raise ShapeError(f"{called_name()}: index out of range, got {int(known.flat[bad[0]])} at position {bad[0]}; must be in "
                                 f"{-size}..{size - 1} ({user_place()})")
            return as_tracer(np.where(known < 0, known + size, known).astype(np.int64))
    found = as_tracer(ids)
    return found if not found.value.dtype.is_int else built(lambda v: from_end(v, size), found)


@public
def take(x: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> Any:
    """Elements (or rows along an axis) by index. An index out of range is an ExecutionError, or wraps, or is clipped, as `mode` says."""
    x = as_tracer(x)
    if axis is None:
        x, axis = apply(Reshape(shape=(x.size,)), x), 0
    at = one_axis("take", axis, x.ndim)
    if mode != "raise":
        if mode not in ("wrap", "clip"):
            raise ShapeError(f"take: mode is 'raise', 'wrap' or 'clip', got {mode!r} ({user_place()})")
        ids: Any = as_tracer(indices)
        indices = ids % x.shape[at] if mode == "wrap" else ELEMENTWISE["clip"](ids, 0, x.shape[at] - 1)
    return apply(Gather(axis=at), x, whole(indices, x.shape[at]))


@public
def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    """out[i,j,...] = x[i, indices[i,j,...], ...] with the index on `axis` (None: of all elements)."""
    x = as_tracer(x)
    if axis is None:
        x, axis = apply(Reshape(shape=(x.size,)), x), 0
    at = one_axis("take_along_axis", axis, x.ndim)
    return apply(GatherAlongAxis(axis=at), x, whole(indices, x.shape[at]))


@public
def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """x with `updates` added at `indices` along an axis, in the order of the indices."""
    x = as_tracer(x)
    at = one_axis("scatter_add", axis, x.ndim)
    return apply(ScatterAdd(axis=at), x, whole(indices, x.shape[at]), as_tracer(updates, x.value.dtype))


@public
def scatter(x: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "set") -> Any:
    """x with rows at `indices` overwritten by `updates` ("set": of several the last one stays), or multiplied, maximised, minimised ("mul",
    "max", "min"), in the order of the indices."""
    x = as_tracer(x)
    at = one_axis("scatter", axis, x.ndim)
    return apply(Scatter(axis=at, mode=mode), x, whole(indices, x.shape[at]), as_tracer(updates, x.value.dtype))


@public
def one_hot(indices: Any, classes: int, dtype: Any = "f32") -> Any:
    """1 at each index of a new last axis, 0 elsewhere."""
    ids = as_tracer(indices)
    if not ids.value.dtype.is_int or classes < 0:
        raise ShapeError(f"one_hot: needs integers and a number of classes of at least 0, got {ids.type}, classes={classes} "
                         f"({user_place()})")
    if ids.dtype.itemsize < 4:  # the classes need not fit their dtype
        ids = ELEMENTWISE["astype"](ids, dt.i64)
    row = as_tracer(np.arange(classes, dtype=ids.dtype))
    column = apply(Reshape(shape=(*ids.shape, 1)), ids)
    return ELEMENTWISE["astype"](ELEMENTWISE["equal"](column, row), dtype_given(dtype))


def get(x: Tracer, key: Any) -> Any:
    """`x[key]`. Axes of integer arrays that are not neighbours come first in the result, as in NumPy and PyTorch."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > x.ndim:
        raise ShapeError(f"index: too many indices for {x.type}, got {used} ({user_place()})")
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise ShapeError(f"index: an index has at most one ellipsis, got {len(dots)} ({user_place()})")
    full = [slice(None)] * (x.ndim - used)
    at = dots[0] if dots else len(keys)
    keys = [*keys[:at], *full, *(k for k in keys[at:] if k is not Ellipsis)]
    spans: list[tuple[Dim, Dim, int]] = []  # start, size, step of each axis of x
    flips: list[int] = []
    shape: list[Any] = []  # after ints and Nones
    arrays: list[tuple[int, Any]] = []  # (axis in shape, indices)
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            start, size, step, flipped = _span(k, n)
            if flipped:
                flips.append(len(spans))
            spans.append((start, size, step))
            shape.append(size)
        elif isinstance(k, (int, np.integer, Expr)) and not isinstance(k, bool):
            k = k if isinstance(k, Expr) else int(k)
            start = k if at_least(k, 0) else k + n
            if at_most(start, -1) or at_most(n - start, 0):
                raise ShapeError(f"index: {k} is out of range for axis {axis} of {x.type} ({user_place()})")
            spans.append((start, 1, 1))  # what is not decided here is checked at each call
        else:
            if dtype_of(k)[0].is_bool:
                raise ShapeError(f"index: a mask would give a shape that depends on its elements; use tw.where ({user_place()})")
            spans.append((0, n, 1))
            arrays.append((len(shape), whole(k, n)))
            shape.append(n)
        axis += 1
    out: Any = x
    if any(span != (0, n, 1) for span, n in zip(spans, x.shape, strict=True)):
        out = apply(Slice(starts=tuple(s[0] for s in spans), sizes=tuple(s[1] for s in spans), steps=tuple(s[2] for s in spans)), out)
    if flips:
        out = apply(Flip(axes=tuple(flips)), out)
    if tuple(shape) != out.shape:
        out = apply(Reshape(shape=tuple(shape)), out)
    if not arrays:
        return out
    picks = [p for p, k in enumerate(keys) if k is not None and not isinstance(k, slice)]
    axes = tuple(a for a, _ in arrays)
    if picks[-1] - picks[0] + 1 != len(picks) and axes != tuple(range(len(axes))):
        out = apply(Transpose(perm=(*axes, *(a for a in range(len(shape)) if a not in axes))), out)
        axes = tuple(range(len(axes)))
    return apply(Gather(axis=axes[0]), out, arrays[0][1]) if len(axes) == 1 else apply(Index(axes=axes), out, *(i for _, i in arrays))


def _dynamic_span(k: slice, n: Dim) -> tuple[Dim, Dim, int, bool]:
    """`_span` where the size of the axis or a limit is dynamic."""
    step = 1 if k.step is None else index(k.step)
    if step == 0:
        raise ValueError

    lowest = 0 if step > 0 else -1

    def limit(given: Any, default: Dim) -> Dim:
        """From the start of the axis; it may lie behind its end."""
        if given is None:
            return default
        given = given if isinstance(given, Expr) else index(given)
        return maximum(n + given, lowest) if given < 0 else given

    if step < 0:
        start, stop = minimum(limit(k.start, n - 1), n - 1), limit(k.stop, -1)
        size = maximum(ceildiv(start - stop, -step), 0)
        return minimum(start + (size - 1) * step, n), size, -step, True
    start, stop = limit(k.start, 0), limit(k.stop, n)
    last = stop if isinstance(k.stop, int) and k.stop < 0 else minimum(stop, n)
    size = maximum(ceildiv(last - start, step), 0)
    return minimum(start, n), size, step, False


def _span(k: slice, n: Dim) -> tuple[Dim, Dim, int, bool]:
    """(start, size, step, flipped) of a slice: a negative step is a positive one whose result is flipped."""
    try:
        if not isinstance(n, int) or isinstance(k.start, Expr) or isinstance(k.stop, Expr):
            return _dynamic_span(k, n)
        places = range(*k.indices(n))
    except SizeError:
        raise
    except (TypeError, ValueError):
        raise ShapeError(f"index: a slice has integers and a step that is not 0, got {k} of {n} elements ({user_place()})") from None
    if len(places) == 0:
        return 0, 0, 1, False
    if places.step < 0:
        return places[-1], len(places), -places.step, True
    return places[0], len(places), places.step, False


def _iterate(self: Tracer) -> Any:
    return (get(self, i) for i in range(len(self)))


class At:
    """`x.at[i].add(v)`: x with changed elements. An index that stands twice counts twice; a mask takes a value that broadcasts."""

    def __init__(self, x: Tracer, key: Any = None) -> None:
        self._x, self._key = x, key

    def __getitem__(self, key: Any) -> At:
        return At(self._x, key)

    def _changed(self, mode: str, value: Any) -> Any:
        x: Any = self._x
        key = self._key
        if RANK[dtype_of(value)[0].kind] > RANK[x.value.dtype.kind]:
            raise ShapeError(f"at: cannot put {dtype_of(value)[0]} into {x.type}; use astype first ({user_place()})")
        given: Any = as_tracer(value, x.value.dtype)
        mask = key if not isinstance(key, (tuple, list)) and hasattr(key, "dtype") and dtype_of(key)[0].is_bool else None
        if mask is not None:
            wide = apply(Reshape(shape=(*mask.shape, *[1] * (x.ndim - len(mask.shape)))), as_tracer(mask))
            made = given if mode == "set" else x + given if mode == "add" else x * given if mode == "mul" else \
                ELEMENTWISE[f"{mode}imum"](x, given)
            return ELEMENTWISE["where"](wide, made, x)
        from .creation import arange  # which is made of functions of this module

        places = get(apply(Reshape(shape=x.shape), arange(x.size)), key)
        rows = apply(Reshape(shape=(places.size,)), places)
        updates = apply(Reshape(shape=(places.size,)), apply(Expand(shape=places.shape), given))
        flat = apply(Reshape(shape=(x.size,)), x)
        made = scatter_add(flat, rows, updates) if mode == "add" else scatter(flat, rows, updates, mode=mode)
        return apply(Reshape(shape=x.shape), made)

    def get(self) -> Any:
        return get(self._x, self._key)

    def set(self, value: Any) -> Any:
        return self._changed("set", value)

    def add(self, value: Any) -> Any:
        return self._changed("add", value)

    def subtract(self, value: Any) -> Any:
        return self._changed("add", -value)

    def multiply(self, value: Any) -> Any:
        return self._changed("mul", value)

    def divide(self, value: Any) -> Any:
        return self._changed("mul", 1.0 / value)

    def min(self, value: Any) -> Any:
        return self._changed("min", value)

    def max(self, value: Any) -> Any:
        return self._changed("max", value)


install(__getitem__=get, __iter__=_iterate, at=property(At))
