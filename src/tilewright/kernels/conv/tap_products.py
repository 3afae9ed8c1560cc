"""Products of cotangents with shifted data, for the weights of depthwise convolutions. A program sums some neighbouring taps of a channel:
a register of cotangents is multiplied by one register of data a tap. Sums of a line are added to those of an image, these to the total, so
that chains stay short. Tails are masked; a batch of nothing gives zeros."""
from __future__ import annotations

from math import prod

from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.matmul.tap_products import TapProducts as TapProductsOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Buffer, Launch
from ..loops import in_tiles
from ..pointwise.copies import copy_launch, fill_launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, narrow, widen
from ..template import Template, region_bytes, region_flops

TAPS = 8  # along the last axis, of a program


class TapProductsTemplate(Template):
    key = "tap_products"
    serves = (TapProductsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (x, g), y = region.op(TapProductsOp), region.places, region.results[0]
        before: list[Launch] = []
        if any(p for pair in op.pads for p in pair):
            shape = (*x.type.shape[:2], *(d + sum(pair) for d, pair in zip(x.type.shape[2:], op.pads, strict=True)))
            type_ = x.type.with_shape(shape)
            wide = Operand(type_, Buffer(f"{region.name}.padded", "temp", type_.nbytes), Layout.contiguous(shape))
            inside = wide.layout
            for axis, ((low, _), size) in enumerate(zip(op.pads, x.type.shape[2:], strict=True), 2):
                inside = inside.slice(axis, low, size)
            before = [fill_launch(f"{region.name}.zeros", 0.0, wide, target),
                      copy_launch(f"{region.name}.pad", x, Operand(x.type, wide.buffer, inside), target, "zeros around the data")]
            x = wide
        call = Call("tap_products", region.name)
        b, rank = call.b, len(op.kernel)
        # the last axis twice: along the cotangent's elements, and along taps
        strides = x.layout.strides
        apart = Layout((*x.layout.shape, x.layout.shape[-1]), (*strides[:-1], strides[-1] * op.stride[-1], strides[-1]), x.layout.offset)
        data = call.view("x", x.type.dtype, x.buffer, apart, sizes=(*x.layout.shape[:-1], 1, x.layout.shape[-1]), bake=(-2,))
        given = call.view("g", g.type.dtype, g.buffer, g.layout)
        goal = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        n, channels = call.word("n", g.type.shape[0]), x.type.shape[1]
        sizes = [call.word(f"o{i}", d) for i, d in enumerate(g.type.shape[2:])]
        parts = [range(k, min(k + TAPS, op.kernel[-1])) for k in range(0, op.kernel[-1], TAPS)]
        dtype = compute_dtype(x.type.dtype)
        tile = target.vector_bits // (8 * dtype.itemsize)
        channel, *tap = unravel(b, b.pid // len(parts), [0, *op.kernel[:-1]])

        def sums(taps: range) -> None:
            zeros = [b.full((tile,), 0.0, dtype)] * len(taps)

            def step(at: list[Ix | int], i: Ix, left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
                limit = None if left is None else (left,)
                spots = [o * s + k * d for o, s, k, d in zip(at[1:], op.stride, tap, op.dilation, strict=False)]
                share = widen(b, b.load(given, (at[0], channel, *at[1:], i), (tile,), limit=limit))
                along = (at[0], channel, *spots, i)
                found = (b.load(data, (*along, k * op.dilation[-1]), (tile,), axes=(rank + 1,), limit=limit) for k in taps)
                return [b.fma(share, widen(b, v), acc) for v, acc in zip(found, carried, strict=True)]

            def nest(at: list[Ix | int], rest: list[Ix]) -> list[Tile]:
                if not rest:
                    return in_tiles(b, 0, sizes[-1], tile, lambda i, left, sums: step(at, i, left, sums), zeros)
                with b.loop(0, rest[0], 1, zeros) as loop:
                    inner = nest([*at, loop.index], rest[1:])
                    loop.next(*(x + y for x, y in zip(loop.carried, inner, strict=True)))
                return loop.results

            for k, total in zip(taps, nest([], [n, *sizes[:-1]]), strict=True):
                b.store(goal, (channel, *tap, k), narrow(b, b.reduce("sum", total), y.type.dtype))

        for i, taps in enumerate(parts):
            if len(parts) == 1:
                sums(taps)
            else:
                with b.if_(b.compare("eq", b.pid % len(parts), i)):
                    sums(taps)
        grid = channels * (prod(op.kernel[:-1]) * len(parts))
        return [*before, call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region))]
