"""What factorisations by panels of columns share: a panel in local memory, and the product that brings the rest of a matrix up to date."""

from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...tile.builder import Ix, Tile, View
from ..launch import Launch
from ..loops import in_blocks, unrolled
from ..region import Operand, Region
from .matrices import Columns, Matrices, nothing, tile_width, vector

PANEL = 32
ALONE = 48  # matrices with up to so many columns are one panel
ROWS = 6  # rows of a register tile


class Blocked:
    """A factorisation in place in its first result."""

    def __init__(self, region: Region, target: TargetSpec, m: int, n: int, panel: int = PANEL) -> None:
        self.region, self.target, self.m, self.n, self.k = region, target, m, n, min(m, n)
        self.a, self.out = region.operands[0], region.results[0]
        self.lead = self.a.type.shape[:-2]
        self.dtype = self.a.type.dtype
        self.width, self.tile = vector(self.dtype, target), tile_width(self.dtype, target)
        self.panel = self.k if self.k <= ALONE else panel
        self.flops = region.node.op.flops(self.a.type)

    def launches(self) -> list[Launch]:
        if self.k == 0:
            return self.empty()
        if self.k <= ALONE and self.n == self.k:
            return [self.factor(self.a, 0)]
        return self.steps()

    def empty(self) -> list[Launch]:
        return nothing(self.region.name, self.region.results)

    def steps(self) -> list[Launch]:
        raise NotImplementedError

    def factor(self, source: Operand, k0: int) -> Launch:
        raise NotImplementedError

    def take(self, c: Columns, a: View, at: list[Ix | int], first: Ix | int, rows: Ix | int, count: Ix, *, symmetric: bool) -> None:
        """The panel's columns from the rows of a (or of its symmetric part), in tiles that are transposed; zeros behind them."""
        b, width = c.b, self.width
        with b.loop(0, rows + width, width) as loop, b.loop(0, self.panel, width) as column:
            here, left = (*at, first + loop.index, first + column.index), (rows - loop.index, count - column.index)
            tile = b.transpose(b.load(a, here, (width, width), limit=left))
            if symmetric:
                tile = (tile + b.load(a, (*at, first + column.index, first + loop.index), (width, width), limit=left[::-1])) * 0.5
            b.store(c.view, (column.index, loop.index), tile, limit=(left[1], None))

    def give(self, c: Columns, rows: Ix | int, count: Ix, first: Ix | int, outs: list[tuple[View, list[Ix | int], Ix | int]], *,
             lower: bool) -> None:
        """The columns back into rows from `first` on, to every (view, matrix, column); with zeros above the diagonal where `lower`."""
        b, width = c.b, self.width
        with b.loop(0, rows, width) as loop, b.loop(0, self.panel, width) as column:
            left = (rows - loop.index, count - column.index)
            tile = b.transpose(b.load(c.view, (column.index, loop.index), (width, width), limit=(left[1], None)))
            if lower:
                row = b.iota((width, 1), 0) + b.from_index(loop.index)
                tile = b.select(b.cmp("ge", row, b.iota((1, width), 1) + b.from_index(column.index)), tile, 0.0)
            for out, at, start in outs:
                b.store(out, (*at, first + loop.index, start + column.index), tile, limit=left)

    def multiply(self, w: Matrices, view: View, at: list[Ix | int], rows: tuple[Ix | int, Ix | int],
                 factors: tuple[View, list[Ix | int], Ix | int], right: View, depth: Ix | int, column: Ix | int, limit: Ix | int) -> None:
        """view[rows, column …] += factors[rows, first …] @ right, in register tiles."""
        b, (start, stop), (left, where, first) = w.b, rows, factors

        def tile(row: Ix | int, height: int) -> None:
            acc = b.load(view, (*at, row, column), (height, self.tile), limit=(None, limit))

            def step(q: Ix | int, total: Tile) -> Tile:
                a = b.load(left, (*where, row, first + q), (height, 1))
                return b.mma(a, b.load(right, (q, 0), (1, self.tile)), total)

            b.store(view, (*at, row, column), unrolled(b, 0, depth, acc, step), limit=(None, limit))

        in_blocks(b, start, stop, ROWS, tile)
