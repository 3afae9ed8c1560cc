"""Running sums, products, extremes with their indices, logsumexps and linear recurrences. Each is a `Fold`: a state of one or two tiles
and how the states of two neighbouring runs are joined. Groups of elements are joined by doubling, a carry runs from group to group.

Along neighbours a group is one register; otherwise columns run along registers and a group is a list of them, with the same operations in
the same order: a row has the same bits however it lies. An axis longer than `CHUNK` is cut: chunks give their totals, one program a row
adds them up, chunks run again with what stands before them. Exclusive results are stored one place later; reversed ones through flipped
views.
Tails are masked; an axis of no elements stores nothing.
"""

from __future__ import annotations

from typing import Any

from ...core.dims import Dim, bounds, ceildiv, product
from ...core.dtypes import DType, compute_dtype, f64, i32, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.rows.cumulative import CumMax, CumMin, CumProd, CumSum, LinearRecurrence, LogCumSumExp
from ...tile.builder import Ix, KernelBuilder, Tile
from ...tile.ir import identity
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, narrow, widen
from ..template import Template, region_bytes, region_flops

CHUNK = 16384
WIDTH = 16  # columns of a program


State = list[Tile]


class Fold:
    """Sums and products, floats in f64."""

    idempotent = False  # joining a run with a part of itself changes nothing

    def __init__(self, b: KernelBuilder, op: Any, dtype: DType, length: Dim, target: TargetSpec) -> None:
        self.b, self.fn, self.group = b, {CumSum: "add", CumProd: "mul"}.get(type(op), ""), target.vector_bits // 32
        self.dtypes = [f64 if dtype.is_float else dtype]
        self.neutral: list[float | int] = [int(self.fn == "mul")]

    def of(self, at: Tile, *x: Tile) -> State:
        """The states of single elements (one of each operand) that stand at `at`."""
        return [self.b.cast(x[0], self.dtypes[0])]

    def join(self, first: State, second: State) -> State:
        return [self.b.binary(self.fn, first[0], second[0])]

    def results(self, state: State) -> State:
        return state


class Extremes(Fold):
    """The best element so far, of equals the last, and where it stands. NaN is better than all."""

    idempotent = True

    def __init__(self, b: KernelBuilder, op: Any, dtype: DType, length: Dim, target: TargetSpec) -> None:
        super().__init__(b, op, dtype, length, target)
        self.group = target.vector_bits // (8 * max(4, dtype.itemsize))
        self.wins = "ge" if isinstance(op, CumMax) else "le"
        self.dtypes = [dtype, i32 if bounds(length)[1] < 1 << 31 else i64]
        self.neutral = [identity("max" if isinstance(op, CumMax) else "min", dtype), 0]

    def of(self, at: Tile, *x: Tile) -> State:
        return [*x, self.b.cast(at, self.dtypes[1])]

    def join(self, first: State, second: State) -> State:
        b, new = self.b, second[0]
        later = b.cmp(self.wins, new, first[0])
        if new.dtype.is_float:
            later = b.binary("or", later, b.cmp("ne", new, new))
        return [b.select(later, y, x) for x, y in zip(first, second, strict=True)]


class LogSums(Fold):
    """The largest element so far and the sum of exponentials relative to it, in f64."""

    def __init__(self, b: KernelBuilder, op: Any, dtype: DType, length: Dim, target: TargetSpec) -> None:
        super().__init__(b, op, dtype, length, target)
        self.group = target.vector_bits // 64
        self.dtypes, self.neutral = [f64, f64], [float("-inf"), 0.0]

    def of(self, at: Tile, *x: Tile) -> State:
        return [self.b.cast(x[0], f64), self.b.full(x[0].shape, 1.0, f64)]

    def join(self, first: State, second: State) -> State:
        b, (x, some), (y, more) = self.b, first, second
        gap = b.select(b.cmp("eq", x, y), 0.0, b.binary("sub", x, y))  # infinities of one sign have no difference
        e = b.unary("exp", b.unary("neg", b.unary("abs", gap)))
        second_larger = b.cmp("gt", y, x)
        low, high = b.select(second_larger, some, more), b.select(second_larger, more, some)
        return [b.binary("max", x, y), b.binary("add", b.binary("mul", low, e), high)]

    def results(self, state: State) -> State:
        return [self.b.binary("add", state[0], self.b.unary("log", state[1]))]


class Lines(Fold):
    """Functions h -> a * h + b, one after the other, in f64. What they give for 0 are the results."""

    def __init__(self, b: KernelBuilder, op: Any, dtype: DType, length: Dim, target: TargetSpec) -> None:
        super().__init__(b, op, dtype, length, target)
        self.group = target.vector_bits // 64
        self.dtypes, self.neutral = [f64, f64], [1.0, 0.0]

    def of(self, at: Tile, *x: Tile) -> State:
        return [self.b.cast(v, f64) for v in x]

    def join(self, first: State, second: State) -> State:
        return [first[0] * second[0], self.b.fma(second[0], first[1], second[1])]

    def results(self, state: State) -> State:
        return state[1:]


FOLDS: dict[type, type[Fold]] = {CumSum: Fold, CumProd: Fold, CumMax: Extremes, CumMin: Extremes, LogCumSumExp: LogSums,
                                 LinearRecurrence: Lines}


class RunningTemplate(Template):
    key = "running"
    serves = tuple(FOLDS)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        length = region.node.operands[0].shape[op.axis]
        if bounds(length)[1] <= CHUNK:
            return [ScanKernel(region, target, "").launch()]
        totals = ScanKernel(region, target, "totals")
        return [totals.launch(), _add_up(region, target, totals), ScanKernel(region, target, "chunks", totals.temps).launch()]


class ScanKernel:
    """One kernel under construction: the whole axis (""), the totals of chunks, or chunks with what stands before them."""

    def __init__(self, region: Region, target: TargetSpec, part: str, temps: list[Buffer] | None = None) -> None:
        self.region, self.part = region, part
        op: Any = region.node.op
        self.op = op
        self.exclusive: bool = getattr(op, "exclusive", False)
        self.call = Call(self.op.name, f"{region.name}.{part}" if part else region.name)
        b = self.b = self.call.b
        x = region.operands[0]
        self.dtype = compute_dtype(x.type.dtype)
        self.fold = FOLDS[type(op)](b, op, self.dtype, x.type.shape[op.axis], target)
        axis, rank = op.axis, x.type.ndim
        others = [a for a in range(rank) if a != axis]
        side = [a for a in others if x.layout.strides[a] == 1 and x.type.shape[a] != 1]
        self.columns = bool(side) and x.layout.strides[axis] != 1
        self.order = [*(a for a in others if a not in side), axis, *side] if self.columns else [*others, axis]
        self.place = self.order.index(axis)
        source = self._layout(x)
        self.sources = [self.call.view(f"x{i}", o.type.dtype, o.buffer, self._layout(o)) for i, o in enumerate(region.operands)]
        self.results = [(self.call.view(f"y{i}", y.type.dtype, y.buffer, self._layout(y), write=True), y.type.dtype)
                        for i, y in enumerate(region.results) if part != "totals"]
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
            size = product(self.lead) * self.chunks * self.wide
            self.temps = temps or [Buffer(f"{region.name}.totals{i}", "temp", size * d.itemsize) for i, d in enumerate(self.fold.dtypes)]
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
        lay = o.layout.flip(self.op.axis) if getattr(self.op, "reverse", False) else o.layout
        return lay.permute(tuple(self.order))

    def where(self, i: Ix | int) -> list[Ix | int]:
        return [*self.at, i, self.column] if self.columns else [*self.at, i]

    def neutral(self, shape: tuple[int, ...]) -> State:
        return [self.b.full(shape, v, d) for v, d in zip(self.fold.neutral, self.fold.dtypes, strict=True)]

    def launch(self) -> Launch:
        b, group = self.b, self.fold.group
        start = self.neutral(self.shape)
        if self.part:
            layout = _totals(self)
            views = [self.call.view(f"t{i}", d, t, layout, write=self.part == "totals")
                     for i, (d, t) in enumerate(zip(self.fold.dtypes, self.temps, strict=True))]
        if self.part == "chunks":
            start = [b.load(v, (self.row, self.chunk, self.column), self.shape, limit=self.limit) for v in views]
        if self.exclusive and self.results:
            with b.if_(b.binary("and", b.compare("eq", self.low, 0), b.compare("gt", self.n, 0))):
                self._store(0, self.neutral(self.shape), self._lanes(), self.limit)
        whole = self.low + (self.high - self.low) // group * group
        step = self._columns_group if self.columns else self._row_group
        with b.loop(self.low, whole, group, start) as loop:
            loop.next(*step(loop.index, None, loop.carried))
        with b.loop(whole, self.high, group, loop.results) as tail:
            tail.next(*step(tail.index, self.high - whole, tail.carried))
        if self.part == "totals":
            for view, total in zip(views, tail.results, strict=True):
                b.store(view, (self.row, self.chunk, self.column), total, limit=self.limit)
        note = f"{'columns' if self.columns else 'rows'}{', ' + self.part if self.part else ''}"
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note, streams=True)

    def _lanes(self) -> tuple[int, ...]:
        return (len(self.order) - 1,) if self.columns else (self.place,)

    def _store(self, i: Ix | int, state: State, axes: tuple[int, ...], limit: tuple[Ix | int] | None) -> None:
        for x, (view, dtype) in zip(self.fold.results(state), self.results, strict=True):
            made = x if x.dtype.is_int else self.b.cast(x, self.dtype)
            self.b.store(view, self.where(i), narrow(self.b, made, dtype), axes=axes, limit=limit)

    def _row_group(self, i: Ix | int, left: Ix | int | None, carry: State) -> State:
        b, n, fold = self.b, self.fold.group, self.fold
        given = [widen(b, b.load(x, self.where(i), (n,), limit=None if left is None else (left,))) for x in self.sources]
        state = fold.of(b.binary("add", b.iota((n,), 0), b.from_index(i)), *given)
        if left is not None:
            inside = b.cmp("lt", b.iota((n,), 0), b.from_index(left))
            state = [b.select(inside, x, v) for x, v in zip(state, fold.neutral, strict=True)]
        step = 1
        while step < n:
            earlier = [b.shuffle(x, x, [max(k - step, 0) for k in range(n)]) for x in state]
            joined = fold.join(earlier, state)
            kept = [k if k < step else n + k for k in range(n)]
            state = joined if fold.idempotent else [b.shuffle(x, y, kept) for x, y in zip(state, joined, strict=True)]
            step *= 2
        state = fold.join([b.broadcast(x, (n,)) for x in carry], state)
        if self.results:
            room: Ix | int | None = left
            if self.exclusive:
                room = self.n - i - 1 if left is None else b.minimum(left, self.n - i - 1)
            self._store(i + int(self.exclusive), state, self._lanes(), None if room is None else (room,))
        return [b.shuffle(x, x, [n - 1]) for x in state]

    def _columns_group(self, i: Ix | int, left: Ix | int | None, carry: State) -> State:
        """The same operations as `_row_group`, on one register of columns an element."""
        b, n, fold = self.b, self.fold.group, self.fold
        rows: list[State] = []
        for k in range(n):
            at = i + k if left is None else b.minimum(i + k, self.high - 1)
            given = [widen(b, b.load(x, self.where(at), self.shape, axes=self._lanes(), limit=self.limit)) for x in self.sources]
            state = fold.of(b.broadcast(b.from_index(i + k), self.shape), *given)
            if left is not None:
                state = [b.select(b.compare("lt", k, left), x, y) for x, y in zip(state, self.neutral(()), strict=True)]
            rows.append(state)
        step = 1
        while step < n:
            rows = [r if k < step else fold.join(rows[k - step], r) for k, r in enumerate(rows)]
            step *= 2
        rows = [fold.join(carry, r) for r in rows]
        for k, state in enumerate(rows if self.results else []):
            self._put_column(i + k, k, left, state)
        return rows[-1]

    def _put_column(self, i: Ix | int, k: int, left: Ix | int | None, state: State) -> None:
        b = self.b
        i = i + int(self.exclusive)
        if left is None and not self.exclusive:
            self._store(i, state, self._lanes(), self.limit)
            return
        inside = b.compare("lt", i, self.n)
        if left is not None:
            inside = b.binary("and", inside, b.compare("lt", k, left))
        with b.if_(inside):
            self._store(i, state, self._lanes(), self.limit)


def _totals(scan: ScanKernel) -> Layout:
    return Layout((product(scan.lead), scan.chunks, scan.wide), (scan.chunks * scan.wide, scan.wide, 1))


def _add_up(region: Region, target: TargetSpec, totals: ScanKernel) -> Launch:
    """Totals of chunks become what stands before each."""
    call = Call(totals.op.name, f"{region.name}.before")
    b, dtypes = call.b, totals.fold.dtypes
    views = [call.view(f"t{i}", d, t, _totals(totals), write=True) for i, (d, t) in enumerate(zip(dtypes, totals.temps, strict=True))]
    fold = type(totals.fold)(b, totals.op, totals.dtype, totals.region.operands[0].type.shape[totals.op.axis], target)
    count, width = call.word("chunks", totals.chunks), call.word("wide", totals.wide)
    blocks = b.ceildiv(width, WIDTH)
    row, column = b.pid // blocks, b.pid % blocks * WIDTH
    limit = (b.minimum(width - column, WIDTH),)
    with b.loop(0, count, 1, [b.full((WIDTH,), v, d) for v, d in zip(fold.neutral, dtypes, strict=True)]) as loop:
        own = [b.load(view, (row, loop.index, column), (WIDTH,), limit=limit) for view in views]
        for view, before in zip(views, loop.carried, strict=True):
            b.store(view, (row, loop.index, column), before, limit=limit)
        loop.next(*fold.join(loop.carried, own))
    size = product(totals.lead) * totals.chunks * totals.wide
    return call.finish(product(totals.lead) * ceildiv(totals.wide, WIDTH), bytes_=sum(2 * d.itemsize for d in dtypes) * size)
