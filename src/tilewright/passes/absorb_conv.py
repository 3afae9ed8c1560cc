"""What goes into a convolution: zeros around its operand become its padding. Batch norm with known statistics is a scale and a shift a
channel; the scale goes into the weights of the convolution before it."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..core.dtypes import DType
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Rule, Such, X, Y, rule
from .base import Pass

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


def number(array: Any, dtype: DType, name: str, m: Match) -> Any:
    """A constant of `dtype`; None where it holds an infinity or NaN, which add up in another order to something else."""
    with np.errstate(over="ignore"):
        made = array.astype(dtype.np)
    return m.graph.constant(made, name) if bool(np.all(np.isfinite(made.astype(np.float64)))) else None


@rule(P(o.BatchNorm, name="root"), changes="rounding")
def batch_norm(root: Any, m: Match) -> Value | None:
    x, *known = root.operands
    if not all(isinstance(v.op, o.Constant) for v in known):
        return None
    mean, var, *affine = (data(v) for v in known)
    with np.errstate(all="ignore"):
        scale = 1.0 / np.sqrt(var + root.op.eps)
        if affine:
            scale = scale * affine[0]
        shift = -mean * scale + (affine[1] if affine else 0.0)
    shape = (-1, *(1,) * (len(x.shape) - 2))
    s, t = number(scale.reshape(shape), x.dtype, f"{root.name}_scale", m), number(shift.reshape(shape), x.dtype, f"{root.name}_shift", m)
    return None if s is None or t is None else o.Add()(o.Mul()(x, s), t)


@rule(P(o.Mul, P(o.Conv, X, C, name="conv", once=True), D), changes="rounding")
def scaled_conv(x: Value, c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    if not per_channel(d, conv.value) or conv.op.transposed or m.readers(c) != 1:
        return None
    scaled = data(c) * data(d).reshape(-1, *(1,) * (len(c.shape) - 1))
    weights = number(scaled, c.dtype, c.node.name, m)
    if weights is not None and isinstance(c.op, o.Constant):
        weights.op.data.name = c.op.data.name  # they are still that parameter's
    return None if weights is None else conv.op(x, weights, name=conv.name, place=conv.place)


@rule(P(o.Mul, P(o.Add, P(o.Conv, name="conv", once=True), C, once=True), D), changes="rounding")
def scaled_conv_bias(c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    y = conv.value
    if not per_channel(d, y) or not per_channel(c, y):
        return None
    bias = number(column(c, y) * column(d, y), c.dtype, c.node.name, m)
    return None if bias is None else o.Add()(o.Mul()(y, d), bias)


@rule(P(o.Add, P(o.Add, P(o.Conv, name="conv", once=True), C, once=True), D), changes="rounding")
def two_conv_biases(c: Value, d: Value, conv: Any, m: Match) -> Value | None:
    y = conv.value
    if not per_channel(d, y) or not per_channel(c, y):
        return None
    bias = number(column(c, y) + column(d, y), c.dtype, c.node.name, m)
    return None if bias is None else o.Add()(y, bias)


@rule(P(o.Conv, P(o.Pad, X, name="pad", once=True), Y, name="conv"))
def padded_conv(x: Value, y: Value, pad: Any, conv: Any) -> Value | None:
    """Zeros around the spatial axes are the convolution's own padding: those of "same" padding in other frameworks, for instance."""
    pairs = tuple(zip(pad.op.lo, pad.op.hi, strict=True))
    zeros = pad.op.value == 0 and not np.signbit(pad.op.value)
    if conv.op.transposed or not zeros or pairs[:2] != ((0, 0), (0, 0)) or not all(isinstance(d, int) for p in pairs for d in p):
        return None
    padding = tuple((a + lo, b + hi) for (a, b), (lo, hi) in zip(conv.op.padding, pairs[2:], strict=True))
    return o.emit(replace(conv.op, padding=padding), x, y, name=conv.name, place=conv.place)


def _cut(cut: o.Slice, conv: Any) -> Any:
    """The convolution that computes only what a slice of its spatial axes keeps, by less padding; None where more than padding is cut."""
    if conv.op.transposed or cut.starts[:2] != (0, 0) or cut.sizes[:2] != conv.value.shape[:2] or set(cut.steps) != {1}:
        return None
    padding = []
    for start, size, there, step, (lo, hi) in zip(cut.starts[2:], cut.sizes[2:], conv.value.shape[2:], conv.op.stride, conv.op.padding,
                                                  strict=True):
        before, after = start * step, (there - start - size) * step
        if not isinstance(before, int) or not isinstance(after, int) or before > max(lo, 0) or after > max(hi, 0) or size == 0:
            return None
        padding.append((lo - before, hi - after))
    return replace(conv.op, padding=tuple(padding))


@rule(P(o.Slice, P(o.Conv, X, Y, name="conv", once=True), name="cut"))
def cut_conv(x: Value, y: Value, cut: Any, conv: Any) -> Value | None:
    """Results of the padding that are cut off again are not computed: causal convolutions are often written so."""
    op = _cut(cut.op, conv)
    return None if op is None else o.emit(op, x, y, name=conv.name, place=conv.place)


@rule(P(o.Slice, P(o.Add, P(o.Conv, X, Y, name="conv", once=True), C, once=True), name="cut"))
def cut_conv_bias(x: Value, y: Value, c: Value, cut: Any, conv: Any) -> Value | None:
    op = _cut(cut.op, conv) if per_channel(c, conv.value) else None
    return None if op is None else o.Add()(o.emit(op, x, y, name=conv.name, place=conv.place), c)


@dataclass(frozen=True)
class AbsorbIntoConv(Pass):
    """Before: canonical graph.
    After: zeros around the operand of a convolution are its padding, which makes no results that are cut off again. There is no batch norm
    with constant statistics; one after a convolution (with or without bias) is in its weights and one addition."""

    name: ClassVar[str] = "absorb-into-conv"
    rules: ClassVar[tuple[Rule, ...]] = (padded_conv, cut_conv, cut_conv_bias, batch_norm, scaled_conv, scaled_conv_bias, two_conv_biases)
