"""Softmax, LayerNorm and RMSNorm from their spelled-out forms, with the casts that mixed-precision models put around them."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import compute_dtype
from ..ir.graph import Node, Value
from ..ir.rewrite import P, Such, Var, X, Y, rule, rules
from .base import scalar

C = Such("c", lambda v: isinstance(scalar(v), float))
W = Var("w")
B = Var("b")


def trailing(axes: tuple[int, ...], ndim: int) -> int | None:
    """How many axes, if they are the last ones."""
    return len(axes) if axes and axes == tuple(range(ndim - len(axes), ndim)) else None


def epsilon(c: Value) -> float | None:
    """The number in c, in its shortest spelling: 1e-06 and not 9.999999974752427e-07."""
    number = scalar(c)
    if not isinstance(number, float) or number < 0:  # the norms take no negative one
        return None
    return float(str(np.float32(number))) if c.dtype.name == "f32" else number


def rms(x: Value, c: Value, mean: Any) -> Value | None:
    naxes = trailing(mean.op.axes, len(x.shape))
    eps = epsilon(c)
    if naxes is None or not mean.op.keepdims or eps is None:
        return None
    return o.emit(o.RmsNorm(eps=eps, naxes=naxes, affine="none"), x)


@rule(P(o.RmsNorm, name="root"), changes="rounding")
def layer_norm(root: Any) -> Value | None:
    """The root mean square of what is left after the mean is subtracted."""
    op, (centred, *weight) = root.op, root.operands
    if not isinstance(centred.op, o.Sub):
        return None
    x, mean = centred.node.operands
    if not isinstance(mean.op, o.Mean) or mean.node.operands[0] is not x or not mean.op.keepdims:
        return None
    if trailing(mean.op.axes, len(x.shape)) != op.naxes:
        return None
    return o.emit(o.LayerNorm(eps=op.eps, naxes=op.naxes, affine=op.affine), x, *weight)


def centred_norm(x: Value, c: Value, mean: Any, var: Any) -> Value | None:
    naxes, eps = trailing(mean.op.axes, len(x.shape)), epsilon(c)
    if naxes is None or eps is None or var.op.axes != mean.op.axes or var.op.correction != 0:
        return None
    if not (mean.op.keepdims and var.op.keepdims):
        return None
    return o.emit(o.LayerNorm(eps=eps, naxes=naxes, affine="none"), x)


NORMS = (o.LayerNorm, o.RmsNorm)


@rule(P(o.Cast, P(NORMS, P(o.Cast, X), name="norm", once=True), name="root"), changes="rounding")
def norm_in_narrow_type(x: Value, norm: Any, root: Any) -> Value | None:
    """Norms of small floats compute in f32 anyway: casts up before and back after are part of them."""
    if norm.op.affine != "none" or x.dtype.itemsize >= 4 or norm.types[0].dtype is not compute_dtype(x.dtype):
        return None
    return o.emit(norm.op, x)


@rule(P(o.Mul, P(NORMS, X, name="norm", once=True), W, name="root"), changes="rounding")
def norm_weight(x: Value, w: Value, norm: Any, root: Node) -> Value | None:
    if norm.op.affine != "none" or w.shape != x.shape[len(x.shape) - norm.op.naxes :]:
        return None
    return o.emit(dataclasses.replace(norm.op, affine="weight"), x, w)


@rule(P(o.Add, P(o.LayerNorm, X, W, name="norm", once=True), B, name="root"), changes="rounding")
def norm_bias(x: Value, w: Value, b: Value, norm: Any, root: Node) -> Value | None:
    if norm.op.affine != "weight" or b.shape != w.shape:
        return None
    return o.emit(dataclasses.replace(norm.op, affine="both"), x, w, b)


def softmax(x: Value, y: Value, exp: Node, top: Any, total: Any) -> Value | None:
    axes = top.op.axes
    if y.node is not exp or len(axes) != 1 or total.op.axes != axes or not (top.op.keepdims and total.op.keepdims):
        return None
    return o.emit(o.Softmax(axis=axes[0]), x)


SQUARES = P(o.Add, P(o.Mean, P(o.Square, X), name="mean"), C)
CENTRE = P(o.Sub, X, P(o.Mean, X, name="mean"))
SPREAD = P(o.Add, P(o.Var, X, name="var"), C)
POWER = P(o.Exp, P(o.Sub, X, P(o.Max, X, name="top")), name="exp")
TOTAL = P(o.Sum, Y, name="total")
RULES = [
    *rules(rms, changes="rounding", rms_norm=P(o.Mul, X, P(o.Rsqrt, SQUARES)), rms_norm_by_division=P(o.Div, X, P(o.Sqrt, SQUARES)),
           rms_norm_by_reciprocal=P(o.Mul, X, P(o.Reciprocal, P(o.Sqrt, SQUARES)))),
    layer_norm,
    *rules(centred_norm, changes="rounding", layer_norm_of_variance=P(o.Mul, CENTRE, P(o.Rsqrt, SPREAD)),
           layer_norm_by_division=P(o.Div, CENTRE, P(o.Sqrt, SPREAD))),
    norm_in_narrow_type, norm_weight, norm_bias,
    *rules(softmax, changes="rounding", softmax_by_division=P(o.Div, POWER, TOTAL),
           softmax_by_reciprocal=P(o.Mul, POWER, P(o.Reciprocal, TOTAL))),
]
