"""Backward pass of norms: a launch over rows for dx, which leaves each row's mean and scale, and a launch over strips of columns for the
sums of the weight and the bias.

A row is walked four times and stays in the first cache. A strip walks all rows in order, in chains of CHAIN, so every sum has one order
whatever the number of threads. Edges of rows are masked; without rows the sums are zero.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import Dim, ceildiv
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.rows.norm_backward import NormBackward as NormBackwardOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..matmul.chains import CHAIN
from ..region import Operand, Region
from ..template import Reason, Template, region_bytes, region_flops

REGISTERS = 4  # of a step along a row, and of a strip


class NormBackwardTemplate(Template):
    key = "norm_backward"
    serves = (NormBackwardOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return None if region.operands[0].type.dtype.name in ("f32", "f64") else Reason("needs f32 or f64")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.op(NormBackwardOp)
        operands = [o for v in region.node.operands if (o := region.operand(v)) is not None]
        x, g = operands[0], operands[-1]
        weight = operands[1] if op.affine != "none" else None
        rows = x.type.shape[0]
        means, scales = (Buffer(f"{region.name}.{n}", "temp", rows * x.type.dtype.itemsize) for n in ("mean", "scale"))
        first = _rows(region, op, x, g, weight, means, scales, target)
        if op.affine == "none":
            return [first]
        return [first, _columns(region, op, x, g, means, scales, target)]


def _rows(region: Region, op: NormBackwardOp, x: Operand, g: Operand, weight: Operand | None, means: Buffer, scales: Buffer,
          target: TargetSpec) -> Launch:
    """dx of one row a program, and the row's mean and scale."""
    dtype = x.type.dtype
    rows, width = x.type.shape
    call = Call("norm_backward", region.name)
    b = call.b
    xv, gv = call.view("x", dtype, x.buffer, x.layout), call.view("g", dtype, g.buffer, g.layout)
    wv = None if weight is None else call.view("w", dtype, weight.buffer, weight.layout)
    out = call.view("dx", dtype, region.results[0].buffer, region.results[0].layout, write=True)
    line = Layout.contiguous((rows,))
    mean_out, scale_out = call.view("mean", dtype, means, line, write=True), call.view("scale", dtype, scales, line, write=True)
    n = call.word("n", width)
    tile = target.vector_bits // (8 * dtype.itemsize) * REGISTERS
    row = b.pid
    whole = n // tile * tile
    count = b.from_index(n, dtype)

    def total(term: Callable[[Ix | int, Ix | int | None], list[Tile]], parts: int) -> list[Tile]:
        """Sums over the row of what `term(i, limit)` gives."""
        zero = [b.full((tile,), 0.0, dtype)] * parts
        with b.loop(0, whole, tile, zero) as loop:
            loop.next(*(a + t for a, t in zip(loop.carried, term(loop.index, None), strict=True)))
        with b.loop(whole, n, tile, loop.results) as tail:  # at most once
            tail.next(*(a + t for a, t in zip(tail.carried, term(tail.index, n - tail.index), strict=True)))
        return [b.reshape(b.reduce("sum", t), ()) for t in tail.results]

    def inside(t: Tile, left: Ix | int | None) -> Tile:
        """Zero past the row's end, where a deviation from the mean would not be."""
        return t if left is None else b.select(b.cmp("lt", b.iota((tile,), 0), b.from_index(left)), t, 0.0)

    def at(view: View, i: Ix | int, left: Ix | int | None) -> Tile:
        return b.load(view, (row, i), (tile,), limit=None if left is None else (left,))

    mean = total(lambda i, left: [at(xv, i, left)], 1)[0] / count if op.centred else b.full((), 0.0, dtype)

    def squares(i: Ix | int, left: Ix | int | None) -> list[Tile]:
        d = inside(at(xv, i, left) - mean, left)
        return [d * d]

    scale = 1.0 / b.unary("sqrt", total(squares, 1)[0] / count + op.eps)

    def cotangent(i: Ix | int, left: Ix | int | None) -> Tile:
        y = at(gv, i, left)
        return y if wv is None else y * b.load(wv, (i,), (tile,), limit=None if left is None else (left,))

    def products(i: Ix | int, left: Ix | int | None) -> list[Tile]:
        y = cotangent(i, left)
        return [y, y * ((at(xv, i, left) - mean) * scale)]

    plain, along = (t / count for t in total(products, 2))
    plain = plain if op.centred else b.full((), 0.0, dtype)

    def write(i: Ix | int, left: Ix | int | None) -> None:
        hat = (at(xv, i, left) - mean) * scale
        dx = (cotangent(i, left) - plain - hat * along) * scale
        b.store(out, (row, i), dx, limit=None if left is None else (left,))

    with b.loop(0, whole, tile) as loop:
        write(loop.index, None)
    with b.if_(b.compare("lt", whole, n)):
        write(whole, n - whole)
    b.store(mean_out, (row,), mean)
    b.store(scale_out, (row,), scale)
    return call.finish(rows, flops=region_flops(region), bytes_=region_bytes(region), streams=True)


def _columns(region: Region, op: NormBackwardOp, x: Operand, g: Operand, means: Buffer, scales: Buffer, target: TargetSpec) -> Launch:
    """The sums over rows of g · x̂ and of g, for one strip of columns a program."""
    dtype = x.type.dtype
    rows, width = x.type.shape
    call = Call("norm_sums", f"{region.name}.sums")
    b = call.b
    xv, gv = call.view("x", dtype, x.buffer, x.layout), call.view("g", dtype, g.buffer, g.layout)
    line = Layout.contiguous((rows,))
    mean, scale = call.view("mean", dtype, means, line), call.view("scale", dtype, scales, line)
    outs = [call.view(f"d{i}", dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results[1:])]
    m, n = call.word("rows", rows), call.word("n", width)
    strip = target.vector_bits // (8 * dtype.itemsize) * REGISTERS
    first = b.pid * strip
    limit = (b.minimum(n - first, strip),)
    zeros = [b.full((strip,), 0.0, dtype)] * len(outs)
    with b.loop(0, m, CHAIN, zeros) as chains:
        with b.loop(chains.index, b.minimum(chains.index + CHAIN, m), 1, zeros) as loop:
            y = b.load(gv, (loop.index, first), (strip,), limit=limit)
            x_row = b.load(xv, (loop.index, first), (strip,), limit=limit)
            hat = (x_row - b.load(mean, (loop.index,), ())) * b.load(scale, (loop.index,), ())
            loop.next(*(a + t for a, t in zip(loop.carried, (y * hat, y), strict=False)))
        chains.next(*(a + t for a, t in zip(chains.carried, loop.results, strict=True)))
    for view, t in zip(outs, chains.results, strict=True):
        b.store(view, (first,), t, limit=limit)
    grid: Dim = ceildiv(width, strip)
    return call.finish(grid, flops=4 * x.type.numel, bytes_=2 * x.type.nbytes, note="sums of the weight and the bias")
