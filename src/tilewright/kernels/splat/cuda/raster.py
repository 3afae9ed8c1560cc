"""Splats composited front to back on a GPU. Sums of a band's pixels stay in registers; a band whose pixels have all ended takes no further
chunk of its list. As on the CPU a pixel that has ended has a negative transmittance, and pixels outside the image have ended before they
begin.
"""

from __future__ import annotations

from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ops.splats import SplatRasterize as SplatRasterizeOp
from ...launch import Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..raster import splats_alone
from ..shading import OPERANDS
from .pixels import CHUNK, SHAPE, Pixels

USED = [n for n in OPERANDS if n not in ("slots", "spans")]


class CudaSplatRasterize(Template):
    key = "splat_rasterize"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        s = Pixels(region, "splat_raster", USED)
        b = s.b
        names = ("color", "depth", "left", "last")
        out = {n: s.call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(names, region.results, strict=True)}
        left, zero = b.select(s.inside, b.full(SHAPE, 1.0), -1.0), b.full(SHAPE, 0.0)
        with b.loop(s.start, s.stop, CHUNK, [left, zero, zero, zero, zero, b.full(SHAPE, 0, i32)]) as chunk:
            alive = s.any(b.cmp("gt", chunk.carried[0], 0.0))
            with b.loop(0, b.minimum(s.stop - chunk.index, CHUNK) * alive, 1, chunk.carried) as loop:
                entry = chunk.index + loop.index
                splat = s.splat(entry)
                left, *sums, last = loop.carried
                _, _, raw, drawn = s.alphas(splat)
                weight = s.capped(raw) * left
                after = left - weight
                goes = b.cmp("ge", after, s.op.stop)
                taken = b.binary("and", drawn, goes)
                weight = b.select(taken, weight, 0.0)
                left = b.select(drawn, b.select(goes, after, -b.unary("abs", left)), left)
                paint = [*(s.number("colors", splat, i) for i in range(3)), s.number("depths", splat)]
                sums = [b.fma(weight, b.broadcast(x, SHAPE), total) for x, total in zip(paint, sums, strict=True)]
                number = b.broadcast(b.from_index(entry - s.start + 1, i32), SHAPE)
                loop.next(left, *sums, b.select(taken, number, last))
            chunk.next(*loop.results)
        left, *sums, last = chunk.results
        at = (s.camera, s.y, s.x)
        for i in range(3):
            b.store(out["color"], (*at, i), sums[i], limit=s.limit, axes=(1, 2))
        for name, x in (("depth", sums[3]), ("left", b.unary("abs", left)), ("last", last)):
            b.store(out[name], at, x, limit=s.limit, axes=(1, 2))
        return [s.finish(region_flops(region), region_bytes(region))]
