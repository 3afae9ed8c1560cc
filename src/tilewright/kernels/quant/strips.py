"""Packed matrices as the integer kernels read them: strips of 16 rows, one row per lane, codes in groups of four columns.

A strip holds its (super-)blocks one after the other. In a block the codes of 16 rows × 32 columns are words of 16 lanes; a word's
byte j belongs to column 4g + j of group g. Codes of four bits: word t has group 2t in its low nibbles, 2t + 1 in its high ones.
Further bits are planes of one word per 32 columns and bit: bit 8j + g of a lane belongs to column 4g + j. Scales follow, 16 lanes
at a time. Nothing grows: only the six-bit scales of the K formats become bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ops import quant
from ...ops.quant.kquants import scale_min

LANES = 16
COLUMNS = 32
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StripFormat:
    """Where things lie in one block of a strip (bytes), and how codes become numbers: w = scale * (code + bias) + minimum."""

    name: str
    elements: int  # columns of a block
    low: int  # bits of a code stored in words: 4 or 8
    planes: int  # further bits
    bias: int
    scales: int  # scales per 32 columns: 1, or 2 in Q6_K
    super_scales: bool  # scales are d * byte
    minimums: bool

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
        return self.scale_at + self.groups * self.scales * LANES * (1 if self.super_scales else 2)

    @property
    def d_at(self) -> int:
        return self.minimum_at + (self.groups * LANES * (1 if self.super_scales else 2) if self.minimums else 0)

    @property
    def dmin_at(self) -> int:
        return self.d_at + (2 * LANES if self.super_scales else 0)

    @property
    def bytes(self) -> int:
        return self.dmin_at + (2 * LANES if self.super_scales and self.minimums else 0)


STRIPS = {
    f.name: f
    for f in (
        StripFormat("Q4_0", 32, 4, 0, -8, 1, False, False),
        StripFormat("Q4_1", 32, 4, 0, 0, 1, False, True),
        StripFormat("Q5_0", 32, 4, 1, -16, 1, False, False),
        StripFormat("Q5_1", 32, 4, 1, 0, 1, False, True),
        StripFormat("Q8_0", 32, 8, 0, -128, 1, False, False),
        StripFormat("Q4_K", 256, 4, 0, 0, 1, True, True),
        StripFormat("Q5_K", 256, 4, 1, 0, 1, True, True),
        StripFormat("Q6_K", 256, 4, 2, -32, 2, True, False),
    )
}


def strip_shape(name: str, n: int, row_bytes: int) -> tuple[int, int, int]:
    """[strips, blocks, bytes] of a matrix u8[n, row bytes]."""
    return (-(-n // LANES), row_bytes // quant.by_name(name).bytes, STRIPS[name].bytes)


def unit_bytes(name: str) -> int:
    """The packing kernels read rows in units of this size: a block need not be a multiple of four bytes."""
    return 4 if quant.by_name(name).bytes % 4 == 0 else 2


def pack_strips(raw: Array, name: str, out: Array, first: int, last: int) -> None:
    """Fill strips first … last-1 of `out` from rows of the file."""
    f, fmt = STRIPS[name], quant.by_name(name)
    rows = raw[first * LANES : last * LANES]
    blocks = rows.reshape(len(rows), -1, fmt.bytes)
    if len(rows) % LANES:
        blocks = np.concatenate([blocks, np.zeros((-len(rows) % LANES, *blocks.shape[1:]), np.uint8)])
    codes, parts = split_fields(name, blocks)
    strips, nb = last - first, blocks.shape[1]
    q = codes.reshape(strips, LANES, nb, f.groups, 8, 4)  # [.., lane, block, sub-block, group, byte]
    target = out[first:last]
    if f.low == 8:
        words = q.transpose(0, 2, 3, 4, 1, 5)
    else:
        nibbles = q & np.uint8(15)
        words = (nibbles[..., 0::2, :] | (nibbles[..., 1::2, :] << np.uint8(4))).transpose(0, 2, 3, 4, 1, 5)
    target[..., : f.plane_at] = words.reshape(strips, nb, f.plane_at)
    if f.planes:
        bits = np.empty((strips, nb, f.groups, f.planes, LANES, 4), np.uint8)
        weights = (1 << np.arange(8)).astype(np.uint8)
        for p in range(f.planes):
            plane = (q >> np.uint8(4 + p)) & np.uint8(1)
            bits[:, :, :, p] = np.einsum("slbgkj,k->sbglj", plane, weights, dtype=np.uint8, casting="unsafe")
        target[..., f.plane_at : f.scale_at] = bits.reshape(strips, nb, -1)
    for at, part in parts:  # part: u8[rows, blocks, fields, bytes of a field]
        fields = part.reshape(strips, LANES, nb, *part.shape[2:]).transpose(0, 2, 3, 1, 4).reshape(strips, nb, -1)
        target[..., at : at + fields.shape[-1]] = fields


def split_fields(name: str, b: Array) -> tuple[Array, list[tuple[int, Array]]]:
    """Codes u8[rows, blocks, elements] and the other fields with their place in a strip."""
    f = STRIPS[name]

    def field(lo: int, hi: int) -> Array:
        return b[..., lo:hi][:, :, None, :]

    def nibbles(x: Array, run: int) -> Array:
        """Runs of `run` bytes: low nibbles, then high nibbles. Eight bytes at a time."""
        y = np.ascontiguousarray(x).view(np.uint64).reshape(*x.shape[:-1], -1, run // 8)
        out = np.empty((*y.shape[:-1], 2, run // 8), np.uint64)
        low = np.uint64(0x0F0F0F0F0F0F0F0F)
        np.bitwise_and(y, low, out=out[..., 0, :])
        np.bitwise_and(y >> np.uint64(4), low, out=out[..., 1, :])
        return out.view(np.uint8).reshape(*x.shape[:-1], -1)

    def fifth(x: Array) -> Array:
        return np.unpackbits(x, axis=-1, bitorder="little") << np.uint8(4)

    match name:
        case "Q4_0":
            return nibbles(b[..., 2:18], 16), [(f.scale_at, field(0, 2))]
        case "Q4_1":
            return nibbles(b[..., 4:20], 16), [(f.scale_at, field(0, 2)), (f.minimum_at, field(2, 4))]
        case "Q5_0":
            return nibbles(b[..., 6:22], 16) | fifth(b[..., 2:6]), [(f.scale_at, field(0, 2))]
        case "Q5_1":
            return nibbles(b[..., 8:24], 16) | fifth(b[..., 4:8]), [(f.scale_at, field(0, 2)), (f.minimum_at, field(2, 4))]
        case "Q8_0":
            return b[..., 2:34] ^ np.uint8(128), [(f.scale_at, field(0, 2))]
        case "Q6_K":
            low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
            low = np.concatenate([low & np.uint8(15), low >> np.uint8(4)], axis=-2).reshape(*b.shape[:-1], 256)
            high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
            codes = low | ((high & np.uint8(3)).reshape(*b.shape[:-1], 256) << np.uint8(4))
            return codes, [(f.scale_at, b[..., 192:208][..., None]), (f.d_at, field(208, 210))]
    sc, mn = (x.reshape(*b.shape[:-1], 8, 1) for x in scale_min(np.ascontiguousarray(b[..., 4:16]).reshape(-1, 12)))
    parts = [(f.scale_at, sc), (f.minimum_at, mn), (f.d_at, field(0, 2)), (f.dmin_at, field(2, 4))]
    if name == "Q4_K":
        return nibbles(b[..., 16:144], 32), parts
    bits = (b[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return nibbles(b[..., 48:176], 32) | (bits.reshape(*b.shape[:-1], 256) << np.uint8(4)), parts
