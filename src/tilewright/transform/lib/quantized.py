"""Low-bit numbers: quantized values with scales, fake quantization for training, products of integers, products with packed weights."""
from __future__ import annotations

from typing import Any

from ...core import dtypes as dt
from ...core.errors import ShapeError
from ...ops import (
    Dequantize,
    FakeQuantize,
    FakeQuantizeLsq,
    IntConv,
    IntMatmul,
    QMatmul,
    Quantize,
    Requantize,
)
from ...ops.quant import by_name
from ..promote import as_float, as_tracer
from ..trace import Functions, apply, dtype_given, user_place
from .creation import full
from .shapes import reshape, stack
from .windows import each, pairs

public = FUNCTIONS = Functions()


def _axis(axis: int | None, rank: int) -> int | None:
    return axis + rank if axis is not None and axis < 0 else axis


def _zeros(zero: Any, scale: Any) -> Any:
    """Zero points in the shape of the scales."""
    return full(scale.shape, zero, "i32") if isinstance(zero, int) else as_tracer(zero, dt.i32)


@public
def quantize_linear(x: Any, scale: Any, zero: Any = 0, *, axis: int | None = None, dtype: Any = "i8") -> Any:
    """round(x / scale) + zero, halves to even, clamped to an integer dtype. Scale and zero point are one number, or one per index of
    `axis`."""
    x = as_float(x)
    scale = as_tracer(scale, x.value.dtype)
    return apply(Quantize(axis=_axis(axis, x.ndim), dtype=dtype_given(dtype)), x, scale, _zeros(zero, scale))


@public
def dequantize_linear(quantized: Any, scale: Any, zero: Any = 0, *, axis: int | None = None) -> Any:
    """(quantized - zero) * scale."""
    quantized, scale = as_tracer(quantized), as_float(scale)
    return apply(Dequantize(axis=_axis(axis, quantized.ndim)), quantized, scale, _zeros(zero, scale))


@public
def fake_quantize(x: Any, scale: Any = None, *, bits: int = 8, axis: int | None = None, estimator: str = "identity",
                  mode: str | None = None, decay: float = 0.99) -> Any:
    """x rounded to 2, 3, 4 or 8 bits and back, for training. The scale is max|x| / q of this x (`batch`), the given one (`fixed`), or a
    running mean (`ema`: `scale` is the old one, and the result is (x, new scale)). The estimator is the derivative: `identity`, `clipped`,
    `tanh` or `hard_tanh`."""
    x = as_float(x)
    mode = mode or ("batch" if scale is None else "fixed")
    given = () if scale is None else (as_tracer(scale, x.value.dtype),)
    return apply(FakeQuantize(bits=bits, axis=_axis(axis, x.ndim), estimator=estimator, mode=mode, decay=decay), x, *given)


@public
def fake_quantize_lsq(x: Any, scale: Any, *, bits: int = 8, axis: int | None = None, gradient_scale: float = 1.0) -> Any:
    """x rounded to few bits and back with a learned scale (LSQ, arXiv:1902.08153), which has a derivative, too."""
    x = as_float(x)
    op = FakeQuantizeLsq(bits=bits, axis=_axis(axis, x.ndim), gradient_scale=gradient_scale)
    return apply(op, x, as_tracer(scale, x.value.dtype))


@public
def int_matmul(a: Any, b: Any, *, transpose_b: bool = False) -> Any:
    """a @ b in integers: a i8 or u8, b i8 (a matrix of weights is fastest), result i32, exact."""
    return apply(IntMatmul(transpose_b=transpose_b), as_tracer(a), as_tracer(b))


@public
def int_conv(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, border: int = 0) -> Any:
    """Convolution of x[N,C,*s] (i8 or u8) with w[O,C/groups,*k] (i8) in integers: i32. `border` stands around x: its zero point."""
    x, w = as_tracer(x), as_tracer(w)
    n = x.ndim - 2
    steps = {"stride": each(stride, n), "padding": pairs(padding, n), "dilation": each(dilation, n)}
    return apply(IntConv(**steps, groups=groups, border=border), x, w)


@public
def requantize(acc: Any, multiplier: Any, zero: Any = 0, *, axis: int | None = None, dtype: Any = "i8") -> Any:
    """round(acc * multiplier) + zero, halves to even, clamped: from the i32 sums of a product to the values of the next one. The multiplier
    is the scale of x times that of w over that of the result; one, or one per index of `axis`."""
    acc, multiplier = as_tracer(acc), as_tracer(multiplier, dt.f32)
    return apply(Requantize(axis=_axis(axis, acc.ndim), dtype=dtype_given(dtype)), acc, multiplier, _zeros(zero, multiplier))


def _per_byte(bits: int, what: str) -> int:
    if bits not in (2, 4, 8):
        raise ShapeError(f"{what}: bits must be 2, 4 or 8, got {bits} ({user_place()})")
    return 8 // bits


@public
def pack_quantized(quantized: Any, bits: int) -> Any:
    """Quantized values of 2, 4 or 8 bits (i8) as bytes u8, the first code in the lowest bits. The last axis must fill whole bytes."""
    per, quantized = _per_byte(bits, "pack_quantized"), as_tracer(quantized)
    if quantized.value.dtype is not dt.i8 or quantized.ndim == 0 or quantized.shape[-1] % per:
        raise ShapeError(f"pack_quantized: needs i8 values whose last dim is a multiple of {per}, got {quantized.type} ({user_place()})")
    parts = reshape(as_tracer(quantized, dt.i32), (*quantized.shape[:-1], quantized.shape[-1] // per, per)) & ((1 << bits) - 1)
    total = parts[..., 0]
    for i in range(1, per):
        total = total | (parts[..., i] * (1 << (bits * i)))
    return as_tracer(total, dt.u8)


@public
def unpack_quantized(packed: Any, bits: int) -> Any:
    """The quantized values (i8) that `pack_quantized` put into bytes."""
    per, packed = _per_byte(bits, "unpack_quantized"), as_tracer(packed)
    if packed.value.dtype is not dt.u8 or packed.ndim == 0:
        raise ShapeError(f"unpack_quantized: needs u8 bytes, got {packed.type} ({user_place()})")
    wide: Any = as_tracer(packed, dt.i32)
    half = 1 << (bits - 1)
    parts = [((wide // (1 << (bits * i))) & ((1 << bits) - 1) ^ half) - half for i in range(per)]
    out = stack(parts, axis=-1) if per > 1 else parts[0]
    return as_tracer(reshape(out, (*packed.shape[:-1], packed.shape[-1] * per)), dt.i8)


@public
def quantized_matmul(x: Any, packed: Any, *, format: str) -> Any:  # noqa: A002
    """x[..., k] times the transpose of a packed matrix u8[n, row bytes] in a block format (`Q8_0`, `Q4_0`, `Q4_K`, `NVFP4` ...): [..., n].
    The matrix is never unpacked as a whole, neither here nor in the derivative with respect to x. `tw.training.pack_blocks` packs one."""
    x, packed = as_tracer(as_float(x), dt.f32), as_tracer(packed)
    k = x.shape[-1] if x.ndim else 0
    from ...ops.packed.products import codebooks

    name = by_name(format).name
    op = QMatmul(format=name, n=packed.shape[0] if packed.ndim else 0, k=k)
    return apply(op, x, packed, *(as_tracer(table) for table in codebooks(name)))
