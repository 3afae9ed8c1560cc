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
from .distance import p_norm
from .registry import Context, aten
from .scatter import overwrite
from .sized import chosen, columns, truth


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


@aten("max_unpool2d.default")
def max_unpool2d(c: Context, x: Value, indices: Value, output_size: Sequence[Any]) -> Value:
    return _unpooled(c, x, indices, output_size, 2)


@aten("max_unpool3d.default")
def max_unpool3d(c: Context, x: Value, indices: Value, output_size: Sequence[Any], stride: Any, padding: Any) -> Value:
    return _unpooled(c, x, indices, output_size, 3)
