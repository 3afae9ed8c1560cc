"""Splats composited front to back, one program a tile. A band of pixel rows holds its sums in registers while a chunk of the list passes; a
band whose pixels have all ended takes no further chunk, and a tile of such bands ends. A pixel that has ended has a negative transmittance,
which fails the test that ends pixels: no flag is needed. Pixels outside the image have ended before they begin.
"""

from __future__ import annotations

from ...core.dtypes import f32, i32
from ...core.target_spec import TargetSpec
from ...ops.splats import TILE
from ...ops.splats import SplatRasterize as SplatRasterizeOp
from ...tile.builder import Ix, Tile, View
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template, alone, region_bytes, region_flops
from .shading import CHUNK, DEPTH, LANES, OPERANDS, RED, Shading

SUMS = 5  # transmittance, colour, depth


def splats_alone(region: Region, op: type) -> Reason | None:
    wrong = alone(region, op)
    if wrong is None and region.operands[0].type.dtype is not f32:
        return Reason("splats are composited in f32; cast first")
    return wrong


class SplatRasterizeTemplate(Template):
    key = "splat_rasterize"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [_Raster(region, target).build()]


class _Raster:
    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.s = s = Shading(region, "splat_raster", target, [n for n in OPERANDS if n not in ("slots", "spans")])
        self.b, self.rows, self.region = s.b, s.rows, region
        names = ("color", "depth", "left", "last")
        self.out = {n: s.call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(names, region.results, strict=True)}
        self.state, self.last = self.b.scratch(f32, (SUMS, TILE, LANES)), self.b.scratch(i32, (TILE, LANES))
        self.alive = self.b.scratch(i32, (1,))

    def build(self) -> Launch:
        b, s = self.b, self.s
        self._begin()
        with b.loop(s.start, s.stop, CHUNK) as chunk, b.if_(b.cmp("ne", b.load(self.alive, (0,), ()), 0)):
            count = b.minimum(s.stop - chunk.index, CHUNK)
            s.stage(chunk.index, count)
            b.store(self.alive, (0,), b.full((), 0, i32))
            with b.loop(0, TILE, self.rows) as band:
                left = [b.load(self.state, (0, band.index + r, 0), (LANES,)) for r in range(self.rows)]
                with b.if_(self._any(left)):
                    self._band(band.index, chunk.index - s.start, count, left)
        self._end()
        return s.call.finish(s.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), shared=True,
                             note=f"16x16 tiles in bands of {self.rows} rows")

    def _any(self, left: list[Tile]) -> Tile:
        b = self.b
        found = b.cmp("gt", left[0], 0.0)
        for t in left[1:]:
            found = b.binary("or", found, b.cmp("gt", t, 0.0))
        return b.reshape(b.reduce("any", found), ())

    def _begin(self) -> None:
        b, s = self.b, self.s
        with b.loop(0, TILE) as row:
            seen = b.cmp("lt", b.iota((LANES,), 0, i32), b.from_index(s.inside(row.index), i32))
            b.store(self.state, (0, row.index, 0), b.select(seen, b.full((LANES,), 1.0), -1.0))
            for i in range(1, SUMS):
                b.store(self.state, (i, row.index, 0), b.full((LANES,), 0.0))
            b.store(self.last, (row.index, 0), b.full((LANES,), 0, i32))
        b.store(self.alive, (0,), b.full((), 1, i32))

    def _band(self, row: Ix, before: Ix | int, count: Ix | int, left: list[Tile]) -> None:
        """One chunk over one band; `before` entries of the list went before it."""
        b, s, n = self.b, self.s, self.rows
        sums = [b.load(self.state, (i, row + r, 0), (LANES,)) for i in range(1, SUMS) for r in range(n)]
        lasts = [b.load(self.last, (row + r, 0), (LANES,)) for r in range(n)]
        with b.loop(0, s.hit(row, count), 1, [*left, *sums, *lasts]) as loop:
            number = b.to_index(b.load(s.hits, (loop.index,), ()))
            entry = b.from_index(before + number + 1, i32)
            _, _, raw, drawn = s.alphas(number, row)
            paint = [s.each(q, number) for q in (RED, RED + 1, RED + 2, DEPTH)]
            left, sums, lasts = loop.carried[:n], loop.carried[n : n * SUMS], loop.carried[n * SUMS :]
            new: list[list[Tile]] = [[] for _ in range(SUMS + 1)]
            for r in range(n):
                weight = s.capped(raw[r]) * left[r]
                after = left[r] - weight
                goes = b.cmp("ge", after, s.op.stop)
                taken = b.binary("and", drawn[r], goes)
                weight = b.select(taken, weight, 0.0)
                new[0].append(b.select(drawn[r], b.select(goes, after, -b.unary("abs", left[r])), left[r]))
                for i, x in enumerate(paint):
                    new[1 + i].append(b.fma(weight, x, sums[i * n + r]))
                new[SUMS].append(b.select(taken, b.broadcast(entry, (LANES,)), lasts[r]))
            loop.next(*(x for part in new for x in part))
        done = loop.results
        for i in range(SUMS):
            for r in range(n):
                b.store(self.state, (i, row + r, 0), done[i * n + r])
        for r in range(n):
            b.store(self.last, (row + r, 0), done[SUMS * n + r])
        b.store(self.alive, (0,), b.binary("or", b.load(self.alive, (0,), ()), b.cast(self._any(done[:n]), i32)))

    def _end(self) -> None:
        b, s = self.b, self.s
        with b.loop(0, TILE) as row:
            limit = (s.inside(row.index),)
            at = (s.camera, s.y + row.index, s.x)
            for i in range(3):
                self._put(self.out["color"], (*at, i), b.load(self.state, (1 + i, row.index, 0), (LANES,)), limit, (2,))
            self._put(self.out["depth"], at, b.load(self.state, (4, row.index, 0), (LANES,)), limit, (2,))
            self._put(self.out["left"], at, b.unary("abs", b.load(self.state, (0, row.index, 0), (LANES,))), limit, (2,))
            self._put(self.out["last"], at, b.load(self.last, (row.index, 0), (LANES,)), limit, (2,))

    def _put(self, view: View, at: tuple[Ix | int, ...], x: Tile, limit: tuple[Ix | int, ...], axes: tuple[int, ...]) -> None:
        self.b.store(view, at, x, limit=limit, axes=axes)
