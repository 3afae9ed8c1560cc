"""Elementwise ATen ops: arithmetic with torch's type promotion, comparisons, logic, rounding, casts."""
from __future__ import annotations

import math
from typing import Any

from ... import ops as O
from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from .registry import Context, Handler, aten


def _unary(op: Any) -> Handler:
    """The operand is cast to the result's dtype first (`sqrt` of integers is a float)."""

    def handler(c: Context, x: Value) -> Value:
        return c.emit(op(), c.cast(x, c.dtype))  # type: ignore[no-any-return]

    return handler


for _name, _op in {"neg": O.Neg, "sgn": O.Sign, "sign": O.Sign, "exp": O.Exp, "log": O.Log, "log1p": O.Log1p, "expm1": O.Expm1,
                   "sqrt": O.Sqrt, "rsqrt": O.Rsqrt, "sin": O.Sin, "cos": O.Cos, "tan": O.Tan, "tanh": O.Tanh, "erf": O.Erf,
                   "special_erf": O.Erf, "sigmoid": O.Sigmoid, "special_expit": O.Sigmoid, "reciprocal": O.Reciprocal, "square": O.Square,
                   "abs": O.Abs, "negative": O.Neg, "absolute": O.Abs, "special_expm1": O.Expm1, "special_log1p": O.Log1p}.items():
    aten(f"{_name}.default")(_unary(_op))


def _rounding(op: Any) -> Handler:
    def handler(c: Context, x: Value) -> Value:
        return c.emit(op(), x) if x.dtype.is_float else x  # type: ignore[no-any-return]

    return handler


for _name, _op in {"floor": O.Floor, "ceil": O.Ceil, "round": O.Round, "trunc": O.Trunc, "fix": O.Trunc}.items():
    aten(f"{_name}.default")(_rounding(_op))


@aten("round.decimals")
def round_decimals(c: Context, x: Value, *, decimals: int = 0) -> Value:
    scale = c.scalar(float(10.0 ** abs(decimals)), x.dtype)
    up, down = (O.Mul(), O.Div()) if decimals >= 0 else (O.Div(), O.Mul())
    return c.emit(down, c.emit(O.Round(), c.emit(up, x, scale)), scale)  # type: ignore[no-any-return]


@aten("log2.default")
def log2(c: Context, x: Value) -> Value:
    return c.emit(O.Div(), c.emit(O.Log(), c.cast(x, c.dtype)), c.scalar(math.log(2.0), c.dtype))  # type: ignore[no-any-return]


@aten("log10.default")
def log10(c: Context, x: Value) -> Value:
    return c.emit(O.Div(), c.emit(O.Log(), c.cast(x, c.dtype)), c.scalar(math.log(10.0), c.dtype))  # type: ignore[no-any-return]


@aten("exp2.default")
def exp2(c: Context, x: Value) -> Value:
    return c.emit(O.Pow(), c.scalar(2.0, c.dtype), c.cast(x, c.dtype))  # type: ignore[no-any-return]


@aten("frac.default")
def frac(c: Context, x: Value) -> Value:
    return c.emit(O.Sub(), x, c.emit(O.Trunc(), x))  # type: ignore[no-any-return]


@aten("positive.default")
def positive(c: Context, x: Value) -> Value:
    return x


def _binary(op: Any) -> Handler:
    def handler(c: Context, a: Any, b: Any) -> Value:
        return c.emit(op(), c.value(a, c.dtype), c.value(b, c.dtype))  # type: ignore[no-any-return]

    return handler


aten("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")(_binary(O.Mul))
aten("maximum.default", "max.other", "fmax.default", "clamp_min.Tensor", "clamp_min.default")(_binary(O.Maximum))
aten("minimum.default", "min.other", "fmin.default", "clamp_max.Tensor", "clamp_max.default")(_binary(O.Minimum))
aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")(_binary(O.Remainder))


@aten("true_divide.Tensor", "divide.Tensor", "div.Tensor", "div.Scalar")
def div(c: Context, a: Any, b: Any) -> Value:
    return c.emit(O.Div(), c.value(a, c.dtype), c.value(b, c.dtype))  # type: ignore[no-any-return]


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(c: Context, a: Any, b: Any) -> Value:
    return _floor_divide(c, c.value(a, c.dtype), c.value(b, c.dtype))


def _floor_divide(c: Context, a: Value, b: Value) -> Value:
    return c.emit(O.FloorDivide(), a, b)  # type: ignore[no-any-return]


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def div_mode(c: Context, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    x, y = c.value(a, c.dtype), c.value(b, c.dtype)
    if rounding_mode == "floor":
        return _floor_divide(c, x, y)
    if rounding_mode is None:
        return c.emit(O.Div(), x, y)  # type: ignore[no-any-return]
    if c.dtype.is_float:
        return c.emit(O.Trunc(), c.emit(O.Div(), x, y))  # type: ignore[no-any-return]
    sign = c.emit(O.Mul(), c.emit(O.Sign(), x), c.emit(O.Sign(), y))
    return c.emit(O.Mul(), sign, c.emit(O.FloorDivide(), c.emit(O.Abs(), x), c.emit(O.Abs(), y)))  # type: ignore[no-any-return]


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, a: Any, b: Any) -> Value:
    x, y = c.value(a, c.dtype), c.value(b, c.dtype)
    rest = c.emit(O.Remainder(), c.emit(O.Abs(), x), c.emit(O.Abs(), y))
    return c.emit(O.Mul(), c.emit(O.Sign(), x), rest)  # type: ignore[no-any-return]


def _scaled(c: Context, x: Value, alpha: Any) -> Value:
    return x if isinstance(alpha, (int, float)) and alpha == 1 else c.emit(O.Mul(), x, c.scalar(alpha, x.dtype))


@aten("add.Tensor", "add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    if c.dtype.is_bool:
        return c.emit(O.LogicalOr(), c.value(a, c.dtype), c.value(b, c.dtype))  # type: ignore[no-any-return]
    if isinstance(b, (int, float)) and not isinstance(b, bool) and b == 0 and isinstance(a, Value) and a.dtype.is_int:
        return c.cast(a, c.dtype)  # `arange(S) + 0`: keep positions plain
    return c.emit(O.Add(), c.value(a, c.dtype), _scaled(c, c.value(b, c.dtype), alpha))  # type: ignore[no-any-return]


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor")
def sub(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    return c.emit(O.Sub(), c.value(a, c.dtype), _scaled(c, c.value(b, c.dtype), alpha))  # type: ignore[no-any-return]


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    return c.emit(O.Sub(), c.value(b, c.dtype), _scaled(c, c.value(a, c.dtype), alpha))  # type: ignore[no-any-return]


@aten("addcmul.default")
def addcmul(c: Context, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    x, a, b = (c.cast(v, c.dtype) for v in (x, a, b))
    return c.emit(O.Add(), x, _scaled(c, c.emit(O.Mul(), a, b), value))  # type: ignore[no-any-return]


@aten("addcdiv.default")
def addcdiv(c: Context, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    x, a, b = (c.cast(v, c.dtype) for v in (x, a, b))
    return c.emit(O.Add(), x, _scaled(c, c.emit(O.Div(), a, b), value))  # type: ignore[no-any-return]


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(c: Context, a: Value, b: Value, weight: Any) -> Value:
    return c.emit(O.Add(), a, c.emit(O.Mul(), c.value(weight, c.dtype), c.emit(O.Sub(), b, a)))  # type: ignore[no-any-return]


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(c: Context, a: Any, b: Any) -> Value:
    """Small constant exponents are spelled out, as torch's own CPU kernel does."""
    dtype = c.dtype
    if isinstance(b, (int, float)) and not isinstance(b, bool) and isinstance(a, Value):
        x = c.cast(a, dtype)
        if b == 1:
            return x
        if b == 2:
            return c.emit(O.Square(), x)  # type: ignore[no-any-return]
        if b == 3:
            return c.emit(O.Mul(), c.emit(O.Square(), x), x)  # type: ignore[no-any-return]
        if dtype.is_float and b in (0.5, -0.5, -1.0):
            return c.emit({0.5: O.Sqrt, -0.5: O.Rsqrt, -1.0: O.Reciprocal}[float(b)](), x)  # type: ignore[no-any-return]
    return c.emit(O.Pow(), c.value(a, dtype), c.value(b, dtype))  # type: ignore[no-any-return]


def _compare(op: Any) -> Handler:
    def handler(c: Context, a: Any, b: Any) -> Value:
        dtype = c.result_dtype(0, 1)
        return c.emit(op(), c.value(a, dtype), c.value(b, dtype))  # type: ignore[no-any-return]

    return handler


for _name, _op in {"eq": O.Equal, "ne": O.NotEqual, "lt": O.Less, "le": O.LessEqual, "gt": O.Greater, "ge": O.GreaterEqual,
                   "not_equal": O.NotEqual, "less": O.Less, "less_equal": O.LessEqual, "greater": O.Greater,
                   "greater_equal": O.GreaterEqual}.items():
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_op))


def truth(c: Context, x: Value) -> Value:
    return x if x.dtype.is_bool else c.emit(O.NotEqual(), x, c.scalar(0, x.dtype))


def _logical(op: Any) -> Handler:
    def handler(c: Context, a: Value, b: Value) -> Value:
        return c.emit(op(), truth(c, a), truth(c, b))  # type: ignore[no-any-return]

    return handler


for _name, _op in {"logical_and": O.LogicalAnd, "logical_or": O.LogicalOr, "logical_xor": O.LogicalXor}.items():
    aten(f"{_name}.default")(_logical(_op))


@aten("logical_not.default")
def logical_not(c: Context, x: Value) -> Value:
    return c.emit(O.LogicalNot(), truth(c, x))  # type: ignore[no-any-return]


def _bitwise(on_bool: Any, on_int: Any) -> Handler:
    def handler(c: Context, a: Any, b: Any) -> Value:
        op = on_bool if c.dtype.is_bool else on_int
        return c.emit(op(), c.value(a, c.dtype), c.value(b, c.dtype))  # type: ignore[no-any-return]

    return handler


for _name, _pair in {"and": (O.LogicalAnd, O.BitwiseAnd), "or": (O.LogicalOr, O.BitwiseOr), "xor": (O.LogicalXor, O.BitwiseXor)}.items():
    aten(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar", f"bitwise_{_name}.Scalar_Tensor", f"__{_name}__.Tensor", f"__{_name}__.Scalar",
         f"__i{_name}__.Tensor", f"__i{_name}__.Scalar")(_bitwise(*_pair))


@aten("bitwise_not.default")
def bitwise_not(c: Context, x: Value) -> Value:
    return c.emit(O.LogicalNot() if x.dtype.is_bool else O.BitwiseNot(), x)  # type: ignore[no-any-return]


@aten("isnan.default")
def isnan(c: Context, x: Value) -> Value:
    return c.emit(O.IsNan(), c.cast(x, x.dtype if x.dtype.is_float else dt.f32))  # type: ignore[no-any-return]


@aten("isinf.default")
def isinf(c: Context, x: Value) -> Value:
    return c.emit(O.IsInf(), c.cast(x, x.dtype if x.dtype.is_float else dt.f32))  # type: ignore[no-any-return]


@aten("isfinite.default")
def isfinite(c: Context, x: Value) -> Value:
    return c.emit(O.LogicalNot(), c.emit(O.LogicalOr(), isnan(c, x), isinf(c, x)))  # type: ignore[no-any-return]


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(c: Context, cond: Value, a: Any, b: Any) -> Value:
    return c.emit(O.Where(), truth(c, cond), c.value(a, c.dtype), c.value(b, c.dtype))  # type: ignore[no-any-return]


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Context, x: Value, mask: Value, value: Any) -> Value:
    return c.emit(O.Where(), mask, c.value(value, c.dtype), x)  # type: ignore[no-any-return]


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(c: Context, x: Value, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    out = c.cast(x, c.dtype)
    if min is not None:
        out = c.emit(O.Maximum(), out, c.value(min, c.dtype))
    return out if max is None else c.emit(O.Minimum(), out, c.value(max, c.dtype))


@aten("hardtanh.default")
def hardtanh(c: Context, x: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    return clamp(c, x, min_val, max_val)


@aten("to.dtype", "to.dtype_layout", "to.device", "to.other", "_to_copy.default", "type_as.default", "to.prim_Device", "to.prim_dtype",
      "prims.convert_element_type.default", "_cast_Float.default", "float.default")
def to(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    return _cast(c, x, c.dtype)


def _cast(c: Context, x: Value, dtype: DType) -> Value:
    return truth(c, x) if dtype.is_bool else c.cast(x, dtype)


@aten("alias.default", "detach.default", "detach_.default", "clone.default", "contiguous.default", "lift_fresh.default", "lift_fresh_copy.default",
      "lift.default", "_conj.default", "conj.default", "resolve_conj.default", "resolve_neg.default")
def same(c: Context, x: Value, **_: Any) -> Value:
    return x


@aten("dropout.default", "feature_dropout.default", "alpha_dropout.default", "feature_alpha_dropout.default")
def dropout(c: Context, x: Value, p: float, train: bool) -> Value:
    if train and p != 0:
        raise UnsupportedError("dropout in training mode is random; call module.eval() first")
    return x


@aten("copy.default", "fill.Tensor", "fill.Scalar")
def copy(c: Context, x: Value, source: Any, *_: Any) -> Value:
    return c.expand(c.value(source, x.dtype), x.shape)
