"""Batch norm in training: normalised by the batch's own statistics, while running ones move towards them. Made of other ops."""
from __future__ import annotations

from ...core.dims import product
from ...core.errors import require
from ...ir.graph import Value
from .. import functions as F


def moments(x: Value) -> tuple[Value, Value]:
    """Mean and variance (over n) of each channel, axis 1; f32 where x has 16 bits."""
    axes = (0, *range(2, len(x.shape)))
    wide = F.widened(x)
    return F.mean(wide, axes), F.one("var", wide, axes=axes, correction=0.0)


def batch_normed(x: Value, mean: Value, var: Value, affine: tuple[Value, ...], eps: float) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias, in x's dtype."""
    operands = [F.cast(v, mean.dtype) for v in (x, mean, var, *affine)]
    return F.cast(F.one("batch_norm", *operands, eps=eps, affine="both" if affine else "none"), x.dtype)


def moved(running: Value, measured: Value, momentum: float) -> Value:
    return F.add(F.mul(running, 1 - momentum), F.mul(F.cast(measured, running.dtype), momentum))


def batch_norm_training(x: Value, mean: Value, var: Value, *affine: Value, momentum: float, eps: float) -> tuple[Value, Value, Value]:
    """(y, new mean, new variance): running statistics take momentum of the batch's mean and of its variance over n - 1."""
    require(len(x.shape) >= 2, "batch_norm: needs x of rank 2 or more", x=x.type)
    count = product((x.shape[0], *x.shape[2:]))
    require(count != 1, "batch_norm: training needs more than one value a channel", x=x.type)
    own_mean, own_var = moments(x)
    y = batch_normed(x, own_mean, own_var, affine, eps)
    return (y, moved(mean, own_mean, momentum), moved(var, unbiased(own_var, x), momentum))


def unbiased(var: Value, x: Value) -> Value:
    """The variance over n - 1 from that over n."""
    count = product((x.shape[0], *x.shape[2:]))
    if isinstance(count, int):
        return F.mul(var, count / max(count - 1, 1))
    n = F.dim_value(x.node.graph, count, var.dtype)
    return F.div(F.mul(var, n), F.maximum(F.sub(n, 1), 1))
