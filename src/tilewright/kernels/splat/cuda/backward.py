"""The backward pass of compositing splats on a GPU. Numbers of splats are packed and the records of all entries cleared. A band's program
then walks its tile's list from the last entry that one of its pixels took; the transmittance in front of a pixel and what lies behind it
are brought forward splat by splat, as on the CPU. The ten sums of a splat (`RECORD`) are added over the rows of the band in registers and
over its columns by shuffles, and go to the entry's slot of this band. The last launch is the CPU's, with 16 threads for each splat: it adds
the slots in order. No sum depends on threads.
"""

from __future__ import annotations

from ....core.dims import ceildiv
from ....core.dtypes import f32, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.splats import RECORD, TILE
from ....ops.splats import SplatRasterizeBackward as SplatRasterizeBackwardOp
from ....tile.builder import KernelBuilder, Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Buffer, Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..backward import sums_of_slots
from ..raster import splats_alone
from ..shading import DEPTH, OPERANDS, RED
from .pixels import BANDS, BLOCK, SHAPE, Pixels, packed

CLEARED = 8192  # numbers of a warp


class CudaSplatRasterizeBackward(Template):
    key = "splat_rasterize_backward"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return splats_alone(region, SplatRasterizeBackwardOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        cameras, capacity = region.operands[5].type.shape
        slots = capacity * BANDS
        records = Buffer(f"{region.name}.records", "temp", cameras * slots * (RECORD * 4))
        layout = Layout.contiguous((cameras, slots, RECORD))
        sums = sums_of_slots(region, records, layout, each=1, bands=BANDS, space="shared")
        sums.kernel = on_threads(sums.kernel, TILE, BLOCK // TILE)
        pack, numbers = packed(region)
        return [pack, _clear(region, records), _bands(region, records, layout, numbers), sums]


def _clear(region: Region, records: Buffer) -> Launch:
    """Zeros for all entries of the lists: bands write the sums of what touches them only."""
    call = Call("splat_clear", f"{region.name}.clear")
    b = call.b
    starts, (cameras, capacity) = region.operands[7], region.operands[5].type.shape
    each = capacity * (BANDS * RECORD)
    out = call.view("records", f32, records, Layout.contiguous((cameras, each)), write=True)
    ends = call.view("starts", i32, starts.buffer, starts.layout)
    parts = ceildiv(each, CLEARED)
    last, limit, per_camera = call.word("tiles", starts.type.shape[1] - 1), call.word("capacity", capacity), call.word("parts", parts)
    camera, first = b.pid // per_camera, b.pid % per_camera * CLEARED
    used = b.minimum(b.maximum(b.to_index(b.load(ends, (camera, last), ())), 0), limit) * (BANDS * RECORD)
    with b.loop(first, b.minimum(first + CLEARED, used), 128) as loop:
        b.store(out, (camera, loop.index), b.full((128,), 0.0), limit=(used - loop.index,))
    launch = call.finish(cameras * parts, bytes_=cameras * each * 4, note="zeros")
    launch.kernel = on_threads(launch.kernel, 32, 8, 4)
    return launch


def _bands(region: Region, records: Buffer, layout: Layout, numbers: Buffer) -> Launch:
    s = Pixels(region, "splat_raster_backward", ("ids", "slots", "starts"), numbers)
    b = s.b
    names = ("left", "last", "dcolor", "ddepth", "dleft")
    given = {n: s.call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(names, s.operands[len(OPERANDS) :], strict=True)}
    out = s.call.view("records", f32, records, layout, write=True, bake=(1,))
    at = (s.camera, s.y, s.x)
    left, last, behind, ddepth = (b.load(given[n], at, SHAPE, limit=s.limit, axes=(1, 2)) for n in ("left", "last", "dleft", "ddepth"))
    grads = [*(b.load(given["dcolor"], (*at, i), SHAPE, limit=s.limit, axes=(1, 2)) for i in range(3)), ddepth]
    deepest = b.to_index(b.reshape(b.reduce("max", b.reduce("max", last, 0), 1), ()))
    chunks = b.ceildiv(b.minimum(b.maximum(deepest, 0), s.stop - s.start), TILE)
    with b.loop(0, chunks, 1, [left, behind]) as back:
        first = s.start + (chunks - 1 - back.index) * TILE
        bits, count = s.hits(first)
        with b.loop(0, b.to_index(count), 1, [bits, *back.carried]) as loop:
            bits, left, behind = loop.carried
            highest = s.highest(bits)
            entry = first + b.to_index(highest)
            splat = s.splat(entry)
            dx, dy, raw, drawn = s.alphas(splat)
            paint = [s.number(splat, i) for i in (RED, RED + 1, RED + 2, DEPTH)]
            place = b.broadcast(b.from_index(entry - s.start + 1, i32), SHAPE)
            taken = b.binary("and", drawn, b.cmp("le", place, last))
            alpha = s.capped(raw)
            front = b.binary("div", left, 1.0 - alpha)
            own = paint[0] * grads[0]
            for x, g in zip(paint[1:], grads[1:], strict=True):
                own = b.fma(b.broadcast(x, SHAPE), g, own)
            apart = own - behind
            weight = b.select(taken, alpha * front, 0.0)
            slope = b.select(b.cmp("lt", raw, s.op.alpha_max), weight * apart, 0.0)
            # sums over the rows of a column first: dx is the same there
            tilted = slope * dy
            one, along, square = (b.reduce("sum", x, 0) for x in (slope, tilted, tilted * dy))
            across = one * dx
            parts = [one, across, across * dx, along, along * dx, square, *(b.reduce("sum", weight * g, 0) for g in grads)]
            found = b.to_index(b.load(s.views["slots"], (s.camera, entry), ()))
            slot = b.minimum(b.maximum(found, 0), s.capacity - 1) * BANDS + s.band
            b.store(out, (s.camera, slot, 0), _sums_of_columns(b, parts), limit=(RECORD,))
            loop.next(b.binary("xor", bits, b.binary("shl", b.full((), 1, i32), highest)), b.select(taken, front, left),
                      b.select(taken, b.fma(alpha, apart, behind), behind))
        back.next(*loop.results[1:])
    return s.finish(region_flops(region), region_bytes(region))


def _sums_of_columns(b: KernelBuilder, parts: list[Tile]) -> Tile:
    """The sums of rows [1, 16], that of row i in column i."""
    column, found = b.iota((TILE,), 0, i32), b.full((TILE,), 0.0)
    for i, x in enumerate(parts):
        found = b.select(b.cmp("eq", column, i), b.broadcast(b.reshape(b.reduce("sum", x, 1), ()), (TILE,)), found)
    return found
