"""Copies between layouts that run along different axes, on a GPU: a warp transposes squares of 32 by 32 through shared memory, so that both
sides are read and written side by side. The barrier between writing and reading a square follows from the tokens of the scratch."""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import at_least, ceildiv, product
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Launch
from ...region import Operand, collapse
from ..pointwise import unravel

SIDE = 32
SMALLEST = 16  # rows and columns below which a plain copy does as well
PROGRAMS = 4  # warps of a block


def transposing_copy(name: str, source: Operand, result: Operand, target: TargetSpec, note: str = "") -> Launch | None:
    """A copy between layouts that run along different axes, or None where a plain copy does as well."""
    sizes, (a, b) = collapse(result.type.shape, [source.layout, result.layout])
    along = [next((i for i, s in enumerate(x) if s == 1), None) for x in (a, b)]
    read, written = along
    if read is None or written is None or read == written or source.type.dtype.is_bool or source.type.dtype.itemsize not in (2, 4, 8):
        return None
    if not (at_least(sizes[read], SMALLEST) and at_least(sizes[written], SMALLEST)):
        return None
    order = (*(i for i in range(len(sizes)) if i not in along), written, read)
    shape = tuple(sizes[i] for i in order)
    views = [Layout(shape, tuple(x[i] for i in order), o.layout.offset) for x, o in ((a, source), (b, result))]
    return _transpose(name, replace(source, layout=views[0]), replace(result, layout=views[1]), note)


def _transpose(name: str, source: Operand, result: Operand, note: str) -> Launch:
    """[..., M, K] that is contiguous along K into one that is contiguous along M."""
    *lead, m, k = source.layout.shape
    dtype = source.type.dtype
    call = Call("transposing", name)
    b = call.b
    x = call.view("x", dtype, source.buffer, source.layout)
    y = call.view("y", dtype, result.buffer, result.layout, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
    rows, columns = call.word("m", m), call.word("k", k)
    down, across = b.ceildiv(rows, SIDE), b.ceildiv(columns, SIDE)
    *at, i, j = unravel(b, b.pid, [*dims, down, across])
    row, column = i * SIDE, j * SIDE
    square = b.scratch(dtype, (SIDE, SIDE + max(1, 4 // dtype.itemsize)), "shared")  # the pitch keeps columns in different banks
    b.store(square, (0, 0), b.load(x, (*at, row, column), (SIDE, SIDE), limit=(rows - row, columns - column)))
    transposed = b.load(square, (0, 0), (SIDE, SIDE), axes=(1, 0))
    order = tuple(range(len(lead)))
    b.store(y, (*at, row, column), transposed, axes=(len(order) + 1, len(order)), limit=(columns - column, rows - row))
    grid = product(lead) * ceildiv(m, SIDE) * ceildiv(k, SIDE)
    launch = call.finish(grid, bytes_=source.type.nbytes * 2, note=note)
    launch.kernel = on_threads(launch.kernel, SIDE, PROGRAMS)
    return launch
