"""The epilogue of a product on Hopper: a region's elementwise consumers over one warpgroup's accumulators, and the results' way out.

Rows and columns are those of the matrix of results; results that TMA can write go through shared memory, others straight
from registers, with a mask at the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....core.dims import Dim, divisible
from ....core.dtypes import bf16, f16, f32
from ....ir.graph import Value
from ....ir.layout import Layout
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import TensorMap, forward
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow

SLICE = 128  # bytes of columns at a time: a swizzled row of shared memory
NARROW = 32  # ... where results go to memory from registers


@dataclass(frozen=True)
class Matrix:
    """A result or something the epilogue reads, as a matrix: strides of rows and columns, and the offset."""

    operand: Operand
    row: Dim
    column: Dim
    offset: Dim

    @property
    def by_tma(self) -> bool:
        """Rows of floats of up to 32 bits at multiples of 16 bytes."""
        dtype = self.operand.type.dtype
        even = all(divisible(x, 16 // dtype.itemsize) for x in (self.row, self.offset))
        return dtype in (bf16, f16, f32) and self.column == 1 and self.row != 0 and even and forward(self.row)

    @property
    def in_pairs(self) -> bool:
        """Neighbours of a row can be read and written two at a time."""
        if self.column == 0:
            return True
        return self.column == 1 and divisible(self.row, 2) and divisible(self.offset, 2)


@dataclass(eq=False)
class Epilogue:
    """What a kernel needs to know about its epilogue once `call` holds it."""

    acc: Var
    row: Var
    column: Var
    batch: Var
    width: int
    maps: tuple[TensorMap, ...]
    stored: tuple[Var, ...]
    added: Var | None


def add_epilogue(
    call: Call, region: Region, value: Value, size: tuple[Dim, Dim], results: list[Matrix], leaves: dict[Value, Matrix], bm: int,
    bn: int = SLICE,
) -> Epilogue:  # fmt: skip
    """Views, maps and the body of the epilogue over `value`, a matrix of `size`, for blocks of `bm` rows and `bn` columns. The first whole
    matrix that it reads comes through the ring of the operands."""
    b = call.b
    m, n = size
    item = results[0].operand.type.dtype.itemsize
    through_shared = all(r.by_tma and r.operand.type.dtype.itemsize == item for r in results)
    wide = min(SLICE, bn * item)  # bytes of a row of a slice
    width = wide // item if through_shared else NARROW
    outs: list[View] = []
    maps: list[TensorMap] = []
    for i, x in enumerate(results):
        steps = (x.row * item, x.row * m * item)
        maps.append(TensorMap(len(call._arguments), x.operand.type.dtype, (n, m, 1), steps, (wide // item, 64, 1), wide))
        outs.append(_view(call, f"c{i}", x, size, write=True))
    ring = through_shared and item == 2 and wide == SLICE  # whose rows the ring's stages have room for
    first = next((v for v, x in leaves.items() if x.by_tma and x.operand.type.dtype.itemsize == 2), None) if ring else None
    ins = {}
    for i, (v, x) in enumerate(leaves.items()):
        if v is first:
            maps.append(TensorMap(len(call._arguments), x.operand.type.dtype, (n, m, 1), (x.row * 2, x.row * m * 2), (width, bm, 1), SLICE))
        ins[v] = _view(call, f"e{i}", x, size)
    rows, columns = call.word("m", m), call.word("n", n)
    acc, row, column, batch = Var(TileType((64, width), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column"), Var(INDEX, "batch")
    r, c = Ix(b, row), Ix(b, column)
    total = Tile(b, acc)

    def write(limit: tuple[Ix | int, Ix | int] | None) -> None:
        def leaf(v: Value, o: Operand) -> Tile:
            sm, sn = ins[v].type.strides
            shape = (1 if sm == 0 else 64, 1 if sn == 0 else width)
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, shape, strict=True))
            return b.load(ins[v], (r, c), shape, limit=bound)

        evaluate = evaluator(region)(b, region, leaf, {value: total})
        for view, v, result in zip(outs, region.body.outputs, results, strict=True):
            b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (64, width)), result.operand.type.dtype), limit=limit)

    others = [x for v, x in leaves.items() if v is not first]
    if through_shared and (not others or (all(x.row == 0 for x in others) and divisible(n, width))):
        write(None)  # TMA stops at the edges by itself
    else:
        inside = b.binary("and", b.compare("le", r + 64, rows), b.compare("le", c + width, columns))
        with b.if_(inside):
            write(None)
        with b.if_(b.unary("not", inside)):
            write((rows - r, columns - c))
    stored = tuple(x.var for x in outs) if through_shared else ()
    added = None if first is None else ins[first].var
    return Epilogue(acc, row, column, batch, width, tuple(maps) if through_shared else (), stored, added)


def _view(call: Call, name: str, x: Matrix, size: tuple[Dim, Dim], *, write: bool = False) -> View:
    o = x.operand
    return call.view(name, o.type.dtype, o.buffer, Layout(size, (x.row, x.column), x.offset), write=write)
