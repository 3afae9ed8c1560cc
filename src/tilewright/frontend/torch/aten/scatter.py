"""Writing at indices: scatter, index_put and their kin, as writes of rows at one list of indices.

Where several updates name one target the last one wins, as in torch's own loop on the CPU. An index out of range is an error when run.

Sums, products, extremes and means at indices: scatter_reduce, index_reduce, scatter with reduce=. Updates are taken in the order of the
index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, bounds, product
from ....core.dtypes import DType
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.from_end import from_end
from .logic import truth
from .registry import Context, aten, axis_of, rows


def positions(c: Context, shape: tuple[Dim, ...], axis: int) -> Value:
    """Each element's index along `axis`, to be broadcast."""
    return c.emit(O.Iota(shape=tuple(d if a == axis else 1 for a, d in enumerate(shape)), axis=axis, dtype=dt.i64))


def combined(c: Context, ids: Sequence[Value], sizes: tuple[Dim, ...], *, checked: bool) -> Value:
    """Indices along several axes as one into the merged axis; where one is out of its own range, -1, which is in nobody's."""
    total, ok = None, None
    for k, (i, size) in enumerate(zip(ids, sizes, strict=True)):
        if checked:
            inside = c.emit(O.LogicalAnd(), c.emit(O.GreaterEqual(), i, c.scalar(0, dt.i64)), c.emit(O.Less(), i, c.scalar(size, dt.i64)))
            ok = inside if ok is None else c.emit(O.LogicalAnd(), ok, inside)
        step = product(sizes[k + 1 :])
        part = i if step == 1 else c.emit(O.Mul(), i, c.scalar(step, dt.i64))
        total = part if total is None else c.emit(O.Add(), total, part)
    assert total is not None
    return total if ok is None else c.emit(O.Where(), ok, total, c.scalar(-1, dt.i64))


def _in_parts(c: Context, write: Any, x: Value, ids: Value, updates: Value) -> Value:
    """Rows of complex numbers as rows of their parts."""
    return c.emit(O.ViewAsComplex(), write(c, c.emit(O.ViewAsReal(), x), ids, c.emit(O.ViewAsReal(), updates)))


def overwrite(c: Context, x: Value, ids: Value, updates: Value) -> Value:
    """x[n, ...] with updates[m, ...] written to the rows `ids`[m]."""
    if x.dtype.kind == "c":
        return _in_parts(c, overwrite, x, ids, updates)
    return x if ids.shape[0] == 0 or x.type.numel == 0 else c.emit(O.Scatter(axis=0), x, ids, updates)


def accumulate(c: Context, x: Value, ids: Value, updates: Value) -> Value:
    """x[n, ...] with updates[m, ...] added to the rows `ids`[m]."""
    if x.dtype.is_bool:
        sums = accumulate(c, c.cast(x, dt.i32), ids, c.cast(updates, dt.i32))
        return c.emit(O.NotEqual(), sums, c.scalar(0, dt.i32))
    if x.dtype.kind == "c":
        return _in_parts(c, accumulate, x, ids, updates)
    return x if ids.shape[0] == 0 or x.type.numel == 0 else c.emit(O.ScatterAdd(axis=0), x, ids, updates)


# --- along one axis, element by element -----------------------------------------------------------------------------------------------


def _along(c: Context, x: Value, dim: int, index: Value) -> Value:
    """The row-major number in x of each place that `index` names along `dim`."""
    axis = axis_of(dim, len(x.shape))
    wide = c.cast(index, dt.i64)
    ids = [wide if a == axis else positions(c, index.shape, a) for a in range(len(x.shape))]
    found = combined(c, ids, x.shape, checked=False)
    size = c.scalar(x.shape[axis], dt.i64)
    inside = c.emit(O.LogicalAnd(), c.emit(O.GreaterEqual(), wide, c.scalar(0, dt.i64)), c.emit(O.Less(), wide, size))
    return c.reshape(c.emit(O.Where(), inside, found, c.scalar(-1, dt.i64)), (index.type.numel,))


def _corner(c: Context, source: Any, index: Value, dtype: Any) -> Value:
    """The part of `source` that `index` covers (a number: everywhere), flat."""
    if isinstance(source, Value) and source.shape:
        source = c.cast(source, dtype)
        for axis, n in enumerate(index.shape):
            source = c.slice(source, axis, 0, n)
    else:
        source = c.expand(c.value(source, dtype), index.shape)
    return c.reshape(source, (index.type.numel,))


def _scatter(c: Context, write: Any, x: Value, dim: int, index: Value, source: Any) -> Value:
    if not index.shape and not x.shape:
        index, flat = c.reshape(index, (1,)), c.reshape(x, (1,))
        if isinstance(source, Value):
            source = c.reshape(source, (1,))
        return c.reshape(_scatter(c, write, flat, 0, index, source), ())
    if not x.shape or not index.shape:  # torch lets one of them be a scalar
        x1 = x if x.shape else c.reshape(x, (1,))
        index = index if index.shape else c.reshape(index, (1,))
        if isinstance(source, Value) and not source.shape:
            source = c.reshape(source, (1,))
        return c.reshape(_scatter(c, write, x1, dim, index, source), x.shape)
    flat = c.reshape(x, (x.type.numel,))
    return c.reshape(write(c, flat, _along(c, x, dim, index), _corner(c, source, index, x.dtype)), x.shape)


def _elements(c: Context, mode: str, x: Value, dim: int, index: Value, source: Any) -> Value:
    """Like `_scatter`, by the op that takes every row's own indices."""
    if not x.shape or not index.shape or x.dtype.kind == "c":
        return _scatter(c, accumulate if mode == "add" else overwrite, x, dim, index, source)
    if index.type.numel == 0 or x.type.numel == 0:
        return x
    if x.dtype.is_bool and mode == "add":
        sums = _elements(c, mode, c.cast(x, dt.i32), dim, index, c.cast(source, dt.i32))
        return c.emit(O.NotEqual(), sums, c.scalar(0, dt.i32))
    op = O.ScatterAlong(axis=axis_of(dim, len(x.shape)), mode=mode)
    return c.emit(op, x, index, c.reshape(_corner(c, source, index, x.dtype), index.shape))


@aten("scatter_add.default")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Any) -> Value:
    return _elements(c, "add", x, dim, index, source)


# --- whole rows -----------------------------------------------------------------------------------------------------------------------


def _rows(c: Context, write: Any, x: Value, dim: int, index: Value, source: Value) -> Value:
    """`write` on x with axis `dim` in front."""
    if not x.shape:
        one = c.reshape(x, (1,))
        return c.reshape(_rows(c, write, one, 0, index, c.reshape(source, (1,))), ())
    axis = axis_of(dim, len(x.shape))
    ids = c.reshape(c.cast(index, dt.i64), (index.type.numel,))
    if not source.shape:
        source = c.reshape(source, (1,) * len(x.shape))
    front = [axis, *(a for a in range(len(x.shape)) if a != axis)]
    back = [front.index(a) for a in range(len(front))]
    out = write(c, c.transpose(x, front), ids, c.transpose(c.cast(source, x.dtype), front))
    return c.transpose(out, back)


@aten("index_add.default")
def index_add(c: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    source = c.cast(source, x.dtype)
    if alpha != 1:
        source = c.emit(O.LogicalAnd() if x.dtype.is_bool else O.Mul(), source, c.scalar(alpha, x.dtype))
    return _rows(c, accumulate, x, dim, index, source)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(c: Context, x: Value, dim: int, index: Value, value: Any) -> Value:
    if not x.shape:
        return c.reshape(index_fill(c, c.reshape(x, (1,)), 0, index, value), ())
    axis = axis_of(dim, len(x.shape))
    size = x.shape[axis]
    ids = from_end(c.reshape(c.cast(index, dt.i64), (index.type.numel,)), size)
    ones = c.expand(c.scalar(1, dt.i64), ids.shape)
    hits = c.emit(O.ScatterAdd(axis=0), c.expand(c.scalar(0, dt.i64), (size,)), ids, ones)
    mask = c.reshape(c.emit(O.Greater(), hits, c.scalar(0, dt.i64)), (size, *(1,) * (len(x.shape) - 1 - axis)))
    return c.emit(O.Where(), mask, c.value(value, x.dtype), x)


# --- several axes ---------------------------------------------------------------------------------------------------------------------


@aten("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate_: bool = False, *_: Any) -> Value:
    found = [i for i in indices if i is not None]
    if any(i.dtype.is_bool or i.dtype is dt.u8 for i in found):
        return _masked_put(c, x, indices, values, accumulate_)
    axes = [a for a, i in enumerate(indices) if i is not None]
    rest = [a for a in range(len(x.shape)) if a not in axes]
    ids = [from_end(c.cast(i, dt.i64), x.shape[a]) for a, i in zip(axes, found, strict=True)]
    where = combined(c, ids, tuple(x.shape[a] for a in axes), checked=len(axes) > 1)
    # The values broadcast to x[indices], where adjacent indices stand in the place of their axes and others in front.
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if adjacent else 0
    picked, others = list(where.shape), [x.shape[a] for a in rest]
    wide = c.expand(c.cast(values, x.dtype), (*others[:before], *picked, *others[before:]))
    k = len(picked)
    wide = c.transpose(wide, [*range(before, before + k), *range(before), *range(before + k, k + len(rest))])
    m, n = product(picked), product([x.shape[a] for a in axes])
    front = [*axes, *rest]
    rows = c.reshape(c.transpose(x, front), (n, *others))
    write = accumulate if accumulate_ else overwrite
    out = write(c, rows, c.reshape(where, (m,)), c.reshape(wide, (m, *others)))
    out = c.reshape(out, [x.shape[a] for a in front])
    return c.transpose(out, [front.index(a) for a in range(len(front))])


def _masked_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate_: bool) -> Value:
    """One boolean mask over the first axes."""
    if len(indices) != 1 or indices[0] is None:
        raise UnsupportedError("index_put with a mask among other indices is not supported; use torch.where")
    mask = c.cast(indices[0], dt.bool_)
    rest = x.shape[len(mask.shape) :]
    hit = c.reshape(mask, (*mask.shape, *(1,) * len(rest)))
    new = c.cast(values, x.dtype)
    if len(new.shape) > len(rest) and new.shape[0] != 1:  # a row for each True
        new = c.reshape(_by_order(c, mask, c.expand(new, (new.shape[0], *rest))), x.shape)
    elif len(new.shape) > len(rest):
        new = c.reshape(new, new.shape[1:])
    if accumulate_:
        new = c.emit(O.LogicalOr() if x.dtype.is_bool else O.Add(), x, new)
    return c.emit(O.Where(), hit, new, x)


def _by_order(c: Context, mask: Value, rows: Value) -> Value:
    """For the k-th True of the mask the k-th row; some row elsewhere. The mask's axes are merged."""
    if bounds(rows.shape[0])[0] < 1:  # where no element is True there may be no row to read
        rows = c.emit(O.Concat(axis=0), rows, c.expand(c.scalar(0, rows.dtype), (1, *rows.shape[1:])))
    flat = c.reshape(mask, (mask.type.numel,))
    place = c.emit(O.Sub(), c.emit(O.CumSum(axis=0), c.cast(flat, dt.i64)), c.scalar(1, dt.i64))
    return c.emit(O.Gather(axis=0), rows, c.emit(O.Where(), flat, place, c.scalar(0, dt.i64)))


@aten("masked_scatter.default")
def masked_scatter(c: Context, x: Value, mask: Value, source: Value) -> Value:
    """The k-th True of the mask takes the k-th element of the source."""
    shape = c.shape
    if product(shape) == 0:
        return c.expand(x, shape)
    mask = c.expand(mask, shape)
    new = _by_order(c, mask, c.reshape(c.cast(source, x.dtype), (source.type.numel,)))
    return c.emit(O.Where(), mask, c.reshape(new, shape), c.expand(x, shape))


@aten("put.default")
def put(c: Context, x: Value, index: Value, source: Value, accumulate_: bool = False) -> Value:
    n = x.type.numel
    ids = from_end(c.reshape(c.cast(index, dt.i64), (index.type.numel,)), n)
    write = accumulate if accumulate_ else overwrite
    return c.reshape(write(c, c.reshape(x, (n,)), ids, c.reshape(c.cast(source, x.dtype), (index.type.numel,))), x.shape)


rows({
    "index_copy.default": lambda c, x, dim, index, source: _rows(c, overwrite, x, dim, index, source),
    "scatter.src scatter.value": lambda c, x, dim, index, source: _elements(c, "set", x, dim, index, source),
    "take.default": lambda c, x, index: c.emit(O.Gather(axis=0), c.reshape(x, (x.type.numel,)), from_end(index, x.type.numel)),
})


COMBINE = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def scattered(c: Context, mode: str, x: Value, ids: Value, updates: Value) -> Value:
    """Rows of `updates` written at the rows `ids` by "set", "add", "mul", "max" or "min"."""
    if x.dtype.kind == "c" and mode in ("set", "add"):
        return _in_parts(c, accumulate if mode == "add" else overwrite, x, ids, updates)
    return c.emit(O.ScatterAdd() if mode == "add" else O.Scatter(mode=mode), x, ids, updates)


def identity(mode: str, dtype: DType) -> float | int:
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if dtype.is_float:
        return -float("inf") if mode == "max" else float("inf")
    info = np.iinfo(dtype.np)
    return int(info.min if mode == "max" else info.max)


def _filled(c: Context, value: float | int, like: Value) -> Value:
    return c.expand(c.scalar(value, like.dtype), like.shape)


def reduced(reduce: str, include_self: bool, c: Context, x: Value, ids: Value, updates: Value) -> Value:
    mode = COMBINE[reduce]
    if ids.shape[0] == 0 or x.type.numel == 0:
        return x
    if x.dtype.is_bool:
        return truth(c, reduced(reduce, include_self, c, c.cast(x, dt.i32), ids, c.cast(updates, dt.i32)))
    start = x if include_self else scattered(c, "set", x, ids, _filled(c, identity(mode, x.dtype), updates))
    out = scattered(c, mode, start, ids, updates)
    if reduce != "mean":
        return out
    count = scattered(c, "add", _filled(c, 1 if include_self else 0, x), ids, _filled(c, 1, updates))
    count = c.emit(O.Maximum(), count, c.scalar(1, x.dtype))
    return c.emit(O.Div() if x.dtype.is_float else O.FloorDivide(), out, count)


rows({
    "scatter.reduce scatter.value_reduce":
        lambda c, x, dim, index, source, *, reduce: _scatter(c, partial(reduced, reduce, True), x, dim, index, source),
    "scatter_reduce.two": lambda c, x, dim, index, source, reduce, *, include_self=True:
        _scatter(c, partial(reduced, reduce, include_self), x, dim, index, source),
    "index_reduce.default": lambda c, x, dim, index, source, reduce, *, include_self=True:
        _rows(c, partial(reduced, reduce, include_self), x, dim, index, source),
})
