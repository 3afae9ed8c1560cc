"""Depthwise convolution, and that of groups of few channels and results each (`lines.py`): weights are [taps…, channels of a group,
results]; an element is one FMA chain over its taps in order. A channel of every group is spread over the group's results in registers.

Bytes are multiplied and summed in f32 as well, where their few products are exact. Values around the input (`border`) are taken off every
pixel and their products with all weights added at the start, so that taps outside can be left out here, too.

Where pairs of bf16 are multiplied at once, the taps of two neighbouring lines are, those of the last line of an odd number alone: a word of
two channels of each line is exchanged for one of either channel.
"""

from __future__ import annotations

from itertools import product

from ...core.dtypes import compute_dtype, f32, i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.matmul.contractions import Conv as ConvOp
from ...ops.matmul.int_products import IntConv as IntConvOp
from ...tile.builder import Ix, Tile, View
from ..launch import Buffer, Launch, Packed
from ..matmul.tiling import Epilogue
from ..pointwise.copies import copy_launch
from ..quant.words import PAIRS, as_words, in_words, words_of
from ..region import Operand, Region
from .lines import LEAST, Limit, Lines, Row, State
from .parts import AnyConv, int_of

TAPS = Packed("taps", 1, True)
LONG = 7  # taps along a line from which its padding is copied
FEW = (1, 2, 4, 8)  # channels and results of groups whose panels of weights would leave most of a register empty ...
MANY = (16, 32, LEAST)  # ... and results of a channel that need no panels


def is_depthwise(op: AnyConv, channels: int, results: int, target: TargetSpec) -> bool:
    per, made = channels // op.groups, results // op.groups
    most = max(4, target.lanes(4) // 2) if isinstance(op, ConvOp) else 1
    few = per in FEW and made in FEW and made <= max(4, target.lanes(4) // 2) and per <= min(most, 2 * made)
    return (few or (per == 1 and made in MANY)) and op.groups > 1 and not op.transposed


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
        results = int_of(self.value.shape[1])
        super().__init__("depthwise", region, x, self.value.shape[2:], kernel, op.stride, op.dilation, before, target, results)
        if isinstance(op, IntConvOp):
            self.dtype = f32
        call = self.call
        self.per, self.made = int_of(w.shape[1]), results // op.groups
        panels = Layout.contiguous((*kernel, self.per, self.channels))
        self.w = call.view("w", w.dtype, weights, panels)
        self.words: list[View] = []  # pairs of channels of x and of the weights
        by_itself = self.per == self.made == 1 and max(kernel[-2:-1], default=1) > 1
        if by_itself and words_of(x.type.dtype, w.dtype, target, tiles=False) is PAIRS:
            sides = [(name, buffer, lay, len(lay.shape) - 1) for name, buffer, lay in (
                ("xw", x.buffer, x.layout.permute(self.order)), ("ww", weights, panels))]
            if all(in_words(lay, axis, PAIRS.per) for _, _, lay, axis in sides):
                self.words = [call.view(name, i32, buffer, as_words(lay, axis, PAIRS.per)) for name, buffer, lay, axis in sides]
                self.width = PAIRS.per * self.lanes
        self.epilogue = Epilogue(call, region, lambda layout: layout.permute(self.order), sums=True)

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

    def _pixel(self, where: list[Ix | int], c: Ix | int, n: int, limit: Limit) -> Tile:
        per, made = self.per, self.made
        if per == made:
            return super()._pixel(where, c, n, limit)
        inside = None if limit is None else (self.b.ceildiv(limit[0] * per, made),)
        x = super()._pixel(where, c * per // made, max(1, n * per // made), inside)
        return self._spread(x, 0, n) if per == 1 else x

    def _spread(self, x: Tile, channel: int, n: int) -> Tile:
        """A channel of every group, for all of its results."""
        return self.b.shuffle(x, x, [i // self.made * self.per + channel for i in range(n)])

    def tap(self, states: list[State], pixels: list[Tile], taps: list[Ix | int], places: list[list[Ix | int]], c: Ix | int, n: int,
            limit: Limit) -> list[State]:
        b = self.b
        if self.border:
            pixels = [x - float(self.border) for x in pixels]
        for channel in range(self.per):
            weight = self._weight(taps, c, n, limit, channel)
            spread = [x if self.per == 1 else self._spread(x, channel, n) for x in pixels]
            states = [[b.fma(x, weight, acc)] for x, (acc,) in zip(spread, states, strict=True)]
        return states

    def _several(self, first: Ix | int, count: int, c: Ix | int, n: int, limit: Limit) -> None:
        if not self.words or n < self.width:
            super()._several(first, count, c, n, limit)
            return
        b, (x, w), k, s, d = self.b, self.words, self.kernel[-1], self.stride[-1], self.dilation[-1]
        column, inside = first * s - self.padding[-1], None if limit is None else (limit[0] // 2,)

        def pairs(view: View, places: list[list[Ix | int]]) -> list[Tile]:
            """The even and the odd channels of one line (beside zeros) or two."""
            first, *rest = (b.load(view, (*place, c // 2), (n // 2,), limit=inside) for place in places)
            low, high = b.binary("and", first, 0xFFFF), b.binary("shr", first, 16)
            high = b.binary("and", high, 0xFFFF)
            for other in rest:
                low = b.binary("or", low, b.binary("shl", other, 16))
                high = b.binary("or", high, b.binary("and", other, -65536))
            return [low, high]

        def line(rows: list[Row], states: list[State]) -> list[State]:
            weights = [pairs(w, [[*taps, t, 0] for taps, _ in rows]) for t in range(k)]
            for j in self._columns(count):
                pixel = pairs(x, [[*self.at[: len(self.lead)], *where, column + j] for _, where in rows])
                for t in range(k):
                    i, odd = divmod(j - t * d, s)
                    if not odd and 0 <= i < count:
                        states[i] = [b.dot2(p, q, acc) for p, q, acc in zip(pixel, weights[t], states[i], strict=True)]
            return states

        states = self._taps([self.start(n // 2) * 2 for _ in range(count)], line, together=2)
        self.finish([[b.interleave(*state)] for state in states], [[*self.at, first + i] for i in range(count)], c, n, limit)

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
