"""Weighted sums of elements at given places of images, and what is made of them: samples between the elements of images and volumes."""
from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Shape, product
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, Pulled, S, Values, register
from ..families import Composite, N, bf16, f32, f64, i32, i64, require_kind
from .indexing import require_ids
from .transposed import known, summed_readers


@register
class WeightedGather(Composite):
    """Sums over taps: out[n, c, p] = sum over t of weight[n, t, p] * x[n, c, index[n, t, p]]. An index outside of 0..s-1 reads 0."""

    whole = True
    samples = [S(f32(2, 3, 7), i64(2, 4, 19), f32(2, 4, 19), low=(-2, -2, -2), high=(2, 8, 2)),
               S(f64(1, 20, 5), i32(1, 1, 3), f64(1, 1, 3), low=(-2, 0, -2), high=(2, 4, 2)),
               S(bf16(2, 9, 4), i64(2, 2, 33), f32(2, 2, 33), low=(-2, -1, -2), high=(2, 4, 2)),
               S(f32(2, 0, 4), i64(2, 2, 3), f32(2, 2, 3), low=0, high=3), S(f32(2, 3, 4), i64(2, 0, 3), f32(2, 0, 3), low=0, high=3),
               S(f32(2, 3, 4), i64(2, 2, 0), f32(2, 2, 0), low=0, high=3)]
    errors = [E(f32(2, 3), i64(2, 4, 5), f32(2, 4, 5), match="needs images .n, c, s., and indices and weights .n, t, p."),
              E(f32(2, 3, 0), i64(2, 4, 5), f32(2, 4, 5), match="needs images that are not empty"),
              E(f32(2, 3, 4), f32(2, 4, 5), f32(2, 4, 5), match="indices must be integers"),
              E(bf16(2, 3, 4), i64(2, 4, 5), bf16(2, 4, 5), match="needs weights in the dtype of the sums"),
              E(i32(2, 3, 4), i64(2, 4, 5), f32(2, 4, 5), match="needs float operands")]

    def infer(self, x: TensorType, index: TensorType, weight: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_ids(index)
        require(x.ndim == 3 and index.ndim == 3 and index.shape == weight.shape and x.shape[0] == index.shape[0],
                "needs images [n, c, s], and indices and weights [n, t, p]", x=x, index=index, weight=weight)
        require(x.shape[2] != 0, "needs images that are not empty", x=x)
        require(weight.dtype is compute_dtype(x.dtype), "needs weights in the dtype of the sums", x=x, weight=weight)
        return x.with_shape((*x.shape[:2], index.shape[2]))

    def ref(self, x: Any, index: Any, weight: Any) -> Any:
        inside = (index >= 0) & (index < x.shape[2])
        n = np.arange(x.shape[0])[:, None, None, None]
        c = np.arange(x.shape[1])[None, :, None, None]
        found = x.astype(np.float64)[n, c, np.where(inside, index, 0)[:, None]]
        return (np.where(inside[:, None], found, 0) * weight.astype(np.float64)[:, None]).sum(2).astype(x.dtype)

    def decompose(self, x: Value, index: Value, weight: Value) -> Value:
        (n, c, s), (_, taps, p) = x.shape, index.shape
        wide, total = compute_dtype(x.dtype), F.full(x.node.graph, (n, c, p), 0, weight.dtype)
        for t in range(taps if isinstance(taps, int) else 0):
            at, share = F.slice_(index, 1, t, 1), F.slice_(weight, 1, t, 1)
            inside = F.logical_and(F.greater_equal(at, 0), F.less(at, F.dim_value(x.node.graph, s, at.dtype)))
            places = F.expand(F.where(inside, at, 0), (n, c, p))
            found = F.cast(F.one("gather_along_axis", x, places, axis=2), wide)
            total = F.add(total, F.mul(F.where(inside, found, 0), share))
        return F.cast(total, x.dtype)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """Channels as rows: those of the image are read, or added to, once for all taps."""
        x, index, weight = inputs
        (n, c, s), (_, taps, p), graph = x.shape, index.shape, x.node.graph
        index, count = F.cast(index, dt.i64), F.dim_value(graph, s, dt.i64)
        inside = F.logical_and(F.greater_equal(index, 0), F.less(index, count))
        first = F.mul(F.iota(graph, (n, 1, 1), 0, dt.i64), count)
        ids = F.reshape(F.add(F.where(inside, index, 0), first), (n * taps * p,))
        here, rows = F.reshape(inside, (n, taps, p, 1)), F.reshape(F.transpose(F.cast(g, weight.dtype), (0, 2, 1)), (n, 1, p, c))
        dx = dw = None
        if wanted[0]:
            parts = F.where(here, F.mul(rows, F.reshape(weight, (n, taps, p, 1))), 0)
            total = F.scatter_add(F.full(graph, (n * s, c), 0, weight.dtype), ids, F.reshape(parts, (n * taps * p, c)), 0)
            dx = F.cast(F.transpose(F.reshape(total, (n, s, c)), (0, 2, 1)), x.dtype)
        if wanted[2]:
            image = F.reshape(F.transpose(x, (0, 2, 1)), (n * s, c))
            found = F.cast(F.reshape(F.gather(image, ids, 0), (n, taps, p, c)), weight.dtype)
            dw = F.sum_(F.where(here, F.mul(found, rows), 0), (3,))
        return dx, None, dw

    def flops(self, *types: TensorType) -> Dim:
        return 2 * types[1].numel * types[0].shape[1]


@register
class GatherSum(Composite):
    """Sums of taps along one axis: out[…, o, …] = sum over t of weight[t, o] * x[…, index[t, o], …]. An index outside of the axis is
    clamped to it."""

    axis: int
    fusion = "gather"
    samples = [S(f32(2, 5, 3, 4), i64(2, 7), f32(2, 7), axis=1, low=(-2, -1, -2), high=(2, 5, 2)),
               S(f32(3, 40), i64(3, 21), f32(3, 21), axis=1, low=(-2, 0, -2), high=(2, 39, 2)),
               S(bf16(2, 3, 70), i32(2, 9), f32(2, 9), axis=1, low=(-2, 0, -2), high=(2, 2, 2)),
               S(f64(6), i64(1, 3), f64(1, 3), axis=0, low=(-2, 0, -2), high=(2, 5, 2)),
               S(f32(N, 3, 5), i64(2, 4), f32(2, 4), axis=2, low=(-2, 0, -2), high=(2, 4, 2)),
               S(f32(2, 3, 5), i64(2, 0), f32(2, 0), axis=2, low=0, high=1), S(f32(0, 3), i64(2, 4), f32(2, 4), axis=1, low=0, high=1)]
    errors = [E(f32(2, 3), i64(4, 5), f32(4, 6), axis=1, match="needs indices and weights .taps, results. of one static shape"),
              E(f32(2, 3), i64(4, 5), f32(4, 5), axis=2, match="axis must be one of x's"),
              E(f32(2, 0), i64(4, 5), f32(4, 5), axis=1, match="has no value over an empty axis"),
              E(bf16(2, 3), i64(4, 5), bf16(4, 5), axis=1, match="needs weights in the dtype of the sums"),
              E(f32(2, 3), f32(4, 5), f32(4, 5), axis=1, match="indices must be integers"),
              E(i32(2, 3), i64(4, 5), f32(4, 5), axis=1, match="needs float operands")]

    def infer(self, x: TensorType, index: TensorType, weight: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_ids(index)
        fits = index.ndim == 2 and index.shape == weight.shape and all(isinstance(d, int) for d in index.shape) and index.shape[0] != 0
        require(fits, "needs indices and weights [taps, results] of one static shape", index=index, weight=weight)
        require(0 <= self.axis < x.ndim, "axis must be one of x's", axis=self.axis, x=x)
        require(isinstance(x.shape[self.axis], int) and x.shape[self.axis] != 0, "has no value over an empty axis", x=x, axis=self.axis)
        require(weight.dtype is compute_dtype(x.dtype), "needs weights in the dtype of the sums", x=x, weight=weight)
        return x.with_shape((*x.shape[: self.axis], index.shape[1], *x.shape[self.axis + 1 :]))

    def ref(self, x: Any, index: Any, weight: Any) -> Any:
        taken = np.take(x.astype(np.float64), np.clip(index, 0, x.shape[self.axis] - 1), self.axis)  # [..., t, o, ...]
        return np.moveaxis((np.moveaxis(taken, (self.axis, self.axis + 1), (-2, -1)) * weight).sum(-2), -1, self.axis).astype(x.dtype)

    def decompose(self, x: Value, index: Value, weight: Value) -> Value:
        (taps, out), size = index.shape, x.shape[self.axis]
        along = tuple(out if a == self.axis else 1 for a in range(len(x.shape)))
        total: Value | None = None
        for t in range(taps if isinstance(taps, int) else 0):
            at = F.maximum(F.minimum(F.reshape(F.slice_(index, 0, t, 1), (out,)), size - 1), 0)
            part = F.mul(F.cast(F.gather(x, at, self.axis), weight.dtype), F.reshape(F.slice_(weight, 0, t, 1), along))
            total = part if total is None else F.add(total, part)
        assert total is not None
        return F.cast(total, x.dtype)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is not None and target.kind == "cuda"

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "vjp" or any(active[1:])

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, (index, weight), size = inputs[0], inputs[1:], inputs[0].shape[self.axis]
        at, shares, (taps, out) = known(index), known(weight), index.shape
        dx = None if at is None or shares is None or not isinstance(size, int) else summed_readers(g, at, shares, size, self.axis)
        if dx is None:
            along = tuple(out if a == self.axis else 1 for a in range(len(x.shape)))
            dx = F.cast(F.zeros(x), weight.dtype)
            for t in range(taps if isinstance(taps, int) else 0):
                places = F.maximum(F.minimum(F.reshape(F.slice_(index, 0, t, 1), (out,)), size - 1), 0)
                dx = F.scatter_add(dx, places, F.mul(F.cast(g, weight.dtype), F.reshape(F.slice_(weight, 0, t, 1), along)), self.axis)
            dx = F.cast(dx, x.dtype)
        return dx, None, None

    def flops(self, *types: TensorType) -> Dim:
        return 2 * self.infer(*types).numel * types[1].shape[0]


# --- samples between elements ---------------------------------------------------------------------------------------------------------


def _number(like: Value, d: Dim) -> Any:
    return float(d) if isinstance(d, int) else F.dim_value(like.node.graph, d, like.dtype)


def _clipped(x: Value, size: Dim) -> Value:
    return F.minimum(F.maximum(x, 0.0), _number(x, size - 1))


def _reflected(x: Value, low: Any, span: Any) -> Value:
    x = F.abs_(F.sub(x, low))
    turns = F.one("floor", F.div(x, span))
    rest = F.sub(x, F.mul(turns, span))
    odd = F.one("not_equal", F.one("remainder", turns, 2.0), 0.0)
    return F.add(F.where(odd, F.sub(span, rest), rest), low)


def bounded(x: Value, size: Dim, padding: str, align: bool) -> Value:
    """Places along an axis, those outside brought in as asked: `zeros` leaves them, `border` takes the nearest, `reflection`
    mirrors. NaN becomes 0 where places are brought in."""
    if padding == "reflection":
        low, span = (0.0, size - 1) if align else (-0.5, size)
        x = F.mul(x, 0.0) if span == 0 else _reflected(x, low, _number(x, span))
    return x if padding == "zeros" else _clipped(F.where(F.equal(x, x), x, 0.0), size)


def spots(at: list[Value], sizes: Shape) -> Value:
    """Integer places [n, t, p], one array a spatial axis, as indices of the flattened image; -1 outside."""
    inside, flat = None, None
    for x, size in zip(at, sizes, strict=True):
        ok = F.logical_and(F.greater_equal(x, 0.0), F.less(x, _number(x, size)))
        number = F.cast(_clipped(x, size), dt.i64)
        inside = ok if inside is None else F.logical_and(inside, ok)
        flat = number if flat is None else F.add(F.mul(flat, F.dim_value(x.node.graph, size, dt.i64)), number)
    assert flat is not None and inside is not None
    return F.where(inside, flat, -1)


def sample(x: Value, at: list[Value], sizes: Shape, *, mode: str = "linear", padding: str = "zeros", align: bool = False) -> Value:
    """x[n, c, product(sizes)] at places [n, p], one array a spatial axis: the nearest element, or 2 (linear) or 4 (cubic) elements an axis
    that are weighted. The places of elements are 0, 1, 2…"""
    n, p = at[0].shape
    wide, rank = compute_dtype(x.dtype), len(at)
    at = [F.reshape(F.cast(v, wide), (n, 1, p)) for v in at]
    if mode != "cubic":
        at = [bounded(v, s, padding, align) for v, s in zip(at, sizes, strict=True)]
    if mode == "nearest":
        index = spots([F.one("round", v) for v in at], sizes)
        return F.one("weighted_gather", x, index, F.full(x.node.graph, index.shape, 1.0, wide))
    graph = x.node.graph
    steps = np.array(list(cartesian((0, 1) if mode == "linear" else (-1, 0, 1, 2), repeat=rank)), wide.np).reshape(-1, rank)
    places, weight = [], None
    for a, v in enumerate(at):
        floor = F.one("floor", v)
        step = graph.constant(np.ascontiguousarray(steps[:, a]).reshape(1, -1, 1), "taps")
        share, near = F.sub(v, floor), F.add(floor, step)
        if mode == "linear":
            part = F.add(F.sub(1.0, step), F.mul(F.sub(F.mul(step, 2.0), 1.0), share))  # 1 - share, then share
        else:
            part, near = _cubic(F.abs_(F.sub(share, step))), F.one("round", bounded(near, sizes[a], padding, align))
        weight = part if weight is None else F.mul(weight, part)
        places.append(near)
    assert weight is not None
    return F.one("weighted_gather", x, spots(places, sizes), weight)


def _cubic(d: Value, a: float = -0.75) -> Value:
    near = F.add(F.mul(F.mul(F.sub(F.mul(d, a + 2), a + 3), d), d), 1.0)
    far = F.sub(F.mul(F.add(F.mul(F.sub(F.mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
    return F.where(F.less_equal(d, 1.0), near, far)


def grid_sample(x: Value, grid: Value, *, mode: str, padding: str, align: bool) -> Value:
    """x[n, c, *sizes] at grid[n, *out, rank]: coordinates -1..1 from edge to edge, the last one along the first spatial axis."""
    rank, sizes = len(x.shape) - 2, x.shape[2:]
    n, c, p = x.shape[0], x.shape[1], product(grid.shape[1:-1])
    points = F.reshape(F.cast(grid, compute_dtype(x.dtype)), (n, p, rank))
    at = []
    for a, size in enumerate(sizes):
        v = F.add(F.reshape(F.slice_(points, 2, rank - 1 - a, 1), (n, p)), 1.0)
        if align:
            at.append(F.mul(v, F.mul(_value(v, size - 1), 0.5)))
        else:
            at.append(F.mul(F.sub(F.mul(v, _number(v, size)), 1.0), 0.5))
    out = sample(F.reshape(x, (n, c, product(sizes))), at, sizes, mode=mode, padding=padding, align=align)
    return F.reshape(out, (n, c, *grid.shape[1:-1]))


def _value(like: Value, d: Dim) -> Value:
    return F.dim_value(like.node.graph, d, like.dtype)
