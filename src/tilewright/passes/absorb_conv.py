"""Batch norm with known statistics is a scale and a shift a channel; the scale goes into the weights of the convolution before it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Such, X, rule
from .base import Log, Pass, apply_rules

C = Such("c", lambda v: isinstance(v.op, o.Constant))
D = Such("d", lambda v: isinstance(v.op, o.Constant))


def data(v: Value) -> Any:
    """The bytes of a constant, in f64."""
    assert isinstance(v.op, o.Constant)
    return v.op.data.array.astype(np.float64)


def per_channel(c: Value, x: Value) -> bool:
    """c is one number a channel (axis 1) of x."""
    column = (x.shape[1], *(1,) * (len(x.shape) - 2))
    return c.shape in (column, (1, *column))


def column(c: Value, x: Value) -> Any:
    """The bytes of a per-channel constant in its plainest shape, in f64."""
    return data(c).reshape(-1, *(1,) * (len(x.shape) - 2))


@rule(P(o.BatchNorm, name="root"))
def batch_norm(root: Any, m: Match) -> Value | None:
    x, *known = root.operands
    if not all(isinstance(v.op, o.Constant) for v in known):
        return None
    mean, var, *affine = (data(v) for v in known)
    scale = 1.0 / np.sqrt(var + root.op.eps)
    if affine:
        scale = scale * affine[0]
    shift = -mean * scale + (affine[1] if affine else 0.0)
    shape = (-1, *(1,) * (len(x.shape) - 2))
    s = m.graph.constant(scale.reshape(shape).astype(x.dtype.np), f"{root.name}_scale")
    t = m.graph.constant(shift.reshape(shape).astype(x.dtype.np), f"{root.name}_shift")
    out: Value = o.Add()(o.Mul()(x, s), t)
    return out


@rule(P(o.Mul, P(o.Conv, X, C, name="conv", once=True), D))
def scaled_conv(x: Value, c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    if not per_channel(d, conv.value) or conv.op.transposed or m.readers(c) != 1:
        return None
    scaled = data(c) * data(d).reshape(-1, *(1,) * (len(c.shape) - 1))
    out: Value = conv.op(x, m.graph.constant(scaled.astype(c.dtype.np), c.node.name), name=conv.name, place=conv.place)
    return out


@rule(P(o.Mul, P(o.Add, P(o.Conv, name="conv", once=True), C, once=True), D))
def scaled_conv_bias(c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    y = conv.value
    if not per_channel(d, y) or not per_channel(c, y):
        return None
    out: Value = o.Add()(o.Mul()(y, d), m.graph.constant((column(c, y) * column(d, y)).astype(c.dtype.np), c.node.name))
    return out


@rule(P(o.Add, P(o.Add, P(o.Conv, name="conv", once=True), C, once=True), D))
def two_conv_biases(c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    y = conv.value
    if not per_channel(d, y) or not per_channel(c, y):
        return None
    out: Value = o.Add()(y, m.graph.constant((column(c, y) + column(d, y)).astype(c.dtype.np), c.node.name))
    return out


@dataclass(frozen=True)
class AbsorbIntoConv(Pass):
    """Before: canonical graph.
    After: no batch norm with constant statistics; one after a convolution (with or without bias) is in its weights and one addition."""

    name: ClassVar[str] = "absorb-into-conv"

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [batch_norm, scaled_conv, scaled_conv_bias, two_conv_biases], log)
        return graph
