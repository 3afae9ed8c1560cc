"""The formats with 32 elements in a block and one scale: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0.

Element i of a block of 4 or 5 bits: its low four bits are in byte `i % 16` of `qs`, the low nibble for i < 16 and the high one
for i >= 16; its fifth bit is bit i of `qh` read as one little-endian u32.
"""

from __future__ import annotations

import numpy as np

from .base import F32, U8, BlockFormat, byte_bits, f16, inverse, layout, nibbles, register, round_half_away

D = ("d", 2, "float16", "scale")
M = ("m", 2, "float16", "minimum")
QH = ("qh", 4, "uint32", "bit i = fifth bit of element i")
QS = ("qs", 16, "uint8", "byte j: low nibble = element j, high nibble = element j + 16")


def _q4_0(b: U8) -> F32:
    q = nibbles(b[:, 2:], 16).view(np.int8) - np.int8(8)
    return f16(b[:, :2]) * q.astype(np.float32)


def _q4_1(b: U8) -> F32:
    return f16(b[:, :2]) * nibbles(b[:, 4:], 16).astype(np.float32) + f16(b[:, 2:4])


def _five(qh: U8, qs: U8) -> U8:
    return nibbles(qs, 16) | (byte_bits(qh) << np.uint8(4))


def _q5_0(b: U8) -> F32:
    q = _five(b[:, 2:6], b[:, 6:]).view(np.int8) - np.int8(16)
    return f16(b[:, :2]) * q.astype(np.float32)


def _q5_1(b: U8) -> F32:
    return f16(b[:, :2]) * _five(b[:, 4:8], b[:, 8:]).astype(np.float32) + f16(b[:, 2:4])


def _q8_0(b: U8) -> F32:
    return b[:, 2:].view(np.int8).astype(np.float32) * f16(b[:, :2])


def _half(x: F32) -> U8:
    return x.astype(np.float16).view(np.uint8)


def _symmetric(x: F32, bits: int) -> tuple[F32, U8]:
    """(scale, q): the element furthest from zero becomes -2^(bits-1), so that the sign of the scale is the opposite of its own."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    d = peak / np.float32(-(1 << (bits - 1)))
    q = np.trunc(x * inverse(d) + np.float32((1 << (bits - 1)) + 0.5))
    return d, np.clip(q.astype(np.uint8), 0, (1 << bits) - 1)


def _affine(x: F32, bits: int) -> tuple[F32, F32, U8]:
    low = x.min(axis=-1, keepdims=True)
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32((1 << bits) - 1)
    q = np.trunc((x - low) * inverse(d) + np.float32(0.5))
    return d, low, np.clip(q.astype(np.uint8), 0, (1 << bits) - 1)


def _pack(q: U8) -> U8:
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _fifth(q: U8) -> U8:
    return np.packbits(q >> np.uint8(4), axis=-1, bitorder="little")


def _to_q4_0(x: F32) -> U8:
    d, q = _symmetric(x, 4)
    return np.concatenate([_half(d), _pack(q)], axis=-1)


def _to_q4_1(x: F32) -> U8:
    d, low, q = _affine(x, 4)
    return np.concatenate([_half(d), _half(low), _pack(q)], axis=-1)


def _to_q5_0(x: F32) -> U8:
    d, q = _symmetric(x, 5)
    return np.concatenate([_half(d), _fifth(q), _pack(q)], axis=-1)


def _to_q5_1(x: F32) -> U8:
    d, low, q = _affine(x, 5)
    return np.concatenate([_half(d), _half(low), _fifth(q), _pack(q)], axis=-1)


def _to_q8_0(x: F32) -> U8:
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    q = round_half_away(x * inverse(d)).astype(np.int8).view(np.uint8)
    return np.concatenate([_half(d), q], axis=-1)


Q4_0 = register(BlockFormat("Q4_0", 2, 32, 18, "w = d * (q - 8)", layout(D, QS), _q4_0, _to_q4_0))
Q4_1 = register(BlockFormat("Q4_1", 3, 32, 20, "w = d * q + m", layout(D, M, QS), _q4_1, _to_q4_1))
Q5_0 = register(BlockFormat("Q5_0", 6, 32, 22, "w = d * (q - 16)", layout(D, QH, QS), _q5_0, _to_q5_0))
Q5_1 = register(BlockFormat("Q5_1", 7, 32, 24, "w = d * q + m", layout(D, M, QH, QS), _q5_1, _to_q5_1))
Q8_0 = register(BlockFormat("Q8_0", 8, 32, 34, "w = q * d", layout(D, ("qs", 32, "int8", "byte j = element j, signed")), _q8_0, _to_q8_0))
