"""Functions of `tw.` inside traces that are made of other ones, where Arrays on a GPU have their own: views, `roll`, `isclose` ..."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from ..transform.promote import as_tracer
from ..transform.trace import Functions
from . import anywhere, polynomials
from .api.base import axes_of
from .composed import as_float, call, listed, there, values_between

public = FUNCTIONS = Functions(anywhere.FUNCTIONS | polynomials.FUNCTIONS | polynomials.LINALG)
for _name in ("copy", "positive"):
    FUNCTIONS[_name] = as_tracer
FUNCTIONS |= {"ascontiguousarray": lambda x, dtype=None: as_tracer(x) if dtype is None else call("astype", x, dtype),
             "iscomplexobj": lambda x: x.dtype.kind == "c", "isrealobj": lambda x: x.dtype.kind != "c", "isscalar": lambda x: False,
             "shape": lambda x: as_tracer(x).shape, "ndim": lambda x: as_tracer(x).ndim,
             "size": lambda x, axis=None: math.prod(as_tracer(x).shape[k] for k in axes_of(axis, as_tracer(x).ndim, "size")),
             "empty_like": lambda x, dtype=None: call("zeros_like", x, dtype), "matrix_transpose": lambda x: call("swapaxes", x, -1, -2),
             "fliplr": lambda x: call("flip", x, axis=1), "flipud": lambda x: call("flip", x, axis=0),
             "vsplit": lambda x, parts: call("split", x, parts, 0), "dsplit": lambda x, parts: call("split", x, parts, 2),
             "hsplit": lambda x, parts: call("split", x, parts, min(1, as_tracer(x).ndim - 1)),
             "partition": lambda x, kth, axis=-1: call("sort", x, axis=axis),
             "argpartition": lambda x, kth, axis=-1: call("argsort", x, axis=axis)}


@public
def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    for _ in range(k % 4):
        x = call("swapaxes", call("flip", x, axis=axes[1]), *axes)
    return x


@public
def rollaxis(x: Any, axis: int, start: int = 0) -> Any:
    (k,) = axes_of(axis, x.ndim, "rollaxis")
    start += x.ndim if start < 0 else 0
    return call("moveaxis", x, k, start - (start > k))


@public
def unstack(x: Any, axis: int = 0) -> Any:
    y = call("moveaxis", x, axis, 0)
    return tuple(y[i] for i in range(y.shape[0]))


@public
def array_split(x: Any, parts: Any, axis: int = 0) -> Any:
    (k,) = axes_of(axis, x.ndim, "array_split")
    n = x.shape[k]
    at = [len(p) for p in np.array_split(np.zeros(n), parts)]
    ends = np.cumsum([0, *at])
    return [x[(*[slice(None)] * k, slice(int(a), int(b)))] for a, b in zip(ends, ends[1:], strict=False)]


@public
def broadcast_arrays(*arrays: Any) -> Any:
    given = [as_tracer(x) for x in arrays]
    shape = call("broadcast_shapes", *(x.shape for x in given))
    return tuple(call("broadcast_to", x, shape) for x in given)


@public
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    y = call("moveaxis", x, (axis1, axis2), (-2, -1))
    n, m = y.shape[-2:]
    first = offset if offset >= 0 else -offset * m
    count = max(0, min(n, m - offset) if offset >= 0 else min(n + offset, m))
    flat = y.reshape(*y.shape[:-2], n * m)
    return flat[..., first : first + (count - 1) * (m + 1) + 1 : m + 1] if count else flat[..., :0]


@public
def diag(x: Any, k: int = 0) -> Any:
    if x.ndim == 2:
        return diagonal(x, k)
    n = x.shape[0] + abs(k)
    wide = call("pad", x, ((0, abs(k)),)) if k else x
    return call("where", np.eye(n, k=k, dtype=np.bool_), wide[:, None] if k >= 0 else wide[None, :],
                np.zeros((), dt.dtype(x.dtype).np))


@public
def unfold(x: Any, axis: int, size: int, step: int = 1) -> Any:
    (k,) = axes_of(axis, x.ndim, "unfold")
    if not 1 <= size <= x.shape[k] or step < 1:
        raise ArgumentError(f"unfold: size is 1 to {x.shape[k]} and step at least 1, got size={size} step={step}")
    starts = np.arange(0, x.shape[k] - size + 1, step)
    made = call("take", x, (starts[:, None] + np.arange(size)).reshape(-1), axis=k)
    return call("moveaxis", made.reshape(*x.shape[:k], len(starts), size, *x.shape[k + 1 :]), k + 1, -1)


@public
def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    shifts, axes = (tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (shift, axis))
    n = max(len(shifts), len(axes))
    for by, where in zip(*(v * n if len(v) == 1 else v for v in (shifts, axes)), strict=True):
        (k,) = axes_of(where, x.ndim, "roll")
        n, before = x.shape[k], (slice(None),) * k
        by = int(by) % n if isinstance(n, int) and n else int(by)
        if by and n >= abs(by):  # a run-time size is a SizeError where its limits leave that open
            x = call("concat", [x[(*before, slice(-by, None))], x[(*before, slice(0, -by))]], axis=k)
    return x


@public
def insert(x: Any, where: Any, values: Any, axis: int | None = None) -> Any:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "insert")
    n = x.shape[k]
    at = listed(range(*where.indices(n)) if isinstance(where, slice) else where)
    given, count = values_between(there(values).astype(x.dtype), at, x.ndim, k)
    wide = call("broadcast_to", given, (*x.shape[:k], count, *x.shape[k + 1 :]))
    return call("take", call("concat", [x, wide], axis=k), np.insert(np.arange(n), at, n + np.arange(count)), axis=k)


@public
def compress(condition: Any, x: Any, axis: int | None = None) -> Any:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return call("take", x, np.flatnonzero(listed(condition)), axis=axis)


@public
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    x, y = (as_float(there(v)) for v in (a, b))
    finite = call("isfinite", x) & call("isfinite", y)
    made = (x == y) | (finite & (abs(x - y) <= atol + rtol * abs(y)))
    return made | (call("isnan", x) & call("isnan", y)) if equal_nan else made


@public
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    return isclose(a, b, rtol, atol, equal_nan).all()


@public
def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    x, y = there(a), there(b)
    if x.shape != y.shape:
        return as_tracer(False)
    return ((x == y) | ((x != x) & (y != y)) if equal_nan else x == y).all()


@public
def polyfit(x: Any, y: Any, deg: int, w: Any = None) -> Any:
    """By least squares of scaled columns, as NumPy has it."""
    from .linalg import lstsq

    x, y = as_float(there(x)), as_float(there(y))
    columns = call("vander", x, deg + 1)
    if w is not None:
        columns, y = columns * there(w)[:, None], y * (there(w) if y.ndim == 1 else there(w)[:, None])
    scale = call("sqrt", (columns * columns).sum(axis=0))
    made = lstsq(columns / scale, y if y.ndim == 2 else y[:, None])[0] / scale[:, None]
    return made if y.ndim == 2 else made[:, 0]


@public
def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    a, b = (as_float(there(v)) for v in (start, stop))
    steps = num - 1 if endpoint else num
    parts = (np.arange(num) / max(steps, 1)).reshape(-1, *[1] * max(a.ndim, b.ndim))
    made = a + (b - a) * parts.astype(dt.dtype(a.dtype).np)
    made = call("where", parts == 1, b, made)
    return call("moveaxis", made if dtype is None else made.astype(dtype), 0, axis)


@public
def ravel_multi_index(indices: Any, shape: Any, mode: str = "raise") -> Any:
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return sum(anywhere.in_range("ravel_multi_index", there(i), n, mode) * s for i, n, s in zip(indices, shape, steps, strict=True))


@public
def unravel_index(indices: Any, shape: Any) -> Any:
    i = there(indices)
    return tuple(i // math.prod(shape[k + 1 :]) % n for k, n in enumerate(shape))


@public
def lexsort(keys: Any, axis: int = -1) -> Any:
    order: Any = None
    for key in keys:
        again = call("argsort", key if order is None else call("take_along_axis", key, order, axis), axis=axis)
        order = again if order is None else call("take_along_axis", order, again, axis)
    return order


@public
def apply_along_axis(fn: Callable[..., Any], axis: int, x: Any, *args: Any, **options: Any) -> Any:
    (k,) = axes_of(axis, x.ndim, "apply_along_axis")
    rows = call("moveaxis", x, k, -1)
    made = call("vmap", lambda v: fn(v, *args, **options))(rows.reshape(-1, x.shape[k]))
    made = made.reshape(*rows.shape[:-1], *made.shape[1:])
    new = made.ndim - rows.ndim + 1
    return call("moveaxis", made, tuple(range(rows.ndim - 1, made.ndim)), tuple(range(k, k + new)))


def _without_nan(name: str) -> Callable[..., Any]:
    def made(x1: Any, x2: Any) -> Any:
        x, y = there(x1), there(x2)
        return call("where", call("isnan", x), y, call("where", call("isnan", y), x, call(name, x, y)))

    return made


@public
def fmod(x1: Any, x2: Any) -> Any:
    x, y = there(x1), there(x2)
    made = call("remainder", abs(x), abs(y))
    return call("copysign", made, x) if dt.dtype(made.dtype).kind == "f" else call("sign", x) * made


@public
def cbrt(x: Any) -> Any:
    x = as_float(x)
    root = call("sign", x) * abs(x) ** (1 / 3)
    better = root - (root * root * root - x) / (3.0 * root * root)
    return call("where", (x == 0) | ~call("isfinite", x), x, better)


FUNCTIONS |= {"fmax": _without_nan("maximum"), "fmin": _without_nan("minimum"), "deg2rad": lambda x: as_float(as_tracer(x)) * (np.pi / 180),
             "rad2deg": lambda x: as_float(as_tracer(x)) * (180 / np.pi)}
