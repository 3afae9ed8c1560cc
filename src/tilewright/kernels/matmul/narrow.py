"""Products with one or two columns: rows of A along the lanes of registers, because a handful of columns would leave most lanes empty.

A program takes blocks of `width` rows. For each chain of K it transposes CHAIN columns of A into local memory, register by register, then
adds rank-1 updates of a [N, width] tile: elements of B are scalars, and are read where they lie. An element is the sum of the same chains
as in `matmul.py`, so the two agree bit for bit. Rows past M and columns of A past K are masked; K = 0 gives epilogue(0).
"""

from __future__ import annotations

from dataclasses import replace

from ...core.dims import at_least, ceildiv, maximum, minimum, product
from ...core.dtypes import compute_dtype, f32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.builder import Ix, Tile
from ..launch import Buffer, Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import region_bytes, region_flops
from .chains import CHAIN, accumulate_chains
from .product import Frame, Problem
from .tiling import write_tile

MOST = 2  # columns: more are stored one by one, and fill half a register by themselves
BLOCKS = 16  # of rows in one program, at most


def narrow_fits(p: Problem, target: TargetSpec) -> bool:
    """Few columns known now, many rows with contiguous elements, sums in f32."""
    few = target.kind == "cpu" and isinstance(p.n, int) and 1 <= p.n <= MOST and at_least(p.m, 64) and at_least(p.k, 16)
    return few and p.words is None and compute_dtype(p.dtype) is f32 and p.a_view.strides[-1] == 1


def narrow_launch(region: Region, p: Problem, b_buffer: Buffer, panels: Layout, target: TargetSpec) -> Launch:
    """`panels`: B as [batch…, 1, K, N], wherever its elements lie."""
    assert region.anchor is not None and isinstance(p.n, int)
    n, lanes = p.n, target.lanes(4)
    width = lanes * (4 if target.registers >= 32 else 2)
    frame = Frame.of(region, replace(p, b_way="rows"), b_buffer, panels, name="matmul_narrow")
    call, m, b = frame.call, frame.rows, frame.call.b
    count = ceildiv(m, width)
    each = minimum(BLOCKS, maximum(1, ceildiv(count * product(frame.lead), 4 * target.cores)))
    batch = frame.words()
    mw, kw, blockw = call.word("m", m), call.word("k", p.k), call.word("block", each * width)
    blocks = ceildiv(m, each * width)
    blocksw = call.word("blocks", blocks)
    at = unravel(b, b.pid // blocksw, batch)
    first = b.pid % blocksw * blockw
    columns = b.scratch(f32, (CHAIN, width))
    last = len(at) + 2  # B's axes: batch, panel, K, N

    def transpose(row: Ix, start: Ix) -> None:
        """CHAIN columns of A from `start` on; masks cost as much as the rest, and only the edges need them."""
        room = b.minimum(mw - row - width, kw - start - CHAIN)
        for masked in (False, True):
            count = b.minimum(CHAIN, kw - start) if masked else CHAIN
            with b.if_(b.compare("lt" if masked else "ge", room, 0)), b.loop(0, count, lanes) as loop:
                for g in range(0, width, lanes):
                    inside = (mw - row - g, kw - start - loop.index) if masked else None
                    part = b.load(frame.a, (*at, row + g, start + loop.index), (lanes, lanes), limit=inside)
                    b.store(columns, (loop.index, g), b.transpose(b.cast(part, f32)))

    def left(i: Ix | int) -> Tile:
        return b.cast(b.load(frame.b, (*at, 0, i, 0), (n, 1), axes=(last, last - 1)), f32)

    with b.loop(first, b.minimum(first + blockw, mw), width) as rows:
        with b.loop(0, kw, CHAIN, [b.full((n, width), 0.0)]) as chains:
            start = chains.index
            transpose(rows.index, start)
            right = lambda i: b.load(columns, (i - start, 0), (1, width))
            chains.next(accumulate_chains(b, left, right, start, b.minimum(start + CHAIN, kw), chains.carried[0]))
        acc = chains.results[0]
        acc = acc * p.alpha if p.alpha != 1.0 else acc
        write_tile(b, region, region.anchor.values[0], acc, frame.ins, frame.outs, (*at, rows.index), 0, mw - rows.index, turned=True)
    return call.finish(product(frame.lead) * blocks, flops=region_flops(region), bytes_=region_bytes(region), inplace=frame.pairs,
                       note=f"{width} rows along registers", shared=True)  # fmt: skip
