"""Lookups of rows on a GPU: the shared kernel, a row on a group of threads, 16 bytes per thread and access."""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import bounds, ceildiv, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.index.indexing import Gather as GatherOp
from ....ops.index.indexing import Index as IndexOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import Shared, on_threads, vector_width
from ...cuda.tiled import aligned, flat, tiled
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..gather import GatherTemplate, along_memory

BLOCK = 128  # threads
COLUMNS, ELEMENTS = 128, 2048  # columns and elements of a program that picks elements, at most


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
        if not along and (found := picked(region, table, [region.given(node.operands[1])], (node.op.axis,))) is not None:
            return [found]
        short = not isinstance(inner, int) or inner < (32 if vector == 1 else max(2 * vector, 4) if vector < 4 else 1)
        if short or table.packed.form != "plain" or not along:
            lanes = min(4, 1 << (inner - 1).bit_length()) if isinstance(inner, int) and inner > 0 and table.packed.form == "plain" else 4
            return Shared(GatherTemplate()).build(region, replace(target, vector_bits=32 * lanes))  # no thread of a row without elements
        assert isinstance(inner, int)
        threads = BLOCK if inner >= BLOCK * vector else min(32, 1 << (inner // vector).bit_length() - 1)
        # its tile is four times this wide
        (launch,) = GatherTemplate().build(region, replace(target, vector_bits=32 * threads * vector // 4))
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, vector)
        return [launch]


class CudaIndex(Template):
    """Elements picked by several index arrays that are known: a resize of images, patches."""

    key = "picked"
    serves = (IndexOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return None if self._launch(region) is not None else Reason("indices that are not known, or an operand that is not plain memory")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        found = self._launch(region)
        assert found is not None
        return [found]

    def _launch(self, region: Region) -> Launch | None:
        node = region.node
        table, *ids = (region.operand(v) for v in node.operands)
        if table is None or any(r.type.shape != node.values[0].shape for r in region.results):
            return None
        return picked(region, table, [o for o in ids if o is not None], region.op(IndexOp).axes)


def picked(region: Region, table: Operand, ids: list[Operand], axes: tuple[int, ...]) -> Launch | None:
    """Elements at known places along adjacent axes as a block program: some rows and columns of the result at a time. None where indices
    are not known, or the operand is not plain memory."""
    node, first = region.node, axes[0]
    shape, rank = node.values[0].shape, len(node.values[0].shape) - len(table.type.shape) + len(axes)  # the shape of the indices, broadcast
    if len(ids) != len(axes) or not shape or table.packed.form != "plain" or bounds(table.type.numel)[1] >= 1 << 31:
        return None
    if any(not isinstance(s, int) or s < 0 for s in table.layout.strides):
        return None
    for one, a in zip(ids, axes, strict=True):
        numbers = None if one.data is None else one.data.array
        if numbers is None or not numbers.size or not 0 <= numbers.min() <= numbers.max() < bounds(table.type.shape[a])[0]:
            return None
    places = {v: o.layout.expand(shape) for v in leaves_of_epilogue(region, node.values[0]) if (o := region.operand(v)) is not None}
    steps = table.layout.strides
    own = (*steps[:first], *(0,) * rank, *steps[axes[-1] + 1 :])
    middle = [o.layout.expand(shape[first : first + rank]).strides for o in ids]
    walked = [own, *((*(0,) * first, *m, *(0,) * (len(shape) - first - rank)) for m in middle)]
    lays = [*(Layout(shape, s) for s in walked), *(r.layout for r in region.results), *places.values()]
    sizes, strides = collapse(shape, lays)
    while len(sizes) < 2:
        sizes, strides = [1, *sizes], [[0, *s] for s in strides]
    width = min(COLUMNS, 1 << (int(min(bounds(sizes[-1])[1], COLUMNS)) - 1).bit_length())
    tile = (min(ELEMENTS // width, 1 << (int(min(bounds(sizes[-2])[1], ELEMENTS)) - 1).bit_length()), width)
    call, vectors = Call("picked", region.name), dict[str, int]()
    b = call.b

    def view(name: str, o: Operand, which: int, *, write: bool = False) -> View:
        offset = o.layout.offset if which <= len(ids) else lays[which].offset
        whole = Layout(tuple(sizes), tuple(strides[which]), offset)
        vectors[name] = aligned(whole, sizes[-1])
        return call.view(name, o.type.dtype, o.buffer, whole, write=write)

    source = call.view("table", table.type.dtype, table.buffer, flat(table.layout))
    indices = [view(f"i{i}", o, 1 + i) for i, o in enumerate(ids)]
    outs = [view(f"y{i}", r, 1 + len(ids) + i, write=True) for i, r in enumerate(region.results)]
    ins = {v: view(f"e{i}", region.given(v), 1 + len(ids) + len(outs) + i) for i, v in enumerate(places)}
    m, n = call.word("m", sizes[-2]), call.word("n", sizes[-1])
    down, across = (call.word(name, ceildiv(d, t)) for name, d, t in zip(("down", "across"), sizes[-2:], tile, strict=True))
    inside = b.pid % (down * across)
    z = unravel(b, b.pid // (down * across), [call.word(f"d{i}", d) for i, d in enumerate(sizes[:-2])])
    at = (inside // across * tile[0], inside % across * tile[1])
    limit = (m - at[0], n - at[1])

    def read(v: View) -> Tile:
        part = tuple(1 if s == 0 else t for s, t in zip(v.type.strides[-2:], tile, strict=True))
        return b.load(v, (*z, *at), part, limit=tuple(w if p != 1 else None for w, p in zip(limit, part, strict=True)))

    base: Ix | int = 0
    hops = [s for s in strides[0] if isinstance(s, int)]
    for where, step in zip((*z, *at), hops, strict=True):
        base = base + where * step
    places_: Tile | None = None
    for axis, step in enumerate(hops[-2:]):
        if step != 0:
            along = b.iota((tile[0], 1) if axis == 0 else (1, tile[1]), axis, i32) * step
            places_ = along if places_ is None else places_ + along
    for index, a in zip(indices, axes, strict=True):
        size = steps[a]
        assert isinstance(size, int)
        found = b.cast(read(index), i32) * size
        places_ = found if places_ is None else places_ + found
    assert places_ is not None
    row = b.cmp("lt", b.iota((tile[0], 1), 0, i32), b.from_index(limit[0], i32))
    column = b.cmp("lt", b.iota((1, tile[1]), 1, i32), b.from_index(limit[1], i32))
    spots = b.select(b.binary("and", row, column), b.broadcast(places_, tile), b.full(tile, -1, i32))
    x = widen(b, b.gather(source, (base,), 0, spots, masked=True))
    evaluate = Evaluator(b, region, lambda v, o: read(ins[v]), {node.values[0]: x})
    for v, y, r in zip(region.body.outputs, outs, region.results, strict=True):
        b.store(y, (*z, *at), narrow(b, b.broadcast(evaluate(v), tile), r.type.dtype), limit=limit)
    grid = product(sizes[:-2]) * ceildiv(sizes[-2], tile[0]) * ceildiv(sizes[-1], tile[1])
    moved = region_bytes(region) - table.type.nbytes + node.values[0].type.nbytes
    return tiled(call.finish(grid, flops=region_flops(region), bytes_=moved), warps=4, vectors=vectors)
