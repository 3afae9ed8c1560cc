"""Functions of `tw.` that are made of other ones, by name: in traces, and for Arrays on a GPU. What is read here of an array (`shape`,
operators, slices, `sum`) traced values have, too."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError, SizeError
from ..transform.promote import as_tracer
from ..transform.trace import Functions, Tracer, tracing
from .api.base import FLOAT, axes_of, common
from .arrays import Array, plain, shown

public = FUNCTIONS = Functions()


def call(name: str, *args: Any, **options: Any) -> Any:
    """A function of `tw.`."""
    from .functions import OFFERED

    return OFFERED[name](*args, **options)


def there(x: Any) -> Any:
    """An operand: in a trace a traced value, else an Array on the GPU. Numbers, lists and NumPy's arrays are copied there."""
    if tracing():
        return as_tracer(x if isinstance(x, Tracer) else plain(x))
    return x if type(x) is Array and x.device != "cpu" else call("asarray", x, device="cuda")


def made_there(name: str, *args: Any) -> Any:
    """`zeros`, `full`, ... in a trace, or on the GPU."""
    return call(name, *args) if tracing() else call(name, *args, device="cuda")


def listed(x: Any) -> Any:
    """Numbers that have to be known, on the host."""
    if isinstance(x, slice):
        return x
    return np.asarray(x.numpy() if type(x) is Array else x)


def values_between(given: Any, at: Any, rank: int, axis: int) -> tuple[Any, int]:
    """What is inserted at positions along an axis, and how many. The first axis of values for one position is that axis, as in NumPy."""
    if not at.ndim and given.ndim:
        given = call("moveaxis", given.reshape(*[1] * (rank - given.ndim), *given.shape), 0, axis)
    many = given.ndim == rank if not at.ndim else given.ndim == rank == 1
    return given, max(at.size, given.shape[axis] if many else 1)


def as_float(x: Any) -> Any:
    return x if dt.dtype(x.dtype).kind in "fc" else x.astype(FLOAT)


def in_one_axis(x: Array, axis: Any) -> tuple[Array, tuple[int, ...]]:
    """The axes that are reduced as one, the last; and where they were."""
    axes = axes_of(axis, x.ndim, "reduction")
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in kept]
    return x.transpose((*kept, *axes)).reshape(*shape, -1 if x.size else int(np.prod([x.shape[i] for i in axes]))), axes


def with_axes(made: Array, axes: Sequence[int], rank: int, keepdims: bool, before: int = 0) -> Any:
    """`made` with axes of size 1 again, behind `before` others."""
    for i in sorted(axes) if keepdims else ():
        made = made[(*[slice(None)] * (before + i), None)]
    return made


# ---- shapes

@public
def tile(x: Array, repetitions: Any) -> Any:
    times = repetitions if isinstance(repetitions, (tuple, list)) else (repetitions,)
    rank = max(len(times), x.ndim)
    times, shape = (*[1] * (rank - len(times)), *times), (*[1] * (rank - x.ndim), *x.shape)
    wide = x.reshape(tuple(n for s in shape for n in (1, s)))
    wide = call("broadcast_to", wide, tuple(n for t, s in zip(times, shape, strict=True) for n in (t, s)))
    return wide.reshape(tuple(t * s for t, s in zip(times, shape, strict=True)))


@public
def repeat(x: Array, repeats: Any, axis: int | None = None) -> Any:
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    (k,) = axes_of(axis, x.ndim, "repeat")
    if not isinstance(repeats, int):
        return x[(*[slice(None)] * k, np.repeat(np.arange(x.shape[k]), listed(repeats)))]
    shape = x.shape
    wide = call("broadcast_to", x.reshape(*shape[: k + 1], 1, *shape[k + 1 :]), (*shape[: k + 1], repeats, *shape[k + 1 :]))
    return wide.reshape(*shape[:k], shape[k] * repeats, *shape[k + 1 :])


@public
def hstack(arrays: Sequence[Any]) -> Any:
    return call("concat", arrays, axis=0 if all(x.ndim == 1 for x in arrays) else 1)


@public
def vstack(arrays: Sequence[Any]) -> Any:
    return call("concat", [x if x.ndim > 1 else x.reshape(1, -1) for x in arrays], axis=0)


for _name in ("column_stack", "dstack"):
    def _stacked(arrays: Sequence[Any], _name: str = _name) -> Any:
        if _name == "column_stack":
            return call("concat", [x.reshape(-1, 1) if x.ndim < 2 else x for x in arrays], axis=1)
        return call("concat", [x.reshape(1, -1, 1) if x.ndim < 2 else x[:, :, None] if x.ndim == 2 else x for x in arrays], axis=2)

    FUNCTIONS[_name] = _stacked


@public
def append(x: Array, values: Any, axis: int | None = None) -> Any:
    given: Any = values if isinstance(values, (Array, Tracer)) else made_there("asarray", values, x.dtype)
    return call("concat", [v.reshape(-1) if axis is None else v for v in (x, given)], axis=axis or 0)


@public
def delete(x: Array, where: Any, axis: int | None = None) -> Any:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "delete")
    left = np.delete(np.arange(x.shape[k]), listed(where))
    return x[(*[slice(None)] * k, left)]


@public
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False) -> tuple[Array, ...]:
    shape = tuple(a.size for a in arrays)
    shape = (shape[1], shape[0], *shape[2:]) if indexing == "xy" and len(arrays) > 1 else shape
    made = []
    for k, a in enumerate(arrays):
        at = 1 - k if indexing == "xy" and len(arrays) > 1 and k < 2 else k
        wide = a.reshape(*(a.size if i == at else 1 for i in range(len(shape))))
        made.append(wide if sparse else call("broadcast_to", wide, shape))
    return tuple(made)


@public
def trace(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return call("diagonal", x if dtype is None else x.astype(dtype), offset, axis1, axis2).sum(axis=-1)


# ---- elements

@public
def divmod(x1: Any, x2: Any) -> tuple[Array, Array]:  # noqa: A001  the standard's name
    return call("floor_divide", x1, x2), call("remainder", x1, x2)


@public
def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Any:
    made = default
    for c, x in zip(conditions[::-1], choices[::-1], strict=True):
        made = call("where", c, x, made)
    return made


@public
def diff(x: Array, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    (k,) = axes_of(axis, x.ndim, "diff")
    before = (slice(None),) * k
    one = (*x.shape[:k], 1, *x.shape[k + 1 :])
    ends = [e if e is None or there(e).ndim else call("broadcast_to", there(e), one) for e in (prepend, append)]
    if prepend is not None or append is not None:
        x = call("concat", [e for e in (ends[0], x, ends[1]) if e is not None], axis=k)
    for _ in range(n):
        x = call("not_equal" if dt.dtype(x.dtype).kind == "b" else "subtract", x[(*before, slice(1, None))], x[(*before, slice(None, -1))])
    return x


@public
def gradient(x: Array, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    x = as_float(x)
    axes = axes_of(axis, x.ndim, "gradient")
    given: list[Any] = [h if isinstance(h, (int, float)) else there(h) for h in spacing] or [1.0]
    steps = given * len(axes) if len(given) == 1 and not getattr(given[0], "ndim", 0) else given
    if len(steps) != len(axes):
        raise ArgumentError(f"gradient: needs one spacing, or one for each axis, got {len(steps)} for {len(axes)} axes")
    made = []
    for k, h in zip(axes, steps, strict=True):
        y = call("moveaxis", x, k, -1)
        n = y.shape[-1]
        if n <= edge_order:
            raise ArgumentError(f"gradient: needs {edge_order + 1} elements or more along an axis, got {n}")
        left, here, right = y[..., :-2], y[..., 1:-1], y[..., 2:]
        if isinstance(h, (Array, Tracer)) and h.ndim:
            if h.shape != (n,):
                raise ArgumentError(f"gradient: coordinates have the length of their axis, got {shown(h)} for {n} elements")
            h = diff(h).astype(x.dtype)
            before, after = h[:-1], h[1:]
            both, first, last = before + after, h[:1], h[-1:]
            uneven = right * (before / (after * both)) - left * (after / (before * both)) + here * ((after - before) / (before * after))
            inner = call("where", call("all", h == first), (right - left) / both, uneven)
        else:
            first, last, inner = h, h, (right - left) / (2.0 * h)
        ends = [(y[..., 1:2] - y[..., :1]) / first, (y[..., -1:] - y[..., -2:-1]) / last]
        if edge_order == 2:  # as much beyond the first difference as the second one differs from it
            second, fourth = (h, h) if first is last else (h[1:2], h[-2:-1])
            ends[0] = ends[0] + (ends[0] - (y[..., 2:3] - y[..., 1:2]) / second) * (first / (first + second))
            ends[1] = ends[1] + (ends[1] - (y[..., -2:-1] - y[..., -3:-2]) / fourth) * (last / (last + fourth))
        made.append(call("moveaxis", call("concat", [ends[0], inner, ends[1]], axis=-1), -1, k))
    return made[0] if len(made) == 1 else made


@public
def trapezoid(y: Array, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    y = call("moveaxis", as_float(y), axis, -1)
    steps: Any = dx if x is None else diff(call("moveaxis", x, axis, -1) if x.ndim > 1 else x)
    return ((y[..., 1:] + y[..., :-1]) * steps * 0.5).sum(axis=-1)


@public
def searchsorted(x1: Array, x2: Any, side: str = "left", sorter: Any = None) -> Any:
    """A binary search of all elements at once: in each step one gather and one kernel."""
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side is 'left' or 'right', got {side!r}")
    v = there(x2)
    dtype = common(x1.dtype, v.dtype)
    a, v = (x if x.dtype == dtype else x.astype(dtype) for x in (there(x1), v))
    a, flat = a if sorter is None else a[sorter], v.reshape(-1)
    nan = dt.dtype(dtype).kind == "f"
    low, high = made_there("zeros", flat.shape, np.int64), made_there("full", flat.shape, len(a), np.int64)
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
def digitize(x: Array, bins: Array, right: bool = False) -> Any:
    edges = there(bins)
    sides = ("left", "right") if right else ("right", "left")
    falling = isinstance(bins, Tracer) and len(edges) > 1
    if falling or (len(edges) > 1 and listed(bins)[0] > listed(bins)[-1]):
        made = len(edges) - searchsorted(edges[::-1], x, sides[1])
        return call("where", edges[0] > edges[-1], made, searchsorted(edges, x, sides[0])) if falling else made
    return searchsorted(edges, x, sides[0])


@public
def isin(x1: Any, x2: Any, invert: bool = False) -> Any:
    x1, values = there(x1), call("sort", there(x2).reshape(-1))
    if not len(values):
        return made_there("full", x1.shape, invert, np.bool_)
    at = call("minimum", searchsorted(values, x1), len(values) - 1)
    found: Array = values[at] == x1
    return ~found if invert else found


@public
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None) -> Any:
    x, xp, fp = (there(v) for v in (x, xp, fp))
    dtype = fp.dtype if dt.dtype(fp.dtype).kind == "f" else FLOAT
    x, xp, fp = (v.astype(np.float64) for v in (x, xp, fp))
    if period is not None:
        if not period:
            raise ArgumentError("interp: the period must not be 0")
        x, xp, left, right = x % abs(period), xp % abs(period), None, None
        order = call("argsort", xp)
        xp, fp = xp[order], fp[order]
        xp = call("concat", [xp[-1:] - abs(period), xp, xp[:1] + abs(period)])
        fp = call("concat", [fp[-1:], fp, fp[:1]])
    k = call("clip", searchsorted(xp, x, "right") - 1, 0, max(len(xp) - 2, 0))
    low, high = xp[k], xp[call("minimum", k + 1, len(xp) - 1)]
    a, b = fp[k], fp[call("minimum", k + 1, len(xp) - 1)]
    made = a + (x - low) * call("where", high == low, 0.0, (b - a) / (high - low))
    made = call("where", x <= xp[0], fp[0], call("where", x >= xp[-1], fp[-1], made))
    made = made if left is None else call("where", x < xp[0], left, made)
    made = made if right is None else call("where", x > xp[-1], right, made)
    return call("where", call("isnan", x), x, made).astype(dtype)


# ---- products and polynomials

@public
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    return (call("conj", x1) * x2 if dt.dtype(x1.dtype).kind == "c" else x1 * x2).sum(axis=axis)


@public
def tensordot(x1: Array, x2: Array, axes: Any = 2) -> Any:
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
def vdot(x1: Array, x2: Array) -> Any:
    return vecdot(x1.reshape(-1), x2.reshape(-1))


@public
def inner(x1: Array, x2: Array) -> Any:
    x1, x2 = there(x1), there(x2)
    return x1 * x2 if not x1.ndim or not x2.ndim else call("tensordot", x1, x2, axes=((-1,), (-1,)))


@public
def kron(x1: Array, x2: Array) -> Any:
    n = max(x1.ndim, x2.ndim)
    a, b = (x.reshape((*[1] * (n - x.ndim), *x.shape)) for x in (x1, x2))
    wide = a.reshape([m for s in a.shape for m in (s, 1)]) * b.reshape([m for s in b.shape for m in (1, s)])
    return wide.reshape([s * t for s, t in zip(a.shape, b.shape, strict=True)])


@public
def cross(x1: Array, x2: Array, axis: int = -1) -> Any:
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ArgumentError(f"cross: needs vectors of three elements, got {x1.shape[axis]} and {x2.shape[axis]}")
    a, b = (call("moveaxis", x, axis, 0) for x in (x1, x2))
    return call("stack", [a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3)], axis=axis)


@public
def convolve(x1: Array, x2: Array, mode: str = "full") -> Any:
    long, short = (x1, x2) if len(x1) >= len(x2) else (x2, x1)
    n, m = len(long), len(short)
    more = {"full": m - 1, "valid": 0, "same": m - 1}[mode]
    wide = call("pad", long, ((more, more),)) if more else long
    made = (call("unfold", wide, 0, m) * short[::-1]).sum(axis=-1)
    return made[(m - 1) // 2 : (m - 1) // 2 + n] if mode == "same" else made


@public
def correlate(x1: Array, x2: Array, mode: str = "valid") -> Any:
    made = convolve(x1, call("conj", x2[::-1]) if dt.dtype(x2.dtype).kind == "c" else x2[::-1], mode)
    return made[::-1] if mode == "valid" and len(x2) > len(x1) else made


@public
def polyval(p: Any, x: Any) -> Any:
    made = x * 0
    for k in range(len(p)):
        made = made * x + p[k]
    return made


@public
def vander(x: Array, n: int | None = None, increasing: bool = False) -> Any:
    count = len(x) if n is None else n
    powers = made_there("asarray", np.arange(count), x.dtype)
    return x[:, None] ** (powers if increasing else powers[::-1])[None, :]


# ---- statistics

@public
def count_nonzero(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return (x != 0).astype(np.int64).sum(axis=axis, keepdims=keepdims)


@public
def amax(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return x.max(axis=axis, keepdims=keepdims)


@public
def amin(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return x.min(axis=axis, keepdims=keepdims)


# method -> where a quantile q of n sorted elements lies, by functions of m (NumPy's, for numbers); between two elements it is interpolated
PLACES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "linear": lambda m, q, n: (n - 1) * q,
    "lower": lambda m, q, n: m.floor((n - 1) * q),
    "higher": lambda m, q, n: m.ceil((n - 1) * q),
    "nearest": lambda m, q, n: m.around((n - 1) * q),
    "midpoint": lambda m, q, n: (m.floor((n - 1) * q) + m.ceil((n - 1) * q)) / 2,
    "inverted_cdf": lambda m, q, n: m.ceil(n * q - 1),
    "averaged_inverted_cdf": lambda m, q, n: (m.ceil(n * q - 1) + m.floor(n * q)) / 2,
    "closest_observation": lambda m, q, n: m.around(n * q) - 1,
    "interpolated_inverted_cdf": lambda m, q, n: n * q - 1,
    "hazen": lambda m, q, n: n * q - 0.5,
    "weibull": lambda m, q, n: (n + 1) * q - 1,
    "median_unbiased": lambda m, q, n: n * q + (1 + q) / 3 - 1,
    "normal_unbiased": lambda m, q, n: n * q + (3 + 2 * q) / 8 - 1,
}


@public
def quantile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Any:
    if method not in PLACES:
        raise ArgumentError(f"quantile: the method is one of {', '.join(PLACES)}, got {method!r}")
    points = listed(q).astype(np.float64)
    if not ((points >= 0) & (points <= 1)).all():
        raise ArgumentError(f"quantile: quantiles are 0 to 1, got {points.tolist()}")
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    n = rows.shape[-1]
    if not isinstance(n, int):
        raise SizeError(f"quantile: where quantiles lie depends on the size of the axis, which must be known, got {n}")
    if not n:
        raise ArgumentError("quantile: nothing has no quantiles")
    s = call("sort", rows)
    at = np.clip(PLACES[method](np, points.reshape(-1), n), 0, n - 1)
    low = np.floor(at).astype(np.int64)
    a, b = s[..., low], s[..., np.minimum(low + 1, n - 1)]
    part, between = (made_there("asarray", v) for v in ((at - low).astype(x.dtype), at > low))
    one = call("where", between, a + (b - a) * part, a)
    one = call("where", call("isnan", s[..., -1:]), s[..., -1:], one)
    made = with_axes(call("moveaxis", one, -1, 0), axes, x.ndim, keepdims, 1)
    return made.reshape((*points.shape, *made.shape[1:]))


@public
def percentile(x: Array, q: Any, axis: Any = None, keepdims: bool = False, method: str = "linear") -> Any:
    return quantile(x, listed(q).astype(np.float64) / 100, axis, keepdims, method)


@public
def median(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    return quantile(x, 0.5, axis, keepdims)


@public
def nanmedian(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    x = as_float(x)
    rows, axes = in_one_axis(x, axis)
    count = (rows == rows).astype(np.int64).sum(axis=-1, keepdims=True)
    s = call("sort", rows)  # NaN stands behind all numbers
    low, high = (call("take_along_axis", s, call("clip", k, 0, s.shape[-1] - 1), -1)[..., 0] for k in ((count - 1) // 2, count // 2))
    return with_axes(low * 0.5 + high * 0.5, axes, x.ndim, keepdims)


def _number_for_nan(x: Array, value: float) -> Any:
    return call("where", call("isnan", x), value, x) if dt.dtype(x.dtype).kind in "fc" else x


def outermost(x: Any, sign: int) -> float:
    """The number of a float dtype that no other is beyond: an infinity, where it has one."""
    return sign * (float(ml_dtypes.finfo(dt.f8e4m3.np).max) if dt.dtype(x.dtype) is dt.f8e4m3 else float("inf"))  # type: ignore[no-untyped-call]


def _nan_extreme(name: str, sign: int) -> Callable[..., Any]:
    def made(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
        if dt.dtype(x.dtype).kind != "f":
            return call(name, x, axis=axis, keepdims=keepdims)
        found = call(name, _number_for_nan(x, outermost(x, sign)), axis=axis, keepdims=keepdims)
        return call("where", call("all", call("isnan", x), axis=axis, keepdims=keepdims), float("nan"), found)

    return made


FUNCTIONS |= {"nanmax": _nan_extreme("max", -1), "nanmin": _nan_extreme("min", 1),
              "nansum": lambda x, axis=None, keepdims=False: call("sum", _number_for_nan(x, 0.0), axis=axis, keepdims=keepdims),
              "nanprod": lambda x, axis=None, keepdims=False: call("prod", _number_for_nan(x, 1.0), axis=axis, keepdims=keepdims),
              "ptp": lambda x, axis=None, keepdims=False: (lambda y: y.max(axis=axis, keepdims=keepdims) - y.min(
                  axis=axis, keepdims=keepdims))(x if dt.dtype(x.dtype).kind in "iu" else as_float(x))}


@public
def nanmean(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    x = as_float(x)
    count = (x == x).astype(x.dtype).sum(axis=axis, keepdims=keepdims)
    return _number_for_nan(x, 0.0).sum(axis=axis, keepdims=keepdims) / count


@public
def nanvar(x: Array, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    x = as_float(x)
    count = (x == x).astype(x.dtype).sum(axis=axis, keepdims=keepdims)
    apart = abs(_number_for_nan(x - nanmean(x, axis, True), 0.0))
    return (apart * apart).sum(axis=axis, keepdims=keepdims) / (count - ddof)


@public
def nanstd(x: Array, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    return call("sqrt", nanvar(x, axis, keepdims, ddof))


@public
def average(x: Array, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    x = as_float(x)
    if weights is None:
        made = x.mean(axis=axis, keepdims=keepdims)
        return (made, call("full_like", made, x.size / max(made.size, 1))) if returned else made
    weights = there(weights)
    if weights.ndim < x.ndim:
        (k,) = axes_of(axis, x.ndim, "average")
        weights = weights.reshape([-1 if i == k else 1 for i in range(x.ndim)])
    wide = call("broadcast_to", weights.astype(x.dtype), x.shape)
    total = wide.sum(axis=axis, keepdims=keepdims)
    made = (x * wide).sum(axis=axis, keepdims=keepdims) / total
    return (made, total) if returned else made


@public
def cov(x: Array, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
        aweights: Any = None) -> Any:
    x = as_float(x)
    rows = x.reshape(1, -1) if x.ndim < 2 else x if rowvar else x.T
    if y is not None:
        y = as_float(y)
        rows = call("concat", [rows, y.reshape(1, -1) if y.ndim < 2 else y if rowvar else y.T])
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        apart = rows - rows.mean(axis=1, keepdims=True)
        made = apart @ apart.T / (rows.shape[1] - less)
    else:
        weights, counts = (call("ones_like", x.reshape(-1)[:1]) if w is None else there(w).astype(x.dtype) for w in (aweights, fweights))
        each = weights * counts
        apart = rows - (rows * each).sum(axis=1, keepdims=True) / each.sum()
        made = (apart * each) @ apart.T / (each.sum() - less * ((each * weights).sum() / each.sum()))
    return made if len(rows) > 1 else made.reshape(())


@public
def corrcoef(x: Array, y: Any = None, rowvar: bool = True) -> Any:
    c = cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    d = call("sqrt", call("diagonal", c))
    return call("clip", c / d[:, None] / d[None, :], -1.0, 1.0)


def _running(name: str, start: int) -> Callable[..., Any]:
    """`cumulative_sum` and `cumulative_prod`, from the functions that are compiled."""
    def made(x: Array, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        if axis is None and x.ndim > 1:
            raise ArgumentError(f"{name}: needs an axis, got {x.ndim} of them")
        k = axes_of(axis if axis is not None else 0, x.ndim, name)[0]
        found = call("cumsum" if not start else "cumprod", x, axis=k, dtype=dtype)
        if not include_initial:
            return found
        shape = (*x.shape[:k], 1, *x.shape[k + 1 :])
        return call("concat", [made_there("full", shape, start, found.dtype), found], axis=k)

    return made


FUNCTIONS |= {"cumulative_sum": _running("cumulative_sum", 0), "cumulative_prod": _running("cumulative_prod", 1)}
