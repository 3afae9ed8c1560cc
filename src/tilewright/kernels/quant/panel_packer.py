"""Kernels that lay a packed matrix out in panels: one program per whole panel of 16 rows, one lane per row.

The same bytes as `panels.pack_strips`, at the speed of memory. Parameters: the rows of the file, the panels, the number of blocks of a
row. Nothing is masked: what is left of the rows after the last whole panel is `pack_panels`' to do.
"""

from __future__ import annotations

from functools import cache

from ...core.dtypes import i32, u8, u16
from ...ops.quant import FORMATS, Integers
from ...tile.builder import Ix, KernelBuilder, Tile
from ...tile.ir import Kernel
from .panels import COLUMNS, LANES, PANELS, panel_fields, unit_bytes

NIBBLES = 0x0F0F0F0F
ONES = 0x01010101
SIGNS = -0x7F7F7F80  # 0x80808080


@cache
def pack_kernel(name: str) -> Kernel:
    """Argument words: rows, bytes between rows / `unit_bytes`; the panels three times (as words, halves and bytes), each with the distance
    between panels in its own elements; blocks of a row."""
    return _Packer(name).kernel()


class _Packer:
    def __init__(self, name: str) -> None:
        self.name, self.f, self.unit = name, PANELS[name], unit_bytes(name)
        self.b = KernelBuilder(f"pack_{name.lower()}")
        size = self.f.bytes
        self.rows = self.b.view("rows", i32 if self.unit == 4 else u16, (None, 1))
        self.words = self.b.view("words", i32, (None, size // 4, 1))
        self.halves = self.b.view("halves", u16, (None, size // 2, 1))
        self.bytes = self.b.view("bytes", u8, (None, size, 1))
        self.block: Ix | int = 0
        self.scale_words: dict[int, Tile] = {}

    def kernel(self) -> Kernel:
        b, f = self.b, self.f
        with b.loop(0, b.index("blocks")) as loop:
            self.block = loop.index
            for sub in range(f.groups):
                self._quantized(sub, [self._group(sub, g) for g in range(8)])
            self._fields()
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
        first = at // 4 * 4
        if first not in self.scale_words:  # stores in between hide what was read from the optimizer
            self.scale_words[first] = self.word(first)
        word = self.scale_words[first]
        return self.b.binary("and", self.b.binary("shr", word, at % 4 * 8) if at % 4 else word, 255)

    # --- quantized values: four of them as the bytes of a word -----------------------------------------------------------
    def _group(self, sub: int, g: int) -> Tile:
        """Those of columns 4g … 4g+3 of a sub-block."""
        b, q = self.b, FORMATS[self.name].q
        assert isinstance(q, Integers)
        out: Tile | None = None
        for to, part in q.places():
            first = COLUMNS * sub + 4 * g
            byte, by = divmod(part.place(first), 8)
            if part.spaced(first, 4) == 8:
                word = self.word(byte)
                value = b.binary("shr", word, by) if by else word
                value = value if part.width == 8 else b.binary("and", value, ((1 << part.width) - 1) * ONES)
                value = b.binary("shl", value, to) if to else value
            else:  # one bit each, side by side
                assert part.spaced(first, 4) == part.width == 1
                word, by = self.word(part.at // 8), part.place(first) - part.at
                own = b.binary("and", b.binary("shr", word, by) if by else word, 15)
                spread = [b.binary("shl", b.binary("and", own, 1 << j), to + 7 * j) for j in range(4)]  # bit j to bit `to` of byte j
                value = b.binary("or", b.binary("or", spread[0], spread[1]), b.binary("or", spread[2], spread[3]))
            out = value if out is None else b.binary("or", out, value)
        assert out is not None
        return b.binary("xor", out, SIGNS) if q.signed else out

    def _quantized(self, sub: int, groups: list[Tile]) -> None:
        b, f = self.b, self.f
        if f.low == 8:
            for g, quantized in enumerate(groups):
                b.store(self.words, (b.pid, self.block, (sub * 8 + g) * LANES), quantized)
            return
        for t in range(4):
            low, high = (b.binary("and", groups[2 * t + i], NIBBLES) if f.planes else groups[2 * t + i] for i in range(2))
            b.store(self.words, (b.pid, self.block, (sub * 4 + t) * LANES), b.binary("or", low, b.binary("shl", high, 4)))
        for p in range(f.planes):
            plane: Tile | None = None
            for g, quantized in enumerate(groups):
                bit = b.binary("and", b.binary("shr", quantized, 4 + p), ONES)
                bit = b.binary("shl", bit, g) if g else bit
                plane = bit if plane is None else b.binary("or", plane, bit)
            assert plane is not None
            b.store(self.words, (b.pid, self.block, f.plane_at // 4 + (sub * f.planes + p) * LANES), plane)

    # --- scales -------------------------------------------------------------------------------------------------------
    def _fields(self) -> None:
        """Floats as they are, small integers as bytes."""
        b = self.b
        for at, field in panel_fields(self.name):
            if field.width == 32:
                b.store(self.words, (b.pid, self.block, at // 4), self.word(field.parts[0].place(0) // 8))
                continue
            if field.width == 16:
                b.store(self.halves, (b.pid, self.block, at // 2), b.cast(self.half(field.parts[0].place(0) // 8), u16))
                continue
            for i in range(field.count):
                value: Tile | None = None
                for to, place, width, _ in field.pieces(i):
                    byte, by = divmod(place, 8)
                    own = self.byte(byte)
                    own = b.binary("shr", own, by) if by else own
                    own = b.binary("and", own, (1 << width) - 1) if by + width < 8 else own
                    own = b.binary("shl", own, to) if to else own
                    value = own if value is None else b.binary("or", value, own)
                assert value is not None
                b.store(self.bytes, (b.pid, self.block, at + i * LANES), b.cast(value, u8))
