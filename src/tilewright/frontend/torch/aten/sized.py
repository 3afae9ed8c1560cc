"""Ops whose results have sizes that depend on data, in memory of a known capacity: each gives its results and how many rows they have.

Rows behind the count repeat rows that exist (indices there are 0), so that whatever reads them stays inside its operands. A count that is
larger than the capacity is the caller's to report; the results then hold the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, maximum, product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .index import index as index_by
from .registry import Context

Sized = tuple[Any, Value]  # results, count
SIZED: dict[str, tuple[Callable[..., Sized], Callable[..., Dim | None]]] = {}  # op -> what makes it, and its largest size


def sized(*names: str, most: Callable[..., Dim | None]) -> Callable[[Callable[..., Sized]], Callable[..., Sized]]:
    def enter(fn: Callable[..., Sized]) -> Callable[..., Sized]:
        SIZED.update(dict.fromkeys(names, (fn, most)))
        return fn

    return enter


def chosen(c: Context, hit: Value, size: Dim) -> tuple[Value, Value]:
    """Places of the first `size` True elements of a vector, in order, then zeros; and how many are True."""
    n = hit.shape[0]
    ones = c.cast(hit, dt.i64)
    rank = c.emit(O.Sub(), c.emit(O.CumSum(axis=0), ones), c.scalar(1, dt.i64))
    last = c.scalar(size, dt.i64)  # one place more takes what is not wanted
    to = c.emit(O.Minimum(), c.emit(O.Where(), hit, rank, last), last)
    iota = c.emit(O.Iota(shape=(n,), axis=0, dtype=dt.i64))
    found = c.emit(O.ScatterAdd(axis=0), c.expand(c.scalar(0, dt.i64), (size + 1,)), to, iota)
    return c.slice(found, 0, 0, size), c.emit(O.Sum(axes=(0,)), ones)


def columns(c: Context, flat: Value, shape: tuple[Dim, ...]) -> list[Value]:
    """The index on each axis from places in a tensor of this shape."""
    found = []
    for a in range(len(shape)):
        step, width = (maximum(d, 1) for d in (product(shape[a + 1 :]), shape[a]))  # nothing is found where a symbolic size is 0
        found.append(c.emit(O.Remainder(), c.emit(O.FloorDivide(), flat, c.scalar(step, dt.i64)), c.scalar(width, dt.i64)))
    return found


def truth(c: Context, x: Value) -> Value:
    """A vector: which elements are not 0."""
    hit = x if x.dtype.is_bool else c.emit(O.NotEqual(), x, c.scalar(0, x.dtype))
    return c.reshape(hit, (product(x.shape),))


def _mask(indices: Sequence[Value | None]) -> Value:
    found = [i for i in indices if i is not None]
    if len(found) != 1 or not (found[0].dtype.is_bool or found[0].dtype is dt.u8):
        raise UnsupportedError("a boolean mask among other indices is not supported")
    return found[0]


@sized("nonzero.default", most=lambda x: product(x.shape))
def nonzero(c: Context, size: Dim, x: Value) -> Sized:
    if not x.shape:
        raise UnsupportedError("nonzero of a rank-0 tensor is not supported")
    flat, count = chosen(c, truth(c, x), size)
    found = [c.reshape(v, (size, 1)) for v in columns(c, flat, x.shape)]
    return found[0] if len(found) == 1 else c.emit(O.Concat(axis=1), *found), count


@sized("index.Tensor", most=lambda x, indices: product(_mask(indices).shape))
def index(c: Context, size: Dim, x: Value, indices: Sequence[Value | None]) -> Sized:
    mask = _mask(indices)
    flat, count = chosen(c, truth(c, mask), size)
    before = list(indices).index(mask)
    return index_by(c, x, [*(None for _ in range(before)), *columns(c, flat, mask.shape)]), count


@sized("masked_select.default", most=lambda x, mask: None if x.shape != mask.shape else product(x.shape))
def masked_select(c: Context, size: Dim, x: Value, mask: Value) -> Sized:
    flat, count = chosen(c, truth(c, mask), size)
    return c.emit(O.Gather(axis=0), c.reshape(x, (product(x.shape),)), flat), count


def _groups(c: Context, size: Dim, flat: Value, order: Value | None, shape: Sequence[Dim], inverse: bool, counts: bool) -> Sized:
    """One element of each run of equal ones; which run each element is in, and how long runs are."""
    n = flat.shape[0]
    if n == 0 or not isinstance(n, int):
        raise UnsupportedError("unique needs a known number of elements, of at least 1")
    differs = c.emit(O.NotEqual(), c.slice(flat, 0, 1, n - 1), c.slice(flat, 0, 0, n - 1))
    first = c.emit(O.Pad(lo=(1,), hi=(0,), value=1), c.cast(differs, dt.i64))
    at, count = chosen(c, c.cast(first, dt.bool_), size)
    group = c.emit(O.Sub(), c.emit(O.CumSum(axis=0), first), c.scalar(1, dt.i64))
    zeros, ones = (c.expand(c.scalar(k, dt.i64), (n,)) for k in (0, 1))
    where = group if order is None else c.emit(O.ScatterAdd(axis=0), zeros, order, group)
    room = c.expand(c.scalar(0, dt.i64), (size + 1,))
    many = c.emit(O.ScatterAdd(axis=0), room, c.emit(O.Minimum(), group, c.scalar(size, dt.i64)), ones) if counts else None
    return (c.emit(O.Gather(axis=0), flat, at), c.reshape(where, shape) if inverse else None,
            None if many is None else c.slice(many, 0, 0, size)), count


@sized("_unique2.default", most=lambda x, *_: product(x.shape))
def unique(c: Context, size: Dim, x: Value, sorted_: bool = True, inverse: bool = False, counts: bool = False) -> Sized:
    flat = c.reshape(x, (product(x.shape),))
    order = c.emit(O.ArgSort(axis=0), c.cast(flat, dt.i32) if x.dtype.is_bool else flat)
    return _groups(c, size, c.emit(O.Gather(axis=0), flat, order), order, x.shape, inverse, counts)


@sized("unique_consecutive.default", most=lambda x, *_: product(x.shape))
def unique_consecutive(c: Context, size: Dim, x: Value, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Sized:
    if dim is not None:
        raise UnsupportedError("unique_consecutive along an axis is not supported")
    return _groups(c, size, c.reshape(x, (product(x.shape),)), None, x.shape, inverse, counts)


@sized("repeat_interleave.Tensor", most=lambda repeats: None)
def repeat_interleave(c: Context, size: Dim, repeats: Value) -> Sized:
    n = repeats.shape[0]
    if n == 0:
        raise UnsupportedError("repeat_interleave of nothing is not supported")
    ends = c.emit(O.CumSum(axis=0), c.cast(repeats, dt.i64))
    room = c.expand(c.scalar(0, dt.i64), (size + 1,))
    marks = c.emit(O.ScatterAdd(axis=0), room, c.emit(O.Minimum(), ends, c.scalar(size, dt.i64)), c.expand(c.scalar(1, dt.i64), (n,)))
    rows = c.emit(O.CumSum(axis=0), c.slice(marks, 0, 0, size))  # how many rows end at or before each place
    rows = c.emit(O.Minimum(), rows, c.scalar(n - 1, dt.i64))
    return c.cast(rows, repeats.dtype), c.emit(O.Sum(axes=(0,)), c.cast(repeats, dt.i64))
