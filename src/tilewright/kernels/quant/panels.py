"""Packed matrices as the integer kernels read them: panels of 16 rows, one row per lane, values in groups of four columns.

A panel holds its (super-)blocks one after the other. In a block the values of 16 rows × 32 columns are words of 16 lanes; a word's
byte j belongs to column 4g + j of group g. Values of four bits: word t has group 2t in its low nibbles, 2t + 1 in its high ones.
Further bits are planes of one word per 32 columns and bit: bit 8j + g of a lane belongs to column 4g + j. Scales follow, 16 lanes
at a time. Nothing grows: only the six-bit scales of the K formats become bytes. Scales are f16, or f32 and one for all columns of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops import quant

LANES = 16
COLUMNS = 32
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PanelFormat:
    """Where things lie in one block of a panel (bytes), and how quantized values become numbers: w = scale * (code + bias) + minimum."""

    name: str
    elements: int  # columns of a block
    low: int  # bits of a code stored in words: 4 or 8
    planes: int  # further bits
    bias: int
    scales: int  # scales per 32 columns: 1, or 2 in Q6_K
    super_scales: bool  # scales are d * byte
    minimums: bool
    real: int = 2  # bytes of a float
    shared: bool = False  # one scale and minimum for all columns of a block

    @property
    def groups(self) -> int:
        """Sub-blocks of 32 columns."""
        return self.elements // COLUMNS

    @property
    def plane_at(self) -> int:
        return self.groups * COLUMNS * LANES * self.low // 8

    @property
    def scale_at(self) -> int:
        return self.plane_at + self.groups * self.planes * LANES * 4

    @property
    def minimum_at(self) -> int:
        return self.scale_at + (1 if self.shared else self.groups * self.scales) * LANES * (1 if self.super_scales else self.real)

    @property
    def d_at(self) -> int:
        return self.minimum_at + (self.minimums and (1 if self.shared else self.groups) * LANES * (1 if self.super_scales else self.real))

    @property
    def dmin_at(self) -> int:
        return self.d_at + (2 * LANES if self.super_scales else 0)

    @property
    def bytes(self) -> int:
        return self.dmin_at + (2 * LANES if self.super_scales and self.minimums else 0)


def panel_format(f: quant.BlockFormat) -> PanelFormat:
    """How the fields of a format are laid out: quantized values with a sign are stored with their top bit flipped."""
    assert f.scale is not None and isinstance(f.q, quant.Integers)
    low = 8 if f.q.width == 8 else 4
    bias = -128 if f.q.signed else f.q.bias
    scales = max(1, f.scale.groups * COLUMNS // f.elements)
    return PanelFormat(f.name, f.elements, low, f.q.width - low, bias, scales, f.scale.by is not None, f.minimum is not None,
                       f.scale.real.bits.width // 8, f.grouped)


PANELS = {f.name: panel_format(f) for f in quant.FORMATS.values() if f.exact or f.grouped}


def panel_shape(name: str, n: int, row_bytes: int) -> tuple[int, int, int]:
    """[panels, blocks, bytes] of a matrix u8[n, row bytes]."""
    return (-(-n // LANES), row_bytes // quant.by_name(name).bytes, PANELS[name].bytes)


def unit_bytes(name: str) -> int:
    """The packing kernels read rows in units of this size: a block need not be a multiple of four bytes."""
    return 4 if quant.by_name(name).bytes % 4 == 0 else 2


def pack_panels(raw: Array, name: str, out: Array, first: int, last: int) -> None:
    """Fill panels first … last-1 of `out` from rows of the file."""
    f, fmt = PANELS[name], quant.by_name(name)
    rows = raw[first * LANES : last * LANES]
    blocks = rows.reshape(len(rows), -1, fmt.bytes)
    if len(rows) % LANES:
        blocks = np.concatenate([blocks, np.zeros((-len(rows) % LANES, *blocks.shape[1:]), np.uint8)])
    quantized, parts = split_fields(name, blocks)
    panels, nb = last - first, blocks.shape[1]
    q = quantized.reshape(panels, LANES, nb, f.groups, 8, 4)  # [.., lane, block, sub-block, group, byte]
    target = out[first:last]
    if f.low == 8:
        words = q.transpose(0, 2, 3, 4, 1, 5)
    else:
        nibbles = q & np.uint8(15)
        words = (nibbles[..., 0::2, :] | (nibbles[..., 1::2, :] << np.uint8(4))).transpose(0, 2, 3, 4, 1, 5)
    target[..., : f.plane_at] = words.reshape(panels, nb, f.plane_at)
    if f.planes:
        bits = np.empty((panels, nb, f.groups, f.planes, LANES, 4), np.uint8)
        weights = (1 << np.arange(8)).astype(np.uint8)
        for p in range(f.planes):
            plane = (q >> np.uint8(4 + p)) & np.uint8(1)
            bits[:, :, :, p] = np.einsum("slbgkj,k->sbglj", plane, weights, dtype=np.uint8, casting="unsafe")
        target[..., f.plane_at : f.scale_at] = bits.reshape(panels, nb, -1)
    for at, part in parts:  # part: u8[rows, blocks, fields, bytes of a field]
        fields = part.reshape(panels, LANES, nb, *part.shape[2:]).transpose(0, 2, 3, 1, 4).reshape(panels, nb, -1)
        target[..., at : at + fields.shape[-1]] = fields


def split_fields(name: str, b: Array) -> tuple[Array, list[tuple[int, Array]]]:
    """Quantized values u8[rows, blocks, elements] and the other fields, u8[rows, blocks, fields, bytes], with their place in a panel."""
    fmt, (rows, blocks, size) = quant.by_name(name), b.shape
    flat = np.ascontiguousarray(b).reshape(-1, size)
    quantized = fmt.q.unpack(flat).reshape(rows, blocks, fmt.elements)

    def whole(x: quant.Integers) -> Array:
        return x.unpack(flat).reshape(rows, blocks, -1, 1).view(np.uint8)

    return quantized ^ np.uint8(128) if fmt.q.signed else quantized, [(at, whole(x)) for at, x in panel_fields(name)]


def panel_fields(name: str) -> list[tuple[int, quant.Integers]]:
    """The fields of a format beside its quantized values, each with its place in a panel."""
    f, fmt = PANELS[name], quant.by_name(name)
    found = []
    for scale, at, top in ((fmt.scale, f.scale_at, f.d_at), (fmt.minimum, f.minimum_at, f.dmin_at)):
        if scale is not None:
            found += [(at, scale.real.bits)] if scale.by is None else [(at, scale.by), (top, scale.real.bits)]
    return sorted(found, key=lambda x: x[0])
