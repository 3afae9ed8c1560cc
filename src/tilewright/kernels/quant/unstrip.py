"""Rows of a file back from strips: the inverse of `strips.pack_strips`, for archives that must give their graph again.

Nothing is lost in strips, so the bytes are the file's own. Padding rows of the last strip are dropped.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import quant
from .strips import LANES, STRIPS, StripFormat, strip_fields

Array = np.ndarray[Any, Any]


def unpack_strips(storage: Array, name: str, n: int) -> Array:
    """u8[n, row bytes] from u8[strips, blocks, bytes]."""
    f, fmt = STRIPS[name], quant.by_name(name)
    strips, blocks, _ = storage.shape
    if n == 0 or blocks == 0:
        return np.empty((n, blocks * fmt.bytes), np.uint8)
    quantized = _quantized(storage, f).reshape(strips * LANES, blocks, f.elements)[:n]

    def part(at: int, fields: int, size: int) -> Array:
        """u8[rows, blocks, fields * size]"""
        raw = storage[..., at : at + fields * LANES * size].reshape(strips, blocks, fields, LANES, size)
        return raw.transpose(0, 3, 1, 2, 4).reshape(strips * LANES, blocks, fields * size)[:n]

    flipped = quantized ^ np.uint8(128) if fmt.q.signed else quantized
    fields = [(x, part(at, x.count, -(-x.width // 8)).reshape(n * blocks, -1)) for at, x in strip_fields(name)]
    numbers = [(x, raw.view(np.dtype(f"u{x.width // 8}")) if x.width >= 16 else raw) for x, raw in fields]
    return fmt.pack(n * blocks, (fmt.q, flipped.reshape(n * blocks, -1)), *numbers).reshape(n, blocks * fmt.bytes)


def _quantized(storage: Array, f: StripFormat) -> Array:
    """u8[strips, lanes, blocks, sub-blocks, group of four columns, column]"""
    strips, blocks, _ = storage.shape
    words = storage[..., : f.plane_at]
    if f.low == 8:
        return words.reshape(strips, blocks, f.groups, 8, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    packed = words.reshape(strips, blocks, f.groups, 4, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    quantized = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-2).reshape(strips, LANES, blocks, f.groups, 8, 4)
    planes = storage[..., f.plane_at : f.scale_at].reshape(strips, blocks, f.groups, f.planes, LANES, 4)
    for p in range(f.planes):
        bits = (planes[:, :, :, p, :, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # [s, b, g, lane, 8, 4]
        quantized |= bits.transpose(0, 3, 1, 2, 4, 5) << np.uint8(4 + p)
    return quantized
