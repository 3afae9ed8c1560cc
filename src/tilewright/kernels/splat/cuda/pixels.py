"""What the compositing of splats and its backward pass share on a GPU.

A launch packs the numbers of every splat side by side. Then a program has a band of 16 x ROWS pixels of a tile, in the registers of 16
threads. It takes the tile's list 16 entries at a time: each thread tests one splat against the band's rectangle (exactly, as on the CPU),
and the band walks those that touch it; a splat's numbers are loaded by all threads at once from one address. Both passes compute an alpha
by the same instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....core.dims import Dim, ceildiv
from ....core.dtypes import f32, i32
from ....ir.layout import Layout
from ....ops.splats import TILE, SplatRasterize, SplatRasterizeBackward, tiles_of
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, stacked
from ...cuda.kernel import WARP
from ...launch import Buffer, Launch
from ...region import Region
from ..shading import ALONG_X, ALONG_Y, DEPTH, LEAST, LOG2E, MX, MY, OPACITY, OPERANDS, QA, QB, QC, RED, SLACK

ROWS = 8  # pixel rows of a program
BANDS = TILE // ROWS
SHAPE = (ROWS, TILE)
BLOCK = 128  # threads
PACKED = 16  # numbers of a packed splat: those of `shading`, and room so that one starts at a multiple of 64 bytes
SPLATS = OPERANDS[:5]  # what is packed


def packed(region: Region) -> tuple[Launch, Buffer]:
    """The numbers of every splat side by side."""
    assert region.anchor is not None and isinstance(region.anchor.op, (SplatRasterize, SplatRasterizeBackward))
    operands = dict(zip(SPLATS, (region.given(v) for v in region.anchor.operands), strict=False))
    cameras, splats = operands["opacities"].type.shape
    buffer = Buffer(f"{region.name}.packed", "temp", cameras * splats * (4 * PACKED))
    call = Call("splat_pack", f"{region.name}.pack")
    b = call.b
    views = {n: call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in operands.items()}
    out = call.view("packed", f32, buffer, Layout.contiguous((cameras, splats, PACKED)), write=True, bake=(1,))
    count, parts = call.word("splats", splats), ceildiv(splats, WARP)
    per_camera = call.word("parts", parts)
    camera, first = b.pid // per_camera, b.pid % per_camera * WARP
    limit = (count - first,)

    def column(name: str, *at: int) -> Tile:
        return b.load(views[name], (camera, first, *at), (WARP,), limit=limit, axes=(1,))

    qa, qb, qc = (column("conics", i) * s for i, s in enumerate((-0.5 * LOG2E, -LOG2E, -0.5 * LOG2E)))
    opacity = b.unary("log2", column("opacities"))
    numbers = {MX: column("means", 0), MY: column("means", 1), QA: qa, QB: qb, QC: qc, OPACITY: opacity, DEPTH: column("depths"),
               LEAST: math.log2(region.anchor.op.alpha_min) - SLACK - opacity, ALONG_Y: qb / (qc * -2.0), ALONG_X: qb / (qa * -2.0),
               **{RED + i: column("colors", i) for i in range(3)}}
    fields = [numbers.get(i, b.full((WARP,), 0.0)) for i in range(PACKED)]
    for i in range(0, PACKED, 4):
        b.store(out, (camera, first, i), stacked(b, fields[i : i + 4]), limit=(None, limit[0]), axes=(2, 1))
    launch = call.finish(cameras * parts, bytes_=cameras * splats * (40 + 4 * PACKED), note="numbers of splats side by side")
    launch.kernel = on_threads(launch.kernel, WARP, BLOCK // WARP, runs=frozenset(("packed",)))
    return launch, buffer


class Pixels:
    """A kernel over bands of tiles under construction."""

    def __init__(self, region: Region, kernel: str, used: Sequence[str], packed: Buffer) -> None:
        assert region.anchor is not None and isinstance(region.anchor.op, (SplatRasterize, SplatRasterizeBackward))
        self.op, self.region = region.anchor.op, region
        self.operands = [region.given(v) for v in region.anchor.operands]
        self.call = call = Call(kernel, region.name)
        self.b = b = call.b
        given = dict(zip(OPERANDS, self.operands, strict=False))
        self.views = {n: call.view(n, given[n].type.dtype, given[n].buffer, given[n].layout) for n in used}
        cameras, splats = given["opacities"].type.shape
        all_splats = call.view("packed", f32, packed, Layout.contiguous((cameras, splats, PACKED)), bake=(1,))
        across, down = tiles_of(self.op.width, self.op.height)
        self.grid: Dim = cameras * (across * down * BANDS)
        self.splats, self.capacity = call.word("splats", splats), call.word("capacity", given["ids"].type.shape[1])
        width, height = call.word("width", self.op.width), call.word("height", self.op.height)
        columns, tiles = call.word("across", across), call.word("tiles", across * down)
        self.band = b.pid % BANDS
        self.camera, tile = b.pid // BANDS // tiles, b.pid // BANDS % tiles
        self.x, self.y = tile % columns * TILE, tile // columns * TILE + self.band * ROWS
        room = b.minimum(self.capacity, self.capacity * self.splats)  # nothing where there are no splats
        self.start = b.minimum(b.maximum(self._start(tile), 0), room)
        self.stop = b.minimum(b.maximum(self._start(tile + 1), self.start), room)
        self.limit = b.maximum(b.minimum(height - self.y, ROWS), 0), b.minimum(width - self.x, TILE)
        self.packed = b.subview(all_splats, (self.camera, 0, 0), (1, 2))
        self.ids = b.subview(self.views["ids"], (self.camera, 0), (1,))
        left, top = b.from_index(self.x, f32) + 0.5, b.from_index(self.y, f32) + 0.5
        self.ends = (left, left + (TILE - 1.0)), (top, top + (ROWS - 1.0))
        self.px, self.py = b.iota((1, TILE), 1, f32) + left, b.iota((ROWS, 1), 0, f32) + top
        self.inside = b.binary("and", b.broadcast(b.cmp("lt", self.px, b.from_index(width, f32)), SHAPE),
                               b.broadcast(b.cmp("lt", self.py, b.from_index(height, f32)), SHAPE))

    def _start(self, tile: Ix | int) -> Ix:
        return self.b.to_index(self.b.load(self.views["starts"], (self.camera, tile), ()))

    def any(self, found: Tile) -> Ix:
        """1 where a pixel of the band has it, else 0."""
        b = self.b
        one = b.reduce("any", b.reduce("any", found, 0), 1)
        return b.to_index(b.cast(b.reshape(one, ()), i32))

    def hits(self, first: Ix | int) -> tuple[Tile, Tile]:
        """Which of the next 16 entries touch the band, as bits, and how many."""
        b = self.b
        lane, left = b.iota((TILE,), 0, i32), b.minimum(self.stop - first, TILE)
        ids = b.load(self.ids, (first,), (TILE,), limit=(left,))
        ids = b.binary("min", b.binary("max", ids, 0), b.from_index(self.splats - 1, i32))
        mx, my, qa, qb, qc, least, along_y, along_x = (
            b.gather(self.packed, (0, i), 0, ids) for i in (MX, MY, QA, QB, QC, LEAST, ALONG_Y, ALONG_X))
        x, y = ([end - m for end in ends] for ends, m in zip(self.ends, (mx, my), strict=True))

        def clamp(t: Tile, ends: list[Tile]) -> Tile:
            t = b.select(b.cmp("lt", t, ends[1]), t, ends[1])
            return b.select(b.cmp("gt", t, ends[0]), t, ends[0])

        def exponent(dx: Tile, dy: Tile) -> Tile:
            return qa * dx * dx + qb * dx * dy + qc * dy * dy

        none = b.full((TILE,), 0.0)
        near_x, near_y = clamp(none, x), clamp(none, y)
        one, two = exponent(near_x, clamp(along_y * near_x, y)), exponent(clamp(along_x * near_y, x), near_y)
        touches = b.cmp("ge", b.select(b.cmp("gt", one, two), one, two), least)
        flag = b.cast(b.binary("and", touches, b.cmp("lt", lane, b.from_index(left, i32))), i32)
        bits = b.reduce("sum", b.binary("shl", flag, lane))
        return b.reshape(bits, ()), b.reshape(b.reduce("sum", flag), ())

    def highest(self, bits: Tile) -> Tile:
        """The number of the highest bit of at most 24."""
        b = self.b
        return b.binary("shr", b.bitcast(b.cast(bits, f32), i32), 23) - 127

    def splat(self, entry: Ix | int) -> Ix | int:
        """The splat of an entry of the list."""
        b = self.b
        found = b.binary("max", b.load(self.ids, (entry,), ()), 0)
        return b.to_index(b.binary("min", found, b.from_index(self.splats - 1, i32)))

    def number(self, splat: Ix | int, field: int) -> Tile:
        return self.b.load(self.packed, (splat, field), ())

    def wide(self, x: Tile) -> Tile:
        return self.b.broadcast(x, SHAPE)

    def alphas(self, splat: Ix | int) -> tuple[Tile, Tile, Tile, Tile]:
        """dx of every column, dy of every row, opacity times falloff, and which pixels draw the splat."""
        b = self.b
        dx, dy = self.px - self.number(splat, MX), self.py - self.number(splat, MY)
        qa, qb, qc, opacity = (self.number(splat, i) for i in (QA, QB, QC, OPACITY))
        square, linear = b.fma(qa * dx, dx, b.broadcast(opacity, (1, TILE))), qb * dx
        along = b.fma(b.broadcast(qc, SHAPE), self.wide(dy), self.wide(linear))
        raw = b.unary("exp2", b.fma(along, self.wide(dy), self.wide(square)))
        return dx, dy, raw, b.cmp("ge", raw, self.op.alpha_min)

    def capped(self, raw: Tile) -> Tile:
        return self.b.select(self.b.cmp("lt", raw, self.op.alpha_max), raw, self.op.alpha_max)

    def finish(self, flops: Dim, bytes_: Dim) -> Launch:
        launch = self.call.finish(self.grid, flops=flops, bytes_=bytes_, note=f"16x{ROWS} pixels a program of 16 threads")
        launch.kernel = on_threads(launch.kernel, TILE, BLOCK // TILE)
        return launch
