"""Tile lists of splats by a counting sort over tiles.

Splats come in depth order and are cut into blocks. Every block counts its entries of each tile; programs of a few tiles turn the counts
into places in the tiles' lists, and one program a camera finds where the lists begin; every block then walks its splats again and writes
their entries. Each list is in depth order whoever runs which block. No splats: all lists are empty. Rectangles are clamped to the image and
`order` to splats that exist; a camera with more entries than the capacity is reported, and the rest of its entries are left out.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv
from ...core.dtypes import i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.splats import SplatBin as SplatBinOp
from ...ops.splats import tiles_of
from ...tile.builder import Ix, View
from ..call import Call, report
from ..launch import Buffer, Launch
from ..region import Region
from ..template import Template

BLOCK = 4096  # splats of a program
FEW = 512  # on a GPU, where a program is one thread
LANES = 16
CAPACITY = 9  # code in the error block


class SplatBinTemplate(Template):
    key = "splat_bin"
    serves = (SplatBinOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        work = _Work(region, BLOCK if target.kind == "cpu" else FEW)
        return [work.count(), work.lengths(), work.place(), work.fill()]


class _Work:
    """The four launches and what lies between them."""

    def __init__(self, region: Region, block: int) -> None:
        self.block = block
        assert region.anchor is not None and isinstance(region.anchor.op, SplatBinOp)
        self.region, self.op = region, region.anchor.op
        self.columns, self.rows = tiles_of(self.op.width, self.op.height)
        self.lists = self.columns * self.rows
        self.cameras, self.splats = region.operands[1].type.shape
        self.blocks: Dim = ceildiv(self.splats, block)
        rows = self.cameras * self.blocks
        self.table = Buffer(f"{region.name}.counts", "temp", rows * (self.lists * 4))
        self.sums = Buffer(f"{region.name}.sums", "temp", rows * 4)
        self.sorted = Buffer(f"{region.name}.sorted", "temp", self.cameras * self.splats * 16)  # rectangles in depth order
        self.sorted_layout = Layout.contiguous((self.cameras, self.splats, 4))
        self.table_layout = Layout.contiguous((self.cameras, self.blocks, self.lists))
        self.sums_layout = Layout.contiguous((self.cameras, self.blocks))

    def _size(self, call: Call) -> None:
        """Columns, rows and number of tiles are words: one code serves every image."""
        self.across, self.down, self.tiles = call.word("across", self.columns), call.word("down", self.rows), call.word("tiles", self.lists)

    def _walk(self, what: str) -> tuple[Call, Ix | int, Ix | int, Ix | int, Ix | int, View, Ix]:
        """A program of one block: its call, camera, block and range of the order."""
        call = Call(f"splat_{what}", f"{self.region.name}.{what}")
        b = call.b
        order = call.view("order", i32, self.region.operands[1].buffer, self.region.operands[1].layout)
        count, blocks = call.word("splats", self.splats), call.word("blocks", self.blocks)
        self._size(call)
        camera, block = b.pid // blocks, b.pid % blocks
        start = block * self.block
        return call, camera, block, start, b.minimum(start + self.block, count), order, count

    @staticmethod
    def _splat(call: Call, order: View, camera: Ix | int, at: Ix | int, count: Ix) -> Ix | int:
        """The splat at a place of the order."""
        b = call.b
        return b.minimum(b.maximum(b.to_index(b.load(order, (camera, at), ())), 0), count - 1)

    def count(self) -> Launch:
        call, camera, block, start, stop, order, count = self._walk("count")
        b, given = call.b, self.region.operands[0]
        rects = call.view("rects", i32, given.buffer, given.layout)
        arranged = call.view("sorted", i32, self.sorted, self.sorted_layout, write=True)
        table = call.view("counts", i32, self.table, self.table_layout, write=True)
        sums = call.view("sums", i32, self.sums, self.sums_layout, write=True)
        with b.loop(0, self.tiles, LANES) as clear:
            b.store(table, (camera, block, clear.index), b.full((LANES,), 0, i32), limit=(self.tiles - clear.index,))
        with b.loop(start, stop, 1, [b.full((), 0, i32)]) as loop:
            splat = self._splat(call, order, camera, loop.index, count)
            ends = [b.to_index(b.load(rects, (camera, splat, i), ())) for i in range(4)]
            x0, y0 = b.maximum(ends[0], 0), b.maximum(ends[2], 0)
            x1, y1 = b.maximum(b.minimum(ends[1], self.across), x0), b.maximum(b.minimum(ends[3], self.down), y0)
            for i, end in enumerate((x0, x1, y0, y1)):
                b.store(arranged, (camera, loop.index, i), b.from_index(end, i32))
            with b.loop(y0, y1) as row, b.loop(x0, x1) as column:
                at = (camera, block, row.index * self.across + column.index)
                b.store(table, at, b.load(table, at, ()) + 1)
            loop.next(loop.carried[0] + b.from_index((x1 - x0) * (y1 - y0), i32))
        b.store(sums, (camera, block), loop.results[0])
        return call.finish(self.cameras * self.blocks, bytes_=self.splats * self.cameras * 20, note="counting sort over tiles")

    def lengths(self) -> Launch:
        """Turns each tile's counts of its blocks into places in its list; `starts` gets the length of the list."""
        call = Call("splat_lengths", f"{self.region.name}.lengths")
        b = call.b
        table = call.view("counts", i32, self.table, self.table_layout, write=True)
        out = self.region.results[2]
        starts = call.view("starts", i32, out.buffer, out.layout, write=True)
        blocks = call.word("blocks", self.blocks)
        self._size(call)
        parts = -(-self.lists // LANES)
        each = call.word("parts", parts)
        camera, first = b.pid // each, b.pid % each * LANES
        left = self.tiles - first
        with b.loop(0, blocks, 1, [b.full((LANES,), 0, i32)]) as loop:
            own = b.load(table, (camera, loop.index, first), (LANES,), limit=(left,))
            b.store(table, (camera, loop.index, first), loop.carried[0], limit=(left,))
            loop.next(loop.carried[0] + own)
        b.store(starts, (camera, first), loop.results[0], limit=(left,))
        call.also_reads(self.table)
        return call.finish(self.cameras * parts, bytes_=self.cameras * self.blocks * (self.lists * 8))

    def place(self) -> Launch:
        """Where lists begin, and where the entries of a block do."""
        call = Call("splat_place", f"{self.region.name}.place")
        b, camera = call.b, call.b.pid
        sums = call.view("sums", i32, self.sums, self.sums_layout, write=True)
        out = self.region.results[2]
        starts = call.view("starts", i32, out.buffer, out.layout, write=True)
        blocks, capacity = call.word("blocks", self.blocks), call.word("capacity", self.op.capacity)
        error = call.error()
        self._size(call)
        with b.loop(0, self.tiles, 1, [b.full((), 0, i32)]) as loop:
            own = b.load(starts, (camera, loop.index), ())
            b.store(starts, (camera, loop.index), loop.carried[0])
            loop.next(loop.carried[0] + own)
        b.store(starts, (camera, self.tiles), loop.results[0])
        total = b.to_index(loop.results[0])
        with b.if_(b.compare("gt", total, capacity)):
            report(b, error, CAPACITY, camera, total)
        with b.loop(0, blocks, 1, [b.full((), 0, i32)]) as loop:
            own = b.load(sums, (camera, loop.index), ())
            b.store(sums, (camera, loop.index), loop.carried[0])
            loop.next(loop.carried[0] + own)
        for buffer in (self.sums, out.buffer):
            call.also_reads(buffer)
        return call.finish(self.cameras, bytes_=self.cameras * (self.lists * 8))

    def fill(self) -> Launch:
        call, camera, block, start, stop, order, count = self._walk("fill")
        b = call.b
        arranged = call.view("sorted", i32, self.sorted, self.sorted_layout)
        ids, slots, starts, spans = (call.view(n, i32, o.buffer, o.layout, write=n != "starts")
                                     for n, o in zip(("ids", "slots", "starts", "spans"), self.region.results, strict=True))
        table = call.view("counts", i32, self.table, self.table_layout, write=True)
        sums = call.view("sums", i32, self.sums, self.sums_layout)
        capacity = call.word("capacity", self.op.capacity)
        call.also_reads(self.table)
        with b.loop(start, stop, 1, [b.load(sums, (camera, block), ())]) as loop:
            splat = self._splat(call, order, camera, loop.index, count)
            x0, x1, y0, y1 = (b.to_index(b.load(arranged, (camera, loop.index, i), ())) for i in range(4))
            first, wide = loop.carried[0], x1 - x0
            number = b.from_index(splat, i32)
            b.store(spans, (camera, splat, 0), first)
            b.store(spans, (camera, splat, 1), b.from_index(wide * (y1 - y0), i32))
            with b.loop(y0, y1) as row, b.loop(x0, x1) as column:
                tile = row.index * self.across + column.index
                used = b.load(table, (camera, block, tile), ())
                b.store(table, (camera, block, tile), used + 1)
                entry = b.to_index(b.load(starts, (camera, tile), ()) + used)
                with b.if_(b.compare("lt", entry, capacity)):
                    b.store(ids, (camera, entry), number)
                    b.store(slots, (camera, entry), first + b.from_index((row.index - y0) * wide + (column.index - x0), i32))
            loop.next(first + b.from_index(wide * (y1 - y0), i32))
        return call.finish(self.cameras * self.blocks, bytes_=self.splats * self.cameras * 28)
