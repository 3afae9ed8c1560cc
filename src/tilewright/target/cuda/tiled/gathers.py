"""Elements at places that a tile of indices names: single elements, or runs along the last axis (rows of a table, pixels of an image), read
and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtypes import i32, i64
from ....tile.ir import Instr
from ..arithmetic.convert import convert
from ..threads.access import plus, times
from .layout import Layout, Shape
from .memory import coordinate, load_piece, pieces, store_piece
from .plan import spread_out, tile

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
        step = view.strides[axis]
        for r, v in rows.values.items():
            if rows.type.dtype is i32 and not step.startswith("%") and abs(int(step) * self.item) < 1 << 31:
                if instr.attrs.get("masked") or instr.op == "scatter":
                    self.valid[r] = f.icmp("sge", "i32", v, "0")
                    v = e.k.value("i32", f"max.s32 {{}}, {v}, 0;")
                self.starts[r] = e.k.value("i64", f"mad.wide.s32 {{}}, {v}, {int(step) * self.item}, {e.as_register(origin)};")
                continue
            wide = convert(f, rows.type.dtype, i64, v)
            if instr.attrs.get("masked") or instr.op == "scatter":
                self.valid[r] = f.icmp("sge", "i64", wide, "0")
                wide = e.k.value("i64", f"max.s64 {{}}, {wide}, 0;")
            self.starts[r] = plus(f, origin, times(f, times(f, wide, view.strides[axis]), str(self.item)))
        self.room = {1: e.room(e.ix(instr.operands[2 + rank]), layout, shape, 1)} if instr.attrs.get("limits") else {}
        self.by_position = {layout.offset(r): r for r in range(layout.count)}

    def place(self, position: int) -> tuple[str, int]:
        register = self.by_position[position]
        c = coordinate(self.shape, 1, position) * self.item
        start = self.starts[self.picks[register]]
        if self.step.startswith("%"):
            return plus(self.e.f, start, times(self.e.f, self.step, str(c))), 0
        return start, c * int(self.step)

    def inside(self, position: int, but: int | None = None) -> str | None:
        """Whether a row is there and (unless `but` is 1) a column inside its limit; None: always."""
        e = self.e
        found = self.valid[self.picks[self.by_position[position]]] if self.valid else None
        if 1 in self.room and but != 1:
            here = e.f.icmp("sgt", "i32", self.room[1], str(coordinate(self.shape, 1, position)))
            found = here if found is None else e.f.op("and", "i1", found, here)
        return found


class ElementPlaces:
    """The places of a gather of single elements; a negative index is a zero."""

    room: dict[int, str] = {}

    def __init__(self, e: TiledEmitter, instr: Instr, layout: Layout) -> None:
        view = e.view(instr)
        rank, f, offset = len(view.strides), e.f, "0"
        for x, stride in zip(instr.operands[1 : 1 + rank], view.strides, strict=True):
            offset = plus(f, offset, times(f, e.ix(x), stride))
        origin = plus(f, view.pointer, times(f, offset, str(view.dtype.itemsize)))
        indices = e.spread(instr.operands[1 + rank], layout)
        step = times(f, view.strides[instr.attrs["axis"]], str(view.dtype.itemsize))
        self.at: dict[int, str] = {}
        self.valid: dict[int, str] = {}
        for r, v in indices.values.items():
            wide = convert(f, indices.type.dtype, i64, v)
            if instr.attrs.get("masked"):
                self.valid[layout.offset(r)] = f.icmp("sge", "i64", wide, "0")
                wide = e.k.value("i64", f"max.s64 {{}}, {wide}, 0;")
            self.at[layout.offset(r)] = plus(f, origin, times(f, wide, step))

    def place(self, position: int) -> tuple[str, int]:
        return self.at[position], 0

    def inside(self, position: int, but: int | None = None) -> str | None:
        return self.valid.get(position)


def places(e: TiledEmitter, instr: Instr, layout: Layout, shape: Shape) -> RowPlaces | ElementPlaces:
    return RowPlaces(e, instr, layout, shape) if "run" in instr.attrs else ElementPlaces(e, instr, layout)


def gather(e: TiledEmitter, instr: Instr, layout: Layout, shape: Shape) -> dict[int, str]:
    view, found = e.view(instr), places(e, instr, layout, shape)
    out: dict[int, str] = {}
    axis = 1 if "run" in instr.attrs and view.strides[-1] == "1" else None
    for run in pieces(layout, shape, axis, e.vector(instr)):
        position = layout.offset(run[0])
        values = load_piece(e, view.dtype, found.place(position), len(run), found.inside(position), 0, "ld.global")
        out.update(zip(run, values, strict=True))
    return out


def scatter(e: TiledEmitter, instr: Instr) -> None:
    """The rows of a tile to the places that indices name, in the widest pieces where rows lie along memory, else neighbouring rows by
    neighbouring threads."""
    view, x = e.view(instr), instr.operands[-1]
    t = tile(x)
    along = view.strides[-1] == "1"
    vector = min(16 // t.dtype.itemsize, e.vector(instr)) if along else 1
    layout = spread_out(e.tiled, t, 1 if along else 0, vector)
    if not e.fits(t):
        layout = e.spread(x).layout
    values = e.spread(x, layout)
    rows = RowPlaces(e, instr, layout, t.shape)
    only = e.first_copy(layout)
    for run in pieces(layout, t.shape, 1 if along else None, vector):
        inside = rows.inside(layout.offset(run[0]))
        if only is not None:
            inside = only if inside is None else e.f.op("and", "i1", inside, only)
        store_piece(e, t.dtype, rows.place(layout.offset(run[0])), [values.values[r] for r in run], inside, "st.global")
