"""The error function's relatives in tile operations: erfc, its scaled form, inverses, and the normal distribution's logarithm.

The tails keep their relative accuracy: exp(-x^2) is taken of x's upper bits and of the rest apart, so that the square is exact.
"""
from __future__ import annotations

from math import pi, sqrt

from ..tiles import TileBuilder
from .vector_math import Tile, bits, const, copy_sign, floats, poly, single, wide, width

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
# erfc(a) exp(a^2) (a + 3/2) in a / (a + 3/2) for f32: 2^-26
SHORT = tuple(1.5 * c for c in (
    1.0, -0.6925649642944336, -0.13529683649539948, 0.13606655597686768, 0.08338763564825058, 0.1284179538488388, -0.3511737883090973,
    0.5829669237136841, -0.7094280123710632, 0.4324883818626404, -0.09873039275407791))
# The y with 1 - erf(y)^2 = exp(-w): y / erf(y) in w - 2.5 for w <= 5, y in sqrt(w) - 3.2 for w <= 17.64, y / sqrt(w) in 1 / sqrt(w) above
INVERSE_NEAR = (1.501409360450329, 0.24664027905463662, -0.004177392875203149, -0.001252726391773229, 0.00021834938623976644,
                -4.9724196894547514e-06, -3.4639852676333717e-06, 4.6813134805534123e-07, 2.3335967195708108e-08, -8.931925970244222e-09)
INVERSE_MIDDLE = (3.0335824058387937, 1.0050210955864978, 0.005032519005700602, -0.002621310477560308, 0.0009130974965286257,
                  -0.00023372787079910904, 1.5272838463143966e-05, 3.150602668999858e-05, -1.454470644886233e-05)
INVERSE_FAR = (1.0000309886165217, -0.008344404521550249, -1.8411083909411468, 17.648734965755807, -206.07454478790515,
               2230.1997215385336, -19474.884152454037, 131981.02751858858, -679111.4290654892, 2591620.0045262487, -7087048.96220124,
               13106836.692225313, -14665595.621366395, 7490621.133560135)


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
    far = t.unary("exp", -high) * (t.unary("exp", -low) * _scaled(t, z))
    y = t.select(t.cmp("lt", x, 0.0), 2.0 - far, far)
    near = 1.0 - t.unary("erf", x)
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


def _inverse(t: TileBuilder, w: Tile, erf: Tile) -> Tile:
    """The y >= 0 with 1 - erf(y)^2 = exp(-w), to f32: erf is erf(y), wanted where w is small."""
    near = erf * poly(t, w - 2.5, INVERSE_NEAR)
    root = t.unary("sqrt", t.binary("max", w, 4.0))
    middle = poly(t, root - 3.2, INVERSE_MIDDLE)
    far = root * poly(t, 1.0 / root, INVERSE_FAR)
    return t.select(t.cmp("lt", w, 5.0), near, t.select(t.cmp("lt", root, 4.2), middle, far))


def _polished(t: TileBuilder, y: Tile, q: Tile) -> Tile:
    """One step of Halley's method on erfc(y) = q: three times the digits."""
    high, low = _square_parts(t, y)
    ratio = (erfc(t, y) - q) * (t.unary("exp", high) * t.unary("exp", low)) * (-sqrt(pi) / 2)
    return y - ratio / (1.0 + y * ratio)


def erfinv(t: TileBuilder, x: Tile) -> Tile:
    """The number whose error function is x; infinite at -1 and 1, NaN beyond."""
    if single(x):
        return _erfinv_single(t, x)
    v = x
    a = t.unary("abs", v)
    rest = 1.0 - a
    w = -t.select(t.cmp("lt", a, 0.5), t.unary("log1p", -a * a), t.unary("log", rest * (1.0 + a)))
    y = _inverse(t, w, a)
    high, low = _square_parts(t, y)
    ratio = (t.unary("erf", y) - a) * t.unary("exp", high + low) * (sqrt(pi) / 2)
    y = t.select(t.cmp("lt", a, 0.5), y - ratio / (1.0 + y * ratio), _polished(t, y, rest))
    y = t.select(t.cmp("eq", a, 1.0), float("inf"), t.select(t.cmp("gt", a, 1.0), float("nan"), y))
    return copy_sign(t, y, v)


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
    q = t.binary("min", v, 1.0 - v) * 2.0  # erfc of the result's size over sqrt(2)
    y = _inverse(t, -t.unary("log", q * (2.0 - q)), 1.0 - q)
    y = t.select(t.cmp("lt", q, 1e-306), y, _polished(t, y, q)) * sqrt(2)  # of a subnormal q the step would divide by 0
    y = t.select(t.cmp("lt", v, 0.5), -y, y)
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
