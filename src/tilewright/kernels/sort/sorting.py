"""Sorting: by rank (short rows), by radix in one program's own memory (rows that fit), by radix over blocks of a row (any length).

A radix sort moves words of key and index, one byte of the key a pass, lowest first: it is stable and its result does not depend on how
the row is cut, so blocks run on all threads. Per pass: every block counts its bytes, one program a row turns the counts into places, every
block moves its words. Wide keys (64 bits) are sorted by their lower half, then their words are made again with the upper one.
Rows of no elements take no launch; `keep` stores only the first places (top-k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dims import Dim, bounds, ceildiv, product
from ...core.dtypes import i32, u64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.sorting import ArgSort as ArgSortOp
from ...ops.index.sorting import Sort as SortOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..linalg.matrices import nothing
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Template
from .keys import BUCKETS, digit, digits, high_half, index_of, is_wide, low_half, sort_key, word

RANKED = 64  # rows up to this length are sorted by rank
OWN = 4096  # rows up to this length are sorted in a program's own memory
BLOCK = 16384  # elements of a longer row per program
TILE = 64


class SortTemplate(Template):
    key = "sort"
    serves = (SortOp, ArgSortOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.node.op
        assert isinstance(op, (SortOp, ArgSortOp))
        values = region.results[0] if isinstance(op, SortOp) else None
        return sort_launches(Job(region.name, region.operands[0], op.axis, op.descending, values, region.results[-1]))


@dataclass(frozen=True)
class Job:
    """What to sort and where the result goes."""

    name: str
    x: Operand
    axis: int
    descending: bool
    values: Operand | None
    indices: Operand
    keep: int | None = None  # only so many places are wanted

    @property
    def length(self) -> Dim:
        return self.x.type.shape[self.axis]

    @property
    def rows(self) -> list[Dim]:
        return [d for i, d in enumerate(self.x.type.shape) if i != self.axis]


def sort_launches(job: Job) -> list[Launch]:
    if job.length == 0:
        return nothing(job.name, [o for o in (job.values, job.indices) if o is not None])
    longest = bounds(job.length)[1]
    if isinstance(job.length, int) and job.length <= RANKED:
        return [_by_rank(job, job.length)]
    return [_in_own_memory(job, longest)] if longest <= OWN else _over_blocks(job)


def axis_last(o: Operand, axis: int) -> Layout:
    return o.layout.permute((*(i for i in range(o.type.ndim) if i != axis), axis))


class Sorter:
    """One kernel under construction over rows of a job: views with the sorted axis last."""

    def __init__(self, job: Job, what: str, *, results: bool) -> None:
        self.job, self.call = job, Call("sort", f"{job.name}.{what}")
        self.b = self.call.b
        self.x = self.call.view("x", job.x.type.dtype, job.x.buffer, axis_last(job.x, job.axis))
        self.outs: list[tuple[Operand, View]] = []
        for name, o in (("v", job.values), ("i", job.indices)):
            if o is not None and results:
                self.outs.append((o, self.call.view(name, o.type.dtype, o.buffer, axis_last(o, job.axis), write=True)))
        self.n = self.call.word("n", job.length)
        self.dims = [self.call.word(f"d{i}", d) for i, d in enumerate(job.rows)]

    def finish(self, per_row: Dim = 1) -> Launch:
        size = self.job.x.type.nbytes
        return self.call.finish(product(self.job.rows) * per_row, flops=self.job.x.type.numel * 8, bytes_=2 * size)

    def key(self, x: Tile) -> Tile:
        return sort_key(self.b, x, self.job.x.type.dtype, descending=self.job.descending)

    def put(self, at: Sequence[Ix | int], place: Ix, index: Ix) -> None:
        """The element that was at `index` goes to `place`."""
        b = self.b

        def store() -> None:
            for o, view in self.outs:
                x = b.load(self.x, (*at, index), ()) if o is self.job.values else b.from_index(index, o.type.dtype)
                b.store(view, (*at, place), x)

        if self.job.keep is None:
            store()
            return
        with b.if_(b.compare("lt", place, self.job.keep)):
            store()

    def index_of(self, words: Tile) -> Tile:
        """The indices in words. A launch that is measured by itself may find any words: none of them may lead out of the row."""
        return self.b.binary("min", index_of(self.b, words), self.b.from_index(self.n - 1, u64))

    def words(self, at: Sequence[Ix | int], to: View, lead: Sequence[Ix | int], start: Ix | int, stop: Ix | int, *, upper: bool) -> None:
        """Words of the elements start..stop-1; `upper` takes their order and indices from the words that stand there."""
        b = self.b

        def tile(i: Ix | int, left: Ix | int | None) -> None:
            limit = None if left is None else (left,)
            if upper:
                index = self.index_of(b.load(to, (*lead, i), (TILE,), limit=limit))
                key = high_half(b, self.key(b.gather(self.x, (*at, 0), len(at), index)))
            else:
                index = b.iota((TILE,), 0, u64) + b.from_index(i, u64)
                key = low_half(b, self.key(b.load(self.x, (*at, i), (TILE,), limit=limit)))
            b.store(to, (*lead, i), word(b, key, index), limit=limit)

        whole = start + (stop - start) // TILE * TILE
        with b.loop(start, whole, TILE) as loop:
            tile(loop.index, None)
        with b.if_(b.compare("lt", whole, stop)):
            tile(whole, stop - whole)


def _by_rank(job: Job, n: int) -> Launch:
    """The place of an element is the number of those that come before it: all against all, in registers."""
    s = Sorter(job, "rank", results=True)
    b = s.b
    at = unravel(b, b.pid, s.dims)
    key = s.key(b.load(s.x, (*at, 0), (n,)))
    keys, places = b.scratch(key.dtype, (n,)), b.scratch(i32, (n,))
    b.store(keys, (0,), key)
    with b.loop(0, n, 1, [b.full((n,), 0, i32)]) as loop:
        other = b.load(keys, (loop.index,), (1,))
        same = b.binary("and", b.cmp("eq", other, key), b.cmp("lt", b.from_index(loop.index, i32), b.iota((n,), 0, i32)))
        loop.next(loop.carried[0] + b.cast(b.binary("or", b.cmp("lt", other, key), same), i32))
    b.store(places, (0,), loop.results[0])
    with b.loop(0, n) as each:
        s.put(at, b.to_index(b.load(places, (each.index,), ())), each.index)
    return s.finish()


def rounds_of(job: Job) -> list[tuple[bool, list[int]]]:
    """(whether words are made of upper halves, digits to sort by)."""
    shifts = digits(job.x.type.dtype)
    return [(False, shifts), (True, shifts)] if is_wide(job.x.type.dtype) else [(False, shifts)]


def _clear(b: KernelBuilder, table: View, lead: Sequence[int] = ()) -> None:
    for d in range(0, BUCKETS, TILE):
        b.store(table, (*lead, d), b.full((TILE,), 0, i32))


def _count(b: KernelBuilder, table: View, at: Sequence[Ix | int]) -> Tile:
    """Adds one to an entry; gives what it was."""
    old = b.load(table, at, ())
    b.store(table, at, old + 1)
    return old


def _running(b: KernelBuilder, table: View, lead: Sequence[int] = ()) -> None:
    """Counts become the sum of those before them."""
    with b.loop(0, BUCKETS, 1, [b.full((), 0, i32)]) as loop:
        own = b.load(table, (*lead, loop.index), ())
        b.store(table, (*lead, loop.index), loop.carried[0])
        loop.next(loop.carried[0] + own)


def _in_own_memory(job: Job, longest: int) -> Launch:
    """One program a row; the counts of all digits are taken in one sweep."""
    s = Sorter(job, "radix", results=True)
    b = s.b
    at = unravel(b, b.pid, s.dims)
    rounds = rounds_of(job)
    words = [b.scratch(u64, (longest,)) for _ in range(2)]
    tables = b.scratch(i32, (len(rounds[0][1]), BUCKETS))
    now = 0
    for upper, shifts in rounds:
        s.words(at, words[now], (), 0, s.n, upper=upper)
        for p in range(len(shifts)):
            _clear(b, tables, (p,))
        with b.loop(0, s.n) as loop:
            packed = b.load(words[now], (loop.index,), ())
            for p, shift in enumerate(shifts):
                _count(b, tables, (p, digit(b, packed, shift)))
        for p, shift in enumerate(shifts):
            _running(b, tables, (p,))
            last = (upper, shift) == (rounds[-1][0], shifts[-1])
            with b.loop(0, s.n) as loop:
                packed = b.load(words[now], (loop.index,), ())
                place = b.to_index(_count(b, tables, (p, digit(b, packed, shift))))
                if last:
                    s.put(at, place, b.to_index(index_of(b, packed)))
                else:
                    b.store(words[1 - now], (place,), packed)
            now = 1 - now
    return s.finish()


def _over_blocks(job: Job) -> list[Launch]:
    rows, n = product(job.rows), job.length
    blocks = ceildiv(n, BLOCK)
    words = [Buffer(f"{job.name}.words{i}", "temp", rows * n * 8) for i in range(2)]
    counts = Buffer(f"{job.name}.counts", "temp", rows * blocks * (4 * BUCKETS))
    row_layout = Layout((rows, n), (n, 1))
    table_layout = Layout((rows, blocks, BUCKETS), (blocks * BUCKETS, BUCKETS, 1))
    launches: list[Launch] = []
    now = 0

    def block(what: str, *, results: bool = False) -> tuple[Sorter, Ix | int, Ix | int, list[Ix | int], Ix | int, Ix | int]:
        s = Sorter(job, what, results=results)
        per_row = s.call.word("blocks", blocks)
        row, own = s.b.pid // per_row, s.b.pid % per_row
        start = own * BLOCK
        return s, row, own, unravel(s.b, row, s.dims), start, s.b.minimum(start + BLOCK, s.n)

    def counted() -> Launch:
        s, row, own, _, start, stop = block("count")
        b = s.b
        source = s.call.view("w", u64, words[now], row_layout)
        out = s.call.view("c", i32, counts, table_layout, write=True)
        table = b.scratch(i32, (BUCKETS,))
        _clear(b, table)
        with b.loop(start, stop) as loop:
            _count(b, table, (digit(b, b.load(source, (row, loop.index), ()), shift),))
        for d in range(0, BUCKETS, TILE):
            b.store(out, (row, own, d), b.load(table, (d,), (TILE,)))
        return s.finish(blocks)

    def placed() -> Launch:
        call = Call("sort", f"{job.name}.places")
        b = call.b
        c = call.view("c", i32, counts, table_layout, write=True)
        per_row = call.word("blocks", blocks)
        table = b.scratch(i32, (BUCKETS,))
        for d in range(0, BUCKETS, TILE):
            with b.loop(0, per_row, 1, [b.full((TILE,), 0, i32)]) as loop:
                loop.next(loop.carried[0] + b.load(c, (b.pid, loop.index, d), (TILE,)))
            b.store(table, (d,), loop.results[0])
        _running(b, table)
        for d in range(0, BUCKETS, TILE):
            with b.loop(0, per_row, 1, [b.load(table, (d,), (TILE,))]) as loop:
                own = b.load(c, (b.pid, loop.index, d), (TILE,))
                b.store(c, (b.pid, loop.index, d), loop.carried[0])
                loop.next(loop.carried[0] + own)
        return call.finish(rows, bytes_=rows * blocks * (8 * BUCKETS))

    def moved(*, last: bool) -> Launch:
        s, row, own, at, start, stop = block("move", results=last)
        b = s.b
        source = s.call.view("w", u64, words[now], row_layout)
        goal = None if last else s.call.view("t", u64, words[1 - now], row_layout, write=True)
        c = s.call.view("c", i32, counts, table_layout)
        table = b.scratch(i32, (BUCKETS,))
        for d in range(0, BUCKETS, TILE):
            b.store(table, (d,), b.load(c, (row, own, d), (TILE,)))
        with b.loop(start, stop) as loop:
            packed = b.load(source, (row, loop.index), ())
            place = b.to_index(_count(b, table, (digit(b, packed, shift),)))
            if goal is None:
                s.put(at, place, b.to_index(index_of(b, packed)))
            else:
                b.store(goal, (row, place), packed)
        return s.finish(blocks)

    rounds = rounds_of(job)
    for upper, shifts in rounds:
        s, row, _, at, start, stop = block("words")
        s.words(at, s.call.view("w", u64, words[now], row_layout, write=True), (row,), start, stop, upper=upper)
        launches.append(s.finish(blocks))
        for shift in shifts:
            launches += [counted(), placed(), moved(last=(upper, shift) == (rounds[-1][0], shifts[-1]))]
            now = 1 - now
    return launches
