"""Convolution as a matrix product over windows that are strided views: no im2col buffer.

The (padded) input is seen as [N, group, C, taps…, out…] through strides alone; weights are [group, O, C, taps…]. A program owns one
stretch of the innermost output axis at one position of the others and walks the output channels in register tiles: accumulators
rows × width, one FMA chain per element over (C, taps) in order. With enough work a program copies what it reads of the input, padding
included, into local memory first (`conv_slab`; its chains are over (taps, C)). Otherwise padding is one copy into a zeroed buffer. A
transposed convolution is one for every phase of its stride (or, of unknown sizes or with too many phases, one over the input spread out
by its stride), with reversed taps. Output axes that merge (1×1) become one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.dims import Dim, Shape, ceildiv, product
from ..core.dtypes import compute_dtype
from ..core.target_spec import TargetSpec
from ..ir.graph import Value
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..ops.contractions import Conv as ConvOp
from ..tile.builder import Ix, Tile
from .call import Call
from .conv_phases import MOST, Axis, axes_of, combined, padding_of
from .conv_slab import Line, Slab, wants_slab
from .copies import copy_launch, fill_launch
from .launch import Buffer, Launch
from .pointwise import unravel
from .region import Evaluator, Operand, Region, collapse, narrow, widen
from .template import Reason, Template, region_bytes, region_flops
from .tiling import for_each_tile, leaves_of_epilogue, tile_heights

SPREAD = f"input spread out by the stride: its sizes are not known, or there are more than {MOST} phases"
ROWS = 6


@dataclass(frozen=True)
class Blocking:
    """Results of one program: `width` along the innermost axis of `rows` channels, or of all of them where `rows` is 0. `unrolled`: taps of
    the innermost axis are spelled out."""

    width: int
    rows: int = 0
    unrolled: bool = False


class Conv(Template):
    key = "conv"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, ConvOp):
            return Reason("no convolution")
        if any(region.operand(v) is None for v in node.operands):
            return Reason("operands of a convolution must come from memory")
        if not all(isinstance(d, int) for d in node.operands[1].shape):
            return Reason("the kernel must have a static shape")
        bad = [r for r in region.results if r.type.shape != node.values[0].shape]
        return Reason(f"outputs must have the shape of the convolution, got {bad[0].type}") if bad else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.anchor
        assert node is not None and isinstance(node.op, ConvOp)
        op = node.op
        x, w = region.operand(node.operands[0]), region.operand(node.operands[1])
        assert x is not None and w is not None
        launches: list[Launch] = []
        stride, weights = op.stride, w.layout
        axes = axes_of(op, x.type.shape[2:], w.type.shape[2:], node.values[0].shape[2:]) if op.transposed else None
        if axes is not None:
            around = padding_of(axes, x.type.shape[2:])
            if any(p for pair in around for p in pair):
                launches, x = _spread(region.name, x, (1,) * len(op.stride), around, target)
            turned = _turned(w.layout, op.groups)
            return [*launches, *(_convolve(region, op, *_phase_of(phase, x, w, turned, around), stride=(1,) * len(phase),
                                           blocking=partial(self.blocking, target), phase=phase) for phase in combined(axes))]
        if op.transposed:
            padding = _transposed_padding(op, w.type.shape[2:])
            launches, x = _spread(region.name, x, op.stride, padding, target, SPREAD)
            stride, weights = (1,) * len(op.stride), _turned(w.layout, op.groups)
        elif self._copies(op, x, w, node.values[0].shape, target):
            return [_convolve(region, op, x, w, weights, stride, partial(self.blocking, target), slab_of=target)]
        elif any(p != 0 for pair in op.padding for p in pair):
            launches, x = _spread(region.name, x, (1,) * len(op.stride), op.padding, target)
        return [*launches, _convolve(region, op, x, w, weights, stride, partial(self.blocking, target))]

    def _copies(self, op: ConvOp, x: Operand, w: Operand, result: Shape, target: TargetSpec) -> bool:
        """Whether programs copy what they read of the input."""
        channels, results, taps = w.type.shape[1], result[1] // op.groups, w.type.shape[2:]
        last = result[-1] if any(t != 1 for t in taps) else product(result[2:])
        width = self.blocking(target, results, last, compute_dtype(x.type.dtype).itemsize).width
        return wants_slab(op, x.type.dtype, taps, channels, results, width, target)

    def blocking(self, target: TargetSpec, channels: Dim, last: Dim, itemsize: int) -> Blocking:
        return Blocking(_width(last, target, itemsize))


def _phase_of(
    phase: tuple[Axis, ...], x: Operand, w: Operand, turned: Layout, padding: tuple[tuple[int, int], ...]
) -> tuple[Operand, Operand, Layout]:
    """The input from where a phase begins to read it, and the phase's taps of the (reversed) weights, whose shape goes with them."""
    layout, kernel = x.layout, w.type.shape[2:]
    for i, (p, (lo, _)) in enumerate(zip(phase, padding, strict=True)):
        layout = layout.slice(2 + i, max(lo + p.reach, 0), layout.shape[2 + i])
        last = p.first + (p.taps - 1) * p.hop  # the tap that comes first in reverse
        turned = turned.slice(3 + i, kernel[i] - 1 - last if p.taps else 0, p.taps, p.hop)
    return Operand(x.type, x.buffer, layout), w, turned


def _transposed_padding(op: ConvOp, kernel: tuple[Dim, ...]) -> tuple[tuple[Dim, Dim], ...]:
    extra = op.output_padding or (0,) * len(op.stride)
    return tuple((d * (k - 1) - lo, d * (k - 1) - hi + e) for d, k, (lo, hi), e in zip(op.dilation, kernel, op.padding, extra, strict=True))


def _turned(w: Layout, groups: int) -> Layout:
    """[C, O/g, taps] as [O, C/g, taps] with reversed taps, as a view: [g, C/g, O/g, …] → [g, O/g, C/g, …]."""
    for axis in range(2, len(w.shape)):
        w = w.flip(axis)
    c, o = w.shape[0], w.shape[1]
    shape = (groups, o, c // groups, *w.shape[2:])
    return Layout(shape, (w.strides[0] * (c // groups), w.strides[1], w.strides[0], *w.strides[2:]), w.offset)


def _spread(
    name: str, x: Operand, step: tuple[int, ...], padding: tuple[tuple[Dim, Dim], ...], target: TargetSpec,
    note: str = "padding of a convolution",
) -> tuple[list[Launch], Operand]:  # fmt: skip
    """x in a zeroed buffer with `step` between elements and zeros around; negative padding crops."""
    sizes = [(d - 1) * s + 1 + lo + hi for d, s, (lo, hi) in zip(x.type.shape[2:], step, padding, strict=True)]
    type_ = TensorType(x.type.dtype, (*x.type.shape[:2], *sizes))
    whole = Operand(type_, Buffer(f"{name}.padded", "temp", type_.nbytes), Layout.contiguous(type_.shape))
    inner, source = whole.layout, x.layout
    for i, (d, s, (lo, hi)) in enumerate(zip(x.type.shape[2:], step, padding, strict=True)):
        first, last = (-(-max(-lo, 0) // s), d - -(-max(-hi, 0) // s)) if isinstance(lo, int) and isinstance(hi, int) else (0, d)
        source = source.slice(2 + i, first, last - first)
        inner = inner.slice(2 + i, lo + first * s, last - first, s)
    part = TensorType(x.type.dtype, source.shape)
    launches = [
        fill_launch(f"{name}.zero", 0.0, whole, target),
        copy_launch(f"{name}.pad", Operand(part, x.buffer, source), Operand(part, whole.buffer, inner), target, note),
    ]
    return launches, whole


def _convolve(
    region: Region, op: ConvOp, x: Operand, w: Operand, weights: Layout, stride: tuple[int, ...],
    blocking: Callable[[Dim, Dim, int], Blocking], phase: tuple[Axis, ...] | None = None, slab_of: TargetSpec | None = None,
) -> Launch:  # fmt: skip
    """With a phase, only its results, by its taps. `slab_of`: programs copy what they read, and x is not padded yet."""
    assert region.anchor is not None
    value = region.anchor.values[0]
    batch, channels, *out = value.shape
    dilation = op.dilation
    g = op.groups
    per_group = channels // g
    c_in = x.type.shape[1] // g
    kernel = w.type.shape[2:]
    if phase is not None:
        out, kernel, dilation = [p.count for p in phase], tuple(p.taps for p in phase), tuple(p.dilation for p in phase)
    xs = x.layout.strides
    window = Layout(
        (batch, g, c_in, *kernel, *out),
        (
            xs[0],
            xs[1] * c_in,
            xs[1],
            *(s * d for s, d in zip(xs[2:], dilation, strict=True)),
            *(s * t for s, t in zip(xs[2:], stride, strict=True)),
        ),
        x.layout.offset,
    )
    if len(weights.shape) == 2 + len(kernel):
        weights = Layout((g, per_group, *weights.shape[1:]), (weights.strides[0] * per_group, *weights.strides), weights.offset)

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
    padded = slab_of is not None and (any(k != 1 for k in kernel) or any(p != 0 for pair in op.padding for p in pair))
    sizes, strides = (list(out), [list(lay.strides) for lay in tails]) if padded else collapse(tuple(out), tails)
    if not sizes:
        sizes, strides = [1], [[1] for _ in tails]
    call = Call("conv", region.name)
    b = call.b
    lead = len(kernel)
    if slab_of is None:
        read = Layout((*window.shape[:-n_out], *sizes), (*window.strides[:-n_out], *strides[0]), window.offset)
    elif padded:
        read = Layout((*window.shape[:3], *x.layout.shape[2:]), (*window.strides[:3], *xs[2:]), x.layout.offset)
    else:  # taps of one element each
        read = Layout((*window.shape[:3], *sizes), (*window.strides[:3], *strides[0]), window.offset)
    xv = call.view("x", x.type.dtype, x.buffer, read)
    wv = call.view("w", w.type.dtype, w.buffer, weights)
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
    block = blocking(per_group, sizes[-1], compute_dtype(value.dtype).itemsize)
    width = block.width
    dims = [call.word("batch", batch), call.word("groups", g), *(call.word(f"o{i}", d) for i, d in enumerate(sizes[:-1]))]
    last, oc, cw = call.word("n", sizes[-1]), call.word("oc", per_group), call.word("c", c_in)
    stretches = b.ceildiv(last, width)
    rest, stretch = b.pid // stretches, b.pid % stretches
    at = unravel(b, rest, [*dims, b.ceildiv(oc, block.rows)] if block.rows else dims)
    n, group, place = at[0], at[1], at[2 : len(dims)]
    first = stretch * width
    limit = None if isinstance(sizes[-1], int) and sizes[-1] % width == 0 else last - first
    wide = compute_dtype(value.dtype)
    slab: Slab | None = None
    if slab_of is not None:
        spans = [call.word(f"i{i}", size) for i, size in enumerate(read.shape[3:])]
        lines = [Line(size, 1, 0, 1, 1) for size in spans]
        if padded:
            before = (int_of(lo) for lo, _ in op.padding)
            lines = [Line(*how) for how in zip(spans, stride, before, dilation, map(int_of, kernel), strict=True)]
        slab = Slab(b, xv, wide, lines, int_of(c_in), width, slab_of.lanes(wide.itemsize))
        slab.fill(n, group, place, first, last)

    def tile(row: Ix | int, rows: int) -> None:
        def weight(c: Ix | int, where: Sequence[Ix | int]) -> Tile:
            return widen(b, b.load(wv, (group, row, c, *where, *[0] * (lead - len(where))), (rows, 1), axes=(1, 2)))

        def taps(axis: int, where: list[Ix | int], c: Ix | int, acc: Tile) -> Tile:
            if axis == lead - 1 and block.unrolled:
                for t in range(int_of(kernel[axis])):
                    acc = taps(lead, [*where, t], c, acc)
                return acc
            if axis < lead:
                with b.loop(0, int_of(kernel[axis]), 1, [acc]) as loop:
                    loop.next(taps(axis + 1, [*where, loop.index], c, loop.carried[0]))
                found: Tile = loop.results[0]
                return found
            right = b.load(
                xv,
                (n, group, c, *where, *place, first),
                (1, width),
                axes=(2, 2 + lead + len(sizes)),
                limit=None if limit is None else (None, limit),
            )
            return b.mma(weight(c, where), widen(b, right), acc)

        acc = b.full((rows, width), 0.0, wide)
        if slab is not None:
            slab.ahead(row // ROWS, -(-int_of(c_in) * ROWS // int_of(per_group)))
            acc = slab.sum(weight, acc)
        else:
            with b.loop(0, cw, 1, [acc]) as loop:
                loop.next(taps(0, [], loop.index, loop.carried[0]))
            acc = loop.results[0]

        def leaf(v: Value, o: Operand) -> Tile:
            view = ins[v]
            shape = (1 if view.type.strides[2] == 0 else rows, 1 if view.type.strides[-1] == 0 else width)
            return b.load(
                view,
                (n, group, row, *place, first),
                shape,
                axes=(2, 2 + len(sizes)),
                limit=(None, limit) if limit is not None and shape[1] != 1 else None,
            )

        evaluate = Evaluator(b, region, leaf, {value: acc})
        for v, view, r in zip(region.body.outputs, outs, region.results, strict=True):
            b.store(
                view,
                (n, group, row, *place, first),
                narrow(b, b.broadcast(evaluate(v), (rows, width)), r.type.dtype),
                axes=(2, 2 + len(sizes)),
                limit=None if limit is None else (None, limit),
            )

    grid = batch * g * product(sizes[:-1]) * ceildiv(sizes[-1], width)
    flops, bytes_ = region_flops(region), region_bytes(region)
    if phase is not None:  # its share
        flops = 2 * batch * channels * c_in * product((*out, *kernel))
        bytes_ = bytes_ // product(op.stride)
    if block.rows:  # they divide the channels
        tile(at[-1] * block.rows, block.rows)
        grid = grid * (per_group // block.rows)
    else:
        for_each_tile(b, 0, oc, ROWS, tile_heights(per_group, per_group, ROWS), tile)
    return call.finish(grid, flops=flops, bytes_=bytes_, note=f"{block.rows or ROWS}x{width} tiles", shared=True)


def int_of(d: Dim) -> int:
    assert isinstance(d, int)
    return d


def _width(n: Dim, target: TargetSpec, itemsize: int) -> int:
    lanes = target.vector_bits // 32
    width = lanes * max(1, (4 if target.registers >= 32 else 2) * 4 // itemsize)
    while isinstance(n, int) and width > lanes and n <= width // 2:
        width //= 2
    return width
