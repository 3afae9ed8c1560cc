"""Sort keys: every dtype as unsigned integers in the same order. NaN of either sign is the largest, -0 equals 0.

A key of up to 32 bits travels with its index in one 64-bit word. `digits` are the bytes of a key that can differ, lowest first: what a
radix sort has to look at.
"""

from __future__ import annotations

from ...core.dtypes import DType, bf16, f16, f32, f64, i32, i64, u32, u64
from ...tile.builder import Ix, KernelBuilder, Tile

RADIX = 8
BUCKETS = 1 << RADIX


def is_wide(dtype: DType) -> bool:
    """Keys of 64 bits: sorted by their lower half first."""
    return dtype.itemsize == 8


def digits(dtype: DType) -> list[int]:
    """Shifts of the bytes that differ, within a half when the key is wide."""
    if is_wide(dtype):
        return [0, 8, 16, 24]
    if dtype is bf16 or (dtype.is_float and dtype.itemsize == 1):
        return [16, 24]
    if dtype is f16:
        return [8, 16, 24]
    return list(range(0, 8 * dtype.itemsize, RADIX))


def sort_key(b: KernelBuilder, x: Tile, dtype: DType, *, descending: bool) -> Tile:
    """The key as u32 (u64 for wide dtypes); the complement when descending, so that equal elements stay in order."""
    unsigned = u64 if is_wide(dtype) else u32
    bits = 64 if is_wide(dtype) else 32
    ones, top = (1 << bits) - 1, 1 << (bits - 1)
    if dtype.is_float:
        wide = b.cast(x, f64 if dtype is f64 else f32)
        wide = b.select(b.cmp("eq", wide, 0.0), b.full((), 0.0, wide.dtype), wide)
        sign = b.binary("shr", b.bitcast(wide, i64 if dtype is f64 else i32), bits - 1)  # all ones when negative
        flip = b.binary("or", b.bitcast(sign, unsigned), top)
        key = b.binary("xor", b.bitcast(wide, unsigned), flip)
        key = b.select(b.unary("isnan", wide), b.full((), ones, unsigned), key)
    elif dtype.kind == "i":
        half = 1 << (8 * dtype.itemsize - 1)  # moves the least value to 0, so that upper bytes stay 0
        key = b.bitcast(b.cast(x, i64 if is_wide(dtype) else i32), unsigned) + half
        if dtype.itemsize < 4:
            key = b.binary("and", key, 2 * half - 1)
    else:
        key = b.cast(x, unsigned)
    if not descending:
        return key
    used = ones if dtype.is_float or dtype.itemsize >= 4 else (1 << 8 * dtype.itemsize) - 1
    return b.binary("xor", key, used)


def low_half(b: KernelBuilder, key: Tile) -> Tile:
    return b.cast(key, u32) if key.dtype is u64 else key


def high_half(b: KernelBuilder, key: Tile) -> Tile:
    return b.cast(b.binary("shr", key, 32), u32)


def word(b: KernelBuilder, key: Tile, index: Tile) -> Tile:
    """Key (u32) in the upper half, index (u64) in the lower."""
    return b.binary("or", b.binary("shl", b.cast(key, u64), 32), index)


def index_of(b: KernelBuilder, packed: Tile) -> Tile:
    return b.binary("and", packed, 0xFFFFFFFF)


def digit(b: KernelBuilder, packed: Tile, shift: int) -> Ix:
    """A byte of the key of a rank-0 word, as an index."""
    return b.to_index(b.binary("and", b.binary("shr", packed, 32 + shift), BUCKETS - 1))
