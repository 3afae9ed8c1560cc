"""QR by Householder reflections. Larger matrices are taken by panels, smaller ones by one program each, their columns in
local memory, so that every loop runs along registers.

Reflections are applied column by column, first to the columns behind, then (last first) to the columns of the identity, which gives Q.
Signs are LAPACK's: the diagonal of R has the sign opposite to the element it replaces, and a column that is zero below the diagonal is
left as it is. Matrices without rows or columns take no launch but for the Q of a matrix without columns.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.linalg.factors import Geqrf as GeqrfOp
from ...ops.linalg.factors import Qr as QrOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Buffer, Launch
from ..loops import in_blocks
from ..pointwise.copies import copy_launch
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .matrices import Columns, Matrices, nothing, reflection, temp_like, vector

# --- QR of larger matrices by panels of columns: the product of a panel's reflections is I - V T Vᵀ, so that all but the panel itself
# is products in register tiles.

PANEL = 32
ROWS = 8  # rows of a register tile

Part = Callable[[Ix | int, Ix | int, int], Tile]


class BlockedQr:
    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.target, self.a = region, target, region.operands[0]
        *lead, m, n = self.a.type.shape
        wide = region.results[0].type.shape[-1]
        assert isinstance(m, int) and isinstance(n, int) and isinstance(wide, int)
        self.lead, self.m, self.n, self.wide, self.k = tuple(lead), m, n, wide, min(m, n)
        self.dtype = self.a.type.dtype
        self.width = vector(self.dtype, target)
        self.tile = 2 * self.width
        self.panels = -(-self.k // PANEL)
        self.work = temp_like(self.a, f"{region.name}.work")
        self.v = self._temp("v", (m, self.panels * PANEL))
        self.t = self._temp("t", (self.panels * PANEL, PANEL))  # the triangle of each panel, transposed

    def _temp(self, name: str, shape: tuple[int, int]) -> Operand:
        type_ = TensorType(self.dtype, (*self.lead, *shape))
        return Operand(type_, Buffer(f"{self.region.name}.{name}", "temp", type_.nbytes), Layout.contiguous(type_.shape))

    def launches(self) -> list[Launch]:
        out = [copy_launch(f"{self.region.name}.copy", self.a, self.work, self.target)]
        for k0 in range(0, self.k, PANEL):
            out.append(self._factor(k0))
            if k0 + PANEL < self.n:
                out.append(self._update(k0))
        return [*out, self._upper(), self._q()]

    def _factor(self, k0: int) -> Launch:
        w = Matrices("qr_panel", f"{self.region.name}.panel{k0}", self.lead)
        b, width, dtype = w.b, self.width, self.dtype
        work, vs, ts = w.change("work", self.work), w.write("v", self.v), w.write("t", self.t)
        first, rows, count = w.call.word("first", k0), w.call.word("rows", self.m - k0), w.call.word("count", min(PANEL, self.k - k0))
        inside = w.call.word("inside", min(PANEL, self.n - k0))
        at = w.at(b.pid)
        c, v = (Columns(b, dtype, PANEL, self.m, width) for _ in range(2))
        taus, t = b.scratch(dtype, (PANEL,)), b.scratch(dtype, (PANEL, PANEL))
        with b.loop(0, rows + width, width) as loop:
            for c0 in range(0, PANEL, width):
                here, left = (*at, first + loop.index, first + c0), (rows - loop.index, inside - c0)
                b.store(c.view, (c0, loop.index), b.transpose(b.load(work, here, (width, width), limit=left)))
        with b.loop(0, PANEL) as column:
            v.zero(column.index, rows)
            b.store(t, (column.index, 0), b.full((PANEL,), 0.0, dtype))
        with b.loop(0, count) as step:
            j = step.index
            c.each(j + 1, rows, lambda i: v.put(j, i, c.get(j, i)))
            beta, tau = reflection(b, v, j, c.one(j, j), j, rows)
            b.store(taus, (j,), tau)
            c.set(j, j, beta)
            with b.loop(j + 1, inside) as column:
                c.add(column.index, -(tau * v.dot(j, c, column.index, j, rows)), v, j, j, rows)
            # column j of T: -tau times what the columns before make of their products with this vector
            with b.loop(0, j, 1, [b.full((PANEL,), 0.0, dtype)]) as before:
                s = before.index
                before.next(b.fma(v.dot(j, v, s, j, rows), b.load(t, (s, 0), (PANEL,)), before.carried[0]))
            b.store(t, (j, 0), before.results[0] * -tau)
            b.store(t, (j, j), tau)
        with b.loop(0, rows, width) as loop:
            for c0 in range(0, PANEL, width):
                b.store(vs, (*at, first + loop.index, first + c0), b.transpose(b.load(v.view, (c0, loop.index), (width, width))),
                        limit=(rows - loop.index, None))
        with b.loop(0, count, width) as loop:
            for c0 in range(0, PANEL, width):
                b.store(work, (*at, first + loop.index, first + c0), b.transpose(b.load(c.view, (c0, loop.index), (width, width))),
                        limit=(count - loop.index, inside - c0))
        with b.loop(0, PANEL) as row:
            b.store(ts, (*at, first + row.index, 0), b.load(t, (row.index, 0), (PANEL,)))
        flops = 4 * (self.m - k0) * PANEL * PANEL * product(self.lead)
        return w.call.finish(product(self.lead), flops=flops, bytes_=2 * (self.m - k0) * PANEL * self.dtype.itemsize * product(self.lead))

    def _accumulate(self, b: KernelBuilder, left: Part, right: View, start: Ix | int, stop: Ix | int, row: Ix | int, acc: Tile) -> Tile:
        """acc + left[row …, q] @ right[q] for q from start to stop; `right` lies in local memory."""
        height = acc.shape[0]
        with b.loop(start, stop, 1, [acc]) as loop:
            loop.next(b.mma(left(row, loop.index, height), b.load(right, (loop.index, 0), (1, self.tile)), loop.carried[0]))
        found: Tile = loop.results[0]
        return found

    def _reflect(self, b: KernelBuilder, vs: View, ts: View, at: list[Ix | int], first: Ix | int, rows: Ix, block: View,
                 sums: tuple[View, View], *, transposed: bool) -> None:
        """block[first …] -= V T Vᵀ block[first …] (or with Tᵀ), a block of columns in local memory."""
        rank, (plain, multiplied) = len(at), sums

        def columns_of_v(i: Ix | int, q: Ix | int, height: int) -> Tile:
            return b.load(vs, (*at, q, first + i), (height, 1), axes=(rank + 1, rank))

        def rows_of_v(i: Ix | int, q: Ix | int, height: int) -> Tile:
            return b.load(vs, (*at, i, first + q), (height, 1))

        def of_t(i: Ix | int, q: Ix | int, height: int) -> Tile:
            if transposed:
                return b.load(ts, (*at, first + i, q), (height, 1))
            return b.load(ts, (*at, first + q, i), (height, 1), axes=(rank + 1, rank))

        zero = b.full((ROWS, self.tile), 0.0, self.dtype)
        with b.loop(0, PANEL, ROWS) as loop:
            b.store(plain, (loop.index, 0), self._accumulate(b, columns_of_v, block, first + loop.index, rows, loop.index, zero))
        with b.loop(0, PANEL, ROWS) as loop:
            i = loop.index
            start, stop = (0, i + ROWS) if transposed else (i, PANEL)  # T is a triangle
            b.store(multiplied, (i, 0), -self._accumulate(b, of_t, plain, start, stop, i, zero))

        def add(row: Ix | int, height: int) -> None:
            old = b.load(block, (row, 0), (height, self.tile))
            b.store(block, (row, 0), self._accumulate(b, rows_of_v, multiplied, 0, PANEL, row, old))

        in_blocks(b, first, rows, ROWS, add)

    def _scratch(self, b: KernelBuilder) -> tuple[View, tuple[View, View]]:
        sums = b.scratch(self.dtype, (PANEL, self.tile)), b.scratch(self.dtype, (PANEL, self.tile))
        return b.scratch(self.dtype, (self.m, self.tile)), sums

    def _update(self, k0: int) -> Launch:
        behind = k0 + PANEL
        blocks = -(-(self.n - behind) // self.tile)
        w = Matrices("qr_update", f"{self.region.name}.update{k0}", self.lead)
        b = w.b
        work, vs, ts = w.change("work", self.work), w.read("v", self.v), w.read("t", self.t)
        first, rows, columns = (w.call.word(s, v) for s, v in (("first", k0), ("rows", self.m), ("n", self.n)))
        many = w.call.word("blocks", blocks)
        start = first + PANEL + b.pid % many * self.tile
        at = w.at(b.pid // many)
        block, sums = self._scratch(b)
        limit = (columns - start,)
        with b.loop(first, rows) as row:
            b.store(block, (row.index, 0), b.load(work, (*at, row.index, start), (self.tile,), limit=limit))
        self._reflect(b, vs, ts, at, first, rows, block, sums, transposed=True)
        with b.loop(first, rows) as row:
            b.store(work, (*at, row.index, start), b.load(block, (row.index, 0), (self.tile,)), limit=limit)
        size = product(self.lead) * (self.m - k0) * (self.n - behind)
        return w.call.finish(product(self.lead) * blocks, flops=4 * PANEL * size, bytes_=2 * size * self.dtype.itemsize)

    def _upper(self) -> Launch:
        """R: the upper triangle, one program a row."""
        r = self.region.results[1]
        kept = r.type.shape[-2]
        w = Matrices("qr_upper", f"{self.region.name}.r", self.lead)
        b, width = w.b, self.width
        work, out, columns = w.read("work", self.work), w.write("r", r), w.call.word("n", self.n)
        many, steps = w.call.word("kept", kept), w.call.word("k", self.k)
        row = b.pid % many
        at = w.at(b.pid // many)
        source = b.minimum(row, steps - 1)
        with b.loop(0, columns, width) as loop:
            upper = b.cmp("ge", b.iota((width,), 0) + b.from_index(loop.index), b.from_index(row))
            upper = b.binary("and", upper, b.compare("lt", row, steps))
            x = b.load(work, (*at, source, loop.index), (width,), limit=(columns - loop.index,))
            b.store(out, (*at, row, loop.index), b.select(upper, x, 0.0), limit=(columns - loop.index,))
        return w.call.finish(product(self.lead) * kept, bytes_=2 * r.type.nbytes)

    def _q(self) -> Launch:
        blocks = -(-self.wide // self.tile)
        w = Matrices("qr_q", self.region.name, self.lead)
        b = w.b
        vs, ts, out = w.read("v", self.v), w.read("t", self.t), w.write("q", self.region.results[0])
        rows, columns, panels = (w.call.word(s, v) for s, v in (("rows", self.m), ("n", self.wide), ("panels", self.panels)))
        many = w.call.word("blocks", blocks)
        start = b.pid % many * self.tile
        at = w.at(b.pid // many)
        block, sums = self._scratch(b)
        own = b.iota((self.tile,), 0) + b.from_index(start)
        with b.loop(0, rows) as row:
            hit = b.cmp("eq", own, b.from_index(row.index))
            one, none = b.full((self.tile,), 1.0, self.dtype), b.full((self.tile,), 0.0, self.dtype)
            b.store(block, (row.index, 0), b.select(hit, one, none))
        last = b.minimum(panels, (start + (self.tile - 1)) // PANEL + 1)  # later panels begin behind these columns
        with b.loop(0, last) as back:
            self._reflect(b, vs, ts, at, (last - 1 - back.index) * PANEL, rows, block, sums, transposed=False)
        with b.loop(0, rows) as row:
            b.store(out, (*at, row.index, start), b.load(block, (row.index, 0), (self.tile,)), limit=(columns - start,))
        flops = 2 * self.m * self.wide * self.k * product(self.lead)
        return w.call.finish(product(self.lead) * blocks, flops=flops, bytes_=self.region.results[0].type.nbytes + self.v.type.nbytes)

ALONE = 48  # matrices with more rows and columns are taken by panels


class QrTemplate(Template):
    key = "qr"
    serves = (QrOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a, (q_out, r_out) = region.operands[0], region.results
        *lead, m, n = a.type.shape
        wide = q_out.type.shape[-1]
        assert isinstance(m, int) and isinstance(n, int) and isinstance(wide, int)
        if m == 0 or (n == 0 and wide == 0):
            return nothing(region.name, region.results)
        if min(m, n) > ALONE:
            return BlockedQr(region, target).launches()
        f = _Factored(region, target, "qr")
        b, v, rows, width, at = f.b, f.v, f.rows, f.width, f.at
        qv, rv = f.w.write("q", q_out), f.w.write("r", r_out)
        rank = len(at)
        kept = f.w.call.word("kept", r_out.type.shape[-2])
        with b.loop(0, f.columns) as column, b.loop(0, kept, width) as loop:
            upper = b.cmp("le", b.iota((width,), 0) + b.from_index(loop.index), b.from_index(column.index))
            b.store(rv, (*at, loop.index, column.index), b.select(upper, f.c.get(column.index, loop.index), 0.0), axes=(rank,),
                    limit=(kept - loop.index,))
        q = Columns(b, f.dtype, wide, m, width)
        with b.loop(0, wide) as column:
            i: Ix = column.index
            q.zero(i, rows)
            q.set(i, i, b.full((), 1.0, f.dtype))
            count = b.minimum(i + 1, f.steps)  # later reflections leave this column as it is
            with b.loop(0, count) as back:
                j2 = count - 1 - back.index
                q.add(i, -(b.load(f.taus, (j2,), ()) * v.dot(j2, q, i, j2, rows)), v, j2, j2, rows)
            with b.loop(0, rows, width) as loop:
                b.store(qv, (*at, loop.index, i), q.get(i, loop.index), axes=(rank,), limit=(rows - loop.index,))
        return [f.w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


class GeqrfTemplate(Template):
    """The reflections themselves: below the diagonal the vectors, above it R."""

    key = "geqrf"
    serves = (GeqrfOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        *lead, m, n = region.operands[0].type.shape
        if m == 0 or n == 0:
            return nothing(region.name, region.results)
        f = _Factored(region, target, "geqrf")
        b, at, width = f.b, f.at, f.width
        packed, tau = (f.w.write(name, o) for name, o in zip(("packed", "tau"), region.results, strict=True))
        with b.loop(0, f.steps) as step:
            b.store(tau, (*at, step.index), b.load(f.taus, (step.index,), ()))
        with b.loop(0, f.columns) as column:
            own = b.minimum(column.index, f.steps - 1)  # columns past the last reflection are R's alone: no row is below their diagonal
            with b.loop(0, f.rows, width) as loop:
                upper = b.cmp("le", b.iota((width,), 0) + b.from_index(loop.index), b.from_index(column.index))
                x = b.select(upper, f.c.get(column.index, loop.index), f.v.get(own, loop.index))
                b.store(packed, (*at, loop.index, column.index), x, axes=(len(at),), limit=(f.rows - loop.index,))
        return [f.w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


class _Factored:
    """A kernel that has factorised its matrix: columns c (R above the diagonal), the reflections' vectors v and taus."""

    def __init__(self, region: Region, target: TargetSpec, name: str) -> None:
        a = region.operands[0]
        *lead, m, n = a.type.shape
        assert isinstance(m, int) and isinstance(n, int)
        k = min(m, n)
        self.w = w = Matrices(name, region.name, tuple(lead))
        self.b, self.dtype = b, dtype = w.b, a.type.dtype
        self.width = width = vector(dtype, target)
        av = w.read("a", a)
        self.at = at = w.at(b.pid)
        self.rows, self.columns, self.steps = rows, columns, steps = w.call.word("m", m), w.call.word("n", n), w.call.word("k", k)
        self.c = c = Columns(b, dtype, max(n, 1), m, width)
        self.v = v = Columns(b, dtype, max(k, 1), m, width)  # zero before their own row
        self.taus = b.scratch(dtype, (max(k, 1),))
        with b.loop(0, columns) as column:
            c.fill(column.index, rows, lambda i, left: b.load(av, (*at, i, column.index), (width,), axes=(len(at),), limit=(left,)))
        with b.loop(0, steps) as step:
            j = step.index
            v.zero(j, rows)
            c.each(j + 1, rows, lambda i: v.put(j, i, c.get(j, i)))
            top = c.one(j, j)
            beta, tau = reflection(b, v, j, top, j, rows)
            b.store(self.taus, (j,), tau)
            c.set(j, j, beta)
            with b.loop(j + 1, columns) as column:
                c.add(column.index, -(tau * v.dot(j, c, column.index, j, rows)), v, j, j, rows)
