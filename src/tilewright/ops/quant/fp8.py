"""Eight-bit floats in blocks of 128 with one f32 scale (F8_E4M3, F8_E5M2). No format of GGUF's: weights with a scale per row, per 128
columns or per square of 128 × 128 are such rows, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .base import F32, U8, BlockFormat, inverse, layout, register

ELEMENTS = 128


def _decoder(kind: Any) -> Callable[[U8], F32]:
    def decode(b: U8) -> F32:
        scale = np.ascontiguousarray(b[:, :4]).view(np.float32)
        numbers: F32 = np.ascontiguousarray(b[:, 4:]).view(kind).astype(np.float32)
        return scale * numbers

    return decode


def _encoder(kind: Any, most: float) -> Callable[[F32], U8]:
    """The scale is max|x| over the largest number; codes are the nearest ones, ties to even."""

    def encode(x: F32) -> U8:
        d = (np.abs(x).max(axis=-1, keepdims=True) / np.float32(most)).astype(np.float32)
        codes = np.clip(x * inverse(d), -most, most).astype(kind).view(np.uint8)
        return np.concatenate([d.view(np.uint8), codes], axis=-1)

    return encode


def _blocks(name: str, type_id: int, kind: Any, most: float, meaning: str) -> BlockFormat:
    fields = layout(("d", 4, "float32", "scale"), ("qs", ELEMENTS, "uint8", meaning))
    return register(BlockFormat(name, type_id, ELEMENTS, 4 + ELEMENTS, "w = d * q", fields, _decoder(kind), _encoder(kind, most)))


# Numbers that GGUF does not give to formats.
F8_E4M3 = _blocks("F8_E4M3", 1001, ml_dtypes.float8_e4m3fn, 448.0, "floats of 4 bits of exponent and 3 of mantissa; no infinities")
F8_E5M2 = _blocks("F8_E5M2", 1002, ml_dtypes.float8_e5m2, 57344.0, "floats of 5 bits of exponent and 2 of mantissa")
