"""f32 functions on the GPU's special-function unit, and the arithmetic of tiles.

Errors against the exact value, in units of the last place (measured over random and edge arguments in the tests): exp 2, exp2 2, sigmoid 4,
tanh 2, erf 2, sin, cos and tan 1 at every magnitude; log, log2, log1p, expm1, pow and all f64 functions are the CPU
target's own polynomials.
`ex2.approx` and `rcp.approx` see only arguments for which their documented error (2 and 1 units) holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....core.dtypes import DType, f32
from ...cpu import arithmetic
from ...cpu.vmath import functions as vmath
from ...cpu.vmath.base import LOG2E, V
from ...cpu.vmath.f32 import _ERF_FAR, _ERF_NEAR
from ...cpu.vmath.trig import _COS_SHORT, _HALF_PI, _LIMIT, _MAGIC, _SIN_SHORT
from ..ptx.text import literal
from ..threads.layout import elem_type
from .math_trig64 import TABLE64, TRIG64, table64_text
from .scalar import Scalars

NEAR, FAR = 2.0**-100, 2.0**60  # sizes of numbers whose quotients by one in 1/FAR … FAR need no care
_TANH = (-0.33333298563957214, 0.13331958651542664, -0.05378668010234833, 0.020805373787879944, -0.005905854981392622)  # |x| < 0.6: 2^-28
TABLE = "tw_two_over_pi"  # 2^e · 2/pi mod 4 for e = 0 … 104, as 128-bit fixed point numbers of 2 + 126 bits


def _x(f: Scalars, x: str) -> V:
    return V(f, "float", (x,))


def exp(f: Scalars, x: str) -> str:
    """2^j · 2^r with x = (j + r) ln 2: j by rounding inside the fma, r exact to f32, so that the error does not grow with x."""
    v = f.k.value
    t = v("float", f"fma.rn.sat.f32 {{}}, {x}, 0f3BBB989D, 0f3F000000;")
    t = v("float", f"fma.rm.f32 {{}}, {t}, 0f437C0000, 0f4B400001;")
    j = v("float", f"add.rn.f32 {{}}, {t}, 0fCB40007F;")
    j = v("float", f"neg.f32 {{}}, {j};")
    r = v("float", f"fma.rn.f32 {{}}, {x}, 0f3FB8AA3B, {j};")
    r = v("float", f"fma.rn.f32 {{}}, {x}, 0f32A57060, {r};")
    e = v("float", f"ex2.approx.ftz.f32 {{}}, {r};")
    bits = v("i32", f"mov.b32 {{}}, {t};")
    bits = v("i32", f"shl.b32 {{}}, {bits}, 23;")
    scale = v("float", f"mov.b32 {{}}, {bits};")
    return v("float", f"mul.rn.f32 {{}}, {e}, {scale};")


def exp2(f: Scalars, x: str) -> str:
    """`ex2.approx` keeps subnormal results without `.ftz`."""
    return f.k.value("float", f"ex2.approx.f32 {{}}, {x};")


def sigmoid(f: Scalars, x: str) -> str:
    e = exp(f, f.fneg("float", f.intrinsic("llvm.fabs.f32", "float", [("float", x)])))
    below = f.op("fadd", "float", e, literal("float", 1.0))
    inverse = f.k.value("float", f"rcp.approx.ftz.f32 {{}}, {below};")
    above = f.select("float", f.fcmp("olt", "float", x, literal("float", 0.0)), e, literal("float", 1.0))
    return f.op("fmul", "float", above, inverse)


def tanh(f: Scalars, x: str) -> str:
    a = _x(f, x).abs()
    e = _x(f, exp(f, (a + a).parts[0]))
    inverse = _x(f, f.k.value("float", f"rcp.approx.ftz.f32 {{}}, {(e + 1.0).parts[0]};"))
    far = inverse.fma(-2.0, 1.0).sign_of(_x(f, x))
    z = _x(f, x) * _x(f, x)
    near = (z.poly(_TANH) * z).fma(_x(f, x), _x(f, x))
    return (a < 0.6).choose(near, far).parts[0]


def erf(f: Scalars, x: str) -> str:
    v = _x(f, x)
    a, z = v.abs(), v * v
    near = v.fma(z.poly(_ERF_NEAR), v)
    power = a.at_most(4.0).poly([c * -LOG2E for c in _ERF_FAR])  # erfc(a) = 2^power <= 0.2: the error of the power hardly shows
    far = 1.0 - _x(f, f.k.value("float", f"ex2.approx.ftz.f32 {{}}, {power.parts[0]};"))
    return (a > 0.92).choose(far.sign_of(v), near).parts[0]


def reciprocal(f: Scalars, x: str) -> str:
    return f.k.value("float", f"rcp.rn.f32 {{}}, {x};")


# -- trigonometry ------------------------------------------------------------------------------------------------------
def tables(text: str) -> str:
    """The module-level tables that the text of a kernel names."""
    return (table_text() if f" {TABLE};" in text else "") + (table64_text() if f" {TABLE64};" in text else "")


def table_text() -> str:
    """The module-level table of the reduction of large arguments."""
    scale = 1 << 400

    def arctan_inverse(q: int) -> int:
        total, term, k = 0, scale // q, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= q * q
            k += 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    words: list[int] = []
    for e in range(105):
        turn = (((2 << e) * scale << 126) // pi) & ((1 << 128) - 1)
        words += [turn & (2**64 - 1), turn >> 64]
    return f".global .align 16 .b64 {TABLE}[{len(words)}] = {{{', '.join(f'0x{w:016x}' for w in words)}}};\n"


def _reduce(f: Scalars, x: str) -> tuple[V, V]:
    """x = k pi/2 + r with |r| <= pi/4: (k, r in f64). Large x: the mantissa times 2^e · 2/pi mod 4, which wraps as 128-bit integers do."""
    k, v = f.k, f.k.value
    wide = V(f, "double", (f.cast("fpext", "float", x, "double"),))
    t = wide.fma(2.0 / math.pi, _MAGIC)
    n = t - _MAGIC
    quarter, rest = k.reg("i64"), k.reg("double")
    k.emit(f"mov.b64 {quarter}, {t.parts[0]};")
    k.emit(f"mov.f64 {rest}, {n.fma(-(_HALF_PI[1] + _HALF_PI[2]), n.fma(-_HALF_PI[0], wide)).parts[0]};")
    done = k.label("reduced")
    k.emit(f"@{f.fcmp('olt', 'double', wide.abs().parts[0], literal('double', _LIMIT))} bra {done};")
    bits = v("i32", f"mov.b32 {{}}, {x};")
    exponent = v("i32", f"bfe.u32 {{}}, {bits}, 23, 8;")
    exponent = v("i32", f"sub.s32 {{}}, {exponent}, 150;")
    exponent = v("i32", f"min.s32 {{}}, {v('i32', f'max.s32 {{}}, {exponent}, 0;')}, 104;")
    mantissa = v("i32", f"and.b32 {{}}, {bits}, 8388607;")
    mantissa = v("i32", f"or.b32 {{}}, {mantissa}, 8388608;")
    down = v("i32", f"bfe.u32 {{}}, {bits}, 23, 8;")  # |x| from 2^20 to 2^23: the mantissa has fraction bits, e would be negative
    down = v("i32", f"sub.s32 {{}}, 150, {down};")
    down = v("i32", f"max.s32 {{}}, {down}, 0;")
    m = v("i64", f"cvt.u64.u32 {{}}, {mantissa};")
    where = v("i64", f"mul.wide.u32 {{}}, {exponent}, 16;")
    base = v("i64", f"mov.u64 {{}}, {TABLE};")
    where = v("i64", f"add.s64 {{}}, {base}, {where};")
    low, high = k.reg("i64"), k.reg("i64")
    k.emit(f"ld.global.v2.b64 {{{low}, {high}}}, [{where}];")
    carry = v("i64", f"mul.hi.u64 {{}}, {low}, {m};")
    low = v("i64", f"mul.lo.u64 {{}}, {low}, {m};")
    high = v("i64", f"mad.lo.u64 {{}}, {high}, {m}, {carry};")
    # A fraction in the mantissa: shift the product right, with what the wrap dropped being whole turns of 2^down quarters: keep them by
    # multiplying the top word separately.
    top = v("i64", f"mul.hi.u64 {{}}, {k.value('i64', f'ld.global.b64 {{}}, [{where}+8];')}, {m};")
    up = v("i32", f"sub.s32 {{}}, 64, {down};")
    low_d = v("i64", f"shr.u64 {{}}, {low}, {down};")
    low_d = v("i64", f"or.b64 {{}}, {low_d}, {v('i64', f'shl.b64 {{}}, {high}, {up};')};")
    high_d = v("i64", f"shr.u64 {{}}, {high}, {down};")
    high_d = v("i64", f"or.b64 {{}}, {high_d}, {v('i64', f'shl.b64 {{}}, {top}, {up};')};")
    turned = v("i64", f"add.s64 {{}}, {high_d}, {1 << 61};")  # round to the nearest quarter
    k.emit(f"shr.u64 {quarter}, {turned}, 62;")
    signed = v("i64", f"sub.s64 {{}}, {high_d}, {v('i64', f'shl.b64 {{}}, {quarter}, 62;')};")
    whole = V(f, "double", (v("double", f"cvt.rn.f64.s64 {{}}, {signed};"),))
    small = V(f, "double", (v("double", f"cvt.rn.f64.u64 {{}}, {low_d};"),))
    r = (whole * 2.0**-62 + small * 2.0**-126) * (math.pi / 2)
    minus = f.fcmp("olt", "float", x, literal("float", 0.0))
    r = V(f, "i1", (minus,)).choose(-r, r)
    bad = f.fcmp("oge", "double", wide.abs().parts[0], literal("double", math.inf))
    r = V(f, "i1", (f.op("or", "i1", bad, f.fcmp("uno", "float", x, x)),)).choose(r.const(math.nan), r)
    k.emit(f"mov.f64 {rest}, {r.parts[0]};")
    k.emit(f"@{minus} neg.s64 {quarter}, {quarter};")
    k.place(done)
    return V(f, "i64", (quarter,)), V(f, "double", (rest,))


def _turned(f: Scalars, x: str, quarter: int) -> str:
    k, r = _reduce(f, x)
    z = r * r
    sine, cosine = r * z.poly(_SIN_SHORT), z.poly(_COS_SHORT)
    k = k + quarter
    odd, flip = (k & 1).eq(1), (k & 2) << 62
    return (odd.choose(cosine, sine).ints() ^ flip).floats().cast("fptrunc", "float").parts[0]


def sin(f: Scalars, x: str) -> str:
    return _turned(f, x, 0)


def cos(f: Scalars, x: str) -> str:
    return _turned(f, x, 1)


def tan(f: Scalars, x: str) -> str:
    k, r = _reduce(f, x)
    z = r * r
    s, c = r * z.poly(_SIN_SHORT), z.poly(_COS_SHORT)
    odd = (k & 1).eq(1)
    return (odd.choose(-c, s) / odd.choose(s, c)).cast("fptrunc", "float").parts[0]


_FAST: dict[str, Callable[[Scalars, str], str]] = {
    "exp": exp,
    "exp2": exp2,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "reciprocal": reciprocal,
    "sin": sin,
    "cos": cos,
    "tan": tan,
}


def unary(f: Scalars, fn: str, dtype: DType, x: str) -> str:
    if not x.startswith("%") and dtype.is_float:
        x = f.k.value(elem_type(dtype), f"mov.{'f32' if dtype is f32 else 'f64'} {{}}, {x};")
    if dtype is f32 and fn in _FAST:
        return _FAST[fn](f, x)
    if fn in TRIG64:
        return TRIG64[fn](f, x)
    if dtype.is_float and fn in arithmetic.VMATH:
        return vmath.emit(fn, f, elem_type(dtype), x)
    return arithmetic.unary(f, fn, dtype, elem_type(dtype), x)


def short(f: Scalars, fn: str, dtype: DType, x: str) -> str:
    """A few instructions: exp2 errs by 2 units as ever, sigmoid by 2^-17 where it is smallest; below 2^-126 both are 0."""
    assert dtype is f32, dtype
    if fn == "exp2":
        return f.k.value("float", f"ex2.approx.ftz.f32 {{}}, {x};")
    assert fn == "sigmoid", fn
    e = f.k.value("float", f"ex2.approx.ftz.f32 {{}}, {f.op('fmul', 'float', x, literal('float', -LOG2E))};")
    return f.k.value("float", f"rcp.approx.ftz.f32 {{}}, {f.op('fadd', 'float', e, literal('float', 1.0))};")


def binary(f: Scalars, fn: str, dtype: DType, a: str, b: str) -> str:
    ty = elem_type(dtype)
    if dtype is f32 and fn in ("max", "min"):  # a NaN on either side wins
        return f.k.value("float", f"{fn}.NaN.f32 {{}}, {a}, {b};")
    if not a.startswith("%") and dtype.is_float and fn in ("max", "min"):
        a = f.k.value(ty, f"mov.f64 {{}}, {a};")
    return arithmetic.binary(f, fn, dtype, ty, a, b)


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def combine(f: Scalars, fn: str, dtype: DType, a: str, b: str) -> str:
    if fn in ("any", "all"):
        return f.op("or" if fn == "any" else "and", "i1", a, b)
    return binary(f, _COMBINE[fn], dtype, a, b)


def inverse(b: str) -> str | None:
    """1 / b of a constant by which `quotient` divides."""
    if not b.startswith("0f"):
        return None
    c = np.uint32(int(b[2:], 16)).view(np.float32)
    special = not 1 / FAR <= abs(c) <= FAR or int(b[2:], 16) & 0x7FFFFF == 0x7FFFFF
    return None if special else literal("float", float(np.float32(1) / c))


def short_quotient(f: Scalars, a: str, b: str) -> str:
    """a / b within two units in the last place, in a few instructions without a branch."""
    a, b = (x if x.startswith("%") else f.k.value("float", f"mov.f32 {{}}, {x};") for x in (a, b))
    return f.k.value("float", f"div.full.f32 {{}}, {a}, {b};")


def quotient(f: Scalars, a: str, b: str, y: str) -> tuple[str, str]:
    """a / b, rounded as `div.rn` does, where the second result is true; y is 1 / b. The assembler's own quotient ends in a branch."""
    q = f.op("fmul", "float", a, y)
    minus = literal("float", -float(np.uint32(int(b[2:], 16)).view(np.float32)))
    exact = f.fma("float", f.fma("float", q, minus, a), y, q)
    size = f.k.value("float", f"abs.f32 {{}}, {a};")
    near = f.fcmp("oge", "float", size, literal("float", NEAR))
    inside = f.op("and", "i1", near, f.fcmp("ole", "float", size, literal("float", FAR)))
    zero = f.fcmp("oeq", "float", size, literal("float", 0))
    return f.select("float", near, exact, q), f.op("or", "i1", inside, zero)
