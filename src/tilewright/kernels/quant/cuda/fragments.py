"""Packed matrices as the tensor cores of a GPU take them: panels of 16 rows, each thread's values of `mma.m16n8k32` side by side.

A panel holds units of one or more blocks of 32 columns one after the other. Lane 4·line + quad of a warp has, of a block, the rows line
and line + 8 and of both halves the columns 2·quad, 2·quad + 1 and both eight further on: four registers of four values (row line, row
line + 8, and again for the second half). As bf16 they are what `mma.m16n8k16` and `wgmma` want. Values of four bits: two words, first half
in the low nibbles; two blocks are 16 bytes of a lane. Further bits are planes of one word per lane and two blocks: bit 8j + r belongs to
byte j of register r. Values with a sign are stored as two's complement, which the kernel shifts to the top of a byte. Scales follow, those
of two blocks side by side: 16 bytes a row (two scales, two minimums, and so on) and then d and dmin of the K formats, d (and the minimum)
of every block else. Only six-bit scales grow, to bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....ops import quant
from ....ops.packed.quant_dot import FORMATS
from ..panels import PANELS, split_fields
from .small_floats import SMALL, is_small, scale_bytes, small_words, split_small

ROWS = 16
COLUMNS = 32
LANES = 32
Array = np.ndarray[Any, Any]
FORMS = {**{name: PANELS[name] for name in FORMATS}, **SMALL}


@dataclass(frozen=True)
class Fragments:
    """A format at some K: where things lie in a unit (bytes), and how quantized values become numbers."""

    name: str
    k: int

    @property
    def low(self) -> int:
        """Bits of a code in words: 4 or 8."""
        return FORMS[self.name].low

    @property
    def planes(self) -> int:
        return FORMS[self.name].planes

    @property
    def super_scales(self) -> bool:
        return FORMS[self.name].super_scales

    @property
    def minimums(self) -> bool:
        return FORMS[self.name].minimums

    @property
    def scales(self) -> int:
        """Per block of 32: 1, or 2 in Q6_K."""
        return FORMS[self.name].scales

    @property
    def shift(self) -> int:
        """Quantized values with a sign stand in the top bits of their bytes: numbers are 2**shift too large (e4m3: too small)."""
        if self.name == "F8_E4M3":
            return -8
        return 8 - self.low - self.planes if FORMS[self.name].bias else 0

    @property
    def sign(self) -> int:
        """What makes two's complement of a stored code."""
        return -FORMS[self.name].bias

    @property
    def blocks(self) -> int:
        """Blocks of a unit."""
        return next(b for b in (8, 2, 1) if self.k % (COLUMNS * b) == 0)

    @property
    def pairs(self) -> int:
        return -(-self.blocks // 2)

    @property
    def units(self) -> int:
        return self.k // (COLUMNS * self.blocks)

    @property
    def plane_at(self) -> int:
        return self.blocks * LANES * 2 * self.low

    @property
    def plane_bytes(self) -> int:
        return LANES * self.pairs * 4

    @property
    def scale_at(self) -> int:
        return self.plane_at + self.planes * self.plane_bytes

    @property
    def row_scales(self) -> int:
        """Bytes of scales (and minimums) of a row."""
        if is_small(self.name):
            return scale_bytes(self.name, self.blocks)
        return 16 if self.super_scales else max(4, self.blocks * (4 if self.minimums else 2))

    @property
    def d_at(self) -> int:
        return self.scale_at + ROWS * self.row_scales

    @property
    def bytes(self) -> int:
        return self.d_at + (ROWS * 4 if self.super_scales else 0)


def fragments(name: str, row_bytes: int) -> Fragments:
    fmt = quant.by_name(name)
    return Fragments(name, row_bytes // fmt.bytes * fmt.elements)


def fragment_shape(name: str, n: int, row_bytes: int) -> tuple[int, int, int]:
    """[panels, units, bytes] of a matrix u8[n, row bytes]."""
    f = fragments(name, row_bytes)
    return (-(-n // ROWS), f.units, f.bytes)


def pack_fragments(raw: Array, name: str, out: Array, first: int, last: int) -> None:
    """Fill panels first … last-1 of `out` from rows of the file."""
    f, fmt = fragments(name, raw.shape[1]), quant.by_name(name)
    rows = raw[first * ROWS : last * ROWS]
    blocks = rows.reshape(len(rows), -1, fmt.bytes)
    if len(rows) % ROWS:
        blocks = np.concatenate([blocks, np.zeros((-len(rows) % ROWS, *blocks.shape[1:]), np.uint8)])
    if is_small(name):
        _pack_small(f, blocks, out[first:last])
        return
    quantized, parts = split_fields(name, blocks)
    quantized = in_order(quantized)
    panels, units, per = last - first, f.units, min(2, f.blocks)
    target = out[first:last]
    # Four quantized values at a time: row = 8·upper + line; block = per·pair + side; place of a column = 16·half + 4·quad + byte
    q = quantized.view(np.uint32).reshape(panels, 2, 8, units, f.pairs, per, 2, 4)
    q = q ^ np.uint32(f.sign * 0x01010101) if f.sign else q
    if f.low == 8:
        words = q.transpose(0, 3, 4, 5, 2, 7, 6, 1)
    else:
        nibbles = q & np.uint32(0x0F0F0F0F)
        words = (nibbles[..., 0, :] | (nibbles[..., 1, :] << np.uint32(4))).transpose(0, 3, 4, 2, 6, 5, 1)
    _put(target, 0, words)
    for p in range(f.planes):
        bits = (q >> np.uint32(4 + p)) & np.uint32(0x01010101)
        plane = np.zeros((panels, 8, units, f.pairs, 4), np.uint32)
        for upper in range(2):
            for side in range(per):
                for half in range(2):
                    plane |= bits[:, upper, :, :, :, side, half] << np.uint32(4 * side + upper + 2 * half)
        _put(target, f.plane_at + p * f.plane_bytes, plane.transpose(0, 2, 1, 4, 3))
    for at, part in _fields(f, [p for _, p in parts]):
        # [rows, units, bytes of a row]
        fields = part.reshape(panels, ROWS, units, -1).transpose(0, 2, 1, 3).reshape(panels, units, -1)
        target[..., at : at + fields.shape[-1]] = fields


def in_order(quantized: Array) -> Array:
    """Quantized values u8[..., columns] with those of a lane side by side: of 16 columns 0, 1, 8, 9, then 2, 3, 10, 11 and so on."""
    pairs = np.ascontiguousarray(quantized).view(np.uint16).reshape(-1, 2, 4)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1)).view(np.uint8).reshape(quantized.shape)


def _put(target: Array, at: int, words: Array) -> None:
    """Words of all units to their place in each: one pass, element by element of four bytes."""
    shape = words.shape[2:]
    target.view(np.uint32)[..., at // 4 : at // 4 + int(np.prod(shape))].reshape(words.shape)[...] = words


def _fields(f: Fragments, parts: list[Array]) -> list[tuple[int, Array]]:
    """Scales with their places; a part is u8[rows, blocks of the file, fields, bytes]."""
    rows = len(parts[0])
    if not f.super_scales:
        both = np.concatenate(parts, axis=-1).reshape(rows, f.units, -1)
        wanted = f.row_scales - both.shape[-1]
        return [(f.scale_at, np.pad(both, ((0, 0), (0, 0), (0, wanted))) if wanted else both)]
    flat = [p.reshape(rows, f.units, -1) for p in parts]
    if f.minimums:
        scales, minimums, d, dmin = flat
        both = np.stack([x.reshape(rows, f.units, f.pairs, 2) for x in (scales, minimums)], 3)
        return [(f.scale_at, both.reshape(rows, f.units, -1)), (f.d_at, np.concatenate([d, dmin], -1))]
    scales, d = flat
    return [(f.scale_at, scales), (f.d_at, np.concatenate([d, np.zeros_like(d)], -1))]


def _pack_small(f: Fragments, blocks: Array, target: Array) -> None:
    panels, units, per = len(target), f.units, min(2, f.blocks)
    quantized, scales = split_small(f.name, blocks, f.blocks)
    q = in_order(quantized).reshape(panels, 2, 8, units, f.pairs, per, 2, 4, 4)
    words = q.transpose(0, 3, 4, 5, 2, 7, 6, 1, 8) if f.low == 8 else small_words(q)
    target[..., : f.plane_at] = words.reshape(panels, units, f.plane_at)
    target[..., f.scale_at : f.bytes] = scales.reshape(panels, ROWS, units, -1).transpose(0, 2, 1, 3).reshape(panels, units, -1)
