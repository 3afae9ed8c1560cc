"""f32 functions for AVX-512, 16 lanes at a time: exp, exp2, log, log2, sigmoid, tanh, erf. Tables of 16 or 32 entries live in
registers.

No division and no branches; NaN, infinities, signed zeros and subnormals need no extra instruction except
where a comment says so.
"""
from __future__ import annotations

from . import tables
from .base import LOG2E, V

LANES = 16
_F = "<16 x float>"
_MAGIC16 = 1.5 * 2.0**19  # one unit in the last place is 1/16
_LN2_HI, _LN2_LO = 0.6931471824645996, -1.904654299957768e-09  # f32(ln 2) and the rest
_EXP = (1.0, 0.5000162, 0.16666718)  # (e^r - 1) / r for |r| <= ln2/32: 2^-29
_EXP2 = (0.6931472, 0.24023429, 0.055502143)  # (2^r - 1) / r for |r| <= 1/32: 2^-29
# Logarithms of m in [3/4, 3/2), by m's first four fraction bits: 1/c, log(c) and log2(c) for a c in each interval, 1 on both sides of 1.
# The c were searched so that log(c) lies near an f32 number. Then m/c - 1 is in -1/32 .. 1/16.
_INVERSES = (1.0, 0.9151955, 0.8653794, 0.8198052, 0.7811353, 0.7433144, 0.71188456, 0.6797338,
             1.3060075, 1.2551628, 1.2068992, 1.1630908, 1.1238155, 1.0843915, 1.0495269, 1.0)
_LOGS = (0.0, 0.08861755, 0.14458726, 0.19868852, 0.24700688, 0.2966362, 0.33983952, 0.386054,
         -0.26697478, -0.22726531, -0.1880544, -0.15108097, -0.116729625, -0.08101898, -0.04833952, 0.0)
_LOG2S = (0.0, 0.1278481, 0.20859532, 0.28664693, 0.3563556, 0.42795557, 0.4902848, 0.5569582,
          -0.3851632, -0.32787454, -0.27130514, -0.21796376, -0.16840525, -0.11688568, -0.069739185, 0.0)
_LOG = (-0.5, 0.33334455, -0.25006118, 0.18844973)  # (log1p(f) - f) / f^2: 2^-28
_LOG2 = (1.442695, -0.7213476, 0.48091885, -0.3607658, 0.2710608)  # log2(1 + f) / f: 2^-29
_POWERS = tuple(2.0 ** (k / 16) for k in range(16))


_REST: tuple[tuple[str, str], ...] = ((_F, "zeroinitializer"), ("i16", "-1"))  # no merge source, all lanes
_ROUND = ("i32", "4")  # the current rounding mode


def _scalef(x: V, n: V) -> V:
    """x * 2^floor(n), with correct overflow, underflow, infinities and NaN."""
    return x.call("llvm.x86.avx512.mask.scalef.ps.512", n, *_REST, _ROUND)


def _nearer_zero(x: V, limit: float) -> V:
    """x with its magnitude cut to `limit`; NaN becomes the limit (vrangeps: smaller magnitude, sign of x)."""
    return x.call("llvm.x86.avx512.mask.range.ps.512", x.const(limit), ("i32", "2"), *_REST, _ROUND)


def _reciprocal14(x: V) -> V:
    return x.call("llvm.x86.avx512.rcp14.ps.512", *_REST)


def _table(index: V, entries: tuple[float, ...]) -> V:
    return V(index.f, index.ty, (index.f.constant(index.ty, entries),) * len(index.parts))


def _lookup16(index: V, entries: tuple[float, ...]) -> V:
    """entries[low 4 bits of index]"""
    return _table(index, entries).call("llvm.x86.avx512.permvar.sf.512", index.ints())


def _lookup32(index: V, entries: tuple[float, ...]) -> V:
    """entries[low 5 bits of index]"""
    return _table(index, entries[:16]).call("llvm.x86.avx512.vpermi2var.ps.512", index.ints(), _table(index, entries[16:]))


def _exponential(t: V, n: V, r: V, tail: tuple[float, ...]) -> V:
    """2^n e^r (or 2^n 2^r) for n in sixteenths: t carries n's low bits. Beyond the range r is garbage or NaN: cut it, n decides alone."""
    power = _lookup16(t, _POWERS)
    r = _nearer_zero(r, 1.0)
    return _scalef((power * r).fma(r.poly(tail), power), n)


def exp(x: V) -> V:
    t = x.fma(LOG2E, _MAGIC16)
    n = t - _MAGIC16
    r = n.fma(-_LN2_LO, n.fma(-_LN2_HI, x))
    return _exponential(t, n, r, _EXP)


def exp2(x: V) -> V:
    t = x + _MAGIC16
    n = t - _MAGIC16
    return _exponential(t, n, x - n, _EXP2)


def sigmoid(x: V) -> V:
    """e^min(x,0) / (1 + e^-|x|): never overflows, and keeps the relative error for negative x."""
    e = exp(-x.abs())
    inverse = _reciprocal14(e + 1.0)
    numerator = (x < 0.0).choose(e, 1.0)
    q = numerator * inverse
    # the remainder corrects the 14-bit quotient; numerator - q is exact, so 1 + e is never rounded
    return (-e).fma(q, numerator - q).fma(inverse, q)


def _piecewise(x: V, step: float, coefficients: tuple[tuple[float, ...], ...]) -> V:
    """An odd function that is 1 beyond interval 31."""
    magic = 1.5 * 2.0**23
    a = x.abs().at_most(31.49 * step)
    t = a.fma(1.0 / step, magic)
    h = (t - magic).fma(-step, a)
    return h.poly([_lookup32(t, c) for c in coefficients]).sign_of(x)


def tanh(x: V) -> V:
    return _piecewise(x, tables.TANH_STEP, tables.TANH)


def erf(x: V) -> V:
    return _piecewise(x, tables.ERF_STEP, tables.ERF)


def _mantissa_exponent(x: V) -> tuple[V, V, V]:
    """x = m 2^e with m in [3/4, 3/2): (m / c - 1, e, what carries m's index). Zero and infinity show in e, negative numbers as NaN in m."""
    m = x.call("llvm.x86.avx512.mask.getmant.ps.512", ("i32", "11"), *_REST, _ROUND)
    low, e = (v.call("llvm.x86.avx512.mask.getexp.ps.512", *_REST, _ROUND) for v in (m, x))
    index = (m.ints() >> 19).floats()
    return m.fma(_lookup16(index, _INVERSES), -1.0), e - low, index


def log(x: V) -> V:
    f, e, index = _mantissa_exponent(x)
    tail = (f * f).fma(f.poly(_LOG), e * 1.42860677e-06)  # ln 2 in two parts, both positive, so that an infinite e survives
    return e.fma(0.693145751953125, _lookup16(index, _LOGS) + (f + tail))


def log2(x: V) -> V:
    f, e, index = _mantissa_exponent(x)
    return f.fma(f.poly(_LOG2), _lookup16(index, _LOG2S)) + e


FUNCTIONS = {f.__name__: f for f in (exp, exp2, log, log2, sigmoid, tanh, erf)}
