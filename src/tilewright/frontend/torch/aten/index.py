"""Gathers: embedding, index_select, gather, advanced indexing, triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.counting import gather_by_count
from ....ops.index.from_end import from_end
from .registry import Context, aten, axis_of, placed, rows


@aten("embedding.default")
@placed
def embedding(c: Context, weight: Value, ids: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, _: bool = False) -> Value:
    """The row at padding_idx is read as any other, but has no derivative."""
    if not c.differentiable:
        return c.emit(O.Gather(axis=0), weight, ids)
    rows = gather_by_count(weight, ids) if scale_grad_by_freq else c.emit(O.Gather(axis=0), weight, ids)
    if padding_idx < 0:
        return rows
    padding = c.reshape(c.emit(O.Equal(), ids, c.scalar(padding_idx, ids.dtype)), (*ids.shape, 1))
    return c.emit(O.Where(), padding, c.emit(O.StopGradient(), rows), rows)


@aten("index_select.default")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if not x.shape:
        return x
    return c.reshape(c.emit(O.Gather(axis=axis_of(dim, len(x.shape))), x, index), c.shape)


@aten("gather.default")
def gather(c: Context, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if not x.shape:
        return c.expand(x, c.shape)
    if index.type.numel == 0:  # torch lets it have any rank
        return c.expand(c.scalar(0, x.dtype), c.shape)
    index = index if index.shape else c.reshape(index, (1,))
    axis = axis_of(dim, len(x.shape))
    return c.reshape(c.emit(O.GatherAlongAxis(axis=axis), _narrowed(c, x, index, axis), index), c.shape)


def _narrowed(c: Context, x: Value, index: Value, axis: int) -> Value:
    """torch lets the index be smaller than x on the other axes: only that corner of x is read."""
    for a, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if a != axis and n != m:
            x = c.slice(x, a, 0, m)
    return x


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    axes = [a for a, i in enumerate(indices) if i is not None]
    found = [i for i in indices if i is not None]
    if any(i.dtype.is_bool or i.dtype is dt.u8 for i in found):
        raise UnsupportedError("indexing with a boolean mask gives a size that depends on the data; use torch.where")
    if not found:
        return x
    picks = [from_end(i, x.shape[a]) for a, i in zip(axes, found, strict=True)]
    if len(axes) == 1:
        return c.emit(O.Gather(axis=axes[0]), x, picks[0])
    if axes != list(range(axes[0], axes[0] + len(axes))):
        x = c.transpose(x, [*axes, *(a for a in range(len(x.shape)) if a not in axes)])
        axes = list(range(len(axes)))
    return c.emit(O.Index(axes=tuple(axes)), x, *picks)


@aten("_unsafe_masked_index.default")
def masked_index(c: Context, x: Value, mask: Value, indices: Sequence[Value | None], fill: Any) -> Value:
    """Elements at the indices where the mask is True; indices elsewhere may lie anywhere."""
    if product(x.shape) == 0:
        return c.expand(c.scalar(fill, c.dtype), c.shape)
    picks: list[Value | None] = []
    for axis, i in enumerate(indices):
        if i is not None:
            low, high = c.scalar(0, i.dtype), c.scalar(x.shape[axis] - 1, i.dtype)
            i = c.emit(O.Minimum(), c.emit(O.Maximum(), from_end(i, x.shape[axis]), low), high)
        picks.append(i)
    return c.emit(O.Where(), c.expand(mask, c.shape), index(c, x, picks), c.scalar(fill, c.dtype))


@aten("embedding_renorm.default")
def embedding_renorm(c: Context, weight: Value, ids: Value, max_norm: float, norm_type: float) -> Value:
    """Rows that ids name and whose norm is larger are scaled down to it."""
    rows = weight.shape[0]
    flat = c.reshape(ids, (product(ids.shape), 1))
    named = c.emit(O.Any(axes=(0,)), c.emit(O.Equal(), flat, c.emit(O.Iota(shape=(1, rows), axis=1, dtype=ids.dtype))))
    sizes = c.emit(O.Abs(), weight)
    if math.isinf(norm_type):
        norm = c.emit(O.Max(axes=(1,), keepdims=True), sizes)
    else:
        powers = c.emit(O.Sum(axes=(1,), keepdims=True), c.emit(O.Pow(), sizes, c.scalar(float(norm_type), weight.dtype)))
        norm = c.emit(O.Pow(), powers, c.scalar(1 / norm_type, weight.dtype))
    limit = c.scalar(float(max_norm), weight.dtype)
    over = c.emit(O.LogicalAnd(), c.reshape(named, (rows, 1)), c.emit(O.Greater(), norm, limit))
    scaled = c.emit(O.Mul(), weight, c.emit(O.Div(), limit, c.emit(O.Add(), norm, c.scalar(1e-7, weight.dtype))))
    return c.emit(O.Where(), over, scaled, weight)


@aten("take_along_dim.default")
def take_along_dim(c: Context, x: Value, indices: Value, dim: int | None = None) -> Any:
    """PyTorch's own decomposition would count every index from the end once, and hide those that are out of range."""
    if dim is None:
        return NotImplemented
    axis = axis_of(dim, len(x.shape))
    shape = c.shape
    wide = c.expand(x, (*shape[:axis], x.shape[axis], *shape[axis + 1 :]))
    return c.emit(O.GatherAlongAxis(axis=axis), wide, c.expand(from_end(indices, x.shape[axis]), shape))


def _triangle(c: Context, x: Value, diagonal: Any, compare: Any) -> Value:
    """Keep x where column `compare` row + diagonal."""
    shape = x.shape[-2:]
    rows = c.emit(O.Iota(shape=(shape[0], 1), axis=0, dtype=dt.i64, start=diagonal))
    columns = c.emit(O.Iota(shape=(1, shape[1]), axis=1, dtype=dt.i64))
    return c.emit(O.Where(), c.emit(compare, columns, rows), x, c.scalar(0, x.dtype))


rows({
    "tril.default": lambda c, x, diagonal=0: _triangle(c, x, diagonal, O.LessEqual()),
    "triu.default": lambda c, x, diagonal=0: _triangle(c, x, diagonal, O.GreaterEqual()),
})
