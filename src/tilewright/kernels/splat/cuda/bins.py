"""Tile lists of splats on a GPU: count, add up, expand, sort by tile, and find where lists begin.

Splats are walked in depth order. Warps count the tiles of `CHUNK` splats each; running sums of the counts say where the entries of a splat
stand; a thread for each splat writes them as words of tile and place in depth order, and a stable radix sort by tile leaves every list in
depth order. No splats: all lists are empty. Rectangles are clamped to the image and `order` to splats that exist; a camera with more
entries than the capacity is reported, and the rest of its entries are left out.
"""

from __future__ import annotations

from ....core.dims import Dim, ceildiv
from ....core.dtypes import i32, u32, u64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.splats import SplatBin as SplatBinOp
from ....ops.splats import tiles_of
from ....tile.builder import Ix, View
from ...call import Call, report
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...launch import Buffer, Launch
from ...region import Region
from ...scan.cuda.running import sums_before
from ...sort.cuda.radix import Words
from ...sort.keys import RADIX, index_of
from ...template import Template
from ..bins import CAPACITY

CHUNK = 2048  # splats of a warp
STEP = 1024  # entries of a warp
HALVINGS = 31  # of lists of fewer than 2^31 entries
PROGRAMS = 8  # warps of a block
FIELDS = 4  # of a splat in depth order: its first tile, columns and rows of tiles, the splat


class CudaSplatBin(Template):
    key = "splat_bin"
    serves = (SplatBinOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        w = _Work(region)
        out = [w.count(), w.total(), w.first(), w.expand()]
        for shift in range(0, (w.lists - 1).bit_length(), RADIX):
            out += w.words.sort(shift)
        return [*out, w.finish(), w.starts()]


class _Work:
    """The launches and what lies between them."""

    def __init__(self, region: Region) -> None:
        assert isinstance(region.node.op, SplatBinOp)
        self.region, self.op, name = region, region.node.op, region.name
        self.columns, self.rows = tiles_of(self.op.width, self.op.height)
        self.lists = self.columns * self.rows
        self.cameras, self.splats = region.operands[1].type.shape
        self.chunks: Dim = ceildiv(self.splats, CHUNK)
        line, sums = (self.cameras, self.splats), (self.cameras, self.chunks)
        self.counts, self.firsts = ((Buffer(f"{name}.{n}", "temp", self.cameras * self.splats * 4), Layout.contiguous(line))
                                    for n in ("counts", "firsts"))
        self.sums, self.before = ((Buffer(f"{name}.{n}", "temp", self.cameras * self.chunks * 4), Layout.contiguous(sums))
                                  for n in ("sums", "before"))
        self.sorted = Buffer(f"{name}.sorted", "temp", self.cameras * self.splats * (4 * FIELDS)), Layout.contiguous((*line, FIELDS))
        self.lengths = Buffer(f"{name}.lengths", "temp", self.cameras * 4), Layout.contiguous((self.cameras,))
        self.words = Words(name, self.cameras, self.op.capacity, self.lengths[0])

    def _view(self, call: Call, what: str, *, write: bool = False) -> View:
        buffer, layout = getattr(self, what)
        return call.view(what, i32, buffer, layout, write=write)

    def _result(self, call: Call, index: int, name: str) -> View:
        out = self.region.results[index]
        return call.view(name, i32, out.buffer, out.layout, write=True)

    def _finish(self, call: Call, grid: Dim, threads: int, bytes_: Dim, note: str) -> Launch:
        launch = call.finish(grid, bytes_=bytes_, note=note)
        launch.kernel = on_threads(launch.kernel, threads, PROGRAMS if threads == WARP else WARP * PROGRAMS)
        return launch

    def _chunk(self, call: Call) -> tuple[Ix | int, Ix | int, Ix | int, Ix | int, Ix]:
        """Camera, chunk, first splat, one past the last, and number of splats."""
        b = call.b
        count, chunks = call.word("splats", self.splats), call.word("chunks", self.chunks)
        start = b.pid % chunks * CHUNK
        return b.pid // chunks, b.pid % chunks, start, b.minimum(start + CHUNK, count), count

    def count(self) -> Launch:
        """Splats in depth order with their tiles, and the sum of their tiles."""
        call = Call("splat_count", f"{self.region.name}.count")
        b = call.b
        rects, order = (call.view(n, i32, o.buffer, o.layout) for n, o in zip(("rects", "order"), self.region.operands, strict=True))
        counts, found, sums = (self._view(call, n, write=True) for n in ("counts", "sorted", "sums"))
        camera, chunk, start, stop, count = self._chunk(call)
        ends = [b.from_index(call.word(n, v), i32) for n, v in (("across", self.columns), ("down", self.rows))]
        with b.loop(start, stop, WARP, [b.full((WARP,), 0, i32)]) as loop:
            limit = (stop - loop.index,)
            splat = b.load(order, (camera, loop.index), (WARP,), limit=limit)
            splat = b.binary("min", b.binary("max", splat, 0), b.from_index(count - 1, i32))
            low, size = [], []
            for axis, end in enumerate(ends):
                first, last = (b.gather(rects, (camera, 0, 2 * axis + i), 1, splat) for i in range(2))
                first = b.binary("min", b.binary("max", first, 0), end)
                low.append(first)
                size.append(b.binary("max", b.binary("min", last, end), first) - first)
            area = b.select(b.cmp("lt", b.iota((WARP,), 0, i32), b.from_index(stop - loop.index, i32)), size[0] * size[1], 0)
            b.store(counts, (camera, loop.index), area, limit=limit)
            for i, x in enumerate((low[1] * ends[0] + low[0], *size, splat)):
                b.store(found, (camera, loop.index, i), x, limit=limit, axes=(1,))
            loop.next(loop.carried[0] + area)
        b.store(sums, (camera, chunk), b.reshape(b.reduce("sum", loop.results[0]), ()))
        return self._finish(call, self.cameras * self.chunks, WARP, self.cameras * self.splats * 40, "tiles of splats in depth order")

    def total(self) -> Launch:
        """What lies before each chunk, and how many entries there are."""
        call = Call("splat_total", f"{self.region.name}.total")
        b, camera = call.b, call.b.pid
        sums, before, lengths = self._view(call, "sums"), self._view(call, "before", write=True), self._view(call, "lengths", write=True)
        starts = self._result(call, 2, "starts")
        error = call.error()
        capacity = call.word("capacity", self.op.capacity)
        found = sums_before(b, sums, before, (camera,), call.word("chunks", self.chunks), most=self.chunks)
        b.store(starts, (camera, call.word("tiles", self.lists)), found)
        total = b.to_index(found)
        b.store(lengths, (camera,), b.from_index(b.minimum(total, capacity), i32))
        with b.if_(b.compare("gt", total, capacity)):
            report(b, error, CAPACITY, camera, total)
        return self._finish(call, self.cameras, WARP, self.cameras * self.chunks * 8, "sums of chunks")

    def first(self) -> Launch:
        """Where the entries of each splat begin."""
        call = Call("splat_first", f"{self.region.name}.first")
        b = call.b
        counts, firsts, before = self._view(call, "counts"), self._view(call, "firsts", write=True), self._view(call, "before")
        camera, chunk, start, stop, _ = self._chunk(call)
        sums_before(b, counts, firsts, (camera,), stop, start, b.load(before, (camera, chunk), ()), self.splats)
        return self._finish(call, self.cameras * self.chunks, WARP, self.cameras * self.splats * 8, "running sums")

    def expand(self) -> Launch:
        """A thread for each splat writes its entries."""
        call = Call("splat_expand", f"{self.region.name}.expand")
        b = call.b
        firsts, found = self._view(call, "firsts"), self._view(call, "sorted")
        words = call.view("words", u64, self.words.now, self.words.layout, write=True)
        spans = self._result(call, 3, "spans")
        count, across = call.word("splats", self.splats), call.word("across", self.columns)
        capacity = call.word("capacity", self.op.capacity)
        camera, at = b.pid // count, b.pid % count
        corner, wide, high, splat = (b.to_index(b.load(found, (camera, at, i), ())) for i in range(FIELDS))
        first = b.load(firsts, (camera, at), ())
        b.store(spans, (camera, splat, 0), first)
        b.store(spans, (camera, splat, 1), b.from_index(wide * high, i32))
        begin, own = b.to_index(first), b.from_index(at, u64)
        with b.loop(0, high) as row:
            line, tile = begin + row.index * wide, corner + row.index * across
            with b.loop(0, b.minimum(wide, capacity - line)) as column:
                key = b.binary("shl", b.from_index(tile + column.index, u64), 32)
                b.store(words, (camera, line + column.index), b.binary("or", key, own))
        moved = self.cameras * (self.splats * 28 + self.op.capacity * 8)
        return self._finish(call, self.cameras * self.splats, 1, moved, "entries of splats")

    def finish(self) -> Launch:
        """Splats and slots of the sorted entries."""
        call = Call("splat_finish", f"{self.region.name}.finish")
        b = call.b
        firsts, found = self._view(call, "firsts"), self._view(call, "sorted")
        words = call.view("words", u64, self.words.now, self.words.layout)
        ids, slots = self._result(call, 0, "ids"), self._result(call, 1, "slots")
        parts = ceildiv(self.op.capacity, STEP)
        per_camera, last = call.word("parts", parts), call.word("last", self.splats - 1)
        across = b.cast(b.from_index(call.word("across", self.columns), i32), u32)
        camera, start = b.pid // per_camera, b.pid % per_camera * STEP
        length = self.words.length(call, camera)
        with b.loop(start, b.minimum(start + STEP, length), WARP) as loop:
            limit = (length - loop.index,)
            word = b.load(words, (camera, loop.index), (WARP,), limit=limit)
            place = b.binary("min", b.binary("max", b.cast(index_of(b, word), i32), 0), b.from_index(last, i32))
            tile = b.cast(b.binary("shr", word, 32), i32)
            corner, wide, splat = (b.gather(found, (camera, 0, i), 1, place) for i in (0, 1, 3))
            ahead = b.cast(tile - corner, u32)
            row = b.binary("div", ahead, across)
            column = b.cast(ahead - row * across, i32)
            b.store(ids, (camera, loop.index), splat, limit=limit)
            slot = b.gather(firsts, (camera, 0), 1, place) + b.cast(row, i32) * wide + column
            b.store(slots, (camera, loop.index), slot, limit=limit)
        return self._finish(call, self.cameras * parts, WARP, self.cameras * self.op.capacity * 16, "splats of entries")

    def starts(self) -> Launch:
        """A thread for each tile looks for its first entry among the sorted ones."""
        call = Call("splat_starts", f"{self.region.name}.starts")
        b = call.b
        words = call.view("words", u64, self.words.now, self.words.layout)
        starts, tiles = self._result(call, 2, "starts"), call.word("tiles", self.lists)
        camera, tile = b.pid // tiles, b.pid % tiles
        wanted = b.binary("shl", b.from_index(tile, u64), 32)
        with b.loop(0, HALVINGS, 1, [b.full((), 0, i32), b.from_index(self.words.length(call, camera), i32)]) as loop:
            low, high = loop.carried
            middle = b.binary("shr", low + high, 1)
            some = b.cmp("lt", low, high)
            found = b.load(words, (camera, b.to_index(middle)), (1,), limit=(b.to_index(b.cast(some, i32)),))
            below = b.binary("and", some, b.cmp("lt", b.reshape(found, ()), wanted))
            loop.next(b.select(below, middle + 1, low), b.select(below, high, middle))
        b.store(starts, (camera, tile), loop.results[0])
        return self._finish(call, self.cameras * self.lists, 1, self.cameras * self.lists * 128, "first entries of tiles")
