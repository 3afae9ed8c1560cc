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


def columns_of(taps: int, dilation: int, before: int, width: int, lanes: int) -> tuple[int, int]:
    """Columns that `width` results read, in whole registers, and room for padding that no register holds."""
    columns = -(-(width + (taps - 1) * dilation) // lanes) * lanes
    return columns, min(-(-before // lanes) * lanes, columns) if before > min(lanes, width) else 0


def wants_slab(op: ConvOp, x: DType, kernel: Sequence[Dim], channels: Dim, results: Dim, width: int, target: TargetSpec) -> bool:
    """Whether a plain convolution of so many channels (and results) a group copies what its programs read."""
    if target.kind != "cpu" or op.transposed or op.stride[-1] != 1 or not isinstance(channels, int) or not isinstance(results, int):
        return False
    taps = [k for k in kernel if isinstance(k, int)]
    if len(taps) < len(kernel) or not all(isinstance(lo, int) for lo, _ in op.padding) or 0 in (*taps, channels):
        return False
    wide = compute_dtype(x)
    before = op.padding[-1][0]
    assert isinstance(before, int)
    pitch = sum(columns_of(taps[-1], op.dilation[-1], before, width, target.lanes(wide.itemsize)))
    size = prod(taps[:-1]) * channels * pitch * wide.itemsize
    return size <= MOST_BYTES and results * taps[-1] >= LEAST_WORK


class Slab:
    """Filled once a program, then read by every tile of result channels."""

    def __init__(self, b: KernelBuilder, source: View, wide: DType, lines: Sequence[Line], channels: int, width: int, lanes: int) -> None:
        self.b, self.source, self.lines, self.channels, self.width = b, source, lines, channels, width
        self.outer = [line.taps for line in lines[:-1]]
        self.columns, self.margin = columns_of(lines[-1].taps, lines[-1].dilation, lines[-1].before, width, lanes)
        self.pitch = self.columns + self.margin
        self.memory = b.scratch(wide, (prod(self.outer) * channels * self.pitch,))
        self._next: Callable[[Ix | int], None] | None = None

    def fill(self, batch: Ix | int, group: Ix | int, place: Sequence[Ix | int], first: Ix | int, size: Ix) -> None:
        """For the results from `first` on of the line at `place`, which has `size` of them."""
        b, line = self.b, self.lines[-1]
        start = first - line.before
        begin = b.maximum(start, 0) if line.before > 0 else start
        shift = b.minimum(begin - start, self.margin)  # columns before the input

        def rows(axis: int, channel: Ix, taps: list[Ix | int], at: list[Ix | int], inside: Ix | int) -> None:
            if axis < len(self.outer):
                outer = self.lines[axis]
                with b.loop(0, outer.taps) as loop:
                    row = place[axis] * outer.step - outer.before + loop.index * outer.dilation
                    here = b.maximum(0, b.minimum(1, b.minimum(row + 1, outer.size - row)))
                    rows(axis + 1, channel, [*taps, loop.index], [*at, row], inside * here)
                return
            to = self._row(taps, channel)
            x = widen(b, b.load(self.source, (batch, group, channel, *at, begin), (self.columns,), limit=(inside * (line.size - begin),)))
            if self.margin:
                b.store(self.memory, (to,), b.full((self.margin,), 0.0, x.dtype))
                b.store(self.memory, (to + shift,), x)
            elif line.before > 0:
                order = range(self.columns - line.before, 2 * self.columns - line.before)
                moved = b.shuffle(b.full((self.columns,), 0.0, x.dtype), x, order)
                b.store(self.memory, (to,), b.select(b.compare("lt", start, 0), moved, x))
            else:
                b.store(self.memory, (to,), x)

        with b.loop(0, self.channels) as loop:
            rows(0, loop.index, [], [], 1)
        self._next = self._ahead(batch, group, place, first, size)

    def _row(self, taps: Sequence[Ix | int], channel: Ix | int) -> Ix | int:
        """Where the columns of a channel begin for the taps of the outer axes."""
        found: Ix | int = 0
        for t, n in zip(taps, self.outer, strict=True):
            found = found * n + t
        return (found * self.channels + channel) * self.pitch

    def _ahead(self, batch: Ix | int, group: Ix | int, place: Sequence[Ix | int], first: Ix | int, size: Ix) -> Callable[[Ix | int], None]:
        """Asks for what the next program reads of a channel and this one does not: more of the last row, or of the row after it."""
        b, line = self.b, self.lines[-1]
        more = b.minimum(1, b.maximum(0, size - first - self.width))  # stretches of this line are left
        at: list[Ix | int] = []
        for i, (outer, p) in enumerate(zip(self.lines[:-1], place, strict=True)):
            row = p * outer.step - outer.before + (outer.taps - 1) * outer.dilation
            row = row + (1 - more) * outer.step if i == len(self.outer) - 1 else row
            at.append(b.maximum(0, b.minimum(row, outer.size - 1)))
        column = b.maximum(0, (first + self.width) * more - line.before)
        step = 64 // self.source.type.dtype.itemsize

        def ask(channel: Ix | int) -> None:
            for i in range(0, self.pitch, step):
                b.prefetch(self.source, (batch, group, channel, *at, column + i), locality=2)

        return ask

    def ahead(self, tile: Ix | int, share: int) -> None:
        """Ask for a share of the channels."""
        b = self.b
        assert self._next is not None
        with b.loop(b.minimum(tile * share, self.channels), b.minimum(tile * share + share, self.channels)) as loop:
            self._next(loop.index)

    def sum(self, weight: Callable[[Ix | int, Sequence[Ix | int]], Tile], acc: Tile) -> Tile:
        """acc plus all products, one chain an element, channels inside taps. `weight(channel, taps)` is a column."""
        b, width = self.b, acc.shape[1]

        def step(taps: Sequence[Ix | int], c: Ix | int, total: Tile) -> Tile:
            at = self._row(taps[:-1], c) + taps[-1] * self.lines[-1].dilation
            return b.mma(weight(c, taps), b.reshape(b.load(self.memory, (at,), (width,)), (1, width)), total)

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
