"""Depthwise convolution, and that of groups of a few channels each (`lines.py`): weights are [taps…, channels of a group, C]; an element is
one FMA chain over its taps in order. A channel of every group is spread over its group in registers.

Bytes are multiplied and summed in f32 as well, where their few products are exact. Values around the input (`border`) are taken off every
pixel and their products with all weights added at the start, so that taps outside can be left out here, too.
"""

from __future__ import annotations

from itertools import product

from ...core.dtypes import compute_dtype, f32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.matmul.contractions import Conv as ConvOp
from ...ops.matmul.int_products import IntConv as IntConvOp
from ...tile.builder import Ix, Tile
from ..launch import Buffer, Launch, Packed
from ..matmul.tiling import Epilogue
from ..pointwise.copies import copy_launch
from ..region import Operand, Region
from .lines import Limit, Lines, State
from .parts import AnyConv, int_of

TAPS = Packed("taps", 1, True)
LONG = 7  # taps along a line from which its padding is copied
FEW = (2, 4, 8)  # channels of groups whose panels of weights would leave most of a register empty


def is_depthwise(op: AnyConv, channels: int, results: int, target: TargetSpec) -> bool:
    per = channels // op.groups
    few = isinstance(op, ConvOp) and op.groups > 1 and per in FEW and per <= max(4, target.lanes(4) // 2)
    small = op.groups == channels or few
    return small and channels == results and channels > 1 and not op.transposed


def long_lines(op: AnyConv, taps: int) -> tuple[int, int]:
    """The padding of lines that is copied with x where windows are long: results at the ends of lines would go one by one."""
    lo, hi = op.padding[-1]
    copied = isinstance(op, ConvOp) and taps >= LONG and isinstance(lo, int) and isinstance(hi, int)
    return (max(lo, 0), max(hi, 0)) if copied else (0, 0)


def taps_first(name: str, w: Operand, target: TargetSpec) -> tuple[list[Launch], Buffer]:
    """Weights as [taps…, channels of a group, C]."""
    if w.packed == TAPS:
        return [], w.buffer
    c, per, *kernel = w.type.shape
    there = Layout.contiguous((*kernel, per, c)).permute((len(kernel) + 1, len(kernel), *range(len(kernel))))
    made = Operand(w.type, Buffer(f"{name}.taps", "temp", w.type.nbytes), there)
    return [copy_launch(f"{name}.pack", w, made, target, "run-time weights, taps first")], made.buffer


class Depthwise(Lines):
    """Over an x that lies channels last, with some of the padding before its lines."""

    def __init__(self, region: Region, x: Operand, weights: Buffer, target: TargetSpec, padded: int = 0) -> None:
        op, self.value, w = region.op(ConvOp, IntConvOp), region.node.values[0], region.node.operands[1].type
        kernel = [int_of(k) for k in w.shape[2:]]
        before = [int_of(lo) for lo, _ in op.padding]
        before[-1] -= padded
        self.border = op.border if isinstance(op, IntConvOp) else 0
        super().__init__("depthwise", region, x, self.value.shape[2:], kernel, op.stride, op.dilation, before, target)
        if isinstance(op, IntConvOp):
            self.dtype = f32
        call = self.call
        self.per = int_of(w.shape[1])
        self.w = call.view("w", w.dtype, weights, Layout.contiguous((*kernel, self.per, self.channels)))
        self.epilogue = Epilogue(call, region, lambda layout: layout.permute(self.order))

    def start(self, n: int) -> State:
        return [self.b.full((n,), 0.0, self.dtype)]

    def _weight(self, taps: list[Ix | int], c: Ix | int, n: int, limit: Limit, channel: int = 0) -> Tile:
        return self.b.cast(self.b.load(self.w, (*taps, channel, c), (n,), limit=limit), self.dtype)

    def _outside(self, c: Ix | int, n: int, limit: Limit) -> Tile:
        """What all taps would give over the border alone."""
        total = self.b.full((n,), 0.0, self.dtype)
        for taps in product(*(range(k) for k in self.kernel)):
            total = total + self._weight(list(taps), c, n, limit)
        return total * float(self.border)

    def tap(self, states: list[State], pixels: list[Tile], taps: list[Ix | int], places: list[list[Ix | int]], c: Ix | int, n: int,
            limit: Limit) -> list[State]:
        b = self.b
        if self.border:
            pixels = [x - float(self.border) for x in pixels]
        for channel in range(self.per):
            weight = self._weight(taps, c, n, limit, channel)
            spread = [x if self.per == 1 else b.shuffle(x, x, [i // self.per * self.per + channel for i in range(n)]) for x in pixels]
            states = [[b.fma(x, weight, acc)] for x, (acc,) in zip(spread, states, strict=True)]
        return states

    def finish(self, states: list[State], at: list[list[Ix | int]], c: Ix | int, n: int, limit: Limit) -> None:
        b = self.b
        finished: list[list[Tile]] = []
        outside = self._outside(c, n, limit) if self.border else None
        for place, (acc,) in zip(at, states, strict=True):
            if outside is not None:
                acc = acc + outside
            acc = b.cast(acc, compute_dtype(self.value.dtype))
            finished.append(self.epilogue.computed((*place, c), acc, (n,), limit))
        for place, tiles in zip(at, finished, strict=True):
            self.epilogue.put((*place, c), tiles, limit)
