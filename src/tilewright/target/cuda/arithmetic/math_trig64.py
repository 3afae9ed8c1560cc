"""sin, cos and tan of f64 for every magnitude: the CPU target's polynomials; up to 2^20 its reduction, beyond that 192 bits of 2/pi
times the mantissa in integers."""

from __future__ import annotations

import math

from ...cpu.vmath.base import V, two_prod, two_sum
from ...cpu.vmath.trig import _HALF_PI, _LIMIT, _MAGIC, _PI2_HI, _PI2_LO, _cosine, _sine, _two_over_pi_words
from ..ptx.text import literal
from .scalar import Scalars

TABLE64 = "tw_two_over_pi_words"


def table64_text() -> str:
    words = _two_over_pi_words()
    return f".global .align 16 .b64 {TABLE64}[{len(words)}] = {{{', '.join(f'0x{w:016x}' for w in words)}}};\n"


def _reduce(f: Scalars, x: V) -> tuple[V, V, V]:
    """x = k pi/2 + high + low with |high| <= pi/4."""
    k = f.k
    t = x.fma(2.0 / math.pi, _MAGIC)
    n = t - _MAGIC
    s, lost = two_sum(n.fma(-_HALF_PI[0], x), n * -_HALF_PI[1])
    rest = n.fma(_HALF_PI[2], -lost)
    near = s - rest
    quarter, high, low = k.reg("i64"), k.reg("double"), k.reg("double")
    k.emit(f"mov.b64 {quarter}, {t.parts[0]};")
    k.emit(f"mov.f64 {high}, {near.parts[0]};")
    k.emit(f"mov.f64 {low}, {((s - near) - rest).parts[0]};")
    done = k.label("reduced")
    k.emit(f"@{f.fcmp('olt', 'double', x.abs().parts[0], literal('double', _LIMIT))} bra {done};")
    far = _reduce_far(f, x)
    for target, value in zip((quarter, high, low), far, strict=True):
        k.emit(f"mov.b64 {target}, {value.parts[0]};")
    k.place(done)
    return V(f, "i64", (quarter,)), V(f, "double", (high,)), V(f, "double", (low,))


def _reduce_far(f: Scalars, x: V) -> tuple[V, V, V]:
    """x = M 2^e: M times 192 bits of 2/pi, from the bit that weighs 2 on, is x 2/pi mod 4: two bits of quadrant, 190 of fraction."""
    v = f.k.value
    bits = v("i64", f"mov.b64 {{}}, {x.parts[0]};")
    exponent = v("i64", f"and.b64 {{}}, {v('i64', f'shr.u64 {{}}, {bits}, 52;')}, 2047;")
    mantissa = v("i64", f"or.b64 {{}}, {v('i64', f'and.b64 {{}}, {bits}, {2**52 - 1};')}, {2**52};")
    first = v("i64", f"sub.s64 {{}}, {exponent}, {1075 + 1 - 64 + 1};")
    first = v("i64", f"min.s64 {{}}, {v('i64', f'max.s64 {{}}, {first}, 0;')}, {64 * 17 - 1};")
    where = v("i64", f"shl.b64 {{}}, {v('i64', f'shr.u64 {{}}, {first}, 6;')}, 3;")
    where = v("i64", f"add.s64 {{}}, {where}, {v('i64', f'mov.u64 {{}}, {TABLE64};')};")
    shift = v("i32", f"cvt.u32.u64 {{}}, {v('i64', f'and.b64 {{}}, {first}, 63;')};")
    back = v("i32", f"sub.u32 {{}}, 64, {shift};")
    words = [v("i64", f"ld.global.b64 {{}}, [{where}+{8 * i}];") for i in range(4)]
    window = [  # shifts by 64 and more give zero
        v("i64", f"or.b64 {{}}, {v('i64', f'shl.b64 {{}}, {words[i]}, {shift};')}, {v('i64', f'shr.u64 {{}}, {words[i + 1]}, {back};')};")
        for i in range(3)
    ]
    low = v("i64", f"mul.lo.u64 {{}}, {window[2]}, {mantissa};")
    carry = v("i64", f"mul.hi.u64 {{}}, {window[2]}, {mantissa};")
    part = v("i64", f"mul.lo.u64 {{}}, {window[1]}, {mantissa};")
    mid = v("i64", f"add.s64 {{}}, {part}, {carry};")
    over = v("i64", f"selp.b64 {{}}, 1, 0, {v('i1', f'setp.lt.u64 {{}}, {mid}, {part};')};")
    top = v("i64", f"mad.lo.u64 {{}}, {window[0]}, {mantissa}, {over};")
    top = v("i64", f"add.s64 {{}}, {top}, {v('i64', f'mul.hi.u64 {{}}, {window[1]}, {mantissa};')};")
    quarter = v("i64", f"shr.u64 {{}}, {v('i64', f'add.s64 {{}}, {top}, {1 << 61};')}, 62;")
    signed = v("i64", f"sub.s64 {{}}, {top}, {v('i64', f'shl.b64 {{}}, {quarter}, 62;')};")
    upper = v("i64", f"and.b64 {{}}, {signed}, -2048;")  # 53 bits of the first word are exact, the others go with the second

    def number(word: str, kind: str, weight: int) -> V:
        return V(f, "double", (v("double", f"cvt.rn.f64.{kind}64 {{}}, {word};"),)) * 2.0**weight

    rest = number(v("i64", f"and.b64 {{}}, {signed}, 2047;"), "u", -62) + number(mid, "u", -126) + number(low, "u", -190)
    a, b = two_sum(number(upper, "s", -62), rest)
    high, lost = two_prod(a, a.const(_PI2_HI))
    tail = a.fma(_PI2_LO, lost) + b * _PI2_HI
    minus = x < 0.0
    high, tail = minus.choose(-high, high), minus.choose(-tail, tail)
    high = (x.abs() < math.inf).choose(high, high.const(math.nan))
    negative = v("i64", f"neg.s64 {{}}, {quarter};")
    return V(f, "i64", (f.select("i64", minus.parts[0], negative, quarter),)), high, tail


def _turned(f: Scalars, x: V, quarter: int) -> V:
    k, r, low = _reduce(f, x)
    sine, cosine = _sine(r, low)[0], _cosine(r, low)[0]
    k = k + quarter if quarter else k
    odd, flip = (k & 1).eq(1), (k & 2) << 62
    return (odd.choose(cosine, sine).ints() ^ flip).floats()


def sin64(f: Scalars, x: str) -> str:
    v = V(f, "double", (x,))
    return v.eq(0.0).choose(v, _turned(f, v, 0)).parts[0]  # the compensated sum loses the sign of zero


def cos64(f: Scalars, x: str) -> str:
    return _turned(f, V(f, "double", (x,)), 1).parts[0]


def tan64(f: Scalars, x: str) -> str:
    v = V(f, "double", (x,))
    k, r, low = _reduce(f, v)
    odd = (k & 1).eq(1)
    (s, sl), (c, cl) = _sine(r, low), _cosine(r, low)
    a, al, b, bl = odd.choose(-c, s), odd.choose(-cl, sl), odd.choose(s, c), odd.choose(sl, cl)
    q = a / b
    p, rest = two_prod(q, b)
    return v.eq(0.0).choose(v, q + (((a - p) - rest) + (al - q * bl)) / b).parts[0]


TRIG64 = {"sin": sin64, "cos": cos64, "tan": tan64}
