"""What the compositing of a tile and its backward pass share: a tile's chunk of splats in local memory, which of them touch a band of
pixel rows, and the alpha of one splat in one row.

A program has one 16x16 tile of one camera. It takes the tile's list in chunks; a chunk's splats are gathered 16 at a time into local
memory, one array a quantity. A tile is worked on in bands of a few rows whose pixels are vectors along x. For each band the splats are
found whose alpha reaches `alpha_min` somewhere in the band's rectangle (exactly: the least exponent over a rectangle lies on the edges next
to the mean), and their numbers compacted, so that the inner loop has no branch. Both passes compute an alpha by the same instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.dims import Dim
from ...core.dtypes import f32, i32
from ...core.target_spec import TargetSpec
from ...ops.splats import TILE, SplatRasterize, SplatRasterizeBackward, tiles_of
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..region import Region

LANES = 16
CHUNK = 64  # entries of a list in local memory at a time
LOG2E = math.log2(math.e)
SLACK = 0.02  # exponent by which the test of a band is generous: more than rounding
# Rows of local memory: mean; exponent qa dx² + qb dx dy + qc dy² of 2; log2 of the opacity; colour; depth; the least exponent drawn; where
# the exponent is largest along a line of constant dx (dy = along_y dx) and of constant dy
MX, MY, QA, QB, QC, OPACITY, RED, GREEN, BLUE, DEPTH, LEAST, ALONG_Y, ALONG_X = range(13)
OPERANDS = ("means", "conics", "opacities", "colors", "depths", "ids", "slots", "starts", "spans")


def band_rows(target: TargetSpec) -> int:
    """Rows of a band: as many as registers hold the sums of. Results do not depend on it."""
    return 4 if target.vector_bits >= 512 else 1


class Shading:
    """A kernel over tiles under construction."""

    def __init__(self, region: Region, kernel: str, target: TargetSpec, used: Sequence[str] = OPERANDS) -> None:
        assert region.anchor is not None and isinstance(region.anchor.op, (SplatRasterize, SplatRasterizeBackward))
        self.op, self.region, self.rows = region.anchor.op, region, band_rows(target)
        self.operands = [o for v in region.anchor.operands if (o := region.operand(v)) is not None]
        self.call = call = Call(kernel, region.name)
        self.b = b = call.b
        given = dict(zip(OPERANDS, self.operands, strict=False))
        self.views = {n: call.view(n, given[n].type.dtype, given[n].buffer, given[n].layout) for n in used}
        self.cameras, splats = given["opacities"].type.shape
        across, down = tiles_of(self.op.width, self.op.height)
        self.grid: Dim = self.cameras * (across * down)
        self.splats, self.capacity = call.word("splats", splats), call.word("capacity", given["ids"].type.shape[1])
        self.width, self.height = call.word("width", self.op.width), call.word("height", self.op.height)
        columns, tiles = call.word("across", across), call.word("tiles", across * down)
        self.camera, tile = b.pid // tiles, b.pid % tiles
        self.x, self.y = tile % columns * TILE, tile // columns * TILE
        room = b.minimum(self.capacity, self.capacity * self.splats)  # nothing where there are no splats
        self.start = b.minimum(b.maximum(self._start(tile), 0), room)
        self.stop = b.minimum(b.maximum(self._start(tile + 1), self.start), room)
        self.local = b.scratch(f32, (ALONG_X + 1, CHUNK))
        self.flags, self.hits = b.scratch(i32, (LANES,)), b.scratch(i32, (CHUNK,))
        self.px = b.iota((LANES,), 0, f32) + (b.from_index(self.x, f32) + 0.5)

    def _start(self, tile: Ix | int) -> Ix:
        return self.b.to_index(self.b.load(self.views["starts"], (self.camera, tile), ()))

    def inside(self, row: Ix | int) -> Ix | int:
        """Pixels of a tile's row that are in the image."""
        b = self.b
        return b.maximum(b.minimum(b.minimum(self.width - self.x, LANES), (self.height - self.y - row) * LANES), 0)

    def splat(self, view: View, at: Sequence[Ix | int], index: Tile) -> Tile:
        return self.b.gather(view, (self.camera, 0, *at), 1, index)

    def stage(self, first: Ix | int, count: Ix | int) -> None:
        """`count` splats of the list from entry `first` on, into local memory."""
        b, v = self.b, self.views
        with b.loop(0, count, LANES) as loop:
            k, left = loop.index, count - loop.index
            index = b.load(v["ids"], (self.camera, first + k), (LANES,), limit=(left,))
            index = b.binary("min", b.binary("max", index, 0), b.from_index(self.splats - 1, i32))
            qa, qb, qc = (self.splat(v["conics"], (i,), index) * s for i, s in enumerate((-0.5 * LOG2E, -LOG2E, -0.5 * LOG2E)))
            opacity = b.unary("log2", self.splat(v["opacities"], (), index))
            # a splat past the end of the chunk fails every test
            least = b.select(b.cmp("lt", b.iota((LANES,), 0, i32), b.from_index(left, i32)),
                             math.log2(self.op.alpha_min) - SLACK - opacity, math.inf)
            rows = {MX: self.splat(v["means"], (0,), index), MY: self.splat(v["means"], (1,), index), QA: qa, QB: qb, QC: qc,
                    OPACITY: opacity, DEPTH: self.splat(v["depths"], (), index), LEAST: least,
                    ALONG_Y: qb / (qc * -2.0), ALONG_X: qb / (qa * -2.0)}
            rows |= {RED + i: self.splat(v["colors"], (i,), index) for i in range(3)}
            for row, x in rows.items():
                b.store(self.local, (row, k), x)

    def hit(self, row: Ix, count: Ix | int) -> Ix:
        """Compact the numbers of the staged splats that touch the band at `row` into `hits`; how many there are."""
        b = self.b
        left, right = (b.from_index(self.x, f32) + d for d in (0.5, LANES - 0.5))
        low, high = (b.from_index(self.y + row, f32) + d for d in (0.5, self.rows - 0.5))
        with b.loop(0, count, LANES, [b.full((), 0, i32)]) as loop:
            k = loop.index
            mx, my, qa, qb, qc, least, along_y, along_x = (
                b.load(self.local, (i, k), (LANES,)) for i in (MX, MY, QA, QB, QC, LEAST, ALONG_Y, ALONG_X))
            x, y = (left - mx, right - mx), (low - my, high - my)
            none = b.full((LANES,), 0.0)
            near_x, near_y = self._clamp(none, x), self._clamp(none, y)

            def exponent(dx: Tile, dy: Tile, qa: Tile = qa, qb: Tile = qb, qc: Tile = qc) -> Tile:
                return qa * dx * dx + qb * dx * dy + qc * dy * dy

            first, second = exponent(near_x, self._clamp(along_y * near_x, y)), exponent(self._clamp(along_x * near_y, x), near_y)
            found = b.select(b.cmp("gt", first, second), first, second)
            b.store(self.flags, (0,), b.cast(b.cmp("ge", found, least), i32))
            with b.loop(0, LANES, 1, [loop.carried[0]], unroll=LANES) as lane:
                b.store(self.hits, (b.to_index(lane.carried[0]),), b.from_index(k + lane.index, i32))
                lane.next(lane.carried[0] + b.load(self.flags, (lane.index,), ()))
            loop.next(lane.results[0])
        return b.to_index(loop.results[0])

    def _clamp(self, x: Tile, ends: tuple[Tile, Tile]) -> Tile:
        """Selections are shorter than min and max, which keep NaN: here a splat of NaN fails the test behind."""
        b = self.b
        x = b.select(b.cmp("lt", x, ends[1]), x, ends[1])
        return b.select(b.cmp("gt", x, ends[0]), x, ends[0])

    def each(self, quantity: int, number: Ix) -> Tile:
        """A quantity of a staged splat, for all lanes."""
        return self.b.broadcast(self.b.load(self.local, (quantity, number), (1,)), (LANES,))

    def alphas(self, number: Ix, row: Ix) -> tuple[Tile, list[Tile], list[Tile], list[Tile]]:
        """dx, and of every row of the band dy, opacity times falloff, and which pixels draw the staged splat."""
        b = self.b
        dx = self.px - self.each(MX, number)
        qa, qb, qc, my, opacity = (self.each(i, number) for i in (QA, QB, QC, MY, OPACITY))
        square, linear = b.fma(qa * dx, dx, opacity), qb * dx
        top = b.broadcast(b.from_index(self.y + row, f32) + 0.5, (LANES,)) - my
        dys = [top + float(r) for r in range(self.rows)]
        raw = [b.unary("exp2", b.fma(b.fma(qc, dy, linear), dy, square)) for dy in dys]
        return dx, dys, raw, [b.cmp("ge", a, self.op.alpha_min) for a in raw]

    def capped(self, raw: Tile) -> Tile:
        return self.b.select(self.b.cmp("lt", raw, self.op.alpha_max), raw, self.op.alpha_max)
