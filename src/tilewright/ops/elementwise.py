"""Elementwise ops of one operand: arithmetic, rounding, exponentials, trigonometry, tests, casts.

`lower` sees f32, f64, integer and bool tiles; small floats are widened around it.
"""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..core import dtypes as dt
from ..core.dtypes import DType
from ..ir.graph import Value
from ..ir.types import TensorType
from . import special
from .base import E, S, register
from .families import Unary, bf16, boolean, f16, f32, f64, i32, i64, u8, unary_samples


class Primitive(Unary):
    """One tile instruction of the same meaning."""

    tile: ClassVar[str] = ""

    def lower(self, t: Any, x: Any) -> Any:
        return t.unary(type(self).tile, x)


FLOAT_ONLY = [E(i32(3), match="needs float operands; cast first, got dtype=i32")]


@register
class Neg(Unary):
    """-x; integers wrap."""

    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3), i64(2, 2))
    errors = [E(boolean(3), match="needs float or integer operands; cast first, got dtype=bool")]

    def ref(self, x: Any) -> Any:
        return np.negative(x)

    def lower(self, t: Any, x: Any) -> Any:
        return t.unary("neg", x) if x.dtype.is_float else 0 - x


@register
class Abs(Unary):
    """|x|; the most negative integer stays itself."""

    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3), u8(4))
    errors = [E(boolean(3), match="needs float or integer operands")]

    def ref(self, x: Any) -> Any:
        return np.abs(x)

    def lower(self, t: Any, x: Any) -> Any:
        if x.dtype.is_float:
            return t.unary("abs", x)
        return x if x.dtype.kind == "u" else t.select(t.cmp("lt", x, 0), 0 - x, x)


@register
class Sign(Unary):
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""

    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3))
    errors = [E(boolean(3), match="needs float or integer operands")]

    def ref(self, x: Any) -> Any:
        return (np.greater(x, 0).astype(x.dtype) - np.less(x, 0).astype(x.dtype)).astype(x.dtype)

    def lower(self, t: Any, x: Any) -> Any:
        positive = t.select(t.cmp("gt", x, 0), t.full((), 1, x.dtype), 0)
        return positive if x.dtype.kind == "u" else t.select(t.cmp("lt", x, 0), t.full((), -1, x.dtype), positive)


@register
class Exp(Primitive):
    """e**x."""

    tile = "exp"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.exp(x)


@register
class Log(Primitive):
    """Natural logarithm."""

    tile = "log"
    samples = unary_samples(0.01, 9)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.log(x)


@register
class Log1p(Primitive):
    """log(1 + x), accurate near 0."""

    tile = "log1p"
    samples = unary_samples(-0.9, 4)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.log1p(x)


@register
class Expm1(Primitive):
    """exp(x) - 1, accurate near 0."""

    tile = "expm1"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.expm1(x)


@register
class Sqrt(Primitive):
    """Square root, correctly rounded."""

    tile = "sqrt"
    samples = unary_samples(0, 9)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.sqrt(x)


@register
class Rsqrt(Primitive):
    """1 / sqrt(x)."""

    tile = "rsqrt"
    samples = unary_samples(0.1, 9)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.reciprocal(np.sqrt(x))

    def decompose(self, x: Value) -> Value:
        root: Value = Sqrt()(x)
        out: Value = Reciprocal()(root)
        return out


@register
class Sin(Primitive):
    """Sine of radians."""

    tile = "sin"
    samples = unary_samples(-9, 9)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.sin(x)


@register
class Cos(Primitive):
    """Cosine of radians."""

    tile = "cos"
    samples = unary_samples(-9, 9)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.cos(x)


@register
class Tan(Primitive):
    """Tangent of radians."""

    tile = "tan"
    samples = unary_samples(-1.4, 1.4)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.tan(x)


@register
class Tanh(Primitive):
    """Hyperbolic tangent."""

    tile = "tanh"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.tanh(x)


@register
class Erf(Primitive):
    """The error function."""

    tile = "erf"
    samples = unary_samples(-5, 5)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return special.erf(x)


@register
class Sigmoid(Primitive):
    """1 / (1 + exp(-x))."""

    tile = "sigmoid"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return special.sigmoid(x)


@register
class Floor(Primitive):
    """Largest whole number not above x."""

    tile = "floor"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.floor(x)


@register
class Ceil(Primitive):
    """Smallest whole number not below x."""

    tile = "ceil"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.ceil(x)


@register
class Round(Primitive):
    """Nearest whole number, halves to even."""

    tile = "round"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.rint(x)


@register
class Trunc(Primitive):
    """x without its fraction."""

    tile = "trunc"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.trunc(x)


@register
class Reciprocal(Primitive):
    """1 / x."""

    tile = "reciprocal"
    samples = unary_samples(0.2, 5)
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.reciprocal(x)


@register
class Square(Unary):
    """x * x."""

    kinds = "fiu"
    samples = unary_samples(-4, 4, i64(3))
    errors = [E(boolean(3), match="needs float or integer operands")]

    def ref(self, x: Any) -> Any:
        return np.multiply(x, x)

    def lower(self, t: Any, x: Any) -> Any:
        return x * x


@register
class LogicalNot(Unary):
    """True where x is False."""

    kinds = "b"
    samples = [S(boolean(3, 5)), S(boolean()), S(boolean(0))]
    errors = [E(i32(3), match="needs bool operands; cast first, got dtype=i32")]

    def ref(self, x: Any) -> Any:
        return np.logical_not(x)

    def lower(self, t: Any, x: Any) -> Any:
        return t.unary("not", x)


@register
class BitwiseNot(Unary):
    """Every bit flipped; the logical not of bools."""

    kinds = "iub"
    samples = [S(i32(3, 5), low=-9, high=9), S(boolean(4)), S(u8(3), low=0, high=200)]
    errors = [E(f32(3), match="needs integer or bool operands; cast first, got dtype=f32")]

    def ref(self, x: Any) -> Any:
        return np.bitwise_not(x)

    def lower(self, t: Any, x: Any) -> Any:
        if x.dtype.is_bool:
            return t.unary("not", x)
        return t.binary("xor", x, t.full((), (1 << 8 * x.dtype.itemsize) - 1 if x.dtype.kind == "u" else -1, x.dtype))


@register
class IsNan(Unary):
    """True where x is NaN."""

    to_bool = True
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.isnan(x)

    def lower(self, t: Any, x: Any) -> Any:
        return t.unary("isnan", x)


@register
class IsInf(Unary):
    """True where x is an infinity of either sign."""

    to_bool = True
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.isinf(x)

    def lower(self, t: Any, x: Any) -> Any:
        return t.unary("isinf", x)


@register
class Cast(Unary):
    """x in another dtype: to bool means `!= 0`, floats to integers truncate, f64 to small floats rounds through f32 as PyTorch does."""

    dtype: DType
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
        if self.dtype in (dt.f16, dt.bf16) and x.dtype == np.float64:
            x = x.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return x.astype(self.dtype.np)

    def lower(self, t: Any, x: Any) -> Any:
        if self.dtype.is_bool and not x.dtype.is_bool:
            return t.cmp("ne", x, 0)
        if self.dtype in (dt.f16, dt.bf16) and x.dtype is dt.f64:
            x = t.cast(x, dt.f32)
        return t.cast(x, self.dtype)
