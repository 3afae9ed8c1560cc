"""Gathers along the innermost axis: indices run along registers, for every row the same ones or its own. Tails are masked; indices are
checked.

Elements picked by several index arrays (x[:, i, j]): a program goes along rows of the result, whose last axis runs along registers.

Indices that do not change along a row are read and checked once for it; the others give a register of addresses, from which elements are
gathered. An index outside its axis is reported and clamped. Elementwise consumers are computed on the way; tails are masked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.dims import Dim, at_least, bounds, ceildiv, product
from ...core.dtypes import DType, i8, i16, i32, i64, u8, u16, u32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.indexing import Gather as GatherOp
from ...ops.index.indexing import GatherAlongAxis
from ...ops.index.indexing import Index as IndexOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch
from ..matmul.tiling import Epilogue
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, collapse
from ..template import Foreign, Reason, Template, alone, region_bytes, region_flops
from .gather import along_memory, clamped_index, report_outside

REPEATS = 16  # the most repeats of an element, at most, that are spelled out
ROWS = 16  # rows a program reads with one set of indices
EACH = 8  # elements that a loop copies in one step
AHEAD = 1024  # indices between what is copied and what is asked for
TILES = 16  # registers of indices that a program checks once for all of its rows

WIDE: dict[DType, DType] = {i8: i32, i16: i32, u8: i32, u16: i32, u32: i64}


class GatherLast(Template):
    """Elementwise consumers are computed on the way, where the indices are one axis."""

    key = "gather_last"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, GatherOp) or region.tail is not None:
            return Foreign("no gather")
        x, ids = node.operands
        if node.op.axis != len(x.shape) - 1 or (len(x.shape) < 2 and target.kind != "cpu") or not ids.shape:
            return Reason("not along the last of several axes")
        if bounds(x.shape[-1])[0] == 0:
            return Reason("the table may be empty")  # nothing may be read then, not even for a clamped index
        places = [region.operand(v) for v in node.operands]
        if any(p is None for p in places):
            return Reason("operands of a gather must come from memory")
        if places[1] is not None and places[1].layout.reshape((product(ids.shape),)) is None:
            return Reason("the indices have no order of strides")
        table = places[0]
        if len(ids.shape) == 1 and table is not None and along_memory(table) < len(x.shape) - 1:
            return Reason("another axis lies along memory")
        if len(ids.shape) == 1 and all(r.type.shape == node.values[0].shape for r in region.results):
            return None
        return alone(region, GatherOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        value = region.node.values[0]
        x, ids = region.places
        times = _repeats(ids, x.type.shape[-1])
        if times is not None and target.kind == "cpu":
            return [_repeated(region, x, times, target)]
        call = Call("gather_last", region.name)
        b = call.b
        count = product(ids.type.shape)
        lead = x.type.shape[:-1]
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        index = call.view("ids", ids.type.dtype, ids.buffer, _reshaped(ids.layout, (count,)))
        epilogue = Epilogue(call, region, lambda layout: _reshaped(layout, (*lead, count)))
        error = call.error()
        size, n = call.word("size", x.type.shape[-1]), call.word("n", count)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        rows = call.word("rows", product(lead))
        tile = target.vector_bits // 32
        width = tile * TILES
        blocks = b.ceildiv(n, width)
        begin, start = b.pid % blocks * width, b.pid // blocks * ROWS
        end = b.minimum(begin + width, n)
        places = b.scratch(WIDE.get(ids.type.dtype, ids.type.dtype), (width,))
        with b.loop(begin, end, tile) as part:
            found = checked(b, index, [], part.index, b.minimum(end - part.index, tile), tile, size, error, part.index)
            b.store(places, (part.index - begin,), found)

        plain = target.kind == "cpu" and region.body.outputs == [value]

        def columns(at: list[Ix | int], first: Ix | int) -> None:
            taken = b.gather(source, (*at, 0), len(at), b.load(places, (first - begin,), (tile,)))
            epilogue.store((*at, first), taken, (tile,), (b.minimum(end - first, tile),))

        with b.loop(start, b.minimum(start + ROWS, rows)) as row:
            at = unravel(b, row.index, dims)
            if plain:
                copy_each(b, source, epilogue.outs[0], at, places, begin, end - begin)
            else:
                with b.loop(begin, end, tile) as part:
                    columns(at, part.index)
        grid = ceildiv(count, width) * ceildiv(product(lead), ROWS)
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region))]


def _repeats(ids: Operand, size: Dim) -> int | None:
    """How often in a row known indices name every element, as nearest neighbours in a larger image do."""
    if ids.data is None or not isinstance(size, int) or len(ids.type.shape) != 1 or not isinstance(count := ids.type.shape[0], int):
        return None
    times = count // size
    whole = 2 <= times <= REPEATS and times * size == count and ids.layout.is_contiguous and ids.layout.offset == 0
    return times if whole and np.array_equal(ids.data.array, np.arange(count) // times) else None


def _repeated(region: Region, x: Operand, times: int, target: TargetSpec) -> Launch:
    """Every element `times` in a row: a register is loaded once, and shuffled into as many."""
    call = Call("repeat", region.name)
    b, (*lead, size), tile = call.b, x.type.shape, target.vector_bits // 32
    source = call.view("x", x.type.dtype, x.buffer, x.layout)
    epilogue = Epilogue(call, region)
    n, dims, rows = call.word("size", size), [call.word(f"d{i}", d) for i, d in enumerate(lead)], call.word("rows", product(lead))
    blocks = b.ceildiv(n, tile * TILES)
    begin, start = b.pid % blocks * (tile * TILES), b.pid // blocks * ROWS
    with b.loop(start, b.minimum(start + ROWS, rows)) as row:
        at = unravel(b, row.index, dims)
        with b.loop(begin, b.minimum(begin + tile * TILES, n), tile) as part:
            loaded = b.load(source, (*at, part.index), (tile,), limit=(n - part.index,))
            for k in range(times):
                first = part.index * times + k * tile
                taken = b.shuffle(loaded, loaded, [(k * tile + lane) // times for lane in range(tile)])
                epilogue.store((*at, first), taken, (tile,), (n * times - first,))
    grid = ceildiv(size, tile * TILES) * ceildiv(product(lead), ROWS)
    return call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"every element {times} times")


def _reshaped(layout: Layout, shape: tuple[Dim, ...]) -> Layout:
    found = layout.reshape(shape)
    assert found is not None
    return found


class GatherAlongLast(Template):
    """Each row has indices of its own. One program is one row, or many rows of one index each, whose indices run along registers."""

    key = "gather_along_last"
    serves = (GatherAlongAxis,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        x = region.node.operands[0].type
        if bounds(x.shape[-1])[0] == 0:
            return Reason("the table may be empty")
        last = region.op(GatherAlongAxis).axis == x.ndim - 1
        return None if last and target.kind == "cpu" else Reason("not along the last axis")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        (x, ids), y = region.places, region.results[0]
        one = _one_each(region, x, ids, y, target)
        if one is not None:
            return [one]
        call = Call("gather_along_last", region.name)
        b = call.b
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        goal = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        error = call.error()
        *lead, count = ids.type.shape
        size, n = call.word("size", x.type.shape[-1]), call.word("n", count)
        at: list[Ix | int] = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        for_each_index(b, index, at, n, target.vector_bits // 32, size, error,
                       lambda i, place: b.store(goal, (*at, i), b.load(source, (*at, place), ())))
        return [call.finish(product(lead), bytes_=region_bytes(region))]


def _one_each(region: Region, x: Operand, ids: Operand, y: Operand, target: TargetSpec) -> Launch | None:
    """One element of every row, by the addresses of all of them; None where there are more, or where the rows have no common step."""
    *lead, count = ids.type.shape
    layouts = [Layout(tuple(lead), o.layout.strides[:-1]) for o in (x, ids, y)]
    sizes, steps = collapse(tuple(lead), layouts)
    if count != 1 or x.type.shape[:-1] != tuple(lead) or len(sizes) != 1 or not all(at_least(d, 0) for d in x.layout.strides):
        return None
    rows, ((row_step,), (id_step,), (goal_step,)) = sizes[0], steps
    call = Call("gather_one_each", region.name)
    b, tile = call.b, target.vector_bits // 32
    reach: Dim = 1 + (rows - 1) * row_step + (x.type.shape[-1] - 1) * x.layout.strides[-1]
    source = call.view("x", x.type.dtype, x.buffer, Layout((reach,), (1,), x.layout.offset))
    index = call.view("ids", ids.type.dtype, ids.buffer, Layout((rows,), (id_step,), ids.layout.offset))
    goal = call.view("y", y.type.dtype, y.buffer, Layout((rows,), (goal_step,), y.layout.offset), write=True)
    error = call.error()
    size, n = call.word("size", x.type.shape[-1]), call.word("rows", rows)
    row, column = call.word("row", row_step), call.word("column", x.layout.strides[-1])
    begin = b.pid * (tile * TILES)
    with b.loop(begin, b.minimum(begin + tile * TILES, n), tile) as part:
        left = b.minimum(n - part.index, tile)
        safe = b.cast(checked(b, index, [], part.index, left, tile, size, error, part.index), i64)
        where = b.binary("min", b.iota((tile,), 0) + b.from_index(part.index), b.from_index(n - 1))
        taken = b.gather(source, (0,), 0, where * b.from_index(row) + safe * b.from_index(column))
        b.store(goal, (part.index,), taken, limit=(left,))
    return call.finish(ceildiv(rows, tile * TILES), bytes_=2 * y.type.nbytes + ids.type.nbytes, note="one element of every row")


def copy_each(b: KernelBuilder, source: View, goal: View, at: list[Ix | int], places: View, first: Ix | int, count: Ix | int) -> None:
    """goal[at, first + i] = source[at, places[i]], element by element: a load and a store take less than their share of the CPU's own
    instruction for gathers."""
    _each(b, count, lambda i: b.store(goal, (*at, first + i), b.load(source, (*at, b.to_index(b.load(places, (i,), ()))), ())))


def _each(b: KernelBuilder, count: Ix | int, one: Callable[[Ix | int], None], before: Callable[[Ix], None] | None = None) -> None:
    whole = count // EACH * EACH
    with b.loop(0, whole, EACH) as some:
        if before is not None:
            before(some.index)
        for k in range(EACH):
            one(some.index + k)
    with b.loop(whole, count) as rest:
        one(rest.index)


def for_each_index(b: KernelBuilder, index: View, at: list[Ix | int], count: Ix, tile: int, size: Ix, error: View,
                   one: Callable[[Ix | int, Ix], None]) -> None:
    """one(i, index[at, i]) in order, for a row of indices of the program's own. They are checked by blocks, and those of later blocks are
    asked for meanwhile: in turns with the elements they would come too late."""
    dtype = index.type.dtype
    places = b.scratch(WIDE.get(dtype, dtype), (tile * TILES,))
    with b.loop(0, count, tile * TILES) as block:
        end = b.minimum(count - block.index, tile * TILES)
        with b.loop(0, end, tile) as columns:
            first = block.index + columns.index
            safe = checked(b, index, at, first, b.minimum(count - first, tile), tile, size, error, b.pid * count + first)
            b.store(places, (columns.index,), safe)

        def ask(i: Ix) -> None:
            for k in range(0, EACH, 64 // dtype.itemsize):
                b.prefetch(index, (*at, block.index + i + AHEAD + k))

        _each(b, end, lambda i: one(block.index + i, b.to_index(b.load(places, (i,), ()))), ask)


class GatherAlongRows(Template):
    """Whole rows by one index each, for every matrix its own ones. One program is one row."""

    key = "gather_along_rows"
    serves = (GatherAlongAxis,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        x, ids = region.node.operands[0].type, region.operand(region.node.operands[1])
        if bounds(x.shape[region.op(GatherAlongAxis).axis])[0] == 0:
            return Reason("the table may be empty")
        rows = region.op(GatherAlongAxis).axis == x.ndim - 2 and ids is not None and ids.layout.strides[-1] == 0
        return None if rows and target.kind == "cpu" else Reason("not whole rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        (x, ids), y = region.places, region.results[0]
        call = Call("gather_along_rows", region.name)
        b = call.b
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        goal = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        error = call.error()
        *lead, width = ids.type.shape
        size, n = call.word("size", x.type.shape[-2]), call.word("n", width)
        *at, row = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        wanted = b.to_index(b.load(index, (*at, row, 0), ()))
        tile, found = target.vector_bits // 32, clamped_index(b, error, b.pid, wanted, size)
        with b.loop(0, n, tile) as columns:
            left = (b.minimum(n - columns.index, tile),)
            b.store(goal, (*at, row, columns.index), b.load(source, (*at, found, columns.index), (tile,), limit=left), limit=left)
        return [call.finish(product(lead), bytes_=region_bytes(region))]


def checked(b: KernelBuilder, index: View, at: list[Ix | int], first: Ix | int, left: Ix | int, tile: int, size: Ix, error: View,
             position: Ix | int) -> Tile:
    """A tile of indices, each inside 0 … size-1; one that is not is reported."""
    wanted = b.load(index, (*at, first), (tile,), limit=(left,))
    wide = WIDE.get(wanted.dtype)
    if wide is not None:  # the size of the axis need not fit the dtype of the indices
        wanted = b.cast(wanted, wide)
    bad = b.binary("or", b.cmp("lt", wanted, 0), b.cmp("ge", wanted, b.from_index(size, wanted.dtype)))
    with b.if_(b.reshape(b.reduce("any", bad), ())), b.loop(0, left) as each:
        value = b.to_index(b.load(index, (*at, first + each.index), ()))
        report_outside(b, error, position + each.index, value, size)
    return b.binary("max", b.binary("min", wanted, b.from_index(size - 1, wanted.dtype)), 0)


TOGETHER = 512  # elements a program computes, in rows


class IndexRows(Template):
    key = "index_rows"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, IndexOp) or target.kind != "cpu":
            return Foreign("no index")
        places = [region.operand(v) for v in node.operands]
        if places[0] is None or any(o is None for o in places):
            return Reason("operands must come from memory")
        if not node.values[0].shape or any(r.type.shape != node.values[0].shape for r in region.results):
            return Reason("outputs must have the shape of the op's result")
        if any(bounds(d)[0] <= 0 for d in places[0].type.shape):
            return Reason("the operand may be empty")  # nothing may be read then, not even for a clamped index
        return Reason("the operand runs backwards") if any(isinstance(s, int) and s < 0 for s in places[0].layout.strides) else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        op = region.op(IndexOp)
        x, *ids = region.places
        shape, axes = node.values[0].shape, op.axes
        first, kept = axes[0], x.type.ndim - len(axes)  # axes of the operand that stay
        rank = len(shape) - kept
        call = Call("index_rows", region.name)
        b = call.b
        behind = range(first + len(axes), x.type.ndim)
        mine = behind[-1] if behind else first - 1 if rank == 0 else None  # the operand's axis that is the result's last
        along = mine is not None
        own_axis, step = (1, 1) if mine is None else (shape[-1], x.layout.strides[mine])
        reached = x.layout.extent - x.layout.offset - (own_axis - 1) * step
        source = call.view("x", x.type.dtype, x.buffer, Layout((reached, own_axis), (1, step), x.layout.offset))
        views = [call.view(f"i{i}", o.type.dtype, o.buffer, o.layout) for i, o in enumerate(ids) if o is not None]
        epilogue = Epilogue(call, region)
        error = call.error()
        dims = [call.word(f"d{i}", d) for i, d in enumerate(shape)]
        sizes = [call.word(f"n{a}", x.type.shape[a]) for a in axes]
        steps = [call.word(f"s{a}", s) for a, s in enumerate(x.layout.strides)]
        rows, last, tile = product(shape[:-1]), shape[-1], target.vector_bits // 32
        count, per = call.word("rows", rows), max(TOGETHER // last, 1) if isinstance(last, int) and last else 1
        begin = b.pid * per

        def own(i: int, at: list[Ix | int]) -> list[Ix | int]:
            """Where index operand i has the index of a position."""
            dims_, middle = node.operands[1 + i].shape, at[first : first + rank]
            return [0 if d == 1 else m for d, m in zip(dims_, middle[rank - len(dims_) :], strict=True)]

        moving = [not along and len(v.shape) > 0 and v.shape[-1] != 1 for v in node.operands[1:]]

        with b.loop(begin, b.minimum(begin + per, count)) as row:
            outside = unravel(b, row.index, dims[:-1])
            at: list[Ix | int] = [*outside, 0]
            base: Ix | int = 0
            for a in (*range(first), *behind):
                if a != mine:
                    base = base + at[a if a < first else a - len(axes) + rank] * steps[a]
            for i, view in enumerate(views):
                if moving[i]:
                    continue
                wanted = b.to_index(b.load(view, own(i, at), ()))
                base = base + clamped_index(b, error, row.index * dims[-1], wanted, sizes[i]) * steps[axes[i]]
            with b.loop(0, dims[-1], tile) as loop:
                column, left = loop.index, b.minimum(dims[-1] - loop.index, tile)
                if along:
                    taken = b.load(source, (base, column), (tile,), limit=(left,))
                else:
                    places = b.full((tile,), 0, i64) + b.from_index(base)
                    for i, view in enumerate(views):
                        if moving[i]:
                            found = checked(b, view, own(i, at)[:-1], column, left, tile, sizes[i], error, row.index * dims[-1] + column)
                            places = places + b.cast(found, i64) * b.from_index(steps[axes[i]])
                    taken = b.gather(source, (0, 0), 0, places)
                epilogue.store((*outside, column), taken, (tile,), (left,))
        return [call.finish(ceildiv(rows, per), flops=region_flops(region), bytes_=region_bytes(region))]
