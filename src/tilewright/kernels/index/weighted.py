"""Weighted sums of gathered elements. Positions run along registers; a program reads the indices and weights of a block of positions once
for several channels. Tails are masked; an index outside of the image reads 0."""
from __future__ import annotations

from ...core.dims import bounds, ceildiv
from ...core.dtypes import i32, i64
from ...core.target_spec import TargetSpec
from ...ops.index.weighted import WeightedGather as WeightedGatherOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..region import Region, narrow, widen
from ..template import Template, region_bytes, region_flops

CHANNELS = 8  # that share indices and weights
TILES = 16  # registers of positions of a program


class WeightedGatherTemplate(Template):
    key = "weighted_gather"
    serves = (WeightedGatherOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, shares = region.places
        (y,) = region.results
        call = Call("weighted_gather", region.name)
        b = call.b
        source, index = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("x", x), ("ids", ids)))
        weight = call.view("w", shares.type.dtype, shares.buffer, shares.layout)
        goal = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        (n, channels, size), (_, taps, places) = x.type.shape, ids.type.shape
        width, depth, count, steps = (call.word(m, d) for m, d in (("size", size), ("c", channels), ("p", places), ("taps", taps)))
        tile = target.vector_bits // (8 * max(4, shares.type.dtype.itemsize))
        block = tile * TILES
        across, deep = b.ceildiv(count, block), b.ceildiv(depth, CHANNELS)
        first, top, batch = b.pid % across * block, b.pid // across % deep * CHANNELS, b.pid // (across * deep)
        small = i32 if bounds(size)[1] < 1 << 31 else i64
        zero = b.full((tile,), 0.0, shares.type.dtype)
        last = b.cast(b.from_index(width - 1), small)

        def tap(t: Ix | int, at: Ix | int, limit: tuple[Ix | int], sums: list[Tile], rows: list[Ix | int]) -> list[Tile]:
            raw = b.load(index, (batch, t, at), (tile,), limit=limit, other=-1)
            fits = b.binary("and", b.cmp("ge", raw, 0), b.cmp("lt", raw, b.cast(b.from_index(width), raw.dtype)))
            place = b.binary("min", b.binary("max", b.cast(raw, small), 0), last)
            share = b.load(weight, (batch, t, at), (tile,), limit=limit)
            found = [b.select(fits, widen(b, b.gather(source, (batch, row, 0), 2, place)), 0.0) for row in rows]
            return [b.fma(share, value, acc) for value, acc in zip(found, sums, strict=True)]

        def positions(rows: list[Ix | int]) -> None:
            with b.loop(first, b.minimum(first + block, count), tile) as part:
                limit = (b.minimum(count - part.index, tile),)
                with b.loop(0, steps, 1, [zero] * len(rows)) as loop:
                    loop.next(*tap(loop.index, part.index, limit, loop.carried, rows))
                for row, total in zip(rows, loop.results, strict=True):
                    b.store(goal, (batch, row, part.index), narrow(b, total, y.type.dtype), limit=limit)

        with b.if_(b.compare("ge", depth, top + CHANNELS)):
            positions([top + k for k in range(CHANNELS)])
        with b.if_(b.compare("lt", depth, top + CHANNELS)), b.loop(top, depth) as rest:
            positions([rest.index])
        grid = n * ceildiv(channels, CHANNELS) * ceildiv(places, block)
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region))]
