"""Functions that no target has an instruction for, written once in tile operations: polynomials, signs, circular and hyperbolic inverses.

Every function takes the tile builder first. `ARRAYS` is a builder over NumPy arrays, so the same text is an op's reference in f64, which
the suite compares with PyTorch. f32 tiles compute in f32 (`narrow` coefficients) unless a function widens them itself. No branches:
both sides are computed and one is selected, so a lane's bits do not depend on its neighbours.

The error function's relatives in tile operations: erfc, its scaled form, inverses, and the normal distribution's logarithm.

The tails keep their relative accuracy: exp(-x^2) is taken of x's upper bits and of the rest apart, so that the square is exact.

The gamma function's relatives in tile operations: log-gamma, digamma, Hurwitz zeta, polygamma. All compute in f64.

Arguments are moved up by their recurrences until the asymptotic (Stirling, Euler-Maclaurin) series converge to f64; negative ones are
reflected first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb, factorial, log, pi, sqrt
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
    z, beyond = t.binary("min", a, far), t.cmp("gt", a, far)  # there asinh(x) is log(2 x), and log1p(x) is log(x)
    z = z * z
    near = a + z / (t.unary("sqrt", z + 1.0) + 1.0)
    return copy_sign(t, t.unary("log1p", t.select(beyond, a, near)) + t.select(beyond, t.full((), LN2, x.dtype), 0.0), x)


def acosh(t: TileBuilder, x: Tile) -> Tile:
    far = 1e8 if single(x) else 1e18
    d, beyond = t.binary("min", x, far) - 1.0, t.cmp("gt", x, far)
    near = d + t.unary("sqrt", d * (d + 2.0))
    y = t.unary("log1p", t.select(beyond, x, near)) + t.select(beyond, t.full((), LN2, x.dtype), 0.0)
    return t.select(t.cmp("lt", x, 1.0), float("nan"), y)


def atanh(t: TileBuilder, x: Tile) -> Tile:
    a = t.unary("abs", x)
    return copy_sign(t, t.unary("log1p", (a + a) / (1.0 - a)) * 0.5, x)


def log10(t: TileBuilder, x: Tile) -> Tile:
    return t.unary("log", x) * (1.0 / LN10)


LARGE = 1e150  # beyond it erfc(a) exp(a^2) is 1 / (sqrt(pi) a)
K = 2.0  # the tail is smooth in (a - K) / (a + K)
# erfc(a) exp(a^2) (1 + 2a) in (a - K) / (a + K) for a >= 1/2
TAIL: dict[int, tuple[float, ...]] = {
    32: (1.2769784, -0.09276382, -0.16603033, 0.16405086, -0.054222215, -0.008028145, 0.0087427115, 0.0012335543, -0.0015229029,
         -0.00033629255, 0.0002773814),
    64: (1.2769783815525286, -0.09276382658574601, -0.16603039761528957, 0.16405128003344457, -0.05422000099201522, -0.008034015082602425,
         0.008722653874775742, 0.0012713389716476015, -0.0014568139276358862, -0.0004543409311974148, 0.00020636699327262944,
         0.00015104024486658793, -1.5084819433995409e-06, -3.643066323821109e-05, -1.3497029463539804e-05, 3.743599685674916e-06,
         5.2235506353529705e-06, 1.4087176978689909e-06, -6.483522462724535e-07, -6.690827105924468e-07, -4.2232218864918567e-07,
         -1.0360733605039265e-09, 3.973704939707672e-07, 2.4902905018874357e-08, -1.6769496726287904e-07, 4.7080876647785146e-08),
}
SMALL_EXP = (1.0, 1.0, 0.5, 1 / 6, 1 / 24)  # exp of what is below 2^-14
SMALL_ERF = tuple(2 / sqrt(pi) * (-1) ** k / (factorial(k) * (2 * k + 1)) for k in range(13))  # erf(a) / a in a^2 for a <= 1/2, in f64
# erfc(a) exp(a^2) (a + 3/2) in a / (a + 3/2) for f32: 2^-26
SHORT = tuple(1.5 * c for c in (
    1.0, -0.6925649642944336, -0.13529683649539948, 0.13606655597686768, 0.08338763564825058, 0.1284179538488388, -0.3511737883090973,
    0.5829669237136841, -0.7094280123710632, 0.4324883818626404, -0.09873039275407791))
# The y with 1 - erf(y)^2 = exp(-w): y / erf(y) in w - 2.5 for w <= 5, y in sqrt(w) - 3.2 for w <= 17.64, y / sqrt(w) in 1 / sqrt(w) above
INVERSE_NEAR = (1.501409360450329, 0.24664027905463662, -0.004177392875203149, -0.001252726391773229, 0.00021834938623976644,
                -4.9724196894547514e-06, -3.4639852676333717e-06, 4.6813134805534123e-07, 2.3335967195708108e-08, -8.931925970244222e-09)
INVERSE_MIDDLE = (3.0335824058387937, 1.0050210955864978, 0.005032519005700602, -0.002621310477560308, 0.0009130974965286257,
                  -0.00023372787079910904, 1.5272838463143966e-05, 3.150602668999858e-05, -1.454470644886233e-05)
# The normal quantile by Wichura's algorithm AS 241: numerators and denominators around the middle, and of the two parts of the tails
QUANTILE = (
    ((3.3871328727963666, 133.14166789178438, 1971.5909503065514, 13731.693765509461, 45921.95393154987, 67265.7709270087,
      33430.575583588128, 2509.0809287301227),
     (1.0, 42.313330701600911, 687.1870074920579, 5394.196021424751, 21213.794301586597, 39307.89580009271, 28729.085735721943,
      5226.495278852854)),
    ((1.4234371107496835, 4.6303378461565456, 5.769497221460691, 3.6478483247632045, 1.2704582524523684, 0.24178072517745061,
      0.022723844989269184, 0.0007745450142783414),
     (1.0, 2.053191626637759, 1.6763848301838038, 0.6897673349851, 0.14810397642748008, 0.015198666563616457, 0.0005475938084995345,
      1.0507500716444169e-09)),
    ((6.657904643501103, 5.463784911164114, 1.7848265399172913, 0.2965605718285049, 0.026532189526576124, 0.0012426609473880784,
      2.7115555687434876e-05, 2.0103343992922881e-07),
     (1.0, 0.599832206555888, 0.1369298809227358, 0.014875361290850615, 0.0007868691311456133, 1.8463183175100548e-05,
      1.4215117583164459e-07, 2.0442631033899397e-15)),
)


def _square_parts(t: TileBuilder, a: Tile) -> tuple[Tile, Tile]:
    """a^2 = h + l: h is the exact square of a's upper half, l is small."""
    upper = floats(t, t.binary("and", bits(t, a), -(1 << 12) if single(a) else -(1 << 27)))
    return upper * upper, (a - upper) * (a + upper)


def _scaled(t: TileBuilder, a: Tile) -> Tile:
    """erfc(a) exp(a^2) for a >= 1/2, up to a = `LARGE` (1e19 in f32)."""
    u = t.binary("min", a, 1e19 if single(a) else LARGE)
    return poly(t, (u - K) / (u + K), TAIL[width(a)]) / (u + u + 1.0)


def erfc(t: TileBuilder, x: Tile) -> Tile:
    """1 - erf(x), with a relative error of a few units also where it is tiny."""
    if single(x):
        return _erfc_single(t, x)
    a = t.unary("abs", x)
    z = t.binary("min", a, 28.0)
    high, low = _square_parts(t, z)
    far = t.unary("exp", -high) * (poly(t, -low, SMALL_EXP) * _scaled(t, z))
    y = t.select(t.cmp("lt", x, 0.0), 2.0 - far, far)
    near = t.fma(-x, poly(t, x * x, SMALL_ERF), const(t, x, 1.0))
    return t.select(t.cmp("lt", a, 0.5), near, t.select(t.unary("isnan", x), x, y))


def _erfc_single(t: TileBuilder, x: Tile) -> Tile:
    """One exponential and one quotient for all x: exp(-a^2) from the rounded square, with what the rounding lost to first order."""
    a = t.unary("abs", x)
    z = t.select(t.cmp("gt", a, 11.0), const(t, x, 11.0), a)  # NaN stays
    upper = floats(t, t.binary("and", bits(t, z), -(1 << 12)))
    square = z * z
    more = t.fma(upper - z, upper + z, square - upper * upper)
    e = t.unary("exp", -square)
    w = 1.0 / (z + 1.5)
    far = t.fma(more, e, e) * (poly(t, z * w, SHORT) * w)
    return t.select(t.cmp("lt", x, 0.0), 2.0 - far, far)


def erfcx(t: TileBuilder, x: Tile) -> Tile:
    """erfc(x) exp(x^2): for large x it falls as 1 / x where erfc underflows."""
    v = wide(t, x)
    a = t.unary("abs", v)
    z = t.binary("min", a, 30.0)
    high, low = _square_parts(t, z)
    grown = t.unary("exp", high) * t.unary("exp", low)
    far = _scaled(t, t.binary("max", a, 0.5)) * (t.binary("min", a, LARGE) / a)  # it goes on as 1 / a, to 0 at infinity
    y = t.select(t.cmp("lt", v, 0.0), 2.0 * grown - far, far)
    return t.select(t.cmp("lt", a, 0.5), grown * (1.0 - t.unary("erf", v)), t.select(t.unary("isnan", v), v, y))


def _quantile(t: TileBuilder, q: Tile, p: Tile) -> Tile:
    """The y >= 0 that a standard normal variable exceeds with probability p = 1/2 - q, of 0 <= q < 1/2, to a few units in f64."""
    root = t.unary("sqrt", -t.unary("log", p))
    (top, bottom), (upper, lower) = ([poly(t, x, c) for c in pair]
                                     for x, pair in zip((0.180625 - q * q, root - 1.6), QUANTILE[:2], strict=True))
    middle = t.cmp("le", q, 0.425)
    y = t.select(middle, q * top, upper) / t.select(middle, bottom, lower)
    return where_any(t, t.cmp("gt", root, 5.0), y, lambda: poly(t, root - 5.0, QUANTILE[2][0]) / poly(t, root - 5.0, QUANTILE[2][1]))


def erfinv(t: TileBuilder, x: Tile) -> Tile:
    """The number whose error function is x; infinite at -1 and 1, NaN beyond."""
    if single(x):
        return _erfinv_single(t, x)
    a = t.unary("abs", x)
    y = _quantile(t, a * 0.5, (1.0 - a) * 0.5) * sqrt(0.5)
    return copy_sign(t, t.select(t.cmp("eq", a, 1.0), float("inf"), y), x)  # NaN, also beyond 1, comes from the logarithm


def _erfinv_single(t: TileBuilder, x: Tile) -> Tile:
    """In f32: w is at most 16, and what rounding does to it hardly shows, for y / erf(y) changes slowly with w."""
    a = t.unary("abs", x)
    w = -t.unary("log", (1.0 - a) * (1.0 + a))
    near = x * poly(t, w - 2.5, INVERSE_NEAR)
    far = poly(t, t.unary("sqrt", w) - 3.2, INVERSE_MIDDLE)
    far = t.select(t.cmp("eq", a, 1.0), const(t, x, float("inf")), far)
    return t.select(t.cmp("ge", w, 5.0), copy_sign(t, far, x), near)  # NaN, also beyond 1, comes from the logarithm


def ndtri(t: TileBuilder, p: Tile) -> Tile:
    """The number below which a standard normal variable lies with probability p."""
    v = wide(t, p)
    y = copy_sign(t, _quantile(t, t.unary("abs", v - 0.5), t.binary("min", v, 1.0 - v)), v - 0.5)
    outside = t.binary("or", t.cmp("lt", v, 0.0), t.cmp("gt", v, 1.0))
    y = t.select(t.cmp("eq", v, 0.0), -float("inf"), t.select(t.cmp("eq", v, 1.0), float("inf"), y))
    return t.select(outside, float("nan"), y)


def log_ndtr(t: TileBuilder, x: Tile) -> Tile:
    """The logarithm of the normal distribution function, also far out where that underflows."""
    v = wide(t, x)
    s = v * sqrt(0.5)
    a = t.unary("abs", s)
    low = t.unary("log", 0.5 * _scaled(t, t.binary("max", a, 0.5))) - s * s
    return t.select(t.cmp("lt", v, -1.0), low, t.unary("log1p", erfc(t, s) * -0.5))


def bernoulli(count: int) -> list[Fraction]:
    """B(0) … B(count - 1)."""
    found: list[Fraction] = []
    for n in range(count):
        found.append(Fraction(1) if n == 0 else -sum((comb(n + 1, k) * b for k, b in enumerate(found)), Fraction(0)) / (n + 1))
    return found


B = bernoulli(27)
STIRLING = tuple(float(B[2 * k] / (2 * k * (2 * k - 1))) for k in range(1, 9))  # log-gamma's series in 1/x^2 after a factor 1/x
PSI = tuple(float(B[2 * k] / (2 * k)) for k in range(1, 9))  # digamma's series in 1/x^2 after a factor 1/x^2
UP, UP_SINGLE = 10, 8  # steps of the recurrences
# sin(pi x) / x in x^2 for |x| <= 1/2: 2^-35
SIN_PI = (3.141592653522933, -5.167712762023639, 2.550163237051868, -0.5992512899185278, 0.082046278437761, -0.00702181605168013)


def sin_pi(t: TileBuilder, x: Tile) -> Tile:
    """sin(pi x) up to its sign, exact zeros at integers."""
    return t.unary("sin", (x - t.unary("round", x)) * pi)


def _stirling(t: TileBuilder, up: Tile, z: Tile) -> Tile:
    """log-gamma of a large number, z its reciprocal."""
    return (up - 0.5) * (t.unary("log", up) - 1.0) + ((0.5 * log(2 * pi) - 0.5) + z * poly(t, z * z, STIRLING))


def _lgamma_single(t: TileBuilder, x: Tile) -> Tile:
    """The same for f32, in f64: one quotient gives the reciprocal and the argument of one logarithm for both the recurrence and the
    reflection."""
    v = wide(t, x)
    minus = t.cmp("lt", v, 0.5)
    a = t.select(minus, 1.0 - v, v)
    low = t.cmp("lt", a, float(UP_SINGLE))
    product = a
    for k in range(1, UP_SINGLE):
        product = product * (a + float(k))
    up = t.select(low, a + float(UP_SINGLE), a)
    r = v - t.unary("round", v)
    sine = t.select(minus, t.unary("abs", r * poly(t, r * r, SIN_PI)), 1.0)
    inverse = 1.0 / (up * sine)
    above = _stirling(t, up, inverse * sine)
    rest = t.unary("log", t.select(low, product, 1.0) * (inverse * up))
    y = t.select(minus, (log(pi) - above) + rest, above - rest)
    pole = t.binary("or", t.cmp("eq", sine, 0.0), t.unary("isinf", v))
    return t.select(pole, float("inf"), y)


def lgamma(t: TileBuilder, x: Tile) -> Tile:
    """log |gamma(x)|."""
    if single(x):
        return _lgamma_single(t, x)
    v = x
    minus = t.cmp("lt", v, 0.5)
    a = t.select(minus, 1.0 - v, v)
    low = t.cmp("lt", a, float(UP))
    product = a
    for k in range(1, UP):
        product = product * (a + float(k))
    up = t.select(low, a + float(UP), a)
    above = _stirling(t, up, 1.0 / up)
    y = above - t.select(low, t.unary("log", t.select(low, product, 1.0)), 0.0)
    y = t.select(t.cmp("eq", a, float("inf")), a, y)
    whole = t.binary("and", t.cmp("eq", v, t.unary("floor", v)), t.cmp("le", v, 0.0))
    mirrored = (log(pi) - t.unary("log", t.unary("abs", sin_pi(t, v)))) - y
    mirrored = t.select(t.cmp("lt", t.unary("abs", v), 2.0**-60), -t.unary("log", t.unary("abs", v)), mirrored)
    y = t.select(t.binary("or", t.cmp("eq", v, 1.0), t.cmp("eq", v, 2.0)), 0.0, y)
    return t.select(t.binary("or", whole, t.unary("isinf", v)), float("inf"), t.select(minus, mirrored, y))


def digamma(t: TileBuilder, x: Tile) -> Tile:
    """The derivative of log-gamma; NaN at negative integers, minus infinity at 0 (plus infinity at -0)."""
    v = wide(t, x)
    minus = t.cmp("lt", v, 0.0)
    a = t.select(minus, 1.0 - v, v)
    low = t.cmp("lt", a, float(UP))
    s = t.select(low, a, 1.0)
    above, below = const(t, v, 1.0), s  # sum of 1 / (a + k), as one fraction
    for k in range(1, UP):
        step = s + float(k)
        above, below = above * step + below, below * step
    up = t.select(low, a + float(UP), a)
    z = 1.0 / up
    z2 = z * z
    y = t.unary("log", up) - (z * 0.5 + z2 * poly(t, z2, PSI)) - t.select(low, above / below, 0.0)
    r = v - t.unary("trunc", v)
    mirrored = y - pi / t.unary("tan", r * pi)
    whole = t.cmp("eq", v, t.unary("floor", v))
    y = t.select(minus, t.select(whole, float("nan"), mirrored), y)
    return t.select(t.cmp("eq", v, 0.0), -1.0 / v, y)


def zeta(t: TileBuilder, s: Tile, q: Tile) -> Tile:
    """Hurwitz zeta, the sum of (q + k)^-s over k >= 0: by Euler and Maclaurin's formula from k = 9 on. s = 1 gives infinity, s < 1 NaN,
    whole q <= 0 infinity, other negative q NaN."""
    s, q = wide(t, s), wide(t, q)
    total, steps = t.binary("pow", q, -s), 9
    last = total
    for k in range(1, steps + 1):
        last = t.binary("pow", q + float(k), -s)
        total = total + last
    w = q + float(steps)
    total = total + last * w / (s - 1.0) - last * 0.5
    rising, power, inverse = s, last / w, 1.0 / (w * w)
    for k in range(1, 13):
        total = total + rising * power * (float(B[2 * k]) / factorial(2 * k))
        rising, power = rising * (s + float(2 * k - 1)) * (s + float(2 * k)), power * inverse
    huge = t.cmp("gt", q, 1e7)  # so is the tail's first term
    total = t.select(huge, t.binary("pow", q, 1.0 - s) / (s - 1.0) + 0.5 * t.binary("pow", q, -s), total)
    total = t.select(t.cmp("gt", s, 1e10), t.binary("pow", q, -s), total)  # the first term is all there is
    whole = t.cmp("eq", q, t.unary("floor", q))
    total = t.select(t.cmp("le", q, 0.0), t.select(whole, const(t, q, float("inf")), float("nan")), total)
    return t.select(t.cmp("eq", s, 1.0), float("inf"), t.select(t.cmp("lt", s, 1.0), float("nan"), total))


def cotangent_derivative(n: int) -> list[float]:
    """Coefficients of d^n/dx^n [pi cot(pi x)] as a polynomial in cot(pi x), lowest first."""
    p: list[float] = [0.0, pi]
    for _ in range(n):  # d/dx c^k = -k pi (c^(k-1) + c^(k+1))
        nxt = [0.0] * (len(p) + 1)
        for k, a in enumerate(p):
            if k:
                nxt[k - 1] -= a * k * pi
                nxt[k + 1] -= a * k * pi
        p = nxt
    return p


def polygamma(t: TileBuilder, x: Tile, n: int) -> Tile:
    """The n-th derivative of digamma, n >= 1: (-1)^(n+1) n! zeta(n + 1, x), negative x by reflection."""
    v = wide(t, x)
    minus = t.cmp("lt", v, 0.5)
    a = t.select(minus, 1.0 - v, v)
    low = t.cmp("lt", a, float(UP))
    start = t.select(low, a, 1.0)

    def power(u: Tile, count: int) -> Tile:
        out = u
        for _ in range(count - 1):
            out = out * u
        return out

    below = 1.0 / power(start, n + 1)
    for k in range(1, UP):
        below = below + 1.0 / power(start + float(k), n + 1)
    up = t.select(low, a + float(UP), a)
    z = 1.0 / up
    z2 = z * z
    # zeta(n + 1, up): the integral, half the first term, and the Bernoulli terms
    series = tuple(float(B[2 * k]) * factorial(n + 2 * k - 1) / (factorial(2 * k) * factorial(n)) for k in range(1, 10))
    tail = power(z, n) * (1.0 / n + z * 0.5 + z2 * poly(t, z2, series))
    total = (tail + t.select(low, below, 0.0)) * float((-1) ** (n + 1) * factorial(n))
    r = v - t.unary("round", v)
    cot = 1.0 / t.unary("tan", r * pi)
    mirrored = total * float((-1) ** n) - poly(t, cot, cotangent_derivative(n))
    whole = t.binary("and", t.cmp("eq", v, t.unary("floor", v)), t.cmp("le", v, 0.0))
    return t.select(whole, float("inf") * (-1) ** (n + 1), t.select(minus, mirrored, total))
