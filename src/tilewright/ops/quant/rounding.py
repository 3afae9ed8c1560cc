"""Weights rounded to packed blocks: one function for each way to choose scales, whatever the format's fields are.

Those of Q4_0 to Q8_0, Q8_K, the ternary formats and MXFP4 give the bits of ggml's reference.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .base import BlockFormat
from .bits import F32, U8, Array, Book, Integers, Reals, Trits, half_e8m0, half_ue4m3
from .iq_tables import DELTA, grid

BLOCKS = 64  # rounded to points of a codebook at once
SMALL = 1 << 18  # multiplications of a product that BLAS does on one thread, in the cache


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


def _divided(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0)


def _quotient(x: F32, inv: Array, low: int, high: int) -> Array:
    """The integers from low to high nearest to x · inv."""
    q = x * inv
    np.rint(q, out=q)
    np.maximum(q, np.float32(low), out=q)
    return np.minimum(q, np.float32(high), out=q)


def _sums(a: Array, b: Array) -> Array:
    """The sums of a group's products."""
    found: Array = np.einsum("ngk,ngk->ng", a, b)
    return found


def super_symmetric(f: BlockFormat, x: F32) -> U8:
    """Groups with a small integer scale: of 19 scales for each group the one with the least squared error, weighted by x²; then integers
    for the scales, and quantized values for what these give."""
    assert f.scale is not None and f.scale.by is not None and isinstance(f.q, Integers)
    by, middle, n = f.scale.by, -f.q.bias, len(x)
    groups = x.reshape(n, by.count, -1)
    inv, weight = inverse(_peak(groups)), groups * groups
    best, scale, cubes = np.full((n, by.count), -1, np.float32), np.zeros((n, by.count), np.float32), weight * groups
    for step in range(-9, 10):
        q = _quotient(groups, inv * np.float32(-(middle + 0.1 * step)), -middle, middle - 1)
        above, below = _sums(cubes, q), _sums(weight * q, q)
        gain = _divided(above * above, below)
        scale = np.where(gain > best, _divided(above, below), scale)
        best = np.maximum(gain, best)
    low = -128 if by.signed else by.bias
    d = (_peak(scale) / np.float32(low)).astype(np.float16).astype(np.float32)
    s = _quotient(scale, inverse(d), low, -low - 1)
    q = _quotient(groups, inverse(d * s)[..., None], -middle, middle - 1).reshape(n, -1)
    stored = s.astype(np.int8).view(np.uint8) if by.signed else (s - by.bias).astype(np.uint8)
    return f.pack(n, (f.scale.real, d), (by, stored), (f.q, (q + middle).astype(np.uint8)))


def super_affine(f: BlockFormat, x: F32) -> U8:
    """Groups with a small integer scale and minimum: for each group scales from a little below to a little above what fits its range, every
    one with the least-squares scale and minimum for its quantized values; errors are weighted by |x| and the root mean square."""
    assert f.scale is not None and f.minimum is not None and isinstance(f.q, Integers)
    by, minimums = f.scale.by, f.minimum.by
    assert by is not None and minimums is not None
    n, count, most = len(x), by.count, (1 << f.q.width) - 1
    groups = x.reshape(n, count, -1)
    weight = np.abs(groups) + np.sqrt((groups * groups).mean(-1, keepdims=True))
    low = np.minimum(groups.min(-1), 0)
    span = groups.max(-1) - low
    above, inv = groups - low[..., None], inverse(span)[..., None]
    w, wx = weight.sum(-1), _sums(weight, above)
    scale, least, best = span / np.float32(most), low, np.full((n, count), np.inf, np.float32)
    for width in (most, *(most - 1 + 0.1 * step for step in range(21))):
        q = _quotient(above, inv * np.float32(width), 0, most)
        weighted = weight * q
        wq, wqq, wqx = weighted.sum(-1), _sums(weighted, q), _sums(weighted, above)
        det = w * wqq - wq * wq
        s, m = _divided(w * wqx - wx * wq, det), _divided(wqq * wx - wq * wqx, det)  # above the lowest element
        s, m = np.where(low + m > 0, _divided(wqx + low * wq, wqq), s), np.minimum(m, -low)
        error = s * s * wqq + 2 * s * m * wq + m * m * w - 2 * s * wqx - 2 * m * wx
        better = (error < best) & (det > 0)
        scale, least, best = np.where(better, s, scale), np.where(better, low + m, least), np.where(better, error, best)
    top = np.float32((1 << by.width) - 1)
    d, dmin = ((v.max(-1, keepdims=True) / top).astype(np.float16).astype(np.float32) for v in (np.maximum(scale, 0), -least))
    s, m = _quotient(scale, inverse(d), 0, int(top)), _quotient(-least, inverse(dmin), 0, int(top))
    q = _quotient(groups + (dmin * m)[..., None], inverse(d * s)[..., None], 0, most).reshape(n, -1)
    return f.pack(n, (f.scale.real, d), (by, s.astype(np.uint8)), (f.minimum.real, dmin), (minimums, m.astype(np.uint8)),
                  (f.q, q.astype(np.uint8)))


def tabled(f: BlockFormat, x: F32) -> U8:
    """Entries of a table (IQ4_NL, IQ4_XS): for each group of 32 the scale of a few with the least squared error, weighted by x²."""
    assert f.scale is not None
    table, n = np.array(f.table, np.float32), len(x)
    groups = x.reshape(n, f.elements // 32, 32)
    middles, weight, inv = (table[1:] + table[:-1]) / 2, groups * groups, inverse(_peak(groups))
    best, scale, cubes = np.full(groups.shape[:2], -1, np.float32), np.zeros(groups.shape[:2], np.float32), weight * groups
    for step in range(-7, 8):
        near = table[np.searchsorted(middles, groups * (inv * (table[0] + np.float32(step))))]
        above, below = _sums(cubes, near), _sums(weight * near, near)
        gain = _divided(above * above, below)
        scale = np.where(gain > best, _divided(above, below), scale)
        best = np.maximum(gain, best)
    by = f.scale.by
    d = (scale if by is None else _peak(scale) / np.float32(by.bias)).astype(np.float16).astype(np.float32)
    s = np.ones_like(scale) if by is None else _quotient(scale, inverse(d), by.bias, -by.bias - 1)
    q = np.searchsorted(middles, groups * inverse(d * s)[..., None]).reshape(n, -1).astype(np.uint8)
    parts = [] if by is None else [(by, (s - by.bias).astype(np.uint8))]
    return f.pack(n, (f.scale.real, d), *parts, (f.q, q))


def points(f: BlockFormat, x: F32) -> U8:
    """Points of a codebook (IQ1 to IQ3): for each group the scale of a few with the least squared error, every vector the nearest point."""
    return np.concatenate([_points(f, x[i : i + BLOCKS]) for i in range(0, len(x), BLOCKS)]) if len(x) else np.empty((0, f.bytes), np.uint8)


def _points(f: BlockFormat, x: F32) -> U8:
    assert f.scale is not None and f.scale.by is not None and isinstance(f.table, Book)
    book, by, table, n = f.table, f.scale.by, grid(f.table.name), len(x)
    minus = x < 0 if book.signs is not None else np.zeros_like(x, bool)
    if book.patterns:  # an even number of eight signs is minus: else the smallest element takes the wrong one
        eights, size = minus.reshape(n, 32, 8), np.abs(x).reshape(n, 32, 8)
        eights ^= (np.arange(8) == size.argmin(-1)[..., None]) & (eights.sum(-1, keepdims=True) % 2 == 1)
    v = np.where(minus, -x, x).reshape(n, by.count, -1, table.shape[1])
    moved = [table] if book.shifted is None else [table + DELTA, table - DELTA]
    sides = [np.concatenate([p, -(p * p).sum(-1, keepdims=True)], axis=-1).T.copy() for p in moved]

    def nearest(scale: Array) -> tuple[Array, Array, Array]:
        """The points' numbers, whether 0.125 is taken away, and what they stand for without the scale."""
        inv, found = inverse(scale)[:, :, None, None], []
        left = np.concatenate([2 * inv * v, np.ones_like(v[..., :1])], axis=-1).reshape(-1, table.shape[1] + 1)
        for p in sides:
            index, most_ = np.empty(len(left), np.int64), np.empty(len(left), np.float32)
            step = max(1, SMALL // p.size)
            for i in range(0, len(left), step):
                gain = left[i : i + step] @ p  # 2 v · point / scale - point²
                index[i : i + step] = gain.argmax(-1)
                most_[i : i + step] = gain.max(-1)
            found.append((index.reshape(v.shape[:3]), most_.reshape(v.shape[:3]) * (scale * scale)[..., None]))
        if book.shifted is None:
            which = np.zeros((n, 1), bool)
        else:
            which = np.subtract(found[1][1], found[0][1]).reshape(n, book.shifted.count, -1).sum(-1) > 0
        each = np.broadcast_to(which[..., None], (*which.shape, v.shape[1] * v.shape[2] // which.shape[1])).reshape(v.shape[:3])
        q = np.where(each, found[-1][0], found[0][0])
        return q, which, np.where(each[..., None], moved[-1][q], moved[0][q])

    peak, best, scale = np.abs(v).max((2, 3)) / np.abs(moved[0]).max(), np.zeros(v.shape[:2], np.float32), np.zeros(v.shape[:2], np.float32)
    for part in range(4, 12):
        _, _, near = nearest(peak * np.float32(part / 10))
        above, below = (v * near).sum((2, 3)), (near * near).sum((2, 3))
        gain = np.where(above > 0, _divided(above * above, below), 0)
        scale, best = np.where(gain > best, _divided(above, below), scale), np.maximum(gain, best)
    most = (1 << by.width) - 1
    d = (scale.max(-1, keepdims=True) / np.float32(f.scale.slope * most + f.scale.start)).astype(np.float16).astype(np.float32)
    s = np.clip(np.rint((scale * inverse(d) - f.scale.start) / f.scale.slope), 0, most)
    q, which, _ = nearest(d * (s * np.float32(f.scale.slope) + np.float32(f.scale.start)))
    parts: list[tuple[Integers | Trits | Reals, Array]] = [
        (f.scale.real, d), (by, s.astype(np.uint8)), (f.q, q.reshape(n, -1).astype(np.uint16))]
    if book.signs is not None:
        bits = np.packbits(minus, axis=-1, bitorder="little") & np.uint8(127)
        parts.append((book.signs, bits if book.patterns else minus.astype(np.uint8)))
    if book.shifted is not None:
        parts.append((book.shifted, which.astype(np.uint8)))
    return f.pack(n, *parts)


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
