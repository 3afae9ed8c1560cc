"""Functions of `tw.` written once over others: they run at once or lazily on Arrays of any device, and in traces with the derivatives of
what they are made of. Where NumPy's function writes its argument (`put`, `place`, `fill_diagonal` ...), this one gives a new array."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError, TraceError
from ..transform.promote import as_tracer
from ..transform.trace import Functions, Tracer, tracing, user_place
from .api.base import FLOAT, axes_of
from .arrays import Array, plain, shown
from .composed import PLACES, as_float, call, in_one_axis, listed, outermost, with_axes
from .trees import unwrapped

public = FUNCTIONS = Functions()
BY_NAME = SimpleNamespace(floor=lambda x: call("floor", x), ceil=lambda x: call("ceil", x), around=lambda x: call("round", x))


def operand(x: Any) -> Any:
    """A traced value in a trace, else an Array where it lies; numbers, lists and memory of others on the host."""
    if tracing():
        return as_tracer(x if isinstance(x, Tracer) else plain(x))
    return x if type(x) is Array else call("asarray", x)


def beside(x: Any, constant: Any, dtype: Any = None) -> Any:
    """A constant where x is."""
    made = np.asarray(constant, dtype)
    return as_tracer(made) if tracing() else call("asarray", made, device=x.device)


def kind(x: Any) -> str:
    return dt.dtype(x.dtype).kind


def refused(x: Any) -> bool:
    """Whether a condition that makes arguments wrong holds somewhere; in a trace nobody knows."""
    return not tracing() and bool(call("any", x))


# ---- elements

@public
def modf(x: Any) -> tuple[Array, Array]:
    """(fractional part, whole part), both with the sign of x."""
    x = as_float(operand(x))
    whole = call("trunc", x)
    return call("copysign", call("where", call("isinf", x), 0.0, x - whole), x), whole


@public
def spacing(x: Any) -> Array:
    """The distance to the next number away from zero, with the sign of x."""
    x = as_float(operand(x))
    away = call("where", x < 0, -math.inf, math.inf)
    return call("where", call("isinf", x), math.nan, call("nextafter", x, away.astype(x.dtype)) - x)  # type: ignore[no-any-return]


@public
def isneginf(x: Any) -> Array:
    """Whether elements are negative infinity."""
    return operand(x) == -math.inf  # type: ignore[no-any-return]


@public
def isposinf(x: Any) -> Array:
    """Whether elements are positive infinity."""
    return operand(x) == math.inf  # type: ignore[no-any-return]


@public
def iscomplex(x: Any) -> Array:
    """Whether elements have an imaginary part that is not zero."""
    x = operand(x)
    return call("imag", x) != 0 if kind(x) == "c" else call("zeros_like", x, np.bool_)  # type: ignore[no-any-return]


@public
def isreal(x: Any) -> Array:
    """Whether elements have no imaginary part."""
    return ~iscomplex(x)  # type: ignore[no-any-return]


@public
def real_if_close(x: Any, tol: float = 100) -> Array:
    """The real parts where all imaginary parts are near zero (`tol` is in units of the dtype's epsilon; above 1 it is), else x."""
    x = operand(x)
    if kind(x) != "c":
        return x  # type: ignore[no-any-return]
    limit = tol * float(np.finfo(x.dtype).eps) if tol > 1 else tol
    return call("real", x) if bool(call("all", abs(call("imag", x)) < limit)) else x  # type: ignore[no-any-return]


@public
def bitwise_count(x: Any) -> Array:
    """How many bits of the magnitude of integers are set."""
    x = operand(x)
    if kind(x) not in "iu":
        raise ArgumentError(f"bitwise_count: needs integers, got {shown(x)}")
    bits = 8 * x.dtype.itemsize
    whole = (1 << bits) - 1
    v = abs(x).astype(f"uint{bits}") if kind(x) == "i" else x
    pairs, fours, bytes_ = (beside(x, whole // n, v.dtype) for n in (3, 5, 17))
    v = v - ((v >> 1) & pairs)
    v = (v & fours) + ((v >> 2) & fours)
    v = (v + (v >> 4)) & bytes_
    return (v if bits == 8 else (v * beside(x, whole // 255, v.dtype)) >> (bits - 8)).astype("uint8")  # type: ignore[no-any-return]


@public
def piecewise(x: Any, conditions: Any, functions: Sequence[Any], *args: Any, **kwargs: Any) -> Array:
    """Each function (or number) where its condition holds, the last one that does; one more stands for where none does, else 0. Functions
    see all of x."""
    x = operand(x)
    many = not isinstance(conditions[0], bool) if isinstance(conditions, (list, tuple)) else call("ndim", conditions) > x.ndim
    given = conditions if many else [conditions]
    tests = [call("broadcast_to", operand(c) != 0, x.shape) for c in given]
    if len(functions) not in (len(tests), len(tests) + 1):
        raise ArgumentError(f"piecewise: {len(tests)} conditions need as many functions, or one more, got {len(functions)}")
    made = call("zeros_like", x)
    if len(functions) > len(tests):
        none = ~call("any", call("stack", tests), axis=0) if tests else call("ones_like", x, np.bool_)
        tests, functions = [none, *tests], [functions[-1], *functions[:-1]]
    for test, fn in zip(tests, functions, strict=True):
        value = fn(x, *args, **kwargs) if callable(fn) else fn
        made = call("where", test, operand(value).astype(x.dtype), made)
    return made  # type: ignore[no-any-return]


@public
def choose(x: Any, choices: Any, *, mode: str = "raise") -> Array:
    """choices[x[i]][i]: the choices broadcast with x. `mode` is what an index out of range does: "raise", "wrap" or "clip"."""
    x, *given = call("broadcast_arrays", operand(x), *map(operand, choices))
    at = in_range("choose", x, len(given), mode)
    return call("take_along_axis", call("stack", given), at[None], axis=0)[0]  # type: ignore[no-any-return]


def in_range(what: str, i: Any, n: int, mode: str, low: int = 0) -> Any:
    if mode not in ("raise", "wrap", "clip"):
        raise ArgumentError(f"{what}: mode is 'raise', 'wrap' or 'clip', got {mode!r}")
    if mode == "raise" and refused((i < low) | (i >= n)):
        raise ArgumentError(f"{what}: an index is out of range for {n}")
    return i % n if mode == "wrap" else call("clip", i, 0, n - 1) if mode == "clip" else _from_the_end(i, n) if low else i


def _from_the_end(i: Any, n: Any) -> Any:
    """Indices, which may count from the end."""
    return call("where", i < 0, i + n, i) if kind(i) == "i" else i


# ---- new arrays in which elements differ

def _cycled(values: Any, count: int) -> Any:
    """`count` of the values, again from the first when they run out."""
    flat = operand(values).reshape(-1)
    return call("take", flat, beside(flat, np.arange(count) % max(flat.shape[0], 1)))


@public
def put(x: Any, indices: Any, values: Any, mode: str = "raise") -> Array:
    """x with `values` (again from the first when they run out) at positions in the flattened array: a new Array."""
    x, at = operand(x), operand(indices).reshape(-1)
    n = math.prod(x.shape)
    at = in_range("put", at if math.prod(at.shape) else at.astype(np.int64), n, mode, -n)
    return x.reshape(-1).at[at].set(_cycled(values, at.shape[0]).astype(x.dtype)).reshape(x.shape)  # type: ignore[no-any-return]


@public
def place(x: Any, mask: Any, values: Any) -> Array:
    """x with the first values where a mask holds, one after the other: a new Array."""
    x, flat = operand(x), operand(values).reshape(-1)
    where = operand(mask).reshape(x.shape) != 0
    at = (call("cumsum", where.reshape(-1).astype(np.int64)) - 1) % max(flat.shape[0], 1)
    return call("where", where, call("take", flat, at % flat.shape[0]).reshape(x.shape).astype(x.dtype), x)  # type: ignore[no-any-return]


@public
def putmask(x: Any, mask: Any, values: Any) -> Array:
    """x with values[i], again from the first when they run out, at the positions i where a mask holds: a new Array."""
    x = operand(x)
    wide = _cycled(values, math.prod(x.shape)).reshape(x.shape).astype(x.dtype)
    return call("where", operand(mask) != 0, wide, x)  # type: ignore[no-any-return]


@public
def copyto(x: Any, source: Any, *, where: Any = True) -> Array:
    """x with the source, which broadcasts, where a mask holds: a new Array."""
    x = operand(x)
    return call("where", operand(where), call("broadcast_to", operand(source).astype(x.dtype), x.shape), x)  # type: ignore[no-any-return]


@public
def put_along_axis(x: Any, indices: Any, values: Any, axis: int | None = -1) -> Array:
    """x with `values` at the indices along an axis (None: of all elements): a new Array."""
    x, i = operand(x), operand(indices)
    if axis is None:
        return put_along_axis(x.reshape(-1), i, values, 0).reshape(x.shape)  # type: ignore[no-any-return]
    (k,) = axes_of(axis, x.ndim, "put_along_axis")
    if i.ndim != x.ndim:
        raise ArgumentError(f"put_along_axis: indices need as many axes as the array, got {shown(i)} for {shown(x)}")
    lines = np.ix_(*map(np.arange, x.shape))
    at = [_from_the_end(i, n) if a == k else beside(x, lines[a]) for a, n in enumerate(x.shape)]
    return x.at[tuple(at)].set(operand(values).astype(x.dtype))  # type: ignore[no-any-return]


@public
def fill_diagonal(x: Any, value: Any, wrap: bool = False) -> Array:
    """x with a value, or several in turn, on its main diagonal (`wrap`: again below, of tall matrices): a new Array."""
    x = operand(x)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ArgumentError(f"fill_diagonal: needs a matrix, or more axes of one size, got {shown(x)}")
    step = 1 + sum(math.prod(x.shape[k:]) for k in range(1, x.ndim))
    at = slice(0, x.shape[1] ** 2 if x.ndim == 2 and not wrap else None, step)
    count = len(range(*at.indices(math.prod(x.shape))))
    return x.reshape(-1).at[at].set(_cycled(value, count).astype(x.dtype)).reshape(x.shape)  # type: ignore[no-any-return]


# ---- shapes

@public
def block(arrays: Any) -> Array:
    """Blocks, in nested lists, as one array: the innermost lists along the last axis."""
    def depth(a: Any) -> int:
        if not isinstance(a, list):
            return 0
        inner = {depth(b) for b in a}
        if len(inner) != 1:
            raise ArgumentError(f"block: lists hold at least one array, and lie equally deep, got depths {sorted(inner)}")
        return 1 + inner.pop()

    def leaves(a: Any) -> list[Any]:
        return [x for b in a for x in leaves(b)] if isinstance(a, list) else [operand(a)]

    def joined(a: Any, left: int) -> Any:
        if left:
            return call("concat", [joined(b, left - 1) for b in a], axis=-left)
        x = operand(a)
        return x.reshape(*[1] * (rank - x.ndim), *x.shape)

    deep = depth(arrays)
    rank = max(deep, *(x.ndim for x in leaves(arrays)))
    return joined(arrays, deep) if deep else operand(arrays)  # type: ignore[no-any-return]


def _at_least(axes: int) -> Callable[..., Any]:
    def call_(*arrays: Any) -> Any:
        made = []
        for x in map(operand, arrays):
            before = axes - x.ndim - (axes == 3 and x.ndim in (1, 2))
            made.append(x if x.ndim >= axes else x[(*[None] * before, ..., *[None] * (axes - x.ndim - before))])
        return made[0] if len(made) == 1 else tuple(made)

    call_.__name__, call_.__doc__ = f"atleast_{axes}d", f"Arrays with at least {axes} axes: views."
    return call_


for _axes in (1, 2, 3):
    public(_at_least(_axes))


@public
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Array:
    """Differences of neighbours of all elements, between what is given for the ends."""
    made = call("diff", operand(x).reshape(-1))
    parts = [to_begin, made, to_end]
    return call("concat", [p if p is made else operand(p).reshape(-1).astype(made.dtype) for p in parts if p is not None])  # type: ignore[no-any-return]


@public
def diagflat(x: Any, k: int = 0) -> Array:
    """A matrix with all elements of x on its k-th diagonal."""
    return call("diag", operand(x).reshape(-1), k)  # type: ignore[no-any-return]


@public
def diag_indices_from(x: Any) -> tuple[Array, ...]:
    """The indices of the main diagonal of an array whose sizes are equal."""
    return call("diag_indices", x.shape[0], len(x.shape))  # type: ignore[no-any-return]


@public
def tril_indices_from(x: Any, k: int = 0) -> tuple[Array, ...]:
    """The indices of the lower triangle of a matrix."""
    return call("tril_indices", x.shape[0], k, x.shape[1])  # type: ignore[no-any-return]


@public
def triu_indices_from(x: Any, k: int = 0) -> tuple[Array, ...]:
    """The indices of the upper triangle of a matrix."""
    return call("triu_indices", x.shape[0], k, x.shape[1])  # type: ignore[no-any-return]


@public
def mask_indices(n: int, mask: Callable[..., Any], k: int = 0) -> tuple[Array, ...]:
    """The indices of the elements that a function such as `tw.triu` keeps of an n by n matrix."""
    return call("nonzero", mask(call("ones", (n, n)), k))  # type: ignore[no-any-return]


@public
def trim_zeros(x: Any, trim: str = "fb", axis: Any = None) -> Array:
    """An array without the slices along axes, at the front ("f"), the back ("b") or both, that are zeros alone."""
    x = operand(x)
    if tracing():
        raise TraceError(f"trim_zeros: the size of the result depends on the elements, which are not known yet; call it outside of the "
                         f"traced function ({user_place()})")
    found, axes = np.nonzero(listed(x != 0)), axes_of(axis, x.ndim, "trim_zeros")
    ends = [(int(at.min()), int(at.max()) + 1) if len(at) else (n, n) for at, n in zip(found, x.shape, strict=True)]
    front, back = "f" in trim.lower(), "b" in trim.lower()
    return x[tuple(slice(a if front else 0, b if back else None) if k in axes else slice(None) for k, (a, b) in enumerate(ends))]  # type: ignore[no-any-return]


@public
def array_equiv(a: Any, b: Any) -> Any:
    """Whether two arrays broadcast and have the same elements."""
    x, y = operand(a), operand(b)
    try:
        call("broadcast_shapes", x.shape, y.shape)
    except ArgumentError:
        return False
    same = call("all", x == y)
    return same if tracing() else bool(same)


@public
def packbits(x: Any, axis: int | None = None, bitorder: str = "big") -> Array:
    """Eight elements along an axis (None: of all elements) as the bits of a byte; the last byte is filled with zeros."""
    x = operand(x)
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "packbits")
    y = call("moveaxis", x != 0, k, -1)
    y = call("pad", y, [(0, 0)] * (y.ndim - 1) + [(0, -y.shape[-1] % 8)]).reshape(*y.shape[:-1], -(-y.shape[-1] // 8), 8)
    made = (y.astype(np.uint8) << beside(x, _bits(bitorder, "packbits"))).sum(axis=-1, dtype=np.uint8)
    return call("moveaxis", made, -1, k)  # type: ignore[no-any-return]


@public
def unpackbits(x: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Array:
    """The bits of bytes along an axis (None: of all elements); `count` of them, or all but the last -count."""
    x = operand(x)
    if x.dtype != np.uint8:
        raise ArgumentError(f"unpackbits: needs u8, got {shown(x)}")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    (k,) = axes_of(axis, x.ndim, "unpackbits")
    y = call("moveaxis", x, k, -1)
    y = ((y[..., None] >> beside(x, _bits(bitorder, "unpackbits"))) & 1).reshape(*y.shape[:-1], 8 * y.shape[-1])
    more = 0 if count is None else max(count - y.shape[-1], 0)
    y = call("pad", y, [(0, 0)] * (y.ndim - 1) + [(0, more)]) if more else y[..., :count]
    return call("moveaxis", y, -1, k)  # type: ignore[no-any-return]


def _bits(order: str, what: str) -> Any:
    if order not in ("big", "little"):
        raise ArgumentError(f"{what}: bitorder is 'big' or 'little', got {order!r}")
    return np.arange(8, dtype=np.uint8)[:: -1 if order == "big" else 1]


# ---- functions of functions

@public
def apply_over_axes(fn: Callable[..., Any], x: Any, axes: Any) -> Array:
    """fn(x, axis) for one axis after the other; an axis that it takes away stays with size 1."""
    x = operand(x)
    for axis in axes_of(axes, x.ndim, "apply_over_axes"):
        made = fn(x, axis)
        x = made if made.ndim == x.ndim else call("expand_dims", made, axis)
    return x  # type: ignore[no-any-return]


class vectorize:
    """A function of numbers as one of arrays, which broadcast: it is traced once and runs for all elements together (`tw.vmap`). A
    signature such as "(n),(n)->()" names axes, the last ones, that the function takes as a whole."""

    def __init__(self, fn: Callable[..., Any], signature: str | None = None) -> None:
        self.fn, self.signature = fn, signature
        self.__doc__, self.__name__ = fn.__doc__, getattr(fn, "__name__", "function")
        self.ranks = None if signature is None else [len([n for n in part.strip("( )").split(",") if n])
                                                     for part in signature.partition("->")[0].replace(" ", "").split("),")]

    def __call__(self, *args: Any) -> Any:
        from .functions import _has, foreign

        made = self._made(*args)
        return unwrapped(made) if foreign(args) and not _has((Array, Tracer), args) else made

    def _made(self, *args: Any) -> Any:
        given = [operand(x) for x in args]
        ranks = [0] * len(given) if self.ranks is None else self.ranks
        if len(ranks) != len(given):
            raise ArgumentError(f"vectorize: {self.__name__} has {len(ranks)} arguments in {self.signature!r}, got {len(given)}")
        outer = [x.shape[: x.ndim - r] for x, r in zip(given, ranks, strict=True)]
        shape = call("broadcast_shapes", *outer)
        if not shape:
            return self.fn(*given) if tracing() else call("vmap", self.fn)(*(x[None] for x in given))[0]
        inner = [x.shape[len(o):] for x, o in zip(given, outer, strict=True)]
        rows = [call("broadcast_to", x, (*shape, *i)).reshape(math.prod(shape), *i) for x, i in zip(given, inner, strict=True)]
        made = call("vmap", self.fn)(*rows)
        return tuple(m.reshape(*shape, *m.shape[1:]) for m in made) if isinstance(made, tuple) else made.reshape(*shape, *made.shape[1:])


# ---- reductions without NaN

def _without_nan(x: Any, value: float) -> Any:
    return call("where", call("isnan", x), value, x) if kind(x) in "fc" else x


def _running(name: str, start: int) -> Callable[..., Any]:
    def made(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
        return call(name[3:], _without_nan(operand(x), start), axis=axis, dtype=dtype)  # type: ignore[no-any-return]

    made.__name__, made.__doc__ = name, f"The running {'product' if start else 'sum'} along an axis, or of all elements, NaN as {start}."
    return made


def _extreme(name: str, sign: int) -> Callable[..., Any]:
    def made(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
        x = operand(x)
        nan = call("isnan", x) if kind(x) == "f" else None
        if nan is not None and math.prod(x.shape) and refused(call("all", nan, axis=axis)):
            raise ArgumentError(f"{name}: a slice holds NaN alone, got {shown(x)} and axis={axis}")
        return call(name[3:], x if nan is None else call("where", nan, outermost(x, sign), x), axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    made.__name__, made.__doc__ = name, f"Index of the {'largest' if sign < 0 else 'smallest'} element that is no NaN."
    return made


FUNCTIONS |= {"nancumsum": _running("nancumsum", 0), "nancumprod": _running("nancumprod", 1),
              "nanargmax": _extreme("nanargmax", -1), "nanargmin": _extreme("nanargmin", 1)}


@public
def nanquantile(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False, method: str = "linear") -> Array:
    """The q-th quantiles over axes, without NaN; NaN where there is nothing else."""
    if method not in PLACES:
        raise ArgumentError(f"nanquantile: the method is one of {', '.join(PLACES)}, got {method!r}")
    points = listed(q).astype(np.float64)
    if not ((points >= 0) & (points <= 1)).all():
        raise ArgumentError(f"nanquantile: quantiles are 0 to 1, got {points.tolist()}")
    x = as_float(operand(x))
    rows, axes = in_one_axis(x, axis)
    if not rows.shape[-1]:
        rows = call("pad", rows, [(0, 0)] * (rows.ndim - 1) + [(0, 1)], constant_values=math.nan)
    count = (rows == rows).astype(np.int64).sum(axis=-1, keepdims=True)
    last, s = call("maximum", count - 1, 0), call("sort", rows)  # NaN stands behind all numbers
    at = call("maximum", call("minimum", PLACES[method](BY_NAME, beside(x, points.reshape(-1)), count.astype(np.float64)), last), 0.0)
    low = call("floor", at).astype(np.int64)
    a, b = (call("take_along_axis", s, i, -1) for i in (low, call("minimum", low + 1, last)))
    part = (at - low).astype(x.dtype)
    made = call("moveaxis", call("where", part > 0, a + (b - a) * part, a), -1, 0)
    made = with_axes(made, axes, x.ndim, keepdims, 1)
    return made.reshape((*points.shape, *made.shape[1:]))  # type: ignore[no-any-return]


@public
def nanpercentile(x: Any, q: Any, axis: Any = None, *, keepdims: bool = False, method: str = "linear") -> Array:
    """The q-th percentiles over axes, without NaN; NaN where there is nothing else."""
    return nanquantile(x, listed(q).astype(np.float64) / 100, axis, keepdims=keepdims, method=method)  # type: ignore[no-any-return]


@public
def unwrap(x: Any, discont: float | None = None, axis: int = -1, period: float = 2 * math.pi) -> Array:
    """x with its jumps along an axis, of more than half a period (or of `discont`), taken back by whole periods."""
    x = operand(x)
    x = x if kind(x) in "iu" and isinstance(period, int) else as_float(x)
    (k,) = axes_of(axis, x.ndim, "unwrap")
    step = call("diff", x, axis=k)
    half, both = (period // 2, period % 2 == 0) if kind(x) in "iu" else (period / 2, True)
    turned = (step + half) % period - half
    turned = call("where", (turned == -half) & (step > 0), half, turned) if both else turned
    turned = call("where", abs(step) < (period / 2 if discont is None else discont), 0, turned - step)
    first = (slice(None),) * k
    later = x[(*first, slice(1, None))] + call("cumsum", turned, axis=k).astype(x.dtype)
    return call("concat", [x[(*first, slice(0, 1))], later], axis=k)  # type: ignore[no-any-return]


@public
def sort_complex(x: Any) -> Array:
    """All elements as complex numbers, in order along the last axis."""
    x = operand(x)
    return call("sort", x.astype(dt.complex_of(dt.dtype(as_float(x).dtype)).np))  # type: ignore[no-any-return]


@public
def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:  # noqa: A002
    """The edges of bins: so many of one width, those given, or as a rule such as "auto" makes them."""
    x = operand(x)
    return _edges(x.reshape(-1), bins, range).astype(FLOAT if kind(x) != "f" else x.dtype)  # type: ignore[no-any-return]


def _edges(x: Any, bins: Any, limits: Any) -> Any:
    if isinstance(bins, str):
        return beside(x, np.histogram_bin_edges(listed(x), bins, limits))
    if not isinstance(bins, int):
        return operand(bins).astype(np.float64)
    if limits is None and not x.shape[0]:
        limits = (0.0, 1.0)
    low, high = (v.astype(np.float64) for v in (call("min", x), call("max", x))) if limits is None else (
        beside(x, v, np.float64) for v in limits)
    low, high = call("where", low == high, low - 0.5, low), call("where", low == high, high + 0.5, high)
    at = beside(x, np.arange(bins + 1), np.float64)
    return call("where", at == bins, high, low + at * ((high - low) / bins))


@public
def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: bool = False,  # noqa: A002
                weights: Any = None) -> tuple[Array, list[Array]]:
    """(counts, edges of each axis) of points in rows, or of a list of coordinates."""
    columns = list(map(operand, sample)) if isinstance(sample, (list, tuple)) else list(operand(sample).T)
    n = len(columns)
    sizes = [bins] * n if isinstance(bins, (int, str)) else list(bins)
    if len(sizes) != n:
        raise ArgumentError(f"histogramdd: needs bins for each of the {n} axes, got {len(sizes)}")
    edges = [_edges(x, b, None if range is None else range[k]) for k, (x, b) in enumerate(zip(columns, sizes, strict=True))]
    at, inside = 0, True
    for x, e in zip(columns, edges, strict=True):
        v, count = x.astype(np.float64), e.shape[0] - 1
        found = call("where", v == e[-1], count - 1, call("searchsorted", e, v, side="right") - 1)
        inside = inside & (found >= 0) & (found < count) & (v == v)
        at = at * count + found
    shape = tuple(e.shape[0] - 1 for e in edges)
    each = call("where", inside, 1.0 if weights is None else operand(weights).astype(np.float64), 0.0)
    counts = call("zeros_like", beside(columns[0], np.zeros(math.prod(shape)))).at[call("where", inside, at, 0)].add(each).reshape(shape)
    if density:
        counts = counts / counts.sum()
        for k, e in enumerate(edges):
            counts = counts / call("diff", e).reshape([-1 if i == k else 1 for i in builtin_range(n)])
    return counts.astype(FLOAT), [e.astype(FLOAT) for e in edges]


builtin_range = range


@public
def histogram2d(x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool = False,  # noqa: A002
                weights: Any = None) -> tuple[Array, Array, Array]:
    """(counts, edges of x, edges of y) of points."""
    each = bins if isinstance(bins, (int, str)) or (isinstance(bins, (list, tuple)) and len(bins) == 2) else [bins, bins]
    counts, edges = histogramdd([x, y], each, range, density, weights)
    return counts, edges[0], edges[1]
