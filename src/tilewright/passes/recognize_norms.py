"""Softmax, LayerNorm and RMSNorm from their spelled-out forms, with the casts that mixed-precision models put around them. Where
values between convolutions lie channels last (`m.known`: on a GPU), norms over channels are norms of the last axis, behind transposes."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import compute_dtype
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, Such, Var, X, Y, rule, rules
from ..ops import functions as F
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


def of_pixels(x: Value, axes: tuple[int, ...], m: Match) -> tuple[int, ...] | None:
    """The order of axes in which channels are last, for a statistic over channels of what a convolution reads."""
    if not m.known or axes != (1,) or len(x.shape) < 4:
        return None
    near = m.users(m.root.values[0])
    for _ in range(3):  # a weight and a bias
        near += [u for n in near if n.op.traits.elementwise for v in n.values for u in m.users(v) if u not in near]
    return (0, *range(2, len(x.shape)), 1) if any(isinstance(n.op, o.Conv) for n in near) else None


def back(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


def normed(norm: Any, x: Value, axes: tuple[int, ...], eps: float | None, m: Match) -> Value | None:
    """The norm without weights over these axes, of a class of norms."""
    if eps is None:
        return None
    if (naxes := trailing(axes, len(x.shape))) is not None:
        return o.emit(norm(eps=eps, naxes=naxes, affine="none"), x)
    perm = of_pixels(x, axes, m)
    if perm is None:
        return None
    return o.emit(o.Transpose(perm=back(perm)), o.emit(norm(eps=eps, naxes=1, affine="none"), o.emit(o.Transpose(perm=perm), x)))


def rms(x: Value, c: Value, mean: Any, m: Match) -> Value | None:
    return normed(o.RmsNorm, x, mean.op.axes, epsilon(c), m) if mean.op.keepdims else None


@rule(P(o.RmsNorm, name="root"), changes="rounding")
def layer_norm(root: Any) -> Value | None:
    """The root mean square of what is left after the mean is subtracted."""
    op, (centred, *weight) = root.op, root.operands
    perm = tuple(range(len(centred.shape)))
    if isinstance(centred.op, o.Transpose):
        perm, centred = centred.op.perm, centred.node.operands[0]
    if not isinstance(centred.op, o.Sub):
        return None
    x, mean = centred.node.operands
    if not isinstance(mean.op, o.Mean) or mean.node.operands[0] is not x or not mean.op.keepdims:
        return None
    if mean.op.axes != tuple(sorted(perm[len(perm) - op.naxes :])):
        return None
    return o.emit(o.LayerNorm(eps=op.eps, naxes=op.naxes, affine=op.affine), F.transpose(x, perm), *weight)


def centred_norm(x: Value, c: Value, mean: Any, var: Any, m: Match) -> Value | None:
    if var.op.axes != mean.op.axes or var.op.correction != 0 or not (mean.op.keepdims and var.op.keepdims):
        return None
    return normed(o.LayerNorm, x, mean.op.axes, epsilon(c), m)


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


def per_channel(w: Value, view: Any, x: Value) -> Value | None:
    """A weight of every channel as a row, where `view` puts the channels of x elsewhere."""
    axis, shape = view.op.perm.index(len(x.shape) - 1), (1,) * (len(x.shape) - len(w.shape)) + w.shape
    whole = tuple(x.shape[-1] if i == axis else 1 for i in range(len(x.shape)))
    return F.reshape(w, (x.shape[-1],)) if shape == whole else None


@rule(P(o.Mul, P(o.Transpose, P(NORMS, X, name="norm", once=True), name="view", once=True), W), changes="rounding")
def weight_of_pixels(x: Value, w: Value, norm: Any, view: Any) -> Value | None:
    row = per_channel(w, view, x)
    if norm.op.affine != "none" or norm.op.naxes != 1 or row is None:
        return None
    return o.emit(o.Transpose(perm=view.op.perm), o.emit(dataclasses.replace(norm.op, affine="weight"), x, row))


@rule(P(o.Add, P(o.Transpose, P(o.LayerNorm, X, W, name="norm", once=True), name="view", once=True), B), changes="rounding")
def bias_of_pixels(x: Value, w: Value, b: Value, norm: Any, view: Any) -> Value | None:
    row = per_channel(b, view, x)
    if norm.op.affine != "weight" or norm.op.naxes != 1 or row is None:
        return None
    return o.emit(o.Transpose(perm=view.op.perm), o.emit(dataclasses.replace(norm.op, affine="both"), x, w, row))


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
    norm_in_narrow_type, norm_weight, norm_bias, weight_of_pixels, bias_of_pixels,
    *rules(softmax, changes="rounding", softmax_by_division=P(o.Div, POWER, TOTAL),
           softmax_by_reciprocal=P(o.Mul, POWER, P(o.Reciprocal, TOTAL))),
]
