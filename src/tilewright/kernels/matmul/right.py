"""How a program of a product reads its panel of B, a row of `width` columns for a step of K.

Panels lie packed, or B is read where it lies. Then its rows run along memory (a step reads one row, or two that it interleaves into
words), or its columns do: those are transposed, a square of registers at a time. What a step would have to widen, interleave or transpose
is done once for all tiles of rows, into memory of the program's own. Rows and columns that are not there are zeros.
"""

from __future__ import annotations

from ...core.dims import divisible
from ...core.dtypes import DType, i32
from ...tile.builder import Ix, KernelBuilder, Tile, View
from .product import Config, Problem


class Right:
    """`view`: [..., panels, K, width], in elements of K; `at`: the place of the panel, `limit`: columns of it that there are."""

    def __init__(self, b: KernelBuilder, p: Problem, config: Config, view: View, at: tuple[Ix | int, ...], limit: Ix | int | None,
                 wide: DType, lanes: int, *, copies: bool) -> None:
        self.b, self.p, self.config, self.view, self.at, self.limit, self.wide, self.lanes = b, p, config, view, at, limit, wide, lanes
        self.columns = p.b_way == "columns"
        room = -(-config.width // lanes) * lanes if self.columns else config.width
        depth = config.depth + lanes if self.columns else config.depth
        self.per = p.words.per if p.words is not None and p.b_way == "rows" else 1  # rows that become one of words
        kind = wide if p.words is None else i32
        self.own = b.scratch(kind, (depth, room)) if copies or self.columns else None

    def widened(self, x: Tile) -> Tile:
        """Elements as they are multiplied."""
        return x if self.p.words is not None else self.b.cast(x, self.wide)

    def _row(self, i: Ix | int, *, last: bool = False) -> Tile:
        depth = self.p.b_view.shape[-2]
        inside = depth - i if last and isinstance(depth, int) and not divisible(depth, self.per) else None
        limit = (inside, self.limit) if self.p.b_way == "rows" else None
        return self.b.load(self.view, (*self.at, i, 0), (1, self.config.width), limit=limit)

    def from_memory(self, i: Ix | int) -> Tile:
        """Step i of K. Words of rows hold the first one in their lowest bits."""
        if self.per == 1:
            return self.widened(self._row(i))
        b, bits = self.b, 32 // self.per
        rows = (b.cast(self._row(i * self.per + j, last=j > 0), i32) for j in range(self.per))
        word = next(rows)
        for j, row in enumerate(rows, 1):
            word = b.binary("or", word, b.binary("shl", row, bits * j))
        return word

    def copy(self, start: Ix | int, stop: Ix | int) -> None:
        """Steps start … stop-1 into the program's own memory, if it keeps them there."""
        b, own = self.b, self.own
        if own is None:
            return
        if not self.columns:
            with b.loop(start, stop) as loop:
                b.store(own, (loop.index - start, 0), self.from_memory(loop.index))
            return
        side, rank = self.lanes, len(self.at)
        edge = not divisible(self.p.n, self.config.width) or self.config.width % side != 0
        for c in range(0, self.config.width, side):
            left = None if not edge else min(side, self.config.width - c) if self.limit is None else self.limit - c
            whole = start + (stop - start) // side * side

            def square(i: Ix | int, inside: Ix | int | None, c: int = c, left: Ix | int | None = left) -> None:
                limit = None if left is None and inside is None else (left, inside)
                x = b.load(self.view, (*self.at, i, c), (side, side), limit=limit, axes=(rank + 1, rank))
                b.store(own, (i - start, c), b.transpose(self.widened(x)))

            with b.loop(start, whole, side) as loop:
                square(loop.index, None)
            with b.loop(whole, stop, side) as loop:  # at most once
                square(loop.index, stop - loop.index)

    def step(self, i: Ix | int, start: Ix | int) -> Tile:
        """Step i of K, of a part that was copied from `start` on."""
        return self.from_memory(i) if self.own is None else self.b.load(self.own, (i - start, 0), (1, self.config.width))
