"""Cholesky factorisations, by panels of columns.

Per panel two launches. The first factors it: one program a matrix, the panel's columns in local memory, where every loop runs along
registers. The second brings the rest up to date: one program per block of columns, in register tiles. A matrix of few columns is one
panel. The order of all sums depends on the sizes alone.
"""

from __future__ import annotations

from ...core.dims import product
from ...ops.linalg.factors import Cholesky as CholeskyOp
from ..call import report
from ..launch import Launch
from ..region import Operand
from .factor_panels import Blocked
from .matrices import NOT_POSITIVE, Columns, Matrices


class Cholesky(Blocked):
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
        error = w.call.error() if self.region.op(CholeskyOp).check else None
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
