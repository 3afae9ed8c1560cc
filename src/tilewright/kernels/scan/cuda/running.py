"""Running sums, products, extremes, logsumexps and linear recurrences on a GPU: any `Fold` (see `scans.py`) by a group of threads.

A thread takes `EACH` neighbouring elements of a row and joins them one after the other; the totals of threads are joined by doubling,
through shared memory; a carry goes from step to step. Where rows lie along memory, a group walks one row, else 32 rows side by side. A row
longer than `CHUNK` is cut: groups find the totals of chunks, the same kernel joins those, and chunks run again with what stands before
them. The order depends on the length of a row and on whether it lies along memory, on nothing else. Elements beyond the last are neutral;
reversed rows are walked from behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, divisible, product
from ....core.dtypes import DType, compute_dtype, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ...call import Call
from ...cuda.groups import on_threads, stacked
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow, widen
from ...template import Template, region_bytes, region_flops
from ..scans import FOLDS

AT_ONCE = 8  # tiles of a warp in a step
CHUNK = 2048
PROGRAMS = 4  # warps of a block

Place = tuple[Ix | int, tuple[Ix | int]]  # where a tile starts, and how many of its elements are inside


def scanned(b: KernelBuilder, start: Ix | int, stop: Ix | int, total: Tile, load: Callable[[Place], Tile],
            store: Callable[[Place, Tile, Tile], None] | None = None, *, fn: str = "sum", most: Dim = CHUNK) -> Tile:
    """Walks the elements start..stop-1 (`most` at most) of a row by a warp. `load` gives a tile of them, `store` takes its place, its
    elements and `total` with all elements up to each; gives the total of all."""
    at_once = max(1, min(AT_ONCE, -(-min(bounds(most)[1], CHUNK) // WARP)))
    join = {"sum": "add", "prod": "mul"}[fn]
    with b.loop(start, stop, WARP * at_once, [total]) as loop:
        places: list[Place] = [(loop.index + i * WARP, (stop - loop.index - i * WARP,)) for i in range(at_once)]
        tiles = [load(p) for p in places]
        before = loop.carried[0]
        for place, own in zip(places, tiles, strict=True):
            if store is not None:
                store(place, own, b.binary(join, b.scan(fn, own), before))
            before = b.binary(join, before, b.reshape(b.reduce(fn, own), ()))
        loop.next(before)
    found: Tile = loop.results[0]
    return found


def sums_before(b: KernelBuilder, source: View, goal: View, lead: tuple[Ix | int, ...], stop: Ix | int, start: Ix | int = 0,
                total: Tile | None = None, most: Dim = CHUNK) -> Tile:
    """For each of the i32 numbers start..stop-1 of a row `total` and the sum of those before it, by a warp; gives the sum of all."""
    return scanned(b, start, stop, b.full((), 0, i32) if total is None else total,
                   lambda p: b.load(source, (*lead, p[0]), (WARP,), limit=p[1]),
                   lambda p, own, upto: b.store(goal, (*lead, p[0]), upto - own, limit=p[1]), most=most)


EACH = 8  # elements of a thread in a step
BESIDE = 32  # rows that a group walks side by side where they do not lie along memory
LONG = 4096  # elements of a row that is not cut
State = list[Tile]


class CudaRunning(Template):
    key = "running"
    serves = tuple(FOLDS)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        if bounds(region.operands[0].type.shape[op.axis])[1] <= LONG:
            return [_Scan(region, target, "").launch()]
        totals = _Scan(region, target, "totals")
        return [totals.launch(), _Scan(region, target, "before", totals).launch(), _Scan(region, target, "chunks", totals).launch()]


class Threads:
    """Places of a group's threads: `along` rows and `across` them, and in a step the elements of each."""

    def __init__(self, b: KernelBuilder, groups: int, beside: int) -> None:
        self.b, self.beside = b, beside
        self.place = b.iota((groups * beside,), 0, i32)
        self.along = b.binary("shr", self.place, beside.bit_length() - 1) if beside > 1 else self.place
        self.across = b.binary("and", self.place, beside - 1)
        self.zero = b.full(self.place.shape, 0, i32)
        self.inside: Tile | None = None  # whether there is such a row
        self.back: Tile | None = None  # the last element of a row that is walked from behind, counted from the step's first

    def limit(self, left: Ix | int) -> None:
        """`left` elements of a row are left."""
        b = self.b
        self.left, count = left, b.from_index(left, i32)
        self.at = [self.along * EACH + e for e in range(EACH)]
        self.here = [b.cmp("lt", a, count) for a in self.at]
        self.masks = self.here if self.inside is None else [b.binary("and", h, self.inside) for h in self.here]

    def coordinates(self, e: int) -> tuple[Tile, ...]:
        at = self.at[e] if self.back is None else self.back - self.at[e]
        return (at,) if self.beside == 1 else (self.across, at)


class _Scan:
    """One kernel: whole rows (""), the totals of chunks, what stands before each chunk, or chunks with that."""

    def __init__(self, region: Region, target: TargetSpec, part: str, totals: _Scan | None = None) -> None:
        op: Any = region.node.op
        self.region, self.part, self.op, self.totals = region, part, op, totals
        self.call = Call(op.name, f"{region.name}.{part}" if part else region.name)
        b = self.b = self.call.b
        x = region.operands[0]
        self.dtype = compute_dtype(x.type.dtype)
        self.fold = FOLDS[type(op)](b, op, self.dtype, x.type.shape[op.axis], target)
        others = [a for a in range(x.type.ndim) if a != op.axis]
        beside = [a for a in others if x.layout.strides[a] == 1 and x.type.shape[a] != 1]
        self.wide = beside[0] if beside and x.layout.strides[op.axis] != 1 and part != "before" else None
        self.order = (*(a for a in others if a != self.wide), *(() if self.wide is None else (self.wide,)), op.axis)
        shape = [x.type.shape[a] for a in self.order]
        self.rows, self.n = product(shape[:-1]), shape[-1]
        self.chunks: Dim = ceildiv(self.n, LONG) if part or totals else 1
        length = min(bounds(self.chunks if part == "before" else self.n)[1], LONG)
        self.beside = 1 if self.wide is None else BESIDE
        self.groups = (WARP if length <= 1024 else 128) if self.wide is None else 4 if length <= 64 else 16  # threads along a row
        self.threads, self.step = self.groups * self.beside, self.groups * EACH
        self.shape = shape
        if part == "totals":
            size = self.rows * self.chunks
            self.temps = [[Buffer(f"{region.name}.{what}{i}", "temp", size * d.itemsize) for i, d in enumerate(self.fold.dtypes)]
                          for what in ("totals", "before")]

    def neutral(self, shape: tuple[int, ...]) -> State:
        return [self.b.full(shape, v, d) for v, d in zip(self.fold.neutral, self.fold.dtypes, strict=True)]

    def _memory(self, name: str, which: int, *, write: bool = False) -> list[Spots]:
        """Totals of chunks, or what stands before them."""
        made, axes = self.totals or self, 1 if self.part == "before" else 2
        layout = Layout((self.rows, self.chunks), (self.chunks, 1))
        return [Spots(self.call, f"{name}{i}", d, t, layout, axes, write=write)
                for i, (d, t) in enumerate(zip(self.fold.dtypes, made.temps[which], strict=True))]

    def launch(self) -> Launch:
        b, call, fold, before = self.b, self.call, self.fold, self.part == "before"
        n = call.word("n", self.chunks if before else self.n)
        per = call.word("chunks", self.chunks) if self.part in ("totals", "chunks") else 1
        chunk, rest = (0, b.pid) if isinstance(per, int) else (b.pid % per, b.pid // per)
        start, stop = chunk * LONG, n if isinstance(per, int) else b.minimum(chunk * LONG + LONG, n)
        threads = Threads(b, self.groups, self.beside)
        lead: list[Ix | int] = [rest]
        sources: Sequence[View | Spots]
        goals: Sequence[View | Spots]
        if before:
            sources, goals = (self._memory(name, which, write=which == 1) for which, name in enumerate("xy"))
        else:
            dims = [call.word(f"d{i}", d) for i, d in enumerate(self.shape[:-1])]
            if self.wide is None:
                lead = unravel(b, rest, dims) if dims else []
            else:
                blocks = b.ceildiv(dims[-1], self.beside)
                first = rest % blocks * self.beside
                threads.inside = b.cmp("lt", threads.across, b.from_index(dims[-1] - first, i32))
                lead = [*(unravel(b, rest // blocks, dims[:-1]) if dims[:-1] else []), first]
            row: Ix | int = 0
            for x, d in zip(lead, dims, strict=True):
                row = row * d + x
            sources = [self._rows(f"x{i}", o) for i, o in enumerate(self.region.operands)]
            goals = [] if self.part == "totals" else [self._rows(f"y{i}", r, write=True) for i, r in enumerate(self.region.results)]
        carry = self.neutral((self.threads,))
        if self.part == "chunks":
            carry = [v.get((row, chunk), threads.across, threads.zero, inside=threads.inside) for v in self._memory("t", 1)]
        slots = [b.scratch(d, (self.groups.bit_length(), self.threads), space="shared") for d in fold.dtypes]
        with b.loop(start, stop, self.step, carry) as loop:
            threads.limit(stop - loop.index)
            if getattr(self.op, "reverse", False) and not before:
                threads.back = b.from_index(n - 1 - loop.index, i32)
            loaded = [self._load(s, lead, loop.index, threads) for s in sources]
            states = self._states(loaded, loop.index, threads)
            for e in range(1, EACH):
                states[e] = fold.join(states[e - 1], states[e])
            earlier, total = self._joined(slots, states[-1], threads)
            base = fold.join(loop.carried, earlier)
            if goals:
                later = before or getattr(self.op, "exclusive", False)
                done = [base, *(fold.join(base, s) for s in states[:-1])] if later else [fold.join(base, s) for s in states]
                found = [s if before else self._narrowed(s) for s in done]
                for goal, made in zip(goals, zip(*found, strict=True), strict=True):
                    self._store(goal, lead, loop.index, threads, list(made))
            loop.next(*fold.join(loop.carried, total))
        if self.part == "totals":
            only = b.cmp("eq", threads.along, 0)
            only = only if threads.inside is None else b.binary("and", only, threads.inside)
            for view, x in zip(self._memory("t", 0, write=True), loop.results, strict=True):
                view.put((row, chunk), x, threads.across, threads.zero, inside=only)
        grid = self.rows if self.wide is None else product(self.shape[:-2]) * ceildiv(self.shape[-2], self.beside)
        size, x_bytes = self.rows * self.chunks * sum(d.itemsize for d in fold.dtypes), sum(o.type.nbytes for o in self.region.operands)
        moved = 2 * size if before else x_bytes + size if self.part == "totals" else region_bytes(self.region)
        launch = call.finish(grid if before else grid * self.chunks, flops=0 if before else region_flops(self.region), bytes_=moved,
                             note=f"{self.groups} threads a row{f', {BESIDE} rows side by side' if self.beside > 1 else ''}")
        runs = frozenset(v.var.name for v in (*sources, *goals) if isinstance(v, View))
        launch.kernel = on_threads(launch.kernel, self.threads, 1 if self.threads > WARP else PROGRAMS, runs=runs)
        return launch

    def _states(self, loaded: list[list[Tile]], start: Ix | int, threads: Threads) -> list[State]:
        """States of single elements, neutral beyond the last."""
        b, fold, out = self.b, self.fold, []
        for e, here in enumerate(threads.here):
            state = [x[e] for x in loaded]
            if self.part != "before":
                state = fold.of(b.cast(threads.at[e], i64) + b.from_index(start), *(widen(b, x) for x in state))
            out.append([b.select(here, x, v) for x, v in zip(state, fold.neutral, strict=True)])
        return out

    def _narrowed(self, state: State) -> State:
        b = self.b
        found = [x if x.dtype.is_int else b.cast(x, self.dtype) for x in self.fold.results(state)]
        return [narrow(b, x, r.type.dtype) for x, r in zip(found, self.region.results, strict=True)]

    def _at(self, name: str, dtype: DType, buffer: Buffer, layout: Layout, *, write: bool = False) -> View | Spots:
        """Rows, as groups of `EACH` elements that are moved at once, or element by element."""
        if not self._aligned():
            return Spots(self.call, name, dtype, buffer, layout, 1 if self.wide is None else 2, write=write)
        layout = Layout((*layout.shape[:-1], layout.shape[-1] // EACH, EACH), (*layout.strides[:-1], EACH, 1), layout.offset)
        return self.call.view(name, dtype, buffer, layout, write=write, bake=(-2,))

    def _rows(self, name: str, o: Operand, *, write: bool = False) -> View | Spots:
        return self._at(name, o.type.dtype, o.buffer, o.layout.permute(self.order), write=write)

    def _load(self, source: View | Spots, lead: list[Ix | int], at: Ix | int, threads: Threads) -> list[Tile]:
        b = self.b
        if isinstance(source, Spots):
            return [source.get((*lead, 0 if threads.back else at), *threads.coordinates(e), inside=m) for e, m in enumerate(threads.masks)]
        axes, limit = (len(lead) + 1, len(lead)), (None, threads.left // EACH)
        tile = b.load(source, (*lead, at // EACH, 0), (EACH, self.threads), axes=axes, limit=limit)
        return [b.reshape(b.extract(tile, (e, 0), (1, self.threads)), (self.threads,)) for e in range(EACH)]

    def _store(self, goal: View | Spots, lead: list[Ix | int], at: Ix | int, threads: Threads, made: list[Tile]) -> None:
        b = self.b
        if isinstance(goal, Spots):
            for e, (x, m) in enumerate(zip(made, threads.masks, strict=True)):
                goal.put((*lead, 0 if threads.back else at), x, *threads.coordinates(e), inside=m)
            return
        b.store(goal, (*lead, at // EACH, 0), stacked(b, made), axes=(len(lead) + 1, len(lead)), limit=(None, threads.left // EACH))

    def _aligned(self) -> bool:
        """Whether a thread's elements are neighbours that start at a multiple of `EACH`."""
        if self.wide is not None or self.part == "before" or getattr(self.op, "reverse", False) or not divisible(self.n, EACH):
            return False
        layouts = [o.layout.permute(self.order) for o in (*self.region.operands, *self.region.results)]
        return all(lay.strides[-1] == 1 and all(divisible(v, EACH) for v in (lay.offset, *lay.strides[:-1])) for lay in layouts)

    def _joined(self, slots: list[View], total: State, threads: Threads) -> tuple[State, State]:
        """The totals of all threads of a row before each thread, and of all of them."""
        b, fold, reach, level = self.b, self.fold, 1, 0
        along, place, across = threads.along, threads.place, threads.across
        while True:
            for slot, x in zip(slots, total, strict=True):
                b.store(slot, (level, 0), x)
            if reach == self.groups:
                break
            behind = b.cmp("ge", along, reach)
            source = b.select(behind, place - reach * self.beside, place)
            earlier = [b.gather(slot, (level, 0), 1, source) for slot in slots]
            total = [b.select(behind, y, x) for x, y in zip(total, fold.join(earlier, total), strict=True)]
            reach, level = 2 * reach, level + 1
        some = b.cmp("ge", along, 1)
        source = b.select(some, place - self.beside, place)
        earlier = [b.gather(slot, (level, 0), 1, source) for slot in slots]
        last = across + (self.groups - 1) * self.beside
        return ([b.select(some, x, v) for x, v in zip(earlier, fold.neutral, strict=True)],
                [b.gather(slot, (level, 0), 1, last) for slot in slots])
