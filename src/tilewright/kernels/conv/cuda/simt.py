"""Convolution on a GPU without tensor cores for its dtype: small programs, one a thread.

The (padded) input is seen as [N, group, C, taps…, out…] through strides alone; weights are [group, O, C, taps…]. A program owns one
stretch of the innermost output axis of a few channels: accumulators rows × width, one FMA chain per element over (C, taps) in order.
Neighbouring threads take neighbouring stretches of a line, so that pixels are read side by side; all of them read the same weights, which
come from the first-level cache once for a warp. Output axes that merge (1×1) become one.
"""

from __future__ import annotations

from ....core.dims import ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import shared_launch
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..conv import ConvTemplate
from ..parts import Plain, int_of, plain_parts, weights_of

MOST_ROWS = 8  # result channels of a thread
BYTES = 16  # of pixels of a thread


class CudaConv(Template):
    key = "cuda_conv"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return ConvTemplate().matches(region, target)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        launches, parts = plain_parts(region, target)
        return [shared_launch(launch) for launch in [*launches, *(_convolve(region, part) for part in parts)]]


def _convolve(region: Region, part: Plain) -> Launch:
    assert region.anchor is not None and isinstance(region.anchor.op, ConvOp)
    op, value = region.anchor.op, region.anchor.values[0]
    batch, channels, *out = value.shape
    g, x, kernel, phase = op.groups, part.x, part.kernel, part.phase
    per_group = int_of(channels) // g
    c_in = int_of(x.type.shape[1]) // g
    if phase is not None:
        out = [p.count for p in phase]
    xs = x.layout.strides
    window = Layout(
        (batch, g, c_in, *kernel, *out),
        (
            xs[0],
            xs[1] * c_in,
            xs[1],
            *(s * d for s, d in zip(xs[2:], part.dilation, strict=True)),
            *(s * t for s, t in zip(xs[2:], part.stride, strict=True)),
        ),
        x.layout.offset,
    )

    def grouped(lay: Layout) -> Layout:
        for i, p in enumerate(phase or ()):
            lay = lay.slice(2 + i, p.start, p.count, p.step)
        return Layout((batch, g, per_group, *out), (lay.strides[0], lay.strides[1] * per_group, *lay.strides[1:]), lay.offset)

    leaves = leaves_of_epilogue(region, value)
    operands = [o for v in leaves if (o := region.operand(v)) is not None]
    others = [grouped(o.layout.expand(value.shape)) for o in operands]
    results = [grouped(r.layout) for r in region.results]
    n_out = len(out)
    tails = [Layout(tuple(out), lay.strides[-n_out:]) for lay in (window, *results, *others)]
    sizes, strides = collapse(tuple(out), tails)
    if not sizes:
        sizes, strides = [1], [[1] for _ in tails]
    call = Call("conv", region.name)
    b = call.b
    lead = len(kernel)
    read = Layout((*window.shape[:-n_out], *sizes), (*window.strides[:-n_out], *strides[0]), window.offset)
    xv = call.view("x", x.type.dtype, x.buffer, read)
    w = region.operand(region.anchor.operands[1])
    assert w is not None
    wv = call.view("w", w.type.dtype, w.buffer, part.cut(weights_of(op, w.layout)))
    outs = [
        call.view(
            f"y{i}", r.type.dtype, r.buffer, Layout((*lay.shape[:3], *sizes), (*lay.strides[:3], *strides[1 + i]), lay.offset), write=True
        )
        for i, (r, lay) in enumerate(zip(region.results, results, strict=True))
    ]
    ins = {
        v: call.view(
            f"e{i}",
            o.type.dtype,
            o.buffer,
            Layout((*lay.shape[:3], *sizes), (*lay.strides[:3], *strides[1 + len(results) + i]), lay.offset),
        )
        for i, (v, o, lay) in enumerate(zip(leaves, operands, others, strict=True))
    }
    wide = compute_dtype(value.dtype)
    rows = next(r for r in range(MOST_ROWS, 0, -1) if per_group % r == 0)
    width = BYTES // wide.itemsize
    while isinstance(sizes[-1], int) and width > 1 and width >= 2 * sizes[-1]:
        width //= 2
    dims = [call.word("batch", batch), call.word("groups", g), *(call.word(f"o{i}", d) for i, d in enumerate(sizes[:-1]))]
    last, oc, cw = call.word("n", sizes[-1]), call.word("oc", per_group), call.word("c", c_in)
    stretches = b.ceildiv(last, width)
    rest, stretch = b.pid // stretches, b.pid % stretches
    at = unravel(b, rest, [*dims, b.ceildiv(oc, rows)])
    n, group, place, row = at[0], at[1], at[2 : len(dims)], at[-1] * rows
    first = stretch * width
    limit = None if isinstance(sizes[-1], int) and sizes[-1] % width == 0 else last - first
    masked = None if limit is None else (None, limit)

    def taps(axis: int, where: list[Ix | int], c: Ix | int, acc: Tile) -> Tile:
        if axis == lead - 1:
            for t in range(kernel[axis]):
                left = widen(b, b.load(wv, (group, row, c, *where, t), (rows, 1), axes=(1, 2)))
                right = b.load(xv, (n, group, c, *where, t, *place, first), (1, width), axes=(2, 2 + lead + len(sizes)), limit=masked)
                acc = b.mma(left, widen(b, right), acc)
            return acc
        with b.loop(0, kernel[axis], 1, [acc]) as loop:
            loop.next(taps(axis + 1, [*where, loop.index], c, loop.carried[0]))
        found: Tile = loop.results[0]
        return found

    with b.loop(0, cw, 1, [b.full((rows, width), 0.0, wide)]) as loop:
        loop.next(taps(0, [], loop.index, loop.carried[0]))

    def leaf(v: Value, o: Operand) -> Tile:
        view = ins[v]
        shape = (1 if view.type.strides[2] == 0 else rows, 1 if view.type.strides[-1] == 0 else width)
        return b.load(view, (n, group, row, *place, first), shape, axes=(2, 2 + len(sizes)), limit=masked if shape[1] != 1 else None)

    evaluate = Evaluator(b, region, leaf, {value: loop.results[0]})
    for v, view, r in zip(region.body.outputs, outs, region.results, strict=True):
        y = narrow(b, b.broadcast(evaluate(v), (rows, width)), r.type.dtype)
        b.store(view, (n, group, row, *place, first), y, axes=(2, 2 + len(sizes)), limit=masked)
    grid = batch * g * product(sizes[:-1]) * ceildiv(sizes[-1], width) * (per_group // rows)
    flops, bytes_ = region_flops(region), region_bytes(region)
    if phase is not None:  # its share
        flops = 2 * batch * channels * c_in * product((*out, *kernel))
        bytes_ = bytes_ // product(op.stride)
    return call.finish(grid, flops=flops, bytes_=bytes_, note=f"{rows}x{width} tiles", shared=True)
