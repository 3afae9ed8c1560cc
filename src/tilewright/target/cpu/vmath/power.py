"""x to the power y, with the special cases of IEEE 754 `pow`. f32 computes in f64; f64 carries log2(x) in two doubles."""
from __future__ import annotations

import math

from .base import LOG2E, V, fast_two_sum, halves_scale, mantissa_exponent, two_prod, two_sum
from .f64 import MAGIC, exp2_sum
from .rounding import trunc

_LOG2E_TAIL = 2.0355273740931033e-17  # log2(e) - f64(log2(e))
_THIRDS, _THIRDS_TAIL = 2.0 / 3.0, 3.700743415417188e-17
# log2(m) / s in s^2, s = (m - 1) / (m + 1): 2^-45
_LOG2_SHORT = (2.8853900817778495, 0.9617966941143078, 0.5770779420655431, 0.41220928459130607, 0.31990429788994074, 0.28292120485395217)
# (2^r - 1) / r for |r| <= 1/2: 2^-40
_EXP2_SHORT = (0.6931471805482131, 0.24022650698110806, 0.05550410935263472, 0.00961812861605765, 0.0013333454863045547,
               0.00015403825518046536, 1.5309155582293714e-05, 1.3178920579787157e-06)
_FIFTHS, _FIFTHS_TAIL = 2.0 / 5.0, -2.2204460492503132e-17
# (2 atanh(s) - 2s - 2/3 s^3 - 2/5 s^5) / s^7 in s^2: 2^-69
_LOG_REST = (0.285714285714286, 0.22222222222140214, 0.18181818226283933, 0.1538460635588322, 0.13334204465177676, 0.1172173172487519,
             0.11567352004969929)


def _short(a: V, y: V) -> V:
    """a^y for positive finite f32 a."""
    m, e = mantissa_exponent(a.cast("fpext", "double"), subnormals=False)
    s = (m - 1.0) / (m + 1.0)
    x = (s.fma((s * s).poly(_LOG2_SHORT), e) * y.cast("fpext", "double")).at_most(200.0).at_least(-200.0)
    t = x + MAGIC
    power = (x - (t - MAGIC)).poly((1.0, *_EXP2_SHORT))
    return halves_scale(power, t).cast("fptrunc", "float")


def _log2(a: V) -> tuple[V, V]:
    """log2(a) = high + low for positive finite f64 a, to about 2^-69: y multiplies the error, by 2^11 at most where |log2(a)| is 1/2.
    The terms up to s^5 are carried in two doubles each; from s^7 on one is exact enough."""
    m, e = mantissa_exponent(a)
    f = m - 1.0
    d, dl = two_sum(m.const(1.0), m)
    s = f / d
    p, rest = two_prod(s, d)
    sl = (((f - p) - rest) - s * dl) / d
    z, zl = two_prod(s, s)
    zl = zl + s * sl * 2.0
    c, cl = two_prod(s, z)
    cl = cl + (s * zl + sl * z)
    b, bl = two_prod(c, c.const(_THIRDS))
    bl = bl + (c * _THIRDS_TAIL + cl * _THIRDS)
    w, wl = two_prod(c, z)
    wl = wl + (c * zl + cl * z)
    v, vl = two_prod(w, w.const(_FIFTHS))
    vl = vl + (w * _FIFTHS_TAIL + wl * _FIFTHS)
    b, lost = fast_two_sum(b, v)
    h, low = fast_two_sum(s * 2.0, b)
    h, low = fast_two_sum(h, low + (sl * 2.0 + bl + (lost + vl + w * z * z.poly(_LOG_REST))))
    g, gl = two_prod(h, h.const(LOG2E))
    gl = gl + (h * _LOG2E_TAIL + low * LOG2E)
    high, lost = two_sum(e, g)
    return fast_two_sum(high, lost + gl)


def _long(a: V, y: V) -> V:
    """a^y for positive finite f64 a. Beyond 2^64 the power is 0, 1 or infinite however large y is."""
    y = y.at_most(2.0**64).at_least(-(2.0**64))
    high, low = _log2(a)
    p, rest = two_prod(high, y)
    rest = low.fma(y, rest)
    inside = p.abs() < 1100.0
    return exp2_sum(p.at_most(1100.0).at_least(-1100.0), inside.choose(rest, 0.0))


def power(x: V, y: V) -> V:
    a = x.abs()
    r = (_long if x.is_double else _short)(a, y)
    down = y < 0.0
    r = a.eq(0.0).choose(down.choose(x.const(math.inf), 0.0), r)
    r = a.eq(math.inf).choose(down.choose(x.const(0.0), math.inf), r)
    r = a.eq(1.0).choose(x.const(1.0), r)
    r = (x.is_nan() | y.is_nan()).choose(x.const(math.nan), r)
    whole = trunc(y).eq(y)
    half = y * 0.5
    odd = whole & (trunc(half).eq(half) ^ 1)
    r = odd.choose(r.sign_of(x), r)
    r = ((x < 0.0) & (a < math.inf) & (whole ^ 1)).choose(x.const(math.nan), r)
    return (y.eq(0.0) | x.eq(1.0)).choose(x.const(1.0), r)

