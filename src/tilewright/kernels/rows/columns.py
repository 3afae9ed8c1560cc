"""Softmax and norms over an axis that lies across memory: some columns run along registers, and the rows of a program are swept one after
another, once per statistic. The order of a column's sums is that of a row (`rows.py`): element i goes to partial sum i mod `parts`, then
a halving tree. Columns past the end are masked; no columns are a grid of no programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import ceildiv, product
from ...core.target_spec import TargetSpec
from ...tile.builder import Ix, Tile, View
from ..pointwise.pointwise import unravel
from ..region import Evaluator, narrow
from .rows import COMBINE, FEW, RowKernel, halved

AHEAD = 16  # rows that a program asks for before it reads them


class ColumnKernel(RowKernel):
    def kept_axes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The axis along memory last."""
        shape = self.node.operands[0].shape
        whole = next(o.layout.strides for o in (*self.region.operands, *self.region.results) if o.type.shape == shape)
        last = next(a for a, d in enumerate(shape) if whole[a] == 1 and d != 1)
        return (*(a for a in super().kept_axes(axes) if a != last), last)

    def tile_width(self, target: TargetSpec) -> int:
        """Columns of a program; `parts` is what a row has in registers at once."""
        self.parts, lanes = super().tile_width(target), target.vector_bits // 32
        columns = self.kept_shape[-1]
        most = lanes * (2 if self._few() else 4)
        return most if not isinstance(columns, int) or columns > lanes else lanes

    def _few(self) -> bool:
        return isinstance(self.length, int) and 0 < self.length <= min(FEW, self.parts)

    def place(self, dims: list[Ix]) -> list[Ix | int]:
        b, self.axis = self.b, len(dims) - 1
        blocks = b.ceildiv(dims[-1], self.tile)
        first = b.pid % blocks * self.tile
        self.limit = (b.minimum(dims[-1] - first, self.tile),)
        self.grid = product(self.outer[:-1]) * ceildiv(self.outer[-1], self.tile)
        return [*unravel(b, b.pid // blocks, dims[:-1]), first]

    def _load(self, view: View, at: list[Ix | int], left: Ix | int | None) -> Tile:
        if view.type.strides[self.axis] == 0:
            return self.b.load(view, (*self.at, *at), (1,), axes=(self.axis,))
        return self.b.load(view, (*self.at, *at), (self.tile,), limit=self.limit, axes=(self.axis,))

    def store(self, i: int, at: list[Ix | int], x: Tile, left: Ix | int | None) -> None:
        x = narrow(self.b, self.b.broadcast(x, (self.tile,)), self.results[i].type.dtype)
        self.b.store(self.outs[i], (*self.at, *at), x, limit=self.limit, axes=(self.axis,))

    def sweep(self, carried: Sequence[Tile],
              body: Callable[[Evaluator, list[Ix | int], Ix | int | None, list[Tile]], list[Tile]]) -> list[Tile]:
        with self.b.loop(0, self.inner[0], 1, list(carried)) as loop:
            at: list[Ix | int] = [loop.index]
            loop.next(*body(self._evaluator(at, None), at, None, list(loop.carried)))
        return list(loop.results)

    def fold(self, fn: str, value: Callable[[Evaluator, list[Ix | int], Ix | int | None], Tile], other: float) -> Tile:
        b = self.b

        def element(i: Ix | int) -> Tile:
            return b.broadcast(value(self._evaluator([i], None), [i], None), (self.tile,))

        start = b.full((self.tile,), other, self.dtype)
        if self._few():
            assert isinstance(self.length, int)
            return halved([b.binary(COMBINE[fn], element(i), start) for i in range(self.length)], self.parts,
                          lambda x, y: b.binary(COMBINE[fn], x, y))
        if fn != "sum":  # the order does not matter
            def best(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
                self._foresee(at[-1])
                return [b.binary(COMBINE[fn], b.broadcast(value(evaluate, at, left), (self.tile,)), carried[0])]

            return self.sweep([start], best)[0]
        parts = b.scratch(self.dtype, (self.parts, self.tile))
        with b.loop(0, self.parts) as one:
            b.store(parts, (one.index, 0), start)
        with b.loop(0, self.inner[0]) as loop:
            mine = (loop.index % self.parts, 0)
            b.store(parts, mine, b.binary(COMBINE[fn], element(loop.index), b.load(parts, mine, (self.tile,))))
        half = self.parts // 2
        while half:
            with b.loop(0, half) as loop:
                pair = b.binary(COMBINE[fn], *(b.load(parts, (loop.index + k, 0), (self.tile,)) for k in (0, half)))
                b.store(parts, (loop.index, 0), pair)
            half //= 2
        return b.load(parts, (0, 0), (self.tile,))

    def _foresee(self, row: Ix | int) -> None:
        """Ask for what lies some rows ahead: a few columns are too short for the hardware to foresee the next."""
        for v in self.views.values():
            for k in range(0, self.tile if v.type.strides[self.axis] == 1 else 0, 64 // v.type.dtype.itemsize):
                self.b.prefetch(v, (*self.at[:-1], self.at[-1] + k, row + AHEAD), locality=2)
