"""Rounding to eight bits, as every kernel does it: the same numbers give the same quantized values wherever they are rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.dtypes import i8, i32
from ...ops.packed.quant_dot import BLOCK, HALF
from ...tile.builder import Ix, KernelBuilder, Tile, View

__all__ = ["BLOCK", "HALF", "QuantizedViews", "quantize_row", "quantized_block", "quantized_of", "store_block"]


@dataclass(frozen=True)
class QuantizedViews:
    """Where the results of `QuantizeRows` go: values i8[..., K], scales f32[..., K/32], sums of values i32[..., K/16]."""

    quantized: View
    scales: View
    sums: View


def quantized_block(b: KernelBuilder, x: Tile) -> tuple[Tile, Tile]:
    """Quantized values i32 (round half to even) of each row of x (its last axis), and the row's scale: x ≈ scale * code."""
    return quantized_of(b, x, b.reduce("max", b.unary("abs", x)))


def quantized_of(b: KernelBuilder, x: Tile, peak: Tile) -> tuple[Tile, Tile]:
    """The same for rows whose largest absolute values are known."""
    inverse = b.select(b.cmp("eq", peak, 0.0), 0.0, 127.0 / peak)
    return b.cast(b.unary("round", x * inverse), i32), peak * (1.0 / 127.0)


def quantize_row(b: KernelBuilder, out: QuantizedViews, at: Sequence[Ix | int], blocks: Ix | int, load: Callable[[Ix | int], Tile]) -> None:
    """All blocks of one row; load(column) gives HALF elements."""
    with b.loop(0, blocks) as loop:
        store_block(b, out, at, loop.index, [load(loop.index * BLOCK + half) for half in range(0, BLOCK, HALF)])


def store_block(b: KernelBuilder, out: QuantizedViews, at: Sequence[Ix | int], block: Ix | int, halves: Sequence[Tile]) -> None:
    """One block of a row (or of several: tiles of rank 2) as quantized values, scale and the sums of its halves."""
    peaks = [b.reduce("max", b.unary("abs", x)) for x in halves]
    peak = b.binary("max", peaks[0], peaks[1])
    for half, x in enumerate(halves):
        rounded, scale = quantized_of(b, x, peak)
        b.store(out.quantized, (*at, block * BLOCK + half * HALF), b.cast(rounded, i8))
        b.store(out.sums, (*at, block * (BLOCK // HALF) + half), b.reduce("sum", rounded))
        if half == 0:
            b.store(out.scales, (*at, block), scale)
