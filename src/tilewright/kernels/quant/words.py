"""Products whose operands stand several to a 32-bit word along K: four bytes (u8 by i8, exact sums in i32) or two bf16 numbers (f32 sums).

One instruction multiplies the elements of a word and adds them to a lane. A kernel for single elements serves words when its operands are
seen as i32 with K counted in words, and its multiply-add is `Words.dot`: tiles, blocks and epilogues stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.dims import divisible
from ...core.dtypes import DType, bf16, f32, i8, i32, u8, u16
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...tile.builder import KernelBuilder, Tile
from ..region import Operand


@dataclass(frozen=True)
class Words:
    """How many elements of K a word holds, and the dtype of sums."""

    per: int
    sums: DType

    @property
    def feature(self) -> str:
        """What an x86 CPU with matrix tiles for these words has."""
        return "amx-bf16" if self.per == 2 else "amx-int8"

    def dot(self, b: KernelBuilder, left: Tile, right: Tile, acc: Tile) -> Tile:
        """acc + the products of the words' elements. Bytes on the left are unsigned, those on the right signed."""
        return b.dot4(left, right, acc) if self.per == 4 else b.dot2(left, right, acc)


BYTES, PAIRS = Words(4, i32), Words(2, f32)


def pair_words(b: KernelBuilder, low: Tile, high: Tile) -> Tile:
    """Words of f32 numbers rounded to bf16, of which products take those without a normal form for zeros."""
    first, second = (b.cast(b.bitcast(b.cast(x, bf16, flush=True), u16), i32) for x in (low, high))
    return b.binary("or", first, b.binary("shl", second, 16))


def halves_of_pairs(b: KernelBuilder, words: Tile) -> list[Tile]:
    """The two bf16 numbers of every word, in f32."""
    return [b.bitcast(bits, f32) for bits in (b.binary("shl", words, 16), b.binary("and", words, -65536))]


def words_of(x: DType, w: DType, target: TargetSpec, *, tiles: bool = True) -> Words | None:
    """What a product of these dtypes is made of. Without a fast instruction pairs of bf16 gain nothing over widened panels. `tiles`: the
    product may be one of matrix tiles."""
    if x is u8 and w is i8:
        return BYTES
    return PAIRS if x is w is bf16 and (target.multiplies_pairs or (tiles and target.has_avx512bf16)) else None


def in_words(layout: Layout, axis: int, per: int) -> bool:
    """Whether elements along an axis can be read as words where they lie."""
    others = [s for i, (s, d) in enumerate(zip(layout.strides, layout.shape, strict=True)) if i != axis and d != 1]
    return layout.strides[axis] == 1 and divisible(layout.shape[axis], per) and all(divisible(s, per) for s in (*others, layout.offset))


def as_words(layout: Layout, axis: int, per: int) -> Layout:
    """A layout that is `in_words`, counted in words."""
    shape = tuple(d // per if i == axis else d for i, d in enumerate(layout.shape))
    sides = enumerate(zip(layout.strides, layout.shape, strict=True))
    strides = tuple(1 if i == axis else (0 if d == 1 else s // per) for i, (s, d) in sides)
    return Layout(shape, strides, layout.offset // per)


def word_operand(o: Operand, layout: Layout, axis: int, per: int) -> Operand:
    """An operand seen so."""
    words = as_words(layout, axis, per)
    return replace(o, type=TensorType(i32, words.shape), layout=words)
