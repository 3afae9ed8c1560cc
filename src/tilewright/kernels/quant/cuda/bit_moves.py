"""Packed matrices laid out on the GPU: the file's bytes are uploaded as they are, and one kernel moves bits to where products want them.

The forms of `fragments.py` (but for the small floats, whose scales are computed) are the file's bits in another order, some of them turned
over and some always the same. Which bit goes where is found by packing numbers whose bits say where they come from, so that
`pack_fragments` alone knows the forms; the kernel knows none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....core.dtypes import i32, u8
from ....tile.builder import KernelBuilder
from ...cuda.groups import on_threads
from ...cuda.kernel import BlockKernel
from .fragments import ROWS, fragments, pack_fragments

Array = np.ndarray[Any, Any]
THREADS = 128  # words of the result, one each
BITS = 32
MASK, FLIP = BITS, BITS + 1  # rows of a table behind the places of the bits


@dataclass(frozen=True)
class Moves:
    """Where the bits of a unit come from: i32[34, words], for each bit of a word its place (8 · byte + bit) from the unit's first byte in
    the file on; then which bits there are, and which are turned over."""

    table: Array
    units: int  # units of a panel
    source: int  # bytes of a row that belong to a unit

    @property
    def words(self) -> int:
        return int(self.table.shape[1])


@cache
def moves(name: str, row_bytes: int) -> Moves:
    """For a format and the bytes of a row in the file."""
    f, source = fragments(name, row_bytes), row_bytes // fragments(name, row_bytes).units
    bits = ROWS * source * 8
    number = np.arange(bits)

    def packed(ones: Array) -> Array:
        """The bits of a unit made from these bits of the file, one byte each."""
        raw, out = np.packbits(ones, bitorder="little").reshape(ROWS, source), np.zeros((1, 1, f.bytes), np.uint8)
        pack_fragments(raw, name, out, 0, 1)
        return np.unpackbits(out.reshape(-1), bitorder="little")

    flip = packed(number < 0)
    there = packed(number >= 0) ^ flip
    place = np.zeros(len(flip), np.int64)
    for digit in range(bits.bit_length()):
        place |= (packed(number >> digit & 1 == 1) ^ flip).astype(np.int64) << digit
    row, bit = np.divmod(place, 8 * source)
    table = np.zeros((BITS + 2, len(flip) // BITS), np.int32)
    table[:BITS] = (row * 8 * row_bytes + bit).reshape(-1, BITS).T
    table[MASK], table[FLIP] = (np.packbits(which, bitorder="little").view(np.int32) for which in (there, flip))
    return Moves(table, f.units, source)


def move_kernel() -> BlockKernel:
    """A program makes 128 words of a unit. Its argument words: matrix, table, result, words of a unit, programs for them, units of a panel,
    bytes of the matrix from unit to unit and from panel to panel."""
    b = KernelBuilder("move_bits")
    raw, table, out = b.view("raw", u8, (1,)), b.view("table", i32, (1,)), b.view("out", i32, (1,))
    words, chunks, units, source, panel = (b.index(n) for n in ("words", "chunks", "units", "source", "panel"))
    unit, first = b.pid // chunks, b.pid % chunks * THREADS
    left = (words - first,)
    base = unit // units * panel + unit % units * source
    made = b.full((THREADS,), 0, i32)
    for j in range(BITS):
        place = b.load(table, (words * j + first,), (THREADS,), limit=left)
        byte = b.cast(b.gather(raw, (base,), 0, b.binary("shr", place, 3)), i32)
        bit = b.binary("and", b.binary("shr", byte, b.binary("and", place, 7)), 1)
        made = b.binary("or", made, b.binary("shl", bit, j))
    mask, flip = (b.load(table, (words * at + first,), (THREADS,), limit=left) for at in (MASK, FLIP))
    b.store(out, (unit * words + first,), b.binary("xor", b.binary("and", made, mask), flip), limit=left)
    return on_threads(b.build(), THREADS, 1)
