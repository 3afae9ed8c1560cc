"""The backward pass of attention in one kernel: dQ, dK and dV (and the scores' cotangent, for a bias).

One program owns a key head of one batch element: it packs Kᵀ and Vᵀ into local memory, then walks the query heads that share it and their
rows in blocks of BLOCK. A block computes its scores and weights again, dP = g·Vᵀ, dS = P·(dP − ΣP·dP), writes dQ = dS·K and adds dSᵀ·Q
and Pᵀ·g to the sums of dK and dV, which stay in local memory until the end. So every sum has one order, whatever the batch and the
threads. Causal and windowed blocks leave out the columns that none of their rows sees. Keys go by tiles of four vectors, those behind the
last whole tile by one of as few vectors as hold them. Rows past the end are zeros and add nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.target_spec import TargetSpec
from ...ops.attention.backward import LONGEST, WIDEST
from ...ops.attention.backward import AttentionBackward as AttentionBackwardOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Launch
from ..loops import unrolled
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Reason, Template, region_bytes, region_flops

BLOCK = 24  # query rows of one step
ROWS = 6  # rows of a register tile
KEYS = 4  # keys of a register tile of dK and dV
NEVER = float("-inf")


class AttentionBackwardTemplate(Template):
    key = "attention_backward"
    serves = (AttentionBackwardOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        q, k, v = region.node.operands[:3]
        sizes = (k.shape[2], q.shape[3], v.shape[3])
        if not all(isinstance(d, int) for d in sizes) or q.dtype.name not in ("f32", "f64"):
            return Reason("needs f32 or f64, and a known number of keys and head size")
        if not 0 < sizes[0] <= LONGEST or max(sizes[1:]) > WIDEST:
            return Reason(f"serves 1 to {LONGEST} keys and head sizes up to {WIDEST}")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [Backward(region, target).launch()]


class Backward:
    """One kernel under construction."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.op = region, region.op(AttentionBackwardOp)
        operands = [o for v in region.node.operands if (o := region.operand(v)) is not None]
        q, k, v, *extras, g = operands
        self.dtype = q.type.dtype
        batch, heads, sq, depth = q.type.shape
        kv, sk, dv = k.type.shape[1], k.type.shape[2], v.type.shape[3]
        assert isinstance(sk, int) and isinstance(depth, int) and isinstance(dv, int)
        self.sk, self.depth, self.dv, self.grid = sk, depth, dv, batch * kv
        self.lanes = target.vector_bits // (8 * self.dtype.itemsize)
        self.width = 4 * self.lanes  # keys of a register tile
        unit, self.whole = max(self.lanes, KEYS), sk // self.width * self.width
        self.tail = -(-(sk - self.whole) // unit) * unit  # keys of the last tile
        self.columns = self.whole + self.tail
        call = self.call = Call("attention_backward", region.name)
        b = self.b = call.b
        self.q, self.k, self.v, self.g = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip("qkvg", (q, k, v, g), strict=True))
        shape = (batch, heads, sq, sk)
        self.extra = [call.view(f"s{i}", o.type.dtype, o.buffer, o.layout.expand(shape)) for i, o in enumerate(extras)]
        self.outs = [call.view(f"d{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        self.sq, self.group = call.word("sq", sq), call.word("group", heads // kv)
        self.bi, self.kvh = unravel(b, b.pid, [call.word("batch", batch), call.word("kv", kv)])
        masked = self.op.causal or self.op.window is not None
        self.offset: Ix | None = call.word("offset", self.op.offset) if masked else None
        self.kt, self.vt = b.scratch(self.dtype, (depth, self.columns)), b.scratch(self.dtype, (dv, self.columns))
        self.p, self.ds = (b.scratch(self.dtype, (BLOCK, self.columns)) for _ in range(2))
        self.bent = b.scratch(self.dtype, (BLOCK, self.columns)) if self.op.softcap is not None else None
        self.qs, self.gs = (b.scratch(self.dtype, (BLOCK, self._padded(d))) for d in (depth, dv))
        self.dk, self.dvs = (b.scratch(self.dtype, (self.columns, self._padded(d))) for d in (depth, dv))

    def _panel(self, d: int) -> int:
        """Columns of a register tile along a head size."""
        return min(4 * self.lanes, -(-d // self.lanes) * self.lanes)

    def _padded(self, d: int) -> int:
        return -(-d // self._panel(d)) * self._panel(d)

    def launch(self) -> Launch:
        b = self.b
        for source, target, d in ((self.k, self.kt, self.depth), (self.v, self.vt, self.dv)):
            self._pack(source, target, d)
        for sums, d in ((self.dk, self.depth), (self.dvs, self.dv)):
            with b.loop(0, self.columns) as loop:
                for c in range(0, self._padded(d), self._panel(d)):
                    b.store(sums, (loop.index, c), b.full((self._panel(d),), 0.0, self.dtype))
        with b.loop(0, self.group) as heads:
            head = self.kvh * self.group + heads.index
            with b.loop(0, self.sq, BLOCK) as blocks:
                self._block(head, blocks.index)
        self._write(self.dk, self.outs[1], self.depth, self.op.scale)
        self._write(self.dvs, self.outs[2], self.dv, 1.0)
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note="one program a key head")

    def _pack(self, source: View, target: View, d: int) -> None:
        """The transpose of a head's keys (or values) into local memory, square by square; zeros past the end."""
        b, n = self.b, self.lanes

        def square(column: Ix | int, left: int) -> None:
            for c in range(0, d, n):
                across = min(d - c, n)
                limit = None if left == n and across == n else (left, across)
                x = b.load(source, (self.bi, self.kvh, column, c), (n, n), limit=limit)
                b.store(target, (c, column), b.transpose(x), limit=None if across == n else (across, None))

        whole = self.sk // n * n
        with b.loop(0, whole, n) as loop:
            square(loop.index, n)
        if whole < self.sk:
            square(whole, self.sk - whole)
        with b.loop(-(-self.sk // n) * n, self.columns, n) as loop:
            for c in range(0, d, n):
                b.store(target, (c, loop.index), b.full((n, n), 0.0, self.dtype), limit=(min(n, d - c), None))

    def _block(self, head: Ix | int, first: Ix) -> None:
        b = self.b
        rows = b.minimum(BLOCK, b.ceildiv(self.sq - first, ROWS) * ROWS)
        for source, target, d in ((self.q, self.qs, self.depth), (self.g, self.gs, self.dv)):
            with b.loop(0, rows, ROWS) as loop:
                for c in range(0, self._padded(d), self._panel(d)):
                    left = (self.sq - first - loop.index, min(d - c, self._panel(d)))
                    x = b.load(source, (self.bi, head, first + loop.index, c), (ROWS, self._panel(d)), limit=left)
                    b.store(target, (loop.index, c), x)
        lo, hi = self._visible(first)
        end, last = b.minimum(b.ceildiv(hi, self.width) * self.width, self.columns), b.ceildiv(hi, KEYS) * KEYS
        with b.loop(0, rows, ROWS) as tiles:
            self._rows(head, first, tiles.index, lo, hi, end)
        with b.loop(b.minimum(lo, last), last, KEYS) as keys:
            for source, right, sums, d in ((self.ds, self.qs, self.dk, self.depth), (self.p, self.gs, self.dvs, self.dv)):
                self._add_products(keys.index, rows, source, right, sums, d)

    def _visible(self, first: Ix) -> tuple[Ix | int, Ix | int]:
        """The columns that any row of the block sees, from a multiple of the tile's width."""
        b = self.b
        lo: Ix | int = 0
        hi: Ix | int = self.sk
        if self.op.causal and self.offset is not None:
            hi = b.maximum(0, b.minimum(hi, first + BLOCK + self.offset))
        if self.op.window is not None and self.offset is not None:
            lo = b.maximum(0, first + self.offset - (self.op.window - 1)) // self.width * self.width
        return b.minimum(lo, b.ceildiv(hi, self.width) * self.width), hi  # a window may lie behind all keys

    # --- one tile of rows -----------------------------------------------------------------------------------------------
    def _tiles(self, lo: Ix | int, end: Ix | int, carried: Sequence[Tile], step: Callable[..., Sequence[Tile]]) -> Sequence[Tile]:
        """`step(column, width, *carried)` for the tiles of columns from `lo` to `end`; the last carried values."""
        b = self.b
        parts = [(lo, b.minimum(end, self.whole), self.width)] if self.whole else []
        parts += [(b.maximum(lo, self.whole), end, self.tail)] if self.tail else []
        for start, stop, width in parts:
            with b.loop(b.minimum(start, stop), stop, width, list(carried)) as loop:
                following = step(loop.index, width, *loop.carried)
                if carried:
                    loop.next(*following)
            carried = loop.results
        return carried

    def _rows(self, head: Ix | int, first: Ix, row: Ix, lo: Ix | int, hi: Ix | int, end: Ix | int) -> None:
        b, op = self.b, self.op
        zero = b.full((ROWS, 1), 0.0, self.dtype)

        def scores(column: Ix, width: int, top: Tile) -> Sequence[Tile]:
            s = self._scores(head, first, row, column, width)
            b.store(self.p, (row, column), s)
            return (b.binary("max", top, b.reduce("max", s)),)

        (top,) = self._tiles(lo, end, [b.full((ROWS, 1), NEVER, self.dtype)], scores)
        safe = b.select(b.cmp("eq", top, NEVER), 0.0, top)

        def weights(column: Ix, width: int, total: Tile) -> Sequence[Tile]:
            e = b.unary("exp", self._tile(self.p, row, column, width) - safe)
            b.store(self.p, (row, column), e)
            return (total + b.reduce("sum", e),)

        (total,) = self._tiles(lo, end, [zero], weights)
        share = b.select(b.cmp("eq", total, 0.0), 0.0, 1.0 / b.select(b.cmp("eq", total, 0.0), 1.0, total))

        def means(column: Ix, width: int, mean: Tile) -> Sequence[Tile]:
            p = self._tile(self.p, row, column, width) * share
            dp = self._product(self.gs, row, self.vt, column, self.dv, width)
            b.store(self.p, (row, column), p)
            b.store(self.ds, (row, column), dp)
            return (mean + b.reduce("sum", p * dp),)

        (mean,) = self._tiles(lo, end, [zero], means)

        def cotangents(column: Ix, width: int) -> Sequence[Tile]:
            ds = self._tile(self.p, row, column, width) * (self._tile(self.ds, row, column, width) - mean)
            if op.with_scores:
                inside = (self.sq - first - row, self.sk - column)
                b.store(self.outs[3], (self.bi, head, first + row, column), ds, limit=inside)
            if self.bent is not None:
                ds = ds * self._tile(self.bent, row, column, width)
            b.store(self.ds, (row, column), ds)
            return ()

        self._tiles(lo, end, [], cotangents)
        if op.with_scores:
            self._clear_scores(head, first, row, lo, end)
        self._write_query(head, first, row, lo, hi)

    def _tile(self, view: View, row: Ix, column: Ix | int, width: int) -> Tile:
        return self.b.load(view, (row, column), (ROWS, width))

    def _product(self, left: View, row: Ix, right: View, column: Ix | int, d: int, width: int) -> Tile:
        """rows of `left` times `width` columns of `right`, both in local memory."""
        b, unroll = self.b, 4 if d % 4 == 0 else 1
        with b.loop(0, d, unroll, [b.full((ROWS, width), 0.0, self.dtype)]) as loop:
            acc = loop.carried[0]
            for u in range(unroll):
                i = loop.index + u
                acc = b.mma(b.load(left, (row, i), (ROWS, 1)), b.load(right, (i, column), (1, width)), acc)
            loop.next(acc)
        out: Tile = loop.results[0]
        return out

    def _scores(self, head: Ix | int, first: Ix, row: Ix, key: Ix, width: int) -> Tile:
        """Masked, scaled scores [rows, width]; outside the mask −inf."""
        b, op = self.b, self.op
        s = self._product(self.qs, row, self.kt, key, self.depth, width) * op.scale
        if self.bent is not None and op.softcap is not None:
            t = b.unary("tanh", s * (1.0 / op.softcap))
            b.store(self.bent, (row, key), 1.0 - t * t)
            s = t * op.softcap
        extra = list(self.extra)
        mask = extra.pop(0) if op.has_mask else None
        if op.has_bias:
            s = s + self._score_operand(extra[0], head, first + row, key, width)
        if mask is not None:
            s = b.select(self._score_operand(mask, head, first + row, key, width), s, NEVER)
        column = b.iota((1, width), 1)
        if width == self.tail and self.columns > self.sk:
            s = b.select(b.cmp("lt", column, b.from_index(self.sk - key)), s, NEVER)
        if self.offset is not None:
            line, reach = b.iota((ROWS, 1), 0), b.from_index(first + row + self.offset - key)
            if op.causal:
                s = b.select(b.cmp("le", column, line + reach), s, NEVER)
            if op.window is not None:
                s = b.select(b.cmp("gt", column, line + (reach - b.from_index(op.window))), s, NEVER)
        return s

    def _score_operand(self, view: View, head: Ix | int, row: Ix | int, key: Ix, width: int) -> Tile:
        *_, sm, sn = view.type.strides
        shape = (1 if sm == 0 else ROWS, 1 if sn == 0 else width)
        limit = (None if sm == 0 else self.sq - row, None if sn == 0 else self.sk - key)
        return self.b.load(view, (self.bi, head, row, key), shape, limit=limit)

    def _clear_scores(self, head: Ix | int, first: Ix, row: Ix, lo: Ix | int, end: Ix | int) -> None:
        """Columns that no row of the block sees have a cotangent of zero."""
        b = self.b
        zero = b.full((ROWS, self.width), 0.0, self.dtype)
        for start, stop in ((0, lo), (end, self.sk)):
            with b.loop(start, stop, self.width) as loop:
                inside = (self.sq - first - row, self.sk - loop.index)
                b.store(self.outs[3], (self.bi, head, first + row, loop.index), zero, limit=inside)

    def _write_query(self, head: Ix | int, first: Ix, row: Ix, lo: Ix | int, hi: Ix | int) -> None:
        """dQ = scale · dS·K for one tile of rows."""
        b, width = self.b, self._panel(self.depth)
        lo = b.minimum(lo, hi)
        for c in range(0, self.depth, width):
            left = min(self.depth - c, width)
            limit = None if left == width else (None, left)

            def step(i: Ix | int, acc: Tile, c: int = c, limit: tuple[None, int] | None = limit) -> Tile:
                right = b.load(self.k, (self.bi, self.kvh, i, c), (1, width), limit=limit)
                return b.mma(b.load(self.ds, (row, i), (ROWS, 1)), right, acc)

            total = unrolled(b, lo, hi, b.full((ROWS, width), 0.0, self.dtype), step)
            inside = (self.sq - first - row, left)
            b.store(self.outs[0], (self.bi, head, first + row, c), total * self.op.scale, limit=inside)

    # --- sums over rows -------------------------------------------------------------------------------------------------
    def _add_products(self, key: Ix, rows: Ix | int, source: View, right: View, sums: View, d: int) -> None:
        """sums[key…] += sourceᵀ · right over the block's rows."""
        b, width = self.b, self._panel(d)
        for c in range(0, d, width):
            with b.loop(0, rows, 2, [b.load(sums, (key, c), (KEYS, width))]) as loop:
                acc = loop.carried[0]
                for u in range(2):  # rows are a multiple of ROWS, which is even
                    r = loop.index + u
                    acc = b.mma(b.load(source, (r, key), (KEYS, 1), axes=(1, 0)), b.load(right, (r, c), (1, width)), acc)
                loop.next(acc)
            b.store(sums, (key, c), loop.results[0])

    def _write(self, sums: View, out: View, d: int, factor: float) -> None:
        b, width = self.b, self._panel(d)
        with b.loop(0, self.sk) as loop:
            for c in range(0, d, width):
                left = min(d - c, width)
                x = b.load(sums, (loop.index, c), (width,))
                x = x if factor == 1.0 else x * factor
                b.store(out, (self.bi, self.kvh, loop.index, c), x, limit=None if left == width else (left,))
