"""Formats in which an element is a plain number: f32, f16, bf16, f64 and the integers."""

from __future__ import annotations

import numpy as np

from .base import F32, U8, BlockFormat, layout, register


def _cast(dtype: str) -> tuple[int, type[np.generic]]:
    kind: type[np.generic] = np.dtype(dtype).type
    return np.dtype(dtype).itemsize, kind


def _plain(name: str, type_id: int, dtype: str, *, writable: bool = False) -> BlockFormat:
    size, kind = _cast(dtype)

    def decode(blocks: U8) -> F32:
        return blocks.view(kind).astype(np.float32)

    def encode(values: F32) -> U8:
        return np.ascontiguousarray(values.astype(kind)).view(np.uint8)

    fields = layout(("value", size, dtype, "the number"))
    return register(BlockFormat(name, type_id, 1, size, "w = value", fields, decode, encode if writable else None, dtype))


def _bf16_decode(blocks: U8) -> F32:
    return (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bf16_encode(values: F32) -> U8:
    bits = values.view(np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    even = (bits.astype(np.uint64) + np.uint64(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)).astype(np.uint64)) >> np.uint64(16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(64)).astype(np.uint64)
    return np.where(nan, quiet, even).astype(np.uint16).view(np.uint8)


F32_FORMAT = _plain("F32", 0, "float32", writable=True)
F16_FORMAT = _plain("F16", 1, "float16", writable=True)
BF16_FORMAT = register(
    BlockFormat(
        "BF16", 30, 1, 2, "w = value", layout(("value", 2, "bfloat16", "the upper half of an f32")), _bf16_decode, _bf16_encode, "bfloat16"
    )
)
for _name, _id, _dtype in (("I8", 24, "int8"), ("I16", 25, "int16"), ("I32", 26, "int32"), ("I64", 27, "int64"), ("F64", 28, "float64")):
    _plain(_name, _id, _dtype)
