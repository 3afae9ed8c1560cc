"""Tile lists of splats on a GPU: count, add up, expand, sort by tile, and find where lists begin.

Splats are walked in depth order. Warps count the tiles of `CHUNK` splats each; running sums of the counts say where the entries of a splat
stand. A warp writes the entries of 32 splats side by side, each lane looking for the splat of its entry, as words of tile and place in
depth order; a stable radix sort by tile leaves every list in depth order. No splats: all lists are empty. Rectangles are clamped to the
image and `order` to splats that exist; a camera with more entries than the capacity is reported, and the rest are left out.
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
from ...scan.cuda.running import scanned, sums_before
from ...sort.cuda.radix import Words
from ...sort.keys import RADIX, index_of
from ...template import Template
from ..bins import CAPACITY

CHUNK = 2048  # splats of a warp
STEP = 1024  # entries of a warp
AT_ONCE = 4  # tiles of them in a step
HALVINGS = 31  # steps of a search in lists of fewer than 2^31 entries
PROGRAMS = 8  # warps of a block
FIELDS = 4  # fields of a splat in depth order: its first tile, columns of tiles, first entry, the splat
FIRST = 2


class CudaSplatBin(Template):
    key = "splat_bin"
    serves = (SplatBinOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        w = _Work(region)
        out = [w.count(), w.total(), w.first(), w.spans(), w.expand()]
        sort = w.words.sort(range(0, (w.lists - 1).bit_length(), RADIX))
        return [*out, *sort, w.finish(), w.starts()]


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
        self.counts = Buffer(f"{name}.counts", "temp", self.cameras * self.splats * 4), Layout.contiguous(line)
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
            for i, x in ((0, low[1] * ends[0] + low[0]), (1, size[0]), (3, splat)):
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
        counts, found, before = self._view(call, "counts"), self._view(call, "sorted", write=True), self._view(call, "before")
        call.also_reads(self.sorted[0])
        camera, chunk, start, stop, _ = self._chunk(call)
        scanned(b, start, stop, b.load(before, (camera, chunk), ()), lambda p: b.load(counts, (camera, p[0]), (WARP,), limit=p[1]),
                lambda p, own, upto: b.store(found, (camera, p[0], FIRST), upto - own, limit=p[1], axes=(1,)), most=self.splats)
        return self._finish(call, self.cameras * self.chunks, WARP, self.cameras * self.splats * 8, "running sums")

    def spans(self) -> Launch:
        """First entry and number of entries of every splat, in the order of the splats."""
        call = Call("splat_spans", f"{self.region.name}.spans")
        b = call.b
        counts, found, spans = self._view(call, "counts"), self._view(call, "sorted"), self._result(call, 3, "spans")
        count = call.word("splats", self.splats)
        camera, at = b.pid // count, b.pid % count
        splat = b.minimum(b.maximum(b.to_index(b.load(found, (camera, at, 3), ())), 0), count - 1)
        b.store(spans, (camera, splat, 0), b.load(found, (camera, at, FIRST), ()))
        b.store(spans, (camera, splat, 1), b.load(counts, (camera, at), ()))
        return self._finish(call, self.cameras * self.splats, 1, self.cameras * self.splats * 20, "spans of splats")

    def expand(self) -> Launch:
        """A warp for each 32 splats writes their entries."""
        call = Call("splat_expand", f"{self.region.name}.expand")
        b = call.b
        found, counts = self._view(call, "sorted"), self._view(call, "counts")
        words = call.view("words", u64, self.words.now, self.words.layout, write=True)
        parts = ceildiv(self.splats, WARP)
        count, per_camera = call.word("splats", self.splats), call.word("parts", parts)
        across = b.from_index(call.word("across", self.columns), i32)
        capacity = call.word("capacity", self.op.capacity)
        camera, base = b.pid // per_camera, b.pid % per_camera * WARP
        last = b.minimum(base + WARP, count) - 1
        begin = b.maximum(b.to_index(b.load(found, (camera, base, FIRST), ())), 0)
        behind = b.to_index(b.load(found, (camera, last, FIRST), ()) + b.load(counts, (camera, last), ()))
        end, final = b.minimum(behind, capacity), b.from_index(last, i32)
        with b.loop(begin, end, WARP) as loop:
            entry = b.iota((WARP,), 0, i32) + b.from_index(loop.index, i32)
            place = b.broadcast(b.from_index(base, i32), (WARP,))
            for step in (16, 8, 4, 2, 1):  # the last splat that begins no later
                next_ = b.binary("min", place + step, final)
                place = b.select(b.cmp("le", b.gather(found, (camera, 0, FIRST), 1, next_), entry), next_, place)
            corner, wide, first = (b.gather(found, (camera, 0, i), 1, place) for i in (0, 1, FIRST))
            ahead, wide = b.cast(entry - first, u32), b.cast(b.binary("max", wide, 1), u32)
            row = b.binary("div", ahead, wide)
            tile = corner + b.cast(row, i32) * across + b.cast(ahead - row * wide, i32)
            word = b.binary("or", b.binary("shl", b.cast(tile, u64), 32), b.cast(place, u64))
            b.store(words, (camera, loop.index), word, limit=(end - loop.index,))
        moved = self.cameras * (self.splats * 20 + self.op.capacity * 8)
        return self._finish(call, self.cameras * parts, WARP, moved, "entries of splats")

    def finish(self) -> Launch:
        """Splats and slots of the sorted entries."""
        call = Call("splat_finish", f"{self.region.name}.finish")
        b = call.b
        found = self._view(call, "sorted")
        words = call.view("words", u64, self.words.now, self.words.layout)
        ids, slots = self._result(call, 0, "ids"), self._result(call, 1, "slots")
        parts = ceildiv(self.op.capacity, STEP)
        per_camera, last = call.word("parts", parts), call.word("last", self.splats - 1)
        across = b.cast(b.from_index(call.word("across", self.columns), i32), u32)
        camera, start = b.pid // per_camera, b.pid % per_camera * STEP
        length = self.words.length(call, camera)
        with b.loop(start, b.minimum(start + STEP, length), WARP * AT_ONCE) as loop:
            places = [(loop.index + i * WARP, (length - loop.index - i * WARP,)) for i in range(AT_ONCE)]
            found_words = [b.load(words, (camera, at), (WARP,), limit=limit) for at, limit in places]
            for (at, limit), word in zip(places, found_words, strict=True):
                place = b.binary("min", b.binary("max", b.cast(index_of(b, word), i32), 0), b.from_index(last, i32))
                corner, wide, first, splat = (b.gather(found, (camera, 0, i), 1, place) for i in range(FIELDS))
                ahead = b.cast(b.cast(b.binary("shr", word, 32), i32) - corner, u32)
                row = b.binary("div", ahead, across)
                b.store(ids, (camera, at), splat, limit=limit)
                b.store(slots, (camera, at), first + b.cast(row, i32) * wide + b.cast(ahead - row * across, i32), limit=limit)
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
