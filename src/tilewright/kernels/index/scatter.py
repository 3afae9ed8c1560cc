"""Writing rows at indices: added (the backward pass of an embedding), overwritten, multiplied, extremes. One program owns a strip of
columns and walks all indices in order, so every element has one order of updates whatever the number of threads.

Every index is checked: one outside the axis is reported in the error block and clamped. No indices: the operand is only copied.

Writing elements at indices along one axis, every row with indices of its own. A program owns a row (or a strip of columns) and takes its
indices in order, so every element has one order of updates whatever the number of threads. Where the axis is the innermost one and all
rows are written, the program copies its row first, while it is near.

Every index is checked: one outside the axis is reported in the error block and clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ...core.dims import Dim, Shape, bounds, ceildiv, product
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ops.index.scatter import Scatter as ScatterOp
from ...ops.index.scatter import ScatterAdd as ScatterAddOp
from ...ops.index.scatter import ScatterAlong as ScatterAlongOp
from ...ops.index.scatter import ScatterRows
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..loops import in_tiles
from ..pointwise.copies import copy_launch
from ..pointwise.pointwise import unravel
from ..region import Region, narrow, widen
from ..template import Reason, Template, alone
from .gather import clamped_index
from .gather_last import for_each_index

STRIPS = (1024, 512, 256, 128, 64, 16)  # columns of a program, of 32 bits each: as many as leave two programs for every core
HELD = 256  # of them in registers at once


class ScatterAddTemplate(Template):
    key = "scatter_add"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        wrong = alone(region, ScatterAddOp)
        return wrong if wrong is None else alone(region, ScatterOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, updates = region.places
        result, axis = region.results[0], region.op(ScatterRows).axis
        launches = [] if x.buffer is result.buffer else [copy_launch(f"{region.name}.copy", x, result, target)]
        if updates.type.numel == 0:  # nothing is read either: whoever makes the indices may not run at all
            return launches or [copy_launch(f"{region.name}.copy", x, result, target)]
        op = region.op(ScatterRows)
        mode = op.mode if isinstance(op, ScatterOp) else "add"
        call = Call("scatter_add" if mode == "add" else f"scatter_{mode}", region.name)
        b = call.b
        old = call.view("old", result.type.dtype, result.buffer, result.layout)
        new = call.view("new", result.type.dtype, result.buffer, result.layout, write=True)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        source = call.view("updates", updates.type.dtype, updates.buffer, updates.layout)
        error = call.error()
        size = call.word("size", x.type.shape[axis])
        before, after = x.type.shape[:axis], x.type.shape[axis + 1 :]
        outer = [call.word(f"d{i}", d) for i, d in enumerate((*before, *after[:-1]))]
        places = [call.word(f"i{i}", d) for i, d in enumerate(ids.type.shape)]
        count = call.word("count", product(ids.type.shape))
        inner = call.word("n", after[-1]) if after else None
        strip = _strip((*before, *after), x.type.dtype, target)
        strips: Ix | int = 1 if inner is None else b.ceildiv(inner, strip)
        at = unravel(b, b.pid // strips, outer)
        lead, rest = at[: len(before)], at[len(before) :]
        start = (b.pid % strips) * strip
        tile = min(strip, HELD * 4 // max(x.type.dtype.itemsize, 4))
        shape = () if inner is None else (tile,)
        with b.loop(0, count, 1) as loop:
            here = unravel(b, loop.index, places)
            wanted = b.to_index(b.load(index, here, ()))
            row = clamped_index(b, error, loop.index, wanted, size)
            with nullcontext() if bounds(x.type.shape[axis])[0] > 0 else b.if_(b.compare("gt", size, 0)):  # an empty axis has no row
                def update(place: Ix | int, left: Ix | int | None, carried: Sequence[Tile] = ()) -> Sequence[Tile]:
                    last, limit = () if inner is None else (place,), None if left is None else (left,)
                    add = widen(b, b.load(source, (*lead, *here, *rest, *last), shape, limit=limit))
                    where = (*lead, row, *rest, *last)
                    total = add if mode == "set" else b.binary(mode, widen(b, b.load(old, where, shape, limit=limit)), add)
                    b.store(new, where, narrow(b, total, result.type.dtype), limit=limit)
                    return carried

                if inner is None:
                    update(0, None)
                else:
                    in_tiles(b, start, b.minimum(start + strip, inner), tile, update)
        grid: Dim = product((*before, *after[:-1])) * (ceildiv(after[-1], strip) if after else 1)
        moved = updates.type.nbytes * 3 + ids.type.nbytes
        return [*launches, call.finish(grid, flops=updates.type.numel, bytes_=moved)]



def _strip(shape: Shape, dtype: DType, target: TargetSpec) -> int:
    """Columns of a program, of all there are."""
    words = max(dtype.itemsize, 4) // 4
    few = bounds(product(shape))[1] * words
    return next((s // words for s in STRIPS if few >= 2 * s * target.cores), STRIPS[-1])


class ScatterAlongTemplate(Template):
    key = "scatter_along"
    serves = (ScatterAlongOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, updates = region.places
        result, op = region.results[0], region.op(ScatterAlongOp)
        axis, shape = op.axis, ids.type.shape
        copied = x.buffer is result.buffer
        here = not copied and axis == len(shape) - 1 and shape[:-1] == x.type.shape[:-1] and target.kind == "cpu"
        launches = [] if copied or here else [copy_launch(f"{region.name}.copy", x, result, target)]
        if updates.type.numel == 0 or bounds(x.type.shape[axis])[1] == 0:
            return launches or [copy_launch(f"{region.name}.copy", x, result, target)]
        call = Call(f"scatter_along_{op.mode}", region.name)
        b, dtype = call.b, result.type.dtype
        old = call.view("old", dtype, result.buffer, result.layout, write=here)  # what it reads it has written itself, then
        new = call.view("new", dtype, result.buffer, result.layout, write=True)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        source = call.view("updates", dtype, updates.buffer, updates.layout)
        error = call.error()
        size, count = call.word("size", x.type.shape[axis]), call.word("count", shape[axis])
        before, after = shape[:axis], shape[axis + 1 :]
        outer = [call.word(f"d{i}", d) for i, d in enumerate((*before, *after[:-1]))]
        width = call.word("width", after[-1]) if after else None
        strip = _strip((*before, *after), dtype, target)
        strips: Ix | int = 1 if width is None else b.ceildiv(width, strip)
        at = unravel(b, b.pid // strips, outer) if outer else []
        lead, rest = at[: len(before)], at[len(before) :]
        first, tile = b.pid % strips * strip, target.vector_bits // 32

        def update(row: Ix | int, j: Ix | int, last: tuple[Ix | int, ...]) -> None:
            goal, where = (*lead, row, *rest, *last), (*lead, j, *rest, *last)
            fresh = widen(b, b.load(source, where, ()))
            total = fresh if op.mode == "set" else b.binary("add", widen(b, b.load(old, goal, ())), fresh)
            b.store(new, goal, narrow(b, total, dtype))

        def along_columns() -> None:
            assert width is not None
            with b.loop(0, count) as loop, b.loop(first, b.minimum(width, first + strip)) as column:
                wanted = b.to_index(b.load(index, (*lead, loop.index, *rest, column.index), ()))
                row = clamped_index(b, error, (b.pid // strips) * count + loop.index, wanted, size)
                update(row, loop.index, (column.index,))

        if here:
            given = call.view("x", dtype, x.buffer, x.layout)
            with b.loop(0, size, tile) as columns:
                left = (b.minimum(size - columns.index, tile),)
                b.store(new, (*lead, columns.index), b.load(given, (*lead, columns.index), (tile,), limit=left), limit=left)
        with b.if_(b.compare("gt", size, 0)):  # an empty axis has no row
            if width is None:
                for_each_index(b, index, lead, count, tile, size, error, lambda i, place: update(place, i, ()))
            else:
                along_columns()
        grid: Dim = product((*before, *after[:-1])) * (ceildiv(after[-1], strip) if after else 1)
        moved = updates.type.nbytes * 3 + ids.type.nbytes + (2 * x.type.nbytes if here else 0)
        return [*launches, call.finish(grid, flops=updates.type.numel, bytes_=moved)]
