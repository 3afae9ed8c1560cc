"""The backward pass of compositing splats on a GPU, in two launches. A band's program walks its tile's list from the last entry that one of
its pixels took; the transmittance in front of a pixel and what lies behind it are brought forward splat by splat, as on the CPU. The ten
sums of a splat (`RECORD`) are added over the rows of the band in registers and over its columns by shuffles, and go to the entry's slot of
this band. The second launch is the CPU's, with a thread for each splat: it adds the slots in order. No sum depends on threads.
"""

from __future__ import annotations

from ....core.dtypes import f32, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.splats import RECORD, TILE
from ....ops.splats import SplatRasterizeBackward as SplatRasterizeBackwardOp
from ....tile.builder import Ix, KernelBuilder, Tile
from ...cuda.groups import shared_launch
from ...launch import Buffer, Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..backward import sums_of_slots
from ..raster import splats_alone
from ..shading import OPERANDS
from .pixels import BANDS, SHAPE, Pixels


class CudaSplatRasterizeBackward(Template):
    key = "splat_rasterize_backward"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeBackwardOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        cameras, capacity = region.operands[5].type.shape
        slots = capacity * BANDS
        records = Buffer(f"{region.name}.records", "temp", cameras * slots * (RECORD * 4))
        layout = Layout.contiguous((cameras, slots, RECORD))
        sums = sums_of_slots(region, records, layout, each=1, bands=BANDS)
        return [_bands(region, records, layout), shared_launch(sums)]


def _bands(region: Region, records: Buffer, layout: Layout) -> Launch:
    s = Pixels(region, "splat_raster_backward", OPERANDS[:-1])
    b = s.b
    names = ("left", "last", "dcolor", "ddepth", "dleft")
    given = {n: s.call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(names, s.operands[len(OPERANDS) :], strict=True)}
    out = s.call.view("records", f32, records, layout, write=True, bake=(1,))
    at = (s.camera, s.y, s.x)
    left, last, behind, ddepth = (b.load(given[n], at, SHAPE, limit=s.limit, axes=(1, 2)) for n in ("left", "last", "dleft", "ddepth"))
    grads = [*(b.load(given["dcolor"], (*at, i), SHAPE, limit=s.limit, axes=(1, 2)) for i in range(3)), ddepth]
    deepest = b.to_index(b.reshape(b.reduce("max", b.reduce("max", last, 0), 1), ()))
    end = b.minimum(s.start + b.maximum(deepest, 0), s.stop)

    def keep(entry: Ix | int, sums: Tile) -> None:
        found = b.to_index(b.load(s.views["slots"], (s.camera, entry), ()))
        slot = b.minimum(b.maximum(found, 0), s.capacity - 1) * BANDS + s.band
        b.store(out, (s.camera, slot, 0), sums, limit=(RECORD,))

    with b.loop(end, s.stop) as rest:  # entries that no pixel took
        keep(rest.index, b.full((TILE,), 0.0))
    with b.loop(0, end - s.start, 1, [left, behind]) as loop:
        entry = end - 1 - loop.index
        splat = s.splat(entry)
        left, behind = loop.carried
        dx, dy, raw, drawn = s.alphas(splat)
        paint = [*(s.number("colors", splat, i) for i in range(3)), s.number("depths", splat)]
        number = b.broadcast(b.from_index(entry - s.start + 1, i32), SHAPE)
        taken = b.binary("and", drawn, b.cmp("le", number, last))
        alpha = s.capped(raw)
        front = b.binary("div", left, 1.0 - alpha)
        own = paint[0] * grads[0]
        for x, g in zip(paint[1:], grads[1:], strict=True):
            own = b.fma(b.broadcast(x, SHAPE), g, own)
        apart = own - behind
        weight = b.select(taken, alpha * front, 0.0)
        slope = b.select(b.cmp("lt", raw, s.op.alpha_max), weight * apart, 0.0)
        across, along = slope * dx, slope * dy
        parts = [slope, across, across * dx, along, along * dx, along * dy, *(weight * g for g in grads)]
        keep(entry, _sums_of_pixels(b, parts))
        loop.next(b.select(taken, front, left), b.select(taken, b.fma(alpha, apart, behind), behind))
    return s.finish(region_flops(region), region_bytes(region))


def _sums_of_pixels(b: KernelBuilder, parts: list[Tile]) -> Tile:
    """The sums of tiles of pixels, that of tile i in column i."""
    column, found = b.iota((TILE,), 0, i32), b.full((TILE,), 0.0)
    for i, x in enumerate(parts):
        total = b.reshape(b.reduce("sum", b.reduce("sum", x, 0), 1), ())
        found = b.select(b.cmp("eq", column, i), b.broadcast(total, (TILE,)), found)
    return found
