"""Attention as a block program: any head size up to 256, values as wide as the keys or not, operands of any strides, 16-bit floats on the
tensor cores and f32 by multiply-adds; masks, biases, soft caps, causality, windows, shared key heads, the logsumexp of rows.

A program owns a block of query rows of one head and walks the key tiles that any of its rows sees, with a running maximum and sum. Head
sizes are padded to powers of two with zeros, rows and keys past an end are masked; a row that sees nothing gives zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import bf16, compute_dtype, f16, f32, f64, i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.attention.backward import AttentionSaved as AttentionSavedOp
from ....ops.attention.forward import Attention as AttentionOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.tiled import aligned, multiply_adds, tiled
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, narrow, widen
from ...template import Foreign, Reason, Template, from_memory, region_bytes, region_flops

NEVER = float("-inf")
LOG2E = 1.4426950408889634
LARGEST = 3.4028234663852886e38  # f32
WIDEST = 256  # head size


@dataclass(frozen=True)
class Config:
    rows: int
    keys: int
    warps: int
    stages: int = 2
    producers: int = 0  # warps that only copy
    per_sm: int = 1


def padded(d: int, least: int = 16) -> int:
    """The power of two that holds `d` elements."""
    return max(least, 1 << (d - 1).bit_length())


F32 = (*(Config(rows, keys, warps) for rows, warps in ((64, 4), (64, 8), (32, 4), (16, 2)) for keys in (64, 32, 16)), Config(128, 32, 4))
SHARED = 220 << 10  # bytes of an SM


def fastest(sq: int, sk: int, heads: int, d: int, dv: int, cores: int) -> Config:
    """Tiles of f32 by multiply-adds whose waves of blocks are estimated to take the least time, of those of which one fits an SM."""
    longest = max(16, padded(sk))  # no tile of keys is wider

    def held(c: Config) -> int:
        return 4 * (c.rows * (padded(d) + c.keys) + 2 * c.keys * (padded(d) + padded(dv)))

    def time(c: Config) -> float:
        per_sm = max(1, min(16 // c.warps, SHARED // held(c)))
        waves, rest = divmod(-(-sq // c.rows) * heads, cores * per_sm)
        steps, total = -(-sk // c.keys), 0.0
        for n in (per_sm,) * waves + ((-(-rest // cores),) if rest else ()):  # blocks that share an SM
            scores, values = (multiply_adds(c.rows, x, c.warps, n * c.warps, chained=True) for x in (c.keys, padded(dv)))
            step = 2 * c.rows * c.keys * (d / scores + min(padded(dv), -(-dv // 32) * 32) / values)
            total += steps * (n * step * cores / 1e6 + 40.0 / (n * c.warps) ** 2)  # few warps wait for barriers and the softmax
        return total

    rows = 128 if max(d, dv) <= 48 else 64  # 128 rows: ahead of 64 by a fifth with heads of 36 (measured), not with those of 64 and 80
    return min((c for c in F32 if c.rows <= rows and min(32, longest) <= c.keys <= longest and held(c) <= SHARED), key=time)


def choose(sq: Dim, sk: Dim, heads: Dim, d: int, dv: int, item: int, cores: int, *, tall: bool = True) -> Config:
    """Blocks of 128 rows where there are enough of them for the chip (and `wgmma` multiplies them), else of 64 and fewer. Chips with
    `mma.sync` alone want several blocks of an SM: blocks of 64 rows, and short tiles of keys."""
    most, longest = bounds(sq)[1], bounds(sk)[1]
    if item == 4:
        q, k, h = (x if isinstance(x, int) else 1024 for x in (sq, sk, heads))
        return fastest(q, k, h, d, dv, cores)
    d = max(padded(d), padded(dv))
    keys = 64 if d <= (128 if tall else 64) else 32
    keys = min(keys, padded(int(longest)) if longest < 64 else keys)
    for rows, warps in ((128, 8), (64, 4), (32, 2))[not tall :]:
        blocks = heads * ceildiv(sq, rows) if isinstance(heads, int) and isinstance(sq, int) else 2 * cores
        if most > rows // 2 and (not isinstance(blocks, int) or blocks >= 2 * cores or rows <= 64) and (d <= 128 or rows <= 64):
            return Config(rows, keys, warps)
    return Config(16, keys, 1)


class TiledAttention(Template):
    key = "tiled_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in (AttentionOp, AttentionSavedOp):
            return Foreign("no attention")
        if (why := from_memory(region)) is not None:
            return why
        q, k, v = node.operands[:3]
        if q.dtype not in (bf16, f16, f32) or k.dtype is f64:
            return Reason(f"needs f32, f16 or bf16, got {q.dtype}")
        if not all(isinstance(x.shape[-1], int) and 0 < x.shape[-1] <= WIDEST for x in (q, v)):
            return Reason(f"needs head sizes from 1 to {WIDEST}, got {q.shape[-1]} and {v.shape[-1]}")
        shapes = [node.values[0].shape] if isinstance(node.op, AttentionOp) else [v.shape for v in node.values]
        bad = [r for r in region.results if r.type.shape not in shapes]
        return Reason(f"outputs must have the shape of the attention, got {bad[0].type}") if bad else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [AttentionKernel(region, target).launch()]


class AttentionKernel:
    """One kernel under construction."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        node = region.node
        assert isinstance(node.op, (AttentionOp, AttentionSavedOp))
        self.region, self.node = region, node
        self.op = node.op.plain if isinstance(node.op, AttentionSavedOp) else node.op
        q, k, v = (self.region.given(x) for x in node.operands[:3])
        self.batch, self.heads, self.sq, depth = q.type.shape
        self.kv_heads, self.sk, dv = k.type.shape[1], k.type.shape[2], v.type.shape[3]
        assert isinstance(depth, int) and isinstance(dv, int)
        self.depth, self.dv = depth, dv
        self.wide = compute_dtype(q.type.dtype)
        mixed = k.type.dtype is not q.type.dtype
        self.dtype = self.wide if mixed else q.type.dtype  # the dtype of the products
        item = self.dtype.itemsize
        self.d, self.dp = padded(depth), padded(dv)
        self.config = choose(self.sq, self.sk, product([self.batch, self.heads]), depth, dv, item, target.cores,
                             tall=target.cpu == "sm_90a")
        self.call = Call("attention", region.name)
        self.vectors: dict[str, int] = {}
        self._bind(q, k, v)

    def _view(self, name: str, o: Operand, layout: Layout, inner: Dim | None = None, *, write: bool = False) -> View:
        self.vectors[name] = aligned(layout, inner)
        return self.call.view(name, o.type.dtype, o.buffer, layout, write=write)

    def _bind(self, q: Operand, k: Operand, v: Operand) -> None:
        call, b, c, op = self.call, self.call.b, self.config, self.op
        self.q, self.k, self.v = (self._view(n, o, o.layout) for n, o in (("q", q), ("k", k), ("v", v)))
        scores = (self.batch, self.heads, self.sq, self.sk)
        self.extra = {
            kind: self._view(kind, o, o.layout.expand(scores), self.sk)
            for kind, value in zip(("mask", "bias"), op._extras(self.node.operands[3:]), strict=True)
            if value is not None
            for o in [self.region.given(value)]
        }
        shape = self.node.values[0].shape
        self.ins = {
            x: self._view(f"e{i}", o, o.layout.expand(shape), self.dv)
            for i, x in enumerate(leaves_of_epilogue(self.region, self.node.values[0], self._outputs()))
            for o in [self.region.given(x)]
        }
        results = dict(zip(self.region.body.outputs, self.region.results, strict=True))
        self.outs = {x: self._view(f"y{i}", results[x], results[x].layout, self.dv, write=True) for i, x in enumerate(self._outputs())}
        saved = [results[x] for x in self.region.body.outputs if x not in self.outs]
        self.sums = self._view("sums", saved[0], Layout((*saved[0].type.shape, 1), (*saved[0].layout.strides, 0), saved[0].layout.offset),
                               write=True) if saved else None  # fmt: skip
        self.sqw, self.skw = call.word("sq", self.sq), call.word("sk", self.sk)
        blocks = call.word("blocks", ceildiv(self.sq, c.rows))
        group = call.word("group", self.heads // self.kv_heads)
        self.offset = call.word("offset", op.offset) if op.causal or op.window is not None else None
        rest, last = b.pid // blocks, b.pid % blocks
        block = blocks - 1 - last if op.causal else last  # rows that see most keys first
        self.bi, self.hi = unravel(b, rest, [call.word("batch", self.batch), call.word("heads", self.heads)])
        self.kvh = self.hi // group
        self.first = block * c.rows

    def _outputs(self) -> list[Value]:
        """The region's results that have the shape of the attention's."""
        return [x for x in self.region.body.outputs if x.shape == self.node.values[0].shape]

    def _keys(self) -> tuple[Ix | int, Ix | int]:
        """The range of keys that any row of the block sees, from a multiple of the tile on."""
        b, c, op = self.call.b, self.config, self.op
        low: Ix | int = 0
        high: Ix | int = self.skw
        if op.causal and self.offset is not None:
            high = b.minimum(high, b.maximum(0, b.minimum(self.first + c.rows, self.sqw) + self.offset))
        if op.window is not None and self.offset is not None:
            low = b.maximum(0, self.first + self.offset - (op.window - 1)) // c.keys * c.keys
        return low, high

    def _cast(self, x: Tile) -> Tile:
        return self.call.b.cast(x, self.dtype)

    def _scores(self, q: Tile, key: Ix) -> Tile:
        """Scores in powers of two, -inf where a row does not see a key."""
        b, c, op = self.call.b, self.config, self.op
        k = self._cast(
            b.load(
                self.k, (self.bi, self.kvh, key, 0), (c.keys, self.d), limit=self._edge(self.sk, c.keys, self.skw - key, self.depth, self.d)
            )
        )
        s = b.mma(q, b.transpose(k), b.full((c.rows, c.keys), 0.0, self.wide))
        if op.softcap is not None:
            s = b.unary("tanh", s * (op.scale / op.softcap)) * (op.softcap * LOG2E)
        else:
            s = s * (op.scale * LOG2E)
        if "bias" in self.extra:
            bias = widen(b, self._extra("bias", key))  # the least bf16 is a number still, and so is a power of it
            s = s + b.select(b.cmp("eq", bias, NEVER), NEVER, b.binary("max", bias * LOG2E, -LARGEST))
        if "mask" in self.extra:
            s = b.select(self._extra("mask", key), s, max(op.hidden * LOG2E, -LARGEST) if op.hidden != NEVER else NEVER)
        column = b.iota((1, c.keys), 1, i32)
        if not (isinstance(self.sk, int) and self.sk % c.keys == 0):
            s = b.select(b.cmp("lt", column, b.from_index(self.skw - key, i32)), s, NEVER)
        if self.offset is not None:
            reach = b.iota((c.rows, 1), 0, i32) + b.from_index(self.first + self.offset - key, i32)  # the last key that a causal row sees
            if op.causal:
                s = b.select(b.cmp("le", column, reach), s, NEVER)
            if op.window is not None:
                s = b.select(b.cmp("gt", column, reach - op.window), s, NEVER)
        return s

    def _extra(self, kind: str, key: Ix) -> Tile:
        b, c, view = self.call.b, self.config, self.extra[kind]
        *_, sm, sn = view.type.strides
        shape = (1 if sm == 0 else c.rows, 1 if sn == 0 else c.keys)
        limit = (self.sqw - self.first if shape[0] != 1 else None, self.skw - key if shape[1] != 1 else None)
        return b.load(view, (self.bi, self.hi, self.first, key), shape, limit=limit)

    @staticmethod
    def _edge(size: Dim, tile: int, left: Ix | int, own: int, padded_to: int) -> tuple[Ix | int | None, int | None] | None:
        """Limits of rows and columns, where there is anything outside."""
        rows = None if isinstance(size, int) and size % tile == 0 else left
        columns = None if own == padded_to else own
        return None if rows is None and columns is None else (rows, columns)

    def launch(self) -> Launch:
        b, c = self.call.b, self.config
        edge = self._edge(self.sq, c.rows, self.sqw - self.first, self.depth, self.d)
        q = self._cast(b.load(self.q, (self.bi, self.hi, self.first, 0), (c.rows, self.d), limit=edge))
        low, high = self._keys()
        start = [b.full((c.rows, self.dp), 0.0, self.wide), b.full((c.rows, 1), NEVER, self.wide), b.full((c.rows, 1), 0.0, self.wide)]
        with b.loop(low, high, c.keys, start) as loop:
            acc, top, total = loop.carried
            key = loop.index
            s = self._scores(q, key)
            new = b.binary("max", top, b.reduce("max", s, 1))
            base = b.select(b.cmp("eq", new, NEVER), 0.0, new)
            p = b.unary("exp2", s - base)
            less = b.unary("exp2", top - base)
            edge = self._edge(self.sk, c.keys, self.skw - key, self.dv, self.dp)
            v = self._cast(b.load(self.v, (self.bi, self.kvh, key, 0), (c.keys, self.dp), limit=edge))
            loop.next(b.mma(self._cast(p), v, acc * less), new, total * less + b.reduce("sum", p, 1))
        acc, top, total = loop.results
        nothing = b.cmp("eq", total, 0.0)
        made = acc / b.select(nothing, 1.0, total)
        self._write(b.select(nothing, 0.0 if self.op.empty == "zeros" else float("nan"), made))
        if self.sums is not None:
            found = (top + b.unary("log2", b.select(nothing, 1.0, total))) * (1 / LOG2E)
            found = b.select(nothing, NEVER, found)
            b.store(self.sums, (self.bi, self.hi, self.first, 0), found, limit=(self.sqw - self.first, None))
        grid = product([self.batch, self.heads]) * ceildiv(self.sq, c.rows)
        unit = "mma.sync" if self.dtype in (bf16, f16) else "multiply-adds"
        note = f"{unit}, {c.rows} rows x {c.keys} keys, d {self.d} and {self.dp}, {c.stages} stages"
        launch = self.call.finish(grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note)
        extents = {n: self.region.given(x).layout for n, x in zip("kv", self.node.operands[1:3], strict=True)}
        return tiled(
            launch, warps=c.warps, stages=c.stages, per_sm=c.per_sm, vectors=self.vectors, producers=c.producers, extents=extents
        )

    def _write(self, value: Tile) -> None:
        b, c = self.call.b, self.config
        shape = (c.rows, self.dp)
        limit = self._edge(self.sq, c.rows, self.sqw - self.first, self.dv, self.dp)
        at = (self.bi, self.hi, self.first, 0)

        def leaf(v: Value, o: Operand) -> Tile:
            *_, sm, sn = self.ins[v].type.strides
            size = (1 if sm == 0 else shape[0], 1 if sn == 0 else shape[1])
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, size, strict=True))
            return b.load(self.ins[v], at, size, limit=bound)

        evaluate = Evaluator(b, self.region, leaf, {self.node.values[0]: value})
        for x, view in self.outs.items():
            b.store(view, at, narrow(b, b.broadcast(evaluate(x), shape), view.type.dtype), limit=limit)
