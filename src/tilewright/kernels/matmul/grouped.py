"""Grouped products: rows that lie in the order of their groups, each group with a matrix of its own (experts).

How many rows a group has is known when the kernel runs. A launch before cuts the groups into blocks of rows and lists them (group, first
row, rows); there are at most M/block + groups + 1, the last for rows that belong to no group, and blocks of no rows fill the list up. One
program multiplies one block with one panel of its group's matrix, in register tiles as `matmul` does, so an element has the bits of the
plain product: neither the other rows nor the number of threads change it. Matrices of groups without rows are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.dims import Dim, ceildiv, divisible
from ...core.dtypes import DType, compute_dtype, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.matmul.grouped import GroupedGemm as GroupedGemmOp
from ...ops.matmul.grouped import GroupedOuter as GroupedOuterOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Buffer, Launch, Packed
from ..region import Operand, Region, narrow_sum
from ..template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .chains import CHAIN, accumulate_chains
from .matmul import MAX_BLOCK, default_config
from .panels import pack_panels
from .product import Config, even_blocks
from .tiling import for_each_tile, leaves_of_epilogue, tile_heights, write_tile

ENTRY = 3  # words of the list for a block: group, first row, rows
AT_ONCE = 16  # ends whose loads are in flight together
NOBODY = -1  # the group of rows past the last end


def end_of(b: KernelBuilder, ends: View, group: Ix | int, before: Ix | int, rows: Ix | int) -> Ix | int:
    """One past the last row of a group whose predecessor ended at `before`."""
    return b.minimum(b.maximum(b.to_index(b.load(ends, (group,), ())), before), rows)


def blocks_launch(name: str, ends: Operand, rows: Dim, block: int) -> tuple[Launch, Buffer, Dim]:
    """The list of blocks, a program for each."""
    groups = ends.type.shape[0]
    count = rows // block + groups + 1
    buffer = Buffer(f"{name}.blocks", "temp", count * ENTRY * i64.itemsize)
    call = Call("row_blocks", f"{name}.blocks")
    b = call.b
    source = call.view("ends", ends.type.dtype, ends.buffer, ends.layout)
    target = call.view("blocks", i64, buffer, Layout.contiguous((count, ENTRY)), write=True)
    groupw, roww = call.word("groups", groups), call.word("rows", rows)
    zero = b.from_index(0)

    def step(start: Ix, stop: Ix | int, used: Ix, held: int | Ix, found: Sequence[Tile]) -> list[Tile]:
        """What is known behind the rows start … stop - 1, whose blocks have the places from `used` on: the next two, and the entry (its
        group and 1, its first row, its rows) where this program's place is among them."""
        pieces, at = b.ceildiv(stop - start, block), b.pid - used
        mine = b.maximum(b.minimum(at + 1, 1), 0) * b.maximum(b.minimum(pieces - at, 1), 0)
        first = start + at * block
        entry = (held, first, b.minimum(stop - first, block))
        return [b.from_index(stop), b.from_index(used + pieces), *(f + b.from_index(mine * x) for f, x in zip(found, entry, strict=True))]

    with b.loop(0, groupw, AT_ONCE, [zero] * (2 + ENTRY)) as each:
        some = [b.minimum(each.index + u, groupw - 1) for u in range(AT_ONCE)]  # the last one again has no rows
        ends_ = [b.to_index(b.load(source, (g,), ())) for g in some]
        now = list(each.carried)
        for g, end in zip(some, ends_, strict=True):
            start, used = (b.to_index(t) for t in now[:2])
            now = step(start, b.minimum(b.maximum(end, start), roww), used, g + 1, now[2:])
        each.next(*now)
    start, used = (b.to_index(t) for t in each.results[:2])
    _, _, held, first, height = step(start, roww, used, 0, each.results[2:])
    for i, word in enumerate((held + b.from_index(NOBODY), first, height)):
        b.store(target, (b.pid, i), word)
    return call.finish(count, bytes_=groups * 8 + count * ENTRY * 8, note="groups cut into blocks of rows"), buffer, count


class GroupedGemmTemplate(Template):
    """Any number of rows and groups, also none; columns past N are masked when stored."""

    key = "grouped_gemm"
    serves = (GroupedGemmOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return from_memory(region) or shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        op, config = region.op(GroupedGemmOp), _config(region, target)
        w = region.places[1]
        if w.data is None or len(w.data.type.shape) != 3 or not w.layout.is_contiguous or w.layout.offset != 0:
            return {}
        index = next(i for i, o in enumerate(region.operands) if o.data is w.data)
        return {index: Packed("panels", config.width, not op.transpose_b)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, op, config = region.node, region.op(GroupedGemmOp), _config(region, target)
        x, w, ends = region.places
        rows, depth = x.type.shape
        groups, n = w.type.shape[0], node.values[0].shape[1]
        before: list[Launch] = []
        count = ceildiv(n, config.width)
        if w.packed.form == "panels":
            config = replace(config, width=w.packed.width)
            count = ceildiv(n, config.width)
            buffer, panels = w.buffer, Layout.contiguous((groups, count, depth, config.width))
        else:
            view = w.layout.permute((0, 2, 1)) if op.transpose_b else w.layout  # [G, K, N]
            step, row, column = view.strides
            if column == 1:
                buffer, panels = w.buffer, Layout((groups, count, depth, config.width), (step, config.width, row, 1), view.offset)
            else:
                pack, buffer, panels = pack_panels(region.name, w, view, n, config.width, target, "run-time matrices packed into panels")
                before.append(pack)
        block = _block(depth, x.type.dtype, config, target)
        listed, blocks, places = blocks_launch(region.name, ends, rows, block)
        return [*before, listed, _Product(region, x, w, config, buffer, panels, blocks, places, block).launch()]


def _config(region: Region, target: TargetSpec) -> Config:
    out = region.node.values[0]
    return default_config(out.dtype, out.shape[-1], target)


def _block(depth: Dim, dtype: DType, config: Config, target: TargetSpec) -> int:
    """Rows of one program: they stay in half of L2."""
    deep = depth if isinstance(depth, int) else 4096
    fit = target.l2 // 2 // max(deep * dtype.itemsize, 1) // config.rows * config.rows
    return max(config.rows, min(fit, MAX_BLOCK * config.rows))


class _Product:
    """The launch over (block of rows, panel)."""

    def __init__(self, region: Region, x: Operand, w: Operand, config: Config, buffer: Buffer, panels: Layout, blocks: Buffer, places: Dim,
                 block: int) -> None:
        self.region, self.config, self.block, self.places, self.count = region, config, block, places, panels.shape[1]
        self.value = region.node.values[0]
        shape, self.wide = self.value.shape, compute_dtype(self.value.dtype)
        call = self.call = Call("grouped_gemm", region.name)
        self.b, (self.rows, self.depth), self.n = call.b, x.type.shape, shape[1]
        self.a = call.view("a", x.type.dtype, x.buffer, x.layout)
        whole = (panels.shape[0], 1, self.depth, self.n) if w.packed.form == "plain" and buffer is w.buffer else None
        self.in_place = whole is not None
        self.w = call.view("b", w.type.dtype, buffer, panels, sizes=whole, bake=() if whole else (-2,))
        self.list = call.view("blocks", i64, blocks, Layout.contiguous((places, ENTRY)))
        self.outs = [call.view(f"c{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        found = [(v, region.operand(v)) for v in leaves_of_epilogue(region, self.value)]
        leaves = [(v, o) for v, o in found if o is not None]
        self.ins = {v: call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(shape)) for i, (v, o) in enumerate(leaves)}

    def launch(self) -> Launch:
        b, call, config = self.b, self.call, self.config
        nw = None if divisible(self.n, config.width) else call.word("n", self.n)
        kw, panelw = call.word("k", self.depth), call.word("panels", self.count)
        place, panel = b.pid // panelw, b.pid % panelw
        group, first, height = (b.to_index(b.load(self.list, (place, i), ())) for i in range(ENTRY))
        limit = None if nw is None else nw - panel * config.width
        own = b.maximum(group, 0)
        deep = kw * b.minimum(group + 1, 1)  # nothing is added up for rows of no group

        def tile(row: Ix | int, rows: int) -> None:
            def left(i: Ix | int) -> Tile:
                return b.cast(b.load(self.a, (row, i), (rows, 1)), self.wide)

            def right(i: Ix | int) -> Tile:
                masked = (None, limit) if self.in_place and limit is not None else None
                return b.cast(b.load(self.w, (own, panel, i, 0), (1, config.width), limit=masked), self.wide)

            zero = b.full((rows, config.width), 0.0, self.wide)
            acc = accumulate_chains(b, left, right, 0, deep, zero, divisible(self.depth, CHAIN), None, config.unroll)
            write_tile(b, self.region, self.value, acc, self.ins, self.outs, (row,), panel * config.width, limit)

        with b.if_(b.compare("gt", height, 0)):
            for_each_tile(b, first, height, config.rows, list(range(config.rows, 0, -1)), tile)
        return call.finish(self.places * self.count, flops=region_flops(self.region), bytes_=region_bytes(self.region),
                           note=f"{config.rows}x{config.width} tiles, blocks of {self.block} rows", shared=True)


class GroupedOuterTemplate(Template):
    """One program computes a block of rows of one panel of one group's matrix; the group's rows are the depth of the product."""

    key = "grouped_outer"
    serves = (GroupedOuterOp,)
    rows = 8  # register tiles of a program

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, y, ends = region.operands
        out = region.results[0]
        rows, (groups, k, n) = x.type.shape[0], out.type.shape
        config = default_config(out.type.dtype, n, target)
        block, wide = even_blocks(k, self.rows * config.rows), compute_dtype(out.type.dtype)
        call = Call("grouped_outer", region.name)
        b, count, tiles = call.b, ceildiv(n, config.width), ceildiv(k, block)
        xv, yv = call.view("x", x.type.dtype, x.buffer, x.layout), call.view("y", y.type.dtype, y.buffer, y.layout)
        ev = call.view("ends", ends.type.dtype, ends.buffer, ends.layout)
        wv = call.view("w", out.type.dtype, out.buffer, out.layout, write=True)
        nw = None if divisible(n, config.width) else call.word("n", n)
        kw, roww, blockw = call.word("k", k), call.word("rows", rows), call.word("block", block)
        panels, tilew = call.word("panels", count), call.word("tiles", tiles)
        panel, rest = b.pid % panels, b.pid // panels
        group, first, column = rest // tilew, rest % tilew * blockw, panel * config.width
        limit = None if nw is None else nw - column
        with b.loop(0, group + 1, 1, [b.from_index(0), b.from_index(0)]) as each:  # its first row, and one past its last
            each.next(each.carried[1], b.from_index(end_of(b, ev, each.index, b.to_index(each.carried[1]), roww)))
        start, stop = (b.to_index(t) for t in each.results)

        def tile(row: Ix | int, height: int) -> None:
            def left(i: Ix | int) -> Tile:
                return b.cast(b.load(xv, (i, row), (height, 1), axes=(1, 0)), wide)

            def right(i: Ix | int) -> Tile:
                return b.cast(b.load(yv, (i, column), (1, config.width), limit=None if limit is None else (None, limit)), wide)

            acc = accumulate_chains(b, left, right, start, stop, b.full((height, config.width), 0.0, wide), unroll=config.unroll)
            b.store(wv, (group, row, column), narrow_sum(b, acc, out.type.dtype), limit=None if limit is None else (None, limit))

        for_each_tile(b, first, b.minimum(blockw, kw - first), config.rows, tile_heights(k, block, config.rows), tile)
        return [call.finish(groups * tiles * count, flops=region_flops(region), bytes_=region_bytes(region), shared=True)]
