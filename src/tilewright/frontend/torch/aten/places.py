"""Places of elements: those that are not 0, where max pooling had taken them from, pairs of rows and their distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.pad_edges import fold
from .linear import p_norm
from .registry import Context, aten, axis_of, rows
from .scatter import overwrite
from .shape import chosen, columns, truth


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


def memory_order(fake: Any) -> tuple[int, ...]:
    """The axes of a tensor in the order in which they lie in memory, which has no gaps."""
    order = sorted(range(fake.ndim), key=lambda a: (-fake.stride(a) if fake.shape[a] != 1 else 0, a))
    wide = [a for a in order if fake.shape[a] != 1]
    if fake.storage_offset() or any(fake.stride(a) != product(tuple(fake.shape[b] for b in wide[i + 1 :])) for i, a in enumerate(wide)):
        raise UnsupportedError("as_strided of a view is not supported; call .contiguous() first")
    return tuple(order)


def strided(x: Value, size: Any, stride: Any, offset: Any) -> O.Strided:
    """What as_strided names, as a view of x in one line."""
    count = numbers(x, "as_strided").size
    last = int(offset or 0) + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= count:
        raise UnsupportedError("as_strided reads behind its operand; make that memory part of it")
    return O.Strided(shape=tuple(size), strides=tuple(stride), offset=int(offset or 0))


def _diagonal(x: Value, offset: int, dim1: int, dim2: int) -> np.ndarray[Any, Any]:
    rank = len(x.shape)
    return np.diagonal(numbers(x, "diagonal"), offset, axis_of(dim1, rank), axis_of(dim2, rank))


@aten("diagonal.default", "linalg_diagonal.default")
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    *lead, rows, columns = x.shape
    axes = axis_of(dim1, len(x.shape)), axis_of(dim2, len(x.shape))
    if axes != (len(lead), len(lead) + 1) or not isinstance(rows, int) or not isinstance(columns, int):
        return pick(c, x, _diagonal(x, offset, dim1, dim2))
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    view = O.Strided(shape=(count,), strides=(columns + 1,), offset=start if count else 0)
    return c.emit(view, c.reshape(x, (*lead, rows * columns)))


def _on_diagonal(c: Context, x: Value | None, source: Value, offset: int, dim1: int, dim2: int) -> Any:
    """x, or zeros, with `source` written over a diagonal of the last two axes: every (n + 1)-th element."""
    *lead, rows, columns = c.shape
    axes = axis_of(dim1, len(c.shape)), axis_of(dim2, len(c.shape))
    if axes != (len(lead), len(lead) + 1) or not isinstance(rows, int) or not isinstance(columns, int):
        return NotImplemented if x is None else replace(c, x, _diagonal(x, offset, dim1, dim2), source)
    flat = (*lead, rows * columns)
    whole = c.expand(c.scalar(0, source.dtype), flat) if x is None else c.reshape(x, flat)
    start = 0 if source.shape[-1] == 0 else offset if offset >= 0 else -offset * columns
    return c.reshape(c.emit(O.UpdateSlice(axis=len(lead), start=start, step=columns + 1), whole, c.cast(source, whole.dtype)), c.shape)


@aten("unfold.default")
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


def _strided_view(c: Context, x: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    return c.emit(strided(x, size, stride, storage_offset), c.reshape(c.transpose(x, memory_order(c.args[0])), (x.type.numel,)))


def _strided_scatter(c: Context, x: Value, source: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    order = memory_order(c.args[0])
    out = replace(c, c.transpose(x, order), strided(x, size, stride, storage_offset).places(), source)
    return c.transpose(out, tuple(order.index(a) for a in range(len(order))))


@aten("resize.default")
def resize(c: Context, x: Value, size: Any, **_: Any) -> Value:
    """The first elements in memory in another shape; torch leaves elements behind them undefined."""
    count, wanted = numbers(x, "resize").size, product(tuple(size))
    flat = c.reshape(c.transpose(x, memory_order(c.args[0])), (count,))
    if not isinstance(wanted, int) or wanted > count:
        raise UnsupportedError("resize to more elements than there are is not supported; allocate a new tensor")
    return c.reshape(c.slice(flat, 0, 0, wanted), tuple(size))


rows({
    "as_strided.default prims.as_strided.default": _strided_view,
    "as_strided_scatter.default prims.as_strided_scatter.default": _strided_scatter,
    "diagonal_scatter.default": lambda c, x, source, offset=0, dim1=0, dim2=1: _on_diagonal(c, x, source, offset, dim1, dim2),
    "diag_embed.default": lambda c, x, offset=0, dim1=-2, dim2=-1: _on_diagonal(c, None, x, offset, dim1, dim2),
    "diagonal_backward.default": lambda c, g, sizes, offset, dim1, dim2: _on_diagonal(c, None, g, offset, dim1, dim2),
})


@aten("one_hot.default")
def one_hot(c: Context, ids: Value, classes: int = -1) -> Any:
    """Ids are looked up among the classes first, which is what finds those out of range."""
    if classes < 1:
        return NotImplemented
    row = c.emit(O.Iota(shape=(classes,), axis=0, dtype=dt.i64))
    known = c.emit(O.Gather(axis=0), row, ids)
    return c.cast(c.emit(O.Equal(), c.reshape(known, (*ids.shape, 1)), row), dt.i64)


@aten("nonzero_static.default")
def nonzero_static(c: Context, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """The places of the first `size` elements that are not 0, in order, a row each; rows beyond the last hold `fill_value`."""
    n, rank = product(x.shape), len(x.shape)
    if n == 0 or size == 0 or rank == 0:
        return c.expand(c.scalar(fill_value, dt.i64), (size, rank))
    flat, found = chosen(c, truth(c, x), size)
    parts = [c.reshape(v, (size, 1)) for v in columns(c, flat, x.shape)]
    rows = parts[0] if rank == 1 else c.emit(O.Concat(axis=1), *parts)
    number = c.emit(O.Iota(shape=(size, 1), axis=0, dtype=dt.i64))
    return c.emit(O.Where(), c.emit(O.Less(), number, found), rows, c.scalar(fill_value, dt.i64))


@aten("pdist.default", "_pdist_forward.default")
def pdist(c: Context, x: Value, p: float = 2.0) -> Value:
    """Distances of all pairs of rows, the first before the second."""
    n = x.shape[0]
    if not isinstance(n, int):
        raise UnsupportedError("pdist needs a number of rows that is known")
    first, second = np.triu_indices(n, 1)
    if len(first) == 0 or x.shape[1] == 0:
        return c.expand(c.scalar(0.0, x.dtype), (len(first),))
    rows = [c.emit(O.Gather(axis=0), x, c.constant(i.astype(np.int64), "rows")) for i in (first, second)]
    return p_norm(c, c.emit(O.Sub(), *rows), float(p), 1)


def _unpooled(c: Context, x: Value, indices: Value, size: Sequence[Any], spatial: int) -> Value:
    """Each element at the place that its index names in its own plane, zeros elsewhere."""
    lead, plane = x.shape[: len(x.shape) - spatial], product(x.shape[len(x.shape) - spatial :])
    planes, out = product(lead), product(tuple(size))
    first = c.emit(O.Mul(), c.emit(O.Iota(shape=(planes, 1), axis=0, dtype=dt.i64)), c.scalar(out, dt.i64))
    ids = c.emit(O.Add(), c.reshape(indices, (planes, plane)), first)
    empty = c.expand(c.scalar(0.0, x.dtype), (planes * out,))
    rows = c.reshape(ids, (planes * plane,))
    fixed = c.emit(O.StopGradient(), x)
    flat = overwrite(c, empty, rows, c.reshape(fixed, (planes * plane,)))
    # torch's derivative goes to every element, also to one whose place another took: a sum of zeros carries it.
    finite = c.emit(O.Less(), c.emit(O.Abs(), fixed), c.scalar(float("inf"), x.dtype))
    zeros = c.emit(O.Where(), finite, c.emit(O.Sub(), x, fixed), c.scalar(0.0, x.dtype))
    flat = c.emit(O.ScatterAdd(axis=0), flat, rows, c.reshape(zeros, (planes * plane,)))
    return c.reshape(flat, (*lead, *size))


rows({
    "max_unpool2d.default": lambda c, x, indices, output_size: _unpooled(c, x, indices, output_size, 2),
    "max_unpool3d.default": lambda c, x, indices, output_size, stride, padding: _unpooled(c, x, indices, output_size, 3),
})
