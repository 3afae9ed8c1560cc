"""Elements of a tensor that the threads of a group read and write one by one, each at coordinates of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dims import Dim, at_least
from ...core.dtypes import DType, i32, i64
from ...ir.layout import Layout
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Buffer


class Spots:
    """Tiles of coordinates along the last `axes` axes of a layout; the others, and where those start, are index values."""

    def __init__(self, call: Call, name: str, dtype: DType, buffer: Buffer, layout: Layout, axes: int = 1, *, write: bool = False) -> None:
        self.b, self.axis = call.b, len(layout.shape)
        self.view = call.view(name, dtype, buffer, Layout((*layout.shape, 1), (*layout.strides, 1), layout.offset), write=write)
        sizes = list(zip(layout.shape[-axes:], layout.strides[-axes:], strict=True))
        reach: Dim = 0
        for d, s in sizes:
            reach = reach + d * s
        self.forward = all(at_least(s, 0) for _, s in sizes)  # else a negative place may be an element
        short = self.forward and isinstance(reach, int) and reach < 1 << 31 and all(isinstance(s, int) for _, s in sizes)
        self.dtype = i32 if short else i64
        self.steps = [s if isinstance(s, int) else call.b.from_index(call.word(f"{name}.step{i}", s)) for i, (_, s) in enumerate(sizes)]

    def _place(self, coordinates: Sequence[Tile], inside: Tile | None, outside: int = -1) -> Tile:
        b = self.b
        terms = [b.cast(c, self.dtype) * s for c, s in zip(coordinates, self.steps, strict=True)]
        out = terms[0]
        for t in terms[1:]:
            out = out + t
        return out if inside is None else b.select(inside, out, outside)

    def get(self, at: Sequence[Ix | int], *coordinates: Tile, inside: Tile | None = None) -> Tile:
        """What is not inside is 0; the element where coordinates are 0 must exist."""
        if not self.forward and inside is not None:
            found = self.b.gather(self.view, (*at, 0), self.axis, self._place(coordinates, inside, 0))
            return self.b.select(inside, found, 0)
        return self.b.gather(self.view, (*at, 0), self.axis, self._place(coordinates, inside), masked=inside is not None)

    def put(self, at: Sequence[Ix | int], x: Tile, *coordinates: Tile, inside: Tile | None = None) -> None:
        assert self.forward, "results do not step back"
        self.b.scatter(self.view, (*at, 0), self.axis, self._place(coordinates, inside), x)
