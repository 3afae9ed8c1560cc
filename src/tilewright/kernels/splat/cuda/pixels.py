"""What the compositing of splats and its backward pass share on a GPU: a program has a band of 16 x ROWS pixels of a tile, in the registers
of 16 threads, and walks the tile's list entry by entry. A splat's numbers are loaded by all threads at once from one address; both passes
compute an alpha by the same instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dims import Dim
from ....core.dtypes import f32, i32
from ....ops.splats import TILE, SplatRasterize, SplatRasterizeBackward, tiles_of
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Launch
from ...region import Region
from ..shading import LOG2E, OPERANDS

ROWS = 8  # pixel rows of a program
BANDS = TILE // ROWS
SHAPE = (ROWS, TILE)
CHUNK = 32  # entries after which a program looks whether a pixel still takes any
BLOCK = 128  # threads


class Pixels:
    """A kernel over bands of tiles under construction."""

    def __init__(self, region: Region, kernel: str, used: Sequence[str]) -> None:
        assert region.anchor is not None and isinstance(region.anchor.op, (SplatRasterize, SplatRasterizeBackward))
        self.op, self.region = region.anchor.op, region
        self.operands = [o for v in region.anchor.operands if (o := region.operand(v)) is not None]
        self.call = call = Call(kernel, region.name)
        self.b = b = call.b
        given = dict(zip(OPERANDS, self.operands, strict=False))
        self.views = {n: call.view(n, given[n].type.dtype, given[n].buffer, given[n].layout) for n in used}
        cameras, splats = given["opacities"].type.shape
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
        self.px = b.iota(SHAPE, 1, f32) + (b.from_index(self.x, f32) + 0.5)
        self.py = b.iota(SHAPE, 0, f32) + (b.from_index(self.y, f32) + 0.5)
        self.inside = b.binary("and", b.cmp("lt", self.px, b.from_index(width, f32)), b.cmp("lt", self.py, b.from_index(height, f32)))

    def _start(self, tile: Ix | int) -> Ix:
        return self.b.to_index(self.b.load(self.views["starts"], (self.camera, tile), ()))

    def any(self, found: Tile) -> Ix:
        """1 where a pixel of the band has it, else 0."""
        b = self.b
        one = b.reduce("any", b.reduce("any", found, 0), 1)
        return b.to_index(b.cast(b.reshape(one, ()), i32))

    def splat(self, entry: Ix | int) -> Ix | int:
        """The splat of an entry of the list."""
        b = self.b
        return b.minimum(b.maximum(b.to_index(b.load(self.views["ids"], (self.camera, entry), ())), 0), self.splats - 1)

    def number(self, name: str, splat: Ix | int, *at: int) -> Tile:
        return self.b.load(self.views[name], (self.camera, splat, *at), ())

    def alphas(self, splat: Ix | int) -> tuple[Tile, Tile, Tile, Tile]:
        """dx, dy, opacity times falloff, and which pixels draw the splat."""
        b = self.b
        dx, dy = self.px - self.number("means", splat, 0), self.py - self.number("means", splat, 1)
        qa, qb, qc = (self.number("conics", splat, i) * s for i, s in enumerate((-0.5 * LOG2E, -LOG2E, -0.5 * LOG2E)))
        opacity = b.broadcast(b.unary("log2", self.number("opacities", splat)), SHAPE)
        square, linear = b.fma(qa * dx, dx, opacity), qb * dx
        raw = b.unary("exp2", b.fma(b.fma(b.broadcast(qc, SHAPE), dy, linear), dy, square))
        return dx, dy, raw, b.cmp("ge", raw, self.op.alpha_min)

    def capped(self, raw: Tile) -> Tile:
        return self.b.select(self.b.cmp("lt", raw, self.op.alpha_max), raw, self.op.alpha_max)

    def finish(self, flops: Dim, bytes_: Dim) -> Launch:
        launch = self.call.finish(self.grid, flops=flops, bytes_=bytes_, note=f"16x{ROWS} pixels a program of 16 threads")
        launch.kernel = on_threads(launch.kernel, TILE, BLOCK // TILE)
        return launch
