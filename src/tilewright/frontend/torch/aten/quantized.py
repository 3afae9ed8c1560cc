"""Models that PyTorch quantized (pt2e): pairs of quantize and dequantize around float ops, as torch.export shows them."""
from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops as O
from ....core.dtypes import DType, i8, i16, i32, u8, u16
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ..tensors import dtype_of
from .registry import Context, aten

QUANTIZED = (i8, u8, i16, u16)


def _quantized(c: Context, x: Value, scale: Value, zero: Value, axis: int | None, low: int, high: int, dtype: DType) -> Value:
    if dtype not in QUANTIZED:
        raise UnsupportedError(f"{c.name}: quantized values must be int8, uint8, int16 or uint16, got {dtype}")
    x = c.cast(x, scale.dtype)
    out = c.emit(O.Quantize(axis=axis, dtype=dtype), x, scale, zero)
    info = np.iinfo(dtype.np)
    if low > info.min:
        out = c.emit(O.Maximum(), out, c.scalar(low, dtype))
    return c.emit(O.Minimum(), out, c.scalar(high, dtype)) if high < info.max else out


def _numbers(c: Context, x: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Value:
    """A scale or zero point: a number, or a tensor of one (or of as many as an axis has)."""
    if not isinstance(x, Value):
        return c.scalar(x, dtype)
    return c.reshape(c.cast(x, dtype), x.shape if shape is None else shape)


@aten("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor")
def quantize_per_tensor(c: Context, x: Value, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: Any) -> Value:
    s, z = _numbers(c, scale, _real(x), ()), _numbers(c, zero_point, i32, ())
    return _quantized(c, x, s, z, None, quant_min, quant_max, dtype_of(dtype))


@aten("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(c: Context, x: Value, scales: Value, zero_points: Value | None, axis: int, quant_min: int, quant_max: int,
                         dtype: Any) -> Value:
    s, z = _numbers(c, scales, _real(x)), _zeros(c, zero_points, scales)
    return _quantized(c, x, s, z, axis % len(x.shape), quant_min, quant_max, dtype_of(dtype))


@aten("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor")
def dequantize_per_tensor(c: Context, x: Value, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: Any, *,
                          out_dtype: Any = None) -> Value:
    made = c.emit(O.Dequantize(), x, _numbers(c, scale, c.dtype, ()), _numbers(c, zero_point, i32, ()))
    return made


@aten("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(c: Context, x: Value, scales: Value, zero_points: Value | None, axis: int, quant_min: int, quant_max: int,
                           dtype: Any, *, out_dtype: Any = None) -> Value:
    return c.emit(O.Dequantize(axis=axis % len(x.shape)), x, _numbers(c, scales, c.dtype), _zeros(c, zero_points, scales))


def _zeros(c: Context, zero_points: Value | None, scales: Value) -> Value:
    return c.graph.constant(np.zeros(scales.shape, np.int32), "zeros") if zero_points is None else c.cast(zero_points, i32)


def _real(x: Value) -> DType:
    found: DType = x.dtype
    return found
