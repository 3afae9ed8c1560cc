"""Sorting, searching, sets, indexing by arrays and counting. These run NumPy's algorithms over the Array's memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...core.errors import ArgumentError, ExecutionError
from ...transform.trace import Functions
from ..arrays import Array, shown
from .base import FLOAT, Header, axes_of, common, give, header

public = FUNCTIONS = Functions()


@public
def sort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The elements along an axis in order; NaN counts as the largest."""
    a = header(x, "sort")
    (k,) = axes_of(axis, a.ndim, "sort")
    made = np.sort(a, axis=k, kind="stable" if stable and a.dtype.kind == "c" else None)
    return give(np.flip(made, k) if descending else made)


@public
def argsort(x: Any, /, axis: int = -1, *, descending: bool = False, stable: bool = True, dtype: Any = None) -> Array:
    """The indices that put an axis in order; equal elements keep their order."""
    a = header(x, "argsort")
    (k,) = axes_of(axis, a.ndim, "argsort")
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
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where x2 would go into the sorted x1."""
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side is 'left' or 'right', got {side!r}")
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
def argwhere(x: Any, /) -> Array:
    """The indices of the elements that are not zero, one row each."""
    return give(np.argwhere(header(x, "argwhere")).astype(np.int64, copy=False))


@public
def flatnonzero(x: Any, /) -> Array:
    """The positions of the elements that are not zero."""
    return give(np.flatnonzero(header(x, "flatnonzero")).astype(np.int64, copy=False))


@public
def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Elements (or slices along an axis) by index. An index out of range is an ExecutionError."""
    a, i = header(x, "take"), header(indices, "take")
    if axis is None:
        if a.ndim != 1:
            a = a.reshape(-1)
        axis = 0
    axes_of(axis, a.ndim, "take")
    if i.dtype.kind not in "iu":
        raise ArgumentError(f"take: indices must be integers, got {shown(i)}")
    try:
        return give(np.take(a, i, axis=axis))
    except IndexError as e:
        raise ExecutionError(f"take: {e}") from None


@public
def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Array:
    """out[i,j,...] = x[i, indices[i,j,...], ...] with the index on `axis`."""
    a, i = header(x, "take_along_axis"), header(indices, "take_along_axis")
    (k,) = axes_of(axis, a.ndim, "take_along_axis")
    try:
        return give(np.take_along_axis(a, i, k))
    except IndexError as e:
        raise ExecutionError(f"take_along_axis: {e}") from None


@public
def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int = -1) -> Array:
    """x with `values` at the indices along an axis: a new Array."""
    made = header(x).copy()
    np.put_along_axis(made, header(indices), header(values).astype(made.dtype), axis)
    return give(made)


@public
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of x1 is among those of x2."""
    return give(np.asarray(np.isin(header(x1, "isin"), header(x2, "isin"), invert=invert), np.bool_))


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def _unique(x: Any) -> tuple[Header, Header, Header, Header]:
    a = header(x, "unique")
    values, indices, inverse, counts = np.unique(a, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    return values, indices.astype(np.int64), inverse.reshape(a.shape).astype(np.int64), counts.astype(np.int64)


@public
def unique_all(x: Any, /) -> UniqueAll:
    """(values, indices, inverse_indices, counts): the distinct elements in order. NaNs are distinct."""
    return UniqueAll(*map(give, _unique(x)))


@public
def unique_counts(x: Any, /) -> UniqueCounts:
    """(values, counts)."""
    values, _, _, counts = _unique(x)
    return UniqueCounts(give(values), give(counts))


@public
def unique_inverse(x: Any, /) -> UniqueInverse:
    """(values, inverse_indices)."""
    values, _, inverse, _ = _unique(x)
    return UniqueInverse(give(values), give(inverse))


@public
def unique_values(x: Any, /) -> Array:
    """The distinct elements in order."""
    return give(np.unique(header(x, "unique_values"), equal_nan=False))


@public
def unique(x: Any, /, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: int | None = None) -> Any:
    """NumPy's unique."""
    numpy: Any = np
    made = numpy.unique(header(x, "unique"), return_index, return_inverse, return_counts, axis)
    return tuple(map(give, made)) if isinstance(made, tuple) else give(made)


@public
def histogram(x: Any, bins: Any = 10, range: Any = None, *,  # noqa: A002
               weights: Any = None, density: bool = False) -> tuple[Array, Array]:
    """(counts, edges) of elements in bins."""
    counts, edges = np.histogram(header(x, "histogram"), header(bins) if isinstance(bins, (Array, list)) else bins, range,
                                 density=density, weights=None if weights is None else header(weights))
    return give(counts if weights is None and not density else counts.astype(FLOAT)), give(edges.astype(FLOAT))


@public
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Array:
    """How often each number from 0 on stands in x, or the sum of its weights."""
    made = np.bincount(header(x, "bincount"), None if weights is None else header(weights), minlength)
    return give(made if weights is None else made.astype(FLOAT))


@public
def digitize(x: Any, bins: Any, right: bool = False) -> Array:
    """The bin of each element."""
    return give(np.asarray(np.digitize(header(x), header(bins), right), np.int64))


@public
def interp(x: Any, xp: Any, fp: Any) -> Array:
    """Linear interpolation through the points (xp, fp)."""
    f = header(fp, "interp")
    dtype = f.dtype if f.dtype.kind == "f" else FLOAT
    return give(np.asarray(np.interp(header(x), header(xp), f), dtype))


@public
def extract(condition: Any, x: Any) -> Array:
    """The elements where a condition holds."""
    return give(np.extract(header(condition), header(x)))


@public
def compress(condition: Any, x: Any, axis: int | None = None) -> Array:
    """The slices along an axis where a condition holds."""
    return give(np.compress(header(condition), header(x), axis))


def _sets(name: str) -> Callable[..., Any]:
    def call(x1: Any, x2: Any, /) -> Array:
        return give(getattr(np, name)(header(x1, name), header(x2, name)))

    call.__name__, call.__doc__ = name, f"NumPy's {name} of two sets."
    return call


for _name in ("intersect1d", "union1d", "setdiff1d", "setxor1d"):
    FUNCTIONS[_name] = _sets(_name)
