"""Rounding to eight bits, as every kernel does it: the same numbers give the same codes wherever they are rounded."""

from __future__ import annotations

from ..core.dtypes import i32
from ..tile.builder import KernelBuilder, Tile


def quantised_block(b: KernelBuilder, x: Tile) -> tuple[Tile, Tile]:
    """Codes i32 (round half to even) of each row of x (its last axis), and the row's scale: x ≈ scale * code."""
    return codes_of(b, x, b.reduce("max", b.unary("abs", x)))


def codes_of(b: KernelBuilder, x: Tile, peak: Tile) -> tuple[Tile, Tile]:
    """The same for rows whose largest absolute values are known."""
    inverse = b.select(b.cmp("eq", peak, 0.0), 0.0, 127.0 / peak)
    return b.cast(b.unary("round", x * inverse), i32), peak * (1.0 / 127.0)
