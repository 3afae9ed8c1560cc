"""The common dtype of operands of different dtypes: the array API standard's table, an integer with a float gives that float, and Python
numbers take the dtype of the array beside them."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dtypes import DType, complex_of
from ..core.errors import ShapeError
from ..ops import Cast
from .trace import Tracer, apply, as_array, current, python_type, user_place

RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def result_dtype(*dtypes: DType) -> DType:
    """
    >>> result_dtype(dt.i32, dt.f32), result_dtype(dt.f16, dt.bf16), result_dtype(dt.u8, dt.i8)
    (f32, f32, i16)
    """
    out = dtypes[0]
    for d in dtypes[1:]:
        out = _pair(out, d)
    return out


def _pair(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if RANK[a.kind] != RANK[b.kind]:
        low, high = sorted((a, b), key=lambda d: RANK[d.kind])
        return dt.c128 if high.kind == "c" and low is dt.f64 else high
    if a.kind == "f":
        return dt.f32 if a.itemsize == b.itemsize else a if a.itemsize > b.itemsize else b
    found = np.promote_types(a.np, b.np)
    if found.kind == "f":
        raise ShapeError(f"promote: {a} and {b} have no common integer dtype; cast one of them ({user_place()})")
    return dt.dtype(found)


def dtype_of(x: Any) -> tuple[DType, bool]:
    """(dtype, weak) of an operand."""
    if isinstance(x, Tracer):
        return x.value.dtype, x.weak
    own = python_type(x)
    if own is not None:
        return own, True
    return dt.dtype(as_array(x).dtype), False


def common(*operands: Any) -> tuple[DType, bool]:
    """The common dtype of operands, and whether it is still a weak one."""
    kinds = [dtype_of(x) for x in operands]
    strong = [d for d, weak in kinds if not weak]
    if not strong:
        return result_dtype(*(d for d, _ in kinds)), True
    out = result_dtype(*strong)
    for d, weak in kinds:
        if weak and RANK[d.kind] > RANK[out.kind]:  # a Python float beside an integer array, a complex number a real one
            out = complex_of(out) if d.kind == "c" else d
    return out, False


def as_tracer(x: Any, dtype: DType | None = None) -> Tracer:
    """x in the innermost trace, in dtype when given."""
    if isinstance(x, Tracer):
        if dtype is None or x.value.dtype is dtype:
            return x
        made: Tracer = apply(Cast(dtype=dtype), x)
        return made
    trace = current()
    own = python_type(x)
    return trace.wrap(trace.lift(x, dtype or own), weak=own is not None and dtype is None)


def promote(*operands: Any) -> list[Tracer]:
    """All operands as tracers of one dtype."""
    dtype, weak = common(*operands)
    out = [as_tracer(x, dtype) for x in operands]
    return [Tracer(x.trace, x.value, True) for x in out] if weak else out


def as_float(x: Any) -> Tracer:
    """x as it is when it is a float or complex array, else in f32."""
    dtype, _ = dtype_of(x)
    return as_tracer(x, None if dtype.kind in "fc" else dt.f32)
