"""LU factorisations of matrices with partial pivoting, by panels of columns.

A panel is factored by one program, its columns in local memory, where every loop runs along registers; it leaves a copy of its rows that
lie side by side, which the products read. The rest is brought up to date in blocks of columns: rows are exchanged, solved with the panel's
triangle and multiplied with the panel in register tiles. One launch a panel does that and factors the next panel, as soon as that one's
own columns are up to date: threads draw the blocks (`draw`), so none waits for the panel. A matrix of few columns is one panel.
The order of all sums depends on the sizes alone.

Cholesky factorisations, by panels of columns.

Per panel two launches. The first factors it: one program a matrix, the panel's columns in local memory, where every loop runs along
registers. The second brings the rest up to date: one program per block of columns, in register tiles. A matrix of few columns is one
panel. The order of all sums depends on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import minimum, product
from ...core.dtypes import i32, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.linalg.factors import Cholesky
from ...ops.linalg.systems import Lu
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import report
from ..launch import Buffer, Launch
from ..loops import in_blocks
from ..pointwise.copies import copy_launch
from ..region import Operand, Region
from ..template import Template
from .factor_panels import Blocked
from .matrices import NOT_POSITIVE, SINGULAR, Columns, Matrices, padded, swap


class _Cholesky(Blocked):
    def steps(self) -> list[Launch]:
        out = [self._symmetric()]
        for k0 in range(0, self.k, self.panel):
            out.append(self.factor(self.out, k0))
            rest = self._update(k0)
            out += [] if rest is None else [rest]
        return out

    def _symmetric(self) -> Launch:
        """The lower triangle of the symmetric part, zeros above: one program a row."""
        w = Matrices("symmetric", f"{self.region.name}.copy", self.lead)
        b = w.b
        a, out, n = w.read("a", self.a), w.write("l", self.out), w.call.word("n", self.n)
        row = b.pid % n
        at = w.at(b.pid // n)
        rank = len(at)
        with b.loop(0, n, self.width) as loop:
            limit = (n - loop.index,)
            x = b.load(a, (*at, row, loop.index), (self.width,), limit=limit)
            y = b.load(a, (*at, loop.index, row), (self.width,), axes=(rank,), limit=limit)
            low = b.cmp("le", b.iota((self.width,), 0) + b.from_index(loop.index), b.from_index(row))
            b.store(out, (*at, row, loop.index), b.select(low, (x + y) * 0.5, 0.0), limit=limit)
        return w.call.finish(product(self.lead) * self.n, bytes_=self.a.type.nbytes * 2)

    def factor(self, source: Operand, k0: int) -> Launch:
        w = Matrices("cholesky", self.region.name if k0 == 0 else f"{self.region.name}.panel{k0}", self.lead)
        b = w.b
        a, out = w.read("a", source), w.write("l", self.out)
        error = w.call.error() if self.region.op(Cholesky).check else None
        first, rows, count = w.call.word("first", k0), w.call.word("rows", self.n - k0), w.call.word("count", min(self.panel, self.n - k0))
        at = w.at(b.pid)
        width = self.width
        c = Columns(b, self.dtype, self.panel, self.n, width)
        self.take(c, a, at, first, rows, count, symmetric=source is self.a)
        with b.loop(0, count) as step:
            j = step.index
            pivot = c.one(j, j)
            if error is not None:
                with b.if_(b.unary("not", b.cmp("gt", pivot, 0.0))):
                    report(b, error, NOT_POSITIVE, b.pid, first + j)
            root = b.unary("sqrt", pivot)
            c.each(j, rows, lambda i: c.put(j, i, c.get(j, i) / root))
            with b.loop(j + 1, count) as column:
                c.add(column.index, -c.one(j, column.index), c, j, column.index, rows)
        with b.loop(b.maximum(first - self.tile, 0), first) as loop:  # what products of wider blocks left above the diagonal
            for c0 in range(0, self.panel, width):
                b.store(out, (*at, loop.index, first + c0), b.full((width,), 0.0, self.dtype), limit=(count - c0,))
        self.give(c, rows, count, first, [(out, at, first)], lower=True)
        return w.call.finish(product(self.lead), flops=self.flops if k0 == 0 else 0, bytes_=self.a.type.nbytes * 2)

    def _update(self, k0: int) -> Launch | None:
        count = min(self.panel, self.n - k0)
        blocks = -(-(self.n - k0 - count) // self.tile)
        if blocks == 0:
            return None
        w = Matrices("cholesky_update", f"{self.region.name}.update{k0}", self.lead)
        b = w.b
        low = w.change("l", self.out)
        first, depth, n, per = (w.call.word(s, v) for s, v in (("first", k0), ("depth", count), ("n", self.n), ("blocks", blocks)))
        at = w.at(b.pid // per)
        start = first + depth + b.pid % per * self.tile
        limit = n - start
        right = b.scratch(self.dtype, (self.panel, self.tile))
        with b.loop(0, depth) as step:  # rows of the panel are columns of its transpose
            x = b.load(low, (*at, start, first + step.index), (self.tile,), axes=(len(at),), limit=(limit,))
            b.store(right, (step.index, 0), -x)
        self.multiply(w, low, at, (start, n), (low, at, first), right, depth, start, limit)
        return w.call.finish(product(self.lead) * blocks, bytes_=self.a.type.nbytes)


# Work of unequal size that threads take as they become free: programs that draw numbers until none are left.
# Which thread does what differs from run to run, so items must not depend on each other, nor their results on who computes them. Programs
# of the grid's first half count from the first item on, the others from the last one back: on two threads each keeps to its end of the
# items, where its caches are warm, and only the middle changes hands.
GRID = 32  # programs, hence threads that can take part
WORDS = 3  # words of a counter: numbers drawn, and those from either end


def clear(b: KernelBuilder, counters: View, count: Ix | int) -> None:
    """Before the launches that draw: in a launch of its own, by one program."""
    with b.loop(0, count) as loop:
        b.store(counters, (loop.index, 0), b.full((WORDS,), 0, i64))


def draw(b: KernelBuilder, counters: View, which: Ix | int, items: Ix, body: Callable[[Ix | int], None]) -> None:
    """body(item) for every item of a launch over GRID programs."""
    one, side = b.full((), 1, i64), b.pid // (GRID // 2)
    drawn = b.to_index(b.atomic("add", counters, (which, 0), b.full((), 0, i64)))
    with b.loop(0, items - drawn):
        number = b.to_index(b.atomic("add", counters, (which, 0), one))
        with b.if_(b.compare("lt", number, items)):
            place = b.to_index(b.atomic("add", counters, (which, side + 1), one))
            body((1 - side) * place + side * (items - 1 - place))


FEW = 8  # columns that are factored one by one; those behind take all of them in one pass
SIDE = 4  # columns behind that are changed together


def factor_panel(w: Matrices, c: Columns, pivots: View, order: View, error: View | None, at: list[Ix | int], matrix: Ix | int,
                 first: Ix | int, rows: Ix | int, count: Ix, height: int) -> None:
    """c holds `count` columns from row `first` of the matrix on; they become L and U."""
    b = w.b
    one = b.full((), 1.0, c.dtype)
    with b.loop(0, count, FEW) as group:
        begin = group.index
        end = b.minimum(begin + FEW, count)
        with b.loop(begin, end) as step:
            j = step.index
            p = b.minimum(_largest(c, j, rows, height), rows - 1)  # NaN is nowhere found
            b.store(pivots, (*at, first + j), b.from_index(first + p, i32))
            swap(b, order, [*at, first + j], [*at, first + p])
            with b.loop(0, count) as column:
                swap(b, c.view, [column.index, j], [column.index, p])
            pivot = c.one(j, j)
            zero = b.cmp("eq", pivot, 0.0)
            if error is not None:
                with b.if_(zero):
                    report(b, error, SINGULAR, matrix, first + j)
            safe = b.select(zero, one, pivot)
            c.each(j + 1, rows, lambda i: c.put(j, i, c.get(j, i) / safe))
            with b.loop(j + 1, end) as column:
                c.add(column.index, -c.one(column.index, j), c, j, j + 1, rows)
        in_blocks(b, end, count, SIDE, lambda column, side: _behind(c, column, side, begin, rows))


def _behind(c: Columns, column: Ix, side: int, begin: Ix, rows: Ix | int) -> None:
    """Columns behind FEW factored ones: solved with their triangle, the rest minus the product."""
    b = c.b
    solved: list[Tile] = []  # negated
    for r in range(FEW):
        x = b.load(c.view, (column, begin + r), (side, 1))
        for q, other in enumerate(solved):
            x = b.fma(other, b.load(c.view, (begin + q, begin + r), (1, 1)), x)
        b.store(c.view, (column, begin + r), x)
        solved.append(-x)
    with b.loop(begin + FEW, rows, c.width) as loop:
        x = b.load(c.view, (column, loop.index), (side, c.width))
        for q, factor in enumerate(solved):
            x = b.fma(factor, b.load(c.view, (begin + q, loop.index), (1, c.width)), x)
        b.store(c.view, (column, loop.index), x)


def _largest(c: Columns, j: Ix, rows: Ix | int, height: int) -> Ix:
    """Where the column is largest from row j on; the first of several."""
    b, width = c.b, c.width
    with b.loop(j, rows, width, [b.full((width,), 0.0, c.dtype)]) as loop:
        loop.next(b.binary("max", loop.carried[0], b.unary("abs", c.get(j, loop.index))))
    top = b.reduce("max", loop.results[0])
    far = padded(height, width)
    with b.loop(j, rows, width, [b.full((width,), far, i64)]) as loop:
        places = b.iota((width,), 0) + b.from_index(loop.index)
        hit = b.cmp("eq", b.unary("abs", c.get(j, loop.index)), top)
        loop.next(b.binary("min", loop.carried[0], b.select(hit, places, far)))
    return b.to_index(b.reduce("min", loop.results[0]))


PANEL = 64


class Factor(Template):
    key = "factor"
    serves = (Lu, Cholesky)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        m, n = region.operands[0].type.shape[-2:]
        assert isinstance(m, int) and isinstance(n, int)
        job = _Lu(region, target, m, n, PANEL) if isinstance(region.node.op, Lu) else _Cholesky(region, target, m, n)
        return job.launches()


class _Lu(Blocked):
    def __init__(self, region: Region, target: TargetSpec, m: int, n: int, panel: int) -> None:
        super().__init__(region, target, m, n, panel)
        self.panels = -(-self.k // self.panel) if self.k else 0
        self.near = self._temp("rows", TensorType(self.dtype, (*self.lead, 2, m, self.panel)))  # rows of this panel and of the next
        self.counters = self._temp("drawn", TensorType(i64, (max(self.panels, 1), WORDS)))

    def _temp(self, name: str, type_: TensorType) -> Operand:
        return Operand(type_, Buffer(f"{self.region.name}.{name}", "temp", type_.nbytes), Layout.contiguous(type_.shape))

    def empty(self) -> list[Launch]:
        """No columns (or rows): only the order of rows."""
        if self.m == 0:
            return super().empty()
        w = Matrices("lu", self.region.name, self.lead)
        for i, o in enumerate(self.region.results[:2]):
            w.write(f"y{i}", o)
        order = w.write("order", self.region.results[2])
        at = w.at(w.b.pid)
        with w.b.loop(0, self.m) as loop:
            w.b.store(order, (*at, loop.index), w.b.from_index(loop.index, i32))
        return [w.call.finish(product(self.lead))]

    def steps(self) -> list[Launch]:
        out = [copy_launch(f"{self.region.name}.copy", self.a, self.out, self.target), self.factor(self.out, 0)]
        return out + [step for k0 in range(0, self.k, self.panel) if (step := self._step(k0)) is not None]

    def factor(self, source: Operand, k0: int) -> Launch:
        """The first panel, or the whole matrix."""
        w = Matrices("lu", self.region.name, self.lead)
        b = w.b
        a = w.read("a", source)
        out, pivots, order = (w.write(s, o) for s, o in zip(("lu", "pivots", "order"), self.region.results, strict=True))
        near = None if source is self.a else w.write("near", self.near)
        error = w.call.error() if self._checks else None
        first, rows, count = (w.call.word(s, v) for s, v in (("first", 0), ("rows", self.m), ("count", min(self.panel, self.k))))
        if near is not None:
            counters, panels = w.write("drawn", self.counters), w.call.word("panels", self.panels)
            with b.if_(b.compare("eq", b.pid, 0)):
                clear(b, counters, panels)
        at = w.at(b.pid)
        with b.loop(0, rows) as loop:
            b.store(order, (*at, loop.index), b.from_index(loop.index, i32))
        c = Columns(b, self.dtype, self.panel, self.m, self.width)
        self.take(c, a, at, first, rows, count, symmetric=False)
        factor_panel(w, c, pivots, order, error, at, b.pid, first, rows, count, self.m)
        self.give(c, rows, count, first, [(out, at, first), *([] if near is None else [(near, [*at, 0], first)])], lower=False)
        flops = self.flops if near is None else product(self.lead) * self.m * self.panel**2
        return w.call.finish(product(self.lead), flops=flops, bytes_=self.a.type.nbytes * 2)

    @property
    def _checks(self) -> bool:
        return self.region.op(Lu).check

    def _step(self, k0: int) -> Launch | None:
        """What is left after a panel. Item 0 of a matrix: the columns of the next panel, and that panel; then blocks of columns behind
        them, then those before the panel, which only exchange rows."""
        count = min(self.panel, self.k - k0)
        behind = k0 + count
        before, after = -(-k0 // self.tile), -(-(self.n - behind) // self.tile)
        near = min(-(-self.panel // self.tile), after)
        items = min(near, 1) + after - near + before
        if items == 0:
            return None
        w = Matrices("lu_step", f"{self.region.name}.step{k0}", self.lead)
        b = w.b
        lu, pivots, order = (w.change(s, o) for s, o in zip(("lu", "pivots", "order"), self.region.results, strict=True))
        rows_near, counters = w.change("near", self.near), w.change("drawn", self.counters)
        error = w.call.error() if self._checks else None
        first, depth, rows, columns = (w.call.word(s, v) for s, v in (("first", k0), ("depth", count), ("m", self.m), ("n", self.n)))
        here, ahead = w.call.word("here", k0 // self.panel % 2), w.call.word("ahead", max(0, min(self.panel, self.k - behind)))
        blocks, left, per = w.call.word("blocks", after), w.call.word("ahead_blocks", near), w.call.word("items", items)
        number, total = w.call.word("number", k0 // self.panel), w.call.word("total", product(self.lead) * items)
        upper = b.scratch(self.dtype, (self.panel, self.tile))  # negated
        c = Columns(b, self.dtype, self.panel, self.m, self.width)

        def item(which: Ix | int) -> None:
            own, matrix = which % per, which // per
            at = w.at(matrix)
            later = b.minimum(own, 1)
            begin = later * (left + own - b.minimum(left, 1))  # its blocks, counted from behind the panel; those before it follow
            end = (1 - later) * left + later * b.minimum(begin + 1, blocks)
            with b.loop(begin, end) as block:
                start = first + depth + block.index * self.tile
                _exchange(w, lu, pivots, at, first, depth, start, columns - start, self.tile)
                self._update(w, lu, rows_near, at, here, first, depth, rows, start, columns - start, upper)
            with b.if_(b.compare("ge", begin, blocks)):
                start = (begin - blocks) * self.tile
                _exchange(w, lu, pivots, at, first, depth, start, first - start, self.tile)
            with b.if_(b.compare("lt", own, b.minimum(ahead, 1))):  # item 0, and a panel to come
                next_, height = first + depth, rows - first - depth
                self.take(c, lu, at, next_, height, ahead, symmetric=False)
                factor_panel(w, c, pivots, order, error, at, matrix, next_, height, ahead, self.m)
                self.give(c, height, ahead, next_, [(lu, at, next_), (rows_near, [*at, 1 - here], 0)], lower=False)

        draw(b, counters, number, total, item)
        size = product(self.lead) * (self.m - behind) * (self.n - behind)
        programs = minimum(product(self.lead), 1) * GRID  # without a matrix nobody has cleared the counters
        return w.call.finish(programs, flops=2 * count * size, bytes_=2 * size * self.dtype.itemsize)

    def _update(self, w: Matrices, lu: View, near: View, at: list[Ix | int], here: Ix, first: Ix, depth: Ix, rows: Ix, start: Ix | int,
                limit: Ix | int, upper: View) -> None:
        """A block of columns behind a panel: solved with its triangle, then its product with the panel is subtracted."""
        b, place = w.b, [*at, here]
        with b.loop(0, depth) as step:
            row = first + step.index
            with b.loop(0, step.index, 1, [b.load(lu, (*at, row, start), (self.tile,), limit=(limit,))]) as loop:
                factor = b.load(near, (*place, row, loop.index), ())
                loop.next(b.fma(factor, b.load(upper, (loop.index, 0), (self.tile,)), loop.carried[0]))
            b.store(lu, (*at, row, start), loop.results[0], limit=(limit,))
            b.store(upper, (step.index, 0), -loop.results[0])
        self.multiply(w, lu, at, (first + depth, rows), (near, place, 0), upper, depth, start, limit)


def _exchange(w: Matrices, lu: View, pivots: View, at: list[Ix | int], first: Ix, depth: Ix, start: Ix | int, limit: Ix | int,
              width: int) -> None:
    """A panel's exchanges of rows in a block of columns."""
    b = w.b
    with b.loop(0, depth) as step:
        here, there = first + step.index, b.to_index(b.load(pivots, (*at, first + step.index), ()))
        with b.if_(b.compare("ne", there, here)):
            x, y = (b.load(lu, (*at, row, start), (width,), limit=(limit,)) for row in (here, there))
            b.store(lu, (*at, here, start), y, limit=(limit,))
            b.store(lu, (*at, there, start), x, limit=(limit,))
