"""Views that torch describes by strides or diagonals: a gather by constant numbers where no plainer view says the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops as O
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .registry import Context, aten, axis_of, rows


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


def strided(c: Context, x: Value, size: Any, stride: Any, offset: Any) -> np.ndarray[Any, Any]:
    """The numbers of the elements that as_strided names; x must lie in memory in order."""
    fake = c.args[0]
    count = numbers(x, "as_strided").size
    if not fake.is_contiguous() or fake.storage_offset():
        raise UnsupportedError("as_strided of a view is not supported; call .contiguous() first")
    where = np.full(tuple(size), int(offset or 0), np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        where += (np.arange(n) * step).reshape([-1 if a == axis else 1 for a in range(len(size))])
    if where.size and where.max() >= count:
        raise UnsupportedError("as_strided reads behind its operand; make that memory part of it")
    return where


def _diagonal(x: Value, offset: int, dim1: int, dim2: int) -> np.ndarray[Any, Any]:
    rank = len(x.shape)
    return np.diagonal(numbers(x, "diagonal"), offset, axis_of(dim1, rank), axis_of(dim2, rank))


@aten("unfold.default", "unfold_copy.default")
def unfold(c: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    if not x.shape:
        return c.expand(x, c.shape) if size else c.reshape(c.slice(c.reshape(x, (1,)), 0, 0, 0), c.shape)
    axis = axis_of(dimension, len(x.shape))
    windows = np.lib.stride_tricks.sliding_window_view(numbers(x, "unfold"), size, axis) if size else None
    if windows is None:
        raise UnsupportedError("unfold with windows of no elements is not supported")
    return pick(c, x, np.take(windows, np.arange(0, windows.shape[axis], step), axis))


rows({
    "as_strided.default as_strided_copy.default prims.as_strided.default":
        lambda c, x, size, stride, storage_offset=None: pick(c, x, strided(c, x, size, stride, storage_offset)),
    "as_strided_scatter.default prims.as_strided_scatter.default":
        lambda c, x, source, size, stride, storage_offset=None: replace(c, x, strided(c, x, size, stride, storage_offset), source),
    "diagonal.default diagonal_copy.default linalg_diagonal.default":
        lambda c, x, offset=0, dim1=0, dim2=1: pick(c, x, _diagonal(x, offset, dim1, dim2)),
    "diagonal_scatter.default": lambda c, x, source, offset=0, dim1=0, dim2=1: replace(c, x, _diagonal(x, offset, dim1, dim2), source),
})
