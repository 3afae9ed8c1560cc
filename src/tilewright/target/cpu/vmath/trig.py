"""sin, cos, tan of f64 for every magnitude (f32: vmath_trig_f32.py). Up to 2^20 the multiple of pi/2 is taken away in three exact steps;
a vector with any larger lane branches to a cold function that multiplies by 2/pi in 192-bit integers, lane by lane.

The branch splits the basic block: after `emit`, `FunctionText.block` names the block that code now goes to.
"""
from __future__ import annotations

import math

from ..llvm_text import FunctionText, lanes, like, mangle
from .base import V, any_lane, two_prod, two_sum

_LIMIT = 2.0**20
_MAGIC = 1.5 * 2.0**52
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # 33 + 33 + 53 bits
_PI2_HI, _PI2_LO = 1.5707963267948966, 6.123233995736766e-17
_SIN = (-0.16666666666666632, 0.00833333333332237, -0.00019841269829771305, 2.7557313678702274e-06, -2.5050755965977034e-08,
        1.5896666726681705e-10)  # (sin(x) - x) / x^3 in x^2 for |x| <= pi/4: 2^-58
_COS = (0.0416666666666666, -0.0013888888888874064, 2.4801587289443495e-05, -2.755731434064704e-07, 2.087572162033124e-09,
        -1.1359559086277125e-11)  # (cos(x) - 1 + x^2/2) / x^4: 2^-64
_SIN_SHORT = (1.0, -0.16666666641528252, 0.008333329374112226, -0.00019839330975997147, 2.7182742121841017e-06)  # for f32: 2^-38
_COS_SHORT = (1.0, -0.5, 0.041666646807295996, -0.0013887364487872517, 2.4438091021931066e-05)  # 2^-33


def _reduce(x: V) -> tuple[V, V, V]:
    """x (f64) = k pi/2 + high + low with |high| <= pi/4: (k's low bits, high, low)."""
    t = x.fma(2.0 / math.pi, _MAGIC)
    n = t - _MAGIC
    s, lost = two_sum(n.fma(-_HALF_PI[0], x), n * -_HALF_PI[1])
    rest = n.fma(_HALF_PI[2], -lost)
    high = s - rest
    k, low = t.ints(), (s - high) - rest
    return _repair(x, k, high, low)


def _repair(x: V, k: V, high: V, low: V) -> tuple[V, V, V]:
    """Replace the lanes that are too large (or NaN) by the cold function's, if there are any."""
    f = x.f
    fine = x.abs() < _LIMIT
    any_bad = any_lane(V(f, fine.ty, (f.op("xor", fine.ty, fine.parts[0], f.splat(fine.ty, 1)),)))
    before, cold, after = f.block, f.fresh_label("huge"), f.fresh_label("reduced")
    f.branch(any_bad, cold, after)
    f.label(cold)
    name = vector_function(f, x.ty)
    out = f"{{ {k.ty}, {x.ty}, {x.ty} }}"
    packed = f.value(f"call {out} @{name}({x.ty} {x.parts[0]})")
    fresh = [V(f, v.ty, (f.value(f"extractvalue {out} {packed}, {i}"),)) for i, v in enumerate((k, high, low))]
    mixed = [fine.choose(old, new) for old, new in zip((k, high, low), fresh, strict=True)]
    f.jump(after)
    f.label(after)
    merged = [f.phi(v.ty, [(v.parts[0], before), (m.parts[0], cold)]) for v, m in zip((k, high, low), mixed, strict=True)]
    return V(f, k.ty, (merged[0],)), V(f, x.ty, (merged[1],)), V(f, x.ty, (merged[2],))


def vector_function(f: FunctionText, ty: str) -> str:
    """Declare, once a module, the cold reduction for `ty`: it unpacks the lanes for the scalar one."""
    scalar = "tw.reduce_huge.f64"
    if scalar not in f.declarations:
        f.declarations[scalar] = _scalar_text(f)
    if not lanes(ty):
        return scalar
    name = f"tw.reduce_huge.{mangle(ty)}"
    if name in f.declarations:
        return name
    one, many = "{ i64, double, double }", f"{{ {like(ty, 'i64')}, {ty}, {ty} }}"
    g = FunctionText(name, [(ty, "%x")], f.features, returns=many, attributes="cold noinline").internal()
    columns = ["poison"] * 3
    types = (like(ty, "i64"), ty, ty)
    for lane in range(lanes(ty)):
        x = g.value(f"extractelement {ty} %x, i64 {lane}")
        result = g.value(f"call {one} @{scalar}(double {x})")
        for i, t in enumerate(types):
            part = g.value(f"extractvalue {one} {result}, {i}")
            columns[i] = g.value(f"insertelement {t} {columns[i]}, {('i64', 'double', 'double')[i]} {part}, i64 {lane}")
    packed = "poison"
    for i, t in enumerate(types):
        packed = g.value(f"insertvalue {many} {packed}, {t} {columns[i]}, {i}")
    g.ret(many, packed)
    f.declarations[name] = g.text()
    return name


def _two_over_pi_words() -> list[int]:
    """2/pi in 64-bit words after one word of zeros, enough for a 192-bit window at every exponent. Machin's formula in integers."""
    words = 21
    scale = 1 << (64 * words + 64)

    def arctan_inverse(q: int) -> int:
        total, term, k = 0, scale // q, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= q * q
            k += 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    digits = (2 * scale << (64 * (words - 1))) // pi
    return [(digits >> (64 * (words - 1 - i))) & (2**64 - 1) for i in range(words)]


def _scalar_text(f: FunctionText) -> str:
    """x = M 2^e: M times 192 bits of 2/pi, from the bit that weighs 2 on, is x 2/pi mod 4: two bits of quadrant, 190 of fraction."""
    table = "tw.two_over_pi"
    words = _two_over_pi_words()
    f.declarations[table] = f"@{table} = internal constant [{len(words)} x i64] [{', '.join(f'i64 {w}' for w in words)}]"
    out = "{ i64, double, double }"
    g = FunctionText("tw.reduce_huge.f64", [("double", "%x")], f.features, returns=out, attributes="cold noinline").internal()
    b = g.cast("bitcast", "double", "%x", "i64")
    exponent = g.op("and", "i64", g.op("lshr", "i64", b, "52"), "2047")
    mantissa = g.op("or", "i64", g.op("and", "i64", b, str(2**52 - 1)), str(2**52))
    first = g.op("sub", "i64", exponent, str(1075 + 1 - 64 + 1))  # index of the window's first bit, the word of zeros counted
    first = g.select("i64", g.icmp("sgt", "i64", first, "0"), first, "0")  # lanes in range come along
    word, shift = g.op("lshr", "i64", first, "6"), g.op("and", "i64", first, "63")
    window = "0"
    for i in range(4):
        w = g.load("i64", g.gep("i64", f"@{table}", g.op("add", "i64", word, str(i))))
        window = g.op("or", "i256", g.op("shl", "i256", window, "64"), g.cast("zext", "i64", w, "i256"))
    window = g.op("shl", "i256", window, g.cast("zext", "i64", shift, "i256"))
    window192 = g.value(f"trunc i256 {g.op('lshr', 'i256', window, '64')} to i192")
    product = g.op("mul", "i192", window192, g.cast("zext", "i64", mantissa, "i192"))
    k = g.value(f"trunc i192 {g.op('lshr', 'i192', g.op('add', 'i192', product, str(1 << 189)), '190')} to i64")
    fraction = g.op("shl", "i192", product, "2")
    minus = g.icmp("slt", "i192", fraction, "0")
    size = g.select("i192", minus, g.op("sub", "i192", "0", fraction), fraction)
    zeros = g.intrinsic("llvm.ctlz.i192", "i192", [("i192", size), ("i1", "false")])
    size = g.op("shl", "i192", size, zeros)

    def piece(down: int, weight: int) -> V:
        """53 bits of the fraction as a double, times 2^(weight - zeros)."""
        whole = g.op("and", "i64", g.value(f"trunc i192 {g.op('lshr', 'i192', size, str(down))} to i64"), str(2**53 - 1))
        power = g.op("shl", "i64", g.op("sub", "i64", str(1023 + weight), g.value(f"trunc i192 {zeros} to i64")), "52")
        return V(g, "double", (g.cast("uitofp", "i64", whole, "double"),)) * V(g, "double", (g.cast("bitcast", "i64", power, "double"),))

    fh, fl = piece(139, -53), piece(86, -106)
    high, rest = two_prod(fh, fh.const(_PI2_HI))
    low = fh.fma(_PI2_LO, rest) + fl * _PI2_HI
    x = V(g, "double", ("%x",))
    negative = V(g, "i1", (g.op("xor", "i1", minus, (x < 0.0).parts[0]),))
    high, low = negative.choose(-high, high), negative.choose(-low, low)
    high = (x.abs() < math.inf).choose(high, math.nan)
    k = g.select("i64", (x < 0.0).parts[0], g.op("sub", "i64", "0", k), k)
    packed = "poison"
    for i, (t, v) in enumerate((("i64", k), ("double", high.parts[0]), ("double", low.parts[0]))):
        packed = g.value(f"insertvalue {out} {packed}, {t} {v}, {i}")
    g.ret(out, packed)
    f.declarations.update(g.declarations)
    return g.text()


def _sine(r: V, low: V) -> tuple[V, V]:
    """sin(r + low) = s + rest"""
    z = r * r
    tail = (r * z).fma(z.poly(_SIN), low - low * z * 0.5)
    s = r + tail
    return s, (r - s) + tail


def _cosine(r: V, low: V) -> tuple[V, V]:
    """cos(r + low) = c + rest"""
    z = r * r
    h = z * 0.5
    w = 1.0 - h
    tail = ((1.0 - w) - h) + (z * z).fma(z.poly(_COS), -(r * low))
    c = w + tail
    return c, (w - c) + tail


def _turned(x: V, quarter: int) -> V:
    """sin(x + quarter * pi/2)"""
    k, r, low = _reduce(x)
    sine, cosine = _sine(r, low)[0], _cosine(r, low)[0]
    if quarter:
        k = k + quarter
    odd, flip = (k & 1).eq(1), (k & 2) << 62
    return (odd.choose(cosine, sine).ints() ^ flip).floats()


def sin(x: V) -> V:
    return x.eq(0.0).choose(x, _turned(x, 0))  # the compensated sum loses the sign of zero


def cos(x: V) -> V:
    return _turned(x, 1)


def tan(x: V) -> V:
    k, r, low = _reduce(x)
    odd = (k & 1).eq(1)
    (s, sl), (c, cl) = _sine(r, low), _cosine(r, low)
    a, al, b, bl = odd.choose(-c, s), odd.choose(-cl, sl), odd.choose(s, c), odd.choose(sl, cl)
    q = a / b
    p, rest = two_prod(q, b)
    y = q + (((a - p) - rest) + (al - q * bl)) / b
    return x.eq(0.0).choose(x, y)


FUNCTIONS = {"sin": sin, "cos": cos, "tan": tan}
