"""Weights rounded to packed blocks: one function for each way to choose scales, whatever the format's fields are.

Those of Q4_0 to Q8_0, Q8_K, the ternary formats and MXFP4 give the bits of ggml's reference.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .base import BlockFormat
from .bits import F32, U8, Array, Integers, half_e8m0, half_ue4m3


def round_half_away(x: F32) -> F32:
    """C's roundf."""
    size = np.abs(x)
    floor = np.floor(size)
    rounded: F32 = np.sign(x) * (floor + np.floor(np.float32(2) * (size - floor)))
    return rounded


def inverse(d: F32) -> F32:
    """1/d, and 0 for 0."""
    result: F32 = np.where(d == 0, np.float32(0), np.float32(1) / d)
    return result


def _blocks(f: BlockFormat, d: Array, q: Array) -> U8:
    assert f.scale is not None
    return f.pack(len(d), (f.scale.real, d), (f.q, q))


def _peak(x: F32) -> F32:
    """The element furthest from zero, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


def symmetric(f: BlockFormat, x: F32) -> U8:
    """The element furthest from zero becomes the lowest quantized value: the sign of the scale is the opposite of its own."""
    middle = -f.q.bias
    d = _peak(x) / np.float32(-middle)
    q = np.trunc(x * inverse(d) + np.float32(middle + 0.5))
    return _blocks(f, d, np.clip(q.astype(np.uint8), 0, 2 * middle - 1))


def affine(f: BlockFormat, x: F32) -> U8:
    assert f.minimum is not None and isinstance(f.q, Integers)
    low, most = x.min(axis=-1, keepdims=True), (1 << f.q.width) - 1
    d = (x.max(axis=-1, keepdims=True) - low) / np.float32(most)
    q = np.clip(np.trunc((x - low) * inverse(d) + np.float32(0.5)).astype(np.uint8), 0, most)
    assert f.scale is not None
    return f.pack(len(x), (f.scale.real, d), (f.minimum.real, low), (f.q, q))


def signed(f: BlockFormat, x: F32) -> U8:
    d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return _blocks(f, d, round_half_away(x * inverse(d)).astype(np.int8).view(np.uint8))


def q8_k(f: BlockFormat, x: F32) -> U8:
    """ggml's quantize_row_q8_K_ref: the element furthest from zero becomes -127, and the scale has the opposite sign of it."""
    peak = _peak(x)
    inv = np.where(peak == 0, np.float32(0), np.float32(-127) / peak)
    q = np.minimum(np.rint(inv * x), 127).astype(np.int8)
    out = _blocks(f, np.where(inv == 0, np.float32(0), np.float32(1) / inv), q.view(np.uint8))
    f.spare[0].pack(out, q.reshape(len(x), 16, 16).sum(axis=-1, dtype=np.int16).view(np.uint16))
    return out


def ternary(f: BlockFormat, x: F32) -> U8:
    d = np.abs(x).max(axis=-1, keepdims=True)
    return _blocks(f, d, (round_half_away(x * inverse(d)).astype(np.int8) + np.int8(1)).astype(np.uint8))


def _nearest(f: BlockFormat, d: F32, x: F32) -> U8:
    """For every element the entry of the table, times d, that is nearest."""
    found: U8 = np.abs(d[..., None] * np.array(f.table, np.float32) - x[..., None]).argmin(axis=-1).astype(np.uint8)
    return found


def mxfp4(f: BlockFormat, x: F32) -> U8:
    peak = np.abs(x).max(axis=-1, keepdims=True)
    e = np.where(peak > 0, np.floor(np.log2(peak)) - 2 + 127, 0).astype(np.uint8)
    return _blocks(f, e, _nearest(f, half_e8m0(e), x))


def nvfp4(f: BlockFormat, x: F32) -> U8:
    """Scales are max|x| / 6 of 16 elements, rounded to the nearest e4m3 (at most 448)."""
    groups = x.reshape(len(x), 4, 16)
    d = np.minimum(np.abs(groups).max(axis=-1) / np.float32(6), np.float32(448)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return _blocks(f, d, _nearest(f, half_ue4m3(d)[..., None], groups).reshape(len(x), -1))


def small_float(f: BlockFormat, x: F32) -> U8:
    """The scale is max|x| over the largest number; the nearest floats, ties to even."""
    kind, most = getattr(ml_dtypes, str(f.table)), {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[str(f.table)]
    d = (np.abs(x).max(axis=-1, keepdims=True) / np.float32(most)).astype(np.float32)
    return _blocks(f, d, np.clip(x * inverse(d), -most, most).astype(kind).view(np.uint8))


def plain(f: BlockFormat, x: F32) -> U8:
    return np.ascontiguousarray(x.astype(f.dtype)).view(np.uint8)


def bf16(f: BlockFormat, x: F32) -> U8:
    bits = x.view(np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    even = (bits.astype(np.uint64) + np.uint64(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)).astype(np.uint64)) >> np.uint64(16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(64)).astype(np.uint64)
    return np.where(nan, quiet, even).astype(np.uint16).view(np.uint8)
