"""The regularised incomplete gamma functions: their formulas in tile operations, and the ops."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import pi
from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import Binary, f32, f64, i32
from ..pointwise.casts import Cast
from ..tiles import TileBuilder
from .vector_math import ARRAYS, STIRLING, B, Tile, alike, const, erfc, lgamma, poly, repeat, wide

# The regularised incomplete gamma functions in tile operations, in f64: P(a, x), the part of a gamma variable's probability below x, and Q
# = 1 - P.
# Three ways, of which one is selected. Below the middle the power series, from `a` on the continued fraction, both with as many steps as
# the slowest lane may need; around the middle of large `a`, where these would need thousands, Temme's uniform expansion (DLMF 8.12): the
# normal distribution and a series in 1/a whose coefficients are series in eta, eta^2 / 2 = x/a - 1 - log(x/a).
LARGE = 50.0  # `a` from which on the expansion serves the middle
MIDDLE = 0.3  # |x - a| / a of the middle
SERIES, FRACTION = 100, 60  # steps: 2e-15 for all that is left to them
POWERS = (16, 14, 12, 12, 10, 8, 6, 4)  # powers of eta for each power of 1/a: what is left out is below 2e-17 at a = LARGE
TERMS = len(POWERS)
BIG = 10.0  # `a` from which on Stirling's series serves the factor


@cache
def temme() -> tuple[tuple[float, ...], ...]:
    """Coefficients of the expansion: row k in powers of eta, for a^-k."""
    size = max(POWERS) + 2 * TERMS + 2
    mu = [Fraction(0), Fraction(1)]  # x/a - 1 in powers of eta, from eta (1 + mu) = mu mu'
    for n in range(2, size + 2):
        inner = sum((mu[i] * mu[n + 1 - i] * (n + 1 - i) for i in range(2, n)), Fraction(0))
        mu.append((mu[n - 1] - inner) / (n + 1))
    inverse = [Fraction(1)]  # coefficients of mu / eta
    for n in range(1, size + 1):
        inverse.append(-sum((mu[i + 1] * inverse[n - i] for i in range(1, n + 1)), Fraction(0)))
    pole = inverse[1:]  # 1/mu - 1/eta
    gamma = [Fraction(1)]  # gamma(a) / its leading part, in powers of 1/a: the exponential of Stirling's series
    stirling = _stirling(TERMS)
    for n in range(1, TERMS):
        gamma.append(sum((k * stirling[k] * gamma[n - k] for k in range(1, n + 1)), Fraction(0)) / n)
    rows, row = [], pole
    for k in range(TERMS):
        if k:
            row = [(n + 2) * row[n + 2] + (-1) ** k * gamma[k] * pole[n] for n in range(len(row) - 2)]
        rows.append(tuple(float(c) for c in row[: POWERS[k]]))
    return tuple(rows)


def _stirling(count: int) -> list[Fraction]:
    """Coefficients of 1/a^k in the logarithm of gamma(a) without its leading part."""
    return [Fraction(0) if k % 2 == 0 else B[k + 1] / (k * (k + 1)) for k in range(count)]


def _excess(t: TileBuilder, mu: Tile) -> Tile:
    """mu - log(1 + mu), exact to the last digits also around 0."""
    near = t.cmp("lt", t.unary("abs", mu), 0.35)
    m = t.select(near, mu, 0.0)
    s = m / (m + 2.0)
    z = s * s
    return t.select(near, m * s - 2.0 * s * z * poly(t, z, tuple(1 / (2 * k + 3) for k in range(13))), mu - t.unary("log1p", mu))


def incomplete(t: TileBuilder, a: Tile, x: Tile) -> tuple[Tile, Tile]:
    """(P, Q). a = 0 is the limit 1 and 0; NaN where one is negative, or both are 0 or infinite."""
    a, x = alike(t, wide(t, a), wide(t, x))
    one = const(t, a, 1.0)
    mu = (x - a) / a
    excess = _excess(t, mu)
    # the factor x^a e^-x / gamma(a + 1)
    big = t.cmp("ge", a, BIG)
    above, below = t.select(big, a, BIG), t.select(big, 1.0, a)
    inverse = 1.0 / above
    tail = inverse * poly(t, inverse * inverse, STIRLING)
    bell = t.unary("exp", -(above * excess)) / t.unary("sqrt", above * (2 * pi))
    factor = t.select(big, bell * t.unary("exp", -tail), t.unary("exp", below * t.unary("log", x) - x - lgamma(t, below + 1.0)))

    def power(n: Tile, term: Tile, total: Tile) -> tuple[Tile, Tile, Tile]:
        term = term * (x / n)
        return n + 1.0, term, total + term

    low = factor * repeat(t, SERIES, power, a + 1.0, one + a * 0.0, one + a * 0.0)[2]

    def fraction(n: Tile, down: Tile) -> tuple[Tile, Tile]:
        return n - 1.0, (x + 2.0 * n - 1.0 - a) - n * (n - a) / down

    high = factor * a / repeat(t, FRACTION, fraction, a * 0.0 + float(FRACTION), x + (2.0 * FRACTION + 1.0) - a)[1]
    # around the middle
    size = t.unary("sqrt", t.binary("max", 2.0 * excess, 0.0))
    eta = t.select(t.cmp("lt", mu, 0.0), -size, size)
    z = 1.0 / a
    rows = [poly(t, eta, row) for row in temme()]
    total = rows[-1]
    for row in reversed(rows[:-1]):
        total = total * z + row
    part, normal = bell * total, eta * t.unary("sqrt", a * 0.5)
    middle = t.binary("and", t.cmp("ge", a, LARGE), t.cmp("lt", t.unary("abs", mu), MIDDLE))
    first = t.cmp("lt", x, t.binary("max", a, 1.5))
    p = t.select(middle, 0.5 * erfc(t, -normal) - part, t.select(first, low, 1.0 - high))
    q = t.select(middle, 0.5 * erfc(t, normal) + part, t.select(first, 1.0 - low, high))
    return _edges(t, a, x, p, 0.0, 1.0), _edges(t, a, x, q, 1.0, 0.0)


def _edges(t: TileBuilder, a: Tile, x: Tile, y: Tile, bottom: float, top: float) -> Tile:
    """`bottom` where x is 0 or a infinite, `top` where x is infinite or a is 0; NaN where both, or out of the domain."""
    inf = float("inf")
    least = t.binary("or", t.cmp("eq", x, 0.0), t.cmp("eq", a, inf))
    most = t.binary("or", t.cmp("eq", a, 0.0), t.cmp("eq", x, inf))
    out = t.binary("or", t.cmp("lt", a, 0.0), t.cmp("lt", x, 0.0))
    out = t.binary("or", out, t.binary("and", least, most))
    out = t.binary("or", out, t.binary("or", t.unary("isnan", a), t.unary("isnan", x)))
    y = t.select(least, bottom, t.select(most, const(t, a, top), y))
    return t.select(out, float("nan"), y)


SAMPLES = [S(f32(3, 5), f32(5), low=(0.2, 0.1), high=(9, 12)), S(f64(4), f64(), low=(0.2, 0.1), high=(3, 4)),
           S(f32(7), f32(7), low=(60, 40), high=(90, 120)), S(f64(6), f64(6), low=(300, 290), high=(320, 330))]


def density(a: Value, x: Value) -> Value:
    """x^(a - 1) e^-x / gamma(a), the derivative of P in x. In f64: the terms of the exponent are large and cancel."""
    wide = [Cast(dtype=dt.f64)(v) for v in (a, x)]
    over = F.sub(wide[0], 1)
    flat = F.equal(over, 0)  # also where x is 0
    power = F.where(flat, 0, F.mul(over, F.log(F.where(flat, 1, wide[1]))))
    return F.emit(Cast(dtype=x.dtype), F.exp(F.sub(F.sub(power, wide[1]), F.one("lgamma", wide[0]))))


class IncompleteGamma(Binary):
    """A function of (a, x), a the shape."""

    part: ClassVar[int]
    errors = [E(i32(3), i32(3), match="needs float operands; cast first")]
    unsupported = dict.fromkeys(("vjp", "jvp"), NotSupported("the derivative by a has no closed form; that by x is there"))

    def ref(self, a: Any, x: Any) -> Any:
        with np.errstate(all="ignore"):
            wide = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
            return np.asarray(incomplete(ARRAYS, *wide)[self.part]).astype(np.asarray(a).dtype)

    def lower(self, t: TileBuilder, a: Any, x: Any) -> Any:
        return incomplete(t, a, x)[self.part]

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        if i == 0:
            raise UnsupportedError(f"{self.name}: the derivative with respect to its first operand has no closed form")
        slope = F.mul(g, density(*inputs))
        return F.neg(slope) if self.part else slope


@register
class Igamma(IncompleteGamma):
    """The lower one, P(a, x): how likely a gamma variable of shape a is below x."""

    public, aten = "igamma gammainc", "igamma special_gammainc"
    part = 0
    samples = SAMPLES


@register
class Igammac(IncompleteGamma):
    """The upper one, Q(a, x) = 1 - P(a, x), with its own digits where it is small."""

    public, aten = "igammac gammaincc", "igammac special_gammaincc"
    part = 1
    samples = SAMPLES
