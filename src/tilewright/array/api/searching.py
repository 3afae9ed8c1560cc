"""Sorting, searching, sets, indexing by arrays and counting. These run NumPy's algorithms over the Array's memory."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...core.errors import ArgumentError, ExecutionError
from ...transform.trace import Functions
from ..arrays import Array, shown
from . import rows
from .base import FLOAT, axes_of, common, give, header, numbers

public = FUNCTIONS = Functions()
rows.enter(FUNCTIONS, {
    "argwhere(x, /)": "The indices of the elements that are not zero, one row each.",
    "flatnonzero(x, /)": "The positions of the elements that are not zero.",
    "isin(x1, x2, /, *, invert: bool = False)": "Whether each element of x1 is among those of x2.",
    "unique_all(x, /) -> NamedTuple": "(values, indices, inverse_indices, counts): the distinct elements in order. NaNs are distinct.",
    "unique_counts(x, /) -> NamedTuple": "(values, counts).",
    "unique_inverse(x, /) -> NamedTuple": "(values, inverse_indices).",
    "unique_values(x, /)": ("The distinct elements in order.", partial(np.unique, equal_nan=False)),
    "unique(x, /, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None) -> Any":
        "NumPy's unique.",
    "digitize(x, bins, right: bool = False)": "The bin of each element.",
    "extract(condition, x)": "The elements where a condition holds.",
    "compress(condition, x, axis: int | None = None)": "The slices along an axis where a condition holds.",
    "partition(x, kth: Any, axis: int | None = -1)":
        "x with its kth smallest element in its sorted place, smaller ones before it and larger ones behind.",
    "argpartition(x, kth: Any, axis: int | None = -1)": "The indices that `partition` would put elements at.",
    **{f"{_name}(x1, x2, /)": f"NumPy's {_name} of two sets." for _name in ("intersect1d", "union1d", "setdiff1d", "setxor1d")},
})


@public
def sort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True, kind: Any = None) -> Array:
    """The elements along an axis (None: all of them) in order; NaN counts as the largest. `kind` is NumPy's; every sort is stable."""
    a = header(x, "sort") if axis is not None else header(x, "sort").reshape(-1)
    (k,) = axes_of(-1 if axis is None else axis, a.ndim, "sort")
    made = np.sort(a, axis=k, kind="stable" if stable and a.dtype.kind == "c" else None)
    return give(np.flip(made, k) if descending else made)


@public
def argsort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True, dtype: Any = None,
            kind: Any = None) -> Array:
    """The indices that put an axis (None: all elements) in order; equal elements keep their order. `kind` is NumPy's."""
    a = header(x, "argsort") if axis is not None else header(x, "argsort").reshape(-1)
    (k,) = axes_of(-1 if axis is None else axis, a.ndim, "argsort")
    if descending:  # equal elements stay in order when the reversed axis is sorted and read backwards
        found = np.flip(a.shape[k] - 1 - np.argsort(np.flip(a, k), axis=k, kind="stable"), k)
    else:
        found = np.argsort(a, axis=k, kind="stable")
    return give(found.astype(np.int64 if dtype is None else dtype, copy=False))


@public
def top_k(x: Any, /, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """(values, indices) of the k largest (or smallest) elements along an axis, in order; of equals the smaller index first."""
    a = header(x, "top_k")
    (n,) = axes_of(axis, a.ndim, "top_k")
    if not 0 <= k <= a.shape[n]:
        raise ArgumentError(f"top_k: k must be 0 to {a.shape[n]}, got {k}")
    order = header(argsort(x, axis=n, descending=largest))[(slice(None),) * n + (slice(0, k),)]
    return give(np.take_along_axis(a, order, n)), give(order)


@public
def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Array:
    """Where x2 would go into the sorted x1."""
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side is 'left' or 'right', got {side!r}")
    try:
        (a, v), _ = numbers(x1, x2, what="searchsorted")
    except OverflowError:  # a Python integer that x1's dtype does not hold
        a, v = header(x1, "searchsorted"), header(x2, "searchsorted")
    if a.dtype != v.dtype:
        a, v = (h.astype(common(a.dtype, v.dtype), copy=False) for h in (a, v))
    return give(np.asarray(np.searchsorted(a, v, side=side, sorter=None if sorter is None else header(sorter)), np.int64))  # type: ignore[call-overload]


@public
def nonzero(x: Any, /) -> tuple[Array, ...]:
    """The indices of the elements that are not zero, one Array an axis."""
    a = header(x, "nonzero")
    if not a.ndim:
        raise ArgumentError("nonzero: needs one axis or more, got a scalar")
    return tuple(give(i.astype(np.int64, copy=False)) for i in np.nonzero(a))


@public
def take(x: Any, indices: Any, /, axis: int | None = None, *, mode: str = "raise") -> Array:
    """Elements (or slices along an axis) by index. An index out of range is an ExecutionError, or wraps, or is clipped, as `mode` says."""
    a, i = header(x, "take"), header(indices, "take")
    if axis is None:
        if a.ndim != 1:
            a = a.reshape(-1)
        axis = 0
    axes_of(axis, a.ndim, "take")
    if i.dtype.kind not in "iu":
        raise ArgumentError(f"take: indices must be integers, got {shown(i)}")
    try:
        return give(np.take(a, i, axis=axis, mode=mode))  # type: ignore[call-overload]
    except IndexError as e:
        raise ExecutionError(f"take: {e}") from None


@public
def take_along_axis(x: Any, indices: Any, /, axis: int | None = -1) -> Array:
    """out[i,j,...] = x[i, indices[i,j,...], ...] with the index on `axis` (None: of all elements)."""
    a, i = header(x, "take_along_axis"), header(indices, "take_along_axis")
    a, axis = (a.reshape(-1), 0) if axis is None else (a, axis)
    (k,) = axes_of(axis, a.ndim, "take_along_axis")
    try:
        return give(np.take_along_axis(a, i, k))
    except IndexError as e:
        raise ExecutionError(f"take_along_axis: {e}") from None


@public
def histogram(x: Any, bins: Any = 10, range: Any = None, *,  # noqa: A002
               weights: Any = None, density: bool = False) -> tuple[Array, Array]:
    """(counts, edges) of elements in bins."""
    counts, edges = np.histogram(header(x, "histogram"), header(bins) if isinstance(bins, (Array, list)) else bins, range,
                                 density=density, weights=None if weights is None else header(weights))
    return give(counts if weights is None and not density else counts.astype(FLOAT)), give(edges.astype(FLOAT))


@public
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often each number from 0 on stands in x, or the sum of its weights. With a `length` the result has it whatever the elements are,
    and a number beyond it is an error: so it is in traced functions, too."""
    made = np.bincount(header(x, "bincount"), None if weights is None else header(weights), minlength if length is None else length)
    if length is not None and made.size > length:
        raise ExecutionError(f"bincount: the numbers must be below length={length}, got {made.size - 1}")
    return give(made if weights is None else made.astype(FLOAT))


@public
def interp(x: Any, xp: Any, fp: Any, left: float | None = None, right: float | None = None, period: float | None = None) -> Array:
    """Linear interpolation through the points (xp, fp); `left` and `right` beyond them, by default the ends. With a period xp wraps."""
    f = header(fp, "interp")
    dtype = f.dtype if f.dtype.kind == "f" else FLOAT
    return give(np.asarray(np.interp(header(x), header(xp), f, left, right, period), dtype))
