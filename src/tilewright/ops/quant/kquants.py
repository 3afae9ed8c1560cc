"""The K formats: 256 elements in a super-block, cut in groups of 16 or 32 with small integer scales of their own.

In Q4_K and Q5_K group g (elements 32g .. 32g+31) has a scale sc[g] and a minimum mn[g] of six bits, in the 12 bytes `scales`:

    g < 4:  sc = scales[g] & 63                                      mn = scales[g + 4] & 63
    g >= 4: sc = scales[g + 4] & 15 | (scales[g - 4] >> 6) << 4      mn = scales[g + 4] >> 4 | (scales[g] >> 6) << 4
"""

from __future__ import annotations

import numpy as np

from .base import F32, U8, BlockFormat, f16, layout, nibbles, pairs, register, shifts, single_bits

DM = (("d", 2, "float16", "scale of the scales"), ("dmin", 2, "float16", "scale of the minimums"))
D_LAST = ("d", 2, "float16", "scale of the scales")
SCALES12 = ("scales", 12, "uint8", "eight 6-bit scales and eight 6-bit minimums (see the module)")
QS128 = ("qs", 128, "uint8", "32 bytes per 64 elements: byte 32c+j: low nibble = element 64c+j, high nibble = element 64c+32+j")


def _q2_k(b: U8) -> F32:
    n = len(b)
    scales = b[:, :16]
    d, dmin = f16(b[:, 80:82]), f16(b[:, 82:84])
    dl = (d * (scales & np.uint8(15)).astype(np.float32))[:, :, None]
    ml = (dmin * (scales >> np.uint8(4)).astype(np.float32))[:, :, None]
    q = pairs(b[:, 16:80], 32).reshape(n, 16, 16).astype(np.float32)
    return (dl * q - ml).reshape(n, 256)


def _q3_k(b: U8) -> F32:
    n = len(b)
    low = (b[:, None, 96:104] >> shifts(0, 4)[:, None]).reshape(n, 16) & np.uint8(15)
    high = (b[:, None, 104:108] >> shifts(0, 2, 4, 6)[:, None]).reshape(n, 16) & np.uint8(3)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    dl = (f16(b[:, 108:110]) * scales.astype(np.float32))[:, :, None]
    offset = (single_bits(b[:, :32], 32) ^ np.uint8(1)) << np.uint8(2)  # a set bit means that 4 is not taken away
    q = pairs(b[:, 32:96], 32).view(np.int8) - offset.view(np.int8)
    return (dl * q.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


def scale_min(scales: U8) -> tuple[U8, U8]:
    """The 12 bytes of Q4_K and Q5_K -> (scales u8[n, 8], minimums u8[n, 8])."""
    a, c, e = scales[:, 0:4], scales[:, 4:8], scales[:, 8:12]
    sc = np.concatenate([a & np.uint8(63), (e & np.uint8(15)) | ((a >> np.uint8(2)) & np.uint8(48))], axis=-1)
    mn = np.concatenate([c & np.uint8(63), (e >> np.uint8(4)) | ((c >> np.uint8(2)) & np.uint8(48))], axis=-1)
    return sc, mn


def _scaled(b: U8, q: U8) -> F32:
    n = len(b)
    sc, mn = scale_min(b[:, 4:16])
    d = (f16(b[:, 0:2]) * sc.astype(np.float32))[:, :, None]
    dm = (f16(b[:, 2:4]) * mn.astype(np.float32))[:, :, None]
    return (d * q.reshape(n, 8, 32).astype(np.float32) - dm).reshape(n, 256)


def _q4_k(b: U8) -> F32:
    return _scaled(b, nibbles(b[:, 16:], 32))


def _q5_k(b: U8) -> F32:
    return _scaled(b, nibbles(b[:, 48:], 32) | (single_bits(b[:, 16:48], 32) << np.uint8(4)))


def _q6_k(b: U8) -> F32:
    n = len(b)
    scales = b[:, 192:208].view(np.int8).astype(np.float32)
    d = (f16(b[:, 208:210]) * scales)[:, :, None]
    q = (nibbles(b[:, :128], 64) | (pairs(b[:, 128:192], 32) << np.uint8(4))).view(np.int8) - np.int8(32)
    return (d * q.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


def _q8_k(b: U8) -> F32:
    d = np.ascontiguousarray(b[:, :4]).view(np.float32)
    return d * b[:, 4:260].view(np.int8).astype(np.float32)


def _to_q8_k(x: F32) -> U8:
    """ggml's quantize_row_q8_K_ref: the element furthest from zero becomes -127, and the scale has the opposite sign of it."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)
    inv = np.where(peak == 0, np.float32(0), np.float32(-127) / peak)
    q = np.minimum(np.rint(inv * x), 127).astype(np.int8)
    d = np.where(inv == 0, np.float32(0), np.float32(1) / inv)
    sums = q.reshape(len(x), 16, 16).sum(axis=-1, dtype=np.int16)
    return np.concatenate([d.view(np.uint8), q.view(np.uint8), sums.view(np.uint8)], axis=-1)


Q2_K = register(
    BlockFormat(
        "Q2_K",
        10,
        256,
        84,
        "w = (d * (scales[i/16] & 15)) * q - dmin * (scales[i/16] >> 4)",
        layout(
            ("scales", 16, "uint8", "byte g: scale (low nibble) and minimum (high) of elements 16g .. 16g+15"),
            ("qs", 64, "uint8", "32 bytes per 128 elements: byte 32c+j, bits 2k..2k+1 = element 128c+32k+j"),
            *DM,
        ),
        _q2_k,
    )
)
Q3_K = register(
    BlockFormat(
        "Q3_K",
        11,
        256,
        110,
        "w = (d * (sc[i/16] - 32)) * (q - (bit ? 0 : 4))",
        layout(
            ("hmask", 32, "uint8", "byte j, bit k = third bit of element 32k+j"),
            ("qs", 64, "uint8", "32 bytes per 128 elements: byte 32c+j, bits 2k..2k+1 = element 128c+32k+j"),
            ("scales", 12, "uint8", "sc[g]: low 4 bits in nibble g/8 of byte g%8, high 2 in bits 2(g/4).. of byte 8+g%4"),
            D_LAST,
        ),
        _q3_k,
    )
)
Q4_K = register(BlockFormat("Q4_K", 12, 256, 144, "w = (d * sc[i/32]) * q - dmin * mn[i/32]", layout(*DM, SCALES12, QS128), _q4_k))
Q5_K = register(
    BlockFormat(
        "Q5_K",
        13,
        256,
        176,
        "w = (d * sc[i/32]) * q - dmin * mn[i/32]",
        layout(*DM, SCALES12, ("qh", 32, "uint8", "byte j, bit k = fifth bit of element 32k+j"), QS128),
        _q5_k,
    )
)
Q6_K = register(
    BlockFormat(
        "Q6_K",
        14,
        256,
        210,
        "w = (d * scales[i/16]) * (q - 32)",
        layout(
            ("ql", 128, "uint8", "64 bytes per 128 elements: byte 64c+j: low nibble = element 128c+j, high nibble = element 128c+64+j"),
            ("qh", 64, "uint8", "32 bytes per 128 elements: byte 32c+j, bits 2k..2k+1 = upper bits of element 128c+32k+j"),
            ("scales", 16, "int8", "byte g: scale of elements 16g .. 16g+15, signed"),
            D_LAST,
        ),
        _q6_k,
    )
)
Q8_K = register(
    BlockFormat(
        "Q8_K",
        15,
        256,
        292,
        "w = d * q",
        layout(
            ("d", 4, "float32", "scale"),
            ("qs", 256, "int8", "byte j = element j, signed"),
            ("bsums", 32, "int16", "sums of 16 elements each (redundant)"),
        ),
        _q8_k,
        _to_q8_k,
    )
)
