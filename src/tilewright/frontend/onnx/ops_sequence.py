"""Sequences and optionals. They are structures of the graph under construction: no code is made for them."""
from __future__ import annotations

from typing import Any

from ...core import dtypes as dt
from ...core.dims import ceildiv
from ...core.errors import ExecutionError, FormatError, ShapeError
from ...ir.graph import Value
from ...ops import functions as F
from .importer import Nothing
from .registry import Context, axis_of, limited, static
from .tables import op, rows


def _place(c: Context, position: Value | None, count: int, default: int, limit: int) -> int:
    at = default if position is None else int(c.scalar_of(position, "the position"))
    if not -count <= at < limit:
        raise ExecutionError(f"onnx: position {at} is outside a sequence of {count}")
    return at + count if at < 0 else at


@op("SequenceInsert")
def sequence_insert(c: Context, xs: list[Any], x: Any, position: Value | None = None) -> list[Any]:
    if not isinstance(xs, list) or not isinstance(x, Value):
        raise FormatError("SequenceInsert: takes a sequence and a tensor")
    at = _place(c, position, len(xs), len(xs), len(xs) + 1)
    return [*xs[:at], x, *xs[at:]]


@op("SequenceErase")
def sequence_erase(c: Context, xs: list[Any], position: Value | None = None) -> list[Any]:
    at = _place(c, position, len(xs), -1, len(xs))
    return [*xs[:at], *xs[at + 1 :]]


@op("SplitToSequence")
def split_to_sequence(c: Context, x: Value, lengths: Value | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Value]:
    at = axis_of(axis, len(x.shape))
    (n,) = static((x.shape[at],), "the size along which SplitToSequence cuts")
    limited(n, 1 << 16, "the number of parts of a sequence")
    if lengths is None:
        parts = [F.slice_(x, at, i, 1) for i in range(n)]
        return parts if keepdims else [F.reshape(p, (*x.shape[:at], *x.shape[at + 1 :])) for p in parts]
    given = c.ints(lengths, "the lengths")
    if not lengths.shape:
        each = given[0]
        given = [min(each, n - i * each) for i in range(ceildiv(n, each))]
    return list(F.split(x, at, given)) if len(given) > 1 else [x]


@op("ConcatFromSequence")
def concat_from_sequence(c: Context, xs: list[Value], *, axis: int, new_axis: int = 0) -> Value:
    if not xs:
        raise ShapeError("an empty sequence cannot be joined")
    at = axis_of(axis, len(xs[0].shape) + (1 if new_axis else 0))
    if new_axis:
        xs = [F.reshape(v, (*v.shape[:at], 1, *v.shape[at:])) for v in xs]
    return xs[0] if len(xs) == 1 else F.concat(xs, at)


@op("OptionalGetElement")
def optional_get_element(c: Context, x: Any) -> Any:
    if isinstance(x, Nothing):
        raise ExecutionError("onnx: an optional without an element was asked for it")
    return x


rows({
    "SequenceConstruct": lambda c, *xs: list(xs),
    "SequenceEmpty": lambda c, *, dtype=1: [],
    "SequenceAt": lambda c, xs, position: xs[_place(c, position, len(xs), 0, len(xs))],
    "SequenceLength": lambda c, xs: c.scalar(len(xs), dt.i64),
    "Optional": lambda c, x=None, **_: Nothing() if x is None else x,
    "OptionalHasElement": lambda c, x=None: c.scalar(x is not None and not isinstance(x, Nothing), dt.bool_),
})
