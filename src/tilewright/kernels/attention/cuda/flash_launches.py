"""The launches of attention's backward pass in five products: counters cleared, then dK and dV with dQ added in turns, then dQ's rows."""

from __future__ import annotations

import math

from ....core.dims import Dim, bounds, ceildiv, minimum
from ....core.dtypes import f32, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.attention.backward import AttentionBackward as AttentionBackwardOp
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import TensorMap, identified
from ...launch import Buffer, Launch, Word
from ...pointwise.copies import fill_launch
from ...region import Operand, narrow
from .flash import is_rows
from .flash import padded as width_of
from .flash_kernels import FlashGradKernel

KEYS = 128
QUERIES = {64: 128, 128: 64}  # queries of a tile, by head size
STAGES = {64: 2, 128: 3}
LOG2E, NEVER = 1.0 / math.log(2.0), float('-inf')
TILE_BYTES = 64 * 128 * 4  # bytes of a tile of dQ in f32


class Sweep:
    """q, k, v and the result's cotangent as rows, and one logsumexp and δ for every query row, padded."""

    def __init__(self, name: str, op: AttentionBackwardOp, operands: list[Operand], extras: dict[str, Operand], stats: list[Buffer],
                 padded: Dim, cores: int) -> None:
        self.name, self.op, self.extras, self.stats, self.padded, self.cores = name, op, extras, stats, padded, cores
        self.q, self.k, self.v, self.g = operands
        (self.batch, heads, self.sq, own), (_, kv, self.sk, _) = self.q.type.shape, self.k.type.shape
        assert isinstance(heads, int) and isinstance(kv, int) and isinstance(own, int)
        self.heads, self.own, self.d = heads, own, width_of(own)
        self.queries = QUERIES[self.d]
        self.q_tiles, self.k_tiles = ceildiv(self.sq, self.queries), ceildiv(self.sk, KEYS)
        self.split = parts_of(op, heads // kv, self.batch * kv * self.k_tiles, cores)
        self.lines = kv * self.split  # lines of a batch: key heads, each for a part of its query heads
        self.tiles: Dim = self.batch * heads * self.q_tiles
        self.sums = Buffer(f"{name}.dq_sums", "temp", self.tiles * TILE_BYTES)
        self.turns = Buffer(f"{name}.turns", "temp", (self.tiles + 1) * 4)

    def launches(self, results: list[Operand], flops: Dim, nbytes: Dim) -> list[Launch]:
        dq, dk, dv, *scores = results
        (dk, dv), added = shares(self.name, [dk, dv], self.split)
        return [self._grad(dk, dv, scores, flops, nbytes), self._finish(dq), *added]

    def clear(self, target: TargetSpec) -> Launch:
        """The counters start at zero."""
        counters = Operand(TensorType(i32, (self.tiles + 1,)), self.turns, Layout.contiguous((self.tiles + 1,)))
        return fill_launch(f"{self.name}.clear", 0, counters, target)

    def rows(self, result: Operand, sums: Operand) -> Launch:
        """δ and logsumexps of rows; also clears the counters."""
        return row_statistics(self.name, self.g, result, sums, self.stats, self.padded, self.d, (self.turns, self.tiles + 1))

    def _turns(self, call: Call, write: bool) -> View:
        return call.view("turns", i32, self.turns, Layout.contiguous((self.tiles,)), write=write)

    def _words(self) -> list[Word]:
        window: Dim = self.op.window if self.op.window is not None else 0
        lines, group = self.lines * self.batch, self.heads // self.lines
        # without a diagonal all blocks of a head begin at the same queries: heads side by side keep them apart
        chunk = ceildiv(self.cores, self.k_tiles) if not self.op.causal and isinstance(self.k_tiles, int) else 1
        words = (self.sq, self.sk, self.op.offset, window, self.heads, group, self.q_tiles, self.k_tiles, self.padded)
        return [Word(x) for x in (*words, minimum(chunk, lines), lines, self.split)]

    def _grad(self, dk: Operand, dv: Operand, scores: list[Operand], flops: Dim, nbytes: Dim) -> Launch:
        call, d = Call("flash_grad", f"{self.name}.grad"), self.d
        b = call.b
        maps = []
        for i, (o, rows) in enumerate(((self.k, KEYS), (self.v, KEYS), (self.q, self.queries), (self.g, self.queries))):
            word = len(call._arguments)
            call.view(f"m{i}", o.type.dtype, o.buffer, o.layout)
            n, h, s, depth = o.type.shape
            steps = tuple(x * 2 for x in reversed(o.layout.strides[:-1]))
            maps.append(TensorMap(word, o.type.dtype, (depth, s, h, n), steps, (64, rows, 1, 1), 128))
        lay = Layout.contiguous((self.batch, self.heads, self.padded))
        lse, delta = (call.view(n, f32, x, lay) for n, x in zip(("lse", "delta"), self.stats, strict=True))
        acc = call.view("acc", f32, self.sums, Layout.contiguous((self.tiles, 2, 4096)), write=True)
        turns = self._turns(call, write=True)
        ticket = call.view("ticket", i32, self.turns, Layout((1,), (1,), self.tiles), write=True)
        call.also_reads(self.turns)
        pairs = (self.batch, self.heads, self.sq, self.sk)
        beside = {n: call.view(n, o.type.dtype, o.buffer, o.layout.expand(pairs)).var for n, o in self.extras.items()}
        for o in scores:
            beside["scores"] = call.view("scores", o.type.dtype, o.buffer, o.layout, write=True).var
            if partial(self.op):
                call.also_reads(o.buffer)  # where nobody sees anything it stays as it was
        rows_left = call.word("rows", self.sk)
        sums = tuple(Var(TileType((64, d), f32), f"sum{i}") for i in range(2))
        row, head, item = Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
        r, h_, z = Ix(b, row), Ix(b, head), Ix(b, item)
        columns = None if self.own == d else self.own
        for i, (out, total) in enumerate(zip((dv, dk), sums, strict=True)):
            view = call.view(f"d{i}", out.type.dtype, out.buffer, out.layout, write=True)
            b.store(view, (z, h_, r, 0), narrow(b, Tile(b, total), out.type.dtype), limit=(rows_left - r, columns))
        call._arguments += self._words()
        launch = call.finish(
            self.k_tiles * self.lines * self.batch, flops=flops, bytes_=nbytes, note=f"wgmma {KEYS}x{self.queries}, d {d}, five products"
        )
        self._kernel(launch, "grad", sums=sums, row=row, head=head, batch=item, lse=lse.var, delta=delta.var, acc=acc.var,
                     turns=turns.var, ticket=ticket.var, maps=tuple(maps), **beside)  # fmt: skip
        return launch

    def _finish(self, dq: Operand) -> Launch:
        call = Call("flash_finish", f"{self.name}.dq")
        b = call.b
        acc = call.view("acc", f32, self.sums, Layout.contiguous((self.tiles, 2, 4096)))
        turns = self._turns(call, write=False)
        rows_left = call.word("rows", self.sq)
        total = Var(TileType((64, 64), f32), "sum")
        row, column, head, item = (Var(INDEX, n) for n in ("row", "column", "head", "batch"))
        r, c, h_, z = (Ix(b, x) for x in (row, column, head, item))
        view = call.view("dq", dq.type.dtype, dq.buffer, dq.layout, write=True)
        wide = is_rows(dq.layout)
        if not wide:
            columns = None if self.own == self.d else self.own - c
            b.store(view, (z, h_, r, c), narrow(b, Tile(b, total), dq.type.dtype), limit=(rows_left - r, columns))
        call._arguments += self._words()
        launch = call.finish(self.tiles * 2, note="dQ as rows")
        self._kernel(launch, "finish", sums=() if wide else (total,), row=row, column=column, head=head, batch=item, acc=acc.var,
                     turns=turns.var, out=view.var if wide else None)  # fmt: skip
        return launch

    def _kernel(self, launch: Launch, mode: str, **more: object) -> None:
        k, op = launch.kernel, self.op
        dtype = self.q.type.dtype.name
        launch.kernel = identified(FlashGradKernel(
            k.name, k.params, k.pid, k.body, mode=mode, own=self.own, d=self.d, queries=self.queries,
            stages=STAGES[self.d], causal=op.causal, windowed=op.window is not None, softcap=op.softcap, scale=op.scale, dtype=dtype,
            **more))  # type: ignore[arg-type]  # fmt: skip


def parts_of(op: AttentionBackwardOp, group: int, blocks: Dim, cores: int) -> int:
    """Into how many parts the query heads of a key head go: a block each, where there would be too few blocks for the chip (twice as many
    where blocks differ in work)."""
    most, wanted = bounds(blocks)[1], cores * (2 if partial(op) else 1)
    return next((n for n in range(1, group) if group % n == 0 and most * n >= wanted), group)


def shares(name: str, results: list[Operand], split: int) -> tuple[list[Operand], list[Launch]]:
    """Where the parts of dK and dV go, in f32, and the launch that adds them in order; the results themselves where there is one part."""
    if split == 1:
        return results, []
    batch, heads, rows, own = results[0].type.shape
    assert isinstance(own, int)
    shape = (batch, heads * split, rows, own)
    parts = [Operand(t := TensorType(f32, shape), Buffer(f"{name}.part{i}", "temp", t.nbytes), Layout.contiguous(shape)) for i in range(2)]
    call, d = Call("flash_shares", f"{name}.shares"), max(1 << (own - 1).bit_length(), 8)
    b = call.b
    h, s = call.word("h", heads), call.word("s", rows)
    line, row = b.pid // s, b.pid % s
    item, head = line // h, line % h
    for i, (part, out) in enumerate(zip(parts, results, strict=True)):
        given = call.view(f"p{i}", f32, part.buffer, part.layout)
        total = b.load(given, (item, head * split, row, 0), (d,), limit=(own,))
        for n in range(1, split):
            total = total + b.load(given, (item, head * split + n, row, 0), (d,), limit=(own,))
        view = call.view(f"d{i}", out.type.dtype, out.buffer, out.layout, write=True)
        b.store(view, (item, head, row, 0), narrow(b, total, out.type.dtype), limit=(own,))
    moved = 2 * (parts[0].type.nbytes + results[0].type.nbytes)
    launch = call.finish(batch * heads * rows, bytes_=moved, note="parts of dK and dV added")
    launch.kernel = on_threads(launch.kernel, d // 8, 256 // (d // 8), 8)
    return parts, [launch]


def partial(op: AttentionBackwardOp) -> bool:
    """Whether there may be tiles of scores that nobody sees: they are not computed."""
    return op.causal or op.window is not None


def row_statistics(name: str, cotangent: Operand, result: Operand, sums: Operand, stats: list[Buffer], padded_rows: Dim, d: int,
                   counters: tuple[Buffer, Dim] | None = None) -> Launch:
    """From what the forward pass saved: δ = Σ result · cotangent and log2 Σ exp of every row, padded with rows that weigh nothing. `d`: the
    threads' share of a row, a power of two not below its size. Also clears counters."""
    batch, n_heads, rows, own = result.type.shape
    assert isinstance(own, int)
    call = Call("flash_rows", f"{name}.rows")
    b = call.b
    out, g = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("o", result), ("g", cotangent)))
    given = call.view("sums", f32, sums.buffer, sums.layout)
    lay = Layout.contiguous((batch * n_heads, padded_rows))
    lse, delta = (call.view(n, f32, x, lay, write=True) for n, x in zip(("lse", "delta"), stats, strict=True))
    turns = call.view("turns", i32, counters[0], Layout.contiguous((counters[1],)), write=True) if counters is not None else None
    heads, padded, sq = (call.word(n, x) for n, x in (("h", n_heads), ("p", padded_rows), ("s", rows)))
    count = call.word("t", counters[1]) if counters is not None else 0
    line, row = b.pid // padded, b.pid % padded
    item, head = line // heads, line % heads
    here = b.minimum(b.maximum(sq - row, 0), 1)  # 0 past the end
    x, y = (b.cast(b.load(view, (item, head, row, 0), (d,), limit=(here * own,)), f32) for view in (out, g))
    moment = b.reshape(b.reduce("sum", x * y), (1,))
    log = b.load(given, (item, head, row), (1,), limit=(here,)) * LOG2E
    none = b.cmp("eq", log, NEVER)
    past = b.cmp("eq", b.broadcast(b.reshape(b.from_index(here), (1,)), (1,)), 0)
    b.store(lse, (line, row), b.select(past, -NEVER, b.select(none, -NEVER, log)))
    b.store(delta, (line, row), moment)
    if turns is not None:
        b.store(turns, (b.pid,), b.full((1,), 0, i32), limit=(b.minimum(b.maximum(count - b.pid, 0), 1),))
    launch = call.finish(batch * n_heads * padded_rows, bytes_=2 * result.type.nbytes, note="δ and logsumexps of rows")
    launch.kernel = on_threads(launch.kernel, d // 8, 256 // (d // 8), 8)
    return launch
