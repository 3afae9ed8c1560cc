"""Order, sets and statistics of Arrays on a GPU, made of other functions there. What depends on the elements (how many are distinct, the
edges of bins) comes to the host as a number or two."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ..api.base import FLOAT, axes_of
from ..arrays import Array
from ..composed import call, isin, searchsorted
from . import indexing
from . import placed as P
from .composed import FUNCTIONS, public

# ---- order and sets

@public
def nonzero(x: Array) -> tuple[Array, ...]:
    if not x.ndim:
        raise ArgumentError("nonzero: needs one axis or more, got a scalar")
    return indexing.nonzero(x)


@public
def argwhere(x: Array) -> Array:
    return call("stack", indexing.nonzero(x), axis=1) if x.ndim else P.wrap(P.empty((int(bool(x)), 0), np.dtype(np.int64)))


@public
def flatnonzero(x: Array) -> Array:
    return indexing.nonzero(x.reshape(-1))[0]


@public
def extract(condition: Any, x: Array) -> Array:
    return x.reshape(-1)[condition.reshape(-1)]


@public
def compress(condition: Any, x: Array, axis: int | None = None) -> Array:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "compress")
    return x[(*[slice(None)] * k, flatnonzero(condition))]


def _new(s: Array, equal_nan: bool) -> Array:
    """Which elements of sorted columns differ from those before them."""
    new: Array = call("ones", s.shape, np.bool_, device="cuda")
    if len(s) > 1:
        other = s[1:] != s[:-1]
        if equal_nan and dt.dtype(s.dtype).kind == "f":
            other = other & ~(call("isnan", s[1:]) & call("isnan", s[:-1]))
        new[1:] = other
    return new


def _groups(order: Array, new: Array) -> tuple[Array, Array, Array]:
    """First positions, inverse and counts of what an order brings together, where `new` begins another group."""
    if not len(order):
        return order, order, order
    at = flatnonzero(new)
    ends = call("concat", [at[1:], call("asarray", [len(order)], np.int64, device="cuda")])
    groups = call("cumsum", new.astype(np.int64)) - 1
    return order[at], call("zeros", order.shape, np.int64, device="cuda").at[order].set(groups), ends - at


def _distinct(x: Array, equal_nan: bool) -> tuple[Array, Array, Array, Array]:
    """Values, first positions, inverse and counts."""
    flat = x.reshape(-1)
    order = call("argsort", flat)
    first, inverse, counts = _groups(order, _new(flat[order], equal_nan))
    return flat[first], first, inverse.reshape(x.shape), counts


def _distinct_slices(x: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """The same of slices along an axis. A column's elements become their ranks, and two columns of ranks become one until one is left."""
    (k,) = axes_of(axis, x.ndim, "unique")
    slices = call("moveaxis", x, k, 0)
    n = len(slices)
    flat = slices.reshape(n, -1) if x.size else call("zeros", (n, 1), np.int64, device="cuda")
    keys = flat
    while keys.shape[1] > 1:
        order = call("argsort", keys, axis=0)
        ranks = call("cumsum", _new(call("take_along_axis", keys, order, 0), True).astype(np.int64), axis=0) - 1
        ranks = call("take_along_axis", ranks, call("argsort", order, axis=0), 0)
        keys = ranks[:, 1::2] + ranks[:, : ranks.shape[1] - 1 : 2] * n
        if ranks.shape[1] % 2:
            keys = call("concat", [keys, ranks[:, -1:]], axis=1)
    order = call("argsort", keys.reshape(-1))
    first, inverse, counts = _groups(order, call("any", _new(flat[order], False), axis=1))
    return call("moveaxis", slices[first], 0, k), first, inverse, counts


@public
def unique(x: Array, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None) -> Any:
    values, *rest = _distinct(x, True) if axis is None else _distinct_slices(x, axis)
    found = [values, *(r for r, wanted in zip(rest, (return_index, return_inverse, return_counts), strict=True) if wanted)]
    return tuple(found) if len(found) > 1 else values


for _name, _parts in {"unique_all": (0, 1, 2, 3), "unique_counts": (0, 3), "unique_inverse": (0, 2), "unique_values": (0,)}.items():
    def _unique(x: Array, _name: str = _name, _parts: Sequence[int] = _parts) -> Any:
        found = _distinct(x, False)
        made = [found[k] for k in _parts]
        return made[0] if len(made) == 1 else type(getattr(np, _name)(np.zeros(0)))(*made)

    FUNCTIONS[_name] = _unique


def _both(x1: Array, x2: Array) -> tuple[Array, Array]:
    return _distinct(x1, True)[0], _distinct(x2, True)[0]


def _differ(x1: Array, x2: Array, *, same: bool) -> Array:
    """The elements of one set that are (or are not) in another."""
    a, b = _both(x1, x2)
    return a[isin(a, b, invert=not same)]


FUNCTIONS |= {
    "union1d": lambda x1, x2: _distinct(call("concat", [x1.reshape(-1), x2.reshape(-1)]), True)[0],
    "intersect1d": lambda x1, x2: _differ(x1, x2, same=True),
    "setdiff1d": lambda x1, x2: _differ(x1, x2, same=False),
    "setxor1d": lambda x1, x2: call("sort", call("concat", [_differ(x1, x2, same=False), _differ(x2, x1, same=False)])),
}


@public
def partition(x: Array, kth: Any, axis: int | None = -1) -> Any:
    return call("sort", x.reshape(-1)) if axis is None else call("sort", x, axis=axis)


@public
def argpartition(x: Array, kth: Any, axis: int | None = -1) -> Any:
    return call("argsort", x.reshape(-1)) if axis is None else call("argsort", x, axis=axis)


@public
def histogram(x: Array, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False) -> tuple[Array, Array]:  # noqa: A002
    flat = x.reshape(-1)
    if isinstance(bins, (Array, np.ndarray, list)):
        edges = np.asarray(bins.numpy() if type(bins) is Array else bins)
    else:
        ends = np.array([float(flat.min()), float(flat.max())]) if len(flat) and range is None else np.zeros(0)
        edges = np.histogram_bin_edges(ends, bins, range)
    wide = x.dtype if dt.dtype(x.dtype).kind == "f" else np.dtype(np.float64)
    marks = call("asarray", edges.astype(wide), device="cuda")
    values = flat.astype(wide, copy=False)
    at = searchsorted(marks, values, "right") - 1
    at = call("where", values == marks[-1], len(edges) - 2, at)  # the last bin has its right end
    at = call("where", (values >= marks[0]) & (values <= marks[-1]), at, len(edges) - 1)
    each = call("ones", flat.shape, np.int64, device="cuda") if weights is None else weights.reshape(-1).astype(FLOAT)
    counts = call("zeros", len(edges), each.dtype, device="cuda").at[at].add(each)[:-1]
    if density:
        widths = call("asarray", np.diff(edges).astype(FLOAT), device="cuda")
        counts = counts.astype(FLOAT) / widths / counts.sum()
    return counts, call("asarray", edges.astype(FLOAT), device="cuda")


@public
def bincount(x: Array, weights: Any = None, minlength: int = 0) -> Array:
    if len(x) and int(x.min()) < 0:
        raise ArgumentError(f"bincount: needs numbers from 0 on, got {int(x.min())}")
    n = max(int(x.max()) + 1 if len(x) else 0, minlength)
    each = call("ones", x.shape, np.int64, device="cuda") if weights is None else weights.astype(FLOAT)
    return call("zeros", n, each.dtype, device="cuda").at[x].add(each)  # type: ignore[no-any-return]
