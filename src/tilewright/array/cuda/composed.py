"""Functions of Arrays on a GPU that are made of other functions there, by name; those of `HOSTED` need the elements on the host."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError, UnsupportedError
from ..api.base import FLOAT, axes_of, common
from ..arrays import Array
from . import indexing
from . import placed as P

FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Computed by the host, from a copy: files, a function of the user's, and rare ones whose algorithms branch on every element.
HOSTED = frozenset({"save", "i0", "lexsort", "apply_along_axis", "float_power"})
WHOLE = frozenset({"floor", "ceil", "trunc", "round", "rint"})  # of integers they copy
CLOSE = ("logical_or(equal(i0,i1),logical_and(logical_and(isfinite(i0),isfinite(i1)),"
         "less_equal(abs(subtract(i0,i1)),add(i2,multiply(i3,abs(i1))))))")
EXPRESSIONS = {  # functions of floats without a traced form
    "cbrt": "where(logical_or(equal(i0,0.0),logical_not(isfinite(i0))),i0,subtract(ROOT,"
            "divide(subtract(multiply(multiply(ROOT,ROOT),ROOT),i0),multiply(3.0,multiply(ROOT,ROOT)))))".replace(
                "ROOT", f"multiply(sign(i0),pow(abs(i0),{1 / 3!r}))"),
    "fmax": "where(isnan(i0),i1,where(isnan(i1),i0,maximum(i0,i1)))",
    "fmin": "where(isnan(i0),i1,where(isnan(i1),i0,minimum(i0,i1)))",
}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__] = fn
    return fn


def on_host(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """fn of copies on the host; its results come back."""

    def here(x: Any) -> Any:
        if type(x) in (list, tuple):
            return type(x)(map(here, x))
        if type(x) is dict:
            return {k: here(v) for k, v in x.items()}
        return x.to("cpu") if type(x) is Array else x

    def there(x: Any) -> Any:
        return type(x)(map(there, x)) if type(x) in (list, tuple) else x.to("cuda") if type(x) is Array else x

    return there(fn(*map(here, args), **here(kwargs)))


@public
def roll(x: Array, shift: Any, axis: Any = None) -> Array:
    if axis is None:
        made: Array = roll(x.reshape(-1), shift, 0).reshape(x.shape)
        return made
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    for by, where in zip(shifts, axes, strict=True):
        (k,) = axes_of(where, x.ndim, "roll")
        n = x.shape[k]
        by = int(by) % n if n else 0
        made = P.wrap(P.empty(x.shape, x.dtype))
        before = (slice(None),) * k
        made[(*before, slice(by, None))] = x[(*before, slice(0, n - by))]
        made[(*before, slice(0, by))] = x[(*before, slice(n - by, None))]
        x = made
    return x


@public
def tile(x: Array, repetitions: Any) -> Array:
    times = repetitions if isinstance(repetitions, (tuple, list)) else (repetitions,)
    rank = max(len(times), x.ndim)
    times, shape = (*[1] * (rank - len(times)), *times), (*[1] * (rank - x.ndim), *x.shape)
    wide = x.reshape(tuple(n for s in shape for n in (1, s))).expand(*(n for t, s in zip(times, shape, strict=True) for n in (t, s)))
    return wide.reshape(tuple(t * s for t, s in zip(times, shape, strict=True)))


@public
def repeat(x: Array, repeats: Any, axis: int | None = None) -> Array:
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)  # type: ignore[no-any-return]
    (k,) = axes_of(axis, x.ndim, "repeat")
    if not isinstance(repeats, int):
        counts = repeats.numpy() if type(repeats) is Array else np.asarray(repeats)
        return x[(*[slice(None)] * k, np.repeat(np.arange(x.shape[k]), counts))]
    shape = x.shape
    wide = x.reshape(*shape[: k + 1], 1, *shape[k + 1 :]).expand(*shape[: k + 1], repeats, *shape[k + 1 :])
    return wide.reshape(*shape[:k], shape[k] * repeats, *shape[k + 1 :])


@public
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    from . import elementwise as kernels
    from .calls import place

    given = [P.of(x) for x in (a, b)]
    floats = [p.dtype for p in given if p is not None and dt.dtype(p.dtype).kind == "f"]
    dtype = common(*floats) if floats else FLOAT
    operands = [place(x if p is None or x.dtype == dtype else x.astype(dtype), dtype) for x, p in zip((a, b), given, strict=True)]
    text = f"logical_or({CLOSE},logical_and(isnan(i0),isnan(i1)))" if equal_nan else CLOSE
    made = kernels.run(text, [*operands, P.number(atol, dtype), P.number(rtol, dtype)])
    assert made is not None
    return P.wrap(made)


@public
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(isclose(a, b, rtol, atol, equal_nan).all())


@public
def array_equal(a: Any, b: Any, equal_nan: bool = False) -> bool:
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    same = a == b
    return bool((same | ((a != a) & (b != b)) if equal_nan else same).all())


@public
def diag(x: Array, k: int = 0) -> Array:
    if x.ndim == 2:
        return x.diagonal(k)
    from ..api.creation import FUNCTIONS as MAKERS

    n = x.shape[0] + abs(k)
    first = k if k >= 0 else -k * n
    flat: Array = MAKERS["zeros"](n * n, x.dtype, device="cuda")
    flat[first : first + x.shape[0] * (n + 1) : n + 1] = x
    return flat.reshape(n, n)


@public
def trace(x: Array, offset: int = 0) -> Any:
    return x.diagonal(offset, -2, -1).sum(axis=-1)


@public
def count_nonzero(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    return (x != 0).astype(np.int64).sum(axis=axis, keepdims=keepdims)


@public
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    shape = tuple(a.size for a in arrays)
    shape = (shape[1], shape[0], *shape[2:]) if indexing == "xy" and len(arrays) > 1 else shape
    made = []
    for k, a in enumerate(arrays):
        at = 1 - k if indexing == "xy" and len(arrays) > 1 and k < 2 else k
        made.append(a.reshape(*(a.size if i == at else 1 for i in range(len(shape)))).expand(*shape))
    return tuple(made)


@public
def divmod(x1: Any, x2: Any) -> tuple[Array, Array]:  # noqa: A001  the standard's name
    from ..functions import API

    return API["floor_divide"](x1, x2), API["remainder"](x1, x2)


@public
def amax(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return x.max(axis=axis, keepdims=keepdims)


@public
def amin(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return x.min(axis=axis, keepdims=keepdims)


@public
def copy(x: Array) -> Array:
    return x.copy()


@public
def diff(x: Array, n: int = 1, axis: int = -1) -> Array:
    (k,) = axes_of(axis, x.ndim, "diff")
    before = (slice(None),) * k
    for _ in range(n):
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x


@public
def hstack(arrays: Sequence[Any]) -> Any:
    from ..functions import API

    return API["concat"](arrays, axis=0 if all(x.ndim == 1 for x in arrays) else 1)


@public
def vstack(arrays: Sequence[Any]) -> Any:
    from ..functions import API

    return API["concat"]([x if x.ndim > 1 else x.reshape(1, -1) for x in arrays], axis=0)


for _name in ("column_stack", "dstack"):
    def _stacked(arrays: Sequence[Any], _name: str = _name) -> Any:
        if _name == "column_stack":
            return call("concat", [x.reshape(-1, 1) if x.ndim < 2 else x for x in arrays], axis=1)
        return call("concat", [x.reshape(1, -1, 1) if x.ndim < 2 else x[:, :, None] if x.ndim == 2 else x for x in arrays], axis=2)

    FUNCTIONS[_name] = _stacked


def call(name: str, *args: Any, **options: Any) -> Any:
    """A function of `tw.`."""
    from ..functions import OFFERED

    return OFFERED[name](*args, **options)


def as_float(x: Array) -> Array:
    return x if dt.dtype(x.dtype).kind in "fc" else x.astype(FLOAT)


def in_one_axis(x: Array, axis: Any) -> tuple[Array, tuple[int, ...]]:
    """The axes that are reduced as one, the last; and where they were."""
    axes = axes_of(axis, x.ndim, "reduction")
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in kept]
    return x.transpose((*kept, *axes)).reshape(*shape, -1 if x.size else int(np.prod([x.shape[i] for i in axes]))), axes


def with_axes(made: Array, axes: Sequence[int], rank: int, keepdims: bool, before: int = 0) -> Array:
    """`made` with axes of size 1 again, behind `before` others."""
    for i in sorted(axes) if keepdims else ():
        made = made[(*[slice(None)] * (before + i), None)]
    return made


# ---- order and sets

@public
def nonzero(x: Array) -> tuple[Array, ...]:
    if not x.ndim:
        raise ArgumentError("nonzero: needs one axis or more, got a scalar")
    return indexing.nonzero(x)


@public
def argwhere(x: Array) -> Array:
    return call("stack", indexing.nonzero(x), axis=1) if x.ndim else P.wrap(P.empty((int(bool(x)), 0), np.dtype(np.int64)))  # type: ignore[no-any-return]


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
    v = x2 if type(x2) is Array and x2.device != "cpu" else call("asarray", x2, device="cuda")
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
    return low.reshape(v.shape)


@public
def digitize(x: Array, bins: Array, right: bool = False) -> Array:
    edges = bins if type(bins) is Array and bins.device != "cpu" else call("asarray", bins, device="cuda")
    if len(edges) > 1 and bool(edges[0] > edges[-1]):
        return len(edges) - searchsorted(edges[::-1], x, "right" if right else "left")  # type: ignore[no-any-return]
    return searchsorted(edges, x, "left" if right else "right")  # type: ignore[no-any-return]


def _distinct(x: Array, equal_nan: bool) -> tuple[Array, Array, Array, Array]:
    """Values, first positions, inverse and counts."""
    flat = x.reshape(-1)
    order = call("argsort", flat)
    s = flat[order]
    new = call("ones", flat.shape, np.bool_, device="cuda")
    if len(flat) > 1:
        other = s[1:] != s[:-1]
        if equal_nan and dt.dtype(x.dtype).kind == "f":
            other = other & ~(call("isnan", s[1:]) & call("isnan", s[:-1]))
        new[1:] = other
    at = flatnonzero(new)
    ends = call("concat", [at[1:], call("asarray", [len(flat)], np.int64, device="cuda")])
    groups = call("cumsum", new.astype(np.int64)) - 1
    inverse = call("zeros", flat.shape, np.int64, device="cuda").at[order].set(groups) if len(flat) else order
    return s[at], order[at], inverse.reshape(x.shape), ends - at if len(flat) else at


@public
def unique(x: Array, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None) -> Any:
    if axis is not None:
        raise UnsupportedError("unique: on a GPU an axis has no version; use x.to('cpu')")
    values, *rest = _distinct(x, True)
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
    there = [v if type(v) is Array and v.device != "cpu" else call("asarray", v, device="cuda") for v in (x1, x2)]
    values = call("sort", there[1].reshape(-1))
    if not len(values):
        return call("full", there[0].shape, invert, np.bool_, device="cuda")  # type: ignore[no-any-return]
    at = call("minimum", searchsorted(values, there[0]), len(values) - 1)
    found: Array = values[at] == there[0]
    return ~found if invert else found


def _both(x1: Array, x2: Array) -> tuple[Array, Array]:
    return _distinct(x1, True)[0], _distinct(x2, True)[0]


FUNCTIONS |= {
    "union1d": lambda x1, x2: _distinct(call("concat", [x1.reshape(-1), x2.reshape(-1)]), True)[0],
    "intersect1d": lambda x1, x2: (lambda a, b: a[isin(a, b)])(*_both(x1, x2)),
    "setdiff1d": lambda x1, x2: (lambda a, b: a[isin(a, b, invert=True)])(*_both(x1, x2)),
    "setxor1d": lambda x1, x2: (lambda a, b: call("sort", call("concat", [a[isin(a, b, True)], b[isin(b, a, True)]])))(*_both(x1, x2)),
    "partition": lambda x, kth, axis=-1: call("sort", x.reshape(-1) if axis is None else x, axis=-1 if axis is None else axis),
    "argpartition": lambda x, kth, axis=-1: call("argsort", x.reshape(-1) if axis is None else x, axis=-1 if axis is None else axis),
}


@public
def histogram(x: Array, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False) -> tuple[Array, Array]:  # noqa: A002
    flat = x.reshape(-1)
    if isinstance(bins, (Array, np.ndarray, list)):
        edges = np.asarray(bins.numpy() if type(bins) is Array else bins)
    else:
        ends = np.array([float(flat.min()), float(flat.max())]) if len(flat) and range is None else np.zeros(0)
        edges = np.histogram_bin_edges(ends, bins, range)
    wide = x.dtype if dt.dtype(x.dtype).kind == "f" else np.dtype(np.float64)
    there = call("asarray", edges.astype(wide), device="cuda")
    values = flat.astype(wide, copy=False)
    at = searchsorted(there, values, "right") - 1
    at = call("where", values == there[-1], len(edges) - 2, at)  # the last bin has its right end
    at = call("where", (values >= there[0]) & (values <= there[-1]), at, len(edges) - 1)
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
    x, xp, fp = (v if type(v) is Array and v.device != "cpu" else call("asarray", v, device="cuda") for v in (x, xp, fp))
    dtype = fp.dtype if dt.dtype(fp.dtype).kind == "f" else FLOAT
    x, xp, fp = (v.astype(np.float64) for v in (x, xp, fp))
    k = call("clip", searchsorted(xp, x, "right") - 1, 0, max(len(xp) - 2, 0))
    low, high = xp[k], xp[call("minimum", k + 1, len(xp) - 1)]
    a, b = fp[k], fp[call("minimum", k + 1, len(xp) - 1)]
    made = a + (x - low) * call("where", high == low, 0.0, (b - a) / (high - low))
    made = call("where", x <= xp[0], fp[0], call("where", x >= xp[-1], fp[-1], made))
    return call("where", call("isnan", x), x, made).astype(dtype)  # type: ignore[no-any-return]


# ---- statistics

@public
def quantile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Array:
    if method != "linear":
        raise UnsupportedError(f"quantile: on a GPU the method is 'linear', got {method!r}; use x.to('cpu')")
    points = np.asarray(q.numpy() if type(q) is Array else q, np.float64)
    if ((points < 0) | (points > 1)).any():
        raise ArgumentError(f"quantile: quantiles are 0 to 1, got {points.tolist()}")
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    n = rows.shape[-1]
    if not n:
        raise ArgumentError("quantile: nothing has no quantiles")
    s = call("sort", rows)
    made = []
    for p in points.reshape(-1):
        at = p * (n - 1)
        low = min(int(at), n - 1)
        a, b = s[..., low], s[..., min(low + 1, n - 1)]
        one = a + (b - a) * float(at - low) if at > low else a
        one = call("where", call("isnan", s[..., -1]), s[..., -1], one)
        made.append(with_axes(one, axes, x.ndim, keepdims))
    return made[0] if not points.ndim else call("stack", made).reshape((*points.shape, *made[0].shape))


@public
def percentile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Array:
    return quantile(x, np.asarray(q.numpy() if type(q) is Array else q, np.float64) / 100, axis, keepdims, method)  # type: ignore[no-any-return]


@public
def median(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    return quantile(x, 0.5, axis, keepdims)  # type: ignore[no-any-return]


@public
def nanmedian(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    count = (rows == rows).astype(np.int64).sum(axis=-1, keepdims=True)
    s = call("sort", rows)  # NaN stands behind all numbers
    low, high = (call("take_along_axis", s, call("clip", k, 0, s.shape[-1] - 1), -1)[..., 0] for k in ((count - 1) // 2, count // 2))
    return with_axes(low * 0.5 + high * 0.5, axes, x.ndim, keepdims)


def _number_for_nan(x: Array, value: float) -> Array:
    return call("where", call("isnan", x), value, x) if dt.dtype(x.dtype).kind == "f" else x  # type: ignore[no-any-return]


def _nan_extreme(name: str, fill: float) -> Callable[..., Any]:
    def made(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        x = as_float(x)
        found = call(name, _number_for_nan(x, fill), axis=axis, keepdims=keepdims)
        return call("where", call("all", call("isnan", x), axis=axis, keepdims=keepdims), float("nan"), found)  # type: ignore[no-any-return]

    return made


FUNCTIONS |= {"nanmax": _nan_extreme("max", float("-inf")), "nanmin": _nan_extreme("min", float("inf")),
              "nansum": lambda x, axis=None, keepdims=False: call("sum", _number_for_nan(as_float(x), 0.0), axis=axis, keepdims=keepdims),
              "nanprod": lambda x, axis=None, keepdims=False: call("prod", _number_for_nan(as_float(x), 1.0), axis=axis, keepdims=keepdims),
              "ptp": lambda x, axis=None, keepdims=False: (lambda y: y.max(axis=axis, keepdims=keepdims) - y.min(
                  axis=axis, keepdims=keepdims))(as_float(x))}


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
def average(x: Array, axis: Any = None, weights: Any = None) -> Array:
    x = as_float(x)
    if weights is None:
        return x.mean(axis=axis)
    if weights.ndim < x.ndim:
        (k,) = axes_of(axis, x.ndim, "average")
        weights = weights.reshape([-1 if i == k else 1 for i in range(x.ndim)])
    wide = weights.astype(x.dtype).expand(*x.shape)
    return (x * wide).sum(axis=axis) / wide.sum(axis=axis)


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


# ---- products and polynomials

@public
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Array:
    return (call("conj", x1) * x2 if dt.dtype(x1.dtype).kind == "c" else x1 * x2).sum(axis=axis)


@public
def tensordot(x1: Array, x2: Array, axes: Any = 2) -> Array:
    """As one product of matrices."""
    n = axes if isinstance(axes, int) else 0
    first, second = (range(x1.ndim - n, x1.ndim), range(n)) if isinstance(axes, int) else ((a,) if isinstance(a, int) else a for a in axes)
    a, b = [i % x1.ndim for i in first], [i % x2.ndim for i in second]
    sizes = [x1.shape[i] for i in a], [x2.shape[i] for i in b]
    if sizes[0] != sizes[1]:
        raise ArgumentError(f"tensordot: the axes have other sizes, got {sizes[0]} and {sizes[1]}")
    left, right = [i for i in range(x1.ndim) if i not in a], [i for i in range(x2.ndim) if i not in b]
    k = int(np.prod(sizes[0]))
    shape = [*(x1.shape[i] for i in left), *(x2.shape[i] for i in right)]
    rows = x1.transpose((*left, *a)).reshape(int(np.prod([x1.shape[i] for i in left])), k)
    columns = x2.transpose((*b, *right)).reshape(k, int(np.prod([x2.shape[i] for i in right])))
    return (rows @ columns).reshape(shape)


@public
def vdot(x1: Array, x2: Array) -> Array:
    return vecdot(x1.reshape(-1), x2.reshape(-1))  # type: ignore[no-any-return]


@public
def inner(x1: Array, x2: Array) -> Array:
    return x1 * x2 if not x1.ndim or not x2.ndim else call("tensordot", x1, x2, axes=((-1,), (-1,)))  # type: ignore[no-any-return]


@public
def kron(x1: Array, x2: Array) -> Array:
    n = max(x1.ndim, x2.ndim)
    a, b = (x.reshape((*[1] * (n - x.ndim), *x.shape)) for x in (x1, x2))
    wide = a.reshape([m for s in a.shape for m in (s, 1)]) * b.reshape([m for s in b.shape for m in (1, s)])
    return wide.reshape([s * t for s, t in zip(a.shape, b.shape, strict=True)])


@public
def cross(x1: Array, x2: Array, axis: int = -1) -> Array:
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ArgumentError(f"cross: needs vectors of three elements, got {x1.shape[axis]} and {x2.shape[axis]}")
    a, b = (call("moveaxis", x, axis, 0) for x in (x1, x2))
    return call("stack", [a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axis=axis)  # type: ignore[no-any-return]


@public
def convolve(x1: Array, x2: Array, mode: str = "full") -> Array:
    long, short = (x1, x2) if len(x1) >= len(x2) else (x2, x1)
    n, m = len(long), len(short)
    more = {"full": m - 1, "valid": 0, "same": m - 1}[mode]
    wide = call("pad", long, ((more, more),)) if more else long
    made = (wide.unfold(0, m) * short[::-1]).sum(axis=-1)
    return made[(m - 1) // 2 : (m - 1) // 2 + n] if mode == "same" else made


@public
def correlate(x1: Array, x2: Array, mode: str = "valid") -> Array:
    made = convolve(x1, x2[::-1], mode)
    return made[::-1] if mode == "valid" and len(x2) > len(x1) else made  # type: ignore[no-any-return]


@public
def polyval(p: Any, x: Any) -> Array:
    made = x * 0
    for k in range(len(p)):
        made = made * x + p[k]
    return made  # type: ignore[no-any-return]


@public
def vander(x: Array, n: int | None = None, increasing: bool = False) -> Array:
    count = len(x) if n is None else n
    powers = call("arange", count, device="cuda").astype(x.dtype)
    return x[:, None] ** (powers if increasing else powers[::-1])[None, :]


@public
def trapezoid(y: Array, x: Any = None, dx: float = 1.0, axis: int = -1) -> Array:
    y = call("moveaxis", as_float(y), axis, -1)
    steps: Any = dx if x is None else diff(call("moveaxis", x, axis, -1) if x.ndim > 1 else x)
    return ((y[..., 1:] + y[..., :-1]) * steps * 0.5).sum(axis=-1)


@public
def gradient(x: Array, *spacing: Any, axis: Any = None) -> Any:
    x = as_float(x)
    axes = axes_of(axis, x.ndim, "gradient")
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    if any(not isinstance(h, (int, float)) for h in steps) or len(steps) != len(axes):
        raise UnsupportedError("gradient: on a GPU the spacing is one number, or one for each axis; use x.to('cpu')")
    made = []
    for k, h in zip(axes, steps, strict=True):
        y = call("moveaxis", x, k, -1)
        if y.shape[-1] < 2:
            raise ArgumentError("gradient: needs two elements or more along an axis")
        parts = [(y[..., 1:2] - y[..., :1]) / h, (y[..., 2:] - y[..., :-2]) / (2.0 * h), (y[..., -1:] - y[..., -2:-1]) / h]
        made.append(call("moveaxis", call("concat", parts, axis=-1), -1, k))
    return made[0] if len(made) == 1 else made


@public
def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Array:
    made = default
    for c, x in zip(conditions[::-1], choices[::-1], strict=True):
        made = call("where", c, x, made)
    return made  # type: ignore[no-any-return]


@public
def heaviside(x1: Array, x2: Any) -> Array:
    made = call("where", x1 == 0, x2, (x1 > 0).astype(x1.dtype))
    return call("where", x1 != x1, x1, made) if dt.dtype(x1.dtype).kind == "f" else made  # type: ignore[no-any-return]


# ---- parts of arrays

@public
def ascontiguousarray(x: Array) -> Array:
    from .elementwise import contiguous

    p = P.of(x)
    assert p is not None
    return P.wrap(contiguous(p))


@public
def append(x: Array, values: Any, axis: int | None = None) -> Array:
    given = values if type(values) is Array else call("asarray", values, x.dtype, device="cuda")
    return call("concat", [v.reshape(-1) if axis is None else v for v in (x, given)], axis=axis or 0)  # type: ignore[no-any-return]


@public
def delete(x: Array, where: Any, axis: int | None = None) -> Array:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "delete")
    left = np.delete(np.arange(x.shape[k]), where.numpy() if type(where) is Array else where)
    return x[(*[slice(None)] * k, left)]


@public
def insert(x: Array, where: Any, values: Any, axis: int | None = None) -> Array:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "insert")
    n = x.shape[k]
    given = values if type(values) is Array else call("asarray", values, device="cuda")
    at = np.asarray(where.numpy() if type(where) is Array else where if not isinstance(where, slice) else range(*where.indices(n)))
    many = given.ndim == x.ndim if not at.ndim else given.ndim == x.ndim == 1
    count = max(at.size, given.shape[k] if many else 1)
    old = np.insert(np.arange(n), at, np.full(count, -1)) >= 0
    shape = (*x.shape[:k], n + count, *x.shape[k + 1 :])
    made: Array = call("empty", shape, x.dtype, device="cuda")
    whole = (slice(None),) * k
    made[(*whole, np.flatnonzero(old))] = x
    made[(*whole, np.flatnonzero(~old))] = given.astype(x.dtype)
    return made
