"""Sums at strided places. A program owns a result: it writes zeros, then adds line after line of the operand, in order. Tails are masked;
operands without elements leave zeros."""
from __future__ import annotations

from contextlib import ExitStack

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.pad_edges import StridedAdd as StridedAddOp
from ...tile.builder import Ix
from ..call import Call
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region, narrow, widen
from ..template import Template, region_bytes, region_flops

WIDE = 4  # registers of a loop's step where lines are long


class StridedAddTemplate(Template):
    key = "strided_add"
    serves = (StridedAddOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, y = region.op(StridedAddOp), region.given(region.node.operands[0]), region.results[0]
        call = Call("strided_add", region.name)
        b, rank = call.b, len(op.strides)
        lead = y.type.shape[:-1]
        step = y.layout.strides[-1]
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        flat = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        sizes = (*lead, *x.type.shape[len(lead) :])
        seen = Layout(sizes, (*y.layout.strides[:-1], *(step * s for s in op.strides)), y.layout.offset + step * op.offset)
        goal = call.view("to", y.type.dtype, y.buffer, seen, write=True)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        counts = [call.word(f"n{i}", d) for i, d in enumerate(sizes[len(lead) :])]
        size = call.word("size", op.size)
        at = unravel(b, b.pid, dims) if dims else []
        lanes = target.vector_bits // (8 * max(4, y.type.dtype.itemsize))
        together = lanes if rank and op.strides[-1] else 1  # elements of a line that have a place each
        with b.loop(0, size, lanes * WIDE) as clear:
            b.store(flat, (*at, clear.index), b.full((lanes * WIDE,), 0, y.type.dtype), limit=(size - clear.index,))
        with ExitStack() as nest:
            place: list[Ix | int] = [*at]
            for n in counts[:-1]:
                place.append(nest.enter_context(b.loop(0, n)).index)
            if not rank:
                b.store(goal, place, b.load(source, place, ()))
            else:
                n = counts[-1]
                below: Ix | int = 0
                for tile in (together * WIDE, together) if together > 1 else (1,):
                    high = n // tile * tile if tile != together else n
                    with b.loop(below, high, tile) as part:
                        limit = None if tile != together else (n - part.index,)
                        here = (*place, part.index)
                        old, more = (widen(b, b.load(view, here, (tile,), limit=limit)) for view in (goal, source))
                        b.store(goal, here, narrow(b, b.binary("add", old, more), y.type.dtype), limit=limit)
                    below = high
        return [call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]
