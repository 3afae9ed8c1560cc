"""Weights that another tool quantized (fp8 or int4 values with scales) as rows of packed blocks, without rounding their values again."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..core.errors import InputError
from ..ops.quant import by_name
from ..ops.quant.formats import GROUPS, pack_groups

Array = np.ndarray[Any, Any]
FLOATS = {np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3", np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2"}
SQUARE = 128


def pack_scaled(quantized: Any, scale: Any, zero: Any = None, *, bits: int = 8) -> tuple[Array, str]:
    """Rows u8[n, row bytes] and their format, for `tw.quantized_matmul`, of values [n, k] that stand for `(quantized - zero) * scale`.

    Values u8 of 0 … 255, or of 0 … 15 with `bits=4`, keep scales and zero points in f32 (U8_16 … U8_256, U4_16 … U4_256: groups of a
    multiple of 16 columns; without zero points the middle of the values is zero). `float8_e4m3fn` and `float8_e5m2` (F8_E4M3, F8_E5M2) have
    scales f32, exactly. Of i8 values of -8 … 7 (Q4_0), or of 0 … 15 with zero points (Q4_1), scales are rounded to f16, and so is
    `zero * scale`. The scales are one number, one per row ([n] or [n, 1]), one per group of columns ([n, groups]) or one per square of
    128 × 128; a group of i8 values has a multiple of 32 columns, of eight-bit floats a multiple of 128."""
    quantized = np.asarray(quantized)
    if quantized.dtype == np.uint8 and quantized.ndim == 2:
        return _groups(quantized, np.asarray(scale, np.float32), zero, bits)
    four = quantized.dtype == np.int8
    name = ("Q4_0" if zero is None else "Q4_1") if four else FLOATS.get(quantized.dtype)
    if name is None or quantized.ndim != 2 or (zero is not None and not four):
        kinds = "u8, i8, float8_e4m3fn or float8_e5m2 (zero points: u8 and i8)"
        raise InputError(f"pack_scaled: needs quantized values [n, k] of {kinds}, got {quantized.dtype}{list(quantized.shape)}")
    fmt = by_name(name)
    n, k = quantized.shape
    if k % fmt.elements:
        raise InputError(f"pack_scaled: {name} needs a multiple of {fmt.elements} columns, got {k}")
    d = _spread(np.asarray(scale, np.float32), n, k, fmt.elements, "scale")
    if not four:
        blocks = np.ascontiguousarray(quantized).view(np.uint8).reshape(n, -1, fmt.elements)
        return np.concatenate([np.ascontiguousarray(d[..., None]).view(np.uint8), blocks], axis=-1).reshape(n, -1), name
    low, high = (-8, 7) if zero is None else (0, 15)
    if quantized.size and not (low <= quantized.min() and quantized.max() <= high):
        raise InputError(f"pack_scaled: quantized values of {name} are {low} ... {high}, got {quantized.min()} ... {quantized.max()}")
    fields = [_half(d)]
    if zero is not None:
        fields.append(_half(-_spread(np.asarray(zero, np.float32), n, k, fmt.elements, "zero") * d))
    q = (quantized - np.int8(low)).astype(np.uint8).reshape(n, -1, 2, 16)
    return np.concatenate([*fields, q[:, :, 0] | (q[:, :, 1] << np.uint8(4))], axis=-1).reshape(n, -1), name


def _groups(quantized: Array, scale: Array, zero: Any, bits: int) -> tuple[Array, str]:
    n, k = quantized.shape
    if bits not in (4, 8) or (quantized.size and quantized.max() >= 1 << bits):
        raise InputError(f"pack_scaled: values u8 have 4 or 8 bits, got bits={bits} and values up to {quantized.max(initial=0)}")
    wide = max(scale.shape[-1] if scale.ndim == 2 else 1, np.shape(zero)[-1] if np.ndim(zero) == 2 else 1)
    group = next((g for g in reversed(GROUPS) if wide and k % (g * wide) == 0), None)
    if group is None:
        raise InputError(f"pack_scaled: groups of u8 values have {', '.join(map(str, GROUPS))} columns or more, got {wide} in {n}x{k}")
    middle = np.asarray(1 << (bits - 1) if zero is None else zero, np.float32)
    return pack_groups(quantized, _spread(scale, n, k, group, "scale"), _spread(middle, n, k, group, "zero"), bits, group)


def _half(x: Array) -> Array:
    with np.errstate(over="ignore"):
        small = x.astype(np.float16)
    if not np.isfinite(small).all() and np.isfinite(x).all():
        raise InputError("pack_scaled: a scale does not fit in f16, whose largest number is 65504")
    return np.ascontiguousarray(small[..., None]).view(np.uint8)


def _spread(x: Array, n: int, k: int, elements: int, what: str) -> Array:
    """One number per block: [n, k / elements]."""
    x = x.reshape(-1, 1) if x.ndim < 2 else x
    rows, groups = x.shape if x.ndim == 2 else (0, 0)
    squares = rows == -(-n // SQUARE) and groups == -(-k // SQUARE) and rows != n
    if squares and k % SQUARE == 0:
        x, rows = np.repeat(x, SQUARE, axis=0)[:n], n
    if rows not in (1, n) or groups == 0 or k % groups or k // groups % elements:
        rule = f"one number, or one per row, group of a multiple of {elements} columns, or square"
        raise InputError(f"pack_scaled: {what} must be {rule}, got {list(x.shape)} for quantized values {n}x{k}")
    whole: Array = np.repeat(np.broadcast_to(x, (n, groups)), k // groups // elements, axis=1)
    return whole
