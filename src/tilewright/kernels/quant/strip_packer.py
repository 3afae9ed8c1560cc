"""Kernels that lay a packed matrix out in strips: one program per whole strip of 16 rows, one lane per row.

The same bytes as `strips.pack_strips`, at the speed of memory. Parameters: the rows of the file, the strips, the number of blocks of a
row. Nothing is masked: what is left of the rows after the last whole strip is `pack_strips`' to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ...core.dtypes import i32, u8, u16
from ...ops.quant import FORMATS
from ...tile.builder import Ix, KernelBuilder, Tile
from ...tile.ir import Kernel
from .strips import LANES, STRIPS, unit_bytes

NIBBLES = 0x0F0F0F0F
ONES = 0x01010101
SIGNS = -0x7F7F7F80  # 0x80808080


@cache
def pack_kernel(name: str) -> Kernel:
    """Argument words: rows, bytes between rows / `unit_bytes`; the strips three times (as words, halves and bytes), each with the distance
    between strips in its own elements; blocks of a row."""
    return _Packer(name).kernel()


class _Packer:
    def __init__(self, name: str) -> None:
        self.name, self.f, self.unit = name, STRIPS[name], unit_bytes(name)
        self.b = KernelBuilder(f"pack_{name.lower()}")
        size = self.f.bytes
        self.rows = self.b.view("rows", i32 if self.unit == 4 else u16, (None, 1))
        self.words = self.b.view("words", i32, (None, size // 4, 1))
        self.halves = self.b.view("halves", u16, (None, size // 2, 1))
        self.bytes = self.b.view("bytes", u8, (None, size, 1))
        self.block: Ix | int = 0

    def kernel(self) -> Kernel:
        b, f = self.b, self.f
        with b.loop(0, b.index("blocks")) as loop:
            self.block = loop.index
            for sub in range(f.groups):
                self._codes(sub, [self._group(sub, g) for g in range(8)])
            SCALES[self.name](self)
        return b.build()

    # --- reading ------------------------------------------------------------------------------------------------------
    def half(self, at: int) -> Tile:
        """Two bytes of the block, one lane per row, as i32 with nothing above them."""
        if self.unit == 4:
            word = self.word(at // 4 * 4)
            return self.b.binary("and", self.b.binary("shr", word, 16) if at % 4 else word, 0xFFFF)
        return self._read(at)

    def word(self, at: int) -> Tile:
        if self.unit == 4:
            return self._read(at)
        return self.b.binary("or", self._read(at), self.b.binary("shl", self._read(at + 2), 16))

    def _read(self, at: int) -> Tile:
        column = (self.block * FORMATS[self.name].bytes + at) // self.unit
        return self.b.cast(self.b.load(self.rows, (self.b.pid * LANES, column), (LANES,), axes=(0,)), i32)

    def byte(self, at: int) -> Tile:
        word = self.word(at // 4 * 4)
        return self.b.binary("and", self.b.binary("shr", word, at % 4 * 8) if at % 4 else word, 255)

    def nibbles(self, at: int, high: bool) -> Tile:
        word = self.word(at)
        return self.b.binary("and", self.b.binary("shr", word, 4) if high else word, NIBBLES)

    # --- codes: four of them as the bytes of a word ---------------------------------------------------------------------
    def _group(self, sub: int, g: int) -> Tile:
        """Codes of columns 4g … 4g+3 of a sub-block."""
        b = self.b
        match self.name:
            case "Q8_0":
                return b.binary("xor", self.word(2 + 4 * g), SIGNS)
            case "Q4_0" | "Q4_1":
                return self.nibbles((2 if self.name == "Q4_0" else 4) + 4 * (g % 4), g >= 4)
            case "Q5_0" | "Q5_1":
                start = 2 if self.name == "Q5_0" else 4
                bits = self.word(start)
                own = b.binary("and", b.binary("shr", bits, 4 * g) if g else bits, 15)
                spread = [b.binary("shl", b.binary("and", own, 1 << j), 4 + 7 * j) for j in range(4)]  # bit j to bit 4 of byte j
                top = b.binary("or", b.binary("or", spread[0], spread[1]), b.binary("or", spread[2], spread[3]))
                return b.binary("or", self.nibbles(start + 4 + 4 * (g % 4), g >= 4), top)
            case "Q6_K":
                half, r = sub // 4, sub % 4
                low = self.nibbles(64 * half + 32 * (r % 2) + 4 * g, r >= 2)
                high = self.word(128 + 32 * half + 4 * g)
                two = b.binary("and", b.binary("shr", high, 2 * r) if r else high, 3 * ONES)
                return b.binary("or", low, b.binary("shl", two, 4))
        low = self.nibbles((16 if self.name == "Q4_K" else 48) + 32 * (sub // 2) + 4 * g, bool(sub % 2))
        if self.name == "Q4_K":
            return low
        bits = self.word(16 + 4 * g)
        fifth = b.binary("and", b.binary("shr", bits, sub) if sub else bits, ONES)
        return b.binary("or", low, b.binary("shl", fifth, 4))

    def _codes(self, sub: int, groups: list[Tile]) -> None:
        b, f = self.b, self.f
        if f.low == 8:
            for g, codes in enumerate(groups):
                b.store(self.words, (b.pid, self.block, (sub * 8 + g) * LANES), codes)
            return
        for t in range(4):
            low, high = (b.binary("and", groups[2 * t + i], NIBBLES) if f.planes else groups[2 * t + i] for i in range(2))
            b.store(self.words, (b.pid, self.block, (sub * 4 + t) * LANES), b.binary("or", low, b.binary("shl", high, 4)))
        for p in range(f.planes):
            plane: Tile | None = None
            for g, codes in enumerate(groups):
                bit = b.binary("and", b.binary("shr", codes, 4 + p), ONES)
                bit = b.binary("shl", bit, g) if g else bit
                plane = bit if plane is None else b.binary("or", plane, bit)
            assert plane is not None
            b.store(self.words, (b.pid, self.block, f.plane_at // 4 + (sub * f.planes + p) * LANES), plane)

    # --- scales -------------------------------------------------------------------------------------------------------
    def move_half(self, source: int, to: int) -> None:
        self.b.store(self.halves, (self.b.pid, self.block, to // 2), self.b.cast(self.half(source), u16))

    def put_byte(self, value: Tile, to: int) -> None:
        self.b.store(self.bytes, (self.b.pid, self.block, to), self.b.cast(value, u8))


def _one_scale(p: _Packer) -> None:
    p.move_half(0, p.f.scale_at)


def _scale_and_minimum(p: _Packer) -> None:
    p.move_half(0, p.f.scale_at)
    p.move_half(2, p.f.minimum_at)


def _six_bits(p: _Packer) -> None:
    """Q4_K and Q5_K: the six-bit scales and minimums of eight sub-blocks, in bytes 4 … 15."""
    b = p.b
    for j in range(8):
        if j < 4:
            scale, least = b.binary("and", p.byte(4 + j), 63), b.binary("and", p.byte(8 + j), 63)
        else:
            both = p.byte(8 + j)
            scale = b.binary("or", b.binary("and", both, 15), b.binary("shl", b.binary("shr", p.byte(j), 6), 4))
            least = b.binary("or", b.binary("shr", both, 4), b.binary("shl", b.binary("shr", p.byte(4 + j), 6), 4))
        p.put_byte(scale, p.f.scale_at + j * LANES)
        p.put_byte(least, p.f.minimum_at + j * LANES)
    p.move_half(0, p.f.d_at)
    p.move_half(2, p.f.dmin_at)


def _sixteen_scales(p: _Packer) -> None:
    for i in range(16):
        p.put_byte(p.byte(192 + i), p.f.scale_at + i * LANES)
    p.move_half(208, p.f.d_at)


SCALES: dict[str, Callable[[_Packer], None]] = {
    "Q4_0": _one_scale, "Q5_0": _one_scale, "Q8_0": _one_scale, "Q4_1": _scale_and_minimum, "Q5_1": _scale_and_minimum,
    "Q4_K": _six_bits, "Q5_K": _six_bits, "Q6_K": _sixteen_scales,
}
