"""Rotary embedding from its spelled-out forms: rotate-half (x*cos + concat(-x2, x1)*sin), and pairs of neighbours."""
from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dims import Dim
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Var, rule
from ..ir.types import TensorType
from .base import scalar

COS, SIN = Var("cos"), Var("sin")


def part_of(v: Value) -> tuple[Value, Dim, Dim]:
    """(x, start, size): the value of which v is a piece along the last axis only (v itself, if it is no piece)."""
    if not v.shape:
        return v, 0, 0
    last, op, start = len(v.shape) - 1, v.op, None
    if isinstance(op, o.Slice):
        x = v.node.operands[0]
        if all(k == 1 for k in op.steps) and all(s == 0 for s in op.starts[:last]) and op.sizes[:last] == x.shape[:last]:
            start = op.starts[last]
    elif isinstance(op, o.Split) and op.axis == last:
        start = sum(op.sizes[: v.index], 0)
    if start is None:
        return v, 0, v.shape[-1]
    root, more, _ = part_of(v.node.operands[0])
    return root, start + more, v.shape[-1]


def half(v: Value, m: Match) -> Value | None:
    """The first half of v along its last axis, when the second half provably equals it: made without computing v."""
    n = v.shape[-1]
    last = len(v.shape) - 1
    op, operands = v.op, v.node.operands
    if isinstance(op, o.Constant):
        a = op.data.array
        h = a.shape[-1] // 2
        first, second = a[..., :h], a[..., h:]
        if a.nbytes > 64 << 20 or not (np.array_equal(first, second) and np.array_equal(np.signbit(first), np.signbit(second))):
            return None
        return o.emit(o.Slice(starts=(0,) * a.ndim, sizes=(*a.shape[:-1], h), steps=(1,) * a.ndim), v)
    if isinstance(op, o.Concat):
        return operands[0] if op.axis == last and len(operands) == 2 and operands[0] is operands[1] else None
    if isinstance(op, o.Reshape) and operands[0].shape and operands[0].shape[-1] == n:
        inner = half(operands[0], m)
        return None if inner is None else o.Reshape(shape=(*v.shape[:-1], inner.shape[-1]))(inner)
    if isinstance(op, o.Expand) and operands[0].shape and operands[0].shape[-1] == n:
        inner = half(operands[0], m)
        return None if inner is None else o.Expand(shape=(*v.shape[:-1], inner.shape[-1]))(inner)
    if isinstance(op, o.Slice) and operands[0].shape[-1] == n:
        inner = half(operands[0], m)
        return None if inner is None else o.Slice(starts=op.starts, sizes=(*op.sizes[:-1], inner.shape[-1]), steps=op.steps)(inner)
    if isinstance(op, o.Gather) and op.axis == 0 and len(operands[0].shape) >= 2:
        inner = half(operands[0], m)
        return None if inner is None else op(inner, operands[1])
    if op.traits.elementwise and not isinstance(op, o.Where):
        halves = [u if not u.shape or u.shape[-1] == 1 else half(u, m) for u in operands]
        parts = [p for p in halves if p is not None]
        return op(*parts) if len(parts) == len(operands) else None
    return None


def regrouped(v: Value) -> Value:
    """v before reshapes that keep its last axis."""
    while isinstance(v.op, o.Reshape) and v.shape and v.node.operands[0].shape[-1:] == v.shape[-1:]:
        v = v.node.operands[0]
    return v


def piece_of(v: Value) -> tuple[Any, Dim, Dim]:
    """(what, start, size): v is elements start to start + size of the rows of `what`: a value, or one and the slice that takes its rows."""
    root, start, size = part_of(regrouped(v))
    root = regrouped(root)
    if isinstance(root.op, o.Slice) and root.op.steps[-1] == 1:
        op = root.op
        return (root.node.operands[0], op.starts[:-1], op.sizes[:-1], op.steps[:-1]), op.starts[-1] + start, size
    return root, start, size


def factors(v: Value) -> Iterator[tuple[Value, Value]]:
    """The operands of a product, in both orders, also of one that was regrouped later."""
    product = regrouped(v)
    if isinstance(product.op, o.Mul):
        a, b = product.node.operands
        yield a, b
        yield b, a


@rule(P(o.Add, name="root"), changes="rounding")
def rope(root: Any, m: Match) -> Value | None:
    """x*cos + concat(-x2, x1)*sin."""
    for one, two in (root.operands, root.operands[::-1]):
        for (t, sin), (x, cos) in itertools.product(factors(two), factors(one)):
            rotated = regrouped(t)
            if isinstance(rotated.op, o.Concat) and x.shape == t.shape:
                out = _rotated(x, cos, sin, rotated, root.types[0], m)
                if out is not None:
                    return out
    return None


def _rotated(x: Value, cos: Value, sin: Value, rotated: Value, result: TensorType, m: Match) -> Value | None:
    n = x.shape[-1] if x.shape else 0
    if x.dtype != result.dtype or x.type.numel != result.numel or not isinstance(n, int) or n % 2 or len(rotated.node.operands) != 2:
        return None
    second, first = rotated.node.operands
    if rotated.op.axis != len(rotated.shape) - 1 or not isinstance(second.op, o.Neg):  # type: ignore[attr-defined]
        return None
    rows, start, _ = piece_of(x)
    a, b = piece_of(second.node.operands[0]), piece_of(first)
    if a != (rows, start + n // 2, n // 2) or b != (rows, start, n // 2) or scalar(cos) is not None:
        return None
    if any(not t.shape or t.shape[-1] != n or len(t.shape) > len(x.shape) for t in (cos, sin)):
        return None
    c, s = half(cos, m), half(sin, m)
    if c is None or s is None:
        return None
    out: Value = o.Rope()(x, c, s)
    return out if out.shape == result.shape else o.Reshape(shape=result.shape)(out)


@rule(P(o.Concat, P(o.Rope, name="rotated"), Var("rest"), name="root"), changes="rounding")
def partial_rope(rotated: Any, rest: Value, root: Any) -> Value | None:
    """Only the first elements of each row are rotated, the others pass."""
    a, b = part_of(rotated.operands[0]), part_of(rest)
    last = len(root.types[0].shape) - 1
    width = root.types[0].shape[-1]
    x, start, n = a
    if x is not b[0] or b[1] != start + n or root.op.axis != last or rotated.op.n_rot is not None or not isinstance(n, int):
        return None
    whole: Value = x
    if x.shape[-1] != width:
        zeros = (0,) * last
        whole = o.Slice(starts=(*zeros, start), sizes=root.types[0].shape, steps=(1,) * (last + 1))(x)
    return o.emit(dataclasses.replace(rotated.op, n_rot=n), whole, *rotated.operands[1:])


TURN = (P(o.Sub, P(o.Mul, Var("a"), COS), P(o.Mul, Var("b"), SIN)), P(o.Add, P(o.Mul, Var("b"), COS), P(o.Mul, Var("a"), SIN)))


@rule(P(o.Concat, *TURN, name="root"), changes="rounding")
def rope_of_halves(a: Value, b: Value, cos: Value, sin: Value, root: Any) -> Value | None:
    """concat(x1*cos - x2*sin, x2*cos + x1*sin): each half written out."""
    last, shape = len(a.shape) - 1, root.types[0].shape
    (x, start, n), second = part_of(a), part_of(b)
    if root.op.axis != last or second != (x, start + n, n) or a.shape != b.shape or not isinstance(n, int) or shape[last] != 2 * n:
        return None
    whole: Value = x
    if x.shape != shape:
        whole = o.Slice(starts=(*(0,) * last, start), sizes=shape, steps=(1,) * (last + 1))(x)
    return o.emit(o.Rope(), whole, cos, sin)


@rule(P(o.Reshape, P(o.Concat, P(o.Reshape, TURN[0]), P(o.Reshape, TURN[1]), name="pairs"), name="root"), changes="rounding")
def rope_of_pairs(a: Value, b: Value, cos: Value, sin: Value, pairs: Any, root: Any) -> Value | None:
    """The same with neighbours: the two results are stacked on a new last axis and flattened."""
    shape, first, second = root.types[0].shape, lane_of(a), lane_of(b)
    if first is None or second is None or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
        return None
    stacked = pairs.types[0].shape
    if stacked != (*a.shape, 2) or pairs.op.axis != len(stacked) - 1 or first[0].shape != shape:
        return None
    return o.emit(o.Rope(interleaved=True), first[0], cos, sin)


def lane_of(v: Value) -> tuple[Value, int] | None:
    """(x, 0 or 1): v holds the even or odd elements of x's rows, by a step of 2 or by pairs on a last axis."""
    if isinstance(v.op, o.Slice):
        op, x = v.op, v.node.operands[0]
        last = len(x.shape) - 1
        plain = all(s == 0 for s in op.starts[:last]) and op.sizes[:last] == x.shape[:last] and op.steps == (*(1,) * last, 2)
        start = op.starts[last]
        return (x, start) if plain and start in (0, 1) and isinstance(start, int) and x.shape[last] == 2 * op.sizes[last] else None
    if not isinstance(v.op, o.Reshape) or not v.shape:
        return None
    pair, start, size = part_of(v.node.operands[0])
    if size != 1 or pair.shape != (*v.shape, 2) or not isinstance(pair.op, o.Reshape) or start not in (0, 1) or not isinstance(start, int):
        return None
    x = pair.node.operands[0]
    return (x, start) if x.shape == (*v.shape[:-1], 2 * v.shape[-1]) else None


RULES = [rope, partial_rope, rope_of_halves, rope_of_pairs]
