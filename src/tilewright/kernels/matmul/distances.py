"""Sums over the differences of all pairs of rows. A program packs some rows of b, transposed, into local memory, and walks the rows of a:
a few of them at a time, with sums in registers. Sums of K run in chains of `CHAIN`, in order. Tails are masked (rows beyond the end are
read as the last one and not stored); rows of no elements give zeros."""
from __future__ import annotations

import math

from ...core.dims import ceildiv, product
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ops.matmul.contractions import PairSums as PairSumsOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..loops import in_blocks
from ..pointwise.pointwise import unravel
from ..region import Region, narrow, widen
from ..template import Template, region_bytes, region_flops

CHAIN = 64
REGISTERS, ROWS = 4, 4  # a tile: registers of b's rows, rows of a
BLOCK = 256  # rows of a that a program walks


class PairSumsTemplate(Template):
    key = "pair_sums"
    serves = (PairSumsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        power, (left, right), y = region.op(PairSumsOp).power, region.places, region.results[0]
        call = Call("pair_sums", region.name)
        b = call.b
        first, second = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("a", left), ("b", right)))
        goal = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        lead = y.type.shape[:-2]
        m, n, depth = (call.word(w, d) for w, d in zip("mnk", (*y.type.shape[-2:], left.type.shape[-1]), strict=True))
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        dtype = compute_dtype(left.type.dtype)
        lanes = target.vector_bits // (8 * dtype.itemsize)
        width = lanes * REGISTERS
        across, down = b.ceildiv(n, width), b.ceildiv(m, BLOCK)
        column, top = b.pid % across * width, b.pid // across % down * BLOCK
        at = unravel(b, b.pid // (across * down), dims) if dims else []
        panel, totals = b.scratch(dtype, (CHAIN, width)), b.scratch(dtype, (BLOCK, width))
        bottom = b.minimum(m - top, BLOCK)

        def join(acc: Tile, gap: Tile) -> Tile:
            if power == 2.0:
                return b.fma(gap, gap, acc)
            return b.binary("add" if power == 1.0 else "max", acc, b.unary("abs", gap))

        zero = b.full((width,), 0.0, dtype)
        with b.loop(0, bottom) as clear:
            b.store(totals, (clear.index, 0), zero)
        with b.loop(0, depth, CHAIN) as chain:
            steps = b.minimum(depth - chain.index, CHAIN)
            with b.loop(0, width) as row:
                source = b.minimum(column + row.index, n - 1)
                with b.loop(0, steps, lanes) as part:
                    limit = (steps - part.index,)
                    found = widen(b, b.load(second, (*at, source, chain.index + part.index), (lanes,), limit=limit))
                    b.store(panel, (part.index, row.index), found, axes=(0,), limit=limit)

            def rows(start: Ix | int, count: int, chain_at: Ix | int = chain.index, steps: Ix | int = steps) -> None:
                with b.loop(0, steps, 1, [zero] * count) as loop:
                    across_b = b.load(panel, (loop.index, 0), (width,))
                    ones = [widen(b, b.load(first, (*at, top + start + r, chain_at + loop.index), (1,))) for r in range(count)]
                    loop.next(*(join(acc, b.binary("sub", b.broadcast(one, (width,)), across_b))
                                for acc, one in zip(loop.carried, ones, strict=True)))
                for r, total in enumerate(loop.results):
                    before = b.load(totals, (start + r, 0), (width,))
                    b.store(totals, (start + r, 0), b.binary("max" if power == math.inf else "add", before, total))

            in_blocks(b, 0, bottom, ROWS, rows)
        with b.loop(0, bottom) as out:
            made = narrow(b, b.load(totals, (out.index, 0), (width,)), y.type.dtype)
            b.store(goal, (*at, top + out.index, column), made, limit=(n - column,))
        grid = product(lead) * ceildiv(y.type.shape[-1], width) * ceildiv(y.type.shape[-2], BLOCK)
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region))]
