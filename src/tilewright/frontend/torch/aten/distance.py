"""Distances between rows, products summed over a batch, and other small sums of products."""

from __future__ import annotations

import math
from typing import Any

from .... import ops as O
from ....ir.graph import Value
from .registry import Context, aten


def p_norm(c: Context, x: Value, p: float, axis: int, *, keepdims: bool = False) -> Value:
    """The p-norm along an axis, with derivative 0 where it is 0."""
    sizes = c.emit(O.Abs(), x)
    zero = c.scalar(0.0, x.dtype)
    if p == 0:
        return c.emit(O.Sum(axes=(axis,), keepdims=keepdims), c.cast(c.emit(O.NotEqual(), x, zero), x.dtype))
    if p == 1:
        return c.emit(O.Sum(axes=(axis,), keepdims=keepdims), sizes)
    if p == math.inf:
        return c.emit(O.Max(axes=(axis,), keepdims=keepdims), sizes)
    if p == -math.inf:
        return c.emit(O.Min(axes=(axis,), keepdims=keepdims), sizes)
    raised = c.emit(O.Square(), x) if p == 2 else c.emit(O.Pow(), sizes, c.scalar(float(p), x.dtype))
    return root_of(c, c.emit(O.Sum(axes=(axis,), keepdims=keepdims), raised), p)


def root_of(c: Context, total: Value, p: float) -> Value:
    """The p-th root, with derivative 0 where it is 0."""
    zero = c.scalar(0.0, total.dtype)
    none = c.emit(O.Equal(), total, zero)
    safe = c.emit(O.Where(), none, c.scalar(1.0, total.dtype), total)
    root = c.emit(O.Sqrt(), safe) if p == 2 else c.emit(O.Pow(), safe, c.scalar(1.0 / p, total.dtype))
    return c.emit(O.Where(), none, zero, root)


@aten("_cdist_forward.default", "cdist.default", "_euclidean_dist.default")
def cdist(c: Context, a: Value, b: Value, p: float = 2.0, compute_mode: Any = None) -> Value:
    """Distances of every row of a from every row of b, from the differences (not through products, which cancel)."""
    if a.shape[-1] == 0 or any(d == 0 for d in c.shape):
        return c.expand(c.scalar(0.0, c.dtype), c.shape)
    if p in (1.0, 2.0, math.inf):
        lead = c.shape[:-2]
        sums = c.emit(O.PairSums(power=float(p)), c.expand(a, (*lead, *a.shape[-2:])), c.expand(b, (*lead, *b.shape[-2:])))
        return root_of(c, sums, 2.0) if p == 2.0 else sums
    left = c.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    right = c.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    gap = c.emit(O.Sub(), left, right)
    return c.reshape(p_norm(c, gap, float(p), len(gap.shape) - 1), c.shape)


@aten("addbmm.default")
def addbmm(c: Context, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = c.emit(O.Sum(axes=(0,), keepdims=False), c.emit(O.Matmul(), a, b))
    return scaled_sum(c, bias, product, beta, alpha)


def scaled_sum(c: Context, bias: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * bias + alpha * product; the bias is not read when beta is 0. Factors take the dtype: integers drop their fractions."""
    whole = (lambda v: v) if product.dtype.is_float or product.dtype.kind == "c" else int
    if whole(alpha) != 1:
        product = c.emit(O.Mul(), product, c.scalar(whole(alpha), product.dtype))
    if beta == 0:
        return c.expand(product, c.shape)
    if whole(beta) != 1:
        bias = c.emit(O.Mul(), bias, c.scalar(whole(beta), bias.dtype))
    return c.emit(O.Add(), product, bias)


@aten("_trilinear.default")
def trilinear(c: Context, a: Value, b: Value, w: Value, expand1: Any, expand2: Any, expand3: Any, sumdim: Any,
              unroll_dim: int = 1) -> Value:
    """The product of three tensors, each with axes of size 1 put in, summed over axes."""
    parts = []
    for x, axes in ((a, expand1), (b, expand2), (w, expand3)):
        sizes = list(x.shape)
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        parts.append(c.reshape(x, sizes))
    product = c.emit(O.Mul(), c.emit(O.Mul(), parts[0], parts[2]), parts[1])
    return c.reshape(c.emit(O.Sum(axes=tuple(sorted(sumdim)), keepdims=False), product), c.shape)
