"""Functions of Arrays on a GPU that are made of other functions there, by name; those of `HOSTED` need the elements on the host."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ..api.base import FLOAT, axes_of, common
from ..arrays import Array
from . import placed as P

FUNCTIONS: dict[str, Callable[..., Any]] = {}
HOSTED = frozenset({"save", "nonzero", "argwhere", "flatnonzero"})  # their results have sizes that depend on the elements, or are files
CLOSE = ("logical_or(equal(i0,i1),logical_and(logical_and(isfinite(i0),isfinite(i1)),"
         "less_equal(abs(subtract(i0,i1)),add(i2,multiply(i3,abs(i1))))))")
EXPRESSIONS = {  # functions of floats without a traced form
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
