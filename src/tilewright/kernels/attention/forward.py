"""Attention: softmax(scale · Q Kᵀ, masked) V in one kernel, with an online softmax over KV tiles of fixed size.

One program owns a block of query rows of one head. It walks the KV tiles from absolute position 0, packs Kᵀ of a tile into
local memory (transposed in registers), and for every tile of at most `rows` query rows computes scores, running maximum and sum, and the
rescaled output. Q, K and V are read through any strides, so views of one QKV buffer need no copy. The result of a row
depends on its own scores alone: neither the block, the tile height, the batch nor threads change a bit, and a tile
wider than the sequence adds exact zeros. Causal and windowed rows skip tiles that they do not see. A row of only -inf gives zeros or NaN.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from ...core.dims import Dim, at_least, bounds, ceildiv, product
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.attention.forward import Attention as AttentionOp
from ...ops.attention.forward import Rope as RopeOp
from ...ops.attention.q8_cache import Q8Attention as Q8AttentionOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..loops import unrolled
from ..matmul.tiling import for_each_tile, leaves_of_epilogue, tile_heights
from ..pointwise.copies import copy_launch
from ..pointwise.pointwise import unravel
from ..region import Evaluator, Operand, Region, narrow_sum, widen
from ..template import Reason, Template, region_bytes, region_flops, shaped_as_result


@dataclass(frozen=True)
class Config:
    """Query rows of a register tile, KV columns of a tile, query rows of a program, and the width of an output panel."""

    rows: int
    keys: int
    block: int
    width: int


BLOCK = 48  # the fewest rows of a program, and what more are a multiple of
STATE = 64 << 10  # bytes of the sums, and of rotated queries, that a program of more rows keeps


def default_config(sq: Dim, sk: Dim, dv: int, matrices: Dim, target: TargetSpec, itemsize: int, rotated: int = 0) -> Config:
    """`matrices`: how many pairs of queries and keys there are; `rotated`: columns of queries that a program rotates for itself."""
    lanes = target.vector_bits // 32
    wide = lanes * max(1, (4 if target.registers >= 32 else 2) * 4 // itemsize)
    keys = wide
    while isinstance(sk, int) and keys > lanes and sk <= keys // 2:
        keys //= 2
    width = wide
    while width > lanes and dv <= width // 2:
        width //= 2
    return Config(6, keys, _block(sq, matrices, max(-(-dv // width) * width, rotated) * itemsize, target), width)


def _block(sq: Dim, matrices: Dim, row: int, target: TargetSpec) -> int:
    """Rows of a program. Each transposes the keys for itself, so few programs of many rows do least, but every core gets eight."""
    if not isinstance(sq, int):
        return BLOCK
    most = max(1, min(STATE // max(row, 1), sq + BLOCK - 1) // BLOCK)
    fewest = bounds(matrices)[0]
    fitting = (n * BLOCK for n in range(most, 0, -1) if fewest * -(-sq // (n * BLOCK)) >= 8 * target.cores)
    return next(fitting, BLOCK)


def can_rotate(op: RopeOp, depth: Dim, lanes: int) -> bool:
    return isinstance(depth, int) and not op.interleaved and op.n_rot in (None, depth) and depth // 2 % lanes == 0


NEVER = float("-inf")


class AttentionTemplate(Template):
    key = "attention"
    serves = (AttentionOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        lanes = target.vector_bits // 32
        for i, v in enumerate(node.operands):
            if region.operand(v) is not None:
                continue
            if i > 1 or not isinstance(v.node.op, RopeOp) or any(region.operand(u) is None for u in v.node.operands):
                return Reason("operands of attention must come from memory, or q and k through a rope")
            if not can_rotate(v.node.op, v.shape[-1], lanes):
                return Reason("a rope is rotated on the way in only for whole rows of halves, in whole registers")
        if not all(isinstance(v.shape[-1], int) for v in node.operands[:3]):
            return Reason("the head size must be static")
        return shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if isinstance(region.node.op, Q8AttentionOp):
            from .q8 import Q8AttentionKernel

            return [Q8AttentionKernel(region, target).launch()]
        from .pairs import PairsAttentionKernel, in_pairs

        copies, region = _in_rows(region, target)
        kernel = PairsAttentionKernel if in_pairs(region, target) else AttentionKernel
        return [*copies, kernel(region, target).launch()]


def _in_rows(region: Region, target: TargetSpec) -> tuple[list[Launch], Region]:
    """The region with heads that lie in rows, and the launches that copy those that do not (images with channels first)."""
    heads = [region.given(v.node.operands[0] if isinstance(v.node.op, RopeOp) else v) for v in region.node.operands[:3]]
    launches, operands = list[Launch](), list(region.operands)
    for i, o in enumerate(operands):
        if any(o is x for x in heads) and o.layout.strides[-1] not in (0, 1) and o.type.shape[-1] != 1 and at_least(o.type.shape[-2], 2):
            name = f"{region.name}.rows{i}"
            operands[i] = Operand(o.type, Buffer(name, "temp", o.type.nbytes), Layout.contiguous(o.type.shape))
            launches.append(copy_launch(name, o, operands[i], target, "heads in columns copied to rows"))
    return launches, replace(region, operands=operands)


class AttentionKernel:
    """One kernel under construction."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.node, self.op = region, region.node, region.op(AttentionOp)
        q_value, k_value = (self._unrotated(x) for x in self.node.operands[:2])
        q, k, v = self.region.given(q_value), self.region.given(k_value), self.region.given(self.node.operands[2])
        self.batch, self.heads, self.sq, _ = q.type.shape
        self.kv_heads, self.sk = k.type.shape[1], k.type.shape[2]
        depth, dv = q.type.shape[3], v.type.shape[3]
        assert isinstance(depth, int) and isinstance(dv, int)
        self.depth, self.dv = depth, dv
        self.dtype = compute_dtype(q.type.dtype)
        self.config = self._configure(target)
        self.lanes = target.vector_bits // 32
        self.single = isinstance(self.sk, int) and self.sk <= self.config.keys
        self.call = Call("attention", region.name)
        self._bind(q, k, v)

    def _configure(self, target: TargetSpec) -> Config:
        rotated = self.depth if isinstance(self.node.operands[0].node.op, RopeOp) else 0
        return default_config(self.sq, self.sk, self.dv, self.batch * self.heads, target, self.dtype.itemsize, rotated)

    def _unrotated(self, v: Value) -> Value:
        """What stands before a rope that is part of the region."""
        return v.node.operands[0] if isinstance(v.node.op, RopeOp) else v

    def _bind(self, q: Operand, k: Operand, v: Operand) -> None:
        call, b, c = self.call, self.call.b, self.config
        self.q = call.view("q", q.type.dtype, q.buffer, q.layout)
        self.k = call.view("k", k.type.dtype, k.buffer, k.layout)
        self.v = call.view("v", v.type.dtype, v.buffer, v.layout)
        self.q_tables, self.k_tables = (self._tables(n, x) for n, x in zip("qk", self.node.operands[:2], strict=True))
        scores = (self.batch, self.heads, self.sq, self.sk)
        self.extra: list[View] = []
        for i, value in enumerate(self.node.operands[3 : 3 + self.op.has_mask + self.op.has_bias]):
            o = self.region.given(value)
            self.extra.append(call.view(f"s{i}", o.type.dtype, o.buffer, o.layout.expand(scores)))
        out_shape = self.node.values[0].shape
        leaves = leaves_of_epilogue(self.region, self.node.values[0])
        self.ins = {
            x: call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(out_shape))
            for i, x in enumerate(leaves)
            for o in [self.region.given(x)]
        }
        self.outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(self.region.results)]
        blocks = ceildiv(self.sq, c.block)
        height = ceildiv(self.sq, blocks) if isinstance(self.sq, int) and self.sq else c.block
        self.blocks, self.block = (blocks, height)
        headsw = call.word("heads", self.heads)
        self.sqw, self.skw = call.word("sq", self.sq), call.word("sk", self.sk)
        groupw = call.word("group", self.heads // self.kv_heads)
        offset = call.word("offset", self.op.offset) if self.op.causal or self.op.window is not None else None
        blockw, blocksw = call.word("block", height), call.word("blocks", blocks)
        rest, block = b.pid // blocksw, b.pid % blocksw
        self.bi, self.hi = unravel(b, rest, [call.word("batch", self.batch), headsw])
        self.kvh = self.hi // groupw
        self.first = block * blockw
        self.height = b.minimum(blockw, self.sqw - self.first)
        self.offset = offset
        self.rotated = b.scratch(self.dtype, (c.block, self.depth)) if self.q_tables else None
        self._keep_tiles()
        if not self.single:
            self.acc = b.scratch(self.dtype, (c.block, -(-self.dv // c.width) * c.width))
            self.top = b.scratch(self.dtype, (c.block, 1))
            self.sum = b.scratch(self.dtype, (c.block, 1))

    def _keep_tiles(self) -> None:
        """Local memory for Kᵀ and for the weights of a tile."""
        b, c = self.call.b, self.config
        self.kt, self.p = b.scratch(self.dtype, (self.depth, c.keys)), b.scratch(self.dtype, (c.rows, c.keys))

    def _tables(self, name: str, v: Value) -> tuple[View, View] | None:
        """Views of cos and sin over [B, H, S, D/2] when the operand is rotated on the way in."""
        if not isinstance(v.node.op, RopeOp):
            return None
        shape = (*v.shape[:-1], self.depth // 2)
        cos, sin = (self.region.given(x) for x in v.node.operands[1:])
        return (
            self.call.view(f"{name}cos", cos.type.dtype, cos.buffer, cos.layout.expand(shape)),
            self.call.view(f"{name}sin", sin.type.dtype, sin.buffer, sin.layout.expand(shape)),
        )

    def _rotate(self, view: View, tables: tuple[View, View], head: Ix | int, row: Ix | int, d: Ix | int,
                limit: tuple[Ix | int, None] | None, rows: int) -> tuple[Tile, Tile]:
        """Columns d… of the first and of the second half of `rows` rotated rows."""
        b, n, half = self.call.b, self.lanes, self.depth // 2

        def get(x: View, column: Ix | int) -> Tile:
            return widen(b, b.load(x, (self.bi, head, row, column), (rows, n), limit=limit))

        first, second, cos, sin = get(view, d), get(view, d + half), get(tables[0], d), get(tables[1], d)
        return first * cos - second * sin, second * cos + first * sin

    def _stage_queries(self, row: Ix | int, rows: int) -> None:
        """Rotated queries of one tile of rows into local memory (row counts from the block's first)."""
        b, half = self.call.b, self.depth // 2
        assert self.q_tables is not None and self.rotated is not None
        with b.loop(0, half, self.lanes) as loop:
            both = self._rotate(self.q, self.q_tables, self.hi, self.first + row, loop.index, None, rows)
            for place, x in zip((loop.index, loop.index + half), both, strict=True):
                b.store(self.rotated, (row, place), x)

    def _query(self, row: Ix | int, column: Ix | int, rows: int) -> Tile:
        b = self.call.b
        if self.rotated is not None:
            return b.load(self.rotated, (row - self.first, column), (rows, 1))
        return widen(b, b.load(self.q, (self.bi, self.hi, row, column), (rows, 1)))

    def launch(self) -> Launch:
        b, c = self.call.b, self.config
        heights = tile_heights(self.sq, self.block, c.rows)
        if self.q_tables:
            for_each_tile(b, 0, self.height, c.rows, heights, self._stage_queries)
        if self.single:
            self._pack(0)
            for_each_tile(b, self.first, self.height, c.rows, heights, self._only_tile)
        else:
            for_each_tile(b, 0, self.height, c.rows, heights, self._reset)
            lo, hi = self._visible_keys()
            with b.loop(lo, hi, c.keys) as loop:
                key = loop.index
                self._pack(key)
                for_each_tile(b, 0, self.height, c.rows, heights, lambda row, rows: self._tile(key, row, rows))
            for_each_tile(b, 0, self.height, c.rows, heights, self._write)
        grid = product([self.batch, self.heads]) * self.blocks
        return self.call.finish(grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=f"{c.rows}x{c.keys} tiles",
                                shared=True)

    # --- which keys ---------------------------------------------------------------------------------------------------
    def _visible_keys(self) -> tuple[Ix | int, Ix | int]:
        """The range of KV tiles that any row of the block sees."""
        b, c = self.call.b, self.config
        lo: Ix | int = 0
        hi: Ix | int = self.skw
        if self.op.causal and self.offset is not None:
            hi = b.minimum(hi, self.first + self.height + self.offset)
        if self.op.window is not None and self.offset is not None:
            lo = b.maximum(0, self.first + self.offset - (self.op.window - 1)) // c.keys * c.keys
        return lo, hi

    def _pack(self, key: Ix | int) -> None:
        """Kᵀ of one tile into local memory, block by block of n keys; columns past the end are zero."""
        b, c, n = self.call.b, self.config, self.lanes
        with b.loop(0, c.keys, n) as loop:
            left = self.skw - (key + loop.index)
            with b.if_(b.compare("ge", left, n)):
                self._pack_block(key + loop.index, loop.index, None)
            with b.if_(b.compare("lt", left, n)):
                self._pack_block(key + loop.index, loop.index, left)

    def _pack_block(self, key: Ix | int, column: Ix | int, left: Ix | int | None) -> None:
        """n keys from `key` on, of which `left` exist, to columns `column`…"""
        b, n = self.call.b, self.lanes
        limit = None if left is None else (left, None)
        if self.k_tables:
            half = self.depth // 2
            with b.loop(0, half, n) as loop:
                both = self._rotate(self.k, self.k_tables, self.kvh, key, loop.index, limit, n)
                for place, x in zip((loop.index, loop.index + half), both, strict=True):
                    b.store(self.kt, (place, column), b.transpose(x))
            return
        whole = self.depth // n * n
        with b.loop(0, whole, n) as loop:
            x = widen(b, b.load(self.k, (self.bi, self.kvh, key, loop.index), (n, n), limit=limit))
            b.store(self.kt, (loop.index, column), b.transpose(x))
        if rest := self.depth - whole:
            x = widen(b, b.load(self.k, (self.bi, self.kvh, key, whole), (n, n), limit=(left, rest)))
            b.store(self.kt, (whole, column), b.transpose(x), limit=(rest, None))

    # --- one tile of rows against one tile of keys ----------------------------------------------------------------------
    def _scores(self, key: Ix | int, row: Ix | int, rows: int) -> Tile:
        """Masked, scaled scores [rows, keys]; outside the mask −inf."""
        b, c, op = self.call.b, self.config, self.op
        unroll = 4 if self.depth % 4 == 0 else 1
        with b.loop(0, self.depth, unroll, [b.full((rows, c.keys), 0.0, self.dtype)]) as loop:
            acc = loop.carried[0]
            for u in range(unroll):
                acc = self._multiply(self._query(row, loop.index + u, rows), b.load(self.kt, (loop.index + u, 0), (1, c.keys)), acc)
            loop.next(acc)
        s: Tile = loop.results[0] * op.scale
        if op.softcap is not None:
            s = b.unary("tanh", s * (1.0 / op.softcap)) * op.softcap
        extra = list(self.extra)
        mask = extra.pop(0) if op.has_mask else None
        if op.has_bias:
            s = s + widen(b, self._score_operand(extra[0], key, row, rows))
        if mask is not None:
            s = b.select(self._score_operand(mask, key, row, rows), s, op.hidden)
        column = b.iota((1, c.keys), 1)
        if not (isinstance(self.sk, int) and self.sk % c.keys == 0):
            s = b.select(b.cmp("lt", column, b.from_index(self.skw - key)), s, NEVER)
        if self.offset is not None:
            line = b.iota((rows, 1), 0)
            reach = b.from_index(row + self.offset - key)  # last visible column of row 0
            if op.causal:
                s = b.select(b.cmp("le", column, line + reach), s, NEVER)
            if op.window is not None:
                s = b.select(b.cmp("gt", column, line + (reach - b.from_index(op.window))), s, NEVER)
        return s

    def _score_operand(self, view: View, key: Ix | int, row: Ix | int, rows: int) -> Tile:
        b, c = self.call.b, self.config
        *_, sm, sn = view.type.strides
        shape = (1 if sm == 0 else rows, 1 if sn == 0 else c.keys)
        return b.load(view, (self.bi, self.hi, row, key), shape, limit=(None, self.skw - key) if shape[1] != 1 else None)

    def _weights(self, s: Tile, top: Tile) -> Tile:
        """exp(s − top), zero where a row has seen nothing yet."""
        b = self.call.b
        safe = b.select(b.cmp("eq", top, NEVER), 0.0, top)
        return b.unary("exp", s - safe)

    def _values(self, key: Ix | int, rows: int, acc: Tile, column: int) -> Tile:
        """acc + P·V for one panel of V's columns; P lies in local memory."""
        b, c = self.call.b, self.config
        inside = self.dv - column
        limit = None if inside >= c.width else (None, inside)

        def step(i: Ix | int, acc: Tile) -> Tile:
            return self._multiply(b.load(self.p, (0, i), (rows, 1)), self._value_row(key, i, column, limit), acc)

        return unrolled(b, 0, self._words(key), acc, step)

    def _multiply(self, left: Tile, right: Tile, acc: Tile) -> Tile:
        return self.call.b.mma(left, right, acc)

    def _words(self, key: Ix | int) -> Ix | int:
        """Rows of V that a tile of keys has."""
        return self.call.b.minimum(self.config.keys, self.skw - key)

    def _keep_weights(self, p: Tile) -> None:
        """Into local memory, for `_values`."""
        self.call.b.store(self.p, (0, 0), p)

    def _value_row(self, key: Ix | int, i: Ix | int, column: int, limit: tuple[None, int] | None) -> Tile:
        """One panel of row key + i of V."""
        b = self.call.b
        return widen(b, b.load(self.v, (self.bi, self.kvh, key + i, column), (1, self.config.width), limit=limit))

    def _panels(self) -> range:
        return range(0, self.dv, self.config.width)

    def _only_tile(self, row: Ix | int, rows: int) -> None:
        """All keys fit one tile: no running state."""
        b = self.call.b
        s = self._scores(0, row, rows)
        p = self._weights(s, b.reduce("max", s, 1))
        self._keep_weights(p)
        total = b.reduce("sum", p, 1)
        for column in self._panels():
            acc = self._values(0, rows, b.full((rows, self.config.width), 0.0, self.dtype), column)
            self._output(acc, total, row, column)

    def _reset(self, row: Ix | int, rows: int) -> None:
        b = self.call.b
        b.store(self.top, (row, 0), b.full((rows, 1), NEVER, self.dtype))
        b.store(self.sum, (row, 0), b.full((rows, 1), 0.0, self.dtype))
        for column in self._panels():
            b.store(self.acc, (row, column), b.full((rows, self.config.width), 0.0, self.dtype))

    def _tile(self, key: Ix | int, row: Ix | int, rows: int) -> None:
        """Fold one KV tile into the running state of `rows` rows (row counts from the block's first)."""
        b, c = self.call.b, self.config

        def fold() -> None:
            s = self._scores(key, self.first + row, rows)
            before = b.load(self.top, (row, 0), (rows, 1))
            top = b.binary("max", before, b.reduce("max", s, 1))
            b.store(self.top, (row, 0), top)
            p = self._weights(s, top)
            self._keep_weights(p)
            scale = self._weights(before, top)
            b.store(self.sum, (row, 0), b.load(self.sum, (row, 0), (rows, 1)) * scale + b.reduce("sum", p, 1))
            for column in self._panels():
                part = self._values(key, rows, b.full((rows, c.width), 0.0, self.dtype), column)
                b.store(self.acc, (row, column), b.fma(b.load(self.acc, (row, column), (rows, c.width)), scale, part))

        seen: list[Tile] = []  # whether any row sees any key of the tile
        if self.op.causal and self.offset is not None:
            seen.append(b.compare("le", key, self.first + row + (rows - 1) + self.offset))
        if self.op.window is not None and self.offset is not None:
            seen.append(b.compare("le", self.first + row + self.offset, key + (c.keys + self.op.window - 2)))
        with ExitStack() as stack:
            for condition in seen:
                stack.enter_context(b.if_(condition))
            fold()

    def _write(self, row: Ix | int, rows: int) -> None:
        b = self.call.b
        total = b.load(self.sum, (row, 0), (rows, 1))
        for column in self._panels():
            self._output(b.load(self.acc, (row, column), (rows, self.config.width)), total, self.first + row, column)

    def _output(self, acc: Tile, total: Tile, row: Ix | int, column: int) -> None:
        """Divide by the sum (zeros for a row that saw nothing, or 0 / 0), apply the epilogue, store."""
        b, width = self.call.b, self.config.width
        inverse = b.unary("reciprocal", total)
        if self.op.empty == "zeros":
            inverse = b.select(b.cmp("eq", total, 0.0), 0.0, inverse)
        y = acc * inverse
        rows, inside = acc.shape[0], self.dv - column
        limit = None if inside >= width else (None, inside)

        def leaf(v: Value, o: Operand) -> Tile:
            view = self.ins[v]
            *_, sm, sn = view.type.strides
            shape = (1 if sm == 0 else rows, 1 if sn == 0 else width)
            return b.load(view, (self.bi, self.hi, row, column), shape, limit=limit if shape[1] != 1 else None)

        evaluate = Evaluator(b, self.region, leaf, {self.node.values[0]: y})
        for v, view, r in zip(self.region.body.outputs, self.outs, self.region.results, strict=True):
            x = b.broadcast(evaluate(v), (rows, width))
            b.store(view, (self.bi, self.hi, row, column), narrow_sum(b, x, r.type.dtype), limit=limit)


def result_layout(region_shape: tuple[Dim, ...]) -> Layout:
    """[B, H, S, D] stored as [B, S, H, D]: the projection that follows then reads contiguous rows."""
    batch, heads, length, depth = region_shape
    return Layout.contiguous((batch, length, heads, depth)).permute((0, 2, 1, 3))
