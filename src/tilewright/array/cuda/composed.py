"""Functions of Arrays on a GPU that are made of other functions there, by name; those of `HOSTED` need the elements on the host."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...transform.trace import Functions
from .. import composed
from ..api.base import FLOAT, axes_of, common
from ..arrays import Array
from ..composed import as_float, call, listed, there, values_between
from . import placed as P

public = FUNCTIONS = Functions(composed.FUNCTIONS)
# Computed by the host, from a copy: files, a function of the user's, and rare ones whose algorithms branch on every element.
HOSTED = frozenset({"save", "i0", "lexsort", "apply_along_axis", "float_power", "polyfit"})
WHOLE = frozenset({"floor", "ceil", "trunc", "round", "rint"})  # functions that copy integers
CLOSE = ("logical_or(equal(i0,i1),logical_and(logical_and(isfinite(i0),isfinite(i1)),"
         "less_equal(abs(subtract(i0,i1)),add(i2,multiply(i3,abs(i1))))))")
EXPRESSIONS = {  # functions of floats without a traced form
    "cbrt": "where(logical_or(equal(i0,0.0),logical_not(isfinite(i0))),i0,subtract(ROOT,"
            "divide(subtract(multiply(multiply(ROOT,ROOT),ROOT),i0),multiply(3.0,multiply(ROOT,ROOT)))))".replace(
                "ROOT", f"multiply(sign(i0),pow(abs(i0),{1 / 3!r}))"),
    "fmax": "where(isnan(i0),i1,where(isnan(i1),i0,maximum(i0,i1)))",
    "fmin": "where(isnan(i0),i1,where(isnan(i1),i0,minimum(i0,i1)))",
}


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
def copy(x: Array) -> Array:
    return x.copy()


@public
def heaviside(x1: Array, x2: Any) -> Array:
    x1 = as_float(x1)
    made = call("where", x1 == 0, x2, (x1 > 0).astype(x1.dtype))
    return call("where", x1 != x1, x1, made)  # type: ignore[no-any-return]


# ---- parts of arrays

@public
def ascontiguousarray(x: Array) -> Array:
    from .elementwise import contiguous

    p = P.of(x)
    assert p is not None
    return P.wrap(contiguous(p))


@public
def insert(x: Array, where: Any, values: Any, axis: int | None = None) -> Array:
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "insert")
    n = x.shape[k]
    at = listed(range(*where.indices(n)) if isinstance(where, slice) else where)
    given, count = values_between(there(values), at, x.ndim, k)
    old = np.insert(np.arange(n), at, np.full(count, -1)) >= 0
    shape = (*x.shape[:k], n + count, *x.shape[k + 1 :])
    made: Array = call("empty", shape, x.dtype, device="cuda")
    whole = (slice(None),) * k
    made[(*whole, np.flatnonzero(old))] = x
    made[(*whole, np.flatnonzero(~old))] = given.astype(x.dtype)
    return made
