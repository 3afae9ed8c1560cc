"""Rows of a file back from panels: the inverse of `panels.pack_strips`, for archives that must give their graph again.

Nothing is lost in panels, so the bytes are the file's own. Padding rows of the last panel are dropped.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops import quant
from .panels import LANES, PANELS, PanelFormat, panel_fields

Array = np.ndarray[Any, Any]


def unpack_panels(storage: Array, name: str, n: int) -> Array:
    """u8[n, row bytes] from u8[panels, blocks, bytes]."""
    f, fmt = PANELS[name], quant.by_name(name)
    panels, blocks, _ = storage.shape
    if n == 0 or blocks == 0:
        return np.empty((n, blocks * fmt.bytes), np.uint8)
    quantized = _quantized(storage, f).reshape(panels * LANES, blocks, f.elements)[:n]

    def part(at: int, fields: int, size: int) -> Array:
        """u8[rows, blocks, fields * size]"""
        raw = storage[..., at : at + fields * LANES * size].reshape(panels, blocks, fields, LANES, size)
        return raw.transpose(0, 3, 1, 2, 4).reshape(panels * LANES, blocks, fields * size)[:n]

    flipped = quantized ^ np.uint8(128) if fmt.q.signed else quantized
    fields = [(x, part(at, x.count, -(-x.width // 8)).reshape(n * blocks, -1)) for at, x in panel_fields(name)]
    numbers = [(x, raw.view(np.dtype(f"u{x.width // 8}")) if x.width >= 16 else raw) for x, raw in fields]
    return fmt.pack(n * blocks, (fmt.q, flipped.reshape(n * blocks, -1)), *numbers).reshape(n, blocks * fmt.bytes)


def _quantized(storage: Array, f: PanelFormat) -> Array:
    """u8[panels, lanes, blocks, sub-blocks, group of four columns, column]"""
    panels, blocks, _ = storage.shape
    words = storage[..., : f.plane_at]
    if f.low == 8:
        return words.reshape(panels, blocks, f.groups, 8, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    packed = words.reshape(panels, blocks, f.groups, 4, LANES, 4).transpose(0, 4, 1, 2, 3, 5)
    quantized = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-2).reshape(panels, LANES, blocks, f.groups, 8, 4)
    planes = storage[..., f.plane_at : f.scale_at].reshape(panels, blocks, f.groups, f.planes, LANES, 4)
    for p in range(f.planes):
        bits = (planes[:, :, :, p, :, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # [s, b, g, lane, 8, 4]
        quantized |= bits.transpose(0, 3, 1, 2, 4, 5) << np.uint8(4 + p)
    return quantized
