"""LU and Cholesky factorisations of matrices, by panels of columns.

Per panel two launches. The first factors it: one program a matrix, the panel's columns in local memory, where every loop runs along
registers. The second brings the rest up to date: one program per block of columns, which exchanges rows, solves with the panel's triangle
and multiplies with the panel in register tiles. A matrix of few columns is one panel. The order of all sums depends on the sizes alone.
"""

from __future__ import annotations

from ..core.dims import product
from ..core.dtypes import i32, i64
from ..core.target_spec import TargetSpec
from ..ops.linalg import Lu as LuOp
from ..ops.linalg_factors import Cholesky as CholeskyOp
from ..tile.builder import Ix, Tile, View
from .call import report
from .copies import copy_launch
from .launch import Launch
from .matrices import NOT_POSITIVE, SINGULAR, Columns, Matrices, nothing, padded, swap, tile_width, vector
from .region import Operand, Region
from .template import Reason, Template, alone

PANEL = 32
ALONE = 48  # matrices with up to so many columns are one panel
ROWS = 6  # of a register tile


class Factor(Template):
    key = "factor"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, LuOp, CholeskyOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None
        m, n = region.operands[0].type.shape[-2:]
        assert isinstance(m, int) and isinstance(n, int)
        job = _Lu(region, target, m, n) if isinstance(region.anchor.op, LuOp) else _Cholesky(region, target, m, n)
        return job.launches()


class _Blocked:
    """A factorisation in place in its first result."""

    def __init__(self, region: Region, target: TargetSpec, m: int, n: int) -> None:
        assert region.anchor is not None
        self.region, self.target, self.m, self.n, self.k = region, target, m, n, min(m, n)
        self.a, self.out = region.operands[0], region.results[0]
        self.lead = self.a.type.shape[:-2]
        self.dtype = self.a.type.dtype
        self.width, self.tile = vector(self.dtype, target), tile_width(self.dtype, target)
        self.panel = self.k if self.k <= ALONE else PANEL
        self.flops = region.anchor.op.flops(self.a.type)

    def launches(self) -> list[Launch]:
        if self.k == 0:
            return self.empty()
        if self.k <= ALONE and self.n == self.k:
            return [self.factor(self.a, 0)]
        out = [*self.begin()]
        steps = range(0, self.k, self.panel)
        for k0 in steps:
            out.append(self.factor(self.out, k0))
            rest = self.update(k0)
            out += [] if rest is None else [rest]
        return out

    def empty(self) -> list[Launch]:
        return nothing(self.region.name, self.region.results)

    def begin(self) -> list[Launch]:
        raise NotImplementedError

    def factor(self, source: Operand, k0: int) -> Launch:
        raise NotImplementedError

    def update(self, k0: int) -> Launch | None:
        raise NotImplementedError

    def take(self, c: Columns, a: View, at: list[Ix | int], first: Ix, rows: Ix, count: Ix, *, symmetric: bool) -> None:
        """The panel's columns from the rows of a (or of its symmetric part), in tiles that are turned; zeros behind them."""
        b, width = c.b, self.width
        with b.loop(0, rows + width, width) as loop:
            for c0 in range(0, self.panel, width):
                here, left = (*at, first + loop.index, first + c0), (rows - loop.index, count - c0)
                tile = b.transpose(b.load(a, here, (width, width), limit=left))
                if symmetric:
                    tile = (tile + b.load(a, (*at, first + c0, first + loop.index), (width, width), limit=left[::-1])) * 0.5
                b.store(c.view, (c0, loop.index), tile, limit=(left[1], None))

    def give(self, c: Columns, out: View, at: list[Ix | int], first: Ix, rows: Ix, count: Ix, *, lower: bool) -> None:
        """The panel's columns back into rows; with zeros above the diagonal where `lower`."""
        b, width = c.b, self.width
        with b.loop(0, rows, width) as loop:
            for c0 in range(0, self.panel, width):
                left = (rows - loop.index, count - c0)
                tile = b.transpose(b.load(c.view, (c0, loop.index), (width, width), limit=(left[1], None)))
                if lower:
                    row = b.iota((width, 1), 0) + b.from_index(loop.index)
                    tile = b.select(b.cmp("ge", row, b.iota((1, width), 1) + b.full((), c0, i64)), tile, 0.0)
                b.store(out, (*at, first + loop.index, first + c0), tile, limit=left)

    def multiply(self, w: Matrices, view: View, at: list[Ix | int], rows: tuple[Ix | int, Ix | int], factors: tuple[View, Ix | int],
                 right: View, depth: Ix | int, column: Ix | int, limit: Ix | int) -> None:
        """view[rows, column …] += factors[rows, first …] @ right, in register tiles."""
        b, (start, stop), (left, first) = w.b, rows, factors

        def tile(row: Ix | int, height: int) -> None:
            acc = b.load(view, (*at, row, column), (height, self.tile), limit=(None, limit))
            whole = depth // 4 * 4

            def step(q: Ix | int, total: Tile) -> Tile:
                a = b.load(left, (*at, row, first + q), (height, 1))
                return b.mma(a, b.load(right, (q, 0), (1, self.tile)), total)

            with b.loop(0, whole, 4, [acc]) as loop:
                total = loop.carried[0]
                for u in range(4):
                    total = step(loop.index + u, total)
                loop.next(total)
            with b.loop(whole, depth, 1, [loop.results[0]]) as tail:
                tail.next(step(tail.index, tail.carried[0]))
            b.store(view, (*at, row, column), tail.results[0], limit=(None, limit))

        middle = start + (stop - start) // ROWS * ROWS
        with b.loop(start, middle, ROWS) as main:
            tile(main.index, ROWS)
        with b.loop(middle, stop, 1) as rest:
            tile(rest.index, 1)


class _Lu(_Blocked):
    def begin(self) -> list[Launch]:
        return [copy_launch(f"{self.region.name}.copy", self.a, self.out, self.target)]

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

    def factor(self, source: Operand, k0: int) -> Launch:
        w = Matrices("lu", self.region.name if k0 == 0 else f"{self.region.name}.panel{k0}", self.lead)
        b = w.b
        a = w.read("a", source)
        out = w.write("lu", self.out)
        pivots = w.write("pivots", self.region.results[1])
        order = (w.change if k0 else w.write)("order", self.region.results[2])
        assert self.region.anchor is not None and isinstance(self.region.anchor.op, LuOp)
        error = w.call.error() if self.region.anchor.op.check else None
        first, rows, count = w.call.word("first", k0), w.call.word("rows", self.m - k0), w.call.word("count", min(self.panel, self.k - k0))
        at = w.at(b.pid)
        c = Columns(b, self.dtype, self.panel, self.m, self.width)
        self.take(c, a, at, first, rows, count, symmetric=False)
        with b.if_(b.compare("eq", first, 0)), b.loop(0, rows) as loop:
            b.store(order, (*at, loop.index), b.from_index(loop.index, i32))
        with b.loop(0, count) as step:
            j = step.index
            p = b.minimum(self._largest(c, j, rows), rows - 1)  # NaN is nowhere found
            b.store(pivots, (*at, first + j), b.from_index(first + p, i32))
            swap(b, order, [*at, first + j], [*at, first + p])
            with b.loop(0, count) as column:
                swap(b, c.view, [column.index, j], [column.index, p])
            pivot = c.one(j, j)
            zero = b.cmp("eq", pivot, 0.0)
            if error is not None:
                with b.if_(zero):
                    report(b, error, SINGULAR, b.pid, first + j)
            safe = b.select(zero, b.full((), 1.0, self.dtype), pivot)
            c.each(j + 1, rows, lambda i: c.put(j, i, c.get(j, i) / safe))
            with b.loop(j + 1, count) as column:
                c.add(column.index, -c.one(column.index, j), c, j, j + 1, rows)
        self.give(c, out, at, first, rows, count, lower=False)
        return w.call.finish(product(self.lead), flops=self.flops if k0 == 0 else 0, bytes_=self.a.type.nbytes * 2)

    def _largest(self, c: Columns, j: Ix, rows: Ix | int) -> Ix:
        """Where the column is largest from row j on; the first of several."""
        b, width = c.b, c.width
        with b.loop(j, rows, width, [b.full((width,), 0.0, self.dtype)]) as loop:
            loop.next(b.binary("max", loop.carried[0], b.unary("abs", c.get(j, loop.index))))
        top = b.reduce("max", loop.results[0])
        far = padded(self.m, width)
        with b.loop(j, rows, width, [b.full((width,), far, i64)]) as loop:
            places = b.iota((width,), 0) + b.from_index(loop.index)
            hit = b.cmp("eq", b.unary("abs", c.get(j, loop.index)), top)
            loop.next(b.binary("min", loop.carried[0], b.select(hit, places, far)))
        return b.to_index(b.reduce("min", loop.results[0]))

    def update(self, k0: int) -> Launch | None:
        count = min(self.panel, self.k - k0)
        behind = k0 + count
        before, after = -(-k0 // self.tile), -(-(self.n - behind) // self.tile)
        if before + after == 0:
            return None
        w = Matrices("lu_update", f"{self.region.name}.update{k0}", self.lead)
        b = w.b
        lu, pivots = w.change("lu", self.out), w.read("pivots", self.region.results[1])
        first, depth, rows, columns = (w.call.word(s, v) for s, v in (("first", k0), ("depth", count), ("m", self.m), ("n", self.n)))
        left, blocks = w.call.word("left", before), w.call.word("blocks", before + after)
        block = b.pid % blocks
        at = w.at(b.pid // blocks)
        later = b.minimum(b.maximum(block - left + 1, 0), 1)  # 1: behind the panel, 0: before it
        start = (1 - later) * (block * self.tile) + later * (first + depth + (block - left) * self.tile)
        limit = (1 - later) * first + later * columns - start
        with b.loop(0, depth) as step:
            p = b.to_index(b.load(pivots, (*at, first + step.index), ()))
            with b.if_(b.compare("ne", p, first + step.index)):
                x = b.load(lu, (*at, first + step.index, start), (self.tile,), limit=(limit,))
                y = b.load(lu, (*at, p, start), (self.tile,), limit=(limit,))
                b.store(lu, (*at, first + step.index, start), y, limit=(limit,))
                b.store(lu, (*at, p, start), x, limit=(limit,))
        with b.if_(b.compare("eq", later, 1)):
            upper = b.scratch(self.dtype, (self.panel, self.tile))  # negated
            with b.loop(0, depth) as step:
                row = first + step.index
                with b.loop(0, step.index, 1, [b.load(lu, (*at, row, start), (self.tile,), limit=(limit,))]) as loop:
                    factor = b.load(lu, (*at, row, first + loop.index), ())
                    loop.next(b.fma(factor, b.load(upper, (loop.index, 0), (self.tile,)), loop.carried[0]))
                b.store(lu, (*at, row, start), loop.results[0], limit=(limit,))
                b.store(upper, (step.index, 0), -loop.results[0])
            self.multiply(w, lu, at, (first + depth, rows), (lu, first), upper, depth, start, limit)
        return w.call.finish(product(self.lead) * (before + after), bytes_=self.a.type.nbytes * 2)


class _Cholesky(_Blocked):
    def begin(self) -> list[Launch]:
        return [self._symmetric()]

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
        assert self.region.anchor is not None and isinstance(self.region.anchor.op, CholeskyOp)
        error = w.call.error() if self.region.anchor.op.check else None
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
        self.give(c, out, at, first, rows, count, lower=True)
        return w.call.finish(product(self.lead), flops=self.flops if k0 == 0 else 0, bytes_=self.a.type.nbytes * 2)

    def update(self, k0: int) -> Launch | None:
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
        self.multiply(w, low, at, (start, n), (low, first), right, depth, start, limit)
        return w.call.finish(product(self.lead) * blocks, bytes_=self.a.type.nbytes)
