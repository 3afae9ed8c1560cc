"""Short causal convolutions: a program takes a block of rows and columns. The one of the first rows also reads the state, and is the one
that writes it, so that the next state may lie in the memory of the first. Columns past the last are masked. No rows: a copy of the state.
"""

from __future__ import annotations

from ...core.dims import ceildiv
from ...core.target_spec import TargetSpec
from ...ops.scan.causal_conv import CausalConv as CausalConvOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .delta_net import working


class CausalConvTemplate(Template):
    key = "causal_conv"
    serves = (CausalConvOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, weight, _, state = operands = [region.given(v) for v in region.node.operands]
        batch, length, wide = x.type.shape
        taps, dtype = weight.type.shape[0], working(x.type.dtype)
        assert isinstance(taps, int)
        least, lanes = (16, 64) if target.kind == "cpu" else (8, 4)
        rows = max(least, taps)  # at least the rows that read the state
        call = Call("causal_conv", region.name)
        b = call.b
        names = zip(("x", "weight", "bias", "state"), operands, strict=True)
        xs, weights, biases, first = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in names)
        results = zip(("y", "last"), region.results, strict=True)
        out, last = (call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in results)
        steps, across = call.word("length", length), ceildiv(wide, lanes)
        blocks = call.word("blocks", across)
        down = length // rows + 1  # the last may be empty, the first is always there
        count = call.word("rows", down)
        rest, column = b.pid // blocks, b.pid % blocks * lanes
        at, block = rest // count, rest % count
        inside = None if isinstance(wide, int) and wide % lanes == 0 else (b.minimum(call.word("wide", wide) - column, lanes),)

        def load(view: View, *place: Ix | int) -> Tile:
            return b.cast(b.load(view, (*place, column), (lanes,), limit=inside), dtype)

        def store(view: View, row: Ix | int, value: Tile) -> None:
            b.store(view, (at, row, column), b.cast(value, view.type.dtype), limit=inside)

        table, start = [load(weights, k) for k in range(taps)], load(biases)

        def put(row: Ix | int, inputs: list[Tile]) -> None:
            y = start
            for w, value in zip(table, inputs, strict=True):
                y = b.fma(w, value, y)
            store(out, row, b.binary("div", y, b.unary("exp", y * -1.0) + 1.0))

        end = b.minimum(block * rows + rows, steps)
        with b.if_(b.compare("eq", block, 0)):
            for row in range(taps - 1):
                with b.if_(b.compare("lt", row, end)):
                    put(row, [load(first, at, row + k) if row + k < taps - 1 else load(xs, at, row + k - taps + 1) for k in range(taps)])
            for row in range(taps - 1):
                from_x = b.compare("ge", steps, taps - 1 - row)
                with b.if_(from_x):
                    store(last, row, load(xs, at, steps + (row - taps + 1)))
                with b.if_(b.unary("not", from_x)):
                    store(last, row, load(first, at, steps + row))
        with b.loop(b.maximum(block * rows, taps - 1), end) as loop:
            put(loop.index, [load(xs, at, loop.index + (k - taps + 1)) for k in range(taps)])
        pairs = [(state.buffer, region.results[1].buffer)] if state.layout == region.results[1].layout else []
        return [call.finish(batch * down * across, flops=region_flops(region), bytes_=region_bytes(region), inplace=pairs)]
