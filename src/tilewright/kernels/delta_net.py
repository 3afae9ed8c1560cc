"""The gated delta rule: one program per head and sixteen columns of values keeps its part of the memory in local memory and walks time.

A step goes over the rows of the memory twice: first they decay and are read with the key, then they are corrected and read with the query.
Sums over rows are one chain a column in order. Columns past the last are masked. No steps: the first state is the last one.
"""

from __future__ import annotations

from ..core.dims import Dim, ceildiv
from ..core.target_spec import TargetSpec
from ..ops.delta_net import GatedDeltaRule as GatedDeltaRuleOp
from .call import Call
from .launch import Launch
from .region import Region
from .template import Reason, Template, alone, region_bytes, region_flops

LANES = 16


class GatedDeltaRule(Template):
    key = "gated_delta_rule"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, GatedDeltaRuleOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, GatedDeltaRuleOp)
        operands = [o for v in region.anchor.operands if (o := region.operand(v)) is not None]
        batch, heads, length, depth = operands[0].type.shape
        wide = operands[2].type.shape[-1]
        assert isinstance(depth, int) and isinstance(wide, int)
        dtype = operands[0].type.dtype
        call = Call("gated_delta_rule", region.name)
        b = call.b
        names = ("q", "k", "v", "g", "beta", "s")
        q, k, v, g, beta, state = (call.view(n, dtype, o.buffer, o.layout) for n, o in zip(names, operands, strict=True))
        out, last = (call.view(n, dtype, r.buffer, r.layout, write=True) for n, r in zip(("o", "last"), region.results, strict=True))
        steps, head_count = call.word("length", length), call.word("heads", heads)
        blocks = -(-wide // LANES)
        rest, column = b.pid // blocks, b.pid % blocks * LANES
        at = (rest // head_count, rest % head_count)
        limit = b.minimum(wide - column, LANES)
        memory = b.scratch(dtype, (depth, LANES))
        with b.loop(0, depth) as row:
            b.store(memory, (row.index, 0), b.load(state, (*at, row.index, column), (LANES,), limit=(limit,)))
        zero = b.full((LANES,), 0.0, dtype)
        with b.loop(0, steps) as time:
            t = time.index
            decay = b.unary("exp", b.load(g, (*at, t), ()))
            with b.loop(0, depth, 1, [zero]) as first:
                s = b.load(memory, (first.index, 0), (LANES,)) * decay
                b.store(memory, (first.index, 0), s)
                first.next(b.fma(b.broadcast(b.load(k, (*at, t, first.index), ()), (LANES,)), s, first.carried[0]))
            value = b.load(v, (*at, t, column), (LANES,), limit=(limit,))
            correction = (value - first.results[0]) * b.load(beta, (*at, t), ())
            with b.loop(0, depth, 1, [zero]) as second:
                key = b.broadcast(b.load(k, (*at, t, second.index), ()), (LANES,))
                s = b.fma(key, correction, b.load(memory, (second.index, 0), (LANES,)))
                b.store(memory, (second.index, 0), s)
                second.next(b.fma(b.broadcast(b.load(q, (*at, t, second.index), ()), (LANES,)), s, second.carried[0]))
            b.store(out, (*at, t, column), second.results[0] * region.anchor.op.scale, limit=(limit,))
        with b.loop(0, depth) as row:
            b.store(last, (*at, row.index, column), b.load(memory, (row.index, 0), (LANES,)), limit=(limit,))
        grid: Dim = batch * heads * ceildiv(wide, LANES)
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{depth}x{LANES} of the memory a program")]
