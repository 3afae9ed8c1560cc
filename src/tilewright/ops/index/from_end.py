"""Indices that may count from the end, as those of NumPy and PyTorch do, and what is known of the values of integers."""

from __future__ import annotations

import numpy as np

from ...core.dims import Dim, at_least, bounds
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
from .indexing import Concat, Gather, TopK
from .scatter import Scatter
from .sorting import ArgSort, Sort

SMALL = 1 << 16  # constants up to this size are looked at
MOVED = (Reshape, Transpose, Slice, Expand, Flip, Split, Gather)  # whose elements are those of the first operand


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
    if isinstance(op, (ArgMax, ArgMin, ArgSort)) or (isinstance(op, (TopK, Sort)) and v.index == 1):
        return True
    if isinstance(op, Cast):
        return operands[0].dtype.is_bool or is_nonnegative(operands[0])
    if isinstance(op, (*MOVED, Sort, TopK)):
        return is_nonnegative(operands[0])
    if isinstance(op, Scatter):
        return op.mode != "mul" and is_nonnegative(operands[0]) and is_nonnegative(operands[2])
    if isinstance(op, (Add, Mul, Minimum, Concat, FloorDivide, CumSum)):
        return all(is_nonnegative(x) for x in operands)
    if isinstance(op, Maximum):
        return any(is_nonnegative(x) for x in operands)
    if isinstance(op, Where):
        return all(is_nonnegative(x) for x in operands[1:])
    return isinstance(op, Remainder) and is_nonnegative(operands[1])


def below(v: Value) -> int | None:
    """A number that is provably above every element, if one is known; of integers that are not negative."""
    return _above(v) if v.dtype.is_int and is_nonnegative(v) else None


def _above(v: Value) -> int | None:
    op, operands = v.op, v.node.operands
    if isinstance(op, (ArgMax, ArgMin)):
        return bounds(operands[0].type.numel)[1]
    if isinstance(op, ArgSort) or (isinstance(op, (TopK, Sort)) and v.index == 1):
        return bounds(operands[0].shape[op.axis])[1]
    if isinstance(op, Iota):
        last = op.start + (op.shape[op.axis] - 1) * op.step
        return bounds(last)[1] + 1
    if isinstance(op, Constant):
        array = op.data.array
        return int(array.max()) + 1 if 0 < array.size <= SMALL else None
    if isinstance(op, (*MOVED, Sort, TopK)):
        return _above(operands[0])
    if isinstance(op, Cast):
        found = 2 if operands[0].dtype.is_bool else _above(operands[0]) if operands[0].dtype.is_int else None
        return found if found is not None and found - 1 <= np.iinfo(v.dtype.np).max else None
    if isinstance(op, (Where, Concat, Scatter)):
        some = operands[1:] if isinstance(op, Where) else operands[::2] if isinstance(op, Scatter) else operands
        each = [_above(x) for x in some]
        return None if None in each else max(x for x in each if x is not None)
    if isinstance(op, Minimum):
        return min((x for x in map(_above, operands) if x is not None), default=None)
    return _above(operands[isinstance(op, Remainder)]) if isinstance(op, (FloorDivide, Remainder)) else None
