"""GGUF block formats in tile IR: from bytes to f32 tiles, with the same roundings as the dequantisers of `ops.quant`.

A decoder emits the elements of one block: a list of (first element, tile). Scales are read through a second, half-precision view
of the same bytes, so nothing is assembled by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.dtypes import DType, bf16, f16, f32, i8, i32, u8
from ..ir.layout import Layout
from ..ops.quant import FORMATS
from ..tile.builder import Ix, Tile, View
from .call import Call
from .region import Operand

Parts = Iterator[tuple[int, Tile]]


class Matrix:
    """Views of a packed matrix u8[N, row bytes] as bytes, signed bytes and small floats."""

    def __init__(self, call: Call, operand: Operand, format_: str, k: int) -> None:
        self.b, self.format, self.k = call.b, format_, k
        self.elements, self.size = FORMATS[format_].elements, FORMATS[format_].bytes
        n = operand.type.shape[0]
        row = FORMATS[format_].row_bytes(k)

        def view(name: str, dtype: DType) -> View:
            item = dtype.itemsize
            return call.view(name, dtype, operand.buffer, Layout((n, row // item), (row // item, 1), operand.layout.offset // item))

        plain = {"F32": f32, "F16": f16, "BF16": bf16}.get(format_)
        self.plain: View | None = None
        if plain is not None:
            self.plain = view("w", plain)
        else:
            self.bytes, self.signed, self.half = view("w", u8), view("w_signed", i8), view("w_half", f16)

    def scale(self, row: Ix | int, byte: Ix | int) -> Tile:
        """The half-precision number at an even byte, as f32[1]."""
        return self.b.cast(self.b.load(self.half, (row, byte // 2), (1,)), f32)

    def low(self, row: Ix | int, byte: Ix | int, n: int) -> Tile:
        return self.b.binary("and", self._raw(row, byte, n), 15)

    def high(self, row: Ix | int, byte: Ix | int, n: int) -> Tile:
        return self.b.binary("shr", self._raw(row, byte, n), 4)

    def _raw(self, row: Ix | int, byte: Ix | int, n: int) -> Tile:
        return self.b.cast(self.b.load(self.bytes, (row, byte), (n,)), i32)

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
    yield 0, m.number(m.b.cast(m.b.load(m.signed, (row, at + 2), (32,)), i32)) * m.scale(row, at)


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
    first, second = (b.cast(b.load(m.bytes, (row, at + 2 * half + i), (1,)), i32) for i in range(2))
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
        return b.cast(b.load(m.bytes, (row, at + i), (1,)), i32)

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
        bits = b.cast(b.load(m.bytes, (row, at + 16), (32,)), i32)
        fifth = b.binary("shl", b.binary("and", b.binary("shr", bits, j), 1), 4)
        yield 32 * j, _k_scaled(m, row, at, j, b.binary("or", part(row, at + 48 + 32 * (j // 2), 32), fifth))


def _q6_k(m: Matrix, row: Ix | int, at: Ix | int) -> Parts:
    b = m.b
    d = m.scale(row, at + 208)
    for half in range(2):
        top = b.cast(b.load(m.bytes, (row, at + 128 + 32 * half), (32,)), i32)
        for j in range(4):
            part = m.high if j >= 2 else m.low
            low = part(row, at + 64 * half + 32 * (j % 2), 32)
            q = b.binary("or", low, b.binary("shl", b.binary("and", b.binary("shr", top, 2 * j), 3), 4)) - 32
            for k in range(2):
                i = 8 * half + 2 * j + k
                scale = d * m.number(b.cast(b.load(m.signed, (row, at + 192 + i), (1,)), i32))
                yield 128 * half + 32 * j + 16 * k, m.number(b.extract(q, (16 * k,), (16,))) * scale


DECODERS: dict[str, Callable[[Matrix, Ix | int, Ix | int], Parts]] = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}


def can_unpack(format_: str) -> bool:
    return format_ in DECODERS or format_ in ("F32", "F16", "BF16")


