"""Rows times a packed matrix: a program owns a few rows of the result and a stretch of their columns, and walks the rows of the matrix.

Each row's stretch is unpacked into local memory once and added, scaled, to the sums of all rows of the program: one FMA chain an element,
in the order of the matrix's rows. The last stretch may be short: what lies behind is neither unpacked nor stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        op = region.op(QMatmulBackOp)
        g, w, *books = region.operands
        call = Call("qmatmul_back", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        lead = g.type.shape[:-1]
        rows: Dim = product(lead)
        m = call.word("m", rows)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        stretches = -(-op.k // STRETCH)
        first, start = b.pid // stretches * ROWS, b.pid % stretches * STRETCH
        add_rows(call, region, matrix, 0, start, ROWS, b.minimum(ROWS, m - first), lambda row: unravel(b, first + row, dims))
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


def add_rows(call: Call, region: Region, matrix: Matrix, base: Ix | int, start: Ix | int, most: int, count: Ix | int,
             place: Callable[[Ix | int], Sequence[Ix | int]]) -> None:
    """The stretch from `start` on of `count` rows of the result (`most` at most, row i at place(i)): the sums of rows base … of the matrix,
    each times an element of g."""
    b, op, g, y = call.b, region.op(QMatmulBackOp, QExpertsBackOp), region.operands[0], region.results[0]
    gv, out = call.view("g", f32, g.buffer, g.layout), call.view("y", f32, y.buffer, y.layout, write=True)
    size = b.minimum(STRETCH, op.k - start)
    local, sums = b.scratch(f32, (STRETCH,)), b.scratch(f32, (most, STRETCH))
    zero = b.full((STEP,), 0.0)
    with b.loop(0, STRETCH, STEP) as clear:
        b.store(local, (clear.index,), zero)
        with b.loop(0, most) as row:
            b.store(sums, (row.index, clear.index), zero)
    with b.loop(0, op.n) as each:
        unpack_stretch(b, matrix, base + each.index, start, size, local)
        with b.loop(0, count) as row:
            scale = b.broadcast(b.load(gv, (*place(row.index), each.index), ()), (STEP,))
            with b.loop(0, size, STEP) as piece:
                total = b.load(sums, (row.index, piece.index), (STEP,))
                b.store(sums, (row.index, piece.index), b.fma(scale, b.load(local, (piece.index,), (STEP,)), total))
    with b.loop(0, count) as row:
        at = place(row.index)
        with b.loop(0, size, STEP) as piece:
            b.store(out, (*at, start + piece.index), b.load(sums, (row.index, piece.index), (STEP,)), limit=(size - piece.index,))


class QExpertsBackTemplate(UnpackingTemplate):
    """One program per product and stretch of its columns: it walks the rows of the matrix that the product's index names. Every program of
    the first stretch checks its index."""

    key = "qexperts_back"
    serves = (QExpertsBackOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.op(QExpertsBackOp)
        _, w, ids, *books = region.operands
        call = Call("qexperts_back", region.name)
        b = call.b
        matrix = Matrix(call, w, op.format, op.k, books)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        error = call.error()
        slots = call.word("used", ids.type.shape[1])
        stretches = -(-op.k // STRETCH)
        product_, start = b.pid // stretches, b.pid % stretches * STRETCH
        at = (product_ // slots, product_ % slots)
        wanted = b.to_index(b.load(index, at, ()))
        expert = clamped_index(b, error, product_ if isinstance(product_, Ix) else b.pid, wanted, op.experts)
        add_rows(call, region, matrix, expert * op.n, start, 1, 1, lambda _: at)
        grid = product(ids.type.shape) * stretches
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{op.format} by unpacked stretches")]
