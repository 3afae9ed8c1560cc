"""Softmax, LayerNorm and RMSNorm from their spelled-out forms, with the casts that mixed-precision models put around them."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import compute_dtype
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, Rule, Such, Var, X, Y, rule
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


def _rms_rules() -> list[Rule]:
    spread = P(o.Add, P(o.Mean, P(o.Square, X), name="mean"), C)

    def rms(x: Value, c: Value, mean: Any, root: Node) -> Value | None:
        naxes = trailing(mean.op.axes, len(x.shape))
        eps = epsilon(c)
        if naxes is None or not mean.op.keepdims or eps is None:
            return None
        out: Value = o.RmsNorm(eps=eps, naxes=naxes, affine="none")(x)
        return out

    @rule(P(o.Mul, X, P(o.Rsqrt, spread), name="root"), changes="rounding")
    def rms_norm(x: Value, c: Value, mean: Any, root: Node) -> Value | None:
        return rms(x, c, mean, root)

    @rule(P(o.Div, X, P(o.Sqrt, spread), name="root"), changes="rounding")
    def rms_norm_by_division(x: Value, c: Value, mean: Any, root: Node) -> Value | None:
        return rms(x, c, mean, root)

    @rule(P(o.Mul, X, P(o.Reciprocal, P(o.Sqrt, spread)), name="root"), changes="rounding")
    def rms_norm_by_reciprocal(x: Value, c: Value, mean: Any, root: Node) -> Value | None:
        return rms(x, c, mean, root)

    return [rms_norm, rms_norm_by_division, rms_norm_by_reciprocal]


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
    out: Value = o.LayerNorm(eps=op.eps, naxes=op.naxes, affine=op.affine)(x, *weight)
    return out


def _var_rules() -> list[Rule]:
    centre = P(o.Sub, X, P(o.Mean, X, name="mean"))
    spread = P(o.Add, P(o.Var, X, name="var"), C)

    def norm(x: Value, c: Value, mean: Any, var: Any, root: Node) -> Value | None:
        naxes, eps = trailing(mean.op.axes, len(x.shape)), epsilon(c)
        if naxes is None or eps is None or var.op.axes != mean.op.axes or var.op.correction != 0:
            return None
        if not (mean.op.keepdims and var.op.keepdims):
            return None
        out: Value = o.LayerNorm(eps=eps, naxes=naxes, affine="none")(x)
        return out

    @rule(P(o.Mul, centre, P(o.Rsqrt, spread), name="root"), changes="rounding")
    def layer_norm_of_variance(x: Value, c: Value, mean: Any, var: Any, root: Node) -> Value | None:
        return norm(x, c, mean, var, root)

    @rule(P(o.Div, centre, P(o.Sqrt, spread), name="root"), changes="rounding")
    def layer_norm_by_division(x: Value, c: Value, mean: Any, var: Any, root: Node) -> Value | None:
        return norm(x, c, mean, var, root)

    return [layer_norm_of_variance, layer_norm_by_division]


NORMS = (o.LayerNorm, o.RmsNorm)


@rule(P(o.Cast, P(NORMS, P(o.Cast, X), name="norm", once=True), name="root"), changes="rounding")
def norm_in_narrow_type(x: Value, norm: Any, root: Any) -> Value | None:
    """Norms of small floats compute in f32 anyway: casts up before and back after are part of them."""
    if norm.op.affine != "none" or x.dtype.itemsize >= 4 or norm.types[0].dtype is not compute_dtype(x.dtype):
        return None
    out: Value = norm.op(x)
    return out


@rule(P(o.Mul, P(NORMS, X, name="norm", once=True), W, name="root"), changes="rounding")
def norm_weight(x: Value, w: Value, norm: Any, root: Node) -> Value | None:
    if norm.op.affine != "none" or w.shape != x.shape[len(x.shape) - norm.op.naxes :]:
        return None
    out: Value = dataclasses.replace(norm.op, affine="weight")(x, w)
    return out


@rule(P(o.Add, P(o.LayerNorm, X, W, name="norm", once=True), B, name="root"), changes="rounding")
def norm_bias(x: Value, w: Value, b: Value, norm: Any, root: Node) -> Value | None:
    if norm.op.affine != "weight" or b.shape != w.shape:
        return None
    out: Value = dataclasses.replace(norm.op, affine="both")(x, w, b)
    return out


def _softmax_rules() -> list[Rule]:
    power = P(o.Exp, P(o.Sub, X, P(o.Max, X, name="top")), name="exp")

    def softmax(x: Value, top: Any, total: Any, root: Node) -> Value | None:
        axes = top.op.axes
        if len(axes) != 1 or total.op.axes != axes or not (top.op.keepdims and total.op.keepdims):
            return None
        out: Value = o.Softmax(axis=axes[0])(x)
        return out

    @rule(P(o.Div, power, P(o.Sum, Y, name="total"), name="root"), changes="rounding")
    def softmax_by_division(x: Value, y: Value, exp: Node, top: Any, total: Any, root: Node, m: Match) -> Value | None:
        return softmax(x, top, total, root) if y.node is exp else None

    @rule(P(o.Mul, power, P(o.Reciprocal, P(o.Sum, Y, name="total")), name="root"), changes="rounding")
    def softmax_by_reciprocal(x: Value, y: Value, exp: Node, top: Any, total: Any, root: Node) -> Value | None:
        return softmax(x, top, total, root) if y.node is exp else None

    return [softmax_by_division, softmax_by_reciprocal]


RULES = [*_rms_rules(), layer_norm, *_var_rules(), norm_in_narrow_type, norm_weight, norm_bias, *_softmax_rules()]
