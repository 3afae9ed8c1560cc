"""Rows of a file back from strips: the inverse of `strips.pack_strips`, for archives that must give their graph again.

Nothing is lost in strips, so the bytes are the file's own. Padding rows of the last strip are dropped.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import CompileError
from ...ops import quant
from .strips import LANES, STRIPS, StripFormat

Array = np.ndarray[Any, Any]


def unpack_strips(storage: Array, name: str, n: int) -> Array:
    """u8[n, row bytes] from u8[strips, blocks, bytes]."""
    f, fmt = STRIPS[name], quant.by_name(name)
    strips, blocks, _ = storage.shape
    if n == 0 or blocks == 0:
        return np.empty((n, blocks * fmt.bytes), np.uint8)
    codes = _codes(storage, f).reshape(strips * LANES, blocks, f.elements)[:n]

    def part(at: int, fields: int, size: int) -> Array:
        """u8[rows, blocks, fields * size]"""
        raw = storage[..., at : at + fields * LANES * size].reshape(strips, blocks, fields, LANES, size)
        return raw.transpose(0, 3, 1, 2, 4).reshape(strips * LANES, blocks, fields * size)[:n]

    out = np.empty((n, blocks, fmt.bytes), np.uint8)
    _join(name, f, codes, part, out)
    return out.reshape(n, blocks * fmt.bytes)


def _codes(storage: Array, f: StripFormat) -> Array:
    """u8[strips, lanes, blocks, sub-blocks, group of four columns, column]"""
    strips, blocks, _ = storage.shape
    words = storage[..., : f.plane_at]
    if f.low == 8:
        return words.reshape(strips, blocks, f.groups, 8, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    packed = words.reshape(strips, blocks, f.groups, 4, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-2).reshape(strips, LANES, blocks, f.groups, 8, 4)
    planes = storage[..., f.plane_at : f.scale_at].reshape(strips, blocks, f.groups, f.planes, LANES, 4)
    for p in range(f.planes):
        bits = (planes[:, :, :, p, :, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # [s, b, g, lane, 8, 4]
        codes |= bits.transpose(0, 3, 1, 2, 4, 5) << np.uint8(4 + p)
    return codes


def _join(name: str, f: StripFormat, codes: Array, part: Any, out: Array) -> None:
    """Put codes and the other fields where the file has them."""
    low = codes & np.uint8(15)

    def nibbles(run: int) -> Array:
        y = low.reshape(*low.shape[:2], -1, 2, run)
        return (y[..., 0, :] | (y[..., 1, :] << np.uint8(4))).reshape(*low.shape[:2], -1)

    fifth = codes >> np.uint8(4)
    match name:
        case "Q4_0":
            out[..., :2], out[..., 2:18] = part(f.scale_at, 1, 2), nibbles(16)
        case "Q4_1":
            out[..., :2], out[..., 2:4], out[..., 4:20] = part(f.scale_at, 1, 2), part(f.minimum_at, 1, 2), nibbles(16)
        case "Q5_0":
            out[..., :2], out[..., 6:22] = part(f.scale_at, 1, 2), nibbles(16)
            out[..., 2:6] = np.packbits(fifth, axis=-1, bitorder="little")
        case "Q5_1":
            out[..., :2], out[..., 2:4], out[..., 8:24] = part(f.scale_at, 1, 2), part(f.minimum_at, 1, 2), nibbles(16)
            out[..., 4:8] = np.packbits(fifth, axis=-1, bitorder="little")
        case "Q8_0":
            out[..., :2], out[..., 2:34] = part(f.scale_at, 1, 2), codes ^ np.uint8(128)
        case "Q6_K":
            out[..., :128], out[..., 192:208], out[..., 208:210] = nibbles(64), part(f.scale_at, 16, 1), part(f.d_at, 1, 2)
            high = fifth.reshape(*codes.shape[:2], 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
            out[..., 128:192] = np.bitwise_or.reduce(high, axis=-2).reshape(*codes.shape[:2], 64)
        case "Q4_K" | "Q5_K":
            out[..., :2], out[..., 2:4] = part(f.d_at, 1, 2), part(f.dmin_at, 1, 2)
            out[..., 4:16] = _scales12(part(f.scale_at, 8, 1), part(f.minimum_at, 8, 1))
            out[..., 16 if name == "Q4_K" else 48 :] = nibbles(32)
            if name == "Q5_K":
                bits = fifth.reshape(*codes.shape[:2], 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
                out[..., 16:48] = np.bitwise_or.reduce(bits, axis=-2)
        case _:
            raise CompileError(f"strips: rows of {name} cannot be read back from strips")


def _scales12(sc: Array, mn: Array) -> Array:
    """The 12 bytes of six-bit scales and minimums, the inverse of `kquants.scale_min`."""
    first = sc[..., :4] | ((sc[..., 4:] & np.uint8(48)) << np.uint8(2))
    second = mn[..., :4] | ((mn[..., 4:] & np.uint8(48)) << np.uint8(2))
    third = (sc[..., 4:] & np.uint8(15)) | ((mn[..., 4:] & np.uint8(15)) << np.uint8(4))
    return np.concatenate([first, second, third], axis=-1)
