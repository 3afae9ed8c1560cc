"""Lookups in and products with packed matrices by way of unpacked rows.

The product: a program unpacks a few rows of the matrix into local memory as f32 and multiplies every row of x with them. Right for
every format that `unpack` knows and not fast; formats on a hot path have fused kernels. An element is one sum over K in lanes, in an
order that depends on K alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as product_of
from typing import Any

from ...core.dims import Dim, ceildiv, divisible, product
from ...core.dtypes import f32, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.packed.products import QExperts as QExpertsOp
from ...ops.packed.products import QGather as QGatherOp
from ...ops.packed.products import QMatmul as QMatmulOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..index.gather import report_index
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Reason, Template, region_bytes, region_flops
from .strip_rows import StripRows
from .unpack import Matrix, can_unpack

ROWS = 4  # rows of the matrix that a program unpacks
STEP = 16  # elements of K in one step: also the number of partial sums, so part of the numerics
TALL = 4  # rows of x at once, where there are registers for their sums


class UnpackingTemplate(Template):
    """An op on a packed matrix of any format that `unpack` knows, by itself."""

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        op: Any = region.node.op
        return None if can_unpack(op.format) else Reason(f"cannot unpack {op.format}")


class QGatherTemplate(UnpackingTemplate):
    """One program per index: it unpacks its row into the result. Indices are checked like those of a gather."""

    key = "qgather"
    serves = (QGatherOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (table, ids, *books), y = region.op(QGatherOp), region.operands, region.results[0]
        call = Call("qgather", region.name)
        b = call.b
        strips = StripRows(call, table, op.format, op.k) if table.packed.form == "strips" else None
        matrix = None if strips is not None else Matrix(call, table, op.format, op.k, books)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, _in_fours(y.layout) if strips is not None else y.layout, write=True)
        error = call.error()
        size = call.word("size", table.type.shape[0])
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(ids.type.shape)])
        wanted = b.to_index(b.load(index, at, ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, b.pid, wanted)
        safe = b.minimum(b.maximum(wanted, 0), size - 1)

        def store(i: Ix | int, tile: Tile, inside: Ix | int | None) -> None:
            b.store(out, (*at, i), tile, limit=None if inside is None else (inside,))

        if strips is not None:
            strips.row_to(safe, lambda i, tile: b.store(out, (*at, i, 0), tile))
        elif matrix is not None:
            matrix.row_to(safe, store)
        moved = region_bytes(region) - table.type.nbytes + y.type.nbytes
        note = "reads the strips of a tied weight" if strips is not None else ""
        return [call.finish(product(ids.type.shape), flops=region_flops(region), bytes_=moved, note=note)]


def _in_fours(layout: Layout) -> Layout:
    """The last axis as groups of four."""
    *lead, step = layout.strides
    return Layout((*layout.shape[:-1], layout.shape[-1] // 4, 4), (*lead, step * 4, step), layout.offset)


class QMatmulTemplate(UnpackingTemplate):
    """K need not be a multiple of the step: unpacked rows are filled with zeros, x is masked. No rows of x: no work in the programs."""

    key = "qmatmul_rows"
    serves = (QMatmulOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, y = region.op(QMatmulOp), region.results[0]
        x, w, *books = region.operands
        call = Call("qmatmul", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        xv = call.view("x", f32, x.buffer, x.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        lead = x.type.shape[:-1]
        rows: Dim = product(lead)
        m = call.word("m", rows)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        first = b.pid * ROWS
        unpacked = UnpackedRows(call, matrix, first, b.minimum(ROWS, op.n - first))
        unpacked.unpack(0)

        def rows_from(index: Ix | int, count: int) -> None:
            at = [unravel(b, index + i, dims) for i in range(count)]
            unpacked.multiply(xv, at, lambda i, column, y: b.store(out, (*at[i], column), y))

        tall = TALL if target.registers >= 32 and rows != 1 else 1
        if tall > 1:
            with b.loop(0, m // tall) as each:
                rows_from(each.index * tall, tall)
        if tall == 1 or not divisible(rows, tall):
            with b.loop(m // tall * tall if tall > 1 else 0, m) as each:
                rows_from(each.index, 1)
        grid = ceildiv(op.n, ROWS)
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{op.format} by unpacked rows")]


class QExpertsTemplate(UnpackingTemplate):
    """One program per expert and block of its rows: it unpacks them when some token wants the expert, and multiplies those tokens alone.
    The first program checks all indices."""

    key = "qexperts"
    serves = (QExpertsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, y = region.op(QExpertsOp), region.results[0]
        x, w, ids, *books = region.operands
        call = Call("qexperts", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        tokens, used = ids.type.shape
        xv = call.view("x", f32, x.buffer, x.layout.expand((tokens, used, op.k)))
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        error = call.error()
        count, slots = call.word("count", tokens * used), call.word("used", used)
        blocks = -(-op.n // ROWS)
        expert, first = b.pid // blocks, b.pid % blocks * ROWS

        def wanted(i: Ix | int) -> Ix:
            return b.to_index(b.load(index, (i // slots, i % slots), ()))

        with b.if_(b.compare("eq", b.pid, 0)), b.loop(0, count) as each:
            for bad in (b.compare("lt", wanted(each.index), 0), b.compare("ge", wanted(each.index), op.experts)):
                with b.if_(bad):
                    report_index(b, error, each.index, wanted(each.index))
        with b.loop(0, count, 1, [b.full((), 0, i64)]) as users:
            hit = b.cast(b.compare("eq", wanted(users.index), expert), i64)
            users.next(users.carried[0] + hit)
        rows = UnpackedRows(call, matrix, first, b.minimum(ROWS, op.n - first))
        with b.if_(b.cmp("gt", users.results[0], 0)):
            rows.unpack(expert * op.n)
            with b.loop(0, count) as each, b.if_(b.compare("eq", wanted(each.index), expert)):
                at = [each.index // slots, each.index % slots]
                rows.multiply(xv, [at], lambda _, column, value: b.store(out, (*at, column), value))
        grid = op.experts * blocks
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{op.format} by unpacked rows")]


class UnpackedRows:
    """At most ROWS rows of a packed matrix as f32 in local memory, filled with zeros to whole steps."""

    def __init__(self, call: Call, matrix: Matrix, first: Ix | int, count: Ix | int) -> None:
        self.b, self.matrix, self.first, self.count = call.b, matrix, first, count
        self.padded = -(-matrix.k // STEP) * STEP
        self.local = call.b.scratch(f32, (ROWS, self.padded))

    def unpack(self, base: Ix | int) -> None:
        """Rows base + first ... of the matrix."""
        b = self.b
        with b.loop(0, self.count) as loop:
            here = loop.index
            if self.padded > self.matrix.k:
                b.store(self.local, (here, self.padded - STEP), b.full((STEP,), 0.0))

            def store(i: Ix | int, tile: Tile, inside: Ix | int | None) -> None:
                b.store(self.local, (here, i), tile, limit=None if inside is None else (inside,))

            self.matrix.row_to(base + self.first + here, store)

    def multiply(self, x: View, rows: Sequence[Sequence[Ix | int]], give: Callable[[int, Ix | int, Tile], None]) -> None:
        """The products of the rows of x at these positions with every row of the matrix: give(number, column, f32[1]). Where the matrix
        has fewer rows than the tile, the last one is multiplied again."""
        b, k = self.b, self.matrix.k
        whole, rest = k // STEP * STEP, k % STEP
        columns = [b.minimum(i, self.count - 1) for i in range(ROWS)]

        def step(at: Ix | int, accs: Sequence[Tile], limit: tuple[int] | None) -> list[Tile]:
            left = [b.load(x, (*row, at), (STEP,), limit=limit) for row in rows]
            right = [b.load(self.local, (c, at), (STEP,)) for c in columns]
            return [b.fma(p, q, acc) for (p, q), acc in zip(product_of(left, right), accs, strict=True)]

        with b.loop(0, whole, STEP, [b.full((STEP,), 0.0)] * (len(rows) * ROWS)) as loop:
            loop.next(*step(loop.index, loop.carried, None))
        accs = step(whole, loop.results, (rest,)) if rest else list(loop.results)
        for i, acc in enumerate(accs):
            give(i // ROWS, self.first + columns[i % ROWS], b.reduce("sum", acc))
