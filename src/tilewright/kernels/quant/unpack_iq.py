"""Decoders of the IQ formats (points of a codebook), ternary weights and four-bit floats. See `unpack`.

A codebook is an operand of the op: book 0 holds the points, book 1, where there is one, the patterns of signs.
"""

from __future__ import annotations

from ...core.dtypes import f16, f32, i16, i32, i64
from ...ops.quant.iq import DELTA, KVALUES
from ...ops.quant.ternary import E2M1
from ...tile.builder import Ix, Tile
from .unpack import DECODERS, Matrix, Parts

Place = Ix | int


def _chosen(m: Matrix, q: Tile, values: tuple[float, ...]) -> Tile:
    """values[q], by comparisons: tables of 16 stay in registers."""
    out = m.b.full(q.shape, values[0])
    for i, value in enumerate(values[1:], 1):
        if value != values[0]:
            out = m.b.select(m.b.cmp("eq", q, i), m.b.full((), value), out)
    return out


def _point(m: Matrix, index: Tile, width: int, book: int = 0) -> Tile:
    """Row `index` (an i32[1]) of a codebook."""
    b = m.b
    return b.load(m.books[book], (b.to_index(b.reshape(b.cast(index, i64), ())), 0), (width,))


def _signs(m: Matrix, bits: Tile, width: int, shift: int = 0) -> Tile:
    """+1 or -1 for `width` lanes from the bits of an i32[1]."""
    b = m.b
    lane = b.iota((width,), 0, i32) + shift
    set_ = b.binary("and", b.binary("shr", b.broadcast(bits, (width,)), lane), 1)
    return b.select(b.cmp("eq", set_, 0), b.full((), 1.0), b.full((), -1.0))


def _word(m: Matrix, row: Place, byte: Place) -> Tile:
    """Two bytes as an i32[1] without sign."""
    return m.b.binary("and", m.raw(row, byte, 1, i16), 0xFFFF)


def _iq4_nl(m: Matrix, row: Place, at: Place) -> Parts:
    d, values = m.scale(row, at), tuple(map(float, KVALUES))
    yield 0, d * _chosen(m, m.low(row, at + 2, 16), values)
    yield 16, d * _chosen(m, m.high(row, at + 2, 16), values)


def _iq4_xs(m: Matrix, row: Place, at: Place) -> Parts:
    b, d, values = m.b, m.scale(row, at), tuple(map(float, KVALUES))
    high = _word(m, row, at + 2)
    for g in range(8):
        low = m.bits(m.raw(row, at + 4 + g // 2, 1), 4 * (g % 2), 15)
        scale = d * m.number(b.binary("or", low, b.binary("shl", m.bits(high, 2 * g, 3), 4)) - 32)
        yield 32 * g, scale * _chosen(m, m.low(row, at + 8 + 16 * g, 16), values)
        yield 32 * g + 16, scale * _chosen(m, m.high(row, at + 8 + 16 * g, 16), values)


def _quarter(m: Matrix, d: Tile, four_bits: Tile, factor: float) -> Tile:
    return d * (m.number(four_bits) + 0.5) * factor


def _packed(m: Matrix, row: Place, at: Place, group: Place) -> tuple[Tile, Tile]:
    """Four bytes with 4 x 7 bits of signs and a scale of 4 bits above them: the low three bytes and more, as two words (low, high)."""
    return _word(m, row, at + 4 * group), _word(m, row, at + 4 * group + 2)


def _sign_index(m: Matrix, low: Tile, high: Tile, k: int) -> Tile:
    whole = m.b.binary("or", low, m.b.binary("shl", high, 16))  # the top bits wrap into the sign and are masked off
    return m.bits(whole, 7 * k, 127)


def _iq2_xxs(m: Matrix, row: Place, at: Place) -> Parts:
    d = m.scale(row, at)
    with m.b.loop(0, 8) as loop:
        low, high = _packed(m, row, at + 6, 2 * loop.index)
        scale = _quarter(m, d, m.bits(high, 12, 15), 0.25)
        for k in range(4):
            index = m.raw(row, at + 2 + 8 * loop.index + k, 1)
            yield 32 * loop.index + 8 * k, scale * _point(m, index, 8) * _point(m, _sign_index(m, low, high, k), 8, 1)


def _iq2_xs(m: Matrix, row: Place, at: Place) -> Parts:
    d = m.scale(row, at)
    with m.b.loop(0, 8) as loop:
        scales = m.raw(row, at + 66 + loop.index, 1)
        for k in range(4):
            q = _word(m, row, at + 2 + 8 * loop.index + 2 * k)
            scale = _quarter(m, d, m.bits(scales, 4 * (k // 2), 15), 0.25)
            yield 32 * loop.index + 8 * k, scale * _point(m, m.bits(q, 0, 511), 8) * _point(m, m.bits(q, 9, 127), 8, 1)


def _iq2_s(m: Matrix, row: Place, at: Place) -> Parts:
    b, d = m.b, m.scale(row, at)
    with b.loop(0, 8) as loop:
        scales, high = m.raw(row, at + 74 + loop.index, 1), m.raw(row, at + 66 + loop.index, 1)
        for k in range(4):
            byte = 4 * loop.index + k
            index = b.binary("or", m.raw(row, at + 2 + byte, 1), b.binary("shl", m.bits(high, 2 * k, 3), 8))
            scale = _quarter(m, d, m.bits(scales, 4 * (k // 2), 15), 0.25)
            yield 8 * byte, scale * _point(m, index, 8) * _signs(m, m.raw(row, at + 34 + byte, 1), 8)


def _iq3_xxs(m: Matrix, row: Place, at: Place) -> Parts:
    b, d = m.b, m.scale(row, at)
    with b.loop(0, 8) as loop:
        low, high = _packed(m, row, at + 66, loop.index)
        scale = _quarter(m, d, m.bits(high, 12, 15), 0.5)
        for k in range(8):
            index = m.raw(row, at + 2 + 8 * loop.index + k, 1)
            signs = b.load(m.books[1], (b.to_index(b.reshape(b.cast(_sign_index(m, low, high, k // 2), i64), ())), 4 * (k % 2)), (4,))
            yield 32 * loop.index + 4 * k, scale * _point(m, index, 4) * signs


def _iq3_s(m: Matrix, row: Place, at: Place) -> Parts:
    b, d = m.b, m.scale(row, at)
    with b.loop(0, 8) as loop:
        high = m.raw(row, at + 66 + loop.index, 1)
        scales = m.raw(row, at + 106 + loop.index // 2, 1)
        four = b.binary("and", b.binary("shr", scales, b.cast(b.reshape(b.from_index(loop.index % 2 * 4), (1,)), i32)), 15)
        scale = d * (m.number(four) * 2.0 + 1.0)
        for k in range(8):
            byte = 8 * loop.index + k
            index = b.binary("or", m.raw(row, at + 2 + byte, 1), b.binary("shl", m.bits(high, k, 1), 8))
            signs = _signs(m, m.raw(row, at + 74 + 4 * loop.index + k // 2, 1), 4, 4 * (k % 2))
            yield 4 * byte, scale * _point(m, index, 4) * signs


def _shifted(m: Matrix, points: Tile, negative: Tile) -> Tile:
    delta = float(DELTA)
    return points + m.b.select(m.b.cmp("eq", negative, 0), m.b.full((), delta), m.b.full((), -delta))


def _iq1_s(m: Matrix, row: Place, at: Place) -> Parts:
    b, d = m.b, m.scale(row, at)
    with b.loop(0, 8) as loop:
        qh = _word(m, row, at + 34 + 2 * loop.index)
        scale = d * m.number(m.bits(qh, 12, 7) * 2 + 1)
        for k in range(4):
            byte = 4 * loop.index + k
            index = b.binary("or", m.raw(row, at + 2 + byte, 1), b.binary("shl", m.bits(qh, 3 * k, 7), 8))
            yield 8 * byte, scale * _shifted(m, _point(m, index, 8), m.bits(qh, 15, 1))


def _iq1_m(m: Matrix, row: Place, at: Place) -> Parts:
    b = m.b
    words = [_word(m, row, at + 48 + 2 * i) for i in range(4)]
    whole = m.bits(words[0], 12, 15)
    for i in range(1, 4):
        whole = b.binary("or", whole, b.binary("shl", m.bits(words[i], 12, 15), 4 * i))
    d = b.cast(b.bitcast(b.cast(whole, i16), f16), f32)
    for g in range(16):
        scale = d * m.number(m.bits(words[g // 4], 3 * (g % 4), 7) * 2 + 1)
        for k in range(2):
            qh = m.bits(m.raw(row, at + 32 + g, 1), 4 * k, 15)
            index = b.binary("or", m.raw(row, at + 2 * g + k, 1), b.binary("shl", m.bits(qh, 0, 7), 8))
            yield 16 * g + 8 * k, scale * _shifted(m, _point(m, index, 8), m.bits(qh, 3, 1))


def _tq2_0(m: Matrix, row: Place, at: Place) -> Parts:
    d = m.scale(row, at + 64)
    for g in range(8):
        yield 32 * g, d * m.number(m.bits(m.raw(row, at + 32 * (g // 4), 32), 2 * (g % 4), 3) - 1)


def _tq1_0(m: Matrix, row: Place, at: Place) -> Parts:
    d = m.scale(row, at + 52)
    for start, first, count, group in ((0, 0, 5, 32), (32, 160, 5, 16), (48, 240, 4, 4)):
        part = m.raw(row, at + start, group)
        for k in range(count):
            digit = m.b.binary("shr", m.bits(part * 3**k, 0, 255) * 3, 8)
            yield first + group * k, d * m.number(digit - 1)


def _mxfp4(m: Matrix, row: Place, at: Place) -> Parts:
    b, values = m.b, tuple(map(float, E2M1))
    e = m.raw(row, at, 1)
    tiny = b.select(b.cmp("eq", e, 0), b.full((), 0x00200000, i32), b.full((), 0x00400000, i32))
    d = b.bitcast(b.select(b.cmp("lt", e, 2), tiny, b.binary("shl", e - 1, 23)), f32)
    yield 0, d * _chosen(m, m.low(row, at + 1, 16), values)
    yield 16, d * _chosen(m, m.high(row, at + 1, 16), values)


def _nvfp4(m: Matrix, row: Place, at: Place) -> Parts:
    b, values = m.b, tuple(map(float, E2M1))
    for g in range(4):
        x = m.raw(row, at + g, 1)
        exponent, mantissa = m.bits(x, 3, 15), m.bits(x, 0, 7)
        normal = b.bitcast(b.binary("or", b.binary("shl", exponent + 120, 23), b.binary("shl", mantissa, 20)), f32)
        value = b.select(b.cmp("eq", exponent, 0), m.number(mantissa) * 2.0**-9, normal) * 0.5
        nothing = b.binary("or", b.cmp("eq", x, 0), b.cmp("eq", x, 0x7F))
        d = b.select(nothing, b.full((), 0.0), value)
        for k, part in enumerate((m.low, m.high)):
            yield 16 * g + 8 * k, d * _chosen(m, part(row, at + 4 + 8 * g, 8), values)


DECODERS.update({
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s, "IQ1_M": _iq1_m, "TQ1_0": _tq1_0, "TQ2_0": _tq2_0, "MXFP4": _mxfp4, "NVFP4": _nvfp4,
})
