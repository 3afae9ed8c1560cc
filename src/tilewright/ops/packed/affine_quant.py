"""Integer quantized values with a scale and a zero point (one, or one per index of an axis), and products that are made of plain ones."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, register
from ..families import Composite, N, f32, f64, i8, i32, i64, require_axis, require_kind, require_one_dtype, show_shape, u8
from ..rows.reductions import wide
from .fake_quant import along, along_array, off_halves


def require_affine(axis: int | None, x: TensorType, scale: TensorType, zero: TensorType) -> None:
    if axis is not None:
        require_axis(axis, x.ndim)
    want = () if axis is None else (x.shape[axis],)
    require_kind((scale,), "f")
    require(zero.dtype is dt.i32, "zero points must be i32", zero=zero)
    for name, v in (("scale", scale), ("zero point", zero)):
        require(v.shape == want, "the {name} must have shape {want}", name=name, want=show_shape(want), value=v)


@register
class Quantize(Composite):
    """round(x / scale) + zero point, halves to even, clamped to the range of an integer dtype."""

    axis: int | None = None
    dtype: DType = dt.i8
    work = 4
    unsupported = {"vjp": NotSupported("its result is an integer; train with fake_quantize"),
                   "jvp": NotSupported("its result is an integer; train with fake_quantize")}
    samples = [S(f32(3, 5), f32(), i32(), low=(-9, 0.01, -9), high=(9, 0.2, 9), fit=off_halves()),
               S(f32(4, 6), f32(6), i32(6), axis=1, dtype=dt.u8, low=(-3, 0.01, 90), high=(9, 0.2, 140), fit=off_halves(axis=1)),
               S(f64(N, 3), f64(3), i32(3), axis=1, low=(-9, 0.01, -9), high=(9, 0.2, 9), fit=off_halves(axis=1))]
    errors = [E(f32(3), f32(3), i32(3), match="the scale must have shape"), E(f32(3), f32(), i64(), match="zero points must be i32"),
              E(f32(3), f32(), i32(), dtype=dt.f32, match="values must be of an integer dtype")]

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_one_dtype((x, scale))
        require(self.dtype.is_int and self.dtype.itemsize < 4, "values must be of an integer dtype of 8 or 16 bits", dtype=self.dtype)
        require_affine(self.axis, x, scale, zero)
        return x.with_dtype(self.dtype)

    def ref(self, x: Any, scale: Any, zero: Any) -> Any:
        s, z = (along_array(v, self.axis, x.ndim) for v in (scale, zero))
        info = np.iinfo(self.dtype.np)
        return np.clip(np.rint(x / s) + z, info.min, info.max).astype(self.dtype.np)

    def decompose(self, x: Value, scale: Value, zero: Value) -> Value:
        rank, info = len(x.shape), np.iinfo(self.dtype.np)
        quantized = F.add(F.apply("round", F.div(x, along(scale, self.axis, rank))), F.cast(along(zero, self.axis, rank), x.dtype))
        return F.cast(F.minimum(F.maximum(quantized, float(info.min)), float(info.max)), self.dtype)


@register
class Dequantize(Composite):
    """(quantized - zero point) * scale."""

    axis: int | None = None
    work = 2
    samples = [S(i8(3, 5), f32(), i32(), low=(-90, 0.01, -9), high=(90, 0.2, 9)),
               S(u8(4, 6), f32(4), i32(4), axis=0, low=(0, 0.01, 90), high=(200, 0.2, 140)),
               S(i8(N), f64(), i32(), low=(-9, 0.1, -9), high=(9, 1, 9))]
    errors = [E(f32(3), f32(), i32(), match="needs integer operands"),
              E(i8(3), f32(3), i32(), axis=0, match="the zero point must have shape")]

    def infer(self, quantized: TensorType, scale: TensorType, zero: TensorType) -> TensorType:
        require_kind((quantized,), "iu")
        require_affine(self.axis, quantized, scale, zero)
        return quantized.with_dtype(scale.dtype)

    def ref(self, quantized: Any, scale: Any, zero: Any) -> Any:
        s, z = (along_array(v, self.axis, quantized.ndim) for v in (scale, zero))
        return ((quantized.astype(np.int64) - z) * wide(s)).astype(scale.dtype)

    def decompose(self, quantized: Value, scale: Value, zero: Value) -> Value:
        rank = len(quantized.shape)
        whole = F.sub(F.cast(quantized, dt.i32), along(zero, self.axis, rank))
        return F.mul(F.cast(whole, scale.dtype), along(scale, self.axis, rank))


@register
class LoraMatmul(Composite):
    """x @ w + scale * ((x @ a) @ b): a product with a correction of low rank."""

    scale: float = 1.0
    samples = [S(f32(3, 5), f32(5, 7), f32(5, 2), f32(2, 7), scale=0.5), S(f64(4, 3), f64(3, 3), f64(3, 1), f64(1, 3)),
               S(f32(2, N, 4), f32(4, 6), f32(4, 3), f32(3, 6), scale=2.0)]
    errors = [E(f32(3, 5), f32(5, 7), f32(4, 2), f32(2, 7), match="a must be \\[5,r\\] and b \\[r,7\\]"),
              E(f32(3, 5), f32(4, 7), f32(5, 2), f32(2, 7), match="inner sizes differ")]

    def infer(self, x: TensorType, w: TensorType, a: TensorType, b: TensorType) -> TensorType:
        require_kind((x, w, a, b), "f")
        require_one_dtype((x, w, a, b))
        require(x.ndim >= 2 and w.ndim == 2 and x.shape[-1] == w.shape[0], "inner sizes differ, or ranks do not fit", x=x, w=w)
        k, n = w.shape
        ok = a.ndim == b.ndim == 2 and a.shape[0] == k and b.shape[1] == n and a.shape[1] == b.shape[0]
        require(ok, "a must be [{k},r] and b [r,{n}]", k=k, n=n, a=a, b=b)
        return x.with_shape((*x.shape[:-1], n))

    def ref(self, x: Any, w: Any, a: Any, b: Any) -> Any:
        y = wide(x)
        return (y @ wide(w) + self.scale * ((y @ wide(a)) @ wide(b))).astype(x.dtype)

    def decompose(self, x: Value, w: Value, a: Value, b: Value) -> Value:
        return F.add(F.matmul(x, w), F.matmul(F.matmul(x, a), b, alpha=self.scale))

    def flops(self, x: TensorType, w: TensorType, a: TensorType, b: TensorType) -> Dim:
        rows = x.numel // x.shape[-1] if isinstance(x.numel, int) and isinstance(x.shape[-1], int) and x.shape[-1] else x.numel
        return 2 * rows * (w.numel + a.numel + b.numel)
