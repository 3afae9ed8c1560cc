"""Elements at places that a tile of indices names: single elements, or runs along the last axis (rows of a table, pixels of an image)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtypes import i64
from ....tile.ir import Instr
from ..access import plus, times
from ..convert import convert
from .layout import Layout, Shape
from .memory import coordinate, load_piece, pieces

if TYPE_CHECKING:
    from .emit import TiledEmitter


class RowPlaces:
    """The places of a gather of runs: every row of the tile begins where its index says; a negative index is a row of zeros."""

    def __init__(self, e: TiledEmitter, instr: Instr, layout: Layout, shape: Shape) -> None:
        self.e, self.shape, self.layout = e, shape, layout
        view = e.view(instr)
        rank, axis = len(view.strides), instr.attrs["axis"]
        f, offset = e.f, "0"
        for x, stride in zip(instr.operands[1 : 1 + rank], view.strides, strict=True):
            offset = plus(f, offset, times(f, e.ix(x), stride))
        column = e.coordinate(layout, shape, 1, wide=True)
        offset = plus(f, offset, times(f, column, view.strides[-1]))
        self.item = view.dtype.itemsize
        self.step = view.strides[-1]
        origin = plus(f, view.pointer, times(f, offset, str(self.item)))
        rows = e.spread(instr.operands[1 + rank], layout.project(shape, (shape[0], 1)))
        self.picks = layout.picks(shape, (shape[0], 1))
        self.starts: dict[int, str] = {}
        self.valid: dict[int, str] = {}
        for r, v in rows.values.items():
            wide = convert(f, rows.type.dtype, i64, v)
            if instr.attrs.get("masked"):
                self.valid[r] = f.icmp("sge", "i64", wide, "0")
                wide = e.k.value("i64", f"max.s64 {{}}, {wide}, 0;")
            self.starts[r] = plus(f, origin, times(f, times(f, wide, view.strides[axis]), str(self.item)))
        self.room = {1: e.room(e.ix(instr.operands[2 + rank]), layout, shape, 1)} if instr.attrs.get("limits") else {}
        self.by_position = {layout.offset(r): r for r in range(layout.count)}
        if self.valid:
            self.room = {0: "", **self.room}

    def place(self, position: int) -> tuple[str, int]:
        register = self.by_position[position]
        c = coordinate(self.shape, 1, position) * self.item
        start = self.starts[self.picks[register]]
        if self.step.startswith("%"):
            return plus(self.e.f, start, times(self.e.f, self.step, str(c))), 0
        return start, c * int(self.step)

    def check(self, axis: int, c: int) -> str:
        """Whether a row is there; `c` is the register's part of its number."""
        assert axis == 0
        position = c * self.shape[1]
        return self.valid[self.picks[self.by_position[position]]]

    def inside(self, position: int) -> str | None:
        e, found = self.e, None
        if self.valid:
            found = self.valid[self.picks[self.by_position[position]]]
        if 1 in self.room:
            here = e.f.icmp("sgt", "i32", self.room[1], str(coordinate(self.shape, 1, position)))
            found = here if found is None else e.f.op("and", "i1", found, here)
        return found


def gather(e: TiledEmitter, instr: Instr, layout: Layout, shape: Shape) -> dict[int, str]:
    view = e.view(instr)
    if "run" in instr.attrs:
        rows = RowPlaces(e, instr, layout, shape)
        out: dict[int, str] = {}
        axis = 1 if view.strides[-1] == "1" else None
        for run in pieces(layout, shape, axis, e.vector(instr)):
            position = layout.offset(run[0])
            found = load_piece(e, view.dtype, rows.place(position), len(run), rows.inside(position), 0, "ld.global")
            out.update(zip(run, found, strict=True))
        return out
    rank, axis_ = len(view.strides), instr.attrs["axis"]
    offset = "0"
    for x, stride in zip(instr.operands[1 : 1 + rank], view.strides, strict=True):
        offset = plus(e.f, offset, times(e.f, e.ix(x), stride))
    origin = plus(e.f, view.pointer, times(e.f, offset, str(view.dtype.itemsize)))
    indices = e.spread(instr.operands[1 + rank], layout)
    out = {}
    for r, v in indices.values.items():
        wide = convert(e.f, indices.type.dtype, i64, v)
        inside = None
        if instr.attrs.get("masked"):
            inside = e.f.icmp("sge", "i64", wide, "0")
        at = plus(e.f, origin, times(e.f, times(e.f, wide, view.strides[axis_]), str(view.dtype.itemsize)))
        out[r] = load_piece(e, view.dtype, (at, 0), 1, inside, 0, "ld.global")[0]
    return out
