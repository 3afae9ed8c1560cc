"""Elements picked by several index arrays (x[:, i, j]): a program goes along rows of the result, whose last axis runs along registers.

Indices that do not change along a row are read and checked once for it; the others give a register of addresses, from which elements are
gathered. An index outside its axis is reported and clamped. Elementwise consumers are computed on the way; tails are masked.
"""

from __future__ import annotations

from ...core.dims import bounds, ceildiv, product
from ...core.dtypes import i64
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.index.indexing import Index as IndexOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..matmul.tiling import leaves_of_epilogue
from ..pointwise.pointwise import unravel
from ..region import Evaluator, Operand, Region, narrow, widen
from ..template import Foreign, Reason, Template, region_bytes, region_flops
from .gather import report_index
from .gather_last import checked

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
        node = region.anchor
        assert node is not None and isinstance(node.op, IndexOp)
        x, *ids = (region.operand(v) for v in node.operands)
        assert x is not None
        shape, axes = node.values[0].shape, node.op.axes
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
        others = {v: o for v in leaves_of_epilogue(region, node.values[0]) if (o := region.operand(v)) is not None}
        ins = {v: call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(shape)) for i, (v, o) in enumerate(others.items())}
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
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
                for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, sizes[i])):
                    with b.if_(bad):
                        report_index(b, error, row.index * dims[-1], wanted)
                base = base + b.minimum(b.maximum(wanted, 0), sizes[i] - 1) * steps[axes[i]]
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

                def leaf(v: Value, o: Operand) -> Tile:
                    return b.load(ins[v], (*outside, column), (tile,), limit=(left,))

                evaluate = Evaluator(b, region, leaf, {node.values[0]: widen(b, taken)})
                for v, out, r in zip(region.body.outputs, outs, region.results, strict=True):
                    b.store(out, (*outside, column), narrow(b, b.broadcast(evaluate(v), (tile,)), r.type.dtype), limit=(left,))
        return [call.finish(ceildiv(rows, per), flops=region_flops(region), bytes_=region_bytes(region))]
