"""Several sums over all axes but one, by whole blocks, on a GPU: what batch norms need (sums at once, or mean and variance), and gradients
of biases of convolutions.

A block walks a chunk of what is summed with a tile for every sum, tens of accesses in flight in every thread, and reduces the tiles at the
end; a second launch adds the chunks' sums in order, where there are several. How many follows from the shape alone, so every sum has one
order. Where results lie side by side in memory, what is read is seen as [1, rows, columns]; else a block takes one result and what is read
is [results, axes…, rows, columns], of which all but the first are summed.

A variance is summed around an element of each chunk, and chunks are joined by their means (Chan), so nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....core.dims import Dim, bounds, ceildiv, divisible, product
from ....core.dtypes import f32, i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.reductions import ChannelSums, Moments, OverOthers
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import vector_width
from ...cuda.tiled import aligned, tiled
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...template import Template, region_bytes, region_flops
from ..reduce import _leaves

WARP = 32
STRIP = 8  # columns of a block that adds the sums of chunks
WARPS = 8  # warps of a block
ELEMENTS = 32  # elements of all sums' tiles in a thread
CHUNKS = 512  # chunks of what a result sums, at most
BLOCKS = 512  # that keep a large chip busy
PER_SM = 3
KNOWN = 1 << 18  # rows, where their number is known no better


@dataclass
class Spot:
    """Where a tile of what is summed lies in views, whose last two axes are the tile's."""

    call: Call
    at: Sequence[Ix | int]
    shape: tuple[int, int]
    limit: tuple[Ix | int | None, Ix | int | None]

    def load(self, view: View) -> Tile:
        """What a view has here; axes along which it is repeated have one element."""
        once = [s == 0 for s in view.type.strides[-2:]]
        shape = tuple(1 if o else d for o, d in zip(once, self.shape, strict=True))
        limit = tuple(None if o else d for o, d in zip(once, self.limit, strict=True))
        return self.call.b.load(view, self.at, shape, limit=limit)

    def store(self, view: View, x: Tile) -> None:
        self.call.b.store(view, self.at, self.call.b.broadcast(x, self.shape), limit=self.limit)

    def masked(self, x: Tile, rows_only: bool) -> Tile:
        """Zeros behind the limits. Columns behind the last are sums that nobody stores."""
        b = self.call.b
        for axis, limit in enumerate(self.limit[:1] if rows_only else self.limit):
            if limit is not None:
                line = b.iota((self.shape[0], 1) if axis == 0 else (1, self.shape[1]), axis, i32)
                x = b.select(b.cmp("lt", line, b.from_index(limit, i32)), b.broadcast(x, self.shape), 0.0)
        return b.broadcast(x, self.shape)


Terms = Callable[[Spot], list[Tile]]  # what is summed, one tile a sum; then the spot's stores
Write = Callable[[Ix | int, Ix | int | None, list[Tile]], None]  # (first column, columns that are left, sums)


def _power(n: Dim, most: int) -> int:
    """The smallest power of two that is n at least, or `most`."""
    return min(most, 1 << (max(1, int(min(bounds(n)[1], most))) - 1).bit_length())


class Columns:
    """`count` sums (or, with `moments`, mean and variance) of terms that a call's views give. `outer`: axes around the rows that are
    summed as well; a block then takes one of the `width` results. The sums of chunks lie in `parts`."""

    def __init__(self, name: str, rows: Dim, width: Dim, count: int, vector: int, *, outer: Sequence[Dim] | None = None,
                 across: Dim = 1, moments: bool = False) -> None:
        self.rows, self.width, self.moments, self.outer = rows, width, moments, outer
        self.across: Dim = across  # columns of what a block sums, where it has one result
        self.sums = count if not moments else 2 if outer is None else 3  # a block's tiles; how many elements are columns is known
        each = max(1, ELEMENTS // (1 << (self.sums - 1).bit_length())) * WARP * WARPS
        if outer is None:
            wide = _power(width, max(32, 8 * vector))
            self.tile = _power(rows, max(1, each // wide)), wide
            steps = ceildiv(rows, self.tile[0])
            places: Dim = ceildiv(width, wide)
        else:
            wide = _power(across, 512)
            self.tile = _power(rows, max(1, each // wide)), wide
            self.steps = [*outer, ceildiv(rows, self.tile[0]), ceildiv(across, wide)]
            steps, places = product(self.steps), width
        self.warps = max(1, min(WARPS, self.tile[0] * wide // (WARP * max(1, vector))))
        wanted = max(1, min(CHUNKS, -(-BLOCKS // max(1, bounds(places)[0]))))
        most = int(min(bounds(steps)[1], max(1, KNOWN // self.tile[0])))
        self.per = max(1, -(-most // wanted))  # tiles of a chunk
        self.chunks = ceildiv(steps, self.per) if not isinstance(steps, int) or self.per < steps else 1
        self.count = 3 if moments else count
        self.parts = Buffer(f"{name}.parts", "temp", self.chunks * self.count * width * 4)

    def _line(self, call: Call, *, write: bool = False) -> View:
        layout = Layout.contiguous((self.chunks, self.count, self.width))
        return call.view("parts", f32, self.parts, layout, write=write)

    def launches(self, first: Call, terms: Terms, last: Call, write: Callable[[Call], Write], flops: Dim, nbytes: Dim, note: str,
                 vectors: dict[str, int]) -> list[Launch]:
        """The sums of chunks, and those of all; one launch of `first` where that is one chunk. `write` makes what stores the sums."""
        b = first.b
        store = write(first) if self.chunks == 1 else None
        out = None if self.chunks == 1 else self._line(first, write=True)
        chunks = first.word("chunks", self.chunks)
        place, chunk, column, left = self._walk(first, chunks)
        pivot = None
        if self.moments:
            one = replace(place(0), shape=(1, place(0).shape[1] if self.outer is None else 1), limit=(None, None))
            if self.outer is None:
                one = replace(one, limit=(None, left))
            (pivot,) = terms(one)
            pivot = b.select(b.cmp("lt", b.unary("abs", pivot), float("inf")), pivot, 0.0)

        def found(spot: Spot) -> list[Tile]:
            made = terms(spot)
            if pivot is not None:
                d = made[0] - pivot
                made = [d, d * d, b.full((1, 1), 1.0, f32)]
            return [spot.masked(x, self.outer is None) for x in made[: self.sums]]

        totals = self._summed(first, found, place)
        totals = [b.reduce("sum", t, 0) for t in totals]
        if self.outer is not None:
            totals = [b.reduce("sum", t, 1) for t in totals]
        if pivot is not None:
            if self.outer is None:
                many = b.minimum((self.last - self.first) * self.tile[0], self.left - self.first * self.tile[0])
                totals.append(b.broadcast(b.reshape(b.cast(b.from_index(many), f32), (1, 1)), totals[0].shape))
            s1, s2, n = totals
            shift = s1 / n
            totals = [pivot + shift, b.binary("max", s2 - s1 * shift, 0.0 * s1), n]  # s2 of a constant may be rounded below s1² / n
            if store is not None:
                totals = [totals[0], totals[1] / n]
        lines = [b.reshape(t, (t.shape[1],)) for t in totals]
        if store is not None:
            store(column, left, lines)
        else:
            assert out is not None
            for i, t in enumerate(lines):
                b.store(out, (chunk, i, column), t, limit=None if left is None else (left,))
        grid = self.chunks * ceildiv(self.width, self.tile[1]) if self.outer is None else self.width * self.chunks
        launch = first.finish(grid, flops=flops, bytes_=nbytes, note=note)
        launch = tiled(launch, warps=self.warps, vectors=vectors, per_sm=PER_SM)
        return [launch] if store is not None else [launch, self._second(last, write(last))]

    def _walk(self, call: Call, chunks: Ix | int) -> tuple[Callable[[Ix | int], Spot], Ix | int, Ix | int, Ix | int | None]:
        """(the spot of a chunk's tile, and chunk, first column and columns that are left of the block's results)."""
        b, (rows, wide) = call.b, self.tile
        m, n = call.word("rows", self.rows), call.word("n", self.width)
        self.left = m
        if self.outer is None:
            strips = b.ceildiv(n, wide)
            chunk, column = b.pid // strips, b.pid % strips * wide
            left = None if divisible(self.width, wide) else n - column
            self.last = b.minimum(chunk * self.per + self.per, b.ceildiv(m, rows))
            self.first = chunk * self.per

            def strip(step: Ix | int) -> Spot:
                row = (self.first + step) * rows
                return Spot(call, (0, row, column), self.tile, (None if divisible(self.rows, rows) else m - row, left))

            return strip, chunk, column, left
        w = call.word("across", self.across)
        sizes = [call.word(f"steps{i}", d) for i, d in enumerate(self.steps)]
        channel, chunk = b.pid // chunks, b.pid % chunks
        whole: Ix | int = 1
        for d in sizes:
            whole = whole * d
        self.first = chunk * self.per
        self.last = b.minimum(self.first + self.per, whole)

        def part(step: Ix | int) -> Spot:
            *outer, row, column = unravel(b, self.first + step, sizes)
            limit = (None if divisible(self.rows, rows) else m - row * rows, None if divisible(self.across, wide) else w - column * wide)
            return Spot(call, (channel, *outer, row * rows, column * wide), self.tile, limit)

        return part, chunk, channel, None

    def _summed(self, call: Call, found: Callable[[Spot], list[Tile]], place: Callable[[Ix | int], Spot]) -> list[Tile]:
        b = call.b
        with b.loop(0, self.last - self.first, 1, [b.full(self.tile, 0.0, f32)] * self.sums) as loop:
            loop.next(*(a + t for a, t in zip(loop.carried, found(place(loop.index)), strict=True)))
        return list(loop.results)

    def _second(self, call: Call, write: Write) -> Launch:
        """Sums of chunks, for strips of few columns."""
        b, parts = call.b, self._line(call)
        n, chunks = call.word("n", self.width), call.word("chunks", self.chunks)
        column = b.pid * STRIP
        left, rows = n - column, _power(self.chunks, CHUNKS // 2)

        def at(chunk: Ix | int, i: int) -> Tile:
            return b.load(parts, (chunk, i, column), (rows, STRIP), limit=(chunks - chunk, left), axes=(0, 2))

        def added(count: int, terms: Callable[[Ix], list[Tile]]) -> list[Tile]:
            with b.loop(0, chunks, rows, [b.full((rows, STRIP), 0.0, f32)] * count) as loop:
                loop.next(*(a + t for a, t in zip(loop.carried, terms(loop.index), strict=True)))
            return [b.reduce("sum", t, 0) for t in loop.results]

        if self.moments:
            total, many = added(2, lambda k: [at(k, 0) * at(k, 2), at(k, 2)])
            mean = total / many

            def spread(k: Ix) -> list[Tile]:
                d = at(k, 0) - mean
                return [at(k, 1) + d * d * at(k, 2)]

            sums = [mean, added(1, spread)[0] / many]
        else:
            sums = added(self.count, lambda k: [at(k, i) for i in range(self.count)])
        write(column, left, [b.reshape(t, (STRIP,)) for t in sums])
        moved = self.chunks * self.count * self.width * 4
        launch = call.finish(ceildiv(self.width, STRIP), bytes_=moved, note="sums of chunks")
        return tiled(launch, warps=max(1, min(WARPS, rows * STRIP // 128)))


class CudaChannelSums(Template):
    """With the elementwise work before and after them."""

    key = "channel_sums"
    serves = (ChannelSums, Moments)
    fuses = True

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        m, node = matrices(region), region.node
        outputs = list(zip(region.body.outputs, region.results, strict=True))
        before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
        after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
        m = parts_of(region) if m is None else m
        sizes = [o.type.dtype.itemsize for o in (*(region.given(v) for v in m.full), *(r for _, r in before))]
        along = m.width if m.outer is None else m.across
        vector = vector_width(sizes, along, m.wide)
        moments = isinstance(node.op, Moments)
        sums = Columns(region.name, m.rows, m.width, len(node.operands), vector, outer=m.outer, across=m.across, moments=moments)
        call = Call("channel_sums", region.name if sums.chunks == 1 else f"{region.name}.chunks")
        b = call.b
        views, vectors = dict[Value, View](), dict[str, int]()
        for i, (v, lay) in enumerate(zip(m.full, m.wide, strict=False)):
            views[v] = _view(call, f"x{i}", region.given(v), lay)
            vectors[f"x{i}"] = aligned(lay, along, 8)
        stored = []
        for i, ((_, r), lay) in enumerate(zip(before, m.wide[len(m.full) :], strict=True)):
            stored.append(_view(call, f"z{i}", r, lay, write=True))
            vectors[f"z{i}"] = aligned(lay, along, 8)

        def terms(spot: Spot) -> list[Tile]:
            evaluate = Evaluator(b, region, lambda v, o: spot.load(views[v]))
            found = [b.cast(evaluate(v), f32) for v in node.operands]
            made = [narrow(b, evaluate(v), r.type.dtype) for v, r in before]
            for x, view in zip(made, stored if spot.shape == sums.tile else [], strict=False):
                spot.store(view, x)
            return found

        def write(call: Call) -> Write:
            c = call.b
            thin = {v: _view(call, f"e{i}", region.given(v), lay) for i, (v, lay) in enumerate(m.late.items())}
            outs = [_view(call, f"y{i}", r, lay, write=True) for i, ((_, r), lay) in enumerate(zip(after, m.outs, strict=True))]

            def put(column: Ix | int, left: Ix | int | None, totals: list[Tile]) -> None:
                shape, limit = totals[0].shape, None if left is None else (left,)
                def leaf(v: Value, o: Operand) -> Tile:
                    one = thin[v].type.strides[0] == 0
                    return c.load(thin[v], (column,), (1,) if one else shape, limit=None if one else limit)

                evaluate = Evaluator(c, region, leaf, dict(zip(node.values, totals, strict=True)))
                made = [narrow(c, c.broadcast(evaluate(v), shape), r.type.dtype) for v, r in after]  # no load passes a store
                for x, view in zip(made, outs, strict=True):
                    c.store(view, (column,), x, limit=limit)

            return put

        last = Call("channel_sums_add", region.name)
        note = "columns, in chunks" if m.outer is None else "all but one axis, in chunks"
        return sums.launches(call, terms, last, write, region_flops(region), region_bytes(region), note, vectors)


def _view(call: Call, name: str, o: Operand, lay: Layout, *, write: bool = False) -> View:
    return call.view(name, o.type.dtype, o.buffer, lay, write=write)


@dataclass
class Matrices:
    rows: Dim
    width: Dim
    full: list[Value]  # what is read of the operand's shape
    wide: list[Layout]  # where that lies, then what is stored beside the sums: [1, rows, columns], or [width, *outer, rows, across]
    late: dict[Value, Layout]  # what is read of the results' shape: [columns]
    outs: list[Layout]  # the results
    outer: list[Dim] | None = None
    across: Dim = 1


@dataclass
class Parts:
    """What a region reads and writes around its sums."""

    full: list[Value]
    late: list[Value]
    wide: list[Layout]  # layouts of the operands' shape
    thin: list[Layout]  # layouts of the results' shape

    def lines(self, width: Dim) -> tuple[dict[Value, Layout], list[Layout]]:
        """What is read of the results' shape, and the results."""
        made = [Layout((width,), x.strides, x.offset) for x in self.thin]
        late = dict(zip(self.late, made, strict=False))
        return late, made[len(late) :]


def around(region: Region) -> Parts:
    """What stands around a region's sums."""
    node = region.node
    shape, small = node.operands[0].shape, node.values[0].shape
    outputs = list(zip(region.body.outputs, region.results, strict=True))
    before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
    after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
    full = _leaves(region, [*node.operands, *(v for v, _ in before)], None)
    late = _leaves(region, [v for v, _ in after], node)
    wide = [region.given(v).layout.expand(shape) for v in full] + [r.layout for _, r in before]
    thin = [region.given(v).layout.expand(small) for v in late] + [r.layout for _, r in after]
    return Parts(full, late, wide, thin)


def matrices(region: Region) -> Matrices | None:
    """Sums down the columns of matrices, or None."""
    node, found = region.node, around(region)
    assert isinstance(node.op, OverOthers)
    shape, wide, kept = node.operands[0].shape, found.wide, node.op.axis
    whole = next((lay for lay in wide if all(s != 0 or d == 1 for s, d in zip(lay.strides, shape, strict=True))), wide[0])
    if shape[kept] == 1 or any(x.strides[kept] not in (0, 1) for x in wide) or whole.strides[kept] != 1:
        return None
    order = sorted(node.op.axes(len(shape)), key=lambda a: -bounds(whole.strides[a])[1])
    dims = tuple(shape[a] for a in order)
    sizes, strides = collapse(dims, [Layout(dims, tuple(x.strides[a] for a in order)) for x in wide])
    if len(sizes) > 1:
        return None
    rows, steps = (sizes[0], [s[0] for s in strides]) if sizes else (1, [0] * len(wide))
    lays = [Layout((1, rows, shape[kept]), (0, step, x.strides[kept]), x.offset) for x, step in zip(wide, steps, strict=True)]
    return Matrices(rows, shape[kept], found.full, lays, *found.lines(shape[kept]))


def parts_of(region: Region) -> Matrices:
    """Sums over all axes but one, whatever the order of the axes in memory: of the summed ones, the last two of which lie closest."""
    node, found = region.node, around(region)
    assert isinstance(node.op, OverOthers)
    shape, kept = node.operands[0].shape, node.op.axis
    near = [sum(lay.strides[a] == 1 and shape[a] != 1 for lay in found.wide) for a in range(len(shape))]
    order = sorted(node.op.axes(len(shape)), key=lambda a: (near[a], a))
    dims = tuple(shape[a] for a in order)
    sizes, strides = collapse(dims, [Layout(dims, tuple(x.strides[a] for a in order)) for x in found.wide])
    pad = max(0, 2 - len(sizes))
    sizes, strides = [*(1,) * pad, *sizes], [[*(0,) * pad, *s] for s in strides]
    lays = [Layout((shape[kept], *sizes), (x.strides[kept], *s), x.offset) for x, s in zip(found.wide, strides, strict=True)]
    *outer, rows, across = sizes
    return Matrices(rows, shape[kept], found.full, lays, *found.lines(shape[kept]), outer, across)
