"""A convolution as plain ones: windows over an input that needs no padding, at steps, by weights in the order of their taps.

Padding is one copy into a zeroed buffer. A transposed convolution is one for every phase of its stride (`conv_phases`) or, with too many
phases, one over the input spread out by its stride, both with reversed taps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core.dims import Dim, Shape, product
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.matmul.contractions import Conv as ConvOp
from ...ops.matmul.int_products import IntConv as IntConvOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.copies import copy_launch, fill_launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from .phases import MOST, Axis, axes_of, combined, padding_of

SPREAD = f"input spread out by the stride: its sizes leave open what a phase reads, or there are more than {MOST} phases"
PADDED = "padding of a convolution"
COPIED = "channels last for a convolution"
STRETCH = 64  # elements of a line that are copied at once

AnyConv = ConvOp | IntConvOp

Place = Callable[[Operand, Shape], tuple[DType, Layout]]  # where a copy of an input lies that has a given shape


@dataclass(frozen=True)
class Plain:
    """One plain convolution, of all results or of a phase's. `taps` are (first, step) of its taps among all of them, along every axis."""

    x: Operand
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    taps: tuple[tuple[int, int], ...]
    phase: tuple[Axis, ...] | None = None

    def cut(self, weights: Layout, axis: int = 3) -> Layout:
        """The part's taps of weights whose tap axes begin at `axis`."""
        for i, (k, (first, step)) in enumerate(zip(self.kernel, self.taps, strict=True)):
            weights = weights.slice(axis + i, first, k, step)
        return weights


def same_place(x: Operand, shape: Shape) -> tuple[DType, Layout]:
    return x.type.dtype, Layout.contiguous(shape)


def plain_parts(region: Region, target: TargetSpec, place: Place = same_place, *, copies: bool = False) -> tuple[list[Launch], list[Plain]]:
    """The plain convolutions that a region's anchor is made of, and the launches that make their input. `copies`: it must be one."""
    node = region.node
    op = region.op(ConvOp, IntConvOp)
    x, w = region.places
    kernel = tuple(int_of(k) for k in w.type.shape[2:])
    ones = (1,) * len(kernel)
    launches: list[Launch] = []
    if isinstance(op, IntConvOp) or not op.transposed:
        if copies or any(p != 0 for pair in op.padding for p in pair):
            border = op.border if isinstance(op, IntConvOp) else 0
            launches, x = spread(region.name, x, ones, op.padding, target, PADDED, place, border)
        return launches, [Plain(x, kernel, op.stride, op.dilation, ((0, 1),) * len(kernel))]
    axes = axes_of(op, x.type.shape[2:], kernel, node.values[0].shape[2:])
    if axes is None:
        launches, x = spread(region.name, x, op.stride, _transposed_padding(op, kernel), target, SPREAD, place)
        return launches, [Plain(x, kernel, ones, op.dilation, ((0, 1),) * len(kernel))]
    around = padding_of(axes, x.type.shape[2:])
    if copies or any(p for pair in around for p in pair):
        launches, x = spread(region.name, x, ones, around, target, PADDED, place)
    return launches, [_part_of(phase, x, kernel, around) for phase in combined(axes)]


def _part_of(phase: tuple[Axis, ...], x: Operand, kernel: tuple[int, ...], padding: tuple[tuple[int, int], ...]) -> Plain:
    """The input from where a phase begins to read it, and the phase's taps of the reversed ones."""
    layout, taps = x.layout, []
    for i, (p, k, (lo, _)) in enumerate(zip(phase, kernel, padding, strict=True)):
        layout = layout.slice(2 + i, max(lo + p.reach, 0), layout.shape[2 + i])
        last = p.first + (p.taps - 1) * p.hop  # the tap that comes first in reverse
        taps.append((k - 1 - last if p.taps else 0, p.hop))
    counts, dilation = tuple(p.taps for p in phase), tuple(p.dilation for p in phase)
    return Plain(replace(x, layout=layout), counts, (1,) * len(phase), dilation, tuple(taps), phase)


def _transposed_padding(op: AnyConv, kernel: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    extra = op.output_padding or (0,) * len(op.stride)
    return tuple((d * (k - 1) - lo, d * (k - 1) - hi + e) for d, k, (lo, hi), e in zip(op.dilation, kernel, op.padding, extra, strict=True))


def weights_of(op: AnyConv, w: Layout) -> Layout:
    """Weights as [g, O/g, C/g, taps…], the taps of a transposed convolution in reverse: a view."""
    g = op.groups
    if not op.transposed:
        per = int_of(w.shape[0]) // g
        return Layout((g, per, *w.shape[1:]), (w.strides[0] * per, *w.strides), w.offset)
    for axis in range(2, len(w.shape)):
        w = w.flip(axis)
    c = int_of(w.shape[0]) // g
    return Layout((g, w.shape[1], c, *w.shape[2:]), (w.strides[0] * c, w.strides[1], w.strides[0], *w.strides[2:]), w.offset)


def spread(name: str, x: Operand, step: tuple[int, ...], padding: tuple[tuple[Dim, Dim], ...], target: TargetSpec, note: str, place: Place,
           border: int = 0) -> tuple[list[Launch], Operand]:
    """x in a buffer filled with `border`, with `step` between elements and room around; negative padding crops. `place` may give it more
    channels than x has."""
    sizes = [(d - 1) * s + 1 + lo + hi for d, s, (lo, hi) in zip(x.type.shape[2:], step, padding, strict=True)]
    dtype, layout = place(x, (*x.type.shape[:2], *sizes))
    type_ = TensorType(dtype, layout.shape)
    whole = Operand(type_, Buffer(f"{name}.padded", "temp", type_.nbytes), layout)
    inner, source = whole.layout.slice(1, 0, x.type.shape[1]), x.layout
    for i, (d, s, (lo, hi)) in enumerate(zip(x.type.shape[2:], step, padding, strict=True)):
        first, last = (-(-max(-lo, 0) // s), d - -(-max(-hi, 0) // s)) if isinstance(lo, int) and isinstance(hi, int) else (0, d)
        source = source.slice(2 + i, first, last - first)
        inner = inner.slice(2 + i, lo + first * s, last - first, s)
    part = Operand(TensorType(x.type.dtype, source.shape), x.buffer, source)
    if inner.shape == whole.layout.shape:
        return [copy_launch(f"{name}.pad", part, whole, target, COPIED)], whole
    lows = [max(lo, 0) for lo, _ in padding if isinstance(lo, int)]
    known = len(lows) == len(padding)
    lines = _in_lines(part, whole, lows) if known and target.kind == "cpu" and set(step) == {1} else None
    if lines is not None:
        return [lines.launch(name, note, border)], whole
    copy = copy_launch(f"{name}.pad", part, Operand(part.type.with_dtype(dtype), whole.buffer, inner), target, note)
    return [fill_launch(f"{name}.zero", border, whole, target), copy], whole


@dataclass(frozen=True)
class _Lines:
    """A copy into the middle of zeros, line by line: the last spatial axis, with the channels if they lie inside it."""

    source: Operand
    whole: Operand
    outer: tuple[int, ...]  # axes of lines
    before: tuple[int, ...]  # zeros, along these
    start: int  # zeros at the start of a line
    inside: int  # elements of a line that belong together

    def launch(self, name: str, note: str, border: int) -> Launch:
        call = Call("pad", f"{name}.pad")
        b, size = call.b, self.inside
        axis = len(self.source.layout.shape) - 1
        length, width = (o.layout.shape[axis] * size for o in (self.source, self.whole))

        def lines(o: Operand, line: Dim) -> Layout:
            lay = o.layout
            return Layout((*(lay.shape[a] for a in self.outer), line), (*(lay.strides[a] for a in self.outer), 1), lay.offset)

        x = call.view("x", self.source.type.dtype, self.source.buffer, lines(self.source, length))
        y = call.view("y", self.whole.type.dtype, self.whole.buffer, lines(self.whole, width), write=True)
        dims = [call.word(f"d{i}", self.whole.layout.shape[a]) for i, a in enumerate(self.outer)]
        inner = [call.word(f"s{i}", self.source.layout.shape[a]) for i, a in enumerate(self.outer)]
        n, end = call.word("n", length), call.word("end", width)
        at = unravel(b, b.pid, dims)
        place = [p - lo for p, lo in zip(at, self.before, strict=True)]
        here: Ix | int = 1
        for p, d in zip(place, inner, strict=True):
            here = b.minimum(here, b.minimum(p + 1, d - p))
        count = b.minimum(1, b.maximum(0, here)) * n  # elements of this line that there are

        def each(first: Ix | int, stop: Ix | int, element: Callable[[Ix | int, Ix | int], Tile]) -> None:
            with b.loop(first, stop, STRETCH) as loop:
                left = stop - loop.index
                b.store(y, (*at, loop.index), element(loop.index, left), limit=(left,))

        zeros = b.full((STRETCH,), border, self.whole.type.dtype)
        edge = self.start * size
        each(0, edge, lambda i, left: zeros)
        each(edge, edge + count, lambda i, left: b.cast(b.load(x, (*place, i - edge), (STRETCH,), limit=(left,)), self.whole.type.dtype))
        each(edge + count, end, lambda i, left: zeros)
        moved = self.source.type.nbytes + self.whole.type.nbytes
        return call.finish(product([self.whole.layout.shape[a] for a in self.outer]), bytes_=moved, note=note, streams=True)


def _in_lines(source: Operand, whole: Operand, before: list[int]) -> _Lines | None:
    """How to copy so, where lines lie alike on both sides."""
    rank = len(source.layout.shape)
    channels = source.layout.shape[1]
    if whole.layout.shape[1] != channels:
        return None
    if all(o.layout.strides[1] == 1 and o.layout.strides[-1] == channels for o in (source, whole)):
        outer, inside = (0, *range(2, rank - 1)), int_of(channels)
    elif all(o.layout.strides[-1] == 1 for o in (source, whole)):
        outer, inside = tuple(range(rank - 1)), 1
    else:
        return None
    lows = (0, 0, *before)
    return _Lines(source, whole, outer, tuple(lows[a] for a in outer), before[-1], inside)


def int_of(d: Dim) -> int:
    assert isinstance(d, int)
    return d
