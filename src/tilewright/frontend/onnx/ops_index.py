"""Gathering, scattering, sorting and counting by index."""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from .registry import Context, NeedsHost, axis_of, nonnegative, static
from .tables import op


@op("Gather")
def gather(c: Context, x: Value, ids: Value, *, axis: int = 0) -> Value:
    at = axis_of(axis, len(x.shape))
    return F.gather(x, nonnegative(c, ids, x.shape[at]), at)


@op("GatherElements")
def gather_elements(c: Context, x: Value, ids: Value, *, axis: int = 0) -> Value:
    at = axis_of(axis, len(x.shape))
    return F.emit(O.GatherAlongAxis(axis=at), x, nonnegative(c, ids, x.shape[at]))


@op("GatherND")
def gather_nd(c: Context, x: Value, ids: Value, *, batch_dims: int = 0) -> Value:
    b, k = batch_dims, ids.shape[-1]
    if not isinstance(k, int):
        raise UnsupportedError("the last size of GatherND's indices must be known")
    if not b:  # no views between the rows and their readers, which may compute them in their own memory
        flat, whole = _flat_index(c, ids, x.shape[:k])
        return F.gather(F.reshape(x, (whole, *x.shape[k:])) if k != 1 else x, flat, 0)
    lead = product(x.shape[:b])
    rows = F.reshape(x, (lead, *x.shape[b:]))
    places = F.reshape(ids, (lead, *ids.shape[b:]))
    first = F.iota(c.graph, (lead, *(1,) * (len(places.shape) - 2)), 0, dt.i64)
    flat, whole = _flat_index(c, places, rows.shape[1 : 1 + k], first)
    rows = F.reshape(rows, (lead * whole, *x.shape[b + k :]))
    out = F.gather(rows, flat, 0)
    return F.reshape(out, (*ids.shape[:-1], *x.shape[b + k :]))


def _flat_index(c: Context, ids: Value, dims: Any, first: Value | None = None) -> tuple[Value, Dim]:
    """Tuples of the last axis as places in row-major order, behind the index `first`; -1 where one of several is out of its range."""
    last, total, ok = len(ids.shape) - 1, first, None
    ids = F.cast(ids, dt.i64)
    for i, d in enumerate(dims):
        part = nonnegative(c, F.reshape(F.slice_(ids, last, i, 1), ids.shape[:-1]), d)
        ok = _inside(c, part, d) if ok is None else F.logical_and(ok, _inside(c, part, d))
        total = part if total is None else F.add(F.mul(total, c.scalar(d, dt.i64)), part)
    if total is None or ok is None:
        zeros = c.full(ids.shape[:-1], 0, dt.i64)
        return zeros if total is None else F.add(zeros, total), product(dims)
    return total if total is part else F.where(ok, total, -1), product(dims)


def _inside(c: Context, ids: Value, size: Dim) -> Value:
    return F.logical_and(F.greater_equal(ids, 0), F.less(ids, c.scalar(size, dt.i64)))


MODES = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@op("ScatterElements", "Scatter")
def scatter_elements(c: Context, x: Value, ids: Value, updates: Value, *, axis: int = 0, reduction: str = "none") -> Value:
    at = axis_of(axis, len(x.shape))
    ids = nonnegative(c, ids, x.shape[at])
    mode = MODES[reduction]
    if mode in ("set", "add"):
        if x.dtype.is_bool and mode == "add":
            raise UnsupportedError("adding bools")
        return F.emit(O.ScatterAlong(axis=at, mode=mode), x, ids, updates)
    # Products and extremes go through rows of single elements.
    ids = F.cast(ids, dt.i64)
    flat = F.where(_inside(c, ids, x.shape[at]), _along_as_flat(c, ids, at, x.shape), -1)
    n = product(x.shape)
    out = O.Scatter(axis=0, mode=mode)(F.reshape(x, (n,)), F.reshape(flat, (flat.type.numel,)),
                                                  F.reshape(updates, (updates.type.numel,)))
    return F.reshape(out, x.shape)


def _along_as_flat(c: Context, ids: Value, axis: int, shape: Any) -> Value:
    """Places in row-major order of elements whose index along one axis is given."""
    total: Value | None = None
    for a, d in enumerate(shape):
        part = ids if a == axis else F.iota(c.graph, tuple(n if k == a else 1 for k, n in enumerate(ids.shape)), a, dt.i64)
        total = part if total is None else F.add(F.mul(total, c.scalar(d, dt.i64)), part)
    assert total is not None
    return F.expand(total, ids.shape)


@op("ScatterND")
def scatter_nd(c: Context, x: Value, ids: Value, updates: Value, *, reduction: str = "none") -> Value:
    k = ids.shape[-1]
    if not isinstance(k, int):
        raise UnsupportedError("the last size of ScatterND's indices must be known")
    flat, whole = _flat_index(c, ids, x.shape[:k])
    rows = F.reshape(x, (whole, *x.shape[k:]))
    count = product(flat.shape)
    flat = F.reshape(flat, (count,))
    updates = F.reshape(updates, (count, *x.shape[k:]))
    mode = MODES[reduction]
    if mode == "add":
        out = F.scatter_add(rows, flat, updates)
    else:
        out = O.Scatter(axis=0, mode=mode)(rows, flat, updates)
    return F.reshape(out, x.shape)


@op("TensorScatter")
def tensor_scatter(c: Context, cache: Value, update: Value, starts: Value | None = None, *, axis: int = -2, mode: str = "linear") -> Value:
    """Rows of `update` written into a cache, each case of the batch from its own place on."""
    at, n = axis_of(axis, len(cache.shape)), len(cache.shape)
    size, length, batch = cache.shape[at], update.shape[at], cache.shape[0]
    steps = F.iota(c.graph, tuple(length if a == at else 1 for a in range(n)), at, dt.i64)
    first = c.scalar(0, dt.i64) if starts is None else F.reshape(F.cast(starts, dt.i64), (batch, *(1,) * (n - 1)))
    places = F.add(first, steps)
    if mode == "circular":
        places = F.one("remainder", places, c.scalar(size, dt.i64))
    return F.emit(O.ScatterAlong(axis=at, mode="set"), cache, F.expand(places, update.shape), update)


@op("OneHot")
def one_hot(c: Context, ids: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    n = c.dims(F.cast(depth, dt.i64), "the depth")[0] if c.known(depth) is not None else int(c.scalar_of(depth, "the depth"))
    at = axis_of(axis, len(ids.shape) + 1)
    whole = nonnegative(c, F.cast(ids, dt.i64), n)
    spread = F.reshape(whole, (*ids.shape[:at], 1, *ids.shape[at:]))
    places = F.iota(c.graph, tuple(n if a == at else 1 for a in range(len(ids.shape) + 1)), at, dt.i64)
    off, on = (F.reshape(F.slice_(values, 0, i, 1), ()) for i in (0, 1))
    return F.where(F.equal(spread, places), on, off)


@op("TopK")
def top_k(c: Context, x: Value, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:  # noqa: A002
    return O.TopK(k=int(c.scalar_of(k, "k")), axis=axis_of(axis, len(x.shape)), largest=bool(largest))(x)


@op("MaxUnpool")
def max_unpool(c: Context, x: Value, ids: Value, shape: Value | None = None, *, kernel_shape: Any, strides: Any = None,
               pads: Any = None) -> Value:
    n = len(kernel_shape)
    stride, pad = strides or [1] * n, pads or [0] * (2 * n)
    plain = [(d - 1) * s + k - pad[i] - pad[n + i] for i, (d, s, k) in enumerate(zip(x.shape[2:], stride, kernel_shape, strict=True))]
    inferred = (*x.shape[:2], *plain)
    out = inferred if shape is None else tuple(c.dims(shape, "the shape"))
    sizes = static(inferred, "sizes of MaxUnpool")
    full = static(out, "sizes of MaxUnpool")
    # Indices count in the plain shape; a given shape is larger, and its elements are found by their coordinates.
    flat = F.cast(ids, dt.i64)
    if full != sizes:
        rest, total = flat, None
        for d, e in zip(reversed(sizes), _strides(full), strict=True):
            part = F.mul(F.one("remainder", rest, d), e)
            total = part if total is None else F.add(total, part)
            rest = F.one("floor_divide", rest, d)
        assert total is not None
        flat = total
    count = product(full)
    zeros = c.full((count,), 0, x.dtype)
    return F.reshape(O.ScatterAlong(axis=0, mode="set")(zeros, F.reshape(flat, (x.type.numel,)), F.reshape(x, (x.type.numel,))), full)


def _strides(shape: Any) -> list[int]:
    """Row-major strides, of the last axis first."""
    out = [1]
    for d in reversed(shape[1:]):
        out.append(out[-1] * d)
    return out


@op("Compress")
def compress(c: Context, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    """With a known condition a gather; otherwise the size depends on data and the host counts."""
    found = c.known(condition)
    if found is None or found.dtype == object:
        raise NeedsHost("the size of its result depends on data")
    at = np.flatnonzero(found)
    if axis is None:
        return F.gather(F.reshape(x, (x.type.numel,)), c.constant(at), 0)
    return F.gather(x, c.constant(at), axis_of(axis, len(x.shape)))


@op("NonZero")
def non_zero(c: Context, x: Value) -> Value:
    found = c.known(x)
    if found is None or found.dtype == object:
        raise NeedsHost("the size of its result depends on data")
    return c.constant(np.array(np.nonzero(found), np.int64))
