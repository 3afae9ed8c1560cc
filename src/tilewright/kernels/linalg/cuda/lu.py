"""LU and Cholesky factorisations and triangular systems on a GPU, by panels of columns.

A panel is factored by one block a matrix, a row a thread, the panel's columns in registers. Rows are not moved: each thread knows its row's
place, and the pivot's thread leaves its row in shared memory, from which all take it. What is left is brought up to date by blocks of
rows and columns, a column a thread: each solves the panel's triangle for its columns and takes the panel's products off its rows.
Exchanges happen on the way, since every step reads one copy of the matrix and writes another; the last one writes the result.

Cholesky's factor is that of LU without exchanges, its columns times the roots of the pivots. Triangular systems are the same updates
without a panel, the right sides in memory that each step changes. The order of all sums depends on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dims import Dim, product
from ....core.dtypes import f32, f64, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.linalg.factors import Cholesky
from ....ops.linalg.systems import Lu, TriangularSolve
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ...call import report
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Buffer, Launch
from ...region import Operand, Region
from ...template import Reason, Template
from ..matrices import NOT_POSITIVE, SINGULAR, Matrices

PANEL = 32  # columns in registers, and rows of a block that is brought up to date
HEIGHT = 1024  # rows, hence threads, of the tallest panel of so many columns; taller ones have half as many
TALLEST = 4096  # rows of a matrix
FLIGHT = 8  # rows that are read before the first of them is written
COLUMNS = 64  # threads of a block of rows that is brought up to date, a column each
BLOCK = 128  # threads of a block of small matrices


def _real(region: Region) -> bool:
    shape = region.results[0].type.shape[-2:]
    return region.results[0].type.dtype in (f32, f64) and all(isinstance(d, int) and d > 0 for d in shape)


def _power(n: int) -> int:
    return max(4, 1 << (n - 1).bit_length())


def _temp(name: str, type_: TensorType) -> Operand:
    return Operand(type_, Buffer(name, "temp", type_.nbytes), Layout.contiguous(type_.shape))


def _placed(w: Matrices, threads: int, programs: Dim, flops: Dim, bytes_: Dim) -> Launch:
    launch = w.call.finish(programs, flops=flops, bytes_=bytes_)
    launch.kernel = on_threads(launch.kernel, threads, 1 if threads > WARP else BLOCK // threads)
    return launch


class CudaFactor(Template):
    key = "cuda_factor"
    serves = (Lu, Cholesky)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        ok = _real(region) and region.operands[0].type.shape[-2] <= TALLEST
        return None if ok else Reason(f"registers hold panels of up to {TALLEST} rows of real matrices")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return _Factor(region).launches()


class _Factor:
    def __init__(self, region: Region) -> None:
        self.region, self.a, self.out = region, region.operands[0], region.results[0]
        *lead, m, n = self.a.type.shape
        assert isinstance(m, int) and isinstance(n, int)
        self.m, self.n, self.lead, self.k, self.dtype = m, n, tuple(lead), min(m, n), self.a.type.dtype
        self.symmetric = isinstance(region.node.op, Cholesky)
        self.error: bool = region.node.op.check  # type: ignore[attr-defined]
        self.height = _power(m)
        room = PANEL if self.height < HEIGHT else PANEL * HEIGHT * 4 // (self.height * self.dtype.itemsize)
        self.panel = min(self.k, room)
        self.came = _temp(f"{region.name}.came", TensorType(i32, (*lead, m)))  # the row that a step brings to each place

    def launches(self) -> list[Launch]:
        name, out = self.region.name, list[Launch]()
        goals = [_temp(f"{name}.factors", self.out.type) if self.symmetric else self.out, _temp(f"{name}.spare", self.out.type)]
        orders = [] if self.symmetric else [self.region.results[2], _temp(f"{name}.order", self.came.type)]
        here, order = self.a, None
        starts = range(0, self.k, self.panel)
        for i, k0 in enumerate(starts):
            turn = (len(starts) - 1 - i) % 2  # the last step writes the result
            out.append(self.factor(k0, here, goals[turn], order, orders[turn] if orders else None))
            if self.panel < self.n:
                out.append(self.update(k0, here, goals[turn]))
            here, order = goals[turn], orders[turn] if orders else None
        return [*out, self.roots(here)] if self.symmetric else out

    def factor(self, k0: int, source: Operand, goal: Operand, order: Operand | None, new_order: Operand | None) -> Launch:
        count = min(self.panel, self.k - k0)
        w = Matrices("lu_panel", self.region.name if k0 == 0 else f"{self.region.name}.panel{k0}", self.lead)
        b, dtype = w.b, self.dtype
        a, out = (Spots(w.call, s, dtype, o.buffer, o.layout, 2, write=s == "lu") for s, o in (("a", source), ("lu", goal)))
        error = w.call.error() if self.error else None
        first, rows = w.call.word("first", k0), w.call.word("rows", self.m - k0)
        at = w.at(b.pid)
        corner = [*at, first, first]
        row = b.iota((self.height,), 0, i32)
        here, number = b.cmp("lt", row, b.from_index(rows, i32)), [b.full(row.shape, j, i32) for j in range(count)]
        columns = [a.get(corner, row, j, inside=here) for j in number]
        if self.symmetric and source is self.a:
            columns = [(x + a.get(corner, j, row, inside=here)) * 0.5 for x, j in zip(columns, number, strict=True)]
        place, shared = row, [b.scratch(dtype, (2, 1), space="shared") for _ in number]  # one each: no barrier stands between them
        pivots = None if self.symmetric else w.write("pivots", self.region.results[1])
        for j in range(count):
            p: Tile = b.full((), j, i32)
            if pivots is not None:
                p = self._largest(b, columns[j], b.binary("and", here, b.cmp("ge", place, j)), place, b.from_index(rows - 1, i32))
                b.store(pivots, (*at, first + j), p + b.from_index(first, i32))
            mine = b.cmp("eq", place, p)
            for k in range(j, count):
                b.scatter(shared[k], (j % 2, 0), 1, b.select(mine, number[0], -1), columns[k])
            pivot = b.load(shared[j], (j % 2, 0), ())
            bad = b.unary("not", b.cmp("gt", pivot, 0.0)) if self.symmetric else b.cmp("eq", pivot, 0.0)
            if error is not None:
                with b.if_(bad):
                    report(b, error, NOT_POSITIVE if self.symmetric else SINGULAR, b.pid, first + j)
            if not self.symmetric:
                place = b.select(mine, j, b.select(b.cmp("eq", place, j), p, place))
                pivot = b.select(bad, b.full((), 1.0, dtype), pivot)
            below = b.cmp("gt", place, j)
            columns[j] = b.select(below, columns[j] / pivot, columns[j])
            for k in range(j + 1, count):
                columns[k] = b.select(below, b.fma(-columns[j], b.load(shared[k], (j % 2, 0), ()), columns[k]), columns[k])
        for x, which in zip(columns, number, strict=True):
            out.put(corner, x, place, which, inside=here)
        if new_order is not None:
            above, top = b.cmp("lt", row, b.from_index(first, i32)), [*at, 0]
            came, new = (Spots(w.call, s, i32, o.buffer, o.layout, write=True) for s, o in (("came", self.came), ("new", new_order)))
            came.put([*at, first], row + b.from_index(first, i32), place, inside=here)
            came.put(top, row, row, inside=above)
            old = None if order is None else Spots(w.call, "order", i32, order.buffer, order.layout)
            new.put([*at, first], row if old is None else old.get([*at, first], row, inside=here), place, inside=here)
            if old is not None:
                new.put(top, old.get(top, row, inside=above), row, inside=above)
        threads = min(self.height, HEIGHT)
        size = product(self.lead) * self.m * count
        return _placed(w, threads, product(self.lead), size * count, 2 * size * dtype.itemsize)

    @staticmethod
    def _largest(b: KernelBuilder, column: Tile, free: Tile, place: Tile, last: Tile) -> Tile:
        """The place of the largest element of the free rows; the first of several, the last where NaN hides it."""
        size = b.select(free, b.unary("abs", column), -1.0)
        hit = b.binary("and", b.cmp("eq", size, b.reduce("max", size)), free)
        return b.binary("min", b.reshape(b.reduce("min", b.select(hit, place, TALLEST)), ()), last)

    def update(self, k0: int, source: Operand, goal: Operand) -> Launch:
        """Rows in their new places; behind the panel minus its product with what its rows are there, which this solves for first."""
        count, threads = min(self.panel, self.k - k0), min(_power(self.n), COLUMNS)
        w = Matrices("lu_update", f"{self.region.name}.update{k0}", self.lead)
        b = w.b
        a, lu = w.read("a", source), w.change("lu", goal)
        came = None if self.symmetric else w.read("came", self.came)
        out = Spots(w.call, "out", self.dtype, goal.buffer, goal.layout, write=True)
        first, rows, columns = w.call.word("first", k0), w.call.word("m", self.m), w.call.word("n", self.n)
        strips, blocks = -(-self.n // threads), -(-self.m // PANEL)
        at = w.at(b.pid // (strips * blocks))
        start, top = b.pid % strips * threads, b.pid // strips % blocks * PANEL
        column = b.iota((threads,), 0, i32)
        there = column + b.from_index(start, i32)
        inside, behind = b.cmp("lt", there, b.from_index(columns, i32)), b.cmp("ge", there, b.from_index(first + count, i32))
        written = b.binary("and", inside, b.binary("or", behind, b.cmp("lt", there, b.from_index(first, i32))))
        limit = (columns - start,)

        def read(row: Ix | int) -> Tile:
            if came is not None:
                row = b.to_index(b.load(came, (*at, row), ()))
            x = b.load(a, (*at, row, start), (threads,), limit=limit)
            if self.symmetric and source is self.a:
                x = (x + b.load(a, (*at, start, row), (threads,), limit=limit, axes=(len(at),))) * 0.5
            return x

        def put(row: Ix | int, x: Tile, where: Tile) -> None:
            out.put([*at, row, start], x, column, inside=where)

        each_row(b, top, b.minimum(top + PANEL, first), rows, lambda row: (read(row), inside), put)
        with b.if_(b.compare("gt", top + PANEL, first)):
            given = [read(first + k) for k in range(count)]
            solved = substituted(b, lu, at, first, given, unit=True)
            with b.if_(b.compare("le", top, first)):
                for k in range(count):
                    put(first + k, b.select(behind, solved[k], given[k]), written)

            def taken(row: Ix | int) -> tuple[Tile, Tile]:
                x = read(row)
                return b.select(behind, reduced(b, lu, at, row, first, solved, x), x), written

            each_row(b, b.maximum(top, first + count), b.minimum(top + PANEL, rows), rows, taken, put)
        size = product(self.lead) * self.m * self.n
        return _placed(w, threads, product(self.lead) * strips * blocks, 2 * count * product(self.lead) * (self.m - k0) * (self.n - k0),
                       2 * size * self.dtype.itemsize)

    def roots(self, factors: Operand) -> Launch:
        """Columns of L times the roots of the pivots, zeros above: one program per row and strip of columns."""
        threads = min(_power(self.n), COLUMNS)
        w = Matrices("cholesky_roots", f"{self.region.name}.roots", self.lead)
        b, strips = w.b, -(-self.n // threads)
        lu, out = Spots(w.call, "lu", self.dtype, factors.buffer, factors.layout, 2), w.write("l", self.out)
        n = w.call.word("n", self.n)
        at, row, start = w.at(b.pid // (n * strips)), b.pid // strips % n, b.pid % strips * threads
        column, here = b.iota((threads,), 0, i32) + b.from_index(start, i32), b.broadcast(b.from_index(row, i32), (threads,))
        low = b.cmp("le", column, here)
        root = b.unary("sqrt", lu.get([*at, 0, 0], column, column, inside=low))
        x = b.select(b.cmp("eq", column, here), 1.0, lu.get([*at, 0, 0], here, column, inside=low)) * root
        b.store(out, (*at, row, start), b.select(low, x, 0.0), limit=(n - start,))
        return _placed(w, threads, product(self.lead) * self.n * strips, 0, 2 * self.out.type.nbytes)


def each_row(b: KernelBuilder, start: Ix | int, stop: Ix | int, rows: Ix, take: Callable[[Ix | int], tuple[Tile, Tile]],
             put: Callable[[Ix | int, Tile, Tile], None]) -> None:
    """put(row, *take(row)) for rows of a matrix, several of them in flight: no row waits for what another one writes."""
    with b.loop(start, stop, FLIGHT) as loop:
        found = [take(b.minimum(loop.index + i, rows - 1)) for i in range(FLIGHT)]
        for i, (x, where) in enumerate(found):
            put(b.minimum(loop.index + i, rows - 1), x, b.binary("and", where, b.compare("lt", loop.index + i, stop)))


def reduced(b: KernelBuilder, a: View, at: list[Ix | int], row: Ix | int, first: Ix | int, solved: list[Tile], x: Tile) -> Tile:
    """x minus the product of a row's elements from column `first` on with solved rows."""
    for k, other in enumerate(solved):
        x = b.fma(-b.load(a, (*at, row, first + k), ()), other, x)
    return x


def substituted(b: KernelBuilder, a: View, at: list[Ix | int], first: Ix | int, given: list[Tile], *, unit: bool) -> list[Tile]:
    """Rows solved with the triangle at (first, first), one after the other."""
    solved: list[Tile] = []
    for k, x in enumerate(given):
        x = reduced(b, a, at, first + k, first, solved, x)
        solved.append(x if unit else x / b.load(a, (*at, first + k, first + k), ()))
    return solved


class CudaTriangularSolve(Template):
    key = "cuda_triangular_solve"
    serves = (TriangularSolve,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return None if _real(region) else Reason("real systems of known sizes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (a, rhs), out = region.op(TriangularSolve), region.operands, region.results[0]
        *lead, n, columns = out.type.shape
        assert isinstance(n, int) and isinstance(columns, int)
        rank, work = len(lead), _temp(f"{region.name}.work", out.type)
        matrix, given, solution = a.layout.expand((*lead, n, n)), rhs.layout.expand(out.type.shape), out.layout
        if op.transpose:
            matrix = matrix.permute((*range(rank), rank + 1, rank))
        if op.upper != op.transpose:  # from the last row up: a lower system whose axes run backwards
            matrix = matrix.flip(rank).flip(rank + 1)
            given, solution = given.flip(rank), solution.flip(rank)
        layouts = (matrix, given, solution)
        return [_solve_rows(region, k0, work, layouts) for k0 in range(0, n, PANEL)]


def _solve_rows(region: Region, k0: int, work: Operand, layouts: tuple[Layout, Layout, Layout]) -> Launch:
    """Rows of the solution, and what they leave of the right sides below them."""
    op, (a, rhs), out = region.op(TriangularSolve), region.operands, region.results[0]
    *lead, n, columns = out.type.shape
    assert isinstance(n, int) and isinstance(columns, int)
    count, threads = min(PANEL, n - k0), min(_power(columns), COLUMNS)
    blocks, strips, cases = max(1, -(-(n - k0 - count) // PANEL)), -(-columns // threads), product(lead)
    w = Matrices("triangular_solve", region.name if k0 == 0 else f"{region.name}.rows{k0}", tuple(lead))
    b = w.b
    m, x = w.read("a", a, layouts[0]), w.write("x", out, layouts[2])
    before = w.read("b", rhs, layouts[1]) if k0 == 0 else w.read("b", work)
    first, rows, width, per = (w.call.word(s, v) for s, v in (("first", k0), ("n", n), ("columns", columns), ("blocks", blocks)))
    at, block, start = w.at(b.pid // (per * strips)), b.pid // strips % per, b.pid % strips * threads
    limit, column = (width - start,), b.iota((threads,), 0, i32)
    given = [b.load(before, (*at, first + k, start), (threads,), limit=limit) for k in range(count)]
    solved = substituted(b, m, at, first, given, unit=op.unit)
    with b.if_(b.compare("eq", block, 0)):
        for k, found in enumerate(solved):
            b.store(x, (*at, first + k, start), found, limit=limit)
    if n - k0 > count:
        after = Spots(w.call, "work", out.type.dtype, work.buffer, work.layout, write=True)
        inside = b.cmp("lt", column, b.from_index(width - start, i32))
        top = first + count + block * PANEL
        each_row(b, top, b.minimum(top + PANEL, rows), rows,
                 lambda row: (reduced(b, m, at, row, first, solved, b.load(before, (*at, row, start), (threads,), limit=limit)), inside),
                 lambda row, found, where: after.put([*at, row, start], found, column, inside=where))
    size = cases * columns * (n - k0)
    return _placed(w, threads, cases * blocks * strips, 2 * size * count, 2 * size * out.type.dtype.itemsize)
