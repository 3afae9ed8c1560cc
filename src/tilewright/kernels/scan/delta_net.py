"""The gated delta rule: one program per head and sixteen columns of values keeps its part of the memory in local memory and walks time.

A step goes over the rows of the memory twice: first they decay and are read with the key, then they are corrected and read with the query.
Without the correction once is enough.
Sums over rows are one chain a column in order. Columns past the last are masked. Operands of 16 bits are widened when read; the memory is
f32 then. No steps: the first state is the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import Dim, ceildiv
from ...core.dtypes import DType, f32
from ...core.target_spec import TargetSpec
from ...ops.scan.delta_net import GatedDeltaRule as GatedDeltaRuleOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops

LANES = 16
NAMES = ("q", "k", "v", "g", "beta", "s")


def working(dtype: DType) -> DType:
    """The dtype of arithmetic."""
    return f32 if dtype.itemsize < 4 else dtype


class GatedDeltaRuleTemplate(Template):
    key = "gated_delta_rule"
    serves = (GatedDeltaRuleOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        walk = Walk(region, "gated_delta_rule", region.name)
        b, scale = walk.b, region.op(GatedDeltaRuleOp).scale
        results = zip(("o", "last"), region.results, strict=True)
        out, last = (walk.call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in results)
        walk.start()
        with b.loop(0, walk.steps) as time:
            walk.step(time.index, lambda o: walk.put(out, (*walk.at, time.index, walk.column), o * scale))
        with b.loop(0, walk.depth) as row:
            walk.put(last, (*walk.at, row.index, walk.column), walk.row(row.index))
        first, after = region.operand(region.node.operands[-1]), region.results[1]
        pairs = [(first.buffer, after.buffer)] if first is not None and first.layout == after.layout else []
        return [walk.finish(region_flops(region), region_bytes(region), pairs)]


class Walk:
    """A kernel under construction: the views of the operands, where a program stands, and its part of the memory."""

    def __init__(self, region: Region, kernel: str, label: str) -> None:
        operands: list[Operand] = [o for v in region.node.operands if (o := region.operand(v)) is not None][:6]
        groups, depth = operands[0].type.shape[1], operands[0].type.shape[3]
        batch, heads, length, wide = operands[2].type.shape
        assert isinstance(depth, int) and isinstance(wide, int)
        self.depth, self.dtype = depth, working(operands[0].type.dtype)
        self.call = call = Call(kernel, label)
        self.b = b = call.b
        self.views = {n: call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(NAMES, operands, strict=True)}
        self.steps, head_count = call.word("length", length), call.word("heads", heads)
        blocks = -(-wide // LANES)
        rest, self.column = b.pid // blocks, b.pid % blocks * LANES
        self.at = (rest // head_count, rest % head_count)
        share = heads // groups if isinstance(heads, int) and isinstance(groups, int) else 1
        self.group = (self.at[0], self.at[1] // share)
        self.delta = getattr(region.node.op, "delta", True)
        self.limit = b.minimum(wide - self.column, LANES)
        self.memory = b.scratch(self.dtype, (depth, LANES))
        self.grid: Dim = batch * heads * ceildiv(wide, LANES)

    def start(self) -> None:
        """The first state into local memory."""
        with self.b.loop(0, self.depth) as row:
            self.b.store(self.memory, (row.index, 0), self.columns("s", row.index))

    def row(self, i: Ix) -> Tile:
        return self.b.load(self.memory, (i, 0), (LANES,))

    def one(self, name: str, *at: Ix) -> Tile:
        """One number of an operand."""
        return self.b.cast(self.b.load(self.views[name], (*(self.group if name in ("q", "k") else self.at), *at), ()), self.dtype)

    def columns(self, name: str, i: Ix) -> Tile:
        """The numbers of this program's columns."""
        return self.b.cast(self.b.load(self.views[name], (*self.at, i, self.column), (LANES,), limit=(self.limit,)), self.dtype)

    def put(self, view: View, at: tuple[Ix | int, ...], x: Tile) -> None:
        self.b.store(view, at, self.b.cast(x, view.type.dtype), limit=(self.limit,))

    def step(self, t: Ix, read: Callable[[Tile], None] | None) -> None:
        """One step; `read` takes what the query reads."""
        b = self.b
        zero = b.full((LANES,), 0.0, self.dtype)
        decay = b.unary("exp", self.one("g", t))
        if not self.delta:
            new = self.columns("v", t) * self.one("beta", t)
            with b.loop(0, self.depth, 1, [zero] if read else []) as only:
                s = b.fma(b.broadcast(self.one("k", t, only.index), (LANES,)), new, self.row(only.index) * decay)
                b.store(self.memory, (only.index, 0), s)
                if read:
                    only.next(b.fma(b.broadcast(self.one("q", t, only.index), (LANES,)), s, only.carried[0]))
            if read:
                read(only.results[0])
            return
        with b.loop(0, self.depth, 1, [zero]) as first:
            s = self.row(first.index) * decay
            b.store(self.memory, (first.index, 0), s)
            first.next(b.fma(b.broadcast(self.one("k", t, first.index), (LANES,)), s, first.carried[0]))
        correction = (self.columns("v", t) - first.results[0]) * self.one("beta", t)
        with b.loop(0, self.depth, 1, [zero] if read else []) as second:
            s = b.fma(b.broadcast(self.one("k", t, second.index), (LANES,)), correction, self.row(second.index))
            b.store(self.memory, (second.index, 0), s)
            if read:
                second.next(b.fma(b.broadcast(self.one("q", t, second.index), (LANES,)), s, second.carried[0]))
        if read:
            read(second.results[0])

    def finish(self, flops: Dim, bytes_: Dim, inplace: Sequence[tuple[Buffer, Buffer]] = ()) -> Launch:
        note = f"{self.depth}x{LANES} of the memory a program"
        return self.call.finish(self.grid, flops=flops, bytes_=bytes_, inplace=inplace, note=note)
