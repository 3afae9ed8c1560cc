"""Casts, and ops that return their operand unchanged in inference."""

from __future__ import annotations

from typing import Any

from ....core.dtypes import DType
from ....ir.graph import Value
from .logic import truth
from .registry import Context, aten


@aten(
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "_to_copy.default",
    "type_as.default",
    "to.prim_Device",
    "to.prim_dtype",
    "prims.convert_element_type.default",
    "_cast_Float.default",
    "float.default",
)
def to(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    return _cast(c, x, c.dtype)


def _cast(c: Context, x: Value, dtype: DType) -> Value:
    return truth(c, x) if dtype.is_bool else c.cast(x, dtype)


@aten(
    "alias.default",
    "detach.default",
    "detach_.default",
    "clone.default",
    "contiguous.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "lift.default",
    "resolve_conj.default",
    "resolve_neg.default",
)
def same(c: Context, x: Value, **_: Any) -> Value:
    return x


@aten("copy.default", "fill.Tensor", "fill.Scalar")
def copy(c: Context, x: Value, source: Any, *_: Any) -> Value:
    return c.expand(c.value(source, x.dtype), x.shape)
