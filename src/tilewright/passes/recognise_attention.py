"""Attention from a softmax between two matmuls, grouped heads from repeated keys and values."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from .. import ops as o
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, rule
from .base import constant, scalar, swapped

HIDDEN = -1e9  # added to a score it leaves nothing of it, in f32


@dataclass
class Scores:
    """The way from a softmax up to q @ k.T."""

    matmul: Node
    scale: float = 1.0
    softcap: float | None = None
    masks: list[Value] = field(default_factory=list)
    biases: list[Value] = field(default_factory=list)


def trace(v: Value, m: Match) -> Scores | None:
    """Walk from the softmax's operand to the matmul, collecting what was done to the scores (last first)."""
    factor = 1.0  # of everything still above
    capped: float | None = None
    masks: list[Value] = []
    biases: list[Value] = []
    while m.readers(v) == 1:
        n = v.node
        if isinstance(n.op, o.Matmul):
            if n.op.dtype is not None:
                return None
            return Scores(n, factor * n.op.alpha, capped, masks, biases)
        if isinstance(n.op, o.Cast):
            if not n.operands[0].dtype.is_float:
                return None
            v = n.operands[0]
        elif isinstance(n.op, (o.Mul, o.Div)):
            number = scalar(n.operands[1])
            if number is None or isinstance(number, bool) or number == 0:
                return None
            by = 1.0 / number if isinstance(n.op, o.Div) else float(number)
            inner = n.operands[0]
            if isinstance(inner.op, o.Tanh):  # cap * tanh(s / cap): the scores above are s = cap * what tanh sees
                if capped is not None or factor != 1.0 or m.readers(inner) != 1:
                    return None
                capped, factor, v = by, by, inner.node.operands[0]
            else:
                factor, v = factor * by, inner
        elif isinstance(n.op, o.Add) and factor == 1.0 and capped is None:
            main, bias = _main(n)
            if main is None or bias is None:
                return None
            biases.append(bias)
            v = main
        elif isinstance(n.op, o.Where) and factor == 1.0 and capped is None:
            cond, a, b = n.operands
            hidden, v = (b, a) if scalar(b) is not None else (a, b)
            cond = cond if v is a else o.LogicalNot()(cond)
            number = scalar(hidden)
            if number is None or number > HIDDEN or v.shape != n.types[0].shape:
                return None
            if number == float("-inf"):
                masks.append(cond)
            else:  # a huge negative number instead of minus infinity: fully masked rows stay an average of all values
                biases.append(o.Where()(cond, constant(m.graph, 0.0, hidden.dtype), hidden))
        else:
            return None
    return None


def _main(n: Node) -> tuple[Value | None, Value | None]:
    """(scores, bias) of an addition: the scores are what leads up to a matmul of the result's shape."""
    for a, b in (n.operands, n.operands[::-1]):
        if a.shape == n.types[0].shape and _leads_to_matmul(a) and not _leads_to_matmul(b):
            return a, b
    return None, None


def _leads_to_matmul(v: Value) -> bool:
    while isinstance(v.op, (o.Mul, o.Div, o.Cast, o.Add, o.Tanh, o.Where)):
        at = 0 if not isinstance(v.op, o.Where) else 1 if scalar(v.node.operands[1]) is None else 2
        v = v.node.operands[at]
    return isinstance(v.op, o.Matmul)


def four(x: Value) -> Value:
    """x with rank 4, by leading axes of size 1."""
    out: Value = x if len(x.shape) == 4 else o.Reshape(shape=(1,) * (4 - len(x.shape)) + x.shape)(x)
    return out


@rule(P(o.Matmul, name="root"))
def attention(root: Any, m: Match) -> Value | None:
    p, v = root.operands
    while isinstance(p.op, o.Cast) and m.readers(p) == 1:
        p = p.node.operands[0]
    rank = len(root.types[0].shape)
    if not isinstance(p.op, o.Softmax) or m.readers(p) != 1 or p.op.axis != len(p.shape) - 1:
        return None
    if rank > 4 or root.op.transpose_a or root.op.alpha != 1.0 or root.op.dtype is not None:
        return None
    found = trace(p.node.operands[0], m)
    if found is None:
        return None
    q, k = found.matmul.operands
    q = swapped(q) if found.matmul.op.transpose_a else q  # type: ignore[attr-defined]
    k = k if found.matmul.op.transpose_b else swapped(k)  # type: ignore[attr-defined]
    v = swapped(v) if root.op.transpose_b else v
    if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]) or k.shape[-2] != v.shape[-2] or not (q.dtype == k.dtype == v.dtype):
        return None
    heads = q.shape[-3] if rank >= 3 else 1
    if not isinstance(heads, int):
        return None
    mask: Value | None = None
    for x in found.masks:
        mask = x if mask is None else o.LogicalAnd()(mask, x)
    bias: Value | None = None
    for x in found.biases:
        x = x if x.dtype == q.dtype else o.Cast(dtype=q.dtype)(x)
        bias = x if bias is None else o.Add()(bias, x)
    op = o.Attention(scale=found.scale, softcap=found.softcap, has_mask=mask is not None, has_bias=bias is not None)
    out: Value = op(four(q), four(k), four(v), *(x for x in (mask, bias) if x is not None))
    if out.shape != root.types[0].shape:
        out = o.Reshape(shape=root.types[0].shape)(out)
    return out if out.type == root.types[0] else None


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


@rule(P(o.Attention, name="root"))
def grouped_heads(root: Any) -> Value | None:
    q, k, v, *rest = root.operands
    keys, values = repeated(k), repeated(v)
    if keys is None or values is None or keys[1] != values[1]:
        return None
    out: Value = root.op(q, keys[0], values[0], *rest)
    return out


@rule(P(o.Attention, name="root"))
def scaled_query(root: Any) -> Value | None:
    """A scalar factor on q or k is part of the scale."""
    q, k, v, *rest = root.operands
    for at, x in ((0, q), (1, k)):
        if isinstance(x.op, (o.Mul, o.Div)) and x.node.operands[0].type == x.type:
            number = scalar(x.node.operands[1])
            if isinstance(number, float) and number != 0 and abs(number) != float("inf"):
                by = 1.0 / number if isinstance(x.op, o.Div) else number
                operands = [q, k, v, *rest]
                operands[at] = x.node.operands[0]
                out: Value = dataclasses.replace(root.op, scale=root.op.scale * by)(*operands)
                return out
    return None


RULES = [attention, grouped_heads, scaled_query]
