"""Attention over bf16 numbers that are multiplied two at a time, with sums in f32.

Queries and keys are read as words of two neighbours along the head. A tile of values is packed once for all rows of a program: a word holds
keys i and i + 16 of every 32, which are registers apart among the weights of a row, so that these are packed in registers. Weights are
rounded to bf16; their sum is that of the exact ones. Keys that do not exist are zeros. All else is as in `attention`.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.dtypes import bf16, i32
from ...core.target_spec import TargetSpec
from ...tile.builder import Ix, Tile
from ..pointwise.copies import MOVED
from ..quant.words import PAIRS, in_words, pair_words, word_operand, words_of
from ..region import Operand, Region
from .forward import AttentionKernel, Config

APART = 16  # keys between the two of a word
FEWEST = 24  # query rows that pay for packing the values


def in_pairs(region: Region, target: TargetSpec) -> bool:
    """Whether queries and keys lie in words, and enough queries share the packed values."""
    assert region.anchor is not None
    operands = [region.operand(x) for x in region.anchor.operands[:3]]
    if any(o is None or words_of(o.type.dtype, bf16, target, tiles=False) is not PAIRS for o in operands):
        return False
    rows = region.anchor.operands[0].shape[2]
    return isinstance(rows, int) and rows >= FEWEST and all(o is not None and in_words(o.layout, 3, PAIRS.per) for o in operands[:2])


class PairsAttentionKernel(AttentionKernel):
    """One kernel under construction. `depth` counts words."""

    def _configure(self, target: TargetSpec) -> Config:
        config = super()._configure(target)
        return replace(config, keys=max(config.keys, 2 * APART))

    def _bind(self, q: Operand, k: Operand, v: Operand) -> None:
        self.depth //= PAIRS.per
        super()._bind(word_operand(q, q.layout, 3, PAIRS.per), word_operand(k, k.layout, 3, PAIRS.per), v)
        self.v = self.call.view("bits", MOVED[bf16.itemsize], v.buffer, v.layout)

    def _keep_tiles(self) -> None:
        b, c = self.call.b, self.config
        self.kt = b.scratch(i32, (self.depth, c.keys))
        self.p = b.scratch(i32, (c.rows, c.keys // 2))
        self.packed = b.scratch(i32, (c.keys // 2, -(-self.dv // c.width) * c.width))

    def _multiply(self, left: Tile, right: Tile, acc: Tile) -> Tile:
        return PAIRS.dot(self.call.b, left, right, acc)

    def _words(self, key: Ix | int) -> Ix | int:
        """Words of values of a tile that have a key."""
        b = self.call.b
        count = b.minimum(self.config.keys, self.skw - key)
        return count // (2 * APART) * APART + b.minimum(APART, count % (2 * APART))

    def _pack(self, key: Ix | int) -> None:
        super()._pack(key)
        b, width = self.call.b, self.config.width

        def bits(at: Ix | int, column: int) -> Tile:
            there = b.maximum(0, b.minimum(1, self.skw - at))
            inside = min(width, self.dv - column)
            return b.cast(b.load(self.v, (self.bi, self.kvh, at, column), (1, width), limit=(there, inside)), i32)

        with b.loop(0, self._words(key)) as loop:
            first = key + loop.index // APART * (2 * APART) + loop.index % APART
            for column in self._panels():
                both = b.binary("or", bits(first, column), b.binary("shl", bits(first + APART, column), 16))
                b.store(self.packed, (loop.index, column), both)

    def _keep_weights(self, p: Tile) -> None:
        b = self.call.b
        for at in range(0, self.config.keys, 2 * APART):
            low, high = (b.extract(p, (0, first), (p.shape[0], APART)) for first in (at, at + APART))
            b.store(self.p, (0, at // 2), pair_words(b, low, high))

    def _value_row(self, key: Ix | int, i: Ix | int, column: int, limit: tuple[None, int] | None) -> Tile:
        return self.call.b.load(self.packed, (i, column), (1, self.config.width))
