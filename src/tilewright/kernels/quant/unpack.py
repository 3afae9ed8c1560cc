"""GGUF block formats in tile IR: from bytes to f32 tiles, with the same roundings as the dequantisers of `ops.quant`.

A decoder emits the elements of one block: a list of (first element, tile). Scales are read through a second, half-precision view
of the same bytes, so nothing is assembled by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, u8
from ...ir.layout import Layout
from ...ops.quant import FORMATS
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..region import Operand

Parts = Iterator[tuple[Ix | int, Tile]]


class Matrix:
    """Views of a packed matrix u8[N, row bytes], one for each type its bytes are read as, and of the codebooks of its format."""

    def __init__(self, call: Call, operand: Operand, format_: str, k: int, books: Sequence[Operand] = ()) -> None:
        self.b, self.format, self.k = call.b, format_, k
        self.elements, self.size = FORMATS[format_].elements, FORMATS[format_].bytes
        self._call, self._operand, self._views = call, operand, dict[DType, View]()
        plain = {"F32": f32, "F16": f16, "BF16": bf16}.get(format_)
        self.plain = None if plain is None else self.view(plain)
        self.books = [call.view(f"book{i}", x.type.dtype, x.buffer, x.layout) for i, x in enumerate(books)]

    def view(self, dtype: DType) -> View:
        """The matrix as elements of `dtype`; made on first use."""
        if dtype not in self._views:
            o, item = self._operand, dtype.itemsize
            row = FORMATS[self.format].row_bytes(self.k) // item
            layout = Layout((o.type.shape[0], row), (row, 1), o.layout.offset // item)
            self._views[dtype] = self._call.view(f"w_{dtype}", dtype, o.buffer, layout)
        return self._views[dtype]

    def raw(self, row: Ix | int, byte: Ix | int, n: int, dtype: DType = u8) -> Tile:
        """n integers from a byte on (a multiple of their size), as i32."""
        return self.b.cast(self.b.load(self.view(dtype), (row, byte // dtype.itemsize), (n,)), i32)

    def bits(self, x: Tile, shift: int, mask: int) -> Tile:
        return self.b.binary("and", self.b.binary("shr", x, shift) if shift else x, mask)

    def scale(self, row: Ix | int, byte: Ix | int) -> Tile:
        """The half-precision number at an even byte, as f32[1]."""
        return self.b.cast(self.b.load(self.view(f16), (row, byte // 2), (1,)), f32)

    def low(self, row: Ix | int, byte: Ix | int, n: int) -> Tile:
        return self.b.binary("and", self.raw(row, byte, n), 15)

    def high(self, row: Ix | int, byte: Ix | int, n: int) -> Tile:
        return self.b.binary("shr", self.raw(row, byte, n), 4)

    def number(self, x: Tile) -> Tile:
        return self.b.cast(x, f32)

    def row_to(self, row: Ix | int, store: Callable[[Ix | int, Tile, Ix | int | None], None]) -> None:
        """Decode one row: `store(first element, tile, elements inside or None for all)`."""
        b = self.b
        if self.plain is not None:
            whole, rest = self.k // 64 * 64, self.k % 64
            with b.loop(0, whole, 64) as loop:
                store(loop.index, b.cast(b.load(self.plain, (row, loop.index), (64,)), f32), None)
            if rest:
                store(whole, b.cast(b.load(self.plain, (row, whole), (64,), limit=(rest,)), f32), rest)
            return
        with b.loop(0, self.k // self.elements) as loop:
            for first, tile in DECODERS[self.format](self, row, loop.index * self.size):
                store(loop.index * self.elements + first, tile, None)


def _q8_0(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    yield 0, m.number(m.raw(row, at + 2, 32, i8)) * m.scale(row, at)


def _q4_0(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d = m.scale(row, at)
    yield 0, m.number(m.low(row, at + 2, 16) - 8) * d
    yield 16, m.number(m.high(row, at + 2, 16) - 8) * d


def _q4_1(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d, low = m.scale(row, at), m.scale(row, at + 2)
    yield 0, m.number(m.low(row, at + 4, 16)) * d + low
    yield 16, m.number(m.high(row, at + 4, 16)) * d + low


def _fifth(m: Matrix, row: Ix | int, at: Ix | int, half: int) -> Tile:
    """Bit 4 of 16 elements, from 2 of the 4 bytes of high bits at `at`: element i has bit i % 8 of byte i // 8."""
    b = m.b
    first, second = (m.raw(row, at + 2 * half + i, 1) for i in range(2))
    lane = b.iota((16,), 0, i32)
    source = b.select(b.cmp("lt", lane, 8), b.broadcast(first, (16,)), b.broadcast(second, (16,)))
    bit = b.binary("and", b.binary("shr", source, b.binary("and", lane, 7)), 1)
    return b.binary("shl", bit, 4)


def _q5_0(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d = m.scale(row, at)
    for half, part in enumerate((m.low, m.high)):
        q = m.b.binary("or", part(row, at + 6, 16), _fifth(m, row, at + 2, half))
        yield 16 * half, m.number(q - 16) * d


def _q5_1(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d, low = m.scale(row, at), m.scale(row, at + 2)
    for half, part in enumerate((m.low, m.high)):
        q = m.b.binary("or", part(row, at + 8, 16), _fifth(m, row, at + 4, half))
        yield 16 * half, m.number(q) * d + low


def _scale_min(m: Matrix, row: Ix | int, at: Ix | int, j: int) -> tuple[Tile, Tile]:
    """The 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K block, from its 12 bytes at `at`."""
    b = m.b

    def byte(i: int) -> Tile:
        return m.raw(row, at + i, 1)

    if j < 4:
        return b.binary("and", byte(j), 63), b.binary("and", byte(j + 4), 63)
    both = byte(j + 4)
    top_scale = b.binary("shl", b.binary("shr", byte(j - 4), 6), 4)
    top_min = b.binary("shl", b.binary("shr", byte(j), 6), 4)
    return b.binary("or", b.binary("and", both, 15), top_scale), b.binary("or", b.binary("shr", both, 4), top_min)


def _k_scaled(m: Matrix, row: Ix | int, at: Ix | int, j: int, q: Tile) -> Tile:
    scale, least = _scale_min(m, row, at + 4, j)
    return (m.scale(row, at) * m.number(scale)) * m.number(q) - m.scale(row, at + 2) * m.number(least)


def _q4_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    for j in range(8):
        part = m.high if j % 2 else m.low
        yield 32 * j, _k_scaled(m, row, at, j, part(row, at + 16 + 32 * (j // 2), 32))


def _q5_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    b = m.b
    for j in range(8):
        part = m.high if j % 2 else m.low
        fifth = b.binary("shl", m.bits(m.raw(row, at + 16, 32), j, 1), 4)
        yield 32 * j, _k_scaled(m, row, at, j, b.binary("or", part(row, at + 48 + 32 * (j // 2), 32), fifth))


def _q6_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    b, d = m.b, m.scale(row, at + 208)
    for g in range(16):  # groups of 16 elements
        half, j, k = g // 8, g % 8 // 2, g % 2
        part = m.high if j >= 2 else m.low
        low = part(row, at + 64 * half + 32 * (j % 2) + 16 * k, 16)
        top = m.bits(m.raw(row, at + 128 + 32 * half + 16 * k, 16), 2 * j, 3)
        scale = d * m.number(m.raw(row, at + 192 + g, 1, i8))
        yield 16 * g, m.number(b.binary("or", low, b.binary("shl", top, 4)) - 32) * scale


def _q2_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d, least = m.scale(row, at + 80), m.scale(row, at + 82)
    for g in range(16):
        q = m.bits(m.raw(row, at + 16 + 32 * (g // 8) + 16 * (g % 2), 16), g % 8 // 2 * 2, 3)
        scales = m.raw(row, at + g, 1)
        yield 16 * g, (d * m.number(m.bits(scales, 0, 15))) * m.number(q) - least * m.number(m.bits(scales, 4, 15))


def _q3_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    b, d = m.b, m.scale(row, at + 108)
    for g in range(16):
        j = 16 * (g % 2)
        q = m.bits(m.raw(row, at + 32 + 32 * (g // 8) + j, 16), g % 8 // 2 * 2, 3)
        kept = m.bits(m.raw(row, at + j, 16), g // 2, 1)  # a set bit means that 4 is not taken away
        low = m.bits(m.raw(row, at + 96 + g % 8, 1), 4 * (g // 8), 15)
        high = m.bits(m.raw(row, at + 104 + g % 4, 1), 2 * (g // 4), 3)
        scale = b.binary("or", low, b.binary("shl", high, 4)) - 32
        yield 16 * g, (d * m.number(scale)) * m.number(q - b.binary("shl", 1 - kept, 2))


def _q8_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    d = m.b.load(m.view(f32), (row, at // 4), (1,))
    for g in range(4):
        yield 64 * g, d * m.number(m.raw(row, at + 4 + 64 * g, 64, i8))


def _f8(dtype: DType) -> Callable[[Matrix, Ix | int, Ix | int], Parts]:
    def decode(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
        d = m.b.load(m.view(f32), (row, at // 4), (1,))
        for g in range(0, 128, 32):
            yield g, d * m.number(m.b.load(m.view(dtype), (row, at + 4 + g), (32,)))

    return decode


DECODERS: dict[str, Callable[[Matrix, Ix | int, Ix | int], Parts]] = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k,
    "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k, "F8_E4M3": _f8(f8e4m3), "F8_E5M2": _f8(f8e5m2),
}


def can_unpack(format_: str) -> bool:
    return format_ in DECODERS or format_ in ("F32", "F16", "BF16")


