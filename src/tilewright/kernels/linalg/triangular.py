"""Triangular systems by forward substitution: one program per matrix and block of right-hand columns.

Upper and transposed systems are lower ones through flipped and permuted views. A block of rows takes what the rows before it contribute as
one product in registers (the solution so far lies, negated, in local memory), then its own triangle row by row. Columns past the last are
masked; systems of no rows or columns take no launch. A zero on the diagonal gives infinities, as a division does.
"""

from __future__ import annotations

from ...core.dims import ceildiv, product
from ...core.target_spec import TargetSpec
from ...ops.linalg.systems import TriangularSolve as SolveOp
from ...tile.builder import Ix, Tile
from ..launch import Launch
from ..loops import unrolled
from ..matmul.tiling import for_each_tile, tile_heights
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .matrices import Matrices, nothing, tile_width

ROWS = 6


class TriangularSolveTemplate(Template):
    key = "triangular_solve"
    serves = (SolveOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (a, rhs), out = region.op(SolveOp), region.operands, region.results[0]
        *lead, n, columns = out.type.shape
        if n == 0 or columns == 0:
            return nothing(region.name, region.results)
        assert isinstance(n, int) and isinstance(columns, int)
        rank = len(lead)
        a_lay, b_lay, x_lay = a.layout.expand((*lead, n, n)), rhs.layout.expand(out.type.shape), out.layout
        if op.transpose:
            a_lay = a_lay.permute((*range(rank), rank + 1, rank))
        if op.upper != op.transpose:
            a_lay = a_lay.flip(rank).flip(rank + 1)
            b_lay, x_lay = b_lay.flip(rank), x_lay.flip(rank)
        width = tile_width(out.type.dtype, target)
        while width > 1 and columns <= width // 2:
            width //= 2
        w = Matrices("triangular_solve", region.name, tuple(lead))
        b, dtype = w.b, out.type.dtype
        av, bv, xv = w.read("a", a, a_lay), w.read("b", rhs, b_lay), w.write("x", out, x_lay)
        count, blocks = w.call.word("columns", columns), w.call.word("blocks", ceildiv(columns, width))
        start = b.pid % blocks * width
        at = w.at(b.pid // blocks)
        limit = None if columns % width == 0 else (None, count - start)
        done = b.scratch(dtype, (n, width))  # negated

        def rows(first: Ix | int, height: int) -> None:
            def step(q: Ix | int, total: Tile) -> Tile:
                return b.mma(b.load(av, (*at, first, q), (height, 1)), b.load(done, (q, 0), (1, width)), total)

            right = unrolled(b, 0, first, b.load(bv, (*at, first, start), (height, width), limit=limit), step)
            solved: list[Tile] = []
            for r in range(height):
                x = b.extract(right, (r, 0), (1, width))
                for s, other in enumerate(solved):
                    x = b.fma(b.load(av, (*at, first + r, first + s), (1, 1)), other, x)
                if not op.unit:
                    x = x / b.load(av, (*at, first + r, first + r), (1, 1))
                b.store(xv, (*at, first + r, start), x, limit=limit)
                solved.append(-x)
                b.store(done, (first + r, 0), solved[-1])

        for_each_tile(b, 0, n, ROWS, tile_heights(n, n, ROWS), rows)
        grid = product(lead) * ceildiv(columns, width)
        return [w.call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=_note(op))]


def _note(op: SolveOp) -> str:
    return f"{'upper' if op.upper else 'lower'}{', transposed' if op.transpose else ''}{', unit' if op.unit else ''}"
