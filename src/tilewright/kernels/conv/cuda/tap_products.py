"""Gradients of depthwise convolution weights on a GPU: values lie channels last (they are copied so where they do not).

A program has some channels, one row of the kernel's taps and a part of the rows of all images. It walks their pixels, a few neighbours at a
time, each of which is read once for all taps of the row, with one sum for every tap; pixels outside the image are zeros. A second launch adds
the parts in order. Zero-sized results run no program.
"""

from __future__ import annotations

from math import prod

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.matmul.tap_products import TapProducts
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...launch import Buffer, Launch
from ...matmul.cuda.tiled import Config, Summed
from ...pointwise.copies import copy_launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, widen
from ...template import Template, region_bytes, region_flops
from ..channels_last import channels_last_memory
from .by_channel import _reads, inside_flag

BLOCK = 128  # threads
HELD = 64  # sums of a thread, at most
RUN = 4  # bytes of channels of a thread: many threads hide one another's loads
PIXELS = (8, 7, 6, 5, 4)  # neighbours at a time: the first that divides a row
THREADS = 1024  # of an SM
MOST_PARTS = 128
LEAST = 64  # pixels of a part


class CudaTapProducts(Template):
    key = "tap_products"
    serves = (TapProducts,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        before: list[Launch] = []

        def last(name: str, o: Operand) -> Operand:
            if o.layout.strides[1] == 1 and all(bounds(s)[0] >= 0 for s in o.layout.strides):
                return o
            there = channels_last_memory(f"{region.name}.{name}", o.type)
            before.append(copy_launch(f"{region.name}.{name}", o, there, target, "channels last for a gradient of weights"))
            return there

        x, g = (last(name, o) for name, o in zip(("pixels", "cotangent"), region.operands, strict=True))
        return [*before, *TapSums(region, x, g, target).launches()]


class TapSums(Summed):
    """Two launches under construction."""

    def __init__(self, region: Region, x: Operand, g: Operand, target: TargetSpec) -> None:
        self.region, self.node, self.op, self.x, self.g, y = region, region.node, region.op(TapProducts), x, g, region.results[0]
        self.leaves, self.lead, self.wide = [], [], compute_dtype(y.type.dtype)
        op, (batch, channels, *sizes), item = self.op, g.type.shape, x.type.dtype.itemsize
        n = len(sizes)
        order = (0, *range(2, n + 2), 1)
        self.views = [o.layout.permute(order) for o in (x, g)]
        most = max(1, min(RUN // item, HELD // op.kernel[-1]))
        self.vector = next(v for v in (4, 2, 1) if v <= most and v <= vector_width([item, item], channels, self.views))
        lanes = -(-bounds(channels)[1] // self.vector)
        self.threads = next((t for t in (32, 16, 8, 4) if -(-lanes // t) * t <= lanes * 9 / 8), 4)
        self.tile = self.threads * self.vector
        self.rows, self.outer = product((batch, *sizes[:-1])), prod(op.kernel[:-1])
        usual = [d if isinstance(d, int) else 8 for d in (batch, channels, *sizes)]
        rows = usual[0] * prod(usual[2:-1])
        programs = self.outer * -(-usual[1] // self.tile) * self.threads  # threads of a part
        parts = min(MOST_PARTS, -(-target.cores * THREADS // max(1, programs)), rows * usual[-1] // LEAST, rows)
        self.config = Config(1, 1, 1, 1, 1, parts=max(1, parts))
        self.m, self.n = prod(op.kernel), channels

    def launches(self) -> list[Launch]:
        op, parts, channels, y = self.op, self.config.parts, self.n, self.region.results[0]
        sums = Buffer(f"{self.region.name}.sums", "temp", parts * self.m * channels * self.wide.itemsize)
        own, *steps = y.layout.strides
        if all(s == t * d for s, t, d in zip(steps, steps[1:], op.kernel[1:], strict=False)):
            self.ends = [Layout((self.m, channels), (steps[-1], own), y.layout.offset)]
        else:
            self.lead, self.m = [*op.kernel[:-1]], op.kernel[-1]
            self.ends = [Layout((*op.kernel, channels), (*steps, own), y.layout.offset)]
        return [self._sums(sums), self._added(sums, Layout.contiguous((parts, *self.lead, self.m, channels)), self.region.name)]

    def _sums(self, buffer: Buffer) -> Launch:
        op, parts, tile, region = self.op, self.config.parts, self.tile, self.region
        call = Call("tap_products", f"{region.name}.parts")
        b, channels, width = call.b, self.n, self.g.type.shape[-1]
        xv, gv = (call.view(n, o.type.dtype, o.buffer, lay) for n, o, lay in zip("xg", (self.x, self.g), self.views, strict=True))
        out = call.view("sums", self.wide, buffer, Layout.contiguous((parts, *op.kernel, channels)), write=True)
        every, stretches = call.word("channels", channels), call.word("stretches", ceildiv(channels, tile))
        part, stretch, *taps = unravel(b, b.pid, [parts, stretches, *op.kernel[:-1]])
        rows, each = call.word("rows", self.rows), call.word("each", ceildiv(self.rows, parts))
        dims = [call.word(f"d{i}", d) for i, d in enumerate((self.g.type.shape[0], *self.g.type.shape[2:-1]))]
        sizes = [call.word(f"s{i}", d) for i, d in enumerate(self.x.type.shape[2:])]
        across, start = call.word("width", width), stretch * tile
        left = every - start
        count, step, hop, low = op.kernel[-1], op.stride[-1], op.dilation[-1], op.pads[-1][0]
        several = next((p for p in PIXELS if isinstance(width, int) and width % p == 0), 8 if bounds(width)[0] >= 32 else 1)

        def some(per: int, at: list[Ix | int], spot: list[Ix | int], seen: Ix | int, first: Ix, sums: list[Tile]) -> list[Tile]:
            """The sums after `per` pixels of a row; `seen` is how many channels of the image's row there are: all or none."""
            own = [widen(b, b.load(gv, (*at, first + i, start), (tile,), limit=(left,))) for i in range(per)]
            sums = list(sums)
            for i, pairs in _reads(per, count, step, hop).items():
                place = first * step + (i - low)
                inside = seen * (inside_flag(b, place + 1) * inside_flag(b, sizes[-1] - place))
                pixel = widen(b, b.load(xv, (at[0], *spot, place, start), (tile,), limit=(inside,)))
                for o, t in pairs:
                    sums[t] = b.fma(pixel, own[o], sums[t])
            return sums

        with b.loop(part * each, b.minimum(rows, part * each + each), 1, [b.full((tile,), 0.0, self.wide)] * count) as line:
            at = unravel(b, line.index, dims)
            spot: list[Ix | int] = []
            seen: Ix | int = left
            for y, t, s, d, (lo, _), size in zip(at[1:], taps, op.stride, op.dilation, op.pads, sizes, strict=False):
                spot.append(y * s + t * d - lo)
                seen = seen * (inside_flag(b, spot[-1] + 1) * inside_flag(b, size - spot[-1]))
            totals, done = list(line.carried), 0
            if several > 1:
                whole = across // several * several
                with b.loop(0, whole, several, totals) as main:
                    main.next(*some(several, at, spot, seen, main.index, main.carried))
                totals, done = list(main.results), whole
            if several == 1 or not isinstance(width, int) or width % several:
                with b.loop(done, across, 1, totals) as tail:
                    tail.next(*some(1, at, spot, seen, tail.index, tail.carried))
                totals = list(tail.results)
            line.next(*totals)
        for t, total in enumerate(line.results):
            b.store(out, (part, *taps, t, start), total, limit=(left,))
        moved = region_bytes(region) + parts * prod(op.kernel) * channels * self.wide.itemsize
        grid = parts * ceildiv(channels, tile) * self.outer
        launch = call.finish(grid, flops=region_flops(region), bytes_=moved, note=f"{several} pixels at a time, rows in {parts} parts")
        launch.kernel = on_threads(launch.kernel, self.threads, BLOCK // self.threads, self.vector)
        return launch

    @property
    def nbytes(self) -> Dim:
        return self.x.type.nbytes + self.g.type.nbytes
