"""Gradients of depthwise convolution weights on a GPU: values lie channels last (they are copied so where they do not).

A program has some channels, one row of the kernel's taps, a few neighbouring columns of pixels and a part of the rows of all images. It
walks these rows with one sum for every tap; a pixel is read once for all of them, and those outside the image are zeros. A second launch
adds the parts in order. Zero-sized results run no program.
"""

from __future__ import annotations

from math import prod

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.matmul.tap_products import TapProducts
from ....tile.builder import Ix
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...cuda.tiled import flat
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
RUN = 4  # channels of a thread
PIXELS = (8, 7, 6, 5)  # columns: the first that divides a row, or leaves few of the first size
THREADS = 512  # threads of an SM
MOST_PARTS = 1024
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
        most = max(1, min(RUN, HELD // op.kernel[-1]))
        self.vector = next(v for v in (4, 2, 1) if v <= most and v <= vector_width([item, item], channels, self.views))
        lanes = -(-bounds(channels)[1] // self.vector)
        self.threads = next((t for t in (32, 16, 8, 4) if -(-lanes // t) * t <= lanes * 9 / 8), 4)
        self.tile = self.threads * self.vector
        self.fixed = isinstance(sizes[-1], int)  # else columns are walked as rows are
        self.rows, self.outer = product((batch, *sizes[: -1 if self.fixed else None])), prod(op.kernel[:-1])
        usual = [d if isinstance(d, int) else 8 for d in (batch, channels, *sizes)]
        width, rows = sizes[-1], usual[0] * prod(usual[2:-1])
        self.per = 1 if not isinstance(width, int) else next((p for p in PIXELS if width % p == 0), min(PIXELS[0], max(1, width)))
        self.columns = -(-width // self.per) if isinstance(width, int) else 1
        programs = self.outer * -(-usual[1] // self.tile) * self.threads  # threads of a part
        parts = min(-(-target.cores * THREADS // max(1, programs)), MOST_PARTS, rows * usual[-1] // LEAST) // max(1, self.columns)
        self.parts = max(1, min(parts, rows))
        self.config = Config(1, 1, 1, 1, 1, parts=self.parts * max(1, self.columns))
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
        op, parts, tile, region, per = self.op, self.parts, self.tile, self.region, self.per
        call = Call("tap_products", f"{region.name}.parts")
        b, channels, width = call.b, self.n, self.g.type.shape[-1]
        xv, gv = (call.view(n, o.type.dtype, o.buffer, flat(lay)) for n, o, lay in zip("xg", (self.x, self.g), self.views, strict=True))
        xs, gs = ([s if isinstance(s, int) else call.word(f"{n}{i}", s) for i, s in enumerate(lay.strides)]
                  for n, lay in zip(("xs", "gs"), self.views, strict=True))  # fmt: skip
        columns = max(1, self.columns)
        out = call.view("sums", self.wide, buffer, Layout.contiguous((parts * columns, *op.kernel, channels)), write=True)
        every, stretches = call.word("channels", channels), call.word("stretches", ceildiv(channels, tile))
        part, stretch, column, *taps = unravel(b, b.pid, [parts, stretches, columns, *op.kernel[:-1]])
        rows, each = call.word("rows", self.rows), call.word("each", ceildiv(self.rows, parts))
        dims = [call.word(f"d{i}", d) for i, d in enumerate((self.g.type.shape[0], *self.g.type.shape[2:]))]
        sizes = [call.word(f"s{i}", d) for i, d in enumerate(self.x.type.shape[2:])]
        start = stretch * tile
        left = every - start
        count, step, hop, low = op.kernel[-1], op.stride[-1], op.dilation[-1], op.pads[-1][0]

        def walk(per: int) -> None:
            """All rows of the part, `per` columns of them."""
            reads = _reads(per, count, step, hop)

            def columns_from(first: Ix | int) -> tuple[dict[int, Ix | int], dict[int, Ix | int]]:
                """Where a program reads along a row, and how many channels of that count."""
                places = {i: first * step + (i - low) for i in reads}
                return places, {i: left * (inside_flag(b, p + 1) * inside_flag(b, sizes[-1] - p)) for i, p in places.items()}

            first: Ix | int = column * self.per
            if self.fixed:
                places, inside = columns_from(first)
            with b.loop(part * each, b.minimum(rows, part * each + each), 1, [b.full((tile,), 0.0, self.wide)] * count) as line:
                at, seen = unravel(b, line.index, dims[:-1] if self.fixed else dims), left
                if not self.fixed:
                    *at, first = at
                    places, inside = columns_from(first)
                given, spot = start + first * gs[-2], start + at[0] * xs[0]
                for y, s in zip(at, gs[:-2], strict=True):
                    given = given + y * s
                for y, t, s, d, (lo, _), size, apart in zip(at[1:], taps, op.stride, op.dilation, op.pads, sizes, xs[1:], strict=False):
                    place = y * s + (t * d - lo)
                    seen = seen * (inside_flag(b, place + 1) * inside_flag(b, size - place))
                    spot = spot + place * apart
                own = [widen(b, b.load(gv, (given + gs[-2] * i,), (tile,), limit=(left,))) for i in range(per)]
                pixels = {i: b.load(xv, (spot + p * xs[-2],), (tile,), limit=(b.minimum(seen, inside[i]),)) for i, p in places.items()}
                sums = list(line.carried)
                for i, pairs in reads.items():
                    pixel = widen(b, pixels[i])
                    for o, t in pairs:
                        sums[t] = b.fma(pixel, own[o], sums[t])
                line.next(*sums)
            for t, total in enumerate(line.results):
                b.store(out, (part * columns + column, *taps, t, start), total, limit=(left,))

        rest = width % per if isinstance(width, int) else 0
        if isinstance(width, int) and rest:
            whole = b.compare("lt", column, width // per)
            with b.if_(whole):
                walk(per)
            with b.if_(b.unary("not", whole)):
                walk(rest)
        else:
            walk(per)
        moved = region_bytes(region) + self.config.parts * prod(op.kernel) * channels * self.wide.itemsize
        grid = parts * columns * ceildiv(channels, tile) * self.outer
        launch = call.finish(grid, flops=region_flops(region), bytes_=moved, note=f"{per} columns of pixels, rows in {parts} parts")
        launch.kernel = on_threads(launch.kernel, self.threads, BLOCK // self.threads, self.vector)
        return launch

    @property
    def nbytes(self) -> Dim:
        return self.x.type.nbytes + self.g.type.nbytes
