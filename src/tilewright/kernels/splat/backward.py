"""The backward pass of compositing splats, in two launches.

The first walks every tile's list from its end. A pixel carries the transmittance in front of it and what lies behind (the cotangent times
the colour of everything deeper, as if nothing stood before); both are brought forward splat by splat. Of a splat in a tile ten sums are
needed (`RECORD`): they are added over the rows of a band in registers, over lanes by a tree of shuffles that sums all ten at once, and
over bands in local memory, and go to the entry's slot. The second launch adds the slots of each splat in order and turns moments into
cotangents. No sum depends on threads. Splats without entries get zeros; where there are no splats nothing runs.
"""

from __future__ import annotations

from ...core.dims import ceildiv
from ...core.dtypes import f32, i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.splats import RECORD, TILE
from ...ops.splats import SplatRasterizeBackward as SplatRasterizeBackwardOp
from ...tile.builder import Ix, KernelBuilder, Tile
from ..call import Call
from ..launch import Buffer, Launch
from ..region import Region
from ..template import Reason, Template, region_bytes, region_flops
from .raster import splats_alone
from .shading import CHUNK, DEPTH, LANES, OPERANDS, RED, Shading

EACH = 64  # splats of a program of the second launch
GRADS = 4  # cotangents of a pixel: colour, depth


class SplatRasterizeBackwardTemplate(Template):
    key = "splat_rasterize_backward"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeBackwardOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        cameras, capacity = region.operands[5].type.shape
        records = Buffer(f"{region.name}.records", "temp", cameras * capacity * (RECORD * 4))
        layout = Layout.contiguous((cameras, capacity, RECORD))
        return [_Tiles(region, target, records, layout).build(), sums_of_slots(region, records, layout)]


def sums_of_lanes(b: KernelBuilder, parts: list[Tile]) -> Tile:
    """The sum over lanes of up to 16 vectors, that of vector i in lane i (other lanes hold anything)."""
    even, odd = range(0, 2 * LANES, 2), range(1, 2 * LANES, 2)
    for _ in range(LANES.bit_length() - 1):
        pairs = [*parts, parts[-1]] if len(parts) % 2 else parts
        parts = [b.shuffle(x, y, even) + b.shuffle(x, y, odd) for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
    return parts[0]


class _Tiles:
    """The first launch under construction."""

    def __init__(self, region: Region, target: TargetSpec, records: Buffer, layout: Layout) -> None:
        self.s = s = Shading(region, "splat_raster_backward", target, OPERANDS[:-1])
        self.b, self.rows, self.region = s.b, s.rows, region
        names = ("left", "last", "dcolor", "ddepth", "dleft")
        self.given = {n: s.call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(names, s.operands[len(OPERANDS) :], strict=True)}
        self.records = s.call.view("records", f32, records, layout, write=True, bake=(1,))
        b = self.b
        self.left, self.behind = (b.scratch(f32, (TILE, LANES)) for _ in range(2))
        self.grads, self.last = b.scratch(f32, (GRADS, TILE, LANES)), b.scratch(i32, (TILE, LANES))
        self.deepest = b.scratch(i32, (TILE,))  # the last entry that a row took
        self.sums = b.scratch(f32, (CHUNK, LANES))

    def build(self) -> Launch:
        b, s = self.b, self.s
        self._begin()
        chunks = b.ceildiv(s.stop - s.start, CHUNK)
        with b.loop(0, chunks) as back:
            before = (chunks - 1 - back.index) * CHUNK
            first = s.start + before
            count = b.minimum(s.stop - first, CHUNK)
            with b.loop(0, count) as clear:
                b.store(self.sums, (clear.index, 0), b.full((LANES,), 0.0))
            deepest = b.full((), 0, i32)
            for r in range(TILE):
                deepest = b.binary("max", deepest, b.load(self.deepest, (r,), ()))
            with b.if_(b.compare("gt", b.to_index(deepest), before)):
                s.stage(first, count)
                with b.loop(0, TILE, self.rows) as band:
                    reached = b.load(self.deepest, (band.index,), ())
                    for r in range(1, self.rows):
                        reached = b.binary("max", reached, b.load(self.deepest, (band.index + r,), ()))
                    with b.if_(b.compare("gt", b.to_index(reached), before)):
                        self._band(band.index, before, count)
            with b.loop(0, count) as entry:
                found = b.to_index(b.load(s.views["slots"], (s.camera, first + entry.index), ()))
                slot = b.minimum(b.maximum(found, 0), s.capacity - 1)
                b.store(self.records, (s.camera, slot, 0), b.load(self.sums, (entry.index, 0), (LANES,)), limit=(RECORD,))
        return s.call.finish(s.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), shared=True,
                             note=f"16x16 tiles in bands of {self.rows} rows")

    def _begin(self) -> None:
        b, s = self.b, self.s
        with b.loop(0, TILE) as row:
            limit, at = (s.inside(row.index),), (s.camera, s.y + row.index, s.x)
            b.store(self.left, (row.index, 0), b.load(self.given["left"], at, (LANES,), limit=limit))
            b.store(self.behind, (row.index, 0), b.load(self.given["dleft"], at, (LANES,), limit=limit))
            for i in range(3):
                b.store(self.grads, (i, row.index, 0), b.load(self.given["dcolor"], (*at, i), (LANES,), limit=limit, axes=(2,)))
            b.store(self.grads, (3, row.index, 0), b.load(self.given["ddepth"], at, (LANES,), limit=limit))
            last = b.load(self.given["last"], at, (LANES,), limit=limit)
            b.store(self.last, (row.index, 0), last)
            b.store(self.deepest, (row.index,), b.reshape(b.reduce("max", last), ()))

    def _band(self, row: Ix, before: Ix | int, count: Ix | int) -> None:
        b, s, n = self.b, self.s, self.rows
        hits = s.hit(row, count)
        carried = [b.load(view, (row + r, 0), (LANES,)) for view in (self.left, self.behind) for r in range(n)]
        with b.loop(0, hits, 1, carried) as loop:
            number = b.to_index(b.load(s.hits, (hits - 1 - loop.index,), ()))
            left, behind = loop.carried[:n], loop.carried[n:]
            dx, dys, raw, drawn = s.alphas(number, row)
            paint = [s.each(q, number) for q in (RED, RED + 1, RED + 2, DEPTH)]
            entry = b.broadcast(b.from_index(before + number + 1, i32), (LANES,))
            moments: list[Tile | None] = [None] * 3  # moments of dy, over rows
            painted: list[Tile | None] = [None] * GRADS
            new_left, new_behind = [], []
            for r in range(n):
                grads = [b.load(self.grads, (i, row + r, 0), (LANES,)) for i in range(GRADS)]
                taken = b.binary("and", drawn[r], b.cmp("le", entry, b.load(self.last, (row + r, 0), (LANES,))))
                alpha = s.capped(raw[r])
                front = b.binary("div", left[r], 1.0 - alpha)
                own = paint[0] * grads[0]
                for x, g in zip(paint[1:], grads[1:], strict=True):
                    own = b.fma(x, g, own)
                apart = own - behind[r]
                weight = b.select(taken, alpha * front, 0.0)
                new_left.append(b.select(taken, front, left[r]))
                new_behind.append(b.select(taken, b.fma(alpha, apart, behind[r]), behind[r]))
                slope = b.select(b.cmp("lt", raw[r], s.op.alpha_max), weight * apart, 0.0)
                for i, g in enumerate(grads):
                    painted[i] = _plus(b, weight, g, painted[i])
                tilted = slope * dys[r]
                moments = [slope if moments[0] is None else moments[0] + slope, tilted if moments[1] is None else moments[1] + tilted,
                           _plus(b, tilted, dys[r], moments[2])]
            one, along, square = (m for m in moments if m is not None)
            across = one * dx
            sums = sums_of_lanes(b, [one, across, across * dx, along, along * dx, square, *(p for p in painted if p is not None)])
            b.store(self.sums, (number, 0), b.load(self.sums, (number, 0), (LANES,)) + sums)
            loop.next(*new_left, *new_behind)
        for i, view in enumerate((self.left, self.behind)):
            for r in range(n):
                b.store(view, (row + r, 0), loop.results[i * n + r])


def _plus(b: KernelBuilder, x: Tile, y: Tile, total: Tile | None) -> Tile:
    return x * y if total is None else b.fma(x, y, total)


def sums_of_slots(region: Region, records: Buffer, layout: Layout, *, each: int = EACH, bands: int = 1, space: str = "local") -> Launch:
    """Slots of each splat added in order, and the cotangents that follow from them. A program has `each` splats, a slot `bands` records;
    the sums lie in memory of that space."""
    call = Call("splat_sums", f"{region.name}.sums")
    b = call.b
    operands = [region.operands[i] for i in (1, 2, 8)]
    conics, opacities, spans = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in
                                zip(("conics", "opacities", "spans"), operands, strict=True))
    source = call.view("records", f32, records, layout, bake=(1,))
    names = ("dmeans", "dconics", "dopacities", "dcolors", "ddepths")
    outs = {n: call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(names, region.results, strict=True)}
    cameras, splats = operands[1].type.shape
    blocks = ceildiv(splats, each)
    total, per_camera, capacity = call.word("splats", splats), call.word("blocks", blocks), call.word("capacity", layout.shape[1])
    camera, start = b.pid // per_camera, b.pid % per_camera * each
    found = b.scratch(f32, (LANES,), space)
    with b.loop(start, b.minimum(start + each, total)) as loop:
        splat = loop.index
        begin, count = (b.to_index(b.load(spans, (camera, splat, i), ())) for i in range(2))
        first = b.minimum(b.maximum(begin, 0) * bands, capacity)
        last = b.minimum(first + b.maximum(count, 0) * bands, capacity)
        with b.loop(first, last, 1, [b.full((LANES,), 0.0)], unroll=bands if bands > 1 else None) as slot:
            slot.next(slot.carried[0] + b.load(source, (camera, slot.index, 0), (LANES,), limit=(RECORD,)))
        b.store(found, (0,), slot.results[0])
        stored = [b.token()]
        one, x, xx, y, xy, yy, *paint, depth = (b.load(found, (i,), (), after=stored) for i in range(RECORD))
        k0, k1, k2 = (b.load(conics, (camera, splat, i), ()) for i in range(3))
        opacity = b.load(opacities, (camera, splat), ())
        values = {"dmeans": (b.fma(k0, x, k1 * y), b.fma(k1, x, k2 * y)), "dconics": (xx * -0.5, xy * -1.0, yy * -0.5),
                  "dcolors": tuple(paint)}
        for name, parts in values.items():
            for i, v in enumerate(parts):
                # a splat that is nowhere drawn may have a conic of NaN
                b.store(outs[name], (camera, splat, i), b.select(b.compare("gt", count, 0), v, 0.0))
        b.store(outs["dopacities"], (camera, splat), b.select(b.cmp("ne", one, 0.0), one / opacity, 0.0))
        b.store(outs["ddepths"], (camera, splat), depth)
    return call.finish(cameras * blocks, bytes_=region_bytes(region))
