"""Sums (or maxima) over bags of an embedding's rows: a program owns a bag; its sums stay in registers while it walks the indices in order.

Every index is checked: one outside the table is reported in the error block and clamped. Bounds of bags are clamped to the indices.
"""
from __future__ import annotations

from contextlib import nullcontext

from ...core.dims import bounds as range_of
from ...core.target_spec import TargetSpec
from ...ops.index.counting import BagSum as BagSumOp
from ...tile.builder import Ix
from ..call import Call
from ..launch import Launch
from ..region import Region, narrow, widen
from ..template import Template, region_flops
from .gather import clamped_index

WIDE, NARROW = 8, 1  # registers of sums: for most columns, and for the rest


class BagSumTemplate(Template):
    key = "bag_sum"
    serves = (BagSumOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        table, ids, bags = region.places
        (result,) = region.results
        call = Call("bag_sum", region.name)
        b = call.b
        source, index = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("table", table), ("ids", ids)))
        edges = call.view("bounds", bags.type.dtype, bags.buffer, bags.layout)
        out = call.view("y", result.type.dtype, result.buffer, result.layout, write=True)
        error = call.error()
        (rows, across), (places,) = table.type.shape, ids.type.shape
        size, count, width = call.word("size", rows), call.word("count", places), call.word("n", across)
        limits = [b.minimum(b.maximum(b.to_index(b.load(edges, (b.pid + k,), ())), 0), count) for k in range(2)]
        largest = region.op(BagSumOp).largest
        join = "max" if largest else "add"
        acc = result.type.dtype if result.type.dtype.itemsize > 2 else None
        lanes = target.vector_bits // 32

        def columns(start: Ix, tile: int, left: Ix | int | None) -> None:
            limit = None if left is None else (left,)
            zero = widen(b, b.full((tile,), float("-inf") if largest else 0.0, acc or result.type.dtype))
            with b.loop(limits[0], limits[1], 1, [zero]) as loop:
                wanted = b.to_index(b.load(index, (loop.index,), ()))
                row = clamped_index(b, error, loop.index, wanted, size)
                loop.next(b.binary(join, loop.carried[0], widen(b, b.load(source, (row, start), (tile,), limit=limit))))
            found = loop.results[0]
            found = b.select(b.compare("lt", *limits), found, 0.0) if largest else found
            b.store(out, (b.pid, start), narrow(b, found, result.type.dtype), limit=limit)

        with nullcontext() if range_of(table.type.shape[0])[0] > 0 else b.if_(b.compare("gt", size, 0)):
            whole = width // (WIDE * lanes) * (WIDE * lanes)
            with b.loop(0, whole, WIDE * lanes) as wide:
                columns(wide.index, WIDE * lanes, None)
            with b.loop(whole, width, NARROW * lanes) as rest:
                columns(rest.index, NARROW * lanes, width - rest.index)
        moved = ids.type.nbytes + ids.type.numel * table.type.shape[1] * table.type.dtype.itemsize + result.type.nbytes
        return [call.finish(result.type.shape[0], flops=region_flops(region), bytes_=moved)]
