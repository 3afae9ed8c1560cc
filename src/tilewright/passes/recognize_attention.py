"""Attention from a softmax between two matmuls, grouped heads from repeated keys and values."""
from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dims import Shape, at_least
from ..core.dtypes import DType, compute_dtype
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, Var, rule
from .absorb_matmul import factor, moves, scaled_view
from .base import constant, hides, normal, scalar, swapped
from .scalar_rules import lossless

CAPS = (2.0**-20, 2.0**20)  # soft caps by which scores may be multiplied and divided


@dataclass
class Scores:
    """The way from a softmax up to q @ k.T, from its end: a multiple, a soft cap, biases, then masks."""

    scale: float = 1.0
    softcap: float | None = None
    masks: list[Value] = field(default_factory=list)
    hidden: float = -math.inf  # what masked scores become
    biases: list[Value] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Nothing was found yet that must see finished scores."""
        return self.scale == 1.0 and self.softcap is None

    def take_factor(self, n: Node, m: Match) -> Value | None:
        """s * c or s / c, or c * tanh(s)."""
        by, inner = factor(n), n.operands[0]
        if by is None or by == 0:
            return None
        if isinstance(inner.op, o.Tanh):  # c * tanh(u) is |c| * tanh(s / |c|) with s = c * u: tanh is odd
            if not self.plain or m.readers(inner) != 1 or not CAPS[0] <= abs(by) <= CAPS[1]:
                return None
            self.softcap, inner = abs(by), inner.node.operands[0]
        self.scale *= by
        return inner if normal(self.scale, n.types[0].dtype) else None

    def take_mask(self, n: Node) -> Value | None:
        """where(c, s, number) or where(c, number, s)."""
        cond, a, b = n.operands
        other, s = (b, a) if scalar(b) is not None else (a, b)
        hidden = scalar(other)
        if not isinstance(hidden, float) or not hidden < math.inf or s.shape != n.types[0].shape or not self.plain:
            return None
        cond = cond if s is a else o.LogicalNot()(cond)
        if (self.masks and hidden != self.hidden) or (self.biases and hidden != -math.inf) or not all(map(bounded, self.biases)):
            return None
        self.masks.append(cond)
        self.hidden = hidden
        return s


def bounded(v: Value) -> bool:
    """Provably no element is NaN or +inf: what is added to -inf leaves it."""
    if isinstance(v.op, (o.Expand, o.Reshape, o.Transpose, o.Slice)):
        return bounded(v.node.operands[0])
    if isinstance(v.op, o.Where):
        return all(map(bounded, v.node.operands[1:]))
    return isinstance(v.op, o.Constant) and not bool(np.any(np.isnan(v.op.data.array) | (v.op.data.array == np.inf)))


def trace(v: Value, m: Match) -> tuple[Node, Scores] | None:
    """Walk from the softmax's operand to the matmul, collecting what was done to the scores (last first). Casts may only widen: one that
    rounds is the model's wish."""
    found, at = Scores(), v
    while m.readers(at) == 1:
        n, above = at.node, None
        if isinstance(n.op, o.Matmul):
            found.scale *= n.op.alpha
            return (n, found) if n.op.dtype is None and normal(found.scale, at.dtype) else None
        if isinstance(n.op, o.Cast):
            above = n.operands[0] if n.operands[0].dtype.is_float and lossless(n.operands[0].dtype, at.dtype) else None
        elif isinstance(n.op, (o.Mul, o.Div)):
            above = found.take_factor(n, m)
        elif isinstance(n.op, o.Add) and found.softcap is None and normal(found.scale, n.types[0].dtype):
            above, bias = _main(n)
            if bias is not None and found.scale != 1.0:  # (s + b) * c
                bias = o.Mul()(bias, constant(m.graph, found.scale, bias.dtype))
            found.biases += [] if bias is None or scalar(bias) == 0 else [bias]
        elif isinstance(n.op, o.Reshape) and found.plain:
            above, bias = _of_windows(n, m)
            found.biases += [] if bias is None else [bias]
        elif isinstance(n.op, o.Where):
            above = found.take_mask(n)
        if above is None:
            return None
        at = above
    return None


def _main(n: Node) -> tuple[Value | None, Value | None]:
    """(scores, bias) of an addition: the scores are what leads up to a matmul of the result's shape."""
    for a, b in (n.operands, n.operands[::-1]):
        if a.shape == n.types[0].shape and _leads_to_matmul(a) and not _leads_to_matmul(b):
            return a, b
    return None, None


def _of_windows(n: Node, m: Match) -> tuple[Value | None, Value | None]:
    """(scores, bias) of reshape(reshape(s) + b), which adds to the windows of every image what is one for all images: the batch of s is
    two axes of the sum."""
    at, shape, bias = n.operands[0], n.types[0].shape, None
    if len(shape) != 4 or len(at.shape) != 5 or at.shape[2:] != shape[1:]:
        return None, None
    wide = at.shape
    while isinstance(at.op, o.Add) and m.readers(at) == 1:
        x, y = at.node.operands if _leads_to_windows(at.node.operands[0], wide) else at.node.operands[::-1]
        y = o.Reshape(shape=(1,) * (5 - len(y.shape)) + y.shape)(y)
        at, bias = x, y if bias is None else o.Add()(bias, y)
    if bias is None or not _leads_to_windows(at, wide) or m.readers(at) != 1 or at.node.operands[0].shape != shape:
        return None, None
    own = bias.shape[2:]
    return at.node.operands[0], o.Reshape(shape=(shape[0], *own))(o.Expand(shape=(*wide[:2], *own))(bias))


def _leads_to_windows(v: Value, shape: Shape) -> bool:
    while isinstance(v.op, o.Add) and v.shape == shape:
        v = next((x for x in v.node.operands if x.shape == shape), v.node.operands[0])
    return isinstance(v.op, o.Reshape) and v.shape == shape


def _leads_to_matmul(v: Value) -> bool:
    while isinstance(v.op, (o.Mul, o.Div, o.Cast, o.Add, o.Tanh, o.Where)):
        at = 0 if not isinstance(v.op, o.Where) else 1 if scalar(v.node.operands[1]) is None else 2
        v = v.node.operands[at]
    return isinstance(v.op, o.Matmul)


def four(x: Value) -> Value:
    """x with rank 4, by leading axes of size 1."""
    out: Value = x if len(x.shape) == 4 else o.Reshape(shape=(1,) * (4 - len(x.shape)) + x.shape)(x)
    return out


@rule(P(o.Matmul, name="root"), changes="rounding")
def attention(root: Any, m: Match) -> Value | None:
    p = root.operands[0]
    if isinstance(p.op, o.Cast) and m.readers(p) == 1 and lossless(p.dtype, p.node.operands[0].dtype):
        p = p.node.operands[0]  # the weights are rounded to the values' dtype
    return _attention(root, p, m, "nan") if isinstance(p.op, o.Softmax) and m.readers(p) == 1 else None


@rule(P(o.Matmul, Var("v"), P(o.Softmax, name="p", once=True), name="root"))
def values_in_columns(v: Value, p: Any, root: Any, m: Match) -> Value | None:
    """v @ p.T of images that keep their channels first is (p @ v.T).T."""
    op = root.op
    if not op.transpose_b or p.op.axis != len(p.value.shape) - 1 or trace(p.operands[0], m) is None:
        return None
    return swapped(dataclasses.replace(op, transpose_a=False, transpose_b=not op.transpose_a)(p.value, v))


@rule(P(o.Matmul, P(o.Where, P(o.IsNan, P(o.Softmax, name="p"), once=True), Var("zero"), P(o.Softmax, name="p"), once=True), Var("v"),
        name="root"), changes="hidden")
def guarded_attention(p: Any, zero: Value, v: Value, root: Any, m: Match) -> Value | None:
    """where(is_nan(p), 0, p) @ v, which exporters of PyTorch's attention write for rows whose every score is masked. Rows that are NaN
    because an operand is stay NaN, as in PyTorch."""
    plain = scalar(zero) == 0 and m.readers(p.value) == 2 and root.operands[1] is v and v.dtype.itemsize > 1  # small floats lack infinities
    return _attention(root, p.value, m, "zeros") if plain else None


def _attention(root: Any, p: Value, m: Match, empty: Any) -> Value | None:
    """Attention in place of `root`, whose left operand is made from the softmax p; `empty` is what a row without a key gives."""
    v, rank = root.operands[1], len(root.types[0].shape)
    if p.op.axis != len(p.shape) - 1:  # type: ignore[attr-defined]
        return None
    if rank > 4 or root.op.transpose_a or root.op.alpha != 1.0 or root.op.dtype is not None:
        return None
    traced = trace(p.node.operands[0], m)
    if traced is None:
        return None
    matmul, found = traced
    if empty == "zeros" and any(isinstance(x.op, o.Constant) and not bounded(x) for x in found.biases):
        return None  # rows that a known bias makes NaN are zeros there
    q, k = matmul.operands
    q = swapped(q) if matmul.op.transpose_a else q  # type: ignore[attr-defined]
    k = k if matmul.op.transpose_b else swapped(k)  # type: ignore[attr-defined]
    v = swapped(v) if root.op.transpose_b else v
    if not (q.shape[:-3] == k.shape[:-3] == v.shape[:-3]) or k.shape[-2] != v.shape[-2] or not (q.dtype == k.dtype == v.dtype):
        return None
    heads, one = q.shape[-3] if rank >= 3 else 1, (1,) * (rank - 2 > 0)
    if k.shape[-3:-2] != v.shape[-3:-2] or k.shape[-3:-2] not in (q.shape[-3:-2], one):  # heads of one group
        return None
    if not isinstance(heads, int) or heads == 0 or not at_least(k.shape[-2], 1):
        return None
    mask: Value | None = None
    for x in found.masks:
        mask = x if mask is None else o.LogicalAnd()(mask, x)
    bias: Value | None = None
    for x in found.biases:
        narrow = narrowed(x, q.dtype)
        if narrow is None:
            return None
        bias = narrow if bias is None else _sum(bias, narrow)
    op = o.Attention(scale=found.scale, softcap=found.softcap, has_mask=mask is not None, has_bias=bias is not None, hidden=found.hidden,
                     empty=empty)
    out: Value = op(four(q), four(k), four(v), *(x for x in (mask, bias) if x is not None))
    if out.shape != root.types[0].shape:
        out = o.Reshape(shape=root.types[0].shape)(out)
    return out


def _sum(a: Value, b: Value) -> Value:
    """The sum of two biases: of what windows share before it is repeated for every image."""
    wide = a.node.operands[0] if isinstance(a.op, o.Reshape) else a
    if isinstance(wide.op, o.Expand) and len(wide.shape) == 5 and len(a.shape) == 4 and a.shape[0] != 1 and b.shape[:-3] in ((), (1,)):
        once, own = wide.node.operands[0], (1, 1, *((1,) * (3 - len(b.shape[-3:])) + b.shape[-3:]))
        total = o.emit(o.Add(), once, o.Reshape(shape=own)(b))
        own = total.shape[-3:]
        return o.emit(o.Reshape(shape=(a.shape[0], *own)), o.Expand(shape=(*wide.shape[:2], *own))(total))
    return o.emit(o.Add(), a, b)


def narrowed(x: Value, dtype: DType) -> Value | None:
    """x in `dtype`, if it was in that one or a smaller one before it was widened."""
    while isinstance(x.op, o.Cast) and x.dtype != dtype and x.node.operands[0].dtype.is_float:
        x = x.node.operands[0]
    if x.dtype == dtype or not lossless(x.dtype, dtype):
        return x if x.dtype == dtype else None
    return o.emit(o.Cast(dtype=dtype), x)


def repeated(v: Value) -> tuple[Value, int] | None:
    """(x, times) when v repeats each head of x[B,Hkv,S,D]: reshape(expand(reshape(x, [B,Hkv,1,S,D]), [B,Hkv,times,S,D]))."""
    if not isinstance(v.op, o.Reshape) or not isinstance(v.node.operands[0].op, o.Expand):
        return None
    wide = v.node.operands[0]
    narrow = wide.node.operands[0]
    if len(wide.shape) != 5 or len(narrow.shape) != 5:
        return None
    b, h, times, s, d = wide.shape
    if narrow.shape != (b, h, 1, s, d) or v.shape != (b, h * times, s, d) or not isinstance(times, int):
        return None
    x: Value = o.Reshape(shape=(b, h, s, d))(narrow)
    return x, times


@rule(P(o.Add, P(o.Where, name="mask", once=True), Var("bias"), name="root"), changes="hidden")
def mask_under_bias(mask: Any, bias: Value, root: Any, m: Match) -> Value | None:
    """where(c, s, low) + b of scores, where s + low is low for every score: the mask becomes a part of the bias."""
    c, s, low = mask.operands
    number = scalar(low)
    if not isinstance(number, float) or number == -math.inf or not hides(number, compute_dtype(low.dtype)) or not _leads_to_matmul(s):
        return None
    if s.shape != root.types[0].shape or not all(isinstance(n.op, (o.Softmax, o.Cast)) for n in m.users(root.value)):
        return None
    return o.emit(o.Add(), s, o.Where()(c, bias, o.Add()(bias, low)))


@rule(P(o.Attention, name="root"))
def grouped_heads(root: Any) -> Value | None:
    q, k, v, *rest = root.operands
    keys, values = repeated(k), repeated(v)
    if keys is None or values is None or keys[1] != values[1]:
        return None
    return o.emit(root.op, q, keys[0], values[0], *rest)


@rule(P(o.Attention, name="root"), changes="rounding")
def scaled_query(root: Any) -> Value | None:
    """A scalar factor on q or k is part of the scale."""
    q, k, v, *rest = root.operands
    for at, x in ((0, q), (1, k)):
        by = factor(x.node) if isinstance(x.op, (o.Mul, o.Div)) else None
        if by is not None and moves(by) and normal(root.op.scale * by, x.dtype):
            operands = [q, k, v, *rest]
            operands[at] = x.node.operands[0]
            return o.emit(dataclasses.replace(root.op, scale=root.op.scale * by), *operands)
    return None


RULES = [mask_under_bias, values_in_columns, attention, guarded_attention, grouped_heads, scaled_query, scaled_view]
