"""The IQ formats: 1.5 to 4.5 bits a weight. Groups of 4 or 8 weights are one point of a fixed codebook, with signs beside it.

The order of the multiplications is part of each definition: the tests compare bits.
"""

from __future__ import annotations

import numpy as np

from .base import F32, U8, Array, BlockFormat, byte_bits, f16, layout, nibbles, register, shifts
from .iq_tables import grid, signs

KVALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
DELTA = np.float32(0.125)


def _words(part: U8, dtype: type[np.uint16] | type[np.uint32]) -> Array:
    return np.ascontiguousarray(part).view(dtype)


def _sign_bits(part: U8) -> F32:
    """One bit a weight -> +1 or -1, f32[n, 8m]."""
    return np.where(byte_bits(part) == 0, np.float32(1), np.float32(-1)).astype(np.float32)


def _four_scales(part: U8) -> F32:
    """Two four-bit scales a byte, low nibble first, f32[n, 2m]."""
    return nibbles(part, 1).astype(np.float32)


def _wide(low: U8, high: Array) -> Array:
    """Indices of more than eight bits."""
    return low.astype(np.uint16) | (high.astype(np.uint16) << np.uint16(8))


def _packed_signs(words: Array) -> F32:
    """Four indices of seven bits in each u32 -> signs f32[n, m, 4, 8]."""
    index = (words[:, :, None] >> shifts(0, 7, 14, 21, dtype=np.uint32)) & np.uint32(127)
    found: F32 = signs()[index]
    return found


def _iq2_xxs(b: U8) -> F32:
    n = len(b)
    words = _words(b[:, 2:], np.uint32).reshape(n, 8, 2)
    db = f16(b[:, :2]) * (np.float32(0.5) + (words[..., 1] >> np.uint32(28)).astype(np.float32)) * np.float32(0.25)
    points = grid("IQ2_XXS")[np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(n, 8, 4)]
    return (db[:, :, None, None] * points * _packed_signs(words[..., 1])).reshape(n, 256)


def _iq2_xs(b: U8) -> F32:
    n = len(b)
    qs = _words(b[:, 2:66], np.uint16)
    db = f16(b[:, :2]) * (np.float32(0.5) + _four_scales(b[:, 66:])) * np.float32(0.25)
    points: F32 = grid("IQ2_XS")[qs & np.uint16(511)].reshape(n, 16, 2, 8)
    sign: F32 = signs()[qs >> np.uint16(9)].reshape(n, 16, 2, 8)
    return (db[:, :, None, None] * points * sign).reshape(n, 256)


def _iq2_s(b: U8) -> F32:
    n = len(b)
    db = f16(b[:, :2]) * (np.float32(0.5) + _four_scales(b[:, 74:])) * np.float32(0.25)
    high = (b[:, 66:74, None] >> shifts(0, 2, 4, 6)).reshape(n, 32) & np.uint8(3)
    points = grid("IQ2_S")[_wide(b[:, 2:34], high)].reshape(n, 16, 2, 8)
    return (db[:, :, None, None] * points * _sign_bits(b[:, 34:66]).reshape(n, 16, 2, 8)).reshape(n, 256)


def _iq3_xxs(b: U8) -> F32:
    n = len(b)
    words = _words(b[:, 66:], np.uint32)
    db = f16(b[:, :2]) * (np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)) * np.float32(0.5)
    points = grid("IQ3_XXS")[b[:, 2:66]].reshape(n, 8, 4, 8)
    return (db[:, :, None, None] * points * _packed_signs(words)).reshape(n, 256)


def _iq3_s(b: U8) -> F32:
    n = len(b)
    db = f16(b[:, :2]) * (np.float32(1) + np.float32(2) * _four_scales(b[:, 106:]))
    points = grid("IQ3_S")[_wide(b[:, 2:66], byte_bits(b[:, 66:74]))].reshape(n, 8, 4, 8)
    return (db[:, :, None, None] * points * _sign_bits(b[:, 74:106]).reshape(n, 8, 4, 8)).reshape(n, 256)


def _iq1_s(b: U8) -> F32:
    n = len(b)
    qh = _words(b[:, 34:], np.uint16)
    dl = f16(b[:, :2]) * (np.uint16(2) * ((qh >> np.uint16(12)) & np.uint16(7)) + np.uint16(1)).astype(np.float32)
    delta = np.where((qh & np.uint16(0x8000)) == 0, DELTA, -DELTA)[:, :, None, None]
    high = (qh[:, :, None] >> shifts(0, 3, 6, 9, dtype=np.uint16)).reshape(n, 32) & np.uint16(7)
    points = grid("IQ1_S")[_wide(b[:, 2:34], high)].reshape(n, 8, 4, 8)
    return (dl[:, :, None, None] * (points + delta)).reshape(n, 256)


def _iq1_m(b: U8) -> F32:
    n = len(b)
    words = _words(b[:, 48:], np.uint16)  # the top nibbles of the four words are the f16 scale
    parts = (words & np.uint16(0xF000)) >> shifts(12, 8, 4, 0, dtype=np.uint16)
    d = np.bitwise_or.reduce(parts, axis=-1, keepdims=True).view(np.float16).astype(np.float32)
    scales = (words[:, :, None] >> shifts(0, 3, 6, 9, dtype=np.uint16)).reshape(n, 16) & np.uint16(7)
    dl = d * (np.uint16(2) * scales + np.uint16(1)).astype(np.float32)
    qh = (b[:, 32:48, None] >> shifts(0, 4)).reshape(n, 32)
    delta = np.where((qh & np.uint8(8)) == 0, DELTA, -DELTA).reshape(n, 16, 2, 1)
    points = grid("IQ1_S")[_wide(b[:, :32], qh & np.uint8(7))].reshape(n, 16, 2, 8)
    return (dl[:, :, None, None] * (points + delta)).reshape(n, 256)


def _iq4_nl(b: U8) -> F32:
    return f16(b[:, :2]) * KVALUES[nibbles(b[:, 2:], 16)]


def _iq4_xs(b: U8) -> F32:
    n = len(b)
    high = (_words(b[:, 2:4], np.uint16) >> shifts(*range(0, 16, 2), dtype=np.uint16)).astype(np.uint8) & np.uint8(3)
    scales = (nibbles(b[:, 4:8], 1) | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    dl = (f16(b[:, :2]) * scales.astype(np.float32))[:, :, None]
    return (dl * KVALUES[nibbles(b[:, 8:], 16)].reshape(n, 8, 32)).reshape(n, 256)


D = ("d", 2, "float16", "scale")
SIGNS = ("signs", 32, "uint8", "bit k of byte j = sign of element 8j+k")
SCALE_BYTES = "two 4-bit scales a byte, low nibble first, of 16 elements each"
for _fmt in (
    BlockFormat(
        "IQ2_XXS",
        16,
        256,
        66,
        "w = (d * (0.5 + s) * 0.25) * point * sign",
        layout(D, ("qs", 64, "uint32", "two words per 32 elements: four point indices; four 7-bit sign patterns and s in the top 4 bits")),
        _iq2_xxs,
    ),
    BlockFormat(
        "IQ2_XS",
        17,
        256,
        74,
        "w = (d * (0.5 + s) * 0.25) * point * sign",
        layout(D, ("qs", 64, "uint16", "a word per 8 elements: 9 bits point, 7 bits sign pattern"), ("scales", 8, "uint8", SCALE_BYTES)),
        _iq2_xs,
    ),
    BlockFormat(
        "IQ2_S",
        22,
        256,
        82,
        "w = (d * (0.5 + s) * 0.25) * point * sign",
        layout(
            D,
            ("qs", 32, "uint8", "low 8 bits of the point of elements 8j .. 8j+7"),
            SIGNS,
            ("qh", 8, "uint8", "upper 2 bits of four points a byte"),
            ("scales", 8, "uint8", SCALE_BYTES),
        ),
        _iq2_s,
    ),
    BlockFormat(
        "IQ3_XXS",
        18,
        256,
        98,
        "w = (d * (0.5 + s) * 0.5) * point * sign",
        layout(
            D,
            ("qs", 64, "uint8", "point of elements 4j .. 4j+3"),
            ("scales_and_signs", 32, "uint32", "a word per 32 elements: four 7-bit sign patterns and s in the top 4 bits"),
        ),
        _iq3_xxs,
    ),
    BlockFormat(
        "IQ3_S",
        21,
        256,
        110,
        "w = (d * (1 + 2 s)) * point * sign",
        layout(
            D,
            ("qs", 64, "uint8", "low 8 bits of the point of elements 4j .. 4j+3"),
            ("qh", 8, "uint8", "bit k of byte j = ninth bit of point 8j+k"),
            SIGNS,
            ("scales", 4, "uint8", "two 4-bit scales a byte, low nibble first, of 32 elements each"),
        ),
        _iq3_s,
    ),
    BlockFormat(
        "IQ1_S",
        19,
        256,
        50,
        "w = (d * (2 s + 1)) * (point ± 0.125)",
        layout(
            D,
            ("qs", 32, "uint8", "low 8 bits of the point of elements 8j .. 8j+7"),
            ("qh", 16, "uint16", "a word per 32 elements: four times 3 upper bits, s in bits 12..14, bit 15: minus 0.125"),
        ),
        _iq1_s,
    ),
    BlockFormat(
        "IQ1_M",
        29,
        256,
        56,
        "w = (d * (2 s + 1)) * (point ± 0.125)",
        layout(
            ("qs", 32, "uint8", "low 8 bits of the point of elements 8j .. 8j+7"),
            ("qh", 16, "uint8", "a nibble per point: 3 upper bits, and bit 3: minus 0.125"),
            ("scales", 8, "uint16", "four 3-bit scales a word, of 16 elements each; the top nibbles are d, an f16"),
        ),
        _iq1_m,
    ),
    BlockFormat(
        "IQ4_NL",
        20,
        32,
        18,
        "w = d * table[q]",
        layout(D, ("qs", 16, "uint8", "byte j: low nibble = element j, high nibble = element j + 16")),
        _iq4_nl,
    ),
    BlockFormat(
        "IQ4_XS",
        23,
        256,
        136,
        "w = (d * (s - 32)) * table[q]",
        layout(
            D,
            ("scales_h", 2, "uint16", "upper 2 bits of the eight scales"),
            ("scales_l", 4, "uint8", "low 4 bits of the eight scales"),
            ("qs", 128, "uint8", "16 bytes per 32 elements: byte 16g+j: low nibble = element 32g+j, high nibble = element 32g+16+j"),
        ),
        _iq4_xs,
    ),
):
    register(_fmt)
