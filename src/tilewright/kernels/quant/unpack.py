"""Packed formats in tile IR: from bytes to f32 tiles, emitted from the descriptions of `ops.quant` with the roundings of their reference.

A codebook is an operand of the op: book 0 holds the points, book 1, where there is one, the patterns of signs. Scales are read through a
half-precision view of the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from ...core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i16, i32, i64, u8, u16
from ...ir.layout import Layout
from ...ops.quant import FORMATS, Bits, BlockFormat, Book, Integers, Reals, Scale, Trits
from ...ops.quant.iq_tables import DELTA
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..region import Operand

Parts = Iterator[tuple[Ix | int, Tile]]
UNROLLED = 16  # pieces of a block


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
            for first, tile in Block(self, row, loop.index * self.size).pieces():
                store(loop.index * self.elements + first, tile, None)


class Block:
    """One block of a row in tile IR, from the description of its format: what `BlockFormat.decode` computes, with the same roundings.

    Elements come in pieces that have one scale and whose bits are read by one load; where there are many, as in the formats with a
    codebook, a loop goes through equal parts of the block (`part`)."""

    def __init__(self, m: Matrix, row: Ix | int, at: Ix | int) -> None:
        self.m, self.b, self.row, self.at, self.f = m, m.b, row, at, FORMATS[m.format]
        assert self.f.scale is not None
        self.scale, self.book = self.f.scale, self.f.table if isinstance(self.f.table, Book) else None
        self.parts, self.part = 1, cast("Ix | int", 0)
        self.read = dict[tuple[int, int, DType], Tile]()  # what was loaded in this turn: stores in between hide it from the optimizer
        self.known = dict[tuple[Scale, int], Tile]()  # scales of groups

    def pieces(self) -> Parts:
        f, b = self.f, self.b
        if isinstance(f.q, Trits):
            yield from self._trits(f.q)
            return
        size = f.elements // f.q.count if self.book is not None else min(f.elements // self.scale.groups, _run(f.q))
        reals = [self._reals(s) for s in (self.scale, f.minimum) if s is not None]
        self.parts = _parts(f) if f.elements // size > UNROLLED else 1
        if self.parts == 1:
            yield from self._part(size, reals)
            return
        self.read.clear()  # all of it, floats that groups share, is kept before the loop
        with b.loop(0, self.parts) as loop:
            self.part = loop.index
            yield from self._part(size, reals)

    def _part(self, size: int, reals: list[Tile | None]) -> Parts:
        """The pieces of one turn."""
        f = self.f
        for first in range(0, f.elements // self.parts, size):
            piece = self._number(self.scale, first, reals[0]) * self._values(first, size)
            if f.minimum is not None:
                number = self._number(f.minimum, first, reals[1])
                piece = piece - number if f.minimum.slope < 0 else piece + number
            yield self.part * (f.elements // self.parts) + first, piece

    # --- scales -------------------------------------------------------------------------------------------------------
    def _reals(self, s: Scale) -> Tile | None:
        """The float of a scale that all groups share."""
        return self._real(s.real, 0) if s.real.bits.count == 1 else None

    def _real(self, r: Reals, i: int) -> Tile:
        b, m = self.b, self.m
        dtype = {"f16": f16, "f32": f32}.get(r.kind)
        if dtype is not None and len(r.bits.parts) == 1:
            place = self.at + r.bits.parts[0].at // 8
            return b.cast(b.load(m.view(dtype), (self.row, place // dtype.itemsize), (1,)), f32)
        raw = self._integer(r.bits, i)
        if r.kind == "f16":
            return b.cast(b.bitcast(b.cast(raw, i16), f16), f32)
        if r.kind == "e8m0":
            tiny = b.select(b.cmp("eq", raw, 0), b.full((), 0x00200000, i32), b.full((), 0x00400000, i32))
            return b.bitcast(b.select(b.cmp("lt", raw, 2), tiny, b.binary("shl", raw - 1, 23)), f32)
        exponent, mantissa = self._cut(raw, 3, 4), self._cut(raw, 0, 3)
        normal = b.bitcast(b.binary("or", b.binary("shl", exponent + 120, 23), b.binary("shl", mantissa, 20)), f32)
        value = b.select(b.cmp("eq", exponent, 0), b.cast(mantissa, f32) * 2.0**-9, normal) * 0.5
        return b.select(b.cmp("eq", raw, 0x7F), b.full((), 0.0), value)

    def _number(self, s: Scale, first: int, d: Tile | None) -> Tile:
        """A scale or minimum (the size of a negative one), f32[1], of the group of element `first` of this turn."""
        group = first * s.groups // self.f.elements
        if (s, group) not in self.known:
            self.known[s, group] = self._group(s, group, d)
        return self.known[s, group]

    def _group(self, s: Scale, group: int, d: Tile | None) -> Tile:
        if s.by is None:
            return self._real(s.real, group) if d is None else d
        assert d is not None
        by = self._integer(s.by, group)
        if s.start:
            whole = s.slope == int(s.slope)
            number = self.b.cast(by * int(s.slope) + int(s.start), f32) if whole else self.b.cast(by, f32) * s.slope + s.start
            return d * number
        return d * self.b.cast(by, f32)

    # --- integers -----------------------------------------------------------------------------------------------------
    def _byte(self, p: Bits, byte: int) -> Ix | int:
        """Byte `byte` of the first turn, for this turn."""
        step = (p.place(p.count // self.parts) - p.at) // 8 if self.parts > 1 and p.count > 1 else 0
        return self.at + byte + (self.part * step if step else 0)

    def _raw(self, p: Bits, byte: int, n: int, dtype: DType) -> Tile:
        """n integers of a part from a byte on, i32[n]."""
        if (byte, n, dtype) not in self.read:
            self.read[byte, n, dtype] = self.m.raw(self.row, self._byte(p, byte), n, dtype)
        return self.read[byte, n, dtype]

    def _cut(self, x: Tile, by: int, width: int) -> Tile:
        x = self.b.binary("shr", x, by) if by else x
        return self.b.binary("and", x, (1 << width) - 1)

    def _integer(self, x: Integers, i: int) -> Tile:
        """Integer i of this turn, i32[1]."""
        b, out = self.b, cast("Tile | None", None)
        for to, at, width, p in x.pieces(i):
            byte, bit = divmod(at, 8)
            if bit + width <= 8 and p.steps[0] == 1:
                own = self._raw(p, byte, 1, i8 if x.signed else u8)
                own = own if width == 8 else b.binary("shr", own, bit) if bit + width == 8 else self._cut(own, bit, width)
            else:  # in one or two words of 16 bits
                byte, bit = byte - byte % 2, bit + byte % 2 * 8
                word = self._raw(p, byte, 1, u16)
                if bit + width > 16:
                    word = b.binary("or", word, b.binary("shl", self._raw(p, byte + 2, 1, u16), 16))
                own = self._cut(word, bit, width)
            own = b.binary("shl", own, to) if to else own
            out = own if out is None else b.binary("or", out, own)
        assert out is not None
        return out + x.bias if x.bias else out

    def _integers(self, x: Integers, first: int, n: int) -> Tile:
        """n neighbours, i32[n]."""
        b, out = self.b, cast("Tile | None", None)
        for to, p in x.places():
            byte, bit = divmod(p.place(first), 8)
            if p.spaced(first, n) == 8:
                own = self._raw(p, byte, n, i8 if x.signed else u8)
                if p.width < 8:
                    own = b.binary("shr", own, bit) if bit + p.width == 8 else self._cut(own, bit, p.width)
            else:  # side by side in one word
                assert p.spaced(first, n) == p.width
                word = b.broadcast(self._raw(p, byte, 1, u8 if n * p.width + bit <= 8 else u16), (n,))
                lane = b.iota((n,), 0, i32) if p.width == 1 else b.iota((n,), 0, i32) * p.width
                own = b.binary("and", b.binary("shr", word, lane + bit if bit else lane), (1 << p.width) - 1)
            own = b.binary("shl", own, to) if to else own
            out = own if out is None else b.binary("or", out, own)
        assert out is not None
        return out + x.bias if x.bias else out

    # --- what integers stand for ----------------------------------------------------------------------------------------
    def _values(self, first: int, n: int) -> Tile:
        b, f, table = self.b, self.f, self.f.table
        assert isinstance(f.q, Integers)
        if self.book is not None:
            return self._point(f.q, self.book, first, n)
        if isinstance(table, str):
            part, dtype = f.q.parts[0], {"float8_e4m3fn": f8e4m3, "float8_e5m2": f8e5m2}[table]
            return b.cast(b.load(self.m.view(dtype), (self.row, self._byte(part, part.place(first) // 8)), (n,)), f32)
        q = self._integers(f.q, first, n)
        if not isinstance(table, tuple):
            return b.cast(q, f32)
        out = b.full((n,), float(table[0]))
        for i, value in enumerate(table[1:], 1):  # by comparisons: tables of 16 stay in registers
            if value != table[0]:
                out = b.select(b.cmp("eq", q, i), b.full((), float(value)), out)
        return out

    def _point(self, q: Integers, book: Book, first: int, n: int) -> Tile:
        """n numbers of a codebook, with their signs or the fraction that is added."""
        b = self.b

        def row(table: int, index: Tile, column: int = 0) -> Tile:
            return b.load(self.m.books[table], (b.to_index(b.reshape(b.cast(index, i64), ())), column), (n,))

        point = row(0, self._integer(q, first // n))
        if book.signs is not None:
            if book.patterns:
                return point * row(1, self._integer(book.signs, first // 8), first % 8)
            bits = self._integers(book.signs, first, n)
            return point * b.select(b.cmp("eq", bits, 0), b.full((), 1.0), b.full((), -1.0))
        assert book.shifted is not None
        minus = self._integer(book.shifted, first * book.shifted.count // self.f.elements)
        return point + b.select(b.cmp("eq", minus, 0), b.full((), float(DELTA)), b.full((), -float(DELTA)))

    def _trits(self, q: Trits) -> Parts:
        b, first = self.b, 0
        d = self._real(self.scale.real, 0)
        for byte, digits, run in q.pieces:
            part = self.m.raw(self.row, self.at + byte, run)
            for k in range(digits):
                digit = b.binary("shr", self._cut(part * 3**k, 0, 8) * 3, 8)
                yield first + run * k, d * b.cast(digit + q.bias, f32)
            first += digits * run


def _run(q: Integers) -> int:
    """Neighbours that one load of each part brings: bytes apart, or side by side in a word of 16 bits."""
    for n in (64, 32, 16, 8, 4):
        steps = [(p.spaced(0, n), p) for p in q.parts if q.count % n == 0]
        if steps and all(s == 8 or (s == p.width and n * p.width <= 16) for s, p in steps):
            return n
    raise AssertionError(f"quantized values lie too far apart: {q}")


def _parts(f: BlockFormat) -> int:
    """Into how many equal parts, as one loop takes them, a block can be cut: bytes apart in all fields."""
    fields = [p for p in f.fields() if p.count > 1]
    for parts in (8, 4, 2):
        if all(p.count % parts == 0 for p in fields):
            steps = [{p.place((i + 1) * (p.count // parts)) - p.place(i * (p.count // parts)) for i in range(parts - 1)} for p in fields]
            if all(len(s) == 1 and s.copy().pop() % 8 == 0 for s in steps):
                return parts
    return 1


def can_unpack(format_: str) -> bool:
    f = FORMATS[format_]
    return f.dtype is None or format_ in ("F32", "F16", "BF16")
