"""Tensors made from nothing: aranges stay index expressions, fills are broadcast scalars.

Histograms and bags of embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, Expr, product
from ....core.dtypes import DType
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.index import counting as N
from .logic import truth
from .registry import Context, aten, placed, rows


@aten(
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "_to_copy.default",
    "type_as.default",
    "to.prim_Device",
    "to.prim_dtype",
    "prims.convert_element_type.default",
    "_cast_Float.default",
    "float.default",
)
def to(c: Context, x: Any, *_: Any, **__: Any) -> Value:
    return _cast(c, x, c.dtype) if isinstance(x, Value) else c.scalar(x, c.dtype)


def _cast(c: Context, x: Value, dtype: DType) -> Value:
    if x.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4:
        x = c.cast(x, dt.i32)  # numbers beyond a small integer keep their low bits, as in PyTorch
    return truth(c, x) if dtype.is_bool else c.cast(x, dtype)


@aten(
    "alias.default",
    "detach.default",
    "detach_.default",
    "clone.default",
    "contiguous.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "lift.default",
    "resolve_conj.default",
    "resolve_neg.default",
)
def same(c: Context, x: Value, **_: Any) -> Value:
    return x


@aten("arange.start_step")
def arange_step(c: Context, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    (n,) = c.shape
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
        whole = c.dtype if c.dtype.is_int else dt.i64
        if isinstance(step, int):
            return c.cast(c.emit(O.Iota(shape=(n,), axis=0, dtype=whole, start=start, step=step)), c.dtype)
        counts = c.emit(O.Mul(), c.emit(O.Iota(shape=(n,), axis=0, dtype=whole)), c.scalar(step, whole))
        return c.cast(c.emit(O.Add(), counts, c.scalar(start, whole)), c.dtype)
    if isinstance(n, int) and isinstance(start, (int, float)) and isinstance(step, (int, float)):
        if c.dtype.is_int:
            return c.constant((np.arange(n) * int(step) + int(start)).astype(c.dtype.np), "arange")
        return c.constant((np.arange(n) * float(step) + float(start)).astype(c.dtype.np), "arange")
    raise UnsupportedError(f"arange from {start} in steps of {step} needs static floats or integer steps")


@aten("linspace.default")
def linspace(c: Context, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    if not all(isinstance(v, (int, float, complex)) for v in (start, end, steps)):
        raise UnsupportedError("linspace needs static bounds and steps")
    if c.dtype.kind in "fc":
        return c.constant(np.linspace(start, end, steps).astype(c.dtype.np), "linspace")
    # Whole bounds, steps from the nearer one, fractions dropped: as torch does it.
    first, last, at = int(start), int(end), np.arange(int(steps))
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    values = np.where(at < steps // 2, first + step * at, last - step * (steps - at - 1)) if steps != 1 else np.full(1, float(first))
    return c.constant(values.astype(c.dtype.np), "linspace")


def filled(c: Context, value: Any, shape: tuple[Dim, ...]) -> Value:
    return c.expand(c.value(value, c.dtype), shape)


@aten(
    "zeros.default",
    "_efficientzerotensor.default",
    "zeros_like.default",
    "new_zeros.default",
    "_new_zeros_with_same_feature_meta.default",
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def zeros(c: Context, *_: Any, **__: Any) -> Value:
    return filled(c, 0, c.shape)


@aten("eye.default", "eye.m")
def eye(c: Context, *_: Any, **__: Any) -> Value:
    row, column = (c.emit(O.Iota(shape=c.shape, axis=i, dtype=dt.i64)) for i in (0, 1))
    return c.cast(c.emit(O.Equal(), row, column), c.dtype)


@aten("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace_tensor(c: Context, start: Any, end: Any, steps: Any, **_: Any) -> Value:
    """Bounds that are data; integers as above, in f64."""
    kind = c.dtype if c.dtype.is_float else dt.f64
    if not isinstance(steps, int):
        raise UnsupportedError("linspace needs a static number of steps")
    first, last = (c.value(c.value(v, c.dtype), kind) for v in (start, end))
    if steps < 2:
        return c.expand(c.cast(first, c.dtype), (steps,))
    step = c.emit(O.Div(), c.emit(O.Sub(), last, first), c.scalar(float(steps - 1), kind))
    at = np.arange(steps)
    early, late = (c.constant(v.astype(kind.np), "steps") for v in (at, steps - 1 - at))
    up, down = c.emit(O.Add(), first, c.emit(O.Mul(), step, early)), c.emit(O.Sub(), last, c.emit(O.Mul(), step, late))
    return c.cast(c.emit(O.Where(), c.constant(at < steps // 2, "half"), up, down), c.dtype)


rows({
    "arange.default": lambda c, end, **_: arange_step(c, 0, end, 1),
    "arange.start": lambda c, start, end, **_: arange_step(c, start, end, 1),
    "full.default full_like.default": lambda c, _like, value, **_: filled(c, value, c.shape),
    "new_full.default": lambda c, x, size, value, **_: filled(c, value, c.shape),
    "ones.default ones_like.default new_ones.default": lambda c, *_, **__: filled(c, 1, c.shape),
    "scalar_tensor.default": lambda c, value, **_: c.value(value, c.dtype),
    "zero.default": lambda c, x: filled(c, 0, x.shape),
    "copy.default fill.Tensor fill.Scalar": lambda c, x, source, *_: c.expand(c.value(source, x.dtype), x.shape),
})


def _edges(c: Context, x: Value, bins: Sequence[int], range_: Sequence[float] | None) -> list[Value]:
    """Even edges of each column of x[N, D], of the column's own range unless one is given."""
    rows = x.shape[0]
    found = []
    for d, count in enumerate(bins):
        if range_ is None:
            low, high = N.own_range(F.reshape(F.slice_(x, 1, d, 1), (rows,)))
        else:
            a, b = float(range_[2 * d]), float(range_[2 * d + 1])
            low, high = (c.scalar(v, x.dtype) for v in ((a - 0.5, b + 0.5) if a == b else (a, b)))
        found.append(N.even_edges(low, high, count))
    return found


def _rows(x: Value) -> Value:
    return F.reshape(x, (product(x.shape[:-1]), x.shape[-1]))


@aten("histogram.bin_ct")
@placed
def histogram(c: Context, x: Value, bins: int = 100, *, range: Any = None, weight: Value | None = None,  # noqa: A002
              density: bool = False) -> Any:
    flat = F.reshape(x, (product(x.shape), 1))
    (edges,) = _edges(c, flat, [bins], range)
    return N.histogram(flat, [edges], weight, density=density), edges


@aten("_histogramdd_from_bin_cts.default")
@placed
def histogramdd(c: Context, x: Value, bins: Sequence[int], *, range: Any = None, weight: Value | None = None,  # noqa: A002
                density: bool = False) -> Any:
    flat = _rows(x)
    return N.histogram(flat, _edges(c, flat, bins, range), weight, density=density)


@aten("embedding_bag.default", "embedding_bag.padding_idx")
@placed
def embedding_bag(c: Context, table: Value, ids: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
                  sparse: bool = False, weights: Value | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Any:
    from ..convert import Missing

    padding, by_count = None if padding_idx is None else padding_idx % table.shape[0], scale_grad_by_freq and c.differentiable
    out = N.embedding_bag(table, ids, offsets, weights, mode=("sum", "mean", "max")[mode], padding=padding, last=include_last_offset,
                          by_count=by_count)
    missing = Missing("bag numbers and sizes of embedding_bag")
    return out, missing, missing, missing


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def inner_embedding_bag(c: Context, table: Value, ids: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
                        sparse: bool = False, weights: Value | None = None, include_last_offset: bool = False,
                        padding_idx: int = -1) -> Any:
    """As above; here no padding is -1."""
    padding = None if padding_idx < 0 else padding_idx
    return embedding_bag(c, table, ids, offsets, scale_grad_by_freq, mode, sparse, weights, include_last_offset, padding)


rows({
    "histogram.bins_tensor": lambda c, x, bins, *, weight=None, density=False:
        (N.histogram(F.reshape(x, (product(x.shape), 1)), [bins], weight, density=density), bins),
    "_histogramdd_bin_edges.default": lambda c, x, bins, *, range=None, **_: tuple(_edges(c, _rows(x), bins, range)),  # noqa: A006
    "_histogramdd_from_bin_tensors.default":
        lambda c, x, bins, *, weight=None, density=False: N.histogram(_rows(x), list(bins), weight, density=density),
}, place=True)
