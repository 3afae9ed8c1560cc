"""Ternary weights (TQ1_0, TQ2_0), one- and two-bit weights (Q1_0, Q2_0) and four-bit floats with shared scales (MXFP4, NVFP4)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .base import F32, U8, Array, BlockFormat, byte_bits, f16, inverse, layout, nibbles, pairs, register, round_half_away

# e2m1 floats times two, so that they are integers; the scales are halved instead.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def _trits(part: U8, count: int, group: int) -> U8:
    """`count` base-3 digits of each byte, the highest first, as the fraction byte/256 holds them."""
    wrapped = part.reshape(len(part), -1, 1, group) * POWERS[:count, None]  # u8 arithmetic wraps on purpose
    return ((wrapped.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8).reshape(len(part), -1)


def _tq1_0(b: U8) -> F32:
    q = np.concatenate([_trits(b[:, :32], 5, 32), _trits(b[:, 32:48], 5, 16), _trits(b[:, 48:52], 4, 4)], axis=-1)
    return f16(b[:, 52:54]) * (q.view(np.int8) - np.int8(1)).astype(np.float32)


def _tq2_0(b: U8) -> F32:
    return f16(b[:, 64:66]) * (pairs(b[:, :64], 32).view(np.int8) - np.int8(1)).astype(np.float32)


def _ternary(x: F32) -> tuple[U8, U8]:
    """(scale as two bytes, digits 0 1 2)."""
    d = np.abs(x).max(axis=-1, keepdims=True)
    q = (round_half_away(x * inverse(d)).astype(np.int8) + np.int8(1)).astype(np.uint8)
    return d.astype(np.float16).view(np.uint8), q


def _to_tq1_0(x: F32) -> U8:
    d, q = _ternary(x)

    def pack(part: U8, count: int, group: int) -> Array:
        weights = np.array([81, 27, 9, 3, 1], np.uint8)[:count, None]
        whole = (part.reshape(len(x), -1, count, group) * weights).sum(axis=-2, dtype=np.uint16).reshape(len(x), -1)
        packed: Array = (whole * np.uint16(256) + np.uint16(242)) // np.uint16(243)
        return packed

    parts = [pack(q[:, :160], 5, 32), pack(q[:, 160:240], 5, 16), pack(q[:, 240:], 4, 4)]
    return np.concatenate([*(p.astype(np.uint8) for p in parts), d], axis=-1)


def _to_tq2_0(x: F32) -> U8:
    d, q = _ternary(x)
    parts = q.reshape(len(x), 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    return np.concatenate([np.bitwise_or.reduce(parts, axis=-2).reshape(len(x), 64), d], axis=-1)


def _e8m0_half(e: U8) -> F32:
    """2^(e-128); the two smallest are subnormal."""
    wide = e.astype(np.uint32)
    normal = (wide - np.uint32(1)) << np.uint32(23)  # wraps for e = 0, which the line below replaces
    return np.where(e < 2, np.uint32(0x00200000) << np.minimum(wide, 1), normal).astype(np.uint32).view(np.float32)


def _mxfp4(b: U8) -> F32:
    return _e8m0_half(b[:, :1]) * E2M1[nibbles(b[:, 1:], 16)]


def _to_mxfp4(x: F32) -> U8:
    peak = np.abs(x).max(axis=-1, keepdims=True)
    e = np.where(peak > 0, np.floor(np.log2(peak)) - 2 + 127, 0).astype(np.uint8)
    errors = np.abs(_e8m0_half(e)[:, :, None] * E2M1 - x[:, :, None])
    q = errors.argmin(axis=-1).astype(np.uint8)
    return np.concatenate([e, q[:, :16] | (q[:, 16:] << np.uint8(4))], axis=-1)


def _ue4m3_half(x: U8) -> F32:
    """An unsigned e4m3 float (bias 7), halved; 0x7f is NaN there and zero here. The top bit is not read."""
    exponent = ((x >> np.uint8(3)) & np.uint8(15)).astype(np.int32)
    mantissa = (x & np.uint8(7)).astype(np.float32)
    subnormal = mantissa * np.float32(2**-9)
    normal = (np.float32(1) + mantissa / np.float32(8)) * np.exp2(exponent.astype(np.float32) - np.float32(7))
    value = np.where(exponent == 0, subnormal, normal) * np.float32(0.5)
    return np.where((x == 0) | (x == 0x7F), np.float32(0), value).astype(np.float32)


def _nvfp4(b: U8) -> F32:
    d = _ue4m3_half(b[:, :4])[:, :, None]
    q = nibbles(b[:, 4:], 8).reshape(len(b), 4, 16)
    return (d * E2M1[q]).reshape(len(b), 64)


def _to_nvfp4(x: F32) -> U8:
    """Scales are max|x| / 6 of 16 elements, rounded to the nearest e4m3 (at most 448); codes the nearest of the 16 numbers."""
    groups = x.reshape(len(x), 4, 16)
    peak = np.abs(groups).max(axis=-1)
    d = np.minimum(peak / np.float32(6), np.float32(448)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    errors = np.abs((_ue4m3_half(d)[:, :, None, None] * E2M1) - groups[..., None])
    q = errors.argmin(axis=-1).astype(np.uint8)
    return np.concatenate([d, (q[..., :8] | (q[..., 8:] << np.uint8(4))).reshape(len(x), 32)], axis=-1)


def _q1_0(b: U8) -> F32:
    return np.where(byte_bits(b[:, 2:]) == 1, f16(b[:, :2]), -f16(b[:, :2])).astype(np.float32)


def _q2_0(b: U8) -> F32:
    return (pairs(b[:, 2:], 1).view(np.int8) - np.int8(1)).astype(np.float32) * f16(b[:, :2])


D = ("d", 2, "float16", "scale")
TQ1_0 = register(
    BlockFormat(
        "TQ1_0",
        34,
        256,
        54,
        "w = d * (q - 1)",
        layout(
            ("qs", 48, "uint8", "five base-3 digits a byte: 32 bytes for elements 32k+j, then 16 bytes for elements 160+16k+j"),
            ("qh", 4, "uint8", "four base-3 digits a byte: elements 240+4k+j"),
            D,
        ),
        _tq1_0,
        _to_tq1_0,
    )
)
TQ2_0 = register(
    BlockFormat(
        "TQ2_0",
        35,
        256,
        66,
        "w = d * (q - 1)",
        layout(("qs", 64, "uint8", "32 bytes per 128 elements: byte 32c+j, bits 2k..2k+1 = element 128c+32k+j"), D),
        _tq2_0,
        _to_tq2_0,
    )
)
MXFP4 = register(
    BlockFormat(
        "MXFP4",
        39,
        32,
        17,
        "w = 2^(e-128) * table[q]",
        layout(("e", 1, "uint8", "exponent"), ("qs", 16, "uint8", "byte j: low nibble = element j, high nibble = element j + 16")),
        _mxfp4,
        _to_mxfp4,
    )
)
NVFP4 = register(
    BlockFormat(
        "NVFP4",
        40,
        64,
        36,
        "w = d[i/16] / 2 * table[q]",
        layout(
            ("d", 4, "uint8", "byte g: unsigned e4m3 scale of elements 16g .. 16g+15"),
            ("qs", 32, "uint8", "8 bytes per 16 elements: byte 8g+j: low nibble = element 16g+j, high nibble = element 16g+8+j"),
        ),
        _nvfp4,
        _to_nvfp4,
    )
)
Q1_0 = register(
    BlockFormat("Q1_0", 41, 128, 18, "w = bit ? d : -d", layout(D, ("qs", 16, "uint8", "bit k of byte j = element 8j+k")), _q1_0)
)
Q2_0 = register(
    BlockFormat("Q2_0", 42, 64, 18, "w = (q - 1) * d", layout(D, ("qs", 16, "uint8", "bits 2k..2k+1 of byte j = element 4j+k")), _q2_0)
)
