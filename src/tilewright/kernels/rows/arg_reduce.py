"""Indices of extremes: best value and place lane by lane, along rows or across columns. Ties take the smaller index; the first NaN wins."""

from __future__ import annotations

from ...core.dims import bounds
from ...core.dtypes import DType, i32, i64
from ...core.target_spec import TargetSpec
from ...ops.rows import reductions as red
from ...tile.builder import Ix, Tile, View
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
        """Best and place lane by lane. Lanes that saw nothing hold the row's first element and place 0, so they lose to it or are it."""
        b, kind = self.b, self._counter()
        first = b.broadcast(b.cast(self._first(), self.dtype), (self.tile,))
        lane = b.iota((self.tile,), 0, kind)

        def body(place: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            best, where = carried
            x = self.values(place, left)
            better = self._better(x, best)
            if left is not None:
                better = b.binary("and", better, b.cmp("lt", lane, b.from_index(left, kind)))
            return [b.select(better, x, best), b.select(better, lane + b.from_index(place[-1], kind), where)]

        best, where = self.over_rows([first, b.full((self.tile,), 0, kind)], body)
        top = b.reduce("max" if isinstance(self.op, red.ArgMax) else "min", best)
        same = b.cmp("eq", best, top)
        if self.dtype.is_float:
            same = b.binary("or", same, b.unary("isnan", best))
        found = b.reduce("min", b.select(same, where, b.full((), (1 << (8 * kind.itemsize - 1)) - 1, kind)))
        return b.cast(found, self.op.dtype)

    def _first(self) -> Tile:
        """The row's first element (all columns' when they run along registers)."""
        b = self.b
        at: list[Ix | int] = [0] * len(self.inner)
        return self.values(at, None) if self.columns else b.load(self._spill(at), (0,), (1,))

    def _spill(self, at: list[Ix | int]) -> View:
        """A whole tile may not be there to read: the first element goes through local memory."""
        b = self.b
        view = b.scratch(self.dtype, (self.tile,))
        b.store(view, (0,), self.values(at, self.sizes[-1]))
        return view

    def _arg_columns(self) -> Tile:
        b, kind = self.b, self._counter()
        with b.loop(0, self.sizes[0], 1, [self._first(), b.full((WIDTH,), 0, kind)]) as loop:
            x = self.values([loop.index], None)
            better = self._better(x, loop.carried[0])
            loop.next(b.select(better, x, loop.carried[0]), b.select(better, b.from_index(loop.index, kind), loop.carried[1]))
        where: Tile = loop.results[1]
        return b.cast(where, self.op.dtype)
