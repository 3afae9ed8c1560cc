"""The gamma function's relatives in tile operations: log-gamma, digamma, Hurwitz zeta, polygamma. All compute in f64.

Arguments are moved up by their recurrences until the asymptotic (Stirling, Euler-Maclaurin) series converge to f64; negative ones are
reflected first.
"""
from __future__ import annotations

from fractions import Fraction
from math import comb, factorial, log, pi

from ..tiles import TileBuilder
from .vector_math import Tile, const, poly, single, wide


def bernoulli(count: int) -> list[Fraction]:
    """B(0) … B(count - 1)."""
    found: list[Fraction] = []
    for n in range(count):
        found.append(Fraction(1) if n == 0 else -sum((comb(n + 1, k) * b for k, b in enumerate(found)), Fraction(0)) / (n + 1))
    return found


B = bernoulli(27)
STIRLING = tuple(float(B[2 * k] / (2 * k * (2 * k - 1))) for k in range(1, 9))  # of log-gamma, in 1/x^2 after a factor 1/x
PSI = tuple(float(B[2 * k] / (2 * k)) for k in range(1, 9))  # of digamma, in 1/x^2 after a factor 1/x^2
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
