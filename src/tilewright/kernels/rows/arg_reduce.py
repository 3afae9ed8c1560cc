"""Indices of extremes: best value and place lane by lane, along rows or across columns. Ties take the smaller index; the first NaN wins."""

from __future__ import annotations

from ...core.dims import bounds
from ...core.dtypes import DType, i32, i64
from ...core.target_spec import TargetSpec
from ...ops.rows import reductions as red
from ...tile.builder import Ix, Tile
from ...tile.ir import identity
from ..launch import Launch
from ..region import Region
from ..template import Template
from .reduce import WIDTH, ReduceKernel, reduced_length


class ArgReduce(Template):
    """Lanes past the end of a row never win; a result of no elements is a grid of no programs."""

    key = "arg_reduce"
    serves = (red.ArgMax, red.ArgMin)
    fuses = True

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [ArgKernel(region, target).launch()]


class ArgKernel(ReduceKernel):
    """One kernel under construction."""

    def value(self) -> Tile:
        return self._arg_columns() if self.columns else self._arg_row()

    def _better(self, x: Tile, best: Tile) -> Tile:
        """Strictly, so that the first of equals stays; the first NaN wins and stays."""
        b = self.b
        better = b.cmp("gt" if isinstance(self.op, red.ArgMax) else "lt", x, best)
        if not self.dtype.is_float:
            return better
        return b.binary("or", better, b.binary("and", b.unary("isnan", x), b.unary("not", b.unary("isnan", best))))

    def _counter(self) -> DType:
        return i32 if bounds(reduced_length(self.node))[1] < 1 << 31 else i64

    def _arg_row(self) -> Tile:
        """Best and place lane by lane. A lane that met nothing better than the worst of all numbers has no place: where no lane has one,
        all elements are that number, and the first is as good as any."""
        b, kind = self.b, self._counter()
        fn, nowhere = "max" if isinstance(self.op, red.ArgMax) else "min", (1 << (8 * self._counter().itemsize - 1)) - 1
        lane = b.iota((self.tile,), 0, kind)

        def body(place: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            best, where = carried
            x = self.values(place, left)
            better = self._better(x, best)
            if left is not None:
                better = b.binary("and", better, b.cmp("lt", lane, b.from_index(left, kind)))
            return [b.select(better, x, best), b.select(better, lane + b.from_index(place[-1], kind), where)]

        worst = b.full((self.tile,), identity(fn, self.dtype), self.dtype)
        best, where = self.over_rows([worst, b.full((self.tile,), nowhere, kind)], body)
        same = b.cmp("eq", best, b.reduce(fn, best))
        if self.dtype.is_float:
            same = b.binary("or", same, b.unary("isnan", best))
        found = b.reduce("min", b.select(same, where, b.full((), nowhere, kind)))
        return b.cast(b.select(b.cmp("eq", found, nowhere), 0, found), self.op.dtype)

    def _arg_columns(self) -> Tile:
        b, kind = self.b, self._counter()
        with b.loop(0, self.sizes[0], 1, [self.values([0] * len(self.inner), None), b.full((WIDTH,), 0, kind)]) as loop:
            x = self.values([loop.index], None)
            better = self._better(x, loop.carried[0])
            loop.next(b.select(better, x, loop.carried[0]), b.select(better, b.from_index(loop.index, kind), loop.carried[1]))
        where: Tile = loop.results[1]
        return b.cast(where, self.op.dtype)
