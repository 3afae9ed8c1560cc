"""Rows times a packed matrix: a program owns a few rows of the result and a stretch of their columns, and walks the rows of the matrix.

Each row's stretch is unpacked into local memory once and added, scaled, to the sums of all rows of the program: one FMA chain an element,
in the order of the matrix's rows. The last stretch may be short: what lies behind is neither unpacked nor stored.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import f32
from ...core.target_spec import TargetSpec
from ...ops.packed.products import QExpertsBack as QExpertsBackOp
from ...ops.packed.products import QMatmulBack as QMatmulBackOp
from ...tile.builder import Ix, KernelBuilder, View
from ..call import Call
from ..index.gather import clamped_index
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import region_bytes, region_flops
from .quantized import UnpackingTemplate
from .unpack import Block, Matrix

ROWS = 16  # rows of a program
STRETCH = 512  # columns of a program: whole blocks of every format
STEP = 64


class QMatmulBackTemplate(UnpackingTemplate):
    key = "qmatmul_back"
    serves = (QMatmulBackOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, y = region.op(QMatmulBackOp), region.results[0]
        g, w, *books = region.operands
        call = Call("qmatmul_back", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        gv = call.view("g", f32, g.buffer, g.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        lead = g.type.shape[:-1]
        rows: Dim = product(lead)
        m = call.word("m", rows)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        stretches = -(-op.k // STRETCH)
        first, start = b.pid // stretches * ROWS, b.pid % stretches * STRETCH
        size = b.minimum(STRETCH, op.k - start)
        count = b.minimum(ROWS, m - first)
        local, sums = b.scratch(f32, (STRETCH,)), b.scratch(f32, (ROWS, STRETCH))
        zero = b.full((STEP,), 0.0)
        with b.loop(0, STRETCH, STEP) as clear:
            b.store(local, (clear.index,), zero)
            with b.loop(0, ROWS) as row:
                b.store(sums, (row.index, clear.index), zero)
        with b.loop(0, op.n) as each:
            n = each.index
            unpack_stretch(b, matrix, n, start, size, local)
            with b.loop(0, count) as row:
                scale = b.broadcast(b.load(gv, (*unravel(b, first + row.index, dims), n), ()), (STEP,))
                with b.loop(0, size, STEP) as piece:
                    total = b.load(sums, (row.index, piece.index), (STEP,))
                    b.store(sums, (row.index, piece.index), b.fma(scale, b.load(local, (piece.index,), (STEP,)), total))
        with b.loop(0, count) as row:
            place = unravel(b, first + row.index, dims)
            with b.loop(0, size, STEP) as piece:
                b.store(out, (*place, start + piece.index), b.load(sums, (row.index, piece.index), (STEP,)), limit=(size - piece.index,))
        grid = ceildiv(rows, ROWS) * stretches
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{op.format} by unpacked stretches")]


def unpack_stretch(b: KernelBuilder, matrix: Matrix, row: Ix | int, start: Ix | int, size: Ix | int, local: View) -> None:
    """Elements start … start + size - 1 of a row into local memory."""
    if matrix.plain is not None:
        with b.loop(0, size, STEP) as piece:
            x = b.load(matrix.plain, (row, start + piece.index), (STEP,), limit=(size - piece.index,))
            b.store(local, (piece.index,), b.cast(x, f32))
        return
    with b.loop(0, size // matrix.elements) as block:
        for at, tile in Block(matrix, row, (start // matrix.elements + block.index) * matrix.size).pieces():
            b.store(local, (block.index * matrix.elements + at,), tile)


class QExpertsBackTemplate(UnpackingTemplate):
    """One program per product and stretch of its columns: it walks the rows of the matrix that the product's index names. Every program of
    the first stretch checks its index."""

    key = "qexperts_back"
    serves = (QExpertsBackOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, y = region.op(QExpertsBackOp), region.results[0]
        g, w, ids, *books = region.operands
        call = Call("qexperts_back", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        gv = call.view("g", f32, g.buffer, g.layout)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        error = call.error()
        slots = call.word("used", ids.type.shape[1])
        stretches = -(-op.k // STRETCH)
        product_, start = b.pid // stretches, b.pid % stretches * STRETCH
        at = (product_ // slots, product_ % slots)
        size = b.minimum(STRETCH, op.k - start)
        wanted = b.to_index(b.load(index, at, ()))
        expert = clamped_index(b, error, product_ if isinstance(product_, Ix) else b.pid, wanted, op.experts)
        local, sums = b.scratch(f32, (STRETCH,)), b.scratch(f32, (STRETCH,))
        with b.loop(0, STRETCH, STEP) as clear:
            b.store(local, (clear.index,), b.full((STEP,), 0.0))
            b.store(sums, (clear.index,), b.full((STEP,), 0.0))
        with b.loop(0, op.n) as each:
            unpack_stretch(b, matrix, expert * op.n + each.index, start, size, local)
            scale = b.broadcast(b.load(gv, (*at, each.index), ()), (STEP,))
            with b.loop(0, size, STEP) as piece:
                total = b.load(sums, (piece.index,), (STEP,))
                b.store(sums, (piece.index,), b.fma(scale, b.load(local, (piece.index,), (STEP,)), total))
        with b.loop(0, size, STEP) as piece:
            b.store(out, (*at, start + piece.index), b.load(sums, (piece.index,), (STEP,)), limit=(size - piece.index,))
        grid = product(ids.type.shape) * stretches
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{op.format} by unpacked stretches")]
