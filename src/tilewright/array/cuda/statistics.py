"""Order, sets and statistics of Arrays on a GPU, made of other functions there. What depends on the elements (how many are distinct, the
edges of bins) comes to the host as a number or two."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ..api.base import FLOAT, axes_of, common
from ..arrays import Array
from . import indexing
from . import placed as P
from .composed import FUNCTIONS, as_float, call, in_one_axis, public, there, with_axes

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


@public
def searchsorted(x1: Array, x2: Any, side: str = "left", sorter: Any = None) -> Array:
    """A binary search of all elements at once: in each step one gather and one kernel."""
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side is 'left' or 'right', got {side!r}")
    v = there(x2)
    dtype = common(x1.dtype, v.dtype)
    a, v = x1.astype(dtype, copy=False), v.astype(dtype, copy=False)
    a, flat = a if sorter is None else a[sorter], v.reshape(-1)
    nan = dt.dtype(dtype).kind == "f"
    low = call("zeros", flat.shape, np.int64, device="cuda")
    high = call("full", flat.shape, len(a), np.int64, device="cuda")
    for _ in range(len(a).bit_length()):
        middle = (low + high) // 2
        found = a[call("minimum", middle, len(a) - 1)]
        right = found < flat if side == "left" else found <= flat
        if nan:  # which stands behind all numbers
            right = right | (call("isnan", flat) & ~call("isnan", found)) if side == "left" else right | call("isnan", flat)
        right = right & (middle < high)
        low, high = call("where", right, middle + 1, low), call("where", right, high, middle)
    return low.reshape(v.shape)  # type: ignore[no-any-return]


@public
def digitize(x: Array, bins: Array, right: bool = False) -> Array:
    edges = there(bins)
    if len(edges) > 1 and bool(edges[0] > edges[-1]):
        return len(edges) - searchsorted(edges[::-1], x, "right" if right else "left")
    return searchsorted(edges, x, "left" if right else "right")


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


@public
def isin(x1: Any, x2: Any, invert: bool = False) -> Array:
    x1, values = there(x1), call("sort", there(x2).reshape(-1))
    if not len(values):
        return call("full", x1.shape, invert, np.bool_, device="cuda")  # type: ignore[no-any-return]
    at = call("minimum", searchsorted(values, x1), len(values) - 1)
    found: Array = values[at] == x1
    return ~found if invert else found


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


@public
def interp(x: Any, xp: Any, fp: Any) -> Array:
    x, xp, fp = (there(v) for v in (x, xp, fp))
    dtype = fp.dtype if dt.dtype(fp.dtype).kind == "f" else FLOAT
    x, xp, fp = (v.astype(np.float64) for v in (x, xp, fp))
    k = call("clip", searchsorted(xp, x, "right") - 1, 0, max(len(xp) - 2, 0))
    low, high = xp[k], xp[call("minimum", k + 1, len(xp) - 1)]
    a, b = fp[k], fp[call("minimum", k + 1, len(xp) - 1)]
    made = a + (x - low) * call("where", high == low, 0.0, (b - a) / (high - low))
    made = call("where", x <= xp[0], fp[0], call("where", x >= xp[-1], fp[-1], made))
    return call("where", call("isnan", x), x, made).astype(dtype)  # type: ignore[no-any-return]


# ---- statistics

# method -> where a quantile q of n sorted elements lies; between two elements it is interpolated
PLACES: dict[str, Callable[[Any, int], Any]] = {
    "linear": lambda q, n: (n - 1) * q,
    "lower": lambda q, n: np.floor((n - 1) * q),
    "higher": lambda q, n: np.ceil((n - 1) * q),
    "nearest": lambda q, n: np.around((n - 1) * q),
    "midpoint": lambda q, n: (np.floor((n - 1) * q) + np.ceil((n - 1) * q)) / 2,
    "inverted_cdf": lambda q, n: np.ceil(n * q - 1),
    "averaged_inverted_cdf": lambda q, n: (np.ceil(n * q - 1) + np.floor(n * q)) / 2,
    "closest_observation": lambda q, n: np.around(n * q) - 1,
    "interpolated_inverted_cdf": lambda q, n: n * q - 1,
    "hazen": lambda q, n: n * q - 0.5,
    "weibull": lambda q, n: (n + 1) * q - 1,
    "median_unbiased": lambda q, n: n * q + (1 + q) / 3 - 1,
    "normal_unbiased": lambda q, n: n * q + (3 + 2 * q) / 8 - 1,
}


@public
def quantile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Array:
    if method not in PLACES:
        raise ArgumentError(f"quantile: the method is one of {', '.join(PLACES)}, got {method!r}")
    points = np.asarray(q.numpy() if type(q) is Array else q, np.float64)
    if not ((points >= 0) & (points <= 1)).all():
        raise ArgumentError(f"quantile: quantiles are 0 to 1, got {points.tolist()}")
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    n = rows.shape[-1]
    if not n:
        raise ArgumentError("quantile: nothing has no quantiles")
    s = call("sort", rows)
    at = np.clip(PLACES[method](points.reshape(-1), n), 0, n - 1)
    low = np.floor(at).astype(np.int64)
    a, b = s[..., low], s[..., np.minimum(low + 1, n - 1)]
    part, between = (call("asarray", v, device="cuda") for v in ((at - low).astype(x.dtype), at > low))
    one = call("where", between, a + (b - a) * part, a)
    one = call("where", call("isnan", s[..., -1:]), s[..., -1:], one)
    made = with_axes(call("moveaxis", one, -1, 0), axes, x.ndim, keepdims, 1)
    return made.reshape((*points.shape, *made.shape[1:]))


@public
def percentile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Array:
    return quantile(x, np.asarray(q.numpy() if type(q) is Array else q, np.float64) / 100, axis, keepdims, method)


@public
def median(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    return quantile(x, 0.5, axis, keepdims)


@public
def nanmedian(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    count = (rows == rows).astype(np.int64).sum(axis=-1, keepdims=True)
    s = call("sort", rows)  # NaN stands behind all numbers
    low, high = (call("take_along_axis", s, call("clip", k, 0, s.shape[-1] - 1), -1)[..., 0] for k in ((count - 1) // 2, count // 2))
    return with_axes(low * 0.5 + high * 0.5, axes, x.ndim, keepdims)


def _number_for_nan(x: Array, value: float) -> Array:
    return call("where", call("isnan", x), value, x) if dt.dtype(x.dtype).kind == "f" else x


def _nan_extreme(name: str, fill: float) -> Callable[..., Any]:
    def made(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        if dt.dtype(x.dtype).kind != "f":
            return call(name, x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
        found = call(name, _number_for_nan(x, fill), axis=axis, keepdims=keepdims)
        return call("where", call("all", call("isnan", x), axis=axis, keepdims=keepdims), float("nan"), found)  # type: ignore[no-any-return]

    return made


FUNCTIONS |= {"nanmax": _nan_extreme("max", float("-inf")), "nanmin": _nan_extreme("min", float("inf")),
              "nansum": lambda x, axis=None, keepdims=False: call("sum", _number_for_nan(x, 0.0), axis=axis, keepdims=keepdims),
              "nanprod": lambda x, axis=None, keepdims=False: call("prod", _number_for_nan(x, 1.0), axis=axis, keepdims=keepdims),
              "ptp": lambda x, axis=None, keepdims=False: (lambda y: y.max(axis=axis, keepdims=keepdims) - y.min(
                  axis=axis, keepdims=keepdims))(x if dt.dtype(x.dtype).kind in "iu" else as_float(x))}


@public
def nanmean(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    x = as_float(x)
    count = (x == x).astype(x.dtype).sum(axis=axis, keepdims=keepdims)
    return _number_for_nan(x, 0.0).sum(axis=axis, keepdims=keepdims) / count


@public
def nanvar(x: Array, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Array:
    x = as_float(x)
    count = (x == x).astype(x.dtype).sum(axis=axis, keepdims=keepdims)
    apart = _number_for_nan(x - nanmean(x, axis, True), 0.0)
    return (apart * apart).sum(axis=axis, keepdims=keepdims) / (count - ddof)


@public
def nanstd(x: Array, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Array:
    return call("sqrt", nanvar(x, axis, keepdims, ddof))  # type: ignore[no-any-return]


@public
def average(x: Array, axis: Any = None, weights: Any = None, keepdims: bool = False) -> Array:
    x = as_float(x)
    if weights is None:
        return x.mean(axis=axis, keepdims=keepdims)
    if weights.ndim < x.ndim:
        (k,) = axes_of(axis, x.ndim, "average")
        weights = weights.reshape([-1 if i == k else 1 for i in range(x.ndim)])
    wide = weights.astype(x.dtype).expand(*x.shape)
    return (x * wide).sum(axis=axis, keepdims=keepdims) / wide.sum(axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


@public
def cov(x: Array, y: Any = None, rowvar: bool = True, ddof: int | None = None) -> Array:
    x = as_float(x)
    rows = x.reshape(1, -1) if x.ndim < 2 else x if rowvar else x.T
    if y is not None:
        y = as_float(y)
        rows = call("concat", [rows, y.reshape(1, -1) if y.ndim < 2 else y if rowvar else y.T])
    apart = rows - rows.mean(axis=1, keepdims=True)
    made = apart @ apart.T / (rows.shape[1] - (1 if ddof is None else ddof))
    return made if len(rows) > 1 else made.reshape(())


@public
def corrcoef(x: Array, y: Any = None, rowvar: bool = True) -> Array:
    c = cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    d = call("sqrt", c.diagonal())
    return call("clip", c / d[:, None] / d[None, :], -1.0, 1.0)  # type: ignore[no-any-return]


def _running(name: str, start: int) -> Callable[..., Any]:
    """`cumulative_sum` and `cumulative_prod`, from the functions that are compiled."""
    def made(x: Array, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
        if axis is None and x.ndim > 1:
            raise ArgumentError(f"{name}: needs an axis, got {x.ndim} of them")
        k = axes_of(axis if axis is not None else 0, x.ndim, name)[0]
        found = call("cumsum" if not start else "cumprod", x, axis=k, dtype=dtype)
        if not include_initial:
            return found  # type: ignore[no-any-return]
        shape = (*x.shape[:k], 1, *x.shape[k + 1 :])
        return call("concat", [call("full", shape, start, found.dtype, device="cuda"), found], axis=k)  # type: ignore[no-any-return]

    return made


FUNCTIONS |= {"cumulative_sum": _running("cumulative_sum", 0), "cumulative_prod": _running("cumulative_prod", 1)}


