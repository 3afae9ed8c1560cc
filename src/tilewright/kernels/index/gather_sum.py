"""Weighted sums of rows of one axis (resizing): the axis along memory runs along registers, so pixels may lie either way.

Where that is another axis, a program computes a block of results, each of whose taps is a row and a number. Where it is the summed axis
itself, a program computes a line: registers of indices gather from it. Elementwise consumers are computed on the way; tails are masked.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.dims import ceildiv, product
from ...core.dtypes import i32, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.weighted import GatherSum as GatherSumOp
from ...tile.builder import Ix
from ..call import Call
from ..launch import Launch
from ..matmul.tiling import Epilogue
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, widen
from ..template import Foreign, Reason, Template, region_bytes, region_flops
from .gather import along_memory

ROWS = 16  # rows of a program that share places along them
ELEMENTS = 4096  # elements of a program, where sizes are known


def within_two_registers(ids: Operand, size: int, lanes: int, target: TargetSpec) -> bool:
    """Whether what a register of known results reads, tap by tap, lies in two registers from its first element on."""
    if ids.data is None or not target.has("avx512f") or target.vector_bits != 512 or ids.layout.strides[-1] != 1:
        return False
    at = np.clip(ids.data.array, 0, size - 1)
    return all(int((p.max(1) - p.min(1)).max()) < 2 * lanes for o in range(0, at.shape[1], lanes) for p in [at[:, o : o + lanes]])


class GatherSumTemplate(Template):
    key = "gather_sum"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, GatherSumOp):
            return Foreign("no gather_sum")
        if any(region.operand(v) is None for v in node.operands):
            return Reason("operands must come from memory")
        bad = [r for r in region.results if r.type.shape != node.values[0].shape]
        return Reason(f"outputs must have the shape of the sums, got {bad[0].type}") if bad else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        op = region.op(GatherSumOp)
        x, ids, shares = region.places
        inner, rank = along_memory(x), x.type.ndim
        order = (*(a for a in range(rank) if a != inner), inner)
        axis, shape = order.index(op.axis), node.values[0].shape
        size, taps = x.type.shape[op.axis], ids.type.shape[0]
        assert isinstance(size, int) and isinstance(taps, int)
        call = Call("gather_sum", region.name)
        b = call.b
        source = call.view("x", x.type.dtype, x.buffer, x.layout.permute(order))
        index, weight = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("ids", ids), ("w", shares)))
        epilogue = Epilogue(call, region, lambda layout: layout.permute(order))
        there = Layout.contiguous(shape).permute(order).shape
        dims = [call.word(f"d{i}", d) for i, d in enumerate(there)]
        lanes = target.vector_bits // (8 * shares.type.dtype.itemsize)

        def lines(first: Ix | int, count: Ix) -> None:
            """Results along the summed axis itself, of several rows: what a register of results reads lies in two registers."""
            width = 2 * lanes
            with b.loop(0, dims[-1], lanes) as loop:
                limit, found = (dims[-1] - loop.index,), []
                for t in range(taps):
                    held = b.load(index, (t, loop.index), (lanes,), limit=limit)
                    place = b.binary("max", b.binary("min", held, size - 1), 0)
                    inside = b.select(b.cmp("lt", b.iota((lanes,), 0), b.from_index(limit[0])), place, size)
                    start = b.maximum(b.minimum(b.to_index(b.reduce("min", inside)), size - width), 0)
                    near = b.binary("max", place - b.from_index(start, place.dtype), 0)
                    near = b.cast(near, i32 if shares.type.dtype.itemsize == 4 else i64)
                    found.append((start, near, b.load(weight, (t, loop.index), (lanes,), limit=limit)))
                with b.loop(first, b.minimum(first + ROWS, count)) as row:
                    at, total = list(unravel(b, row.index, dims[:-1])), b.full((lanes,), 0.0, shares.type.dtype)
                    for start, near, factor in found:
                        inner_limit = None if size >= width else (size,)
                        table = widen(b, b.load(source, (*at, start), (width,), limit=inner_limit))
                        total = b.fma(factor, b.pick(table, near), total)
                    epilogue.store([*at, loop.index], total, total.shape, limit)

        def line(at: list[Ix | int]) -> None:
            """Results along the summed axis itself."""
            with b.loop(0, dims[-1], lanes) as loop:
                limit, total = (dims[-1] - loop.index,), b.full((lanes,), 0.0, shares.type.dtype)
                for t in range(taps):
                    place = b.binary("max", b.binary("min", b.load(index, (t, loop.index), (lanes,), limit=limit), size - 1), 0)
                    value = widen(b, b.gather(source, (*at, 0), rank - 1, place))
                    total = b.fma(b.load(weight, (t, loop.index), (lanes,), limit=limit), value, total)
                epilogue.store([*at, loop.index], total, total.shape, limit)

        def row(before: list[Ix | int], o: Ix | int) -> None:
            """One result of the summed axis: everything inside of it."""
            places = [b.minimum(b.maximum(b.to_index(b.load(index, (t, o), ())), 0), size - 1) for t in range(taps)]
            factors = [b.load(weight, (t, o), (1,)) for t in range(taps)]

            def piece(at: list[Ix | int], i: Ix | int, tile: int, limit: tuple[Ix | int] | None) -> None:
                total = b.full((tile,), 0.0, shares.type.dtype)
                for place, factor in zip(places, factors, strict=True):
                    total = b.fma(widen(b, b.load(source, (*before, place, *at, i), (tile,), limit=limit)), factor, total)
                epilogue.store([*before, o, *at, i], total, total.shape, limit)

            def nest(at: list[Ix | int], rest: list[Ix]) -> None:
                if rest:
                    with b.loop(0, rest[0]) as loop:
                        nest([*at, loop.index], rest[1:])
                    return
                whole = dims[-1] // (4 * lanes) * (4 * lanes)
                with b.loop(0, whole, 4 * lanes) as main:
                    piece(at, main.index, 4 * lanes, None)
                with b.loop(whole, dims[-1], lanes) as tail:
                    piece(at, tail.index, lanes, (dims[-1] - tail.index,))

            nest([], dims[axis + 1 : -1])

        moved, flops = region_bytes(region), region_flops(region)
        if axis == rank - 1 and within_two_registers(ids, size, lanes, target):
            rows = product(there[:-1])
            lines(b.pid * ROWS, call.word("rows", rows))
            return [call.finish(ceildiv(rows, ROWS), flops=flops, bytes_=moved, streams=True, note="two registers a tap")]
        if axis == rank - 1:
            line(list(unravel(b, b.pid, dims[:-1])))
            return [call.finish(product(there[:-1]), flops=flops, bytes_=moved, streams=True)]
        inside = [d for d in there[axis + 1 :] if isinstance(d, int)]
        block = max(1, ELEMENTS // max(1, prod(inside))) if len(inside) == rank - 1 - axis else 1
        *before, chunk = unravel(b, b.pid, [*dims[:axis], b.ceildiv(dims[axis], block)])
        with b.loop(chunk * block, b.minimum(chunk * block + block, dims[axis])) as loop:
            row(before, loop.index)
        return [call.finish(product(there[:axis]) * ceildiv(there[axis], block), flops=flops, bytes_=moved, streams=True)]
