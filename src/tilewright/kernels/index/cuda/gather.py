"""Lookups of rows on a GPU: the shared kernel, a row on a group of threads, 16 bytes per thread and access."""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.index.indexing import Gather as GatherOp
from ....tile.builder import Tile, View
from ...call import Call
from ...cuda.groups import Shared, on_threads, vector_width
from ...cuda.tiled import aligned, tiled
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow, widen
from ...template import region_bytes, region_flops
from ..gather import GatherTemplate, along_memory

BLOCK = 128  # threads
ROWS, COLUMNS = 16, 128  # of a program that picks elements of rows


class CudaGather(GatherTemplate):
    """Rows of known length that are long enough for a group; others as the shared template has them."""

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        assert isinstance(node.op, GatherOp)
        table, shape = region.operand(node.operands[0]), node.values[0].shape
        assert table is not None
        last = len(table.type.shape) - 1
        if region.operand(node.operands[1]).type.ndim == 1 and along_memory(table) != node.op.axis:  # type: ignore[union-attr]
            last = along_memory(table)
        inner = shape[last - len(table.type.shape)] if shape else 1
        places = [o for v in leaves_of_epilogue(region, node.values[0]) if (o := region.operand(v)) is not None]
        layouts = [table.layout, *(r.layout for r in region.results), *(o.layout.expand(shape) for o in places)]
        vector = vector_width([o.type.dtype.itemsize for o in (table, *region.results, *places)], inner, layouts)
        along = node.op.axis != last
        if not along and (found := along_rows(region, table)) is not None:
            return [found]
        if not isinstance(inner, int) or inner < 2 * vector or (vector == 1 and inner < 32) or table.packed.form != "plain" or not along:
            return Shared(GatherTemplate()).build(region, target)
        threads = BLOCK if inner >= BLOCK * vector else min(32, 1 << (inner // vector).bit_length() - 1)
        # its tile is four times this wide
        (launch,) = GatherTemplate().build(region, replace(target, vector_bits=32 * threads * vector // 4))
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, vector)
        return [launch]


def along_rows(region: Region, table: Operand) -> Launch | None:
    """Elements of rows at known places (a resize, a flip, a roll along memory) as a block program: some rows and columns at a time, or None
    where indices are not known or rows do not lie along memory."""
    node = region.node
    shape, ids = node.values[0].shape, region.operand(node.operands[1])
    assert ids is not None
    size, count = table.type.shape[-1], shape[-1] if shape else 0
    if ids.data is None or ids.type.ndim != 1 or table.packed.form != "plain" or table.layout.strides[-1] != 1 or not isinstance(size, int):
        return None
    numbers = ids.data.array
    if not numbers.size or numbers.min() < 0 or numbers.max() >= size or bounds(table.type.numel)[1] >= 1 << 31:
        return None
    values = list(leaves_of_epilogue(region, node.values[0]))
    places = {v: o.layout.expand(shape) for v in values if (o := region.operand(v)) is not None}
    lays = [table.layout, *(r.layout for r in region.results), *places.values()]
    sizes, strides = collapse(shape[:-1], [Layout(shape[:-1], x.strides[:-1]) for x in lays])
    if not sizes:
        sizes, strides = [1], [[0] for _ in lays]
    call, vectors = Call("gather_rows", region.name), dict[str, int]()
    b = call.b

    def view(name: str, o: Operand, lay: Layout, steps: list[Dim], width: Dim, *, write: bool = False) -> View:
        whole = Layout((*sizes, width), (*steps, lay.strides[-1]), lay.offset)
        vectors[name] = aligned(whole, count)
        return call.view(name, o.type.dtype, o.buffer, whole, write=write)

    source = view("table", table, table.layout, strides[0], size)
    index = call.view("ids", ids.type.dtype, ids.buffer, Layout((1, count), (0, ids.layout.strides[0]), ids.layout.offset))
    outs = [view(f"y{i}", r, r.layout, strides[1 + i], count, write=True) for i, r in enumerate(region.results)]
    ins = {v: view(f"e{i}", region.operand(v), lay, strides[1 + len(outs) + i], count)  # type: ignore[arg-type]
           for i, (v, lay) in enumerate(places.items())}  # fmt: skip
    m, n = call.word("m", sizes[-1]), call.word("n", count)
    down, across = call.word("down", ceildiv(sizes[-1], ROWS)), call.word("across", ceildiv(count, COLUMNS))
    z = unravel(b, b.pid // (down * across), [call.word(f"d{i}", d) for i, d in enumerate(sizes[:-1])])
    inside = b.pid % (down * across)
    row, column = inside // across * ROWS, inside % across * COLUMNS
    limit = (m - row, n - column)
    at = b.cast(b.load(index, (0, column), (1, COLUMNS), limit=(None, limit[1])), i32)
    step = strides[0][-1]
    hop: Tile | int = step if isinstance(step, int) else b.from_index(call.word("hop", step), i32)
    number = b.iota((ROWS, 1), 0, i32)
    where = b.select(b.cmp("lt", number, b.from_index(limit[0], i32)), at + number * hop, -1)
    x = widen(b, b.gather(source, (*z, row, 0), len(sizes), where, masked=True))

    def leaf(v: Value, o: Operand) -> Tile:
        *_, sm, sn = ins[v].type.strides
        part = (1 if sm == 0 else ROWS, 1 if sn == 0 else COLUMNS)
        return b.load(ins[v], (*z, row, column), part, limit=tuple(w if p != 1 else None for w, p in zip(limit, part, strict=True)))

    evaluate = Evaluator(b, region, leaf, {node.values[0]: x})
    for v, y, r in zip(region.body.outputs, outs, region.results, strict=True):
        b.store(y, (*z, row, column), narrow(b, b.broadcast(evaluate(v), (ROWS, COLUMNS)), r.type.dtype), limit=limit)
    grid = product(sizes[:-1]) * ceildiv(sizes[-1], ROWS) * ceildiv(count, COLUMNS)
    moved = region_bytes(region) - table.type.nbytes + node.values[0].type.nbytes
    return tiled(call.finish(grid, flops=region_flops(region), bytes_=moved), warps=4, vectors=vectors)
