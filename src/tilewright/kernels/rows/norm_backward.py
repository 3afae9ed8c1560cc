"""Backward pass of norms: dx of a block of rows a program, with the block's part of the sums of the weight and the bias, and a launch over
strips of columns that adds the parts.

A row is walked three times for its statistics and stays in the first cache; the block is then walked by strips of columns, from the second
cache, which writes dx and adds the block's rows up in registers. Blocks have ROWS rows, and parts are added in chains of CHAIN: every sum
has one order whatever the number of threads. Edges of rows are masked; without rows the sums are zero. Small floats are computed in f32.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import Dim, ceildiv
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.rows.norms import NormBackward as NormBackwardOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..loops import in_tiles
from ..matmul.chains import CHAIN
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops

REGISTERS = 4  # registers of a step along a row, and of a strip
ROWS = 16  # rows of a block


class NormBackwardTemplate(Template):
    key = "norm_backward"
    serves = (NormBackwardOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.node.op
        assert isinstance(op, NormBackwardOp)
        rows, width = region.results[0].type.shape
        wide = compute_dtype(region.results[0].type.dtype)
        blocks = ceildiv(rows, ROWS)
        line = Layout.contiguous((blocks, width))
        parts = [Operand(r.type, Buffer(f"{region.name}.part{i}", "temp", blocks * width * wide.itemsize), line)
                 for i, r in enumerate(region.results[1:])]
        first = _blocks(region, op, parts, target)
        return [first, _sums(region, parts, target)] if parts else [first]


def _blocks(region: Region, op: NormBackwardOp, parts: list[Operand], target: TargetSpec) -> Launch:
    """dx of one block of rows a program, and the block's parts of the other sums."""
    operands = [region.given(v) for v in region.node.operands]
    x, g = operands[0], operands[-1]
    stored, dtype = x.type.dtype, compute_dtype(x.type.dtype)
    rows, width = x.type.shape
    call = Call("norm_backward", region.name)
    b = call.b
    xv, gv = call.view("x", stored, x.buffer, x.layout), call.view("g", stored, g.buffer, g.layout)
    wv = None if op.affine == "none" else call.view("w", stored, operands[1].buffer, operands[1].layout)
    out = call.view("dx", stored, region.results[0].buffer, region.results[0].layout, write=True)
    sums = [call.view(f"part{i}", dtype, p.buffer, p.layout, write=True) for i, p in enumerate(parts)]
    m, n = call.word("rows", rows), call.word("n", width)
    tile = target.vector_bits // (8 * dtype.itemsize) * REGISTERS
    whole = n // tile * tile
    count = b.from_index(n, dtype)
    start = b.pid * ROWS
    stop = b.minimum(start + ROWS, m)
    stats = b.scratch(dtype, (ROWS, 4))  # a row's mean and scale, means of its cotangent and of that times the normalised row

    def at(view: View, place: tuple[Ix | int, ...], left: Ix | int | None) -> Tile:
        return b.cast(b.load(view, place, (tile,), limit=None if left is None else (left,)), dtype)

    def total(term: Callable[[Ix | int, Ix | int | None], list[Tile]], count_: int) -> list[Tile]:
        """Sums over the row of what `term(i, limit)` gives."""
        def add(i: Ix, left: Ix | int | None, sums: list[Tile]) -> list[Tile]:
            return [a + t for a, t in zip(sums, term(i, left), strict=True)]

        found = in_tiles(b, 0, n, tile, add, [b.full((tile,), 0.0, dtype)] * count_)
        return [b.reshape(b.reduce("sum", t), ()) for t in found]

    def inside(t: Tile, left: Ix | int | None) -> Tile:
        """Zero past the row's end, where a deviation from the mean would not be."""
        return t if left is None else b.select(b.cmp("lt", b.iota((tile,), 0), b.from_index(left)), t, 0.0)

    def cotangent(row: Ix, i: Ix | int, left: Ix | int | None) -> Tile:
        y = at(gv, (row, i), left)
        return y if wv is None else y * at(wv, (i,), left)

    with b.loop(start, stop) as loop:
        row = loop.index
        mean = total(lambda i, left: [at(xv, (row, i), left)], 1)[0] / count if op.centred else b.full((), 0.0, dtype)

        def squares(i: Ix | int, left: Ix | int | None) -> list[Tile]:
            d = inside(at(xv, (row, i), left) - mean, left)
            return [d * d]

        scale = 1.0 / b.unary("sqrt", total(squares, 1)[0] / count + op.eps)

        def products(i: Ix | int, left: Ix | int | None) -> list[Tile]:
            y = cotangent(row, i, left)
            return [y, y * ((at(xv, (row, i), left) - mean) * scale)]

        plain, along = (t / count for t in total(products, 2))
        for k, t in enumerate((mean, scale, plain if op.centred else b.full((), 0.0, dtype), along)):
            b.store(stats, (row - start, k), t)

    def strip(i: Ix | int, left: Ix | int | None) -> None:
        limit = None if left is None else (left,)
        with b.loop(start, stop, 1, [b.full((tile,), 0.0, dtype)] * len(sums)) as loop:
            row = loop.index
            mean, scale, plain, along = (b.load(stats, (row - start, k), ()) for k in range(4))
            hat = (at(xv, (row, i), left) - mean) * scale
            dx = (cotangent(row, i, left) - plain - hat * along) * scale
            b.store(out, (row, i), b.cast(dx, stored), limit=limit)
            y = at(gv, (row, i), left)
            loop.next(*(a + t for a, t in zip(loop.carried, (y * hat, y), strict=False)))
        for view, t in zip(sums, loop.results, strict=True):
            b.store(view, (b.pid, i), t, limit=limit)

    with b.loop(0, whole, tile) as strips:
        strip(strips.index, None)
    with b.if_(b.compare("lt", whole, n)):
        strip(whole, n - whole)
    return call.finish(ceildiv(rows, ROWS), flops=region_flops(region), bytes_=region_bytes(region), streams=True)


def _sums(region: Region, parts: list[Operand], target: TargetSpec) -> Launch:
    """The sums of the blocks' parts, for one strip of columns a program."""
    blocks, width = parts[0].layout.shape
    stored = parts[0].type.dtype
    dtype = compute_dtype(stored)
    call = Call("norm_sums", f"{region.name}.sums")
    b = call.b
    ins = [call.view(f"part{i}", dtype, p.buffer, p.layout) for i, p in enumerate(parts)]
    outs = [call.view(f"d{i}", stored, r.buffer, r.layout, write=True) for i, r in enumerate(region.results[1:])]
    m, n = call.word("blocks", blocks), call.word("n", width)
    strip = target.vector_bits // (8 * dtype.itemsize) * REGISTERS
    first = b.pid * strip
    limit = (b.minimum(n - first, strip),)
    zeros = [b.full((strip,), 0.0, dtype)] * len(outs)
    with b.loop(0, m, CHAIN, zeros) as chains:
        with b.loop(chains.index, b.minimum(chains.index + CHAIN, m), 1, zeros) as loop:
            loop.next(*(a + b.load(v, (loop.index, first), (strip,), limit=limit) for a, v in zip(loop.carried, ins, strict=True)))
        chains.next(*(a + t for a, t in zip(chains.carried, loop.results, strict=True)))
    for view, t in zip(outs, chains.results, strict=True):
        b.store(view, (first,), b.cast(t, stored), limit=limit)
    grid: Dim = ceildiv(width, strip)
    each = blocks * width
    return call.finish(grid, flops=len(parts) * each, bytes_=len(parts) * each * dtype.itemsize, note="sums of the weight and the bias")
