"""Casts, and the elementwise ops of one operand whose results are bools or bits."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Unary, bf16, boolean, f16, f32, f64, i32, i64, u8
from ..tiles import TileBuilder


@register
class LogicalNot(Unary):
    """True where x is False."""

    public, numpy = "logical_not", "logical_not"
    kinds = "b"
    samples = [S(boolean(3, 5)), S(boolean()), S(boolean(0))]
    errors = [E(i32(3), match="needs bool operands; cast first, got dtype=i32")]
    tile = "not"


@register
class BitwiseNot(Unary):
    """Every bit flipped; the logical not of bools."""

    public, numpy = "bitwise_not bitwise_invert invert", "bitwise_not"
    kinds = "iub"
    samples = [S(i32(3, 5), low=-9, high=9), S(boolean(4)), S(u8(3), low=0, high=200)]
    errors = [E(f32(3), match="needs integer or bool operands; cast first, got dtype=f32")]

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if x.dtype.is_bool:
            return t.unary("not", x)
        return t.binary("xor", x, t.full((), (1 << 8 * x.dtype.itemsize) - 1 if x.dtype.kind == "u" else -1, x.dtype))


@register
class IsNan(Unary):
    """True where x is NaN."""

    public, complex, numpy, tile = "isnan", "rule", "isnan", "isnan"
    to_bool = True


@register
class IsInf(Unary):
    """True where x is an infinity of either sign."""

    public, complex, numpy, tile = "isinf", "rule", "isinf", "isinf"
    to_bool = True


@register
class Cast(Unary):
    """x in another dtype: to bool means `!= 0`, floats to integers truncate, f64 to small floats rounds through f32 as PyTorch does."""

    complex = "rule"
    dtype: DType
    errors = []
    samples = [S(f32(3, 5), dtype=dt.i32, low=-9, high=9), S(f64(7), dtype=dt.f32), S(f32(6), dtype=dt.bf16), S(f64(5), dtype=dt.f16),
               S(bf16(4), dtype=dt.f32), S(i64(2, 3), dtype=dt.f32, low=-9, high=9), S(f32(5), dtype=dt.bool_), S(i32(5), dtype=dt.bool_),
               S(boolean(2, 3), dtype=dt.f32), S(boolean(3), dtype=dt.i64), S(f16(3), dtype=dt.bf16),
               S(i64(4), dtype=dt.u8, low=0, high=200), S(f32(0), dtype=dt.f64), S(f32(3), dtype=dt.f32)]

    def infer(self, *types: TensorType) -> TensorType:
        x, = types
        return x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        if self.dtype.is_bool:
            return np.not_equal(x, 0)
        if self.dtype in dt.SMALL and x.dtype == np.float64:
            x = x.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return x.astype(self.dtype.np)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if self.dtype.is_bool and not x.dtype.is_bool:
            return t.cmp("ne", x, 0)
        if self.dtype in dt.SMALL and x.dtype is dt.f64:
            x = t.cast(x, dt.f32)
        return t.cast(x, self.dtype)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value | None:
        return F.cast(g, inputs[0].dtype if g.dtype is output.dtype else output.dtype)


@register
class Bitcast(Unary):
    """The bits of x, whose dtype is `source`, as another dtype of the same size. Small floats are rounded to their dtype first."""

    source: DType
    dtype: DType
    samples = [S(f32(3, 5), source=dt.f32, dtype=dt.i32), S(i32(4), source=dt.i32, dtype=dt.f32, low=1 << 29, high=1 << 30),
               S(f64(7), source=dt.f64, dtype=dt.i64), S(f16(5), source=dt.f16, dtype=dt.i16), S(bf16(2, 3), source=dt.bf16, dtype=dt.i16),
               S(u8(6), source=dt.u8, dtype=dt.i8, low=0, high=255), S(f32(0), source=dt.f32, dtype=dt.i32),
               S(f32(), source=dt.f32, dtype=dt.u32)]
    errors = [E(f32(3), source=dt.f32, dtype=dt.i64, match="needs a dtype of the operand's size, got dtype=i64"),
              E(f32(3), source=dt.f16, dtype=dt.i16, match="needs an operand of its source dtype, got source=f16"),
              E(boolean(3), source=dt.bool_, dtype=dt.u8, match="needs integer or float operands")]

    def infer(self, *types: TensorType) -> TensorType:
        x, = types
        require(x.dtype.kind in "iuf" and self.dtype.kind in "iuf", "needs integer or float operands and results", x=x, dtype=self.dtype)
        require(x.dtype is self.source, "needs an operand of its source dtype", source=self.source, x=x)
        require(x.dtype.itemsize == self.dtype.itemsize, "needs a dtype of the operand's size", dtype=self.dtype, x=x)
        return x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        return np.ascontiguousarray(x, self.source.np).view(self.dtype.np).reshape(np.shape(x))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.bitcast(t.cast(x, self.source), self.dtype)

    def derivative(self, x: Value, y: Value) -> None:
        return None
