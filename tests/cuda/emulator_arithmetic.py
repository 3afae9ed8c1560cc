"""Comparisons, arithmetic and small floats of the emulator, on arrays of all threads' registers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def small_float(parts: list[str], xs: list[Array]) -> Array:
    import ml_dtypes

    kind: Any = ml_dtypes.bfloat16 if any(p.startswith("bf16") for p in parts) else np.float16
    if parts[1] == "f32":
        return xs[0].view(kind).astype(np.float32)
    if parts[2].endswith("x2"):
        high, low = (x.astype(kind).view(np.uint16).astype(np.uint32) for x in xs)
        return (high << np.uint32(16)) | low
    return xs[0].astype(kind).view(np.uint16)


COMPARE: dict[str, Any] = {
    "eq": np.equal, "ne": lambda a, b: (a != b) & (a == a) & (b == b), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
    "neu": np.not_equal, "ltu": lambda a, b: ~(a >= b), "geu": lambda a, b: ~(a < b), "nan": lambda a, b: (a != a) | (b != b),
    "num": lambda a, b: (a == a) & (b == b),
}  # fmt: skip


def pairs(parts: list[str], xs: list[Array]) -> Array:
    """Arithmetic on two 16-bit floats a register: the exact result (f64 holds it), rounded once."""
    import ml_dtypes

    kind: Any = ml_dtypes.bfloat16 if "bf16x2" in parts else np.float16
    a, b, *c = (np.ascontiguousarray(x, np.uint32).view(kind).astype(np.float64) for x in xs)
    with np.errstate(all="ignore"):
        exact = {"add": lambda: a + b, "mul": lambda: a * b, "fma": lambda: a * b + c[0]}[parts[0]]()
        return exact.astype(kind).view(np.uint32)


def arithmetic(parts: list[str], dtype: Any, xs: list[Array]) -> Array:
    if "f16x2" in parts or "bf16x2" in parts:
        return pairs(parts, xs)
    stem, bits = parts[0], 8 * np.dtype(dtype).itemsize
    is_float = np.dtype(dtype).kind == "f"
    if stem == "fma":
        wide: Any = np.float64
        out = xs[0].astype(wide) * xs[1].astype(wide) + xs[2].astype(wide) if dtype == np.float32 else _fused(*xs)
        if "sat" in parts:
            out = np.clip(np.nan_to_num(out, nan=0.0), 0.0, 1.0)
        if "rm" in parts:  # toward minus infinity
            near = out.astype(dtype)
            return np.where(near > out, np.nextafter(near, dtype(-np.inf)), near).astype(dtype)
        return out.astype(dtype)
    if stem in ("add", "sub", "mul") and (is_float or ("wide" not in parts and "hi" not in parts)):
        return {"add": np.add, "sub": np.subtract, "mul": np.multiply}[stem](*xs)
    if "wide" in parts:
        wide = np.dtype(f"{np.dtype(dtype).kind}{bits // 4}")
        product = xs[0].astype(wide) * xs[1].astype(wide)
        return product + xs[2].view(f"u{xs[2].itemsize}").astype(wide) if stem == "mad" else product
    if "hi" in parts:
        return np.array([(int(a) * int(b)) >> bits for a, b in zip(*xs, strict=True)], dtype)
    if stem == "mad":
        return xs[0] * xs[1] + xs[2]
    return _OTHERS[stem](parts, dtype, bits, xs)


def _shift(x: Array, amount: Array, bits: int, left: bool) -> Array:
    n = amount.view(f"u{amount.itemsize}").astype(np.uint64)
    safe = np.minimum(n, np.uint64(bits - 1)).astype(x.dtype)
    moved = x << safe if left else x >> safe
    return np.where(n >= bits, (x >> (bits - 1)) if x.dtype.kind == "i" and not left else np.zeros_like(x), moved).astype(x.dtype)


def _field(parts: list[str], dtype: Any, bits: int, xs: list[Array]) -> Array:
    x, at, n = xs[0].view(np.uint32), int(xs[1][0]), int(xs[2][0])
    raw = (x >> np.uint32(at)) & np.uint32((1 << n) - 1)
    return raw if parts[1] == "u32" else (raw.astype(np.int32) << (32 - n)) >> (32 - n)


def _permute(parts: list[str], dtype: Any, bits: int, xs: list[Array]) -> Array:
    pool = xs[0].astype(np.uint64) | (xs[1].astype(np.uint64) << np.uint64(32))
    out, select = np.zeros(len(pool), np.uint64), xs[2].astype(np.uint64)
    for i in range(4):
        nibble = select >> np.uint64(4 * i)
        assert not (nibble & np.uint64(8)).any(), "the sign of a byte is not repeated here"
        out |= ((pool >> (np.uint64(8) * (nibble & np.uint64(7)))) & np.uint64(255)) << np.uint64(8 * i)
    return out.astype(np.uint32)


def _fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of f64 before its rounding: the product in two parts, so that what cancels leaves the rest exact."""
    x, y, z = (v.astype(np.longdouble) for v in (a, b, c))
    high = (x * y).astype(np.float64).astype(np.longdouble)
    (p, r), (q, s) = ((w := (v.view(np.uint64) & ~np.uint64((1 << 27) - 1)).view(np.float64).astype(np.longdouble), v - w) for v in (a, b))
    low = ((p * q - high) + (p * s + r * q)) + r * s
    plain = np.isfinite(x * y) & np.isfinite(high)
    return np.where(plain, (high + z) + np.where(plain, low, 0), x * y + z)


def _divide(parts: list[str], dtype: Any, bits: int, xs: list[Array]) -> Array:
    if np.dtype(dtype).kind == "f":
        near = xs[0] / xs[1]
        if "rz" not in parts:
            return near
        assert dtype == np.float64
        whole = np.isfinite(xs[0]) & np.isfinite(xs[1]) & (xs[1] != 0)
        left = _fused(np.where(whole & np.isfinite(near), -near, 0), xs[1], xs[0])
        far = whole & ((np.sign(left) * np.sign(xs[0]) < 0) | np.isinf(near))
        return np.where(far, np.nextafter(near, 0.0), near)
    a, b = (x.astype(object) for x in xs)
    sign = [(-1 if (p < 0) != (q < 0) else 1) for p, q in zip(a, b, strict=True)]
    whole = [s * (abs(p) // abs(q)) if q else 0 for p, q, s in zip(a, b, sign, strict=True)]
    out = whole if parts[0] == "div" else [p - q * w for p, q, w in zip(a, b, whole, strict=True)]
    return np.array([int(v) & ((1 << bits) - 1) for v in out], f"u{bits // 8}").view(dtype)


def _extreme(parts: list[str], dtype: Any, bits: int, xs: list[Array]) -> Array:
    if "NaN" in parts:
        return (np.maximum if parts[0] == "max" else np.minimum)(*xs)
    return (np.fmax if parts[0] == "max" else np.fmin)(*xs)


_OTHERS: dict[str, Any] = {
    "div": _divide, "rem": _divide, "max": _extreme, "min": _extreme, "bfe": _field, "prmt": _permute,
    "neg": lambda p, d, b, xs: -xs[0], "abs": lambda p, d, b, xs: np.abs(xs[0]),
    "and": lambda p, d, b, xs: xs[0] & xs[1], "or": lambda p, d, b, xs: xs[0] | xs[1], "xor": lambda p, d, b, xs: xs[0] ^ xs[1],
    "not": lambda p, d, b, xs: ~xs[0], "shl": lambda p, d, b, xs: _shift(xs[0], xs[1], b, True),
    "shr": lambda p, d, b, xs: _shift(xs[0], xs[1], b, False), "sqrt": lambda p, d, b, xs: np.sqrt(xs[0]),
    "rcp": lambda p, d, b, xs: (1 / xs[0].astype(np.float64)).astype(d),
    "ex2": lambda p, d, b, xs: np.exp2(xs[0].astype(np.float64)).astype(d),
    "lg2": lambda p, d, b, xs: np.log2(xs[0].astype(np.float64)).astype(d),
    "copysign": lambda p, d, b, xs: np.copysign(xs[1], xs[0]),
    "popc": lambda p, d, b, xs: np.bitwise_count(xs[0].view(f"u{xs[0].itemsize}")).astype(np.uint32),
    "dp4a": lambda p, d, b, xs: _dot4(xs),
}  # fmt: skip


def _dot4(xs: list[Array]) -> Array:
    a, b = xs[0].view(np.uint32).copy().view(np.uint8).reshape(-1, 4), xs[1].view(np.uint32).copy().view(np.int8).reshape(-1, 4)
    return (xs[2].view(np.int32) + (a.astype(np.int32) * b.astype(np.int32)).sum(1, dtype=np.int32)).view(np.uint32)
