"""Weights that another tool quantised (fp8 or int4 codes with scales) as rows of packed blocks, without rounding their codes again."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..core.errors import InputError
from ..ops.quant import by_name

Array = np.ndarray[Any, Any]
FLOATS = {np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3", np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2"}
SQUARE = 128


def pack_scaled(codes: Any, scale: Any, zero: Any = None) -> tuple[Array, str]:
    """Rows u8[n, row bytes] and their format, for `tw.quantised_matmul`, of codes [n, k] that stand for `(codes - zero) * scale`.

    Codes are `float8_e4m3fn` or `float8_e5m2` (F8_E4M3, F8_E5M2: scales f32, exactly), or i8 of -8 … 7 (Q4_0), or of 0 … 15 with zero
    points (Q4_1): scales are rounded to f16, and so is `zero * scale`. The scales are one number, one per row ([n] or [n, 1]), one per
    group of columns ([n, groups]) or one per square of 128 × 128; a group has a multiple of 32 columns, of eight-bit floats a multiple of
    128."""
    codes = np.asarray(codes)
    four = codes.dtype == np.int8
    name = ("Q4_0" if zero is None else "Q4_1") if four else FLOATS.get(codes.dtype)
    if name is None or codes.ndim != 2 or (zero is not None and not four):
        kinds = "float8_e4m3fn, float8_e5m2 or i8 (zero points: i8 alone)"
        raise InputError(f"pack_scaled: needs codes [n, k] of {kinds}, got {codes.dtype}{list(codes.shape)}")
    fmt = by_name(name)
    n, k = codes.shape
    if k % fmt.elements:
        raise InputError(f"pack_scaled: {name} needs a multiple of {fmt.elements} columns, got {k}")
    d = _spread(np.asarray(scale, np.float32), n, k, fmt.elements, "scale")
    if not four:
        blocks = np.ascontiguousarray(codes).view(np.uint8).reshape(n, -1, fmt.elements)
        return np.concatenate([np.ascontiguousarray(d[..., None]).view(np.uint8), blocks], axis=-1).reshape(n, -1), name
    low, high = (-8, 7) if zero is None else (0, 15)
    if codes.size and not (low <= codes.min() and codes.max() <= high):
        raise InputError(f"pack_scaled: codes of {name} are {low} ... {high}, got {codes.min()} ... {codes.max()}")
    fields = [_half(d)]
    if zero is not None:
        fields.append(_half(-_spread(np.asarray(zero, np.float32), n, k, fmt.elements, "zero") * d))
    q = (codes - np.int8(low)).astype(np.uint8).reshape(n, -1, 2, 16)
    return np.concatenate([*fields, q[:, :, 0] | (q[:, :, 1] << np.uint8(4))], axis=-1).reshape(n, -1), name


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
        raise InputError(f"pack_scaled: {what} must be {rule}, got {list(x.shape)} for codes {n}x{k}")
    whole: Array = np.repeat(np.broadcast_to(x, (n, groups)), k // groups // elements, axis=1)
    return whole
