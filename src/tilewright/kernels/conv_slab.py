"""The part of a convolution's input that one program reads, copied into local memory with its padding.

A program needs `width` results' windows of every channel: rows that lie far apart in the input (often whole pages, so that they fall into
the same few cache sets) and partly outside of it. The copy is dense, [outer taps, channels, columns], and zero where the input ends: no
padded input is written for it, and the loop over channels runs over neighbouring memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ..core.dims import Dim
from ..core.dtypes import DType, compute_dtype
from ..core.target_spec import TargetSpec
from ..ops.contractions import Conv as ConvOp
from ..tile.builder import Ix, KernelBuilder, Tile, View
from .region import widen

MOST_BYTES = 192 << 10  # of local memory; more channels are read from a padded input
LEAST_WORK = 32  # result channels × taps along a row: fewer do not pay for the copy
UNROLL = 4  # channels a step


@dataclass(frozen=True)
class Line:
    """One axis of the input as seen from the results: result i reads elements i * step - before + tap * dilation of `size`."""

    size: Ix
    step: int
    before: int
    dilation: int
    taps: int


def pitch_of(op: ConvOp, kernel: Sequence[int], width: int, lanes: int) -> int:
    return -(-(width + (kernel[-1] - 1) * op.dilation[-1]) // lanes) * lanes


def wants_slab(op: ConvOp, x: DType, kernel: Sequence[Dim], channels: Dim, results: Dim, width: int, target: TargetSpec) -> bool:
    """Whether a plain convolution of so many channels (and results) a group copies what its programs read."""
    if target.kind != "cpu" or op.transposed or op.stride[-1] != 1 or not isinstance(channels, int) or not isinstance(results, int):
        return False
    taps = [k for k in kernel if isinstance(k, int)]
    if len(taps) < len(kernel) or not all(isinstance(lo, int) for lo, _ in op.padding) or 0 in (*taps, channels):
        return False
    wide = compute_dtype(x)
    size = prod(taps[:-1]) * channels * pitch_of(op, taps, width, target.lanes(wide.itemsize)) * wide.itemsize
    return size <= MOST_BYTES and results * taps[-1] >= LEAST_WORK


class Slab:
    """Filled once a program, then read by every tile of result channels."""

    def __init__(self, b: KernelBuilder, source: View, wide: DType, lines: Sequence[Line], channels: int, pitch: int, lanes: int) -> None:
        self.b, self.source, self.lines, self.channels, self.pitch, self.lanes = b, source, lines, channels, pitch, lanes
        self.outer = [line.taps for line in lines[:-1]]
        self.memory = b.scratch(wide, (prod(self.outer), channels, pitch))

    def fill(self, batch: Ix | int, group: Ix | int, place: Sequence[Ix | int], first: Ix | int) -> None:
        """For the results from `first` on of the line at `place`."""
        b, line = self.b, self.lines[-1]
        start = first - line.before
        begin = b.maximum(start, 0) if line.before > 0 else start
        shift = begin - start  # columns before the input
        margin = min(-(-max(line.before, 0) // self.lanes) * self.lanes, self.pitch)

        def rows(axis: int, taps: list[Ix | int], at: list[Ix | int], inside: Ix | int) -> None:
            if axis < len(self.outer):
                outer = self.lines[axis]
                with b.loop(0, outer.taps) as loop:
                    row = place[axis] * outer.step - outer.before + loop.index * outer.dilation
                    here = b.maximum(0, b.minimum(1, b.minimum(row + 1, outer.size - row)))
                    rows(axis + 1, [*taps, loop.index], [*at, row], inside * here)
                return
            with b.loop(0, self.channels) as loop:
                to = (self._outer_tap(taps), loop.index)
                if margin:
                    b.store(self.memory, (*to, 0), b.full((1, margin), 0.0, self.memory.type.dtype))
                x = b.load(self.source, (batch, group, loop.index, *at, begin), (1, self.pitch), axes=(2, 2 + len(self.lines)),
                           limit=(None, inside * (line.size - begin)))
                b.store(self.memory, (*to, shift), widen(b, x), limit=(None, self.pitch - shift) if margin else None)

        rows(0, [], [], 1)

    def _outer_tap(self, taps: Sequence[Ix | int]) -> Ix | int:
        found: Ix | int = 0
        for t, n in zip(taps, self.outer, strict=True):
            found = found * n + t
        return found

    def sum(self, weight: Callable[[Ix | int, Sequence[Ix | int]], Tile], acc: Tile) -> Tile:
        """acc plus all products, one chain an element, channels inside taps. `weight(channel, taps)` is a column."""
        b, width = self.b, acc.shape[1]

        def step(taps: Sequence[Ix | int], c: Ix | int, total: Tile) -> Tile:
            right = b.load(self.memory, (self._outer_tap(taps[:-1]), c, taps[-1] * self.lines[-1].dilation), (1, width))
            return b.mma(weight(c, taps), right, total)

        def walk(axis: int, taps: list[Ix | int], total: Tile) -> Tile:
            if axis < len(self.lines):
                if self.lines[axis].taps == 1:
                    return walk(axis + 1, [*taps, 0], total)
                with b.loop(0, self.lines[axis].taps, 1, [total], nonempty=True) as loop:
                    loop.next(walk(axis + 1, [*taps, loop.index], loop.carried[0]))
                return loop.results[0]  # type: ignore[no-any-return]
            whole = self.channels // UNROLL * UNROLL
            if whole:
                with b.loop(0, whole, UNROLL, [total], nonempty=True) as loop:
                    inner = loop.carried[0]
                    for u in range(UNROLL):
                        inner = step(taps, loop.index + u, inner)
                    loop.next(inner)
                total = loop.results[0]
            for c in range(whole, self.channels):
                total = step(taps, c, total)
            return total

        return walk(0, [], acc)
