"""f32 square roots and reciprocals for AVX-512 from the 14-bit estimates: Intel's divider takes three times as long as two Newton steps.

sqrt and reciprocal are correctly rounded (the residual of the last step is exact), so they have the bits of the instructions themselves,
which a vector with any lane outside the middle of the range takes instead.
"""
from __future__ import annotations

from collections.abc import Callable

from ..llvm_text import like
from .base import V, any_lane

_REST: tuple[tuple[str, str], ...] = (("<16 x float>", "zeroinitializer"), ("i16", "-1"))  # no merge source, all lanes
_LOW, _HIGH = 0x0D800000, 0x72000000  # 2^-100 and 2^101: no step underflows or overflows


def _outside(size: V) -> V:
    """Whether floats with these bits are negative or not in the middle of the range."""
    off = size - _LOW
    span = off.const(_HIGH - _LOW)
    return V(size.f, like(off.ty, "i1"), tuple(size.f.icmp("ugt", off.ty, a, b) for a, b in zip(off.parts, span.parts, strict=True)))


def _guarded(x: V, bad: V, y: V, slow: Callable[[V], V]) -> V:
    """y, with the bad lanes replaced by slow(x), which is computed only where there are any."""
    f = x.f
    before, cold, after = f.block, f.fresh_label("edge"), f.fresh_label("inside")
    f.branch(any_lane(bad), cold, after)
    f.label(cold)
    mixed = bad.choose(slow(x), y)
    f.jump(after)
    f.label(after)
    return V(f, x.ty, tuple(f.phi(x.ty, [(a, before), (b, cold)]) for a, b in zip(y.parts, mixed.parts, strict=True)))


def reciprocal(x: V) -> V:
    """Two steps; only for mantissas of ones the second ends on a tie and rounds it to the wrong side."""
    y = x.call("llvm.x86.avx512.rcp14.ps.512", *_REST)
    for _ in range(2):
        y = y.fma((-x).fma(y, 1.0), y)
    i = x.ints()
    return _guarded(x, _outside(i & 0x7FFFFFFF) | ((i + 1) & 0x7FFFFF).eq(0), y, lambda x: 1.0 / x)


def sqrt(x: V) -> V:
    y = x.call("llvm.x86.avx512.rsqrt14.ps.512", *_REST)
    g, h = x * y, y * 0.5
    r = (-h).fma(g, 0.5)
    g, h = g.fma(r, g), h.fma(r, h)
    return _guarded(x, _outside(x.ints()), (-g).fma(g, x).fma(h, g), V.sqrt)


def rsqrt(x: V) -> V:
    """One step of third order: within a unit."""
    y = x.call("llvm.x86.avx512.rsqrt14.ps.512", *_REST)
    e = (-(x * y)).fma(y, 1.0)
    return _guarded(x, _outside(x.ints()), (y * e).fma(e.fma(0.375, 0.5), y), lambda x: 1.0 / x.sqrt())


FUNCTIONS = {"reciprocal": reciprocal, "sqrt": sqrt, "rsqrt": rsqrt}
