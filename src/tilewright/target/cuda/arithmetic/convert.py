"""Conversions between dtypes on PTX registers. f16 and bf16 are 16 raw bits in a register and become f32 for arithmetic."""

from __future__ import annotations

from ....core.dtypes import DType, bf16, f16, f32
from ...cpu import arithmetic
from .scalar import Scalars


def convert(f: Scalars, source: DType, target: DType, x: str) -> str:
    if source is target:
        return x
    if source in (bf16, f16):
        wide = widen(f, source, x)
        return wide if target is f32 else convert(f, f32, target, wide)
    if target in (bf16, f16):
        return narrow(f, target, convert(f, source, f32, x))
    if not source.is_float and not source.is_bool and target.is_bool and source.itemsize < 4:
        return f.icmp("ne", f"i{8 * source.itemsize}", x, "0")
    return arithmetic.convert(f, source, target, 0, x)


def widen(f: Scalars, source: DType, x: str) -> str:
    if source is f16:
        return f.k.value("float", f"cvt.f32.f16 {{}}, {x};")
    return f.k.value("float", f"mov.b32 {{}}, {{zero16, {x}}};".replace("zero16", zero16(f)))


def zero16(f: Scalars) -> str:
    """A 16-bit register that holds zero: the low half of a widened bf16."""
    found = getattr(f, "_zero16", None)
    if found is None:
        found = f._zero16 = f.k.reg("half")  # type: ignore[attr-defined]
        f.k.prologue.append(f"  mov.b16 {found}, 0;")
    return str(found)


def narrow(f: Scalars, target: DType, x: str) -> str:
    """f32 to a 16-bit float, half to even."""
    if not x.startswith("%"):
        x = f.k.value("float", f"mov.f32 {{}}, {x};")
    return f.k.value("half", f"cvt.rn.{target.name}.f32 {{}}, {x};")


def narrow_pair(f: Scalars, target: DType, low: str, high: str) -> tuple[str, str]:
    """Two at once: one instruction."""
    both = f.k.value("i32", f"cvt.rn.{target.name}x2.f32 {{}}, {high}, {low};")
    a, b = f.k.reg("half"), f.k.reg("half")
    f.k.emit(f"mov.b32 {{{a}, {b}}}, {both};")
    return a, b
