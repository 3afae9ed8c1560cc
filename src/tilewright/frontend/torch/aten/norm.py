"""Normalisation layers. Training forms of batch norm give new running statistics as results (importer.py says what becomes of them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.rows import norms as B
from .registry import Context, aten, rows


def _norm(c: Context, op: Any, x: Value, *rest: Value) -> Value:
    """The op; spelled out where eps is negative, which torch allows and the op does not."""
    if op.eps >= 0:
        return c.emit(op, x, *rest)
    if not isinstance(op, O.GroupNorm):
        made: Value = op.decompose(x, *rest)
        return made
    n, channels = x.shape[:2]
    flat: Value = c.reshape(x, (n, op.groups, product(x.shape[1:]) // op.groups))
    out = c.reshape(O.LayerNorm(eps=op.eps).decompose(flat), x.shape)
    for how, v in zip((O.Mul(), O.Add()), rest, strict=False):
        out = c.emit(how, out, c.reshape(v, (channels, *(1,) * (len(x.shape) - 2))))
    return out


def _mixed(x: Value, *affine: Value | None) -> bool:
    """Whether weights are of another dtype, as under autocast: the norm is computed in f32 then, and its result is of x's dtype."""
    return any(v is not None and v.dtype is not x.dtype for v in affine)


@aten("layer_norm.default")
def layer_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
               eps: float = 1e-5, *_: Any) -> Value:
    n = len(normalized_shape)
    if _mixed(x, weight, bias):
        weight, bias = (v if v is None else c.cast(v, dt.f32) for v in (weight, bias))
        return c.cast(layer_norm(c, c.cast(x, dt.f32), normalized_shape, weight, bias, eps), x.dtype)
    if weight is not None and bias is not None:
        return _norm(c, O.LayerNorm(eps=float(eps), naxes=n, affine="both"), x, weight, bias)
    if weight is not None:
        return _norm(c, O.LayerNorm(eps=float(eps), naxes=n, affine="weight"), x, weight)
    out = _norm(c, O.LayerNorm(eps=float(eps), naxes=n, affine="none"), x)
    return out if bias is None else c.emit(O.Add(), out, bias)


@aten("native_layer_norm.default")
def native_layer_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float) -> Any:
    axes = tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    wide = c.cast(x, dt.f32) if _mixed(x, weight, bias) else x
    return (layer_norm(c, x, normalized_shape, weight, bias, eps), *_moments(c, wide, axes, eps))


def _moments(c: Context, x: Value, axes: tuple[int, ...], eps: float, keepdims: bool = True) -> tuple[Value, Value]:
    """Mean and 1 / sqrt(var + eps) over axes; whoever does not read them does not compute them."""
    mean = c.emit(O.Mean(axes=axes, keepdims=keepdims), x)
    var = c.emit(O.Var(axes=axes, keepdims=keepdims, correction=0.0), x)
    return mean, c.emit(O.Rsqrt(), c.emit(O.Add(), var, c.scalar(float(eps), x.dtype)))


def _rms_eps(x: Value, eps: float | None) -> float:
    """Without one: that of the dtype that PyTorch computes in, not of x's."""
    return float(eps) if eps is not None else 2.0**-52 if x.dtype is dt.f64 else 2.0**-23


@aten("rms_norm.default")
def rms_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None) -> Value:
    if weight is not None and _mixed(x, weight):
        wide = dt.f64 if x.dtype is dt.f64 else dt.f32
        return c.cast(rms_norm(c, c.cast(x, wide), normalized_shape, c.cast(weight, wide), eps), x.dtype)
    op = O.RmsNorm(eps=_rms_eps(x, eps), naxes=len(normalized_shape), affine="none" if weight is None else "weight")
    return _norm(c, op, x) if weight is None else _norm(c, op, x, weight)


@aten("_fused_rms_norm.default")
def fused_rms_norm(c: Context, x: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> Any:
    wide = x if x.dtype is dt.f64 else c.cast(x, dt.f32)
    axes = tuple(range(len(x.shape)))[-len(normalized_shape):]
    squares = c.emit(O.Mean(axes=axes, keepdims=True), c.emit(O.Mul(), wide, wide))
    root = c.emit(O.Rsqrt(), c.emit(O.Add(), squares, c.scalar(_rms_eps(x, eps), wide.dtype)))
    return rms_norm(c, x, normalized_shape, weight, eps), root


def _affine(c: Context, weight: Value | None, bias: Value | None, like: Value, channels: Any) -> list[Value]:
    """Weight and bias, a missing one filled with ones or zeros; [] when both are missing."""
    if weight is None and bias is None:
        return []
    if not isinstance(channels, int):
        raise UnsupportedError("a norm needs a static channel count")
    fill = [c.constant(np.full(channels, v, like.dtype.np), "affine") if given is None else given for given, v in ((weight, 1), (bias, 0))]
    return fill


@aten("batch_norm.default")
def batch_norm(c: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, training: bool,
               momentum: float, eps: float, cudnn_enabled: bool = False) -> Value:
    if training or mean is None or var is None:
        out: Value = _training(c, x, weight, bias, momentum, eps)[0]
        return out
    extra = _affine(c, weight, bias, mean, x.shape[1])
    stats = [mean, var, *extra]
    dtypes = {v.dtype for v in stats}
    if dtypes != {x.dtype}:
        stats = [c.cast(v, x.dtype) for v in stats]
    return _norm(c, O.BatchNorm(eps=float(eps), affine="both" if extra else "none"), x, *stats)


def _training(c: Context, x: Value, weight: Value | None, bias: Value | None, momentum: float, eps: float,
              mean: Value | None = None, var: Value | None = None) -> tuple[Any, ...]:
    """(out, the batch's means, its 1 / sqrt(var + eps), new mean, new variance)."""
    if product(x.shape) == 0:
        zero = c.expand(c.scalar(0.0, F.widened(x).dtype), x.shape[1:2])
        return c.cast(x, x.dtype), zero, zero, mean, var

    def build() -> tuple[Any, ...]:
        own, spread = B.moments(x)
        out = B.batch_normed(x, own, spread, tuple(_affine(c, weight, bias, own, x.shape[1])), eps)
        inverse = F.rsqrt(F.add(spread, float(eps)))
        if mean is None or var is None:
            return out, own, inverse, None, None
        return out, own, inverse, B.moved(mean, own, momentum), B.moved(var, B.unbiased(spread, x), momentum)

    made: tuple[Any, ...] = c.built(build)
    return made


@aten("_native_batch_norm_legit_functional.default")
def native_batch_norm_functional(c: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, training: bool,
                                 momentum: float, eps: float) -> Any:
    if training:
        return _training(c, x, weight, bias, momentum, eps, mean, var)
    empty = c.constant(np.zeros((0,), x.dtype.np))
    return batch_norm(c, x, weight, bias, mean, var, False, momentum, eps), empty, empty, mean, var


@aten("_batch_norm_with_update_functional.default")
def batch_norm_with_update(c: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float,
                           eps: float) -> Any:
    out, own, inverse, *new = _training(c, x, weight, bias, momentum, eps, mean, var)
    return out, own, inverse, c.constant(np.zeros((0,), np.uint8)), *new


@aten("_native_batch_norm_legit_no_training.default")
def native_batch_norm(c: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float,
                      eps: float) -> Any:
    empty = c.constant(np.zeros((0,), x.dtype.np))  # what the backward pass does not read
    return batch_norm(c, x, weight, bias, mean, var, False, momentum, eps), empty, empty


@aten("group_norm.default")
def group_norm(c: Context, x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5,
               cudnn_enabled: bool = True) -> Value:
    if _mixed(x, weight, bias):
        weight, bias = (v if v is None else c.cast(v, dt.f32) for v in (weight, bias))
        return c.cast(group_norm(c, c.cast(x, dt.f32), num_groups, weight, bias, eps), x.dtype)
    extra = _affine(c, weight, bias, x, x.shape[1])
    return _norm(c, O.GroupNorm(groups=num_groups, eps=float(eps), affine="both" if extra else "none"), x, *extra)


@aten("native_group_norm.default")
def native_group_norm(c: Context, x: Value, weight: Value | None, bias: Value | None, n: Any, channels: Any, hw: Any, group: int,
                      eps: float) -> Any:
    out = group_norm(c, x, group, weight, bias, eps)
    x = c.cast(x, dt.f32) if _mixed(x, weight, bias) else x
    if product(x.shape) == 0:
        return (out, *(c.expand(c.scalar(v, x.dtype), (n, group)) for v in (float("nan"), float("nan"))))
    return (out, *_moments(c, c.reshape(x, (n, group, channels // group * hw)), (2,), eps, keepdims=False))


@aten("instance_norm.default")
def instance_norm(c: Context, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None,
                  use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool = False) -> Value:
    """Every channel of every case by its own mean and variance: a group norm with as many groups as channels. (importer.py spells out the
    form that writes to running statistics.)"""
    if not use_input_stats:
        return batch_norm(c, x, weight, bias, mean, var, False, momentum, eps)
    extra = _affine(c, weight, bias, x, x.shape[1])
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise UnsupportedError("a norm needs a static channel count")
    return _norm(c, O.GroupNorm(groups=channels, eps=float(eps), affine="both" if extra else "none"), x, *extra)


rows({
    "_native_batch_norm_legit.no_stats":
        lambda c, x, weight, bias, training, momentum, eps: _training(c, x, weight, bias, momentum, eps)[:3],
})
