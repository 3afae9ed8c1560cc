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
from ...core.dtypes import DType, f16, f32, i8, i32, i64, u8
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.packed.products import QExperts as QExpertsOp
from ...ops.packed.products import QGather as QGatherOp
from ...ops.packed.products import QMatmul as QMatmulOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..index.gather import clamped_index, report_outside
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Reason, Template, region_bytes, region_flops
from .panels import COLUMNS, LANES, PANELS
from .unpack import Matrix, can_unpack

# --- One row of a packed matrix in panels as f32: for lookups in a table that a product reads in panels too (a tied embedding).


class PanelRows:
    """Views of the panels; `row_to` decodes a row in pieces of 32 columns (16 where those have scales of their own)."""

    def __init__(self, call: Call, operand: Operand, format_: str, k: int) -> None:
        self.call, self.b, self.operand = call, call.b, operand
        self.format, self.f, self.k = format_, PANELS[format_], k
        self.panels: Dim = (operand.type.shape[0] + LANES - 1) // LANES
        f = self.f
        # [panel, block, group of four columns or word, lane, byte]
        self.quantized = self._view("q", u8, 0, (f.plane_at // (4 * LANES), LANES, 4))
        self.planes = self._view("plane", u8, f.plane_at, (f.groups * f.planes, LANES, 4)) if f.planes else None
        real, groups = f16 if f.real == 2 else f32, 1 if f.shared else f.groups
        small = real if not f.super_scales else u8 if f.scales == 1 else i8
        self.scales = self._view("scale", small, f.scale_at, (groups * f.scales, LANES))
        self.minimums = self._view("min", small, f.minimum_at, (groups, LANES)) if f.minimums else None
        self.d = self._view("d", f16, f.d_at, (1, LANES)) if f.super_scales else None
        self.dmin = self._view("dmin", f16, f.dmin_at, (1, LANES)) if f.super_scales and f.minimums else None

    def _view(self, name: str, dtype: DType, at: int, inner: tuple[int, ...]) -> View:
        item, block, blocks = dtype.itemsize, self.f.bytes, self.k // self.f.elements
        strides = [1]
        for d in reversed(inner[1:]):
            strides.insert(0, strides[0] * d)
        layout = Layout((self.panels, blocks, *inner), (blocks * block // item, block // item, *strides), at // item)
        return self.call.view(f"w_{name}", dtype, self.operand.buffer, layout, bake=range(1, 2 + len(inner)))

    def row_to(self, row: Ix | int, store: Callable[[Ix | int, Tile], None]) -> None:
        """Decode one row: `store(number of the first group of four columns, f32[groups, 4])`."""
        b, f = self.b, self.f
        panel, lane = row // LANES, row % LANES
        with b.loop(0, self.k // f.elements) as loop:
            block = loop.index
            with b.loop(0, f.groups) as inner:
                sub = inner.index
                quantized = self._quantized(panel, block, sub, lane)
                for i in range(f.scales):
                    size = 8 // f.scales
                    part = quantized if f.scales == 1 else b.extract(quantized, (size * i, 0), (size, 4))
                    at = block * (f.elements // 4) + sub * (COLUMNS // 4) + size * i
                    store(at, self._numbers(part, panel, block, sub, i, lane))

    def _quantized(self, panel: Ix | int, block: Ix | int, sub: Ix | int, lane: Ix | int) -> Tile:
        """Quantized values of 32 columns, i32[8, 4], bias included."""
        b, f = self.b, self.f
        if f.low == 8:
            return b.cast(b.load(self.quantized, (panel, block, sub * 8, lane, 0), (8, 4), axes=(2, 4)), i32) + f.bias
        words = b.cast(b.load(self.quantized, (panel, block, sub * 4, lane, 0), (4, 4), axes=(2, 4)), i32)
        doubled = b.reshape(b.broadcast(b.reshape(words, (4, 1, 4)), (4, 2, 4)), (8, 4))  # group g is a nibble of word g // 2
        group = b.iota((8, 4), 0, i32)
        quantized = b.binary("and", b.binary("shr", doubled, b.binary("shl", b.binary("and", group, 1), 2)), 15)
        for p in range(f.planes):
            assert self.planes is not None
            plane = b.cast(b.load(self.planes, (panel, block, sub * f.planes + p, lane, 0), (1, 4), axes=(2, 4)), i32)
            bit = b.binary("and", b.binary("shr", b.broadcast(plane, (8, 4)), group), 1)
            quantized = b.binary("or", quantized, b.binary("shl", bit, 4 + p))
        return quantized + f.bias if f.bias else quantized

    def _numbers(self, quantized: Tile, panel: Ix | int, block: Ix | int, sub: Ix | int, i: int, lane: Ix | int) -> Tile:
        b, f = self.b, self.f
        sub = 0 if f.shared else sub

        def one(view: View, at: Ix | int) -> Tile:
            return b.cast(b.load(view, (panel, block, at, lane), (1, 1), axes=(2, 3)), f32)

        numbers, scale = b.cast(quantized, f32), one(self.scales, sub * f.scales + i)
        if self.d is None:
            scaled = numbers * scale
            return scaled if self.minimums is None else scaled + one(self.minimums, sub)
        scaled = (one(self.d, 0) * scale) * numbers
        if self.minimums is None or self.dmin is None:
            return scaled
        return scaled - one(self.dmin, 0) * one(self.minimums, sub)

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
        panels = PanelRows(call, table, op.format, op.k) if table.packed.form == "quantized panels" else None
        matrix = None if panels is not None else Matrix(call, table, op.format, op.k, books)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, _in_fours(y.layout) if panels is not None else y.layout, write=True)
        error = call.error()
        size = call.word("size", table.type.shape[0])
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(ids.type.shape)])
        wanted = b.to_index(b.load(index, at, ()))
        safe = clamped_index(b, error, b.pid, wanted, size)

        def store(i: Ix | int, tile: Tile, inside: Ix | int | None) -> None:
            b.store(out, (*at, i), tile, limit=None if inside is None else (inside,))

        if panels is not None:
            panels.row_to(safe, lambda i, tile: b.store(out, (*at, i, 0), tile))
        elif matrix is not None:
            matrix.row_to(safe, store)
        moved = region_bytes(region) - table.type.nbytes + y.type.nbytes
        note = "reads the panels of a tied weight" if panels is not None else ""
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
            report_outside(b, error, each.index, wanted(each.index), op.experts)
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
