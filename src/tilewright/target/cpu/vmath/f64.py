"""f64 functions: exponentials, logarithms, tanh, erf, sigmoid. Branch-free, no tables. Within 1 ULP with and without FMA,
but for expm1 (1.2), tanh (2) and sigmoid (2.4).

What a reduction or a sum would round away is carried beside it as a second, small number ("low") and added last.
"""
from __future__ import annotations

from .base import LN2, LOG2E, V, finish_log, halves_scale, mantissa_exponent, tanh_quotient, two_prod, two_sum

LN2_HI, LN2_LO = 0.6931471803691238, 1.9082149292705877e-10  # 32 bits, so that n * LN2_HI is exact, and the rest
_LN2_TAIL = 2.3190468138462996e-17  # ln 2 - f64(ln 2)
_LOG2E_HI, _LOG2E_LO = 1.4426950407214463, 1.6751713164886512e-10
# (e^r - 1 - r) / r^2 for |r| <= ln2/2: 2^-64
_EXP = (0.5, 0.16666666666666682, 0.041666666666666095, 0.008333333333317034, 0.0013888888889115629, 0.00019841269896383773,
        2.480158692663994e-05, 2.75572348617784e-06, 2.755758183721049e-07, 2.5112036929269978e-08, 2.0826631553851436e-09)
# (2 atanh(s) - 2s) / s^3 in s^2 for |s| <= 0.1716: 2^-59
_LOG = (0.6666666666666735, 0.3999999999941109, 0.2857142874326371, 0.2222219847584909, 0.18183569747331255, 0.15313903052210914,
        0.14797509666436426)
# erf(x) / x - 1 in x^2 for |x| <= 1: 2^-62
_ERF_NEAR = (0.1283791670955126, -0.3761263890318375, 0.11283791670954857, -0.02686617064507289, 0.005223977624780817,
             -0.0008548326978739664, 0.00012055331036816308, -1.4925593505072639e-05, 1.6460972790360957e-06, -1.6350024962652322e-07,
             1.4657878225839854e-08, -1.1365660161522064e-09, 5.9452526018126e-11)
# erfc(a) e^(a^2) in (a - 3) / (a + 3) for a in 1 .. 6: 2^-65
_ERF_FAR = (0.17900115118138982, -0.3262335600430402, 0.24560380171248214, -0.1501159364954477, 0.07166583725483171,
            -0.024392499275302466, 0.004269131623138211, 0.0007076928433230838, -0.0005973815873337562, 4.403565297600396e-05,
            6.091478130243924e-05, -1.8353637956493874e-05, -1.4290880063416767e-05, -2.211091060168376e-06)
MAGIC = 1.5 * 2.0**52 + 2046  # leaves n + 2 * bias in the low bits, as halves_scale wants it


def _reduce(x: V) -> tuple[V, V, V, V]:
    """x = n ln2 + r + low: (t, n, r, low), where t carries n for halves_scale."""
    t = x.fma(LOG2E, MAGIC)
    n = t - MAGIC
    big, small = n.fma(-LN2_HI, x), n * LN2_LO
    r = big - small
    return t, n, r, (big - r) - small


def _exp_tail(r: V, low: V) -> V:
    """e^(r + low) - 1 - r"""
    return (r * r).fma(r.poly(_EXP), low)


def exp(x: V) -> V:
    t, _, r, low = _reduce(x.at_most(711.0).at_least(-746.0))
    return halves_scale((r + _exp_tail(r, low)) + 1.0, t)


def exp2_sum(x: V, low: V | None) -> V:
    """2^(x + low) for |low| far below 1 and x within about +-1100."""
    t = x + MAGIC
    f = x - (t - MAGIC)
    if low is not None:
        f, low = two_sum(f, low)
    r, rest = two_prod(f, f.const(LN2))
    tail = f.fma(_LN2_TAIL, rest)
    if low is not None:
        tail = tail + low * LN2
    return halves_scale((r + _exp_tail(r, tail)) + 1.0, t)


def exp2(x: V) -> V:
    return exp2_sum(x.at_most(1025.0).at_least(-1076.0), None)


def expm1(x: V) -> V:
    """2^n (r + tail) + (2^n - 1), at half the size so that 2^1024 does not overflow early; tiny x must not be halved."""
    t, n, r, low = _reduce(x.at_most(709.9).at_least(-45.0))
    tail = _exp_tail(r, low)
    half = ((t.ints() - (1023 + 1)) << 52).floats()  # 2^(n-1): t ends in n + 2046
    s, lost = two_sum(half - 0.5, half * r)
    wide = (s + half.fma(tail, lost)) * 2.0
    return n.eq(0.0).choose(r + tail, wide).sign_of(x)


def _log_parts(f: V) -> tuple[V, V]:
    """log(1 + f) = f - h + c: (h, c) with h = f^2 / 2."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * z.fma(z.poly(_LOG), h)


def log(x: V) -> V:
    m, e = mantissa_exponent(x)
    f = m - 1.0
    h, c = _log_parts(f)
    return finish_log(x, e.fma(LN2_HI, f - (h - e.fma(LN2_LO, c))))


def log2(x: V) -> V:
    """Multiplies by log2(e) in two parts; the high part of f - h keeps 21 bits, so that its product is exact."""
    m, e = mantissa_exponent(x)
    f = m - 1.0
    h, c = _log_parts(f)
    high = ((f - h).ints() & -(1 << 32)).floats()
    low = (f - high) - h + c
    product = high * _LOG2E_HI
    s, lost = two_sum(e, product)
    return finish_log(x, s + (lost + (low + high).fma(_LOG2E_LO, low * _LOG2E_HI)))


def log1p(x: V) -> V:
    """log of u = 1 + x, plus what the sum lost divided by u (nothing is lost that matters from 2^900 on)."""
    u = x + 1.0
    _, lost = two_sum(x.const(1.0), x.at_most(2.0**900))
    m, e = mantissa_exponent(u, subnormals=False)
    f = m - 1.0
    h, c = _log_parts(f)
    correction = lost / u.at_most(2.0**900)
    y = e.fma(LN2_HI, f - (h - (e.fma(LN2_LO, correction) + c)))
    return finish_log(u, y).sign_of(x)


def tanh(x: V) -> V:
    return tanh_quotient(expm1(x.abs().at_most(20.0) * -2.0)).sign_of(x)


def sigmoid(x: V) -> V:
    """e^min(x,0) / (1 + e^-|x|): never overflows, and keeps the relative error for negative x."""
    e = exp(-x.abs())
    return (x < 0.0).choose(e, 1.0) / (e + 1.0)


def erf(x: V) -> V:
    a = x.abs()
    near = x.fma((x * x).poly(_ERF_NEAR), x)
    b = a.at_most(6.0)
    far = 1.0 - exp(-(b * b)) * ((b - 3.0) / (b + 3.0)).poly(_ERF_FAR)
    return (a > 1.0).choose(far.sign_of(x), near)


FUNCTIONS = {f.__name__: f for f in (exp, exp2, expm1, log, log2, log1p, tanh, sigmoid, erf)}
