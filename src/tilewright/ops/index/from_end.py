"""Indices that may count from the end, as those of NumPy and PyTorch do."""

from __future__ import annotations

import numpy as np

from ...core.dims import Dim, at_least
from ...core.dtypes import i32, i64
from ...ir.graph import Value
from .. import functions as F
from ..pointwise.binary import Add, FloorDivide, Maximum, Minimum, Mul, Remainder, Where
from ..pointwise.casts import Cast
from ..rows.cumulative import CumSum
from ..rows.reductions import ArgMax, ArgMin
from ..sources import DimValue, Iota
from ..structure import Constant
from ..views import Expand, Flip, Reshape, Slice, Split, Transpose
from .indexing import Concat, TopK

SMALL = 1 << 16  # constants up to this size are looked at


def from_end(ids: Value, size: Dim) -> Value:
    """ids with negative ones counted from the end; nothing is added when they provably are not. Those that are out of range either way
    stay, so that the error shows what the user gave."""
    if is_nonnegative(ids):
        return ids
    ids = F.cast(ids, i64) if ids.dtype.itemsize < i32.itemsize else ids  # which may not hold the size
    wrapped = F.add(ids, F.dim_value(ids.node.graph, size, ids.dtype))
    wraps = F.logical_and(F.less(ids, 0), F.greater_equal(wrapped, 0))
    return F.where(wraps, wrapped, ids)


def is_nonnegative(v: Value) -> bool:
    """Provably >= 0 everywhere: positions, counts, and what is made from them by monotone ops."""
    op, operands = v.op, v.node.operands
    if not v.dtype.is_int or v.dtype.kind == "u":
        return v.dtype.kind in "ub"
    if isinstance(op, Iota):
        return at_least(op.start, 0) and op.step >= 0
    if isinstance(op, Constant):
        array = op.data.array
        return array.size <= SMALL and bool(np.all(array >= 0))
    if isinstance(op, DimValue):
        return at_least(op.dim, 0)
    if isinstance(op, (ArgMax, ArgMin)) or (isinstance(op, TopK) and v.index == 1):
        return True
    if isinstance(op, Cast):
        return operands[0].dtype.is_bool or is_nonnegative(operands[0])
    if isinstance(
        op, (Reshape, Transpose, Slice, Expand, Flip, Split, Add, Mul, Minimum, Concat, FloorDivide, CumSum)
    ):
        return all(is_nonnegative(x) for x in operands)
    if isinstance(op, Maximum):
        return any(is_nonnegative(x) for x in operands)
    if isinstance(op, Where):
        return all(is_nonnegative(x) for x in operands[1:])
    return isinstance(op, Remainder) and is_nonnegative(operands[1])
