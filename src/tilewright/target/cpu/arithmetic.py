"""Elementwise tile ops on one chunk: LLVM text for arithmetic, comparison, selection and conversion."""

from __future__ import annotations

import re
import struct

from ...core.dtypes import DType, bf16, f16, f32
from ...core.target_spec import TargetSpec
from . import float8
from .llvm_text import FunctionText, like, vector
from .registers import elem_type
from .vmath import functions as vmath

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_FCMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
VMATH = frozenset(
    {
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log1p",
        "tanh",
        "erf",
        "sigmoid",
        "sin",
        "cos",
        "tan",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "floor",
        "ceil",
        "round",
        "trunc",
    }
)


def unary(f: FunctionText, fn: str, dtype: DType, ty: str, x: str) -> str:
    if dtype.is_bool:
        return f.op("xor", ty, x, f.splat(ty, 1))  # only `not` exists on bools
    if dtype.is_int:
        match fn:
            case "neg":
                return f.op("sub", ty, f.splat(ty, 0), x)
            case "abs":
                return x if dtype.kind == "u" else f.select(ty, f.icmp("slt", ty, x, f.splat(ty, 0)), f.op("sub", ty, f.splat(ty, 0), x), x)
            case "sign":
                positive = f.cast("zext", like(ty, "i1"), f.icmp("ne" if dtype.kind == "u" else "sgt", ty, x, f.splat(ty, 0)), ty)
                return (
                    positive
                    if dtype.kind == "u"
                    else f.op("sub", ty, positive, f.cast("zext", like(ty, "i1"), f.icmp("slt", ty, x, f.splat(ty, 0)), ty))
                )
            case "not":
                return f.op("xor", ty, x, f.splat(ty, -1))
            case _:
                return x  # floor, ceil, round, trunc of an integer
    match fn:
        case "neg":
            return f.fneg(ty, x)
        case "abs":
            return f.intrinsic(f"llvm.fabs.{_m(ty)}", ty, [(ty, x)])
        case "isnan":
            return f.fcmp("uno", ty, x, x)
        case "isinf":
            return f.fcmp("oeq", ty, unary(f, "abs", dtype, ty, x), f.splat(ty, float("inf")))
        case "sign":  # keeps zeros and NaN
            one = f.intrinsic(f"llvm.copysign.{_m(ty)}", ty, [(ty, f.splat(ty, 1.0)), (ty, x)])
            return f.select(ty, f.fcmp("one", ty, x, f.splat(ty, 0.0)), one, x)
    return vmath.emit(fn, f, ty, x)


def binary(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    if fn in ("max", "min"):
        return _extreme(f, fn, dtype, ty, a, b)
    if dtype.is_float:
        if fn in _FLOAT:
            return f.op(_FLOAT[fn], ty, a, b)
        if fn == "pow":
            return vmath.emit("pow", f, ty, a, b)
        quotient = vmath.emit("floor", f, ty, f.op("fdiv", ty, a, b))
        if fn == "floordiv":
            return quotient
        rest = _remainder(f, ty, a, b)  # rem: the sign of the divisor
        wrong = f.op(
            "and",
            like(ty, "i1"),
            f.fcmp("one", ty, rest, f.splat(ty, 0.0)),
            f.op("xor", like(ty, "i1"), f.fcmp("olt", ty, rest, f.splat(ty, 0.0)), f.fcmp("olt", ty, b, f.splat(ty, 0.0))),
        )
        return f.select(ty, wrong, f.op("fadd", ty, rest, b), rest)
    if fn in _INT:
        return f.op(_INT[fn], ty, a, b)
    if fn == "shr":
        return f.op("lshr" if dtype.kind == "u" else "ashr", ty, a, b)
    if fn == "mulhi":
        return f.mulhi(ty, a, b, signed=dtype.kind == "i")
    return _integer_division(f, fn, dtype, ty, a, b)


def _extreme(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    """max/min; a NaN on either side wins. `select(a > b, a, b)` is one maxps that gives b when unordered: only a NaN in a needs care."""
    if dtype.is_bool:
        return f.op("or" if fn == "max" else "and", ty, a, b)
    if not dtype.is_float:
        sign = "u" if dtype.kind == "u" else "s"
        return f.intrinsic(f"llvm.{sign}{fn}.{_m(ty)}", ty, [(ty, a), (ty, b)])
    if _ordinary(b):
        a, b = b, a
    best = f.select(ty, f.fcmp("ogt" if fn == "max" else "olt", ty, a, b), a, b)
    if not a.startswith("%"):
        return best
    if b.startswith("%"):  # LLVM would join both selections in one of two comparisons, three instructions where the fence leaves two
        best = f.intrinsic(f"llvm.arithmetic.fence.{_m(ty)}", ty, [(ty, best)])
    return f.select(ty, f.fcmp("uno", ty, a, a), a, best)


def _ordinary(x: str) -> bool:
    """Whether it is a constant that is no zero, whose sign would depend on the order, and no NaN."""
    found = re.fullmatch(r"(?:splat \(\w+ )?0x([0-9A-F]{16})\)?", x)
    value = float(struct.unpack(">d", bytes.fromhex(found[1]))[0]) if found else 0.0
    return value < 0 or value > 0


def _remainder(f: FunctionText, ty: str, a: str, b: str) -> str:
    """C's fmod, exact. One FMA while the quotient is an integer of the format: rounded, it is right or one too large, and what is
    left is representable either way. The library's long division only where some lane's quotient is larger or no number."""
    if not (f.features.has_fma and f.branches):
        return f.value(f"frem {ty} {a}, {b}")
    mask = like(ty, "i1")
    x, y = (f.intrinsic(f"llvm.fabs.{_m(ty)}", ty, [(ty, v)]) for v in (a, b))
    quotient = vmath.emit("trunc", f, ty, f.op("fdiv", ty, x, y))
    slow = f.fcmp("uge", ty, quotient, f.splat(ty, 2.0**24 if "float" in ty else 2.0**53))
    rest = f.intrinsic(f"llvm.fma.{_m(ty)}", ty, [(ty, f.op("fsub", ty, f.splat(ty, -0.0), quotient)), (ty, y), (ty, x)])
    rest = f.select(ty, f.fcmp("olt", ty, rest, f.splat(ty, 0.0)), f.op("fadd", ty, rest, y), rest)
    rest = f.select(ty, f.fcmp("olt", ty, x, y), x, rest)  # also for an infinite divisor
    fast = f.intrinsic(f"llvm.copysign.{_m(ty)}", ty, [(ty, rest), (ty, a)])
    some = slow if mask == "i1" else f.intrinsic(f"llvm.vector.reduce.or.{_m(mask)}", "i1", [(mask, slow)])
    before, divide, after = f.block, f.fresh_label("divide"), f.fresh_label("divided")
    f.branch(some, divide, after)
    f.label(divide)
    exact = f.value(f"frem {ty} {a}, {b}")
    f.jump(after)
    f.label(after)
    return f.phi(ty, [(fast, before), (exact, divide)])


def _integer_division(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    """floordiv, rem (sign of the divisor) and div (toward zero). Division by zero gives 0 and never traps; MIN / -1 wraps."""
    zero = f.splat(ty, 0)
    if dtype.kind == "u":
        safe = f.select(ty, f.icmp("eq", ty, b, zero), f.splat(ty, 1), b)
        out = f.op("urem" if fn == "rem" else "udiv", ty, a, safe)
        return f.select(ty, f.icmp("eq", ty, b, zero), zero, out)
    if b.isdigit() and int(b):  # a positive constant
        quotient = f.op("sdiv", ty, a, b)
        if fn == "div":
            return quotient
        rest = f.op("sub", ty, a, f.op("mul", ty, quotient, b))
        wrong = f.icmp("slt", ty, rest, zero)
        changed = f.op("add", ty, rest, b) if fn == "rem" else f.op("sub", ty, quotient, f.splat(ty, 1))
        return f.select(ty, wrong, changed, rest if fn == "rem" else quotient)
    bad = f.icmp("eq", ty, b, zero)
    minus = f.icmp("eq", ty, b, f.splat(ty, -1))
    safe = f.select(ty, f.op("or", like(ty, "i1"), bad, minus), f.splat(ty, 1), b)
    quotient = f.select(ty, minus, f.op("sub", ty, zero, a), f.op("sdiv", ty, a, safe))
    rest = f.op("sub", ty, a, f.op("mul", ty, quotient, b))
    if fn == "div":
        return f.select(ty, bad, zero, quotient)
    wrong = f.op("and", like(ty, "i1"), f.icmp("ne", ty, rest, zero), f.icmp("slt", ty, f.op("xor", ty, rest, b), zero))
    out = (
        f.select(ty, wrong, f.op("add", ty, rest, b), rest)
        if fn == "rem"
        else f.select(ty, wrong, f.op("sub", ty, quotient, f.splat(ty, 1)), quotient)
    )
    return f.select(ty, bad, zero, out)


def dot4(f: FunctionText, target: TargetSpec, n: int, a: str, b: str, acc: str) -> str:
    """One VNNI instruction where there is one; else two multiply-adds of 16-bit halves, with the same integers."""
    ty = vector(n, "i32")
    if (n == 16 and target.has("avx512vnni")) or (n in (4, 8) and (target.has("avx512vnni", "avx512vl") or target.has("avxvnni"))):
        byte = vector(4 * n, "i8")
        args = [(ty, acc), (byte, f.cast("bitcast", ty, a, byte)), (byte, f.cast("bitcast", ty, b, byte))]
        return f.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * n}", ty, args)
    half = vector(2 * n if n else 2, "i16")
    wide = vector(2 * n if n else 2, "i32")

    def halves(x: str, op: str) -> str:
        return f.cast(op, half, x, wide)

    low_a = f.cast("bitcast", ty, f.op("and", ty, a, f.splat(ty, 0x00FF00FF)), half)
    high_a = f.op("lshr", half, f.cast("bitcast", ty, a, half), f.splat(half, 8))
    both = f.cast("bitcast", ty, b, half)
    low_b = f.op("ashr", half, f.op("shl", half, both, f.splat(half, 8)), f.splat(half, 8))
    high_b = f.op("ashr", half, both, f.splat(half, 8))
    pairs = f.op(
        "add",
        wide,
        f.op("mul", wide, halves(low_a, "zext"), halves(low_b, "sext")),
        f.op("mul", wide, halves(high_a, "zext"), halves(high_b, "sext")),
    )
    count = max(n, 1)
    even, odd = (f.shuffle(wide, pairs, "poison", [2 * i + k for i in range(count)]) for k in (0, 1))
    total = f.op("add", vector(count, "i32"), even, odd)
    if n == 0:
        total = f.value(f"extractelement <1 x i32> {total}, i64 0")
    return f.op("add", ty, acc, total)


def dot2(f: FunctionText, target: TargetSpec, n: int, a: str, b: str, acc: str) -> str:
    """One instruction of AVX-512 BF16 where there is one; else two multiply-adds of the widened halves, the upper ones first."""
    word, real = vector(n, "i32"), vector(n, "float")
    if target.has_avx512bf16 and (n == 16 or (n in (4, 8) and target.has("avx512vl"))):
        pair = vector(2 * n, "bfloat")
        args = [(real, acc), (pair, f.cast("bitcast", word, a, pair)), (pair, f.cast("bitcast", word, b, pair))]
        return f.intrinsic(f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}", real, args)

    def halves(x: str) -> tuple[str, str]:
        low = f.op("shl", word, x, f.splat(word, 16))
        return f.cast("bitcast", word, f.op("and", word, x, f.splat(word, -65536)), real), f.cast("bitcast", word, low, real)

    for x, y in zip(halves(a), halves(b), strict=True):
        acc = f.fma(real, x, y, acc)
    return acc


def compare(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    if dtype.is_float:
        return f.fcmp(_FCMP[fn], ty, a, b)
    sign = "" if fn in ("eq", "ne") else "u" if dtype.kind in "ub" else "s"
    return f.icmp(sign + fn, ty, a, b)


def convert(f: FunctionText, source: DType, target: DType, n: int, x: str) -> str:
    """Convert a chunk of n lanes (0: a scalar)."""
    if source is target:
        return x
    if source.name in float8.FORMATS:
        return convert(f, f32, target, n, float8.widen(f, source.name, n, x))
    if target.name in float8.FORMATS:
        return float8.narrow(f, target.name, n, convert(f, source, f32, n, x))
    if source is bf16 or (source is f16 and target is not f32):
        return convert(f, f32, target, n, widen(f, source, n, x))
    if target is bf16 or (target is f16 and source is not f32):
        return narrow(f, target, n, convert(f, source, f32, n, x))
    if source is f16:
        return widen(f, f16, n, x)
    if target is f16:
        return narrow(f, f16, n, x)
    a, b = vector(n, elem_type(source)), vector(n, elem_type(target))
    if target.is_bool:
        return f.fcmp("une", a, x, f.splat(a, 0.0)) if source.is_float else f.icmp("ne", a, x, f.splat(a, 0))
    if source.is_float and target.is_float:
        return f.cast("fpext" if target.itemsize > source.itemsize else "fptrunc", a, x, b)
    if target.is_float:
        return f.cast("sitofp" if source.kind == "i" else "uitofp", a, x, b)
    if n and source.is_float and (target.kind == "i" or target.itemsize <= 2):
        return _to_ints(f, source, target, n, x)
    if source.is_float:
        return f.intrinsic(f"llvm.fpto{'u' if target.kind == 'u' else 's'}i.sat.{_m(b)}.{_m(a)}", b, [(a, x)])
    if source.is_bool or target.itemsize > source.itemsize:
        return f.cast("sext" if source.kind == "i" else "zext", a, x, b)
    return f.cast("trunc", a, x, b) if target.itemsize < source.itemsize else x


def _to_ints(f: FunctionText, source: DType, target: DType, n: int, x: str) -> str:
    """Lanes of floats to integers, toward zero, saturating, NaN to 0: clamped first, since LLVM takes its own saturating conversion apart
    into single elements. Unsigned ones of 32 and 64 bits have no instruction on most CPUs."""
    real, bits = vector(n, elem_type(source)), 8 * target.itemsize
    wide = vector(n, f"i{max(bits, 32)}")
    digits = 24 if source is f32 else 53
    low, high = (0, 2**bits - 1) if target.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    largest = high >> max(0, high.bit_length() - digits) << max(0, high.bit_length() - digits)  # ... of the floats below the end
    y = f.select(real, f.fcmp("ogt", real, x, f.splat(real, float(low))), x, f.splat(real, float(low)))  # NaN becomes the lower end
    y = f.select(real, f.fcmp("olt", real, y, f.splat(real, float(largest))), y, f.splat(real, float(largest)))
    out = f.cast("fptosi", real, y, wide)
    if largest != high:
        out = f.select(wide, f.fcmp("oge", real, x, f.splat(real, float(high + 1))), f.splat(wide, high), out)
    if low:
        out = f.select(wide, f.fcmp("uno", real, x, x), f.splat(wide, 0), out)
    return out if bits >= 32 else f.cast("trunc", wide, out, vector(n, f"i{bits}"))


def widen(f: FunctionText, source: DType, n: int, x: str) -> str:
    """bf16 or f16 to f32, exact."""
    wide, half = vector(n, "i32"), vector(n, "i16")
    if source is bf16:
        return f.cast("bitcast", wide, f.op("shl", wide, f.cast("zext", half, x, wide), f.splat(wide, 16)), vector(n, "float"))
    if f.features.has_fma:  # every CPU with FMA has F16C
        return f.cast("fpext", vector(n, "half"), x, vector(n, "float"))
    # Shift the bits into place, then scale by 2^112: subnormals come out right; infinities and NaN get the full exponent.
    raw = f.cast("zext", half, f.cast("bitcast", vector(n, "half"), x, half), wide)
    magnitude = f.op("shl", wide, f.op("and", wide, raw, f.splat(wide, 0x7FFF)), f.splat(wide, 13))
    scaled = f.op("fmul", vector(n, "float"), f.cast("bitcast", wide, magnitude, vector(n, "float")), f.splat(vector(n, "float"), 2.0**112))
    special = f.icmp("uge", wide, magnitude, f.splat(wide, 0x0F800000))
    bits = f.select(
        wide, special, f.op("or", wide, magnitude, f.splat(wide, 0x7F800000)), f.cast("bitcast", vector(n, "float"), scaled, wide)
    )
    sign = f.op("shl", wide, f.op("and", wide, raw, f.splat(wide, 0x8000)), f.splat(wide, 16))
    return f.cast("bitcast", wide, f.op("or", wide, bits, sign), vector(n, "float"))


def narrow(f: FunctionText, target: DType, n: int, x: str) -> str:
    """f32 to bf16 or f16, half to even."""
    fl, wide, half = vector(n, "float"), vector(n, "i32"), vector(n, "i16")
    bits = f.cast("bitcast", fl, x, wide)
    if target is bf16:
        odd = f.op("and", wide, f.op("lshr", wide, bits, f.splat(wide, 16)), f.splat(wide, 1))
        rounded = f.op("lshr", wide, f.op("add", wide, f.op("add", wide, bits, f.splat(wide, 0x7FFF)), odd), f.splat(wide, 16))
        quiet = f.op("or", wide, f.op("lshr", wide, bits, f.splat(wide, 16)), f.splat(wide, 0x40))
        return f.cast("trunc", wide, f.select(wide, f.fcmp("uno", fl, x, x), quiet, rounded), half)
    if f.features.has_fma:
        return f.cast("fptrunc", fl, x, vector(n, "half"))
    sign = f.op("lshr", wide, f.op("and", wide, bits, f.splat(wide, -0x80000000)), f.splat(wide, 16))
    magnitude = f.op("and", wide, bits, f.splat(wide, 0x7FFFFFFF))
    odd = f.op("and", wide, f.op("lshr", wide, magnitude, f.splat(wide, 13)), f.splat(wide, 1))
    rebias = f.op("sub", wide, f.op("add", wide, f.op("add", wide, magnitude, f.splat(wide, 0xFFF)), odd), f.splat(wide, 112 << 23))
    normal = f.op("lshr", wide, rebias, f.splat(wide, 13))
    # Below 2^-14 adding 0.5 lines the subnormal's last bit up with f32's, rounding half to even on the way.
    tiny = f.op(
        "sub",
        wide,
        f.cast("bitcast", fl, f.op("fadd", fl, f.cast("bitcast", wide, magnitude, fl), f.splat(fl, 0.5)), wide),
        f.splat(wide, 0x3F000000),
    )
    out = f.select(wide, f.icmp("ult", wide, magnitude, f.splat(wide, 113 << 23)), tiny, normal)
    out = f.select(wide, f.icmp("uge", wide, magnitude, f.splat(wide, 0x477FF000)), f.splat(wide, 0x7C00), out)
    out = f.select(wide, f.icmp("ugt", wide, magnitude, f.splat(wide, 0x7F800000)), f.splat(wide, 0x7E00), out)
    return f.cast("bitcast", half, f.cast("trunc", wide, f.op("or", wide, out, sign), half), vector(n, "half"))


def narrow_flushing(f: FunctionText, n: int, x: str) -> str:
    """f32 to bf16, half to even, by the CPU's instruction, which takes numbers below the smallest normal one for zeros."""
    made = f.intrinsic(f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * n}", vector(n, "bfloat"), [(vector(n, "float"), x)])
    return f.cast("bitcast", vector(n, "bfloat"), made, vector(n, "i16"))


def narrow_quiet(f: FunctionText, n: int, x: str, *, rounds: bool) -> str:
    """f32 to bf16 where no NaN is in the way (`halves.py`), half to even unless the words end in zeros."""
    wide = vector(n, "i32")
    bits = f.cast("bitcast", vector(n, "float"), x, wide)
    if rounds:
        odd = f.op("and", wide, f.op("lshr", wide, bits, f.splat(wide, 16)), f.splat(wide, 1))
        bits = f.op("add", wide, f.op("add", wide, bits, f.splat(wide, 0x7FFF)), odd)
    return f.cast("trunc", wide, f.op("lshr", wide, bits, f.splat(wide, 16)), vector(n, "i16"))


def _m(ty: str) -> str:
    from .llvm_text import mangle

    return mangle(ty)
