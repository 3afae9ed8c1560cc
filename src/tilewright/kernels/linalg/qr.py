"""QR by Householder reflections. Larger matrices are taken by panels (qr_blocked.py), smaller ones by one program each, their columns in
local memory, so that every loop runs along registers.

Reflections are applied column by column, first to the columns behind, then (last first) to the columns of the identity, which gives Q.
Signs are LAPACK's: the diagonal of R has the sign opposite to the element it replaces, and a column that is zero below the diagonal is
left as it is. Matrices without rows or columns take no launch but for the Q of a matrix without columns.
"""

from __future__ import annotations

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ops.linalg.factors import Qr as QrOp
from ...ops.linalg.reflections import Geqrf as GeqrfOp
from ...tile.builder import Ix
from ..launch import Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .matrices import Columns, Matrices, nothing, reflection, vector
from .qr_blocked import BlockedQr

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
