"""Functions of Arrays on a GPU that are made of other functions there, by name; those of `HOSTED` need the elements on the host."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ..api.base import FLOAT, axes_of, common
from ..arrays import Array, shown
from . import placed as P

F = TypeVar("F", bound=Callable[..., Any])
FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Computed by the host, from a copy: files, a function of the user's, and rare ones whose algorithms branch on every element.
HOSTED = frozenset({"save", "i0", "lexsort", "apply_along_axis", "float_power", "polyfit"})
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


def public(fn: F) -> F:
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
        return repeat(x.reshape(-1), repeats, 0)
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


def there(x: Any) -> Array:
    """An array on the device; numbers, lists and NumPy's arrays are copied there."""
    return x if type(x) is Array and x.device != "cpu" else call("asarray", x, device="cuda")


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


# ---- products and polynomials

@public
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Array:
    return (call("conj", x1) * x2 if dt.dtype(x1.dtype).kind == "c" else x1 * x2).sum(axis=axis)  # type: ignore[no-any-return]


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
    return vecdot(x1.reshape(-1), x2.reshape(-1))


@public
def inner(x1: Array, x2: Array) -> Array:
    return x1 * x2 if not x1.ndim or not x2.ndim else call("tensordot", x1, x2, axes=((-1,), (-1,)))


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
    return made[::-1] if mode == "valid" and len(x2) > len(x1) else made


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
    return x[:, None] ** (powers if increasing else powers[::-1])[None, :]  # type: ignore[no-any-return]


@public
def trapezoid(y: Array, x: Any = None, dx: float = 1.0, axis: int = -1) -> Array:
    y = call("moveaxis", as_float(y), axis, -1)
    steps: Any = dx if x is None else diff(call("moveaxis", x, axis, -1) if x.ndim > 1 else x)
    return ((y[..., 1:] + y[..., :-1]) * steps * 0.5).sum(axis=-1)  # type: ignore[no-any-return]


@public
def gradient(x: Array, *spacing: Any, axis: Any = None) -> Any:
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
        if n < 2:
            raise ArgumentError("gradient: needs two elements or more along an axis")
        first = last = before = after = h
        if isinstance(h, Array) and h.ndim:
            if h.shape != (n,):
                raise ArgumentError(f"gradient: coordinates have the length of their axis, got {shown(h)} for {n} elements")
            h = diff(h).astype(x.dtype)
            first, last, before, after = h[:1], h[-1:], h[:-1], h[1:]
        rises = y[..., 1:] - y[..., :-1]
        inner = (rises[..., :-1] * (after / before) + rises[..., 1:] * (before / after)) / (before + after)
        made.append(call("moveaxis", call("concat", [rises[..., :1] / first, inner, rises[..., -1:] / last], axis=-1), -1, k))
    return made[0] if len(made) == 1 else made


@public
def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Array:
    made = default
    for c, x in zip(conditions[::-1], choices[::-1], strict=True):
        made = call("where", c, x, made)
    return made  # type: ignore[no-any-return]


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
