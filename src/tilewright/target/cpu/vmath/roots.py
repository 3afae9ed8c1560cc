"""f32 square roots and reciprocals for AVX-512 from the 14-bit estimates: Intel's divider takes three times as long as two Newton steps.

sqrt and reciprocal are correctly rounded (the residual of the last step is exact), so they have the bits of the instructions themselves,
which a vector with any lane outside the middle of the range takes instead.
"""
from __future__ import annotations

from ..llvm_text import like
from .base import V, repaired

_REST: tuple[tuple[str, str], ...] = (("<16 x float>", "zeroinitializer"), ("i16", "-1"))  # no merge source, all lanes
_LOW, _HIGH = 0x0D800000, 0x72000000  # 2^-100 and 2^101: no step underflows or overflows


def _outside(size: V) -> V:
    """Whether floats with these bits are negative or not in the middle of the range."""
    off = size - _LOW
    span = off.const(_HIGH - _LOW)
    return V(size.f, like(off.ty, "i1"), tuple(size.f.icmp("ugt", off.ty, a, b) for a, b in zip(off.parts, span.parts, strict=True)))


def reciprocal(x: V) -> V:
    """Two steps; only for mantissas of ones the second ends on a tie and rounds it to the wrong side."""
    y = x.call("llvm.x86.avx512.rcp14.ps.512", *_REST)
    for _ in range(2):
        y = y.fma((-x).fma(y, 1.0), y)
    i = x.ints()
    return repaired(_outside(i & 0x7FFFFFFF) | ((i + 1) & 0x7FFFFF).eq(0), y, lambda: 1.0 / x)


def sqrt(x: V) -> V:
    y = x.call("llvm.x86.avx512.rsqrt14.ps.512", *_REST)
    g, h = x * y, y * 0.5
    r = (-h).fma(g, 0.5)
    g, h = g.fma(r, g), h.fma(r, h)
    return repaired(_outside(x.ints()), (-g).fma(g, x).fma(h, g), x.sqrt)


def rsqrt(x: V) -> V:
    """One step of third order: within a unit."""
    y = x.call("llvm.x86.avx512.rsqrt14.ps.512", *_REST)
    e = (-(x * y)).fma(y, 1.0)
    return repaired(_outside(x.ints()), (y * e).fma(e.fma(0.375, 0.5), y), lambda: 1.0 / x.sqrt())


FUNCTIONS = {"reciprocal": reciprocal, "sqrt": sqrt, "rsqrt": rsqrt}
