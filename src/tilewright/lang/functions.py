"""The functions of the kernel language, as `tl.exp` and the like: they work on tiles, index values and numbers inside a kernel."""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..core.dims import Expr, ceildiv
from ..core.dtypes import bool_, compute_dtype, f32, i32, i64
from ..core.dtypes import dtype as dtype_of
from ..core.errors import CompileError
from ..target.cpu.host import host_target
from ..tile.builder import Ix, Tile
from .context import current
from .values import View, need_shape, shown

__all__ = [
    "arange", "broadcast_to", "by_target", "cast", "cdiv", "ceil", "cos", "cumsum", "erf", "exp", "exp2", "expm1", "floor", "fma", "full",
    "index", "isinf", "isnan", "join", "lanes", "log", "log1p", "log2", "maximum", "minimum", "mma", "num_programs", "prod", "program_id",
    "reciprocal", "registers", "reshape", "rsqrt", "scratch", "sigmoid", "sign", "sin", "sqrt", "static_range", "tan", "tanh", "token",
    "transpose", "trunc", "where", "zeros",
]
F = TypeVar("F", bound=Callable[..., Any])
INTRINSICS: set[Any] = set()


def intrinsic(fn: F) -> F:
    """A function of the language."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        current(f"tl.{fn.__name__}")
        return fn(*args, **kwargs)

    INTRINSICS.add(call)
    return call  # type: ignore[return-value]


def lanes(dtype: Any = f32) -> int:
    """Elements of a vector register of this machine: what the last side of a tile on a CPU should be a multiple of."""
    return host_target().vector_bits // 8 // max(4, dtype_of(dtype).itemsize)


def registers() -> int:
    """Vector registers of this machine."""
    return host_target().registers


@dataclass(frozen=True)
class ByTarget:
    """A constant with a value for each kind of target."""

    cpu: Any
    cuda: Any


def by_target(*, cpu: Any, cuda: Any) -> Any:
    """A constant's default that differs between CPUs and GPUs: `BLOCK=tl.by_target(cpu=64, cuda=1024)`."""
    return ByTarget(cpu, cuda)


def cdiv(a: Any, b: int) -> Any:
    """a / b rounded up: of numbers, sizes and index values."""
    return ceildiv(a, b) if isinstance(a, (int, Expr)) else (a + (b - 1)) // b


# --- programs --------------------------------------------------------------------------------------------------------------
@intrinsic
def program_id(axis: int = 0) -> Any:
    """Which program of the grid this is, along an axis."""
    return current().program(axis)[0]


@intrinsic
def num_programs(axis: int = 0) -> Any:
    """How many programs the grid has along an axis."""
    return current().program(axis)[1]


# --- making tiles ------------------------------------------------------------------------------------------------------------
@intrinsic
def full(shape: Any, value: float, dtype: Any = f32) -> Tile:
    """A tile of one number."""
    e = current()
    sides, d = need_shape("full", shape), e.dtype(dtype)
    e.check_sides("full", sides)
    if isinstance(value, (Tile, Ix)):
        return e.b.broadcast(e.b.cast(e.tile(value), d), sides)
    return e.b.full(sides, value, d)


@intrinsic
def zeros(shape: Any, dtype: Any = f32) -> Tile:
    """A tile of zeros."""
    return full(shape, 0, dtype)


@intrinsic
def arange(shape: Any, axis: int = -1, dtype: Any = i64) -> Tile:
    """A tile whose elements are their positions along an axis."""
    e, sides = current(), need_shape("arange", shape)
    e.check_sides("arange", sides)
    return e.b.iota(sides, axis, e.dtype(dtype))


@intrinsic
def scratch(shape: Any, dtype: Any = f32) -> View:
    """Memory of one program's own, with any contents: it can be loaded from and stored to like an array."""
    e, sides = current(), need_shape("scratch", shape)
    return View(e, e.scratch(e.dtype(dtype), sides), sides, "scratch", True, own=True)


# --- elementwise -------------------------------------------------------------------------------------------------------------
def _unary(fn: str, text: str, *, ints: bool = False) -> Any:
    def call(x: Any) -> Any:
        return current().unary(fn, x, ints)

    call.__name__ = call.__qualname__ = fn
    call.__doc__ = text
    return intrinsic(call)


exp, exp2, expm1 = _unary("exp", "e to the x."), _unary("exp2", "2 to the x."), _unary("expm1", "exp(x) - 1.")
log, log2, log1p = _unary("log", "The natural logarithm."), _unary("log2", "The logarithm to base 2."), _unary("log1p", "log(1 + x).")
sqrt, rsqrt = _unary("sqrt", "The square root."), _unary("rsqrt", "1 / sqrt(x).")
sin, cos, tan, tanh = (_unary(f, f"{f}(x).") for f in ("sin", "cos", "tan", "tanh"))
erf, sigmoid = _unary("erf", "The error function."), _unary("sigmoid", "1 / (1 + exp(-x)).")
reciprocal = _unary("reciprocal", "1 / x.")
floor, ceil, round_, trunc = (_unary(f, f"{f}(x).") for f in ("floor", "ceil", "round", "trunc"))
abs_, sign = _unary("abs", "The absolute value.", ints=True), _unary("sign", "-1, 0 or 1.", ints=True)
isnan, isinf = _unary("isnan", "Whether x is NaN."), _unary("isinf", "Whether x is infinite.")


@intrinsic
def maximum(a: Any, b: Any) -> Any:
    """The larger one, element by element; NaN where one is."""
    return current().binary("max", a, b)


@intrinsic
def minimum(a: Any, b: Any) -> Any:
    """The smaller one, element by element; NaN where one is."""
    return current().binary("min", a, b)


@intrinsic
def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b."""
    e = current()
    if isinstance(condition, bool):
        return a if condition else b
    cond = e.tile(condition)
    if cond.dtype is not bool_:
        raise CompileError(f"where: the condition is a tile of bools, got {shown(condition)}")
    x, y = e.promote("where", a, b)
    return e.b.select(cond, x, y)


@intrinsic
def fma(a: Any, b: Any, c: Any) -> Tile:
    """a * b + c with one rounding."""
    e = current()
    x, y = e.promote("fma", a, b)
    x, z = e.promote("fma", x, c)
    return e.b.fma(x, e.b.cast(y, x.dtype), z)


@intrinsic
def cast(x: Any, dtype: Any) -> Tile:
    """The tile in another dtype: `x.to(dtype)`."""
    e = current()
    return e.b.cast(e.tile(x), e.dtype(dtype))


# --- shapes ------------------------------------------------------------------------------------------------------------------
@intrinsic
def broadcast_to(x: Any, shape: Any) -> Tile:
    e = current()
    return e.b.broadcast(e.tile(x), need_shape("broadcast_to", shape))


@intrinsic
def reshape(x: Tile, shape: Any) -> Tile:
    """The same elements in another shape. On a CPU sides of one come and go; otherwise the last side stays."""
    e, sides = current(), need_shape("reshape", shape)
    n = 1
    for d in sides:
        n *= d
    if n != x.type.numel:
        raise CompileError(f"reshape: keeps the number of elements, got {shown(x)} and {sides}")
    return e.reshaped(x, sides)


@intrinsic
def transpose(x: Tile) -> Tile:
    """The two axes of a tile swapped: `x.T`."""
    if len(x.shape) != 2:
        raise CompileError(f"transpose: needs a tile of rank 2, got {shown(x)}")
    return current().transposed(x)


# --- reductions: they keep their axis, with one element ------------------------------------------------------------------------
def _reduction(fn: str, text: str) -> Any:
    def call(x: Tile, axis: int = -1) -> Tile:
        return current().reduce(fn, x, axis)

    call.__name__ = call.__qualname__ = fn
    call.__doc__ = f"{text} along an axis, which stays with one element."
    return intrinsic(call)


sum_, prod = _reduction("sum", "The sum"), _reduction("prod", "The product")
max_, min_ = _reduction("max", "The largest element"), _reduction("min", "The smallest element")
any_, all_ = _reduction("any", "Whether any element holds,"), _reduction("all", "Whether all elements hold,")


@intrinsic
def cumsum(x: Tile) -> Tile:
    """Running sums along the last axis."""
    e = current()
    return e.b.scan("sum", e.computed(x))


@intrinsic
def mma(a: Tile, b: Tile, acc: Tile) -> Tile:
    """acc + a @ b. Small floats and bytes go to the tensor cores as they are; acc is f32 or i32 then."""
    e = current()
    if not all(isinstance(t, Tile) and len(t.shape) == 2 for t in (a, b, acc)):
        raise CompileError(f"mma: needs tiles of rank 2, got {shown(a)} @ {shown(b)} + {shown(acc)}")
    if (a.shape[0], b.shape[1]) != acc.shape or a.shape[1] != b.shape[0]:
        raise CompileError(f"mma: shapes do not fit, got {shown(a)} @ {shown(b)} + {shown(acc)}")
    wide = i32 if a.dtype.is_int and a.dtype.itemsize == 1 else compute_dtype(a.dtype)
    if a.dtype is not b.dtype or acc.dtype is not wide:
        raise CompileError(f"mma: needs operands of one dtype and sums in {wide}, got {shown(a)} @ {shown(b)} + {shown(acc)}")
    if e.kind == "cpu":
        a, b = (e.b.cast(t, wide) if t.dtype is not wide else t for t in (a, b))
    return e.b.mma(a, b, acc)


# --- index values, order ---------------------------------------------------------------------------------------------------------
@intrinsic
def index(x: Any) -> Any:
    """A tile of one integer as an index value."""
    if isinstance(x, (int, Ix)):
        return x
    if not isinstance(x, Tile) or not x.dtype.is_int or x.type.numel != 1:
        raise CompileError(f"index: needs a tile of one integer, got {shown(x)}")
    return current().b.to_index(x)


@intrinsic
def token() -> Any:
    """The token of the load or store just made, to give to `after=` of another."""
    return current().b.token()


@intrinsic
def join(*tokens: Any) -> Any:
    """One token that stands for several."""
    return current().b.join(*tokens)


@intrinsic
def static_range(*bounds: int) -> range:
    """A range whose loop is written out when the kernel is compiled."""
    if not all(isinstance(x, int) for x in bounds):
        raise CompileError(f"static_range: needs numbers that are known at compile time, got {', '.join(map(shown, bounds))}")
    return range(*bounds)


class Range:
    """A run-time loop with options."""

    def __init__(self, bounds: tuple[Any, ...], unroll: int | None) -> None:
        self.bounds, self.unroll = bounds, unroll


@intrinsic
def range_(*bounds: Any, unroll: int | None = None) -> Range:
    """Like Python's range; `unroll` iterations are written out at a time."""
    return Range(bounds, unroll)


def tile_attribute(x: Tile, name: str) -> Any:
    """`t.shape`, `t.dtype`, `t.T`, `t.to(dtype)`, `t.sum(axis)` …"""
    if name in ("shape", "dtype"):
        return getattr(x, name)
    if name == "ndim":
        return len(x.shape)
    if name == "T":
        return transpose(x)
    if name == "to":
        return lambda dtype: cast(x, dtype)
    found = {"sum": sum_, "max": max_, "min": min_, "prod": prod, "any": any_, "all": all_, "reshape": reshape}.get(name)
    if found is None:
        raise CompileError(f"a tile has no {name!r}; it has shape, dtype, ndim, T, to, sum, max, min, prod, any, all and reshape")
    return lambda *args, **kwargs: found(x, *args, **kwargs)


def loop_bounds(bounds: tuple[Any, ...]) -> tuple[Any, Any, int]:
    """Start, stop and step of `range(...)`."""
    if not 1 <= len(bounds) <= 3:
        raise CompileError(f"range: takes one to three numbers, got {len(bounds)}")
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else 1)
    for x in (start, stop):
        if isinstance(x, bool) or not isinstance(x, (int, Ix)):
            raise CompileError(f"range: bounds are index values, got {shown(x)}")
    if not isinstance(step, int) or step < 1:
        raise CompileError(f"range: the step is a positive number that is known at compile time, got {shown(step)}")
    return start, stop, step

