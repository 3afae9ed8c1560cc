"""What the elementwise tile operations compute, in NumPy: the definition that targets are compared with.

f16 and bf16 compute in f32 and round to the tile's dtype after every operation. Correctly rounded operations (add, mul, div, sqrt, fma, …)
are exact to the bit; the others (exp, sin, …) are computed in f64 and rounded. A NaN wins in max and min. Integers wrap; integer
division by zero gives 0; rem and floordiv round toward minus infinity, div toward zero. mulhi is the upper half of a product of twice the
bits. Casts from float to int saturate, NaN gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.dtypes import SMALL, DType, compute_dtype, f32, f64

Array = np.ndarray[Any, np.dtype[Any]]

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


# In f64, then rounded.
_WIDE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf(x)).astype(np.float64),
    "sigmoid": _sigmoid,
}
# In the compute dtype.
_EXACT: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "reciprocal": lambda x: x.dtype.type(1) / x,
    "not": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def unary(fn: str, x: Array, dtype: DType) -> Array:
    """One-operand operation; `dtype` is that of x."""
    if fn in ("isnan", "isinf"):
        return _EXACT[fn](_up(x, dtype))
    if fn in _WIDE:
        return _WIDE[fn](x.astype(np.float64)).astype(compute_dtype(dtype).np).astype(dtype.np)
    if dtype.is_int and fn in ("floor", "ceil", "round", "trunc"):
        return x
    return _EXACT[fn](_up(x, dtype)).astype(dtype.np)


def binary(fn: str, a: Array, b: Array, dtype: DType) -> Array:
    """Two-operand operation on one dtype; broadcasts."""
    a, b = _up(a, dtype), _up(b, dtype)
    match fn:
        case "add":
            out = a + b if not dtype.is_bool else a | b
        case "sub":
            out = a - b
        case "mul":
            out = a * b
        case "max":
            out = np.maximum(a, b)
        case "min":
            out = np.minimum(a, b)
        case "and":
            out = a & b
        case "or":
            out = a | b
        case "xor":
            out = a ^ b
        case "shl":
            out = np.left_shift(a, b)
        case "shr":
            out = np.right_shift(a, b)
        case "mulhi":
            out = _high_half(a, b)
        case "pow":
            out = np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype) if dtype.is_float else np.power(a, b)
        case _ if dtype.is_float:
            out = _float_division(fn, a, b)
        case _:
            out = _integer_division(fn, a, b)
    return np.asarray(out).astype(dtype.np)


def _high_half(a: Array, b: Array) -> Array:
    """The upper half of the product of integers, which has twice their bits."""
    if a.dtype.itemsize == 4:
        wide = np.dtype(f"{a.dtype.kind}8")
        return np.asarray(np.multiply(a, b, dtype=wide) >> wide.type(32))
    return np.asarray(a.astype(object) * b.astype(object) >> 64)


def _float_division(fn: str, a: Array, b: Array) -> Array:
    if fn == "div":
        return np.asarray(a / b)
    if fn == "floordiv":
        return np.floor(a / b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _integer_division(fn: str, a: Array, b: Array) -> Array:
    bad = b == 0
    safe = np.where(bad, np.ones_like(b), b)
    if fn == "div":
        quotient = np.floor_divide(a, safe)
        rest = a - quotient * safe
        out = quotient + ((rest != 0) & ((a < 0) != (safe < 0))).astype(quotient.dtype)
    else:
        out = np.floor_divide(a, safe) if fn == "floordiv" else np.remainder(a, safe)
    return np.asarray(np.where(bad, np.zeros_like(out), out))


def compare(fn: str, a: Array, b: Array, dtype: DType) -> Array:
    return np.asarray(_COMPARE[fn](_up(a, dtype), _up(b, dtype)))


def dot4(a: Array, b: Array, acc: Array) -> Array:
    """acc + sum over the four bytes of each i32: a's unsigned times b's signed."""
    a, b, acc = np.broadcast_arrays(a, b, acc)
    left = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 4).astype(np.int32)
    right = np.ascontiguousarray(b).view(np.int8).reshape(*b.shape, 4).astype(np.int32)
    out: Array = acc + (left * right).sum(-1, dtype=np.int32)
    return out


def dot2(a: Array, b: Array, acc: Array) -> Array:
    """acc + the product of the upper halves, then of the lower halves, of each i32 as bf16 numbers: two fused multiply-adds in f32."""
    a, b, acc = np.broadcast_arrays(a, b, acc)

    def halves(x: Array) -> tuple[Array, Array]:
        return np.left_shift(x, 16).view(np.float32), np.bitwise_and(x, np.int32(-65536)).view(np.float32)

    (a0, a1), (b0, b1) = halves(np.ascontiguousarray(a)), halves(np.ascontiguousarray(b))
    return _fma32(a0, b0, _fma32(a1, b1, acc))


def fma(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """a*b + c with one rounding to the compute dtype.

    f32: the product is exact in f64; the sum is rounded to odd there, so that rounding to f32 afterwards is the only rounding that shows
    (plain f64 addition would round twice). f64: error-free sums and products (Boldo and Melquiond), right unless something overflows
    or the product is subnormal, where it falls back to two roundings.
    """
    if compute_dtype(dtype) is f32:
        return _fma32(a, b, c).astype(dtype.np)
    if dtype is f64:
        return _fma64(a, b, c)
    return np.asarray(a * b + c).astype(dtype.np)


def _fma32(a: Array, b: Array, c: Array) -> Array:
    p, q = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    high, low = _two_sum(p, q)
    return np.asarray(_odd(high, low).astype(np.float32))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = np.asarray(a + b)
    t = s - a
    return s, np.asarray((a - (s - t)) + (b - t))


def _odd(high: Array, low: Array) -> Array:
    """high + low rounded to odd: where inexact and the last bit is even, step toward the rest."""
    high = np.array(high, np.float64)
    bits = high.view(np.int64)
    move = (low != 0) & np.isfinite(high) & np.isfinite(low) & (bits & 1 == 0)
    up = (low > 0) == (high > 0)
    return np.asarray(np.where(move, bits + np.where(up, 1, -1), bits).view(np.float64))


def _fma64(a: Array, b: Array, c: Array) -> Array:
    def split(x: Array) -> tuple[Array, Array]:
        t = 134217729.0 * x
        h = t - (t - x)
        return h, x - h

    p = np.asarray(a * b)
    (ah, al), (bh, bl) = split(a), split(b)
    e = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    uh, ul = _two_sum(np.broadcast_to(c, np.broadcast_shapes(p.shape, c.shape)), e)
    th, tl = _two_sum(p, uh)
    vh, vl = _two_sum(tl, ul)
    exact = np.asarray(th + _odd(vh, vl))
    plain = np.asarray(p + c)
    return np.where(np.isfinite(exact) & np.isfinite(e), exact, plain)


def cast(x: Array, source: DType, target: DType) -> Array:
    if target.is_bool:
        return np.asarray(x != 0)
    if source.is_float and target.is_int:
        info = np.iinfo(target.np)
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        # The largest int64 is no float64: everything at or above 2^63 saturates before the conversion.
        high, low = wide >= float(info.max), wide <= float(info.min)
        inside = np.where(high | low, 0.0, wide).astype(target.np)
        return np.where(high, target.np.type(info.max), np.where(low, target.np.type(info.min), inside))
    if target in SMALL or source in SMALL:
        return x.astype(np.float32).astype(target.np)
    return x.astype(target.np)


_REDUCE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def reduce(fn: str, x: Array, axis: int, dtype: DType) -> Array:
    """Combine along axis (kept with size 1): pad to a power of two, then halve, element i with element i + n/2. A padded partner is
    the identity, so it is skipped."""
    inner = compute_dtype(dtype)
    parts = np.moveaxis(x.astype(inner.np), axis, 0)
    size = 1 << max(parts.shape[0] - 1, 0).bit_length()
    while size > 1:
        size //= 2
        if parts.shape[0] > size:
            low, high = parts[:size], parts[size:]
            n = high.shape[0]
            parts = np.concatenate([binary(_REDUCE[fn], low[:n], high, inner), low[n:]])
    return np.moveaxis(parts, 0, axis).astype(dtype.np)


def scan(fn: str, x: Array, dtype: DType) -> Array:
    """Running sum or product along the last axis by doubling: in step s element i becomes (element i - s) combined with itself."""
    inner = compute_dtype(dtype)
    out, step = x.astype(inner.np), 1
    while step < out.shape[-1]:
        out = np.concatenate([out[..., :step], binary(_REDUCE[fn], out[..., :-step], out[..., step:], inner)], axis=-1)
        step *= 2
    return out.astype(dtype.np)


def mma(a: Array, b: Array, acc: Array, dtype: DType) -> Array:
    """acc + a @ b as one chain of fused multiply-adds per element, k in order. Integers wrap."""
    inner = compute_dtype(dtype)
    a, b, out = a.astype(inner.np), b.astype(inner.np), acc.astype(inner.np)
    for k in range(a.shape[1]):
        x, y = a[:, k, None], b[None, k, :]
        out = fma(x, y, out, inner) if inner.is_float else out + x * y
    return out.astype(dtype.np)


def _up(x: Array, dtype: DType) -> Array:
    inner = compute_dtype(dtype)
    return x if inner is dtype else x.astype(inner.np)
