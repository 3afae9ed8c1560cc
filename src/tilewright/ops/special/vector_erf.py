"""The error function's relatives in tile operations: erfc, its scaled form, inverses, and the normal distribution's logarithm.

The tails keep their relative accuracy: exp(-x^2) is taken of x's upper bits and of the rest apart, so that the square is exact.
"""
from __future__ import annotations

from math import factorial, pi, sqrt

from ..tiles import TileBuilder
from .vector_math import Tile, bits, const, copy_sign, floats, poly, single, where_any, wide, width

LARGE = 1e150  # beyond it erfc(a) exp(a^2) is 1 / (sqrt(pi) a)
K = 2.0  # of the variable (a - K) / (a + K) in which the tail is smooth
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
