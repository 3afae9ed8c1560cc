"""f32 functions that need no more than SSE2: exponentials, logarithms, tanh, erf, sigmoid. All are branch-free and use no tables.

Polynomials are minimax fits (relative error beside each). Where a sum would lose the sign of zero, the sign of x is put back at the end.
"""
from __future__ import annotations

from .base import LOG2E, V, finish_log, halves_scale, mantissa_exponent, round_magic, tanh_quotient, two_sum

_LN2_HI, _LN2_LO = 0.693359375, -2.12194440054690583e-4  # n * _LN2_HI is exact for |n| < 2^13
_EXP = (0.49999994, 0.16666521, 0.041668385, 0.0083687175, 0.0013814679)  # (e^r - 1 - r) / r^2 for |r| <= ln2/2: 2^-28
_EXP2 = (0.6931472, 0.24022648, 0.055503324, 0.009618437, 0.0013398874, 0.00015353355)  # (2^r - 1) / r for |r| <= 1/2: 2^-29
# (log1p(f) - f) / f^2 and log2(1 + f) / f for |f| <= 1/3: 2^-28
_LOG = (-0.5, 0.3333321, -0.24999717, 0.20010747, -0.16682303, 0.14001173, -0.12167192, 0.14004701, -0.12948787)
_LOG2 = (1.442695, -0.7213476, 0.48089582, -0.36066878, 0.2887183, -0.24069986, 0.20169862, -0.1752618, 0.20323905, -0.18783535)
# erf(x) / x - 1 in x^2 for |x| <= 0.92: 2^-31; -log(erfc(a)) for a in 0.92 .. 3.95: 2^-29
_ERF_NEAR = (0.12837917, -0.37612635, 0.11283693, -0.026859248, 0.00520066, -0.000813848, 8.352253e-05)
_ERF_FAR = (0.00019569552, 1.1276755, 0.6371824, 0.103931434, -0.022226837, 0.0030431945, -0.00019593476)


def _reduce(x: V) -> tuple[V, V, V]:
    """x = n ln2 + r: (t, n, r), where t carries n for halves_scale."""
    magic = round_magic(x) + 254
    t = x.fma(LOG2E, magic)
    n = t - magic
    return t, n, n.fma(-_LN2_LO, n.fma(-_LN2_HI, x))


def exp(x: V) -> V:
    t, _, r = _reduce(x.at_most(89.0).at_least(-104.5))
    return halves_scale(r.poly((1.0, 1.0, *_EXP)), t)


def exp2(x: V) -> V:
    x = x.at_most(128.5).at_least(-150.5)
    magic = round_magic(x) + 254
    t = x + magic
    return halves_scale((x - (t - magic)).poly((1.0, *_EXP2)), t)


def expm1(x: V) -> V:
    """2^n (e^r - 1) + (2^n - 1), at half the size so that 2^128 does not overflow early; tiny x must not be halved."""
    t, n, r = _reduce(x.at_most(89.0).at_least(-25.0))
    tail = r * r * r.poly(_EXP)
    half = ((t.ints() - (127 + 1)) << 23).floats()  # 2^(n-1): t ends in n + 254
    s, lost = two_sum(half - 0.5, half * r)
    wide = (s + half.fma(tail, lost)) * 2.0
    return n.eq(0.0).choose(r + tail, wide).sign_of(x)


def log(x: V) -> V:
    m, e = mantissa_exponent(x)
    f = m - 1.0
    tail = (f * f).fma(f.poly(_LOG), e * _LN2_LO)
    return finish_log(x, e.fma(_LN2_HI, f + tail))


def log2(x: V) -> V:
    m, e = mantissa_exponent(x)
    f = m - 1.0
    return finish_log(x, f.fma(f.poly(_LOG2), e))


def log1p(x: V) -> V:
    """log of u = 1 + x, with what the sum lost added to the reduced argument (nothing is lost that matters from 2^100 on)."""
    u = x + 1.0
    _, lost = two_sum(x.const(1.0), x.at_most(2.0**100))
    m, e = mantissa_exponent(u, subnormals=False)
    inverse = ((127 - e.at_most(100.0).cast("fptosi", "i32")) << 23).floats()
    f = lost.fma(inverse, m - 1.0)
    tail = (f * f).fma(f.poly(_LOG), e * _LN2_LO)
    return finish_log(u, e.fma(_LN2_HI, f + tail)).sign_of(x)


def tanh(x: V) -> V:
    return tanh_quotient(expm1(x.abs().at_most(10.0) * -2.0)).sign_of(x)


def sigmoid(x: V) -> V:
    """e^min(x,0) / (1 + e^-|x|): never overflows, and keeps the relative error for negative x."""
    e = exp(-x.abs())
    return (x < 0.0).choose(e, 1.0) / (e + 1.0)


def erf(x: V) -> V:
    a = x.abs()
    z = x * x
    near = x.fma(z.poly(_ERF_NEAR), x)
    far = 1.0 - exp(-a.at_most(4.0).poly(_ERF_FAR))
    return (a > 0.92).choose(far.sign_of(x), near)


FUNCTIONS = {f.__name__: f for f in (exp, exp2, expm1, log, log2, log1p, tanh, sigmoid, erf)}
