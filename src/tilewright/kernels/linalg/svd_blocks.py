"""Singular values of larger matrices on all threads: blocks of vectors meet in the rounds of a tournament.

Per sweep one launch puts the vectors in order of length, then one launch a round rotates the pairs between two blocks (and, in the first
round, those within each), one program per two blocks: no two of them share a vector. A sweep in which nothing was rotated ends it: launches
of later ones find that in `moving` and do nothing. What `PARALLEL` sweeps leave (seldom anything) one program a matrix does. The order of
all sums depends on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.dims import product
from ...core.dtypes import DType, i64
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...tile.builder import Ix, View
from ..launch import Buffer, Launch
from ..region import Operand, Region
from ..template import region_bytes, region_flops
from .matrices import Columns, Matrices, padded
from .spectra import columns_launch, matrix_of, rank_of, rows_launch, sign_of
from .svd_rotations import GROUP, Step, finish, floor_of, orthogonalise, take

PARALLEL = 10  # sweeps; most matrices take 6 to 8
BLOCKS = 4  # of vectors, at most


class Blocks:
    """The launches of one region."""

    def __init__(self, region: Region, tall: bool, few: int, many: int, side: int, width: int) -> None:
        self.region, self.tall, self.few, self.many, self.side, self.width = region, tall, few, many, side, width
        self.a = region.operands[0]
        self.lead, self.dtype = self.a.type.shape[:-2], self.a.type.dtype
        self.eps = float(np.finfo(self.dtype.np).eps)
        self.vectors = len(region.results) > 1
        groups = -(-few // GROUP)
        self.per = -(-groups // BLOCKS)  # groups of a block
        self.blocks = -(-groups // self.per)
        self.blocks += self.blocks % 2
        self.x = self._temp("x", self.dtype, few, padded(many, width))
        self.y = self._temp("y", self.dtype, few, padded(few, width)) if self.vectors else None
        self.norms = self._temp("norms", self.dtype, 2, padded(few, width))  # of even and of odd sweeps; at the end the first are lengths
        self.sizes = self._temp("sizes", self.dtype, 2)  # what counts as zero, and what all values are multiplied with
        self.order, self.moving = self._temp("order", i64, few), self._temp("moving", i64, PARALLEL + 1)
        self.signs = self._temp("signs", self.dtype, few)

    def _temp(self, name: str, dtype: DType, *shape: int) -> Operand:
        type_ = TensorType(dtype, (*self.lead, *shape))
        return Operand(type_, Buffer(f"{self.region.name}.{name}", "temp", type_.nbytes), Layout.contiguous(type_.shape))

    def launches(self) -> list[Launch]:
        out = [self._begin()]
        for sweep in range(PARALLEL):
            out += [self._sort(sweep), *(self._round(sweep, r) for r in range(self.blocks - 1))]
        out += [self._rest(), self._places()]
        if self.y is not None:
            u, vt = self.region.results[1:]
            left, right = (self.x, self.y) if self.tall else (self.y, self.x)
            out.append(columns_launch(f"{self.region.name}.u", self.lead, left, self.order, self.signs, u, self.side))
            out.append(rows_launch(f"{self.region.name}.v", self.lead, right, self.order, self.signs, vt, self.side))
        return out

    def _call(self, template: str, suffix: str = "") -> Matrices:
        return Matrices(template, self.region.name + suffix, self.lead)

    def _columns(self, w: Matrices, view: View, at: list[Ix | int]) -> Columns:
        return Columns(w.b, self.dtype, self.few, self.many, self.width, matrix_of(view, at))

    def _both(self, w: Matrices, at: list[Ix | int]) -> tuple[Columns, Columns, Columns | None]:
        """The vectors, their norms, and what becomes of the identity, for change."""
        y = None if self.y is None else self._columns(w, w.change("y", self.y), at)
        return self._columns(w, w.change("x", self.x), at), self._columns(w, w.change("norms", self.norms), at), y

    def _sizes(self, w: Matrices) -> tuple[Ix, Ix]:
        return w.call.word("few", self.few), w.call.word("many", self.many)

    def _begin(self) -> Launch:
        w = self._call("svd")
        b = w.b
        a, sizes, moving = w.read("a", self.a), w.write("sizes", self.sizes), w.write("moving", self.moving)
        count, length = self._sizes(w)
        at = w.at(b.pid)
        x, norms = (self._columns(w, w.write(s, o), at) for s, o in (("x", self.x), ("norms", self.norms)))
        y = None if self.y is None else self._columns(w, w.write("y", self.y), at)
        power = take(b, a, at, self.tall, x, y, count, length)
        with b.loop(0, count) as row:
            norms.set(1, row.index, x.dot(row.index, x, row.index, 0, length))
        for i, size in enumerate((floor_of(b, x, count, length, self.many, self.eps), power)):
            b.store(sizes, (*at, i), size)
        with b.loop(0, PARALLEL + 1) as loop:
            b.store(moving, (*at, loop.index), b.full((), 0, i64))
        b.store(moving, (*at, 0), b.full((), 1, i64))
        return w.call.finish(product(self.lead), bytes_=region_bytes(self.region))

    def _sort(self, sweep: int) -> Launch:
        """Vectors by their length in the sweep before, longest first: that takes fewer sweeps. Their lengths anew. One program each."""
        w = self._call("svd_sort", f".sort{sweep}")
        b = w.b
        moving, order = w.read("moving", self.moving), w.write("order", self.order)
        count, length = self._sizes(w)
        number, parity = w.call.word("sweep", sweep), w.call.word("parity", sweep % 2)
        i = b.pid % count
        at = w.at(b.pid // count)
        x, norms = self._columns(w, w.read("x", self.x), at), self._columns(w, w.change("norms", self.norms), at)
        with b.if_(b.cmp("ne", b.load(moving, (*at, number), ()), 0)):
            before = Columns(b, self.dtype, 1, self.few, self.width, b.subview(norms.view, (1 - parity, 0), (0, 1)))
            b.store(order, (*at, rank_of(b, before, i, count, descending=True)), b.from_index(i))
            norms.set(parity, i, x.dot(i, x, i, 0, length))
        return w.call.finish(product(self.lead) * self.few, bytes_=self.x.type.nbytes)

    def _round(self, sweep: int, turn: int) -> Launch:
        w = self._call("svd_round", f".round{sweep}.{turn}")
        b, blocks, per = w.b, self.blocks, self.per
        sizes, moving, order = w.read("sizes", self.sizes), w.change("moving", self.moving), w.read("order", self.order)
        count, length = self._sizes(w)
        number, parity, r = w.call.word("sweep", sweep), w.call.word("parity", sweep % 2), w.call.word("round", turn)
        k = b.pid % (blocks // 2)
        at = w.at(b.pid // (blocks // 2))
        x, norms, y = self._both(w, at)
        with b.if_(b.cmp("ne", b.load(moving, (*at, number), ()), 0)):
            # what threads write all the time lies in local memory: lines that they share would go to and fro
            own, moved, numbers = Columns(b, self.dtype, 1, self.few, self.width), b.scratch(i64, (1,)), matrix_of(order, at, 1)
            b.store(moved, (0,), b.full((), 0, i64))
            step = Step(b, x, y, own, numbers, moved, 0, count, length, self.many, self.eps, b.load(sizes, (*at, 0), ()), GROUP)
            first, second = (r + k) % (blocks - 1), (r + (blocks - 1) - k) % (blocks - 1)
            second = second + (1 - b.minimum(k, 1)) * ((blocks - 1) - second)  # the last one stays, the others go round
            size = per * GROUP

            def each(body: Callable[[Ix], None]) -> None:
                for block in (first, second):
                    with b.loop(block * size, b.minimum((block + 1) * size, count)) as loop:
                        body(b.to_index(b.load(numbers, (loop.index,), ())))

            def near(i: Ix) -> None:
                """Asks for a vector that another thread may have changed."""
                own.set(0, i, norms.one(parity, i))
                for c, end in ((x, length), *([] if y is None else [(y, count)])):
                    with b.loop(0, end, 64 // self.dtype.itemsize) as line:
                        b.prefetch(c.view, (i, line.index), 2)

            each(near)
            with b.if_(b.compare("eq", r, 0)), b.loop(0, 2 * per) as group:
                late = group.index // per
                block = ((1 - late) * first + late * second) * size
                step.within(block + group.index % per * GROUP)
                with b.loop(group.index % per + 1, per) as other:
                    step.between(block + group.index % per * GROUP, block + other.index * GROUP)
            with b.loop(0, per) as mine, b.loop(0, per) as other:
                step.between(first * size + mine.index * GROUP, second * size + other.index * GROUP)
            each(lambda i: norms.set(parity, i, own.one(0, i)))
            with b.if_(b.cmp("ne", b.load(moved, (0,), ()), 0)):
                b.store(moving, (*at, number + 1), b.full((), 1, i64))
        bytes_ = 2 * (self.x.type.nbytes + (0 if self.y is None else self.y.type.nbytes))
        flops = region_flops(self.region) // (PARALLEL * (blocks - 1))
        return w.call.finish(product(self.lead) * (blocks // 2), flops=flops, bytes_=bytes_)

    def _rest(self) -> Launch:
        w = self._call("svd_rest", ".rest")
        b = w.b
        sizes, moving, order = w.read("sizes", self.sizes), w.change("moving", self.moving), w.change("order", self.order)
        count, length = self._sizes(w)
        at = w.at(b.pid)
        x, norms, y = self._both(w, at)
        floor = b.load(sizes, (*at, 0), ())
        with b.if_(b.cmp("ne", b.load(moving, (*at, PARALLEL), ()), 0)):
            orthogonalise(Step(b, x, y, norms, matrix_of(order, at, 1), matrix_of(moving, at, 1), PARALLEL, count, length, self.many,
                               self.eps, floor, GROUP))
        finish(b, x, y, norms, count, length, floor, self.many)
        return w.call.finish(product(self.lead), bytes_=self.x.type.nbytes)

    def _places(self) -> Launch:
        """Values in order; which vector comes where, and whether it is turned round. One program a vector."""
        w = self._call("svd_places", ".places")
        b = w.b
        sizes, values, order = w.read("sizes", self.sizes), w.write("s", self.region.results[0]), w.write("order", self.order)
        count, length = self._sizes(w)
        i = b.pid % count
        at = w.at(b.pid // count)
        lengths = self._columns(w, w.read("norms", self.norms), at)
        place = rank_of(b, lengths, i, count, descending=True)
        b.store(values, (*at, place), lengths.one(0, i) * b.load(sizes, (*at, 1), ()))
        b.store(order, (*at, place), b.from_index(i))
        if self.y is not None:
            signs = w.write("signs", self.signs)
            left = self._columns(w, w.read("left", self.x if self.tall else self.y), at)
            b.store(signs, (*at, place), sign_of(b, left, i, length if self.tall else count))
        return w.call.finish(product(self.lead) * self.few, bytes_=self.x.type.nbytes)
