"""Splats composited front to back on a GPU. Sums of a band's pixels stay in registers; a band whose pixels have all ended takes no further
chunk of its list. As on the CPU a pixel that has ended has a negative transmittance, and pixels outside the image have ended before they
begin.
"""

from __future__ import annotations

from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ops.splats import TILE
from ....ops.splats import SplatRasterize as SplatRasterizeOp
from ...launch import Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..raster import splats_alone
from ..shading import DEPTH, RED
from .pixels import SHAPE, Pixels, packed

USED = ("ids", "starts")


class CudaSplatRasterize(Template):
    key = "splat_rasterize"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        pack, numbers = packed(region)
        s = Pixels(region, "splat_raster", USED, numbers)
        b = s.b
        names = ("color", "depth", "left", "last")
        out = {n: s.call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(names, region.results, strict=True)}
        left, zero = b.select(s.inside, b.full(SHAPE, 1.0), -1.0), b.full(SHAPE, 0.0)
        with b.loop(s.start, s.stop, TILE, [left, zero, zero, zero, zero, b.full(SHAPE, 0, i32)]) as chunk:
            alive = s.any(b.cmp("gt", chunk.carried[0], 0.0))
            bits, count = s.hits(chunk.index)
            with b.loop(0, b.to_index(count) * alive, 1, [bits, *chunk.carried]) as loop:
                bits, left, *sums, last = loop.carried
                number = s.highest(b.binary("and", bits, -bits))  # the lowest bit
                entry = chunk.index + b.to_index(number)
                splat = s.splat(entry)
                _, _, raw, drawn = s.alphas(splat)
                weight = s.capped(raw) * left
                after = left - weight
                goes = b.cmp("ge", after, s.op.stop)
                taken = b.binary("and", drawn, goes)
                weight = b.select(taken, weight, 0.0)
                left = b.select(drawn, b.select(goes, after, -b.unary("abs", left)), left)
                paint = [s.number(splat, i) for i in (RED, RED + 1, RED + 2, DEPTH)]
                sums = [b.fma(weight, b.broadcast(x, SHAPE), total) for x, total in zip(paint, sums, strict=True)]
                place = b.broadcast(b.from_index(entry - s.start + 1, i32), SHAPE)
                loop.next(b.binary("and", bits, bits - 1), left, *sums, b.select(taken, place, last))
            chunk.next(*loop.results[1:])
        left, *sums, last = chunk.results
        at = (s.camera, s.y, s.x)
        for i in range(3):
            b.store(out["color"], (*at, i), sums[i], limit=s.limit, axes=(1, 2))
        for name, x in (("depth", sums[3]), ("left", b.unary("abs", left)), ("last", last)):
            b.store(out[name], at, x, limit=s.limit, axes=(1, 2))
        return [pack, s.finish(region_flops(region), region_bytes(region))]
