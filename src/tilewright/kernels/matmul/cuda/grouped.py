"""Grouped products (experts) as block programs: tiles of rows that lie in the order of their groups, times their group's matrix, and the
derivative to the matrices, whose depth is the rows of a group.

A launch before lists the tiles (`blocks_launch`). Rows of a tile past its group's end are multiplied and not stored; tiles of no rows, and
those of rows that belong to no group, multiply nothing. Any strides, any N and K; zero-sized results run no program.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import ceildiv
from ....core.dtypes import compute_dtype, f32, i64
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.grouped import GroupedGemm as GroupedGemmOp
from ....ops.matmul.grouped import GroupedOuter as GroupedOuterOp
from ....tile.builder import Tile, View
from ...call import Call
from ...cuda.groups import shared_launch
from ...cuda.tiled import aligned, fitting, tiled
from ...launch import Launch
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..grouped import ENTRY, GroupedGemmTemplate, blocks_launch, end_of
from ..tiling import leaves_of_epilogue
from .tiled import MUCH, Config, MatmulKernel, choose

MOST_GROUPS = 1 << 12  # whose ends a block reads at once


class TiledGrouped(Template):
    key = "tiled_grouped"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return GroupedGemmTemplate().matches(region, target)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.anchor
        assert node is not None and isinstance(node.op, GroupedGemmOp)
        x, w, ends = (region.operand(v) for v in node.operands)
        assert x is not None and w is not None and ends is not None
        matrices = w.layout.permute((0, 2, 1)) if node.op.transpose_b else w.layout  # [G, K, N]
        precision = "tf32" if x.type.dtype is f32 and target.has("tf32") else None
        config = config_of(x, matrices, target, tf32=precision is not None)
        listed, blocks, places = blocks_launch(region.name, ends, x.type.shape[0], config.rows)
        call, vectors, extents = Call("grouped_matmul", region.name), dict[str, int](), dict[str, Layout]()

        def view(name: str, o: Operand, layout: Layout, *, inner: bool, write: bool = False) -> View:
            down = name != "b" and layout.strides[0] == 1  # a tile begins at any row
            vectors[name], extents[name] = 1 if down else aligned(layout, layout.shape[-1] if inner else None), layout
            return call.view(name, o.type.dtype, o.buffer, layout, write=write)

        shape, b, c = node.values[0].shape, call.b, config
        left = view("a", x, x.layout, inner=False)
        right = view("b", w, matrices, inner=False)
        table = call.view("blocks", i64, blocks, Layout.contiguous((places, ENTRY)))
        outs = [view(f"c{i}", r, r.layout, inner=True, write=True) for i, r in enumerate(region.results)]
        leaves = [(v, o) for v in leaves_of_epilogue(region, node.values[0]) if (o := region.operand(v)) is not None]
        ins = {v: view(f"e{i}", o, o.layout.expand(shape), inner=True) for i, (v, o) in enumerate(leaves)}
        m, n, k = call.word("m", shape[0]), call.word("n", shape[1]), call.word("k", x.type.shape[1])
        across = call.word("across", ceildiv(shape[1], c.columns))
        place, column = b.pid // across, b.pid % across * c.columns
        group, start, rows_of = (b.to_index(b.load(table, (place, i), ())) for i in range(ENTRY))
        # A launch that is measured by itself may find anything in the table: nothing in it may lead out of bounds.
        first = b.minimum(b.maximum(start, 0), m - 1)
        height = b.minimum(rows_of, m - first)
        own = b.minimum(b.maximum(group, 0), call.word("groups", matrices.shape[0]) - 1)
        deep = k * b.minimum(group + 1, 1)  # nothing is added up for rows of no group
        side = MatmulKernel._edge(shape[1], c.columns, n - column)
        wide = compute_dtype(x.type.dtype)
        with b.loop(0, deep, c.depth, [b.full((c.rows, c.columns), 0.0, wide)]) as loop:
            rest = MatmulKernel._edge(x.type.shape[1], c.depth, k - loop.index)
            rows = b.load(left, (first, loop.index), (c.rows, c.depth), limit=(m - first, rest))
            columns = b.load(right, (own, loop.index, column), (c.depth, c.columns), limit=(rest, side))
            loop.next(b.mma(rows, columns, loop.carried[0], **({"precision": precision} if precision else {})))

        def leaf(v: Value, o: Operand) -> Tile:
            sm, sn = ins[v].type.strides
            size, limits = (1 if sm == 0 else c.rows, 1 if sn == 0 else c.columns), (height, side)
            return b.load(ins[v], (first, column), size, limit=tuple(x if s != 1 else None for x, s in zip(limits, size, strict=True)))

        evaluate = evaluator(region)(b, region, leaf, {node.values[0]: loop.results[0]})
        for out, v in zip(outs, region.body.outputs, strict=True):
            b.store(out, (first, column), narrow(b, b.broadcast(evaluate(v), (c.rows, c.columns)), out.type.dtype), limit=(height, side))
        note = f"{precision or x.type.dtype} {c.rows}x{c.columns}x{c.depth} of a group, {c.stages} stages"
        grid = places * ceildiv(shape[1], c.columns)
        launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=note)
        copied = {name: extents[name] for name in ("a", "b")}
        return [shared_launch(listed), tiled(launch, warps=c.warps, stages=c.stages, per_sm=c.per_sm, vectors=vectors,
                                             producers=c.producers, extents=copied)]


def config_of(x: Operand, w: Layout, target: TargetSpec, *, tf32: bool) -> Config:
    """That of a plain product as tall as a group of average size, of which the chip works on all at once."""
    (m, _), (groups, _, n), item = x.type.shape, w.shape, x.type.dtype.itemsize
    tall = ceildiv(m, groups) if isinstance(groups, int) and groups > 0 else m
    c = choose(tall, n, groups, item, target, k=MUCH, tf32=tf32)  # K stays whole
    c = replace(c, stages=fitting(c.stages, (c.rows + c.columns) * c.depth * item, target))
    odd = min(aligned(x.layout), aligned(w)) * item < 16 or x.layout.strides[0] == 1
    return replace(c, producers=0) if odd else c


class TiledGroupedOuter(Template):
    """A tile of one group's matrix a block. Rows of other groups are zeros where a step ends behind the group's last row."""

    key = "tiled_grouped_outer"
    serves = (GroupedOuterOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        groups = region.results[0].type.shape[0]
        return None if isinstance(groups, int) and groups < MOST_GROUPS else Reason(f"a known number of groups below {MOST_GROUPS}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, y, ends = region.operands
        out, rows = region.results[0], x.type.shape[0]
        groups, k, n = out.type.shape
        assert isinstance(groups, int)
        item, wide = x.type.dtype.itemsize, compute_dtype(x.type.dtype)
        precision = "tf32" if x.type.dtype is f32 and target.has("tf32") else None
        c = choose(k, n, groups, item, target, k=ceildiv(rows, max(groups, 1)), tf32=precision is not None)
        c = replace(c, parts=1, stages=fitting(c.stages, (c.rows + c.columns) * c.depth * item, target))
        call = Call("grouped_matmul", region.name)
        b, turned = call.b, x.layout.permute((1, 0))
        views = [call.view(name, o.type.dtype, o.buffer, lay, write=name == "w")
                 for name, o, lay in (("x", x, turned), ("y", y, y.layout), ("w", out, out.layout), ("ends", ends, ends.layout))]
        vectors = {"x": aligned(turned), "y": aligned(y.layout), "w": aligned(out.layout, n)}
        kw, nw, roww = call.word("k", k), call.word("n", n), call.word("rows", rows)
        down, across = call.word("down", ceildiv(k, c.rows)), call.word("across", ceildiv(n, c.columns))
        group, inside = b.pid // (down * across), b.pid % (down * across)
        row, column = inside // across * c.rows, inside % across * c.columns
        before = b.load(views[3], (0,), (1 << groups.bit_length(),), limit=(group,))  # some lie behind, and are 0
        start = b.minimum(b.to_index(b.cast(b.reduce("max", before, 0), i64)), roww)
        stop = end_of(b, views[3], group, start, roww)
        edges = MatmulKernel._edge(k, c.rows, kw - row), MatmulKernel._edge(n, c.columns, nw - column)
        with b.loop(start, stop, c.depth, [b.full((c.rows, c.columns), 0.0, wide)]) as loop:
            rest = stop - loop.index
            left = b.load(views[0], (row, loop.index), (c.rows, c.depth), limit=(edges[0], rest))
            right = b.load(views[1], (loop.index, column), (c.depth, c.columns), limit=(rest, edges[1]))
            loop.next(b.mma(left, right, loop.carried[0], **({"precision": precision} if precision else {})))
        b.store(views[2], (group, row, column), narrow(b, loop.results[0], out.type.dtype), limit=edges)
        launch = call.finish(groups * ceildiv(k, c.rows) * ceildiv(n, c.columns), flops=region_flops(region), bytes_=region_bytes(region),
                             note=f"{precision or x.type.dtype} {c.rows}x{c.columns}x{c.depth} of a group's rows, {c.stages} stages")
        return [tiled(launch, warps=c.warps, stages=c.stages, per_sm=c.per_sm, vectors=vectors)]
