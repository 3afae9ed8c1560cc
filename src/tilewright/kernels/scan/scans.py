"""Running sums and products. Groups of `lanes` elements are combined by doubling (floats in f64), a carry runs from group to group.

Along neighbours a group is one register; otherwise columns run along registers and a group is a list of them, with the same operations in
the same order: a row has the same bits however it lies. An axis longer than `CHUNK` is cut: chunks give their totals, one program a row
adds them up, chunks run again with what stands before them. Exclusive results are stored one place later; reversed ones through flipped
views.
Tails are masked; an axis of no elements stores nothing.
"""

from __future__ import annotations

from typing import Any

from ...core.dims import Dim, bounds, ceildiv, product
from ...core.dtypes import DType, compute_dtype, f64, u64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.rows.cumulative import CumProd as CumProdOp
from ...ops.rows.cumulative import CumSum as CumSumOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, narrow, widen
from ..template import Template, region_bytes, region_flops

CHUNK = 16384
WIDTH = 16  # columns of a program


class Running(Template):
    key = "running"
    serves = (CumSumOp, CumProdOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None
        op: Any = region.anchor.op
        length = region.anchor.operands[0].shape[op.axis]
        if bounds(length)[1] <= CHUNK:
            return [Scan(region, target, "").launch()]
        totals = Scan(region, target, "totals")
        launches = [totals.launch(), _add_up(region, totals)]
        return [*launches, Scan(region, target, "chunks", totals.temp).launch()]


class Scan:
    """One kernel under construction: the whole axis (""), the totals of chunks, or chunks with what stands before them."""

    def __init__(self, region: Region, target: TargetSpec, part: str, temp: Buffer | None = None) -> None:
        assert region.anchor is not None
        self.region, self.part = region, part
        op: Any = region.anchor.op
        self.op = op
        self.fn = "sum" if isinstance(self.op, CumSumOp) else "prod"
        self.call = Call(self.op.name, f"{region.name}.{part}" if part else region.name)
        b = self.b = self.call.b
        x, y = region.operands[0], region.results[0]
        self.dtype = compute_dtype(x.type.dtype)
        self.carry: DType = f64 if self.dtype.is_float else self.dtype
        self.group = target.vector_bits // 32
        axis, rank = op.axis, x.type.ndim
        others = [a for a in range(rank) if a != axis]
        side = [a for a in others if x.layout.strides[a] == 1 and x.type.shape[a] != 1]
        self.columns = bool(side) and x.layout.strides[axis] != 1
        self.order = [*(a for a in others if a not in side), axis, *side] if self.columns else [*others, axis]
        self.place = self.order.index(axis)
        source = self._layout(x)
        self.x = self.call.view("x", x.type.dtype, x.buffer, source)
        self.y = None if part == "totals" else self.call.view("y", y.type.dtype, y.buffer, self._layout(y), write=True)
        self.result = y.type.dtype
        self.lead = [source.shape[i] for i in range(rank) if i != self.place and not (self.columns and i == rank - 1)]
        self.wide: Dim = source.shape[-1] if self.columns else 1
        dims = [self.call.word(f"d{i}", d) for i, d in enumerate(self.lead)]
        self.n = self.call.word("n", source.shape[self.place])
        self.chunks: Dim = ceildiv(source.shape[self.place], CHUNK) if part else 1
        rest: Ix | int = b.pid
        self.low: Ix | int = 0
        self.high: Ix | int = self.n
        if part:
            count = self.call.word("chunks", self.chunks)
            self.chunk, rest = rest % count, rest // count
            self.low = self.chunk * CHUNK
            self.high = b.minimum(self.low + CHUNK, self.n)
            self.temp = temp or Buffer(f"{region.name}.totals", "temp", product(self.lead) * self.chunks * self.wide * self.carry.itemsize)
        self.limit: tuple[Ix | int] | None = None
        self.column: Ix | int = 0
        self.grid = product(self.lead) * self.chunks * ceildiv(self.wide, WIDTH) if self.columns else product(self.lead) * self.chunks
        if self.columns:
            width = self.call.word("wide", self.wide)
            blocks = b.ceildiv(width, WIDTH)
            self.column, rest = rest % blocks * WIDTH, rest // blocks
            self.limit = (b.minimum(width - self.column, WIDTH),)
        self.row = rest
        self.at = unravel(b, rest, dims)
        self.shape = (WIDTH,) if self.columns else (1,)

    def _layout(self, o: Operand) -> Layout:
        lay = o.layout.flip(self.op.axis) if self.op.reverse else o.layout
        return lay.permute(tuple(self.order))

    def where(self, i: Ix | int) -> list[Ix | int]:
        return [*self.at, i, self.column] if self.columns else [*self.at, i]

    def combine(self, a: Tile, b: Tile) -> Tile:
        return self.b.binary("add" if self.fn == "sum" else "mul", a, b)

    def totals(self, *, write: bool) -> View:
        rows = product(self.lead)
        layout = Layout((rows, self.chunks, self.wide), (self.chunks * self.wide, self.wide, 1))
        return self.call.view("t", self.carry, self.temp, layout, write=write)

    def launch(self) -> Launch:
        b = self.b
        neutral = 0 if self.fn == "sum" else 1
        start = b.full(self.shape, neutral, self.carry)
        if self.part == "chunks":
            start = b.load(self.totals(write=False), (self.row, self.chunk, self.column), self.shape, limit=self.limit)
        if self.op.exclusive and self.y is not None:
            with b.if_(b.binary("and", b.compare("eq", self.low, 0), b.compare("gt", self.n, 0))):
                b.store(self.y, self.where(0), b.full(self.shape, neutral, self.result), axes=self._lanes(), limit=self.limit)
        whole = self.low + (self.high - self.low) // self.group * self.group
        step = self._columns_group if self.columns else self._row_group
        with b.loop(self.low, whole, self.group, [start]) as loop:
            loop.next(step(loop.index, None, loop.carried[0]))
        with b.loop(whole, self.high, self.group, [loop.results[0]]) as tail:
            tail.next(step(tail.index, self.high - whole, tail.carried[0]))
        if self.part == "totals":
            b.store(self.totals(write=True), (self.row, self.chunk, self.column), tail.results[0], limit=self.limit)
        note = f"{'columns' if self.columns else 'rows'}{', ' + self.part if self.part else ''}"
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note, streams=True)

    def _lanes(self) -> tuple[int, ...]:
        return (len(self.order) - 1,) if self.columns else (self.place,)

    def _put(self, i: Ix | int, x: Tile, limit: Ix | int | None) -> None:
        """A tile of results that stand at i… along the axis (`limit` of them)."""
        if self.y is None:
            return
        b = self.b
        room: Ix | int | None = limit
        if self.op.exclusive:
            i = i + 1
            room = self.n - i if limit is None else b.minimum(limit, self.n - i)
        b.store(self.y, self.where(i), narrow(b, b.cast(x, self.dtype), self.result), limit=None if room is None else (room,))

    def _row_group(self, i: Ix | int, left: Ix | int | None, carry: Tile) -> Tile:
        b, n = self.b, self.group
        neutral = 0 if self.fn == "sum" else 1
        x = b.cast(widen(b, b.load(self.x, self.where(i), (n,), limit=None if left is None else (left,))), self.carry)
        if left is not None:
            x = b.select(b.cmp("lt", b.iota((n,), 0), b.from_index(left)), x, neutral)
        run = b.scan(self.fn, x)
        self._put(i, self.combine(carry, run), left)
        return self.combine(carry, self._last(run))

    def _last(self, x: Tile) -> Tile:
        """The last lane of a register, exactly: a sum of bits of which only its own are not 0."""
        b, n = self.b, self.group
        lane = b.cmp("eq", b.iota((n,), 0), b.full((), n - 1, b.iota((n,), 0).dtype))
        if not x.dtype.is_float:
            return b.reduce("sum", b.select(lane, x, 0))
        return b.bitcast(b.reduce("sum", b.select(lane, b.bitcast(x, u64), 0)), x.dtype)

    def _columns_group(self, i: Ix | int, left: Ix | int | None, carry: Tile) -> Tile:
        """The same operations as `_row_group`, on one register of columns an element."""
        b, n, axes = self.b, self.group, self._lanes()
        neutral = 0 if self.fn == "sum" else 1
        rows: list[Tile] = []
        for k in range(n):
            at = i + k if left is None else b.minimum(i + k, self.high - 1)
            x = b.cast(widen(b, b.load(self.x, self.where(at), self.shape, axes=axes, limit=self.limit)), self.carry)
            rows.append(x if left is None else b.select(b.compare("lt", k, left), x, b.full((), neutral, self.carry)))
        step = 1
        while step < n:
            rows = [r if k < step else self.combine(rows[k - step], r) for k, r in enumerate(rows)]
            step *= 2
        if self.y is not None:
            for k, r in enumerate(rows):
                self._put_column(i + k, k, left, self.combine(carry, r))
        return self.combine(carry, rows[-1])

    def _put_column(self, i: Ix | int, k: int, left: Ix | int | None, x: Tile) -> None:
        b, axes = self.b, self._lanes()
        assert self.y is not None
        made = narrow(b, b.cast(x, self.dtype), self.result)
        if self.op.exclusive:
            i = i + 1
        if left is None and not self.op.exclusive:
            b.store(self.y, self.where(i), made, axes=axes, limit=self.limit)
            return
        inside = b.compare("lt", i, self.n)
        if left is not None:
            inside = b.binary("and", inside, b.compare("lt", k, left))
        with b.if_(inside):
            b.store(self.y, self.where(i), made, axes=axes, limit=self.limit)


def _add_up(region: Region, totals: Scan) -> Launch:
    """Totals of chunks become what stands before each."""
    call = Call(totals.op.name, f"{region.name}.before")
    b = call.b
    rows, chunks, wide = product(totals.lead), totals.chunks, totals.wide
    view = call.view("t", totals.carry, totals.temp, Layout((rows, chunks, wide), (chunks * wide, wide, 1)), write=True)
    count, width = call.word("chunks", chunks), call.word("wide", wide)
    blocks = b.ceildiv(width, WIDTH)
    row, column = b.pid // blocks, b.pid % blocks * WIDTH
    limit = (b.minimum(width - column, WIDTH),)
    with b.loop(0, count, 1, [b.full((WIDTH,), 0 if totals.fn == "sum" else 1, totals.carry)]) as loop:
        own = b.load(view, (row, loop.index, column), (WIDTH,), limit=limit)
        b.store(view, (row, loop.index, column), loop.carried[0], limit=limit)
        loop.next(b.binary("add" if totals.fn == "sum" else "mul", loop.carried[0], own))
    return call.finish(rows * ceildiv(wide, WIDTH), bytes_=rows * chunks * wide * (2 * totals.carry.itemsize))
