"""Views that torch describes by strides or diagonals: a gather by constant numbers where no plainer view says the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops as O
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.strided_add import fold
from .registry import Context, aten, axis_of


def numbers(x: Value, what: str) -> np.ndarray[Any, Any]:
    """The number of each element of x in row-major order, in x's shape."""
    shape = [d for d in x.shape if isinstance(d, int)]
    if len(shape) != len(x.shape):
        raise UnsupportedError(f"{what} needs static sizes, got {x.type}")
    return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)


def pick(c: Context, x: Value, places: np.ndarray[Any, Any]) -> Value:
    """x's elements by number."""
    flat = c.reshape(x, (x.type.numel,))
    return c.emit(O.Gather(axis=0), flat, c.constant(np.ascontiguousarray(places), "places"))


def replace(c: Context, x: Value, places: np.ndarray[Any, Any], source: Value) -> Value:
    """x with the elements numbered `places` (of the source's shape) taken from `source`; a later place wins over an earlier one."""
    own = numbers(x, "a scatter")
    wanted = own.reshape(-1).copy()
    wanted[places.reshape(-1)] = own.size + np.arange(places.size)
    if not own.size:
        return x
    both = c.emit(O.Concat(axis=0), c.reshape(x, (own.size,)), c.reshape(c.cast(source, x.dtype), (places.size,)))
    return pick(c, both, wanted.reshape(own.shape))


def strided(c: Context, x: Value, size: Any, stride: Any, offset: Any) -> O.Strided:
    """What as_strided names, as a view of x in one line; x must lie in memory in order."""
    fake = c.args[0]
    count = numbers(x, "as_strided").size
    if not fake.is_contiguous() or fake.storage_offset():
        raise UnsupportedError("as_strided of a view is not supported; call .contiguous() first")
    last = int(offset or 0) + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= count:
        raise UnsupportedError("as_strided reads behind its operand; make that memory part of it")
    return O.Strided(shape=tuple(size), strides=tuple(stride), offset=int(offset or 0))


@aten("as_strided.default", "as_strided_copy.default", "prims.as_strided.default")
def as_strided(c: Context, x: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    return c.emit(strided(c, x, size, stride, storage_offset), c.reshape(x, (x.type.numel,)))


@aten("as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(c: Context, x: Value, source: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    return replace(c, x, strided(c, x, size, stride, storage_offset).places(), source)


def _diagonal(x: Value, offset: int, dim1: int, dim2: int) -> np.ndarray[Any, Any]:
    rank = len(x.shape)
    return np.diagonal(numbers(x, "diagonal"), offset, axis_of(dim1, rank), axis_of(dim2, rank))


@aten("diagonal.default", "diagonal_copy.default", "linalg_diagonal.default")
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    *lead, rows, columns = x.shape
    axes = axis_of(dim1, len(x.shape)), axis_of(dim2, len(x.shape))
    if axes != (len(lead), len(lead) + 1) or not isinstance(rows, int) or not isinstance(columns, int):
        return pick(c, x, _diagonal(x, offset, dim1, dim2))
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    view = O.Strided(shape=(count,), strides=(columns + 1,), offset=start if count else 0)
    return c.emit(view, c.reshape(x, (*lead, rows * columns)))


@aten("diagonal_scatter.default")
def diagonal_scatter(c: Context, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return replace(c, x, _diagonal(x, offset, dim1, dim2), source)


@aten("unfold.default", "unfold_copy.default")
def unfold(c: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    if not x.shape:
        return c.expand(x, c.shape) if size else c.reshape(c.slice(c.reshape(x, (1,)), 0, 0, 0), c.shape)
    axis = axis_of(dimension, len(x.shape))
    rank, n = len(x.shape), x.shape[axis]
    if not size or not isinstance(n, int):
        raise UnsupportedError(f"unfold needs windows of some elements along a static axis, got windows of {size} along {n}")
    others = [a for a in range(rank) if a != axis]
    windows = c.emit(O.Strided(shape=((n - size) // step + 1, size), strides=(step, 1)), c.transpose(x, (*others, axis)))
    return c.transpose(windows, (*range(axis), rank - 1, *range(axis, rank - 1), rank))


@aten("col2im.default")
def col2im(c: Context, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    batched = x if len(x.shape) == 3 else c.reshape(x, (1, *x.shape))
    sides = tuple((p, p) for p in padding)
    found = fold(batched, tuple(size), tuple(kernel), stride=tuple(stride), dilation=tuple(dilation), padding=sides)
    return c.reshape(found, c.shape)
