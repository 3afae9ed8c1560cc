"""Attention of one query row per head over a cache: the keys are cut into parts, and the parts' results are put together in order.

Groups of threads own parts of one head's keys. A thread holds pieces of both halves of a row, so that a rope of the query is
elementwise; groups walk their keys
`KEYS` at a time with a running maximum and sum. Up to `SHORT` keys, a block per head has all groups and puts their results together in
shared memory; for more, a
first launch spreads the parts over the chip and a second one weighs them. Then the elementwise consumers run. A part that sees no key
weighs nothing; a row
that sees none gives zeros. Bits depend on the number of keys alone, not on batch or heads.
"""

from __future__ import annotations

from ...core.dims import Dim, at_most, ceildiv, divisible, maximum, minimum
from ...core.dtypes import DType, bf16, f16, f32
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.attention import Attention as AttentionOp
from ...ops.attention import Rope as RopeOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ...tile.ir import INDEX, TileType, Var
from ..attention import Attention
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise import unravel
from ..region import Evaluator, Operand, Region, narrow, widen
from ..template import Reason, Template, region_bytes, region_flops
from ..tiling import leaves_of_epilogue
from .groups import Shared, on_threads
from .kernel import DecodeKernel

KEYS = 4  # of one step
SHORTEST = 16  # keys of a part
PARTS = 32  # at most
VECTOR = 4  # elements of a thread: more threads a row, since there are few rows
BLOCK = 128  # threads
GROUPS = 32  # of a block that has all keys of a head, at most
MOST_THREADS = 1024  # of a block
SHORT = 4096  # keys
NEVER = float("-inf")
FLOATS = (bf16, f16, f32)


class DecodeAttention(Template):
    key = "decode_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) is not AttentionOp:
            return Reason("no attention")
        if node.op.has_mask or node.op.has_bias:
            return Reason("masks and biases are not fused here")
        if Attention().matches(region, target) is not None:
            return Attention().matches(region, target)
        return None if fitting(region) is not None else Reason("one query row per head, rows of a multiple of 16 bytes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if fitting(region) is None:  # the operand's place was not known when the template was chosen
            return Shared(Attention()).build(region, target)
        return Decode(region).launches()


def vector_of(*dtypes: DType) -> int:
    return min(VECTOR, 16 // min(d.itemsize for d in dtypes))


def fitting(region: Region) -> tuple[Operand, Operand, Operand] | None:
    """Where q (before its rope), k and v lie, if this template can read them."""
    node = region.anchor
    assert node is not None
    q_value, k_value, v_value = node.operands[:3]
    rope = q_value.node.op
    if isinstance(rope, RopeOp):
        if rope.interleaved or rope.n_rot not in (None, q_value.shape[-1]):
            return None
        q_value = q_value.node.operands[0]
    places = [region.operand(v) for v in (q_value, k_value, v_value)]
    q, k, v = places
    if q is None or k is None or v is None or any(o.type.dtype not in FLOATS for o in (q, k, v)):
        return None
    d, vector = q.type.shape[-1], vector_of(q.type.dtype, k.type.dtype, v.type.dtype)
    if q.type.shape[2] != 1 or not isinstance(d, int) or v.type.shape[-1] != d or d > 256 or d % (2 * vector):
        return None
    threads = d // 2 // vector
    steps = [(o.layout.offset, *o.layout.strides[:-1]) for o in (q, k, v)]
    even = all(o.layout.strides[-1] == 1 for o in (q, k, v)) and all(divisible(s, vector) for row in steps for s in row)
    return (q, k, v) if even and threads & (threads - 1) == 0 and threads <= 32 and d & (d - 1) == 0 else None


class Decode:
    def __init__(self, region: Region) -> None:
        node, places = region.anchor, fitting(region)
        assert node is not None and isinstance(node.op, AttentionOp) and places is not None
        self.region, self.node, self.op = region, node, node.op
        self.q, self.k, self.v = places
        self.batch, self.heads, _, d = self.q.type.shape
        assert isinstance(d, int)
        self.d, self.keys = d, self.k.type.shape[2]
        self.vector = vector_of(*(o.type.dtype for o in places))
        self.span = maximum(SHORTEST, ceildiv(ceildiv(self.keys, PARTS), KEYS) * KEYS)
        self.parts = ceildiv(self.keys, self.span)
        name, rows = region.name, self.batch * self.heads * PARTS
        self.sums = Buffer(f"{name}.sums", "temp", rows * d * 4)
        self.stats = Buffer(f"{name}.stats", "temp", rows * 2 * 4)
        self.sums_at = Layout.contiguous((self.batch, self.heads, PARTS, d))
        self.stats_at = Layout.contiguous((self.batch, self.heads, PARTS, 2))

    def launches(self) -> list[Launch]:
        return [self._whole()] if at_most(self.keys, SHORT) else [self._parts(), self._together()]

    # --- parts of the keys --------------------------------------------------------------------------------------------
    def _query(self, call: Call, b: KernelBuilder, at: list[Ix | int]) -> tuple[Tile, Tile]:
        """Both halves of the query, rotated where the region says so, times the scale."""
        half = self.d // 2
        view = call.view("q", self.q.type.dtype, self.q.buffer, self.q.layout)
        first, second = (widen(b, b.load(view, (*at, 0, c), (1, half))) for c in (0, half))
        value = self.node.operands[0]
        if isinstance(value.node.op, RopeOp):
            shape = (*value.shape[:-1], half)
            tables = []
            for n, x in zip(("cos", "sin"), value.node.operands[1:], strict=True):
                o = self.region.operand(x)
                assert o is not None
                table = call.view(n, o.type.dtype, o.buffer, o.layout.expand(shape))
                tables.append(widen(b, b.load(table, (*at, 0, 0), (1, half))))
            cos, sin = tables
            first, second = first * cos - second * sin, second * cos + first * sin
        return first * self.op.scale, second * self.op.scale

    def _walk(self, call: Call, at: list[Ix | int], start: Ix | int, end: Ix | int, step: int) -> list[Tile]:
        """Running maximum, sum and both halves of the weighted values over keys start, start + step, … in runs of KEYS."""
        b, op, half = call.b, self.op, self.d // 2
        k = call.view("k", self.k.type.dtype, self.k.buffer, self.k.layout, bake=(-2,))
        v = call.view("v", self.v.type.dtype, self.v.buffer, self.v.layout, bake=(-2,))
        group = call.word("group", self.heads // self.k.type.shape[1])
        bi, hi = at
        kv = hi // group
        q1, q2 = self._query(call, b, at)
        empty = [b.full((1, 1), NEVER), b.full((1, 1), 0.0), b.full((1, half), 0.0), b.full((1, half), 0.0)]
        with b.loop(start, end, step, empty) as loop:
            key, (top, total, o1, o2) = loop.index, loop.carried
            left = end - key

            def rows(view: View, column: int) -> Tile:
                return b.load(view, (bi, kv, key, column), (KEYS, half), limit=(left, None))

            k1, k2, v1, v2 = rows(k, 0), rows(k, half), rows(v, 0), rows(v, half)
            s = b.reduce("sum", b.fma(q2, widen(b, k2), q1 * widen(b, k1)), 1)
            if op.softcap is not None:
                s = b.unary("tanh", s * (1.0 / op.softcap)) * op.softcap
            s = b.select(b.cmp("lt", b.iota((KEYS, 1), 0), b.from_index(left)), s, NEVER)
            best = b.binary("max", top, b.reduce("max", s, 0))
            safe = b.select(b.cmp("eq", best, NEVER), 0.0, best)
            weight, fade = b.unary("exp", s - safe), b.unary("exp", top - safe)
            o1, o2 = (o * fade + b.reduce("sum", weight * widen(b, x), 0) for o, x in ((o1, v1), (o2, v2)))
            loop.next(best, total * fade + b.reduce("sum", weight, 0), o1, o2)
        found: list[Tile] = loop.results
        return found

    def _seen(self) -> tuple[Dim, Dim]:
        """The keys that the row sees: from, to."""
        last: Dim = self.keys if not self.op.causal else minimum(self.keys, self.op.offset + 1)
        first: Dim = 0 if self.op.window is None else maximum(0, self.op.offset - self.op.window + 1)
        return first, maximum(0, last)

    def _heads(self, call: Call, index: Ix | int) -> list[Ix | int]:
        return unravel(call.b, index, [call.word("batch", self.batch), call.word("heads", self.heads)])

    # --- a block per head ---------------------------------------------------------------------------------------------
    def _whole(self) -> Launch:
        call = Call("decode", self.region.name)
        b, d = call.b, self.d
        part = Var(INDEX, "part")
        first, last = (call.word(n, x) for n, x in zip(("first", "last"), self._seen(), strict=True))
        at = self._heads(call, b.pid)
        threads = d // 2 // self.vector
        groups = min(GROUPS, MOST_THREADS // threads)
        found = self._walk(call, at, first + Ix(b, part) * KEYS, last, groups * KEYS)
        split = len(b.kernel.body.body)
        acc = Var(TileType((1, d), f32), "acc")
        self._consumers(call, at, Tile(b, acc))
        launch = call.finish(
            self.batch * self.heads,
            flops=region_flops(self.region),
            bytes_=region_bytes(self.region),
            note=f"a block a head, {KEYS} keys a step",
        )
        k = launch.kernel
        launch.kernel = DecodeKernel(
            f"{k.name}_{threads}x{self.vector}x{groups}", k.params, k.pid, k.body, split=split, part=part,
            found=tuple(x.var for x in found), acc=acc, d=d, threads=threads, vector=self.vector, groups=groups)  # fmt: skip
        return launch

    def _consumers(self, call: Call, at: list[Ix | int], out: Tile) -> None:
        """Everything after the attention, over one row."""
        b, region, out_value = call.b, self.region, self.node.values[0]
        outs = [call.view(f"o{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        ins: dict[Value, View] = {}
        for i, x in enumerate(leaves_of_epilogue(region, out_value)):
            o = region.operand(x)
            assert o is not None
            ins[x] = call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(out_value.shape))

        def leaf(x: Value, o: Operand) -> Tile:
            return b.load(ins[x], (*at, 0, 0), (1, 1 if ins[x].type.strides[-1] == 0 else self.d))

        evaluate = Evaluator(b, region, leaf, {out_value: out})
        for view, x, r in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (*at, 0, 0), narrow(b, b.broadcast(evaluate(x), (1, self.d)), r.type.dtype))

    # --- parts all over the chip --------------------------------------------------------------------------------------
    def _parts(self) -> Launch:
        call = Call("decode_parts", f"{self.region.name}.parts")
        b, half = call.b, self.d // 2
        sums = call.view("sums", f32, self.sums, self.sums_at, write=True)
        stats = call.view("stats", f32, self.stats, self.stats_at, write=True)
        parts, span = call.word("parts", self.parts), call.word("span", self.span)
        first, last = (call.word(n, x) for n, x in zip(("first", "last"), self._seen(), strict=True))
        part = b.pid % parts
        at = self._heads(call, b.pid // parts)
        found = self._walk(call, at, b.maximum(part * span, first), b.minimum((part + 1) * span, last), KEYS)
        for view, column, x in ((sums, 0, found[2]), (sums, half, found[3]), (stats, 0, found[0]), (stats, 1, found[1])):
            b.store(view, (*at, part, column), x)
        launch = call.finish(
            self.batch * self.heads * self.parts,
            flops=region_flops(self.region),
            bytes_=region_bytes(self.region),
            note=f"{KEYS} keys a step",
        )
        threads = half // self.vector
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, self.vector)
        return launch

    def _together(self) -> Launch:
        call = Call("decode_together", self.region.name)
        b = call.b
        sums, stats = call.view("sums", f32, self.sums, self.sums_at), call.view("stats", f32, self.stats, self.stats_at)
        parts = call.word("parts", self.parts)
        at = self._heads(call, b.pid)
        tops, totals = (b.load(stats, (*at, 0, c), (PARTS, 1), limit=(parts, None), other=x) for c, x in ((0, NEVER), (1, 0.0)))
        values = b.load(sums, (*at, 0, 0), (PARTS, self.d), limit=(parts, None))
        best = b.reduce("max", tops, 0)
        best = b.select(b.cmp("eq", best, NEVER), 0.0, best)
        weight = b.unary("exp", tops - best)
        total = b.reduce("sum", weight * totals, 0)
        self._consumers(call, at, b.reduce("sum", weight * values, 0) / b.select(b.cmp("eq", total, 0.0), 1.0, total))
        launch = call.finish(self.batch * self.heads, note=f"up to {PARTS} parts")
        launch.kernel = on_threads(launch.kernel, self.d, 1)
        return launch
