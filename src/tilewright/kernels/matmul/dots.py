"""Products of few rows with a matrix of the call whose columns lie along memory, as PyTorch keeps weights: dot products.

A program computes some columns for all rows. It walks a block of K, for which the rows stay in L1, for a group of columns at a time, with a
register of partial sums for every element, and asks for the next group as it goes: the matrix is read once, along memory, as fast as memory
gives it. An element is the sum, in order, of the blocks' sums, which are FMA chains lane by lane, added as a tree: neither rows, columns
nor threads change a bit. What lies past K is zero; columns past N read the last one and are not stored.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import f32, f64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.matmul.contractions import Matmul as MatmulOp
from ...tile.builder import Ix, Tile
from ..launch import Launch
from ..loops import in_tiles
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Foreign, Reason, Template, region_bytes, region_flops
from .chains import CHAIN
from .product import Frame, Problem
from .tiling import write_tile

FEWEST_ROWS, MOST_ROWS = 2, 8  # one row is a reduction (vectors.py)
COLUMNS = 16  # columns of a program
GROUP = 4  # columns at a time, at most: rows of the matrix that lie pages apart fall into the same sets of a cache


class DotProducts(Template):
    key = "dot_products"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if target.kind != "cpu" or node is None or not isinstance(node.op, MatmulOp) or region.tail is not None:
            return Foreign("no matmul")
        if any(region.operand(v) is None for v in node.operands):
            return Reason("an operand is computed in the region")
        p = Problem.of(region)
        if p.a.type.dtype is not p.dtype or p.b.type.dtype is not p.dtype or p.dtype not in (f32, f64):
            return Reason("not f32 or f64")  # small floats are multiplied in pairs
        rows = product(node.values[0].shape[:-1])
        if not isinstance(rows, int) or not FEWEST_ROWS <= rows <= MOST_ROWS or p.batched:
            return Reason("not few rows, or several matrices")
        if p.b.data is not None or p.b_view.strides[-2] != 1 or p.a_view.strides[-1] != 1:
            return Reason("the matrix is a constant, or does not lie along K")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        p = Problem.of(region)
        step = p.b_view.strides[-1]
        panels = Layout((ceildiv(p.n, COLUMNS), p.k, COLUMNS), (COLUMNS * step, 1, step), p.b_view.offset)
        frame = Frame.of(region, replace(p, b_way="columns"), p.b.buffer, panels)
        call, m = frame.call, frame.rows
        assert isinstance(m, int)
        b, lanes = call.b, target.vector_bits // (8 * p.dtype.itemsize)
        group = GROUP
        while group > 1 and group * m > (24 if target.registers >= 32 else 10):
            group //= 2
        batch, n, depth = frame.words(), call.word("n", p.n), call.word("k", p.k)
        count = call.word("panels", panels.shape[0])
        at, panel = unravel(b, b.pid // count, batch), b.pid % count
        sums = b.scratch(p.dtype, (m, COLUMNS))
        b.store(sums, (0, 0), b.full((m, COLUMNS), 0.0, p.dtype))
        last = n - 1 - panel * COLUMNS

        def part(k: Ix, first: Ix, left: Ix | int | None, totals: list[Tile]) -> list[Tile]:
            """One step along K of a group of columns."""
            limit = None if left is None else (left,)
            xs = [b.load(frame.a, (*at, i, k), (lanes,), limit=limit) for i in range(m)]
            found = []
            for c in range(group):
                if left is None:
                    b.prefetch(frame.b, (*at, panel, k, first + group + c), locality=2)
                w = b.load(frame.b, (*at, panel, k, b.minimum(first + c, last)), (lanes,), limit=limit, axes=(len(at) + 1,))
                found += [b.fma(w, x, totals[c * m + i]) for i, x in enumerate(xs)]
            return found

        with b.loop(0, depth, CHAIN * lanes) as blocks, b.loop(0, COLUMNS, group) as groups:
            start, first = blocks.index, groups.index
            stop = b.minimum(start + CHAIN * lanes, depth)
            zeros = [b.full((lanes,), 0.0, p.dtype) for _ in range(group * m)]
            for j, total in enumerate(in_tiles(b, start, stop, lanes, lambda k, left, sums: part(k, first, left, sums), zeros)):
                place = j % m, first + j // m
                b.store(sums, place, b.load(sums, place, (1,)) + b.reduce("sum", total))
        found = b.load(sums, (0, 0), (m, COLUMNS))
        found = found * p.alpha if p.alpha != 1.0 else found
        write_tile(b, region, region.node.values[0], found, frame.ins, frame.outs, (*at, 0), panel * COLUMNS, n - panel * COLUMNS)
        programs: Dim = product(frame.lead) * panels.shape[0]
        return [call.finish(programs, flops=region_flops(region), bytes_=region_bytes(region), inplace=frame.pairs,
                            note=f"{group} dot products at a time", streams=True, shared=True)]
