"""Attention of one query row per head over a cache: the keys are cut into parts, and the parts' results are put together in order.

Groups of threads own parts of one head's keys. A thread holds pieces of both halves of a row, so that a rope of the query is elementwise;
groups walk their keys `KEYS` at a time with a running maximum and sum. Up to `SHORT` keys, a block per head (or a cluster of blocks, whose
first one collects) has all groups and puts their results together in shared memory; for more, a first launch spreads the parts over the
chip and a second one weighs them. Then the elementwise consumers run. A part that sees no key weighs nothing; a row that sees none gives
zeros. Bits depend on the number of keys alone, not on batch or heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.dims import Dim, at_most, ceildiv, divisible, maximum, minimum
from ....core.dtypes import bf16, f16, f32, i8
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.attention.forward import Attention as AttentionOp
from ....ops.attention.forward import Rope as RopeOp
from ....ops.attention.q8_cache import BLOCK as Q8_BLOCK
from ....ops.attention.q8_cache import Q8Attention as Q8AttentionOp
from ....ops.attention.q8_cache import Q8Blocks as Q8BlocksOp
from ....ops.state import UpdateSlice
from ....ops.views import Slice
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import DecodeKernel, identified
from ...launch import Buffer, Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, narrow, widen
from ...template import Foreign, Reason, Template, region_bytes, region_flops
from ..forward import AttentionTemplate
from .decode_quantized import quantized_row, spread


@dataclass(frozen=True)
class Appended:
    """A cache that the region appends a row to: where it lies up to that row, the row (before its rope), and the update. Caches of scales
    follow those of quantized values."""

    cache: Operand
    row: Operand
    value: Value  # the row after its rope
    update: Node

    def window(self, result: Operand) -> Layout:
        """Where the row goes in a result."""
        op = self.update.op
        assert isinstance(op, UpdateSlice) and result.buffer is self.cache.buffer
        return result.layout.slice(op.axis, op.start, 1)


def appended(region: Region) -> list[Appended]:
    """The caches of keys and values where the region appends to them (see `passes/cache_attention.py`), else nothing."""
    found = []
    for v in region.node.operands[1:]:
        update = v.node.operands[0].node if isinstance(v.node.op, Slice) else None
        if update is None or not isinstance(update.op, UpdateSlice):
            return []
        old, new = update.operands
        new = new.node.operands[0] if isinstance(new.node.op, Q8BlocksOp) else new
        cache, row = region.operand(old), region.operand(new.node.operands[0] if isinstance(new.node.op, RopeOp) else new)
        assert cache is not None and row is not None
        layout = v.node.op.views(cache.layout)[0]
        assert layout is not None
        found.append(Appended(Operand(v.type, cache.buffer, layout), row, new, update))
    return found


KEYS = 8  # keys of one step
SHORTEST = 16  # keys of a part
PARTS = 32  # at most
VECTOR = 4  # elements of a thread: more threads a row, since there are few rows
BLOCK = 128  # threads
THREADS = 512  # threads of a block that has all keys of a head
SHORT = 4096  # keys
CLUSTER = 4  # blocks of a head at most, where the chip has one for each
NEVER = float("-inf")
FLOATS = (bf16, f16, f32)


class DecodeAttention(Template):
    key = "decode_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, AttentionOp) or type(node.op) not in (AttentionOp, Q8AttentionOp):
            return Foreign("no attention")
        if node.op.has_mask or node.op.has_bias:
            return Reason("masks and biases are not fused here")
        if not appended(region) and AttentionTemplate().matches(region, target) is not None:
            return AttentionTemplate().matches(region, target)
        return None if fitting(region) is not None else Reason("one query row per head, rows of a multiple of 16 bytes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return Decode(region, target).launches()


def vector_of(places: Sequence[Operand]) -> int:
    """Elements of a thread: as many as 16 bytes and all rows' places allow."""
    vector = min(VECTOR, 16 // min(o.type.dtype.itemsize for o in places))
    steps = [s for o in places for s in (o.layout.offset, *o.layout.strides[:-1])]
    while vector > 1 and not all(divisible(s, vector) for s in steps):
        vector //= 2
    return vector


def fitting(region: Region) -> tuple[Operand, Operand, Operand] | None:
    """Where q (before its rope), k and v lie, if this template can read them."""
    node = region.node
    q_value, k_value, v_value = node.operands[:3]
    rope = q_value.node.op
    if isinstance(rope, RopeOp):
        if rope.interleaved or rope.n_rot not in (None, q_value.shape[-1]):
            return None
        q_value = q_value.node.operands[0]
    caches = appended(region)
    q = region.operand(q_value)
    k, v = (c.cache for c in caches[:2]) if caches else (region.operand(x) for x in (k_value, v_value))
    kinds = (i8,) if isinstance(node.op, Q8AttentionOp) else FLOATS
    if q is None or k is None or v is None or q.type.dtype not in FLOATS or any(o.type.dtype not in kinds for o in (k, v)):
        return None
    rows = [q, k, v, *(c.row for c in caches)]
    d, vector = q.type.shape[-1], vector_of(rows)
    if q.type.shape[2] != 1 or not isinstance(d, int) or v.type.shape[-1] != d or d > 256 or d % (2 * vector):
        return None
    threads = d // 2 // vector
    even = all(o.layout.strides[-1] == 1 for o in rows)
    return (q, k, v) if even and threads & (threads - 1) == 0 and threads <= 32 and d & (d - 1) == 0 else None


class Decode:
    at_once = KEYS  # keys of one step

    def __init__(self, region: Region, target: TargetSpec) -> None:
        node, places = region.anchor, fitting(region)
        assert node is not None and isinstance(node.op, AttentionOp) and places is not None
        self.region, self.node, self.op, self.target = region, node, node.op, target
        self.q, self.k, self.v = places
        self.batch, self.heads, _, d = self.q.type.shape
        assert isinstance(d, int)
        self.d, self.keys = d, self.k.type.shape[2]
        self.caches = appended(region)
        others = node.operands[3:] if isinstance(node.op, Q8AttentionOp) else ()
        self.scales = [c.cache for c in self.caches[2:]] or [o for x in others if (o := region.operand(x)) is not None]  # q8_0's scales
        if self.scales and d > 64:  # a thread holds the scales of all blocks of a half
            self.at_once = KEYS * 64 // d
        self.vector = vector_of([*places, *(c.row for c in self.caches)])
        self._divide()

    def _divide(self) -> None:
        """How many keys a part has, and where the parts' results lie."""
        self.span = maximum(SHORTEST, ceildiv(ceildiv(self.keys, PARTS), KEYS) * KEYS)
        self.parts = ceildiv(self.keys, self.span)
        name, rows = self.region.name, self.batch * self.heads * PARTS
        self.sums = Buffer(f"{name}.sums", "temp", rows * self.d * 4)
        self.stats = Buffer(f"{name}.stats", "temp", rows * 2 * 4)
        self.sums_at = Layout.contiguous((self.batch, self.heads, PARTS, self.d))
        self.stats_at = Layout.contiguous((self.batch, self.heads, PARTS, 2))

    @property
    def early(self) -> bool:
        return bool(self.caches) and not self.scales

    def launches(self) -> list[Launch]:
        return [self._whole()] if at_most(self.keys, SHORT) else [self._parts(), self._together()]

    # --- parts of the keys --------------------------------------------------------------------------------------------
    def _loaded(self, call: Call, name: str, place: Operand, value: Value, at: list[Ix | int]) -> list[Tile]:
        """Both halves of a row of one head, and of the tables of its rope where `value` is the result of one: loads only."""
        b, half = call.b, self.d // 2
        view = call.view(name, place.type.dtype, place.buffer, place.layout)
        found = [b.load(view, (*at, 0, c), (1, half)) for c in (0, half)]
        if isinstance(value.node.op, RopeOp):
            shape = (*value.shape[:-1], half)
            for n, x in zip(("cos", "sin"), value.node.operands[1:], strict=True):
                o = self.region.given(x)
                table = call.view(f"{name}{n}", o.type.dtype, o.buffer, o.layout.expand(shape))
                found.append(b.load(table, (*at, 0, 0), (1, half)))
        return found

    def _rotated(self, b: KernelBuilder, loaded: list[Tile]) -> tuple[Tile, Tile]:
        """Both halves in f32 after the rope, if there is one."""
        first, second, *tables = (widen(b, x) for x in loaded)
        if not tables:
            return first, second
        cos, sin = tables
        return first * cos - second * sin, second * cos + first * sin

    def _append(self, call: Call, at: list[Ix | int], loaded: list[list[Tile]], writes: Tile, part: Ix | int,
                query: list[Tile]) -> list[Tile]:
        """What a walk starts with: in the first part the row that this call appends. The first head of a group writes it to the caches."""
        b, half = call.b, self.d // 2
        rows, factors = [], []
        for c, found in zip(self.caches, loaded, strict=False):
            halves = self._rotated(b, found)
            if self.scales:
                others, scales = quantized_row(b, half, halves)
                rows.append(others)
                factors.append(scales)
            else:
                rows.append([narrow(b, x, c.cache.type.dtype) for x in halves])
        with b.if_(writes):
            for name, c, r, halves_ in zip("kv", self.caches, self.region.results[1:], rows, strict=False):
                window = call.view(f"{name}_window", c.cache.type.dtype, r.buffer, c.window(r), write=True)
                for i, x in enumerate(halves_):
                    b.store(window, (*at, 0, i * half), x)
            for name, c, r, scales in zip("kv", self.caches[2:], self.region.results[3:], factors, strict=False):
                window = call.view(f"{name}_scale_window", c.cache.type.dtype, r.buffer, c.window(r), write=True)
                for i, x in enumerate(scales):
                    b.store(window, (*at, 0, i), x)
        if self.scales:
            numbers = [spread(b, half, [b.cast(x, f32) for x in scales]) for scales in factors]
            rows = [[b.cast(x, f32) * f for x, f in zip(row, own, strict=True)] for row, own in zip(rows, numbers, strict=True)]
        (k1, k2), (v1, v2) = ([widen(b, x) for x in row] for row in rows)
        s = self._capped(b, b.reduce("sum", b.fma(query[1], k2, query[0] * k1), 1))
        mine = b.compare("eq", part, 0)
        return [b.select(mine, x, y) for x, y in ((s, NEVER), (b.full((1, 1), 1.0), 0.0), (v1, 0.0), (v2, 0.0))]

    def _capped(self, b: KernelBuilder, s: Tile) -> Tile:
        return s if self.op.softcap is None else b.unary("tanh", s * (1.0 / self.op.softcap)) * self.op.softcap

    def _walk(self, call: Call, at: list[Ix | int], start: Ix | int, end: Ix | int, step: int, part: Ix | int) -> list[Tile]:
        """Running maximum, sum and both halves of the weighted values over keys start, start + step, … in runs of `at_once`."""
        b, half = call.b, self.d // 2
        k = call.view("k", self.k.type.dtype, self.k.buffer, self.k.layout, bake=(-2,))
        v = call.view("v", self.v.type.dtype, self.v.buffer, self.v.layout, bake=(-2,))
        many = self.heads // self.k.type.shape[1]
        group = many if isinstance(many, int) else call.word("group", many)
        bi, hi = at
        kv = hi // group

        scales = [
            call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(("k_scale", "v_scale"), self.scales, strict=False)
        ]  # fmt: skip

        def rows(key: Ix | int) -> list[Tile]:
            left = end - key
            block, place = self._place(call, bi, key)
            found = [b.load(x, (block, kv, place, c), (self.at_once, half), limit=(left, None)) for x in (k, v) for c in (0, half)]
            blocks = range(self.d // Q8_BLOCK)
            return found + [b.load(x, (block, kv, place, i), (self.at_once, 1), limit=(left, None)) for x in scales for i in blocks]

        def number(found: list[Tile], i: int) -> Tile:
            """Half a row of keys or values as f32, late: quantized values that wait take fewer registers."""
            if not scales:
                return widen(b, found[i])
            count = self.d // Q8_BLOCK
            own = found[4 : 4 + count] if i < 2 else found[4 + count :]
            return b.cast(found[i], f32) * spread(b, half, [b.cast(x, f32) for x in own])[i % 2]

        def add(key: Ix | int, found: list[Tile], state: list[Tile]) -> list[Tile]:
            top, total, o1, o2 = state
            s = self._capped(b, b.reduce("sum", b.fma(q2, number(found, 1), q1 * number(found, 0)), 1))
            s = b.select(b.cmp("lt", b.iota((self.at_once, 1), 0), b.from_index(end - key)), s, NEVER)
            best = b.binary("max", top, b.reduce("max", s, 0))
            safe = b.select(b.cmp("eq", best, NEVER), 0.0, best)
            weight, fade = b.unary("exp", s - safe), b.unary("exp", top - safe)
            o1, o2 = (o * fade + b.reduce("sum", weight * number(found, i), 0) for o, i in ((o1, 2), (o2, 3)))
            return [best, total * fade + b.reduce("sum", weight, 0), o1, o2]

        # rows that an earlier call appended are in memory already: the first ones are asked for before the wait for the previous kernel
        # (but for quantized values, each of which would take a register)
        ahead = rows(start) if self.early else None
        # what the previous kernel wrote comes in one trip to memory: only loads up to the first use (and before stores to the caches)
        writes = b.binary("and", b.compare("eq", part, 0), b.compare("eq", hi - kv * group, 0)) if self.caches else None
        query = self._loaded(call, "q", self.q, self.node.operands[0], at)
        new = [self._loaded(call, f"{n}_new", c.row, c.value, [bi, kv]) for n, c in zip("kv", self.caches, strict=False)]
        q1, q2 = (x * self.op.scale for x in self._rotated(b, query))
        if writes is not None:
            state = self._append(call, [bi, kv], new, writes, part, [q1, q2])
        else:
            state = [b.full((1, 1), NEVER), b.full((1, 1), 0.0), b.full((1, half), 0.0), b.full((1, half), 0.0)]
        if ahead is not None:
            state, start = add(start, ahead, state), start + step
        with b.loop(start, end, step, state) as loop:
            loop.next(*add(loop.index, rows(loop.index), loop.carried))
        results: list[Tile] = loop.results
        return results

    def _place(self, call: Call, sequence: Ix | int, key: Ix | int) -> tuple[Ix | int, Ix | int]:
        """Where a run of keys of a sequence begins: the first and the third index of a cache."""
        return sequence, key

    def _last(self, call: Call, sequence: Ix | int, last: Ix | int) -> Ix | int:
        """One past the last key that a sequence sees; `last` is that of all."""
        return last

    def _seen(self) -> tuple[Dim, Dim]:
        """The keys that the row sees: from, to."""
        if self.caches:  # all that were there before; the row that is new is known
            return 0 if self.op.window is None else maximum(0, self.keys - self.op.window), self.keys - 1
        last: Dim = self.keys if not self.op.causal else minimum(self.keys, self.op.offset + 1)
        first: Dim = 0 if self.op.window is None else maximum(0, self.op.offset - self.op.window + 1)
        return first, maximum(0, last)

    def _heads(self, call: Call, index: Ix | int) -> list[Ix | int]:
        if self.batch == 1:  # index and strides of a batch of one would be words: divisions and products before the first loads
            return [0, index]
        return unravel(call.b, index, [call.word("batch", self.batch), call.word("heads", self.heads)])

    # --- a block per head ---------------------------------------------------------------------------------------------
    def _whole(self) -> Launch:
        call = Call("decode", self.region.name)
        b, d = call.b, self.d
        part = Var(INDEX, "part")
        first, last = (call.word(n, x) for n, x in zip(("first", "last"), self._seen(), strict=True))
        at = self._heads(call, b.pid)
        threads = d // 2 // self.vector
        groups = THREADS // threads
        found = self._walk(call, at, first + Ix(b, part) * self.at_once, self._last(call, at[0], last), groups * self.at_once, Ix(b, part))
        split = len(b.kernel.body.body)
        acc = Var(TileType((1, d), f32), "acc")
        self._consumers(call, at, Tile(b, acc))
        cluster = self._cluster(threads * groups)
        launch = call.finish(
            self.batch * self.heads * cluster,
            flops=region_flops(self.region),
            bytes_=region_bytes(self.region),
            note=f"{'a block' if cluster == 1 else f'{cluster} blocks'} a head, {self.at_once} keys a step",
        )
        k = launch.kernel
        launch.kernel = identified(DecodeKernel(
            k.name, k.params, k.pid, k.body, split=split, part=part, cluster=cluster,
            found=tuple(x.var for x in found), acc=acc, d=d, threads=threads, vector=self.vector, groups=groups,
            streamed=frozenset(("k", "v")) if self.early else frozenset(), early=self.early))  # fmt: skip
        return launch

    def _cluster(self, threads: int) -> int:
        """Blocks of a head: instructions bound one that has all keys, and small blocks find room while the previous kernel still runs."""
        programs, cluster = self.batch * self.heads, CLUSTER
        if self.target.cpu != "sm_90a" or not isinstance(programs, int):
            return 1
        while cluster > 1 and (programs * cluster > self.target.cores or threads // cluster < self.d):
            cluster //= 2
        return cluster

    def _consumers(self, call: Call, at: list[Ix | int], out: Tile) -> None:
        """Everything after the attention, over one row."""
        b, region, out_value = call.b, self.region, self.node.values[0]
        shown = len(region.results) - len(self.caches)
        outs = [call.view(f"o{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results[:shown])]
        ins: dict[Value, View] = {}
        for i, x in enumerate(leaves_of_epilogue(region, out_value, region.body.outputs[:shown])):
            o = region.given(x)
            ins[x] = call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(out_value.shape))

        def leaf(x: Value, o: Operand) -> Tile:
            return b.load(ins[x], (*at, 0, 0), (1, 1 if ins[x].type.strides[-1] == 0 else self.d))

        evaluate = Evaluator(b, region, leaf, {out_value: out})
        for view, x, r in zip(outs, region.body.outputs, region.results, strict=False):
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
        start, end = b.maximum(part * span, first), b.minimum((part + 1) * span, self._last(call, at[0], last))
        found = self._walk(call, at, start, end, self.at_once, part)
        for view, column, x in ((sums, 0, found[2]), (sums, half, found[3]), (stats, 0, found[0]), (stats, 1, found[1])):
            b.store(view, (*at, part, column), x)
        launch = call.finish(
            self.batch * self.heads * self.parts,
            flops=region_flops(self.region),
            bytes_=region_bytes(self.region),
            note=f"{self.at_once} keys a step",
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
