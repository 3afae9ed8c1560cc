"""Sorting long rows on a GPU: words of key (upper half) and index, moved by one digit of the key a pass, lowest first.

A pass is three launches. Blocks of `ITEMS` words count their digits; a warp for each digit turns the counts into places; blocks move their
words, ordered in shared memory first so that neighbours in a digit are neighbours in memory. A pass is stable and its result does not
depend on blocks. Rows that one block holds are one launch for all digits. Where `lengths` is given, a row has that many words (found on
the device), else all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import i32, u64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.index.indexing import TopK as TopKOp
from ....ops.index.sorting import ArgSort as ArgSortOp
from ....ops.index.sorting import Sort as SortOp
from ....tile.builder import Ix
from ....tile.ir import Var
from ...call import Call
from ...cuda.groups import on_threads, shared_launch
from ...cuda.kernel import WARP, SimtKernel, identified
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Region
from ...scan.cuda.running import sums_before
from ...template import Reason, Template, alone
from ..keys import RADIX
from ..sorting import RANKED, TILE, Job, Sorter, rounds_of, sort_launches

THREADS = 256  # threads of a block, and buckets of a pass
ITEMS = 4096  # words of a block
STEP = 512  # elements of a program that makes words or puts results
MOST = 1 << 30  # elements of a row


@dataclass(eq=False)
class RadixKernel(SimtKernel):
    """Counts (no `goal`) or moves the words of a block of a row by the digit at a shift, or (no `counts`) sorts a row that one block holds
    by all of them. All views are of contiguous memory."""

    words: Var | None = None  # u64 [rows, n]
    goal: Var | None = None
    counts: Var | None = None  # i32 [rows, buckets, blocks]: of a block; when words move, of the blocks before it
    totals: Var | None = None  # i32 [rows, buckets]
    lengths: Var | None = None  # i32 [rows], or all rows have n
    n: Var | None = None
    blocks: Var | None = None
    shifts: tuple[int, ...] = ()
    items: int = ITEMS  # words of a block

    @property
    def block(self) -> int:
        return THREADS


class CudaSort(Template):
    key = "sort"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        op = region.node.op if region.anchor is not None else None
        if not isinstance(op, (SortOp, ArgSortOp, TopKOp)):
            return Reason("not a sort")
        if (why := alone(region, type(op))) is not None:
            return why
        length = region.operands[0].type.shape[op.axis]
        high = bounds(length)[1]
        if isinstance(op, TopKOp) and op.k == 0:
            return Reason("nothing is kept")
        return None if high <= MOST and not (isinstance(length, int) and length <= RANKED) else Reason(f"more than {MOST} elements, or few")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        keep, descending = (op.k, op.largest) if isinstance(op, TopKOp) else (None, op.descending)
        values = None if isinstance(op, ArgSortOp) else region.results[0]
        return radix_launches(Job(region.name, region.operands[0], op.axis, descending, values, region.results[-1], keep))


def radix_launches(job: Job) -> list[Launch]:
    rows, n = product(job.rows), job.length
    if job.length == 0:
        return sort_launches(job)
    parts = ceildiv(n, STEP)
    words = Words(job.name, rows, n)
    out: list[Launch] = []

    def part(what: str, *, results: bool) -> tuple[Sorter, Ix | int, list[Ix | int], Ix | int]:
        s = Sorter(job, what, results=results)
        per_row = s.call.word("parts", parts)
        row = s.b.pid // per_row
        return s, row, unravel(s.b, row, s.dims), s.b.pid % per_row * STEP

    for upper, shifts in rounds_of(job):
        s, row, at, start = part("words", results=False)
        view = s.call.view("w", u64, words.now, words.layout, write=True)
        if upper:
            s.call.also_reads(words.now)
        s.words(at, view, (row,), start, s.b.minimum(start + STEP, s.n), upper=upper)
        out.append(shared_launch(s.finish(parts)))
        out += words.sort(shifts)
    s, row, at, start = part("put", results=True)
    b = s.b
    view = s.call.view("w", u64, words.now, words.layout)
    stop = b.minimum(start + STEP, s.n if job.keep is None else b.minimum(s.n, job.keep))
    with b.loop(start, stop, TILE) as loop:
        limit = (stop - loop.index,)
        index = s.index_of(b.load(view, (row, loop.index), (TILE,), limit=limit))
        for o, v in s.outs:
            x = b.gather(s.x, (*at, 0), len(at), index) if o is job.values else b.cast(index, o.type.dtype)
            b.store(v, (*at, loop.index), x, limit=limit)
    return [*out, shared_launch(s.finish(parts))]


class Words:
    """Rows of words that are sorted in passes, from one buffer into another."""

    def __init__(self, name: str, rows: Dim, n: Dim, lengths: Buffer | None = None) -> None:
        self.name, self.rows, self.n, self.lengths = name, rows, n, lengths
        self.blocks: Dim = ceildiv(n, ITEMS) if bounds(n)[1] > ITEMS or lengths is not None else 1
        self.layout = Layout((rows, n), (n, 1))
        self.now, self.other = (Buffer(f"{name}.words{i}", "temp", rows * n * 8) for i in range(2))
        self.counts, self.places = (Buffer(f"{name}.{n}", "temp", rows * self.blocks * (4 * THREADS)) for n in ("digits", "places"))
        self.totals = Buffer(f"{name}.totals", "temp", rows * (4 * THREADS))

    def sort(self, shifts: Sequence[int]) -> list[Launch]:
        """By the bytes at these shifts of the keys, the first being the lowest."""
        out = []
        if self.blocks == 1 and self.lengths is None:
            out.append(self._pass("row", shifts))
            self.now, self.other = self.other, self.now
            return out
        for shift in shifts:
            out += [self._pass("count", [shift]), self._placed(), self._pass("move", [shift])]
            self.now, self.other = self.other, self.now
        return out

    def length(self, call: Call, row: Ix | int) -> Ix | int:
        """Words of a row."""
        n = call.word("n", self.n)
        if self.lengths is None:
            return n
        view = call.view("lengths", i32, self.lengths, Layout.contiguous((self.rows,)))
        return call.b.minimum(call.b.maximum(call.b.to_index(call.b.load(view, (row,), ())), 0), n)

    def _pass(self, what: str, shifts: Sequence[int]) -> Launch:
        call = Call("radix", f"{self.name}.{what}")
        views: dict[str, Any] = {"words": call.view("words", u64, self.now, Layout.contiguous((self.rows * self.n,))).var}
        if what != "count":
            views["goal"] = call.view("goal", u64, self.other, Layout.contiguous((self.rows * self.n,)), write=True).var
        flat = Layout.contiguous((self.rows * self.blocks * THREADS,))
        if what == "count":
            views["counts"] = call.view("counts", i32, self.counts, flat, write=True).var
        elif what == "move":
            views["counts"] = call.view("counts", i32, self.places, flat).var
            views["totals"] = call.view("totals", i32, self.totals, Layout.contiguous((self.rows * THREADS,))).var
        if self.lengths is not None:
            views["lengths"] = call.view("lengths", i32, self.lengths, Layout.contiguous((self.rows,))).var
        views["n"], views["blocks"] = call.word("n", self.n).var, call.word("blocks", self.blocks).var
        moved = self.rows * self.n * (8 if what == "count" else 16)
        note = "one block a row" if what == "row" else f"bits {shifts[0]} to {shifts[0] + RADIX - 1}"
        launch = call.finish(self.rows * self.blocks, flops=self.rows * self.n * (40 * len(shifts)), bytes_=moved, note=note)
        items = -(-bounds(self.n)[1] // THREADS) * THREADS if what == "row" else ITEMS
        k = launch.kernel
        launch.kernel = identified(RadixKernel(k.name, k.params, k.pid, k.body, shifts=tuple(shifts), items=items, **views))
        return launch

    def _placed(self) -> Launch:
        """Counts every digit's words: those of the blocks before each block, and all. A warp for each digit."""
        call = Call("radix_places", f"{self.name}.places")
        b = call.b
        row, digit = b.pid // THREADS, b.pid % THREADS
        layout = Layout((self.rows, THREADS, self.blocks), (self.blocks * THREADS, self.blocks, 1))
        counts, places = call.view("counts", i32, self.counts, layout), call.view("places", i32, self.places, layout, write=True)
        totals = call.view("totals", i32, self.totals, Layout.contiguous((self.rows, THREADS)), write=True)
        blocks = b.ceildiv(self.length(call, row), ITEMS)
        b.store(totals, (row, digit), sums_before(b, counts, places, (row, digit), blocks, most=self.blocks))
        launch = call.finish(self.rows * THREADS, bytes_=self.rows * self.blocks * (8 * THREADS))
        launch.kernel = on_threads(launch.kernel, WARP, THREADS // WARP)
        return launch

