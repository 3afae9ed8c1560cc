"""Functions that no target has an instruction for, written once in tile operations: polynomials, signs, circular and hyperbolic inverses.

Every function takes the tile builder first. `ARRAYS` is a builder over NumPy arrays, so the same text is an op's reference in f64, which
the suite compares with PyTorch. f32 tiles compute in f32 (`narrow` coefficients) unless a function widens them itself. No branches:
both sides are computed and one is selected, so a lane's bits do not depend on its neighbours.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, pi
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ..tiles import TileBuilder

Tile = Any  # a tile of `tile/builder.py`, or an array
LN2, LN10 = log(2.0), log(10.0)
PI_LOW = 1.2246467991473532e-16  # pi - f64(pi)

# (atan(x) / x - 1) / x^2 in x^2 for |x| <= tan(pi/8): 2^-28 and 2^-60
ATAN: dict[int, tuple[float, ...]] = {
    32: (-0.3333333, 0.1999954, -0.14263953, 0.10743705, -0.064518414),
    64: (-0.3333333333333333, 0.19999999999999804, -0.14285714285659806, 0.11111111105153429, -0.09090908753400499, 0.07692296372129964,
         -0.06666424833613552, 0.05878928398517232, -0.052304498567092406, 0.04551573086664191, -0.034570044186095536,
         0.016285183029865667),
}
# (asin(x) / x - 1) / x^2 in x^2 for |x| <= 1/2
ASIN: dict[int, tuple[float, ...]] = {
    32: (0.16666666, 0.07500094, 0.044599403, 0.031100662, 0.017149238, 0.033690847),
    64: (0.16666666666666666, 0.07499999999999991, 0.0446428571428834, 0.030381944441363808, 0.02237215927967998, 0.017352757477819787,
         0.013965009932053607, 0.011549086612987425, 0.009792751320201996, 0.008135829925501657, 0.00879500607648843,
         0.000380853033290726, 0.022553563638202982, -0.024020544918554605, 0.030718768995191097),
}


class Arrays:
    """The elementwise part of a tile builder, over NumPy arrays."""

    UNARY = {"neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
             "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "floor": np.floor, "round": np.rint,
             "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf, "not": np.invert}
    BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
              "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}

    def unary(self, fn: str, x: Any) -> Any:
        if fn == "erf":
            from .erf import erf

            return erf(np.asarray(x))
        return np.asarray(self.UNARY[fn](x))

    def binary(self, fn: str, a: Any, b: Any) -> Any:
        return np.asarray(self.BINARY[fn](a, b))

    def cmp(self, fn: str, a: Any, b: Any) -> Any:
        return np.asarray(self.COMPARE[fn](a, b))

    def select(self, c: Any, a: Any, b: Any) -> Any:
        return np.where(c, a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return np.asarray(a * b + c)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = dt.f32) -> Any:
        return np.full(shape, value, getattr(dtype, "np", dtype))

    def cast(self, x: Any, dtype: dt.DType) -> Any:
        return np.asarray(x).astype(dtype.np)

    def bitcast(self, x: Any, dtype: dt.DType) -> Any:
        return np.asarray(x).view(dtype.np)


ARRAYS = Arrays()


def single(x: Tile) -> bool:
    return x.dtype is dt.f32


def width(x: Tile) -> int:
    return 32 if single(x) else 64


def const(t: TileBuilder, x: Tile, value: float) -> Tile:
    return t.full((), value, x.dtype)


def wide(t: TileBuilder, x: Tile) -> Tile:
    """x in f64: for functions whose f32 form would lose digits and which nobody calls in a hot loop."""
    return t.cast(x, dt.f64)


def poly(t: TileBuilder, x: Tile, coefficients: Sequence[float]) -> Tile:
    """Horner: c[0] + c[1] x + ..., lowest first."""
    acc = const(t, x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        acc = t.fma(acc, x, const(t, x, c))
    return acc


def alike(t: Any, a: Tile, b: Tile) -> tuple[Tile, Tile]:
    """Both in their common shape: what a loop carries keeps its shape."""
    if isinstance(t, Arrays) or a.shape == b.shape:
        return a, b
    shape = t.broadcast_shape(a.shape, b.shape)
    return t.broadcast(a, shape), t.broadcast(b, shape)


def repeat(t: Any, count: int, step: Callable[..., Sequence[Tile]], *carried: Tile) -> Sequence[Tile]:
    """Tiles after `count` steps: a loop in a kernel, so that a long recurrence is short code."""
    if isinstance(t, Arrays):
        for _ in range(count):
            carried = tuple(step(*carried))
        return carried
    with t.loop(0, count, carried=carried, nonempty=True) as loop:
        loop.next(*step(*loop.carried))
    found: list[Tile] = loop.results
    return found


def where_any(t: Any, cond: Tile, other: Tile, value: Callable[[], Tile]) -> Tile:
    """select(cond, value(), other), where a kernel computes the value only for tiles of which some element needs it."""
    if isinstance(t, Arrays):
        return t.select(cond, value(), other)
    needed = t.select(cond, t.full((), 1, dt.i32), 0)
    for axis in range(len(needed.shape)):
        needed = t.reduce("max", needed, axis)
    with t.loop(0, t.to_index(t.reshape(needed, ())), carried=(t.broadcast(other, cond.shape),)) as loop:
        loop.next(t.select(cond, value(), loop.carried[0]))
    found: Tile = loop.results[0]
    return found


def bits(t: TileBuilder, x: Tile) -> Tile:
    return t.bitcast(x, dt.i32 if single(x) else dt.i64)


def floats(t: TileBuilder, i: Tile) -> Tile:
    return t.bitcast(i, dt.f32 if i.dtype in (dt.i32, np.dtype(np.int32)) else dt.f64)


def sign_bit(t: TileBuilder, x: Tile) -> Tile:
    """True where the sign is minus: -0 and NaN with it too."""
    return t.cmp("lt", bits(t, x), 0)


def copy_sign(t: TileBuilder, x: Tile, source: Tile) -> Tile:
    """|x| with the sign of source."""
    n = width(x)
    size, sign = t.binary("and", bits(t, x), (1 << (n - 1)) - 1), t.binary("and", bits(t, source), -(1 << (n - 1)))
    return floats(t, t.binary("or", size, sign))


def atan_reduced(t: TileBuilder, above: Tile, below: Tile) -> Tile:
    """atan(above / below) for two numbers that are not negative: one division, after the third of the angle is known."""
    steep = t.cmp("gt", above, below * 2.414213562373095)
    middle = t.cmp("gt", above, below * 0.41421356237309503)
    u = t.select(steep, -below, t.select(middle, above - below, above)) / t.select(steep, above, t.select(middle, above + below, below))
    z = u * u
    tail = u * z * poly(t, z, ATAN[width(u)])
    if not single(u):
        tail = tail + t.select(steep, PI_LOW / 2, t.select(middle, const(t, u, PI_LOW / 4), 0.0))
    return t.select(steep, pi / 2, t.select(middle, const(t, u, pi / 4), 0.0)) + (u + tail)


def atan(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    return copy_sign(t, atan_reduced(t, a, const(t, x, 1.0)), x)


def atan2(t: TileBuilder, y: Tile, x: Tile) -> Tile:
    """The angle of the point (x, y), as C's."""
    a, b = t.unary("abs", y), t.unary("abs", x)
    shrink = t.select(t.cmp("eq", a + b, float("inf")), const(t, x, 0.25), 1.0)  # the sum of two large numbers
    angle = atan_reduced(t, a * shrink, b * shrink)
    angle = t.select(t.cmp("eq", a, 0.0), t.select(t.unary("isnan", x), x, 0.0), angle)
    both = t.binary("and", t.unary("isinf", x), t.unary("isinf", y))
    angle = t.select(both, const(t, x, pi / 4), t.select(t.unary("isinf", x), t.select(t.unary("isnan", y), y, 0.0), angle))
    turned = pi - angle if single(x) else pi - (angle - PI_LOW)
    return copy_sign(t, t.select(sign_bit(t, x), turned, angle), y)


def _asin_small(t: TileBuilder, r: Tile, z: Tile) -> Tile:
    """asin(r) for r = sqrt(z) <= 1/2, without r itself."""
    return r * z * poly(t, z, ASIN[width(r)])


def asin(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    large = t.cmp("gt", a, 0.5)
    z = t.select(large, (1.0 - a) * 0.5, a * a)
    r = t.select(large, t.unary("sqrt", z), a)
    tail = _asin_small(t, r, z)
    low = 0.0 if single(x) else PI_LOW / 2
    return copy_sign(t, t.select(large, pi / 2 - (2.0 * (r + tail) - low), r + tail), x)


def acos(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    large = t.cmp("gt", a, 0.5)
    z = t.select(large, (1.0 - a) * 0.5, a * a)
    r = t.select(large, t.unary("sqrt", z), a)
    tail = _asin_small(t, r, z)
    low = 0.0 if single(x) else PI_LOW
    outer = 2.0 * (r + tail)
    minus = t.cmp("lt", x, 0.0)
    side = t.select(minus, pi - (outer - low), outer)
    signed = t.select(minus, -r, r), t.select(minus, -tail, tail)
    return t.select(large, side, pi / 2 - (signed[0] - (low / 2 - signed[1])))


def _large(x: Tile) -> float:
    """Beyond it, exp(-x) is nothing beside exp(x), and exp(x) may overflow."""
    return 30.0 if single(x) else 300.0


def sinh(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    e = t.unary("expm1", a)
    half = t.unary("exp", a * 0.5)
    y = t.select(t.cmp("gt", a, _large(x)), half * 0.5 * half, (e + e / (e + 1.0)) * 0.5)
    return copy_sign(t, y, x)


def cosh(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    e = t.unary("exp", a)
    half = t.unary("exp", a * 0.5)
    return t.select(t.cmp("gt", a, _large(x)), half * 0.5 * half, e * 0.5 + 0.5 / e)


def asinh(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    far = 1e8 if single(x) else 1e18
    z = t.binary("min", a, far)
    z = z * z
    near = t.unary("log1p", a + z / (t.unary("sqrt", z + 1.0) + 1.0))
    return copy_sign(t, t.select(t.cmp("gt", a, far), t.unary("log", a) + LN2, near), x)


def acosh(t: TileBuilder, x: Tile) -> Tile:
    far = 1e8 if single(x) else 1e18
    d = t.binary("min", x, far) - 1.0
    near = t.unary("log1p", d + t.unary("sqrt", d * (d + 2.0)))
    y = t.select(t.cmp("gt", x, far), t.unary("log", x) + LN2, near)
    return t.select(t.cmp("lt", x, 1.0), float("nan"), y)


def atanh(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    return copy_sign(t, t.unary("log1p", (a + a) / (1.0 - a)) * 0.5, x)


def log10(t: TileBuilder, x: Tile) -> Tile:
    return t.unary("log", x) * (1.0 / LN10)
