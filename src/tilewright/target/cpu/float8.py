"""Floats of eight bits: to f32 and back, half to even, as ml_dtypes does.

e4m3 has no infinities: 0x7f is NaN, and so is everything that rounds beyond 448. e5m2 is the upper half of an f16: it has infinities.
Both widen by shifting the bits into place and scaling by a power of two, which makes subnormals come out right.
"""

from __future__ import annotations

from dataclasses import dataclass

from .llvm_text import FunctionText, vector


@dataclass(frozen=True)
class Format:
    """`special`: the first code (without sign) that is no finite number; `over`: what too large numbers become; `nan`: a NaN."""

    mantissa: int
    bias: int
    special: int
    over: int
    nan: int


FORMATS = {"f8e4m3": Format(3, 7, 0x7F, 0x7F, 0x7F), "f8e5m2": Format(2, 15, 0x7C, 0x7C, 0x7E)}


def widen(f: FunctionText, name: str, n: int, x: str) -> str:
    """n lanes (0: a scalar) of eight-bit floats to f32, exact."""
    form, wide, fl = FORMATS[name], vector(n, "i32"), vector(n, "float")
    shift = 23 - form.mantissa
    raw = f.cast("zext", vector(n, "i8"), x, wide)
    code = f.op("and", wide, raw, f.splat(wide, 0x7F))
    magnitude = f.op("shl", wide, code, f.splat(wide, shift))
    scaled = f.op("fmul", fl, f.cast("bitcast", wide, magnitude, fl), f.splat(fl, 2.0 ** (127 - form.bias)))
    strange = f.icmp("uge", wide, code, f.splat(wide, form.special))
    # the full exponent, with the mantissa: for e4m3 it is never zero there, for e5m2 zero is infinity
    bits = f.select(wide, strange, f.op("or", wide, magnitude, f.splat(wide, 0x7F800000)), f.cast("bitcast", fl, scaled, wide))
    sign = f.op("shl", wide, f.op("and", wide, raw, f.splat(wide, 0x80)), f.splat(wide, 24))
    return f.cast("bitcast", wide, f.op("or", wide, bits, sign), fl)


def narrow(f: FunctionText, name: str, n: int, x: str) -> str:
    """n lanes of f32 to eight-bit floats."""
    form, wide, fl = FORMATS[name], vector(n, "i32"), vector(n, "float")
    shift, gap = 23 - form.mantissa, 127 - form.bias
    bits = f.cast("bitcast", fl, x, wide)
    magnitude = f.op("and", wide, bits, f.splat(wide, 0x7FFFFFFF))
    odd = f.op("and", wide, f.op("lshr", wide, magnitude, f.splat(wide, shift)), f.splat(wide, 1))
    nudged = f.op("add", wide, f.op("add", wide, magnitude, f.splat(wide, (1 << (shift - 1)) - 1)), odd)
    normal = f.op("lshr", wide, f.op("sub", wide, nudged, f.splat(wide, gap << 23)), f.splat(wide, shift))
    # adding a power of two lines the last bit of a subnormal up with f32's, rounding half to even on the way
    line = 24 - form.bias - form.mantissa
    sum_ = f.op("fadd", fl, f.cast("bitcast", wide, magnitude, fl), f.splat(fl, 2.0**line))
    tiny = f.op("sub", wide, f.cast("bitcast", fl, sum_, wide), f.splat(wide, (127 + line) << 23))
    out = f.select(wide, f.icmp("ult", wide, magnitude, f.splat(wide, (gap + 1) << 23)), tiny, normal)
    large = f.op("lshr", wide, nudged, f.splat(wide, shift))
    limit = form.special + (gap << form.mantissa)
    out = f.select(wide, f.icmp("uge", wide, large, f.splat(wide, limit)), f.splat(wide, form.over), out)
    out = f.select(wide, f.icmp("ugt", wide, magnitude, f.splat(wide, 0x7F800000)), f.splat(wide, form.nan), out)
    sign = f.op("and", wide, f.op("lshr", wide, bits, f.splat(wide, 24)), f.splat(wide, 0x80))
    return f.cast("trunc", wide, f.op("or", wide, out, sign), vector(n, "i8"))
