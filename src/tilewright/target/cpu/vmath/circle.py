"""sin, cos and tan of f32 for AVX-512, all in f32. What each step rounds away is carried along, so that little more than the last
rounding shows.

x = n pi/16 + r for sin and cos, with the sine and cosine of the 32 angles n pi/16 from tables in registers: sin(x) = S cos r + C sin r.
x = n pi/2 + r for tan: a polynomial of r, or for odd n minus its reciprocal. Arguments of 2^10 and beyond go to the functions of
vmath_trig_f32, which compute in f64; whether any lane has one is asked once for all parts.
"""
from __future__ import annotations

import math

import numpy as np

from .avx512 import _REST, _ROUND, _lookup32, _reciprocal14
from .base import V, by_cold_function, is_beyond, repaired
from .trig_f32 import FUNCTIONS as WIDE

_LIMIT = 2.0**10
_MAGIC = 1.5 * 2.0**23
_STEP = (0.19634954631328583, -5.464244168251753e-09, 3.204180085321362e-13)  # pi/16; n times the second, of 11 bits, is exact
_SIN = (-0.1666666567325592, 0.008330665528774261)  # (sin(r) / r - 1) / r^2 for |r| <= pi/32: 2^-37
_COS = (-0.4999999403953552, 0.04164799675345421)  # (cos(r) - 1) / r^2: 2^-34
# pi/2; n times the second, of 11 bits, is exact. All positive: taking away zero times them keeps the sign of a zero
_QUARTER = (1.570796251296997, 7.549533620476723e-08, 2.5633440682570896e-12)
# (tan(r) / r - 1) / r^2 for |r| <= pi/4: 2^-29
_TAN = (0.33333349227905273, 0.13332673907279968, 0.054059162735939026, 0.021284673362970352, 0.010831855237483978, 9.224140376318246e-05,
        0.004375822376459837)


def _tables(quarter: int) -> tuple[tuple[float, ...], ...]:
    """sin((n + 8 quarter) pi/16) and the cosine, each in two f32 numbers."""
    found: list[tuple[float, float]] = []
    for turn in (quarter, quarter + 1):
        for n in range(32):
            k = (n + 8 * turn) % 32
            exact = 0.0 if k % 16 == 0 else math.copysign(math.sin(min(k % 16, 16 - k % 16) * math.pi / 16), 16 - k)
            high = float(np.float32(exact))
            found.append((high, float(np.float32(exact - high))))
    return (*zip(*found[:32], strict=True), *zip(*found[32:], strict=True))


def _sine(x: V, quarter: int) -> V:
    t = x.fma(16 / math.pi, _MAGIC)
    n = t - _MAGIC
    a = n.fma(-_STEP[0], x)  # exact
    r = n.fma(-_STEP[1], a)
    low = n.fma(-_STEP[2], n.fma(-_STEP[1], a - r))  # what r's rounding lost, exactly, and the third part
    s, s_low, c, c_low = (_lookup32(t, entries) for entries in _tables(quarter))
    z = r * r
    y = c.fma(r, s)
    rest = c_low.fma(r, c.fma(r, s - y))
    rest = c.fma((r * z).fma(z.poly(_SIN), low), rest)
    rest = s.fma(z * z.poly(_COS), rest)
    return y + (rest + s_low)


def _repaired(fn: str, x: V, y: V) -> V:
    return repaired(is_beyond(x, _LIMIT), y, lambda: by_cold_function(f"tw.reduce_huge.wide.{fn}", x, WIDE[fn]))


def sin(x: V) -> V:
    """The sum loses the sign of zero: vfixupimmps puts x itself where it is zero."""
    table = x.f.splat("<16 x i32>", 0x100)
    y = _sine(x, 0).call("llvm.x86.avx512.mask.fixupimm.ps.512", x, ("<16 x i32>", table), ("i32", "0"), _REST[1], _ROUND)
    return _repaired("sin", x, y)


def cos(x: V) -> V:
    return _repaired("cos", x, _sine(x, 1))


def tan(x: V) -> V:
    t = x.fma(2 / math.pi, _MAGIC)
    n = t - _MAGIC
    a = n.fma(-_QUARTER[0], x)  # exact
    r = n.fma(-_QUARTER[1], a)
    excess = n.fma(_QUARTER[2], n.fma(_QUARTER[1], r - a))  # r less what it should be
    z = r * r
    slope = z.fma(1.6, 1.0)  # 1 / cos^2 r, well enough for the excess
    tail = (r * z).fma(z.poly(_TAN), -(excess * slope))
    y = r + tail
    rest = (r - y) + tail
    inverse = _reciprocal14(y)
    e = (-rest).fma(inverse, (-y).fma(inverse, 1.0))
    turned = (-inverse).fma(e.fma(e, e), -inverse)  # -1 / (y + rest)
    odd = (t.ints() & 1).eq(1)
    return _repaired("tan", x, odd.choose(turned, y))


FUNCTIONS = {"sin": sin, "cos": cos, "tan": tan}
