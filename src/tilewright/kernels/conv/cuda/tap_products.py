"""Gradients of depthwise convolution weights on a GPU: a block takes a channel and a part of its images, and walks their pixels with one
sum for every tap; where there are several parts, a second launch adds their sums in order. Zero-sized results run no program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from ....core.dims import ceildiv, product
from ....core.dtypes import compute_dtype, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.matmul.tap_products import TapProducts
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.tiled import aligned, flat, tiled
from ...launch import Buffer, Launch
from ...pointwise.copies import forwards
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow, widen
from ...rows.cuda.reduce import Blocks, Place, Write
from ...template import Template, region_bytes, region_flops

MOST = 16  # parts of a batch
WAVES = 2  # blocks that each SM should have
PIXELS = 256  # of a step
FAR = 128  # pixels of a step with many taps: a thread has one sum of each
FEW = 25  # taps
ROW = 8  # taps of a row that have sums in registers, with some channels each


class CudaTapProducts(Template):
    key = "tap_products"
    serves = (TapProducts,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        before, region = forwards(region, target)
        if region.op(TapProducts).kernel[-1] <= ROW and all(o.layout.strides[1] == 1 for o in region.operands):
            return [*before, *by_channels(region)]
        batch, channels = region.operands[0].type.shape[:2]
        parts = MOST if not isinstance(channels, int) else max(1, min(MOST, -(-WAVES * target.cores // channels)))
        parts = min(parts, batch) if isinstance(batch, int) else parts
        if parts <= 1:
            return [*before, self._sums(region, region.results[0].buffer, region.results[0].layout, 1)]
        op, wide = region.op(TapProducts), compute_dtype(region.results[0].type.dtype)
        taps = prod(op.kernel)
        buffer = Buffer(f"{region.name}.sums", "temp", parts * channels * taps * wide.itemsize)
        return [*before, self._sums(region, buffer, None, parts), self._added(region, buffer, parts)]

    def _sums(self, region: Region, buffer: Buffer, result: Layout | None, parts: int) -> Launch:
        """The sums of every part of the images, or the results."""
        op, (x, g), y = region.op(TapProducts), region.operands, region.results[0]
        taps, wide = list(itertools.product(*(range(k) for k in op.kernel))), compute_dtype(y.type.dtype)
        call = Call("tap_products", region.name)
        b, pixels = call.b, PIXELS if len(taps) <= FEW else FAR
        batch, channels, *sizes = g.type.shape
        xv, gv = (call.view(n, o.type.dtype, o.buffer, flat(o.layout)) for n, o in (("x", x), ("g", g)))
        xs, gs = ([s if isinstance(s, int) else call.word(f"{n}{i}", s) for i, s in enumerate(o.layout.strides)]
                  for n, o in (("xs", x), ("gs", g)))  # fmt: skip
        lay = Layout.contiguous((parts, channels, *op.kernel)) if result is None else replace(
            result, shape=(1, *result.shape), strides=(0, *result.strides))  # fmt: skip
        out = call.view("y", wide if result is None else y.type.dtype, buffer, lay, write=True)
        every, count = call.word("channels", channels), call.word("count", batch * product(sizes))
        part, channel = b.pid // every, b.pid % every
        each = call.word("each", ceildiv(ceildiv(batch * product(sizes), pixels), parts) * pixels)
        spans = [b.from_index(call.word(f"o{i}", d), i32) for i, d in enumerate(sizes)]
        stop = b.minimum(count, part * each + each)

        def offsets(steps: Sequence[Ix | int], item: Tile, at: list[Tile], scale: Sequence[int], inside: Tile) -> Tile:
            total = item * _tile(b, steps[0])
            for p, s, k in zip(at, steps[2:], scale, strict=True):
                total = total + p * _tile(b, s * k)
            return b.select(inside, total, -1)

        with b.loop(part * each, stop, pixels, [b.full((pixels,), 0.0, wide)] * len(taps)) as loop:
            number = b.iota((pixels,), 0, i32)
            inside = b.cmp("lt", number, b.from_index(stop - loop.index, i32))
            rest, at = number + b.from_index(loop.index, i32), list[Tile]()
            for size in reversed(spans):
                over = b.binary("floordiv", rest, size)
                at.insert(0, rest - over * size)
                rest = over
            seen = offsets(xs, rest, at, op.stride, inside)
            own = b.gather(gv, (channel * gs[1],), 0, offsets(gs, rest, at, (1,) * len(at), inside), masked=True)
            cotangent, sums = widen(b, own), []
            for total, tap in zip(loop.carried, taps, strict=True):
                moved = channel * xs[1]
                for t, d, s in zip(tap, op.dilation, xs[2:], strict=True):
                    moved = moved + s * (t * d)
                sums.append(total + widen(b, b.gather(xv, (moved,), 0, seen, masked=True)) * cotangent)
            loop.next(*sums)
        for total, tap in zip(loop.results, taps, strict=True):
            b.store(out, (part, channel, *tap), narrow(b, b.reduce("sum", total, 0), out.type.dtype))
        note = f"{pixels} pixels a step{f', images in {parts} parts' if parts > 1 else ''}"
        return tiled(call.finish(channels * parts, flops=region_flops(region), bytes_=region_bytes(region), note=note), warps=4)

    def _added(self, region: Region, buffer: Buffer, parts: int) -> Launch:
        """The sums of all parts, in order."""
        op, y, call = region.op(TapProducts), region.results[0], Call("tap_products_sums", f"{region.name}.add")
        b, channels, taps = call.b, y.type.shape[0], prod(op.kernel)
        shape = (channels, *op.kernel)
        sums = call.view("sums", compute_dtype(y.type.dtype), buffer, Layout.contiguous((parts, *shape)))
        out = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        total = None
        wide = 1 << (op.kernel[-1] - 1).bit_length()
        at = unravel(b, b.pid, [call.word("channels", channels), *op.kernel[:-1]])
        for i in range(parts):
            one = b.load(sums, (i, *at, 0), (wide,), limit=(op.kernel[-1],))
            total = one if total is None else total + one
        assert total is not None
        b.store(out, (*at, 0), narrow(b, total, y.type.dtype), limit=(op.kernel[-1],))
        moved = parts * channels * taps * 4 + y.type.nbytes
        launch = call.finish(channels * (taps // op.kernel[-1]), bytes_=moved, note=f"sums of {parts} parts")
        launch.kernel = on_threads(launch.kernel, 1, 128, 1)
        return launch


def by_channels(region: Region) -> list[Launch]:
    """Channels last: column sums of pixels. For every tap the image is a view with the axes of the cotangent, so a block reads some pixels
    and channels of both and has a sum for every tap of a row of the kernel."""
    op, (x, g), y = region.op(TapProducts), region.operands, region.results[0]
    channels, (*rows, count) = g.type.shape[1], op.kernel
    wide = compute_dtype(y.type.dtype)
    blocks = Blocks(region.name, [*rows, channels], [g.type.shape[0], *g.type.shape[2:]], columns=True, fn="sum", dtype=wide,
                    item=max(1, 16 // count), count=count)  # fmt: skip
    call, vectors = Call("tap_columns", region.name if blocks.chunks == 1 else f"{region.name}.chunks"), dict[str, int]()
    b, (image, one, *steps), sizes = call.b, x.layout.strides, (*rows, g.type.shape[0], *g.type.shape[2:], channels)
    moved = [s * d for s, d in zip(steps, op.dilation, strict=True)]
    walked = [s * d for s, d in zip(steps, op.stride, strict=True)]

    def view(call: Call, name: str, o: Operand, lay: Layout, vectors: dict[str, int], *, write: bool = False) -> View:
        vectors[name] = aligned(lay, channels)
        return call.view(name, o.type.dtype, o.buffer, lay, write=write)

    xs = [view(call, f"x{i}", x, Layout(sizes, (*moved[:-1], image, *walked, one), x.layout.offset + i * moved[-1]), vectors)
          for i in range(count)]  # fmt: skip
    steps_g = g.layout.strides
    gv = view(call, "g", g, Layout(sizes, (*(0 for _ in rows), steps_g[0], *steps_g[2:], steps_g[1]), g.layout.offset), vectors)

    def terms(p: Place, later: list[Callable[[], None]]) -> list[Tile]:
        at = (*p.lead, *p.loops, *p.at)
        cotangent = b.cast(b.load(gv, at, p.tile, limit=p.limit), wide)
        return [b.cast(b.load(v, at, p.tile, limit=p.limit), wide) * cotangent for v in xs]

    def write(call: Call, vectors: dict[str, int]) -> Write:
        own, *others = y.layout.strides
        lays = [Layout((*rows, 1, channels), (*others[:-1], 0, own), y.layout.offset + i * others[-1]) for i in range(count)]
        outs = [view(call, f"y{i}", y, lay, vectors, write=True) for i, lay in enumerate(lays)]

        def put(p: Place, totals: list[Tile]) -> None:
            for out, t in zip(outs, totals, strict=True):
                call.b.store(out, (*p.lead, *p.at), narrow(call.b, t, y.type.dtype), limit=p.limit)

        return put

    last = Call("tap_columns_sum", region.name)
    return blocks.launches(call, terms, vectors, last, write, region_flops(region), region_bytes(region))


def _tile(b: KernelBuilder, x: Ix | int) -> Tile | int:
    return b.from_index(x, i32) if isinstance(x, Ix) else x
