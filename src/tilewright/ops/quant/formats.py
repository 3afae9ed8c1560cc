"""The packed formats: GGUF's, and blocks of eight-bit floats. A line says all there is to know of a format (see `bits`, `base`)."""

from __future__ import annotations

import numpy as np

from . import rounding
from .base import BlockFormat, by_name, register
from .bits import U8, Array, Bits, Book, Integers, Reals, Scale, Trits, runs, whole

# What the 16 quantized values of four bits stand for. e2m1 floats are twice their value, so that they are integers; the scales are halved.
KVALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def real(byte: int, kind: str = "f16", count: int = 1) -> Reals:
    return Reals(Integers(whole(byte, {"f16": 2, "f32": 4}.get(kind, 1), count)), kind)


def _plain(name: str, type_id: int, size: int, dtype: str, encode: bool = False) -> None:
    how = (rounding.bf16 if dtype == "bfloat16" else rounding.plain) if encode else None
    register(BlockFormat(name, type_id, 1, size, Integers(whole(0, size)), dtype=dtype, encode=how))


_plain("F32", 0, 4, "float32", True)
_plain("F16", 1, 2, "float16", True)
_plain("BF16", 30, 2, "bfloat16", True)
for _name, _id, _size, _dtype in (("I8", 24, 1, "int8"), ("I16", 25, 2, "int16"), ("I32", 26, 4, "int32"), ("I64", 27, 8, "int64"),
                                  ("F64", 28, 8, "float64")):
    _plain(_name, _id, _size, _dtype)

# 32 elements with one scale. The fifth bits of Q5 are those of one word of 32 bits, in order.
D, M = Scale(real(0)), Scale(real(2))


def _five(byte: int, bias: int = 0) -> Integers:
    return Integers(runs(byte + 4, 4, 16, 32), Bits(8 * byte, 1, (4, 8), (8, 1)), bias=bias)


register(BlockFormat("Q4_0", 2, 32, 18, Integers(runs(2, 4, 16, 32), bias=-8), D, encode=rounding.symmetric))
register(BlockFormat("Q4_1", 3, 32, 20, Integers(runs(4, 4, 16, 32)), D, M, encode=rounding.affine))
register(BlockFormat("Q5_0", 6, 32, 22, _five(2, -16), D, encode=rounding.symmetric))
register(BlockFormat("Q5_1", 7, 32, 24, _five(4), D, M, encode=rounding.affine))
register(BlockFormat("Q8_0", 8, 32, 34, Integers(whole(2, 1, 32), signed=True), D, encode=rounding.signed))

# 256 elements in a super-block, cut in groups of 16 or 32 with small integer scales (and minimums) of their own. Those of Q4_K and Q5_K
# have six bits in 12 bytes: of group g < 4 in bytes g and g + 4, of later ones a nibble each in byte g + 4 and two bits above the former.
SCALES12 = Integers(Bits(32, 4, (2, 4), (64, 8)), Bits(36, 2, (2, 4), (2, 8)))
MINIMUMS12 = Integers(Bits(64, 4, (2, 4), (36, 8)), Bits(68, 2, (2, 4), (2, 8)))
SUPER = (Scale(real(0), SCALES12), Scale(real(2), MINIMUMS12, slope=-1.0))
register(BlockFormat(
    "Q2_K", 10, 256, 84, Integers(runs(16, 2, 32, 256)), Scale(real(80), Integers(Bits(0, 4, (16,), (8,)))),
    Scale(real(82), Integers(Bits(4, 4, (16,), (8,))), slope=-1.0), encode=rounding.super_affine))
register(BlockFormat(
    "Q3_K", 11, 256, 110, Integers(runs(32, 2, 32, 256), runs(0, 1, 32, 256), bias=-4),
    Scale(real(108), Integers(runs(96, 4, 8, 16), runs(104, 2, 4, 16), bias=-32)), encode=rounding.super_symmetric))
register(BlockFormat("Q4_K", 12, 256, 144, Integers(runs(16, 4, 32, 256)), *SUPER, encode=rounding.super_affine))
register(BlockFormat("Q5_K", 13, 256, 176, Integers(runs(48, 4, 32, 256), runs(16, 1, 32, 256)), *SUPER, encode=rounding.super_affine))
register(BlockFormat(
    "Q6_K", 14, 256, 210, Integers(runs(0, 4, 64, 256), runs(128, 2, 32, 256), bias=-32),
    Scale(real(208), Integers(whole(192, 1, 16), signed=True)), encode=rounding.super_symmetric))
register(BlockFormat(
    "Q8_K", 15, 256, 292, Integers(whole(4, 1, 256), signed=True), Scale(real(0, "f32")), encode=rounding.q8_k, spare=(whole(260, 2, 16),)))

# 1.5 to 4.5 bits a weight: groups of 4 or 8 weights are one point of a fixed codebook, with signs beside it.
NIBBLES16 = Bits(0, 4, (8, 2), (8, 4))


def _at(byte: int, b: Bits) -> Bits:
    return Bits(8 * byte + b.at, b.width, b.shape, b.strides)


def _half(by: Integers, step: float = 0.25) -> Scale:
    """d · (0.5 + integer) · step"""
    return Scale(real(0), by, step, step / 2)


def _signs(byte: int) -> Integers:
    return Integers(Bits(8 * byte, 1, (32, 8), (8, 1)))


def _packed(byte: int, stride: int) -> tuple[Integers, Integers]:
    """Words of four patterns of signs, seven bits each, and a scale of four bits above them."""
    return Integers(Bits(8 * byte, 7, (8, 4), (8 * stride, 7))), Integers(Bits(8 * byte + 28, 4, (8,), (8 * stride,)))


_patterns, _four = _packed(6, 8)
register(BlockFormat("IQ2_XXS", 16, 256, 66, Integers(Bits(16, 8, (8, 4), (64, 8))), _half(_four),
                     table=Book("IQ2_XXS", _patterns, True), encode=rounding.points))
register(BlockFormat(
    "IQ2_XS", 17, 256, 74, Integers(Bits(16, 9, (32,), (16,))), _half(Integers(_at(66, NIBBLES16))),
    table=Book("IQ2_XS", Integers(Bits(25, 7, (32,), (16,))), True), encode=rounding.points))
register(BlockFormat(
    "IQ2_S", 22, 256, 82, Integers(whole(2, 1, 32), Bits(8 * 66, 2, (8, 4), (8, 2))), _half(Integers(_at(74, NIBBLES16))),
    table=Book("IQ2_S", _signs(34)), encode=rounding.points))
_patterns, _four = _packed(66, 4)
register(BlockFormat("IQ3_XXS", 18, 256, 98, Integers(whole(2, 1, 64)), _half(_four, 0.5),
                     table=Book("IQ3_XXS", _patterns, True), encode=rounding.points))
register(BlockFormat(
    "IQ3_S", 21, 256, 110, Integers(whole(2, 1, 64), Bits(8 * 66, 1, (8, 8), (8, 1))),
    Scale(real(0), Integers(Bits(8 * 106, 4, (4, 2), (8, 4))), 2.0, 1.0), table=Book("IQ3_S", _signs(74)), encode=rounding.points))
register(BlockFormat(
    "IQ1_S", 19, 256, 50, Integers(whole(2, 1, 32), Bits(8 * 34, 3, (8, 4), (16, 3))),
    Scale(real(0), Integers(Bits(8 * 34 + 12, 3, (8,), (16,))), 2.0, 1.0),
    table=Book("IQ1_S", shifted=Integers(Bits(8 * 34 + 15, 1, (8,), (16,)))), encode=rounding.points))
register(BlockFormat(
    "IQ1_M", 29, 256, 56, Integers(whole(0, 1, 32), Bits(8 * 32, 3, (16, 2), (8, 4))),
    Scale(Reals(Integers(*(Bits(8 * 48 + 16 * i + 12, 4) for i in range(4)))), Integers(Bits(8 * 48, 3, (4, 4), (16, 3))), 2.0, 1.0),
    table=Book("IQ1_S", shifted=Integers(Bits(8 * 32 + 3, 1, (16, 2), (8, 4)))), encode=rounding.points))
register(BlockFormat("IQ4_NL", 20, 32, 18, Integers(runs(2, 4, 16, 32)), D, table=KVALUES, encode=rounding.tabled))
register(BlockFormat(
    "IQ4_XS", 23, 256, 136, Integers(runs(8, 4, 16, 256)),
    Scale(real(0), Integers(Bits(32, 4, (4, 2), (8, 4)), Bits(16, 2, (8,), (2,)), bias=-32)), table=KVALUES, encode=rounding.tabled))

# Ternary weights, weights of one and two bits, and four-bit floats with shared scales
register(BlockFormat("TQ1_0", 34, 256, 54, Trits(((0, 5, 32), (32, 5, 16), (48, 4, 4))), Scale(real(52)), encode=rounding.ternary))
register(BlockFormat("TQ2_0", 35, 256, 66, Integers(runs(0, 2, 32, 256), bias=-1), Scale(real(64)), encode=rounding.ternary))
register(BlockFormat("MXFP4", 39, 32, 17, Integers(runs(1, 4, 16, 32)), Scale(real(0, "e8m0")), table=E2M1, encode=rounding.mxfp4))
register(BlockFormat("NVFP4", 40, 64, 36, Integers(runs(4, 4, 8, 64)), Scale(real(0, "ue4m3", 4)), table=E2M1, encode=rounding.nvfp4))
register(BlockFormat("Q1_0", 41, 128, 18, Integers(Bits(16, 1, (16, 8), (8, 1))), D, table=(-1.0, 1.0)))
register(BlockFormat("Q2_0", 42, 64, 18, Integers(Bits(16, 2, (16, 4), (8, 2)), bias=-1), D))

# Eight-bit floats in blocks of 128 with one f32 scale, under numbers that GGUF does not give to formats: weights with a scale per row, per
# 128 columns or per square of 128 × 128 are such rows, bit for bit.
F8 = Integers(whole(4, 1, 128)), Scale(real(0, "f32"))
register(BlockFormat("F8_E4M3", 1001, 128, 132, *F8, table="float8_e4m3fn", encode=rounding.small_float))
register(BlockFormat("F8_E5M2", 1002, 128, 132, *F8, table="float8_e5m2", encode=rounding.small_float))

# U4_16 … U8_256: four or eight bits in groups of columns with a scale and a minimum in f32, which is minus the zero point times the scale
GROUPS = (16, 32, 64, 128, 256)
for _bits in (4, 8):
    for _i, _group in enumerate(GROUPS):
        _size = _group * _bits // 8
        register(BlockFormat(
            f"U{_bits}_{_group}", 1100 + 10 * _bits + _i, _group, 8 + _size, Integers(runs(8, _bits, _size, _group)), Scale(real(0, "f32")),
            Scale(real(4, "f32")), encode=rounding.affine))


def pack_groups(values: Array, scale: Array, zero: Array, bits: int, group: int) -> tuple[U8, str]:
    """Rows u8[n, row bytes] and their format, of quantized values u8[n, k] that stand for `(values - zero) * scale`; scales and zero
    points are [n, k / group]."""
    f, d = by_name(f"U{bits}_{group}"), np.asarray(scale, np.float32).reshape(-1, 1)
    assert f.scale is not None and f.minimum is not None
    with np.errstate(over="ignore", invalid="ignore"):  # a file that makes no sense
        minimum = -(np.asarray(zero, np.float32).reshape(-1, 1) * d)
    blocks = f.pack(len(d), (f.scale.real, d), (f.minimum.real, minimum), (f.q, values.reshape(len(d), group)))
    return blocks.reshape(len(values), -1), f.name
