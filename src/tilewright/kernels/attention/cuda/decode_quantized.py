"""Rows of a cache in eight bits, as attention of one query row takes them: a row in two halves, one scale for every 32 columns."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dtypes import f16, i8
from ....ops.attention.q8_cache import BLOCK
from ....tile.builder import KernelBuilder, Tile
from ...quant.quantize import quantized_of


def spread(b: KernelBuilder, half: int, each: Sequence[Tile]) -> list[Tile]:
    """What every block of 32 columns has one of, for the columns of both halves."""
    count, column = max(1, half // BLOCK), b.iota((1, half), 1)
    found = []
    for own in (each[:count], each[-count:]):
        tile = own[-1]
        for i in reversed(range(count - 1)):
            tile = b.select(b.cmp("lt", column, (i + 1) * BLOCK), own[i], tile)
        found.append(tile)
    return found


def quantized_row(b: KernelBuilder, half: int, halves: Sequence[Tile]) -> tuple[list[Tile], list[Tile]]:
    """A row as quantized values i8, in halves, and the scale f16 of every 32 of them: what `Q8Blocks` makes."""
    block, peaks = b.binary("floordiv", b.iota((1, half), 1), BLOCK), []
    for x in halves:
        size = b.unary("abs", x)
        peaks += [b.reduce("max", b.select(b.cmp("eq", block, i), size, 0.0), 1) for i in range(max(1, half // BLOCK))]
    if half < BLOCK:
        peaks = [b.binary("max", *peaks)]
    quantized = [b.cast(quantized_of(b, x, peak)[0], i8) for x, peak in zip(halves, spread(b, half, peaks), strict=True)]
    return quantized, [b.cast(peak * (1.0 / 127.0), f16) for peak in peaks]
