"""Comparisons, logic on booleans and bits, selection and clamping."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....ir.graph import Value
from .registry import Context, Handler, aten, rows


def truth(c: Context, x: Value) -> Value:
    return x if x.dtype.is_bool else c.emit(O.NotEqual(), x, c.scalar(0, x.dtype))


def _logical(op: Any) -> Handler:
    def handler(c: Context, a: Value, b: Value) -> Value:
        return c.emit(op(), truth(c, a), truth(c, b))

    return handler


aten("logical_and.default")(_logical(O.LogicalAnd))
aten("logical_or.default")(_logical(O.LogicalOr))
aten("logical_xor.default")(_logical(O.LogicalXor))


def _bitwise(on_bool: Any, on_int: Any) -> Handler:
    def handler(c: Context, a: Any, b: Any) -> Value:
        op = on_bool if c.dtype.is_bool else on_int
        return c.emit(op(), c.value(a, c.dtype), c.value(b, c.dtype))

    return handler


for _name, _pair in {"and": (O.LogicalAnd, O.BitwiseAnd), "or": (O.LogicalOr, O.BitwiseOr), "xor": (O.LogicalXor, O.BitwiseXor)}.items():
    aten(
        f"bitwise_{_name}.Tensor",
        f"bitwise_{_name}.Scalar",
        f"bitwise_{_name}.Scalar_Tensor",
        f"__{_name}__.Tensor",
        f"__{_name}__.Scalar",
        f"__i{_name}__.Tensor",
        f"__i{_name}__.Scalar",
    )(_bitwise(*_pair))


@aten("isnan.default")
def isnan(c: Context, x: Value) -> Value:
    return c.emit(O.IsNan(), c.cast(x, x.dtype if x.dtype.is_float else dt.f32))


@aten("isinf.default")
def isinf(c: Context, x: Value) -> Value:
    return c.emit(O.IsInf(), c.cast(x, x.dtype if x.dtype.is_float else dt.f32))


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def clamp(c: Context, x: Value, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    """The second operand is the result where both are zeros: as in torch x, but for bounds that are tensors."""
    out = c.cast(x, c.dtype)
    for op, bound in ((O.Maximum(), min), (O.Minimum(), max)):
        if bound is not None:
            pair = (c.value(bound, c.dtype), out)
            out = c.emit(op, *(pair[::-1] if isinstance(bound, Value) else pair))
    return out


rows({
    "logical_not.default": lambda c, x: c.emit(O.LogicalNot(), truth(c, x)),
    "bitwise_not.default": lambda c, x: c.emit(O.LogicalNot() if x.dtype.is_bool else O.BitwiseNot(), x),
    "isfinite.default": lambda c, x: c.emit(O.LogicalNot(), c.emit(O.LogicalOr(), isnan(c, x), isinf(c, x))),
    "where.self where.ScalarSelf where.ScalarOther where.Scalar":
        lambda c, cond, a, b: c.emit(O.Where(), truth(c, cond), c.value(a, c.dtype), c.value(b, c.dtype)),
    "masked_fill.Scalar masked_fill.Tensor": lambda c, x, mask, value: c.emit(O.Where(), mask, c.value(value, c.dtype), x),
    "clamp_min.default clamp_min.Tensor": lambda c, x, min: clamp(c, x, min=min),  # noqa: A006
    "clamp_max.default clamp_max.Tensor": lambda c, x, max: clamp(c, x, max=max),  # noqa: A006
    "hardtanh.default": lambda c, x, min_val=-1, max_val=1: clamp(c, x, min_val, max_val),
    "relu6.default": lambda c, x: clamp(c, x, 0, 6),
})
