"""GELU (exact and tanh), SiLU and sigmoid from their spelled-out forms."""
from __future__ import annotations

import math
from typing import Any

from .. import ops as o
from ..ir.graph import Value
from ..ir.rewrite import P, Such, X, rules
from .base import close, is_number, scalar

HALF = Such("half", lambda v: is_number(v, 0.5))
ONE = Such("one", lambda v: is_number(v, 1.0))
K = math.sqrt(2 / math.pi)


NUMBERS = (2.0**-16, 2.0**16)  # coefficients: positive, so that nothing cancels, and no step overflows that the whole does not


def polynomial(v: Value, x: Value, depth: int = 8) -> dict[int, float] | None:
    """v as a polynomial in x (power -> coefficient), through sums, products, squares and numbers."""
    if v is x:
        return {1: 1.0}
    number = scalar(v)
    if number is not None:
        return {0: float(number)} if NUMBERS[0] <= number <= NUMBERS[1] else None
    if depth == 0:
        return None
    parts = [polynomial(u, x, depth - 1) for u in v.node.operands] if isinstance(v.op, (o.Add, o.Mul, o.Div, o.Square)) else [None]
    known = [p for p in parts if p is not None]
    if len(known) != len(parts):
        return None
    a, b = known[0], known[-1]
    if isinstance(v.op, o.Add):
        return {k: a.get(k, 0.0) + b.get(k, 0.0) for k in {*a, *b}}
    if isinstance(v.op, o.Div):
        return {k: c / b[0] for k, c in a.items()} if set(b) == {0} else None
    out: dict[int, float] = {}
    for i, c in a.items():
        for j, d in b.items():
            out[i + j] = out.get(i + j, 0.0) + c * d
    return out


def gelu(x: Value, inner: Any) -> Value | None:
    found = polynomial(inner.operands[0], x)
    if found is None:
        return None
    exact = isinstance(inner.op, o.Erf)
    want = {1: math.sqrt(0.5)} if exact else {1: K, 3: K * 0.044715}
    if set(found) != set(want) or not all(close(found[k], want[k], x.dtype) for k in want):
        return None
    return o.emit(o.Gelu(approximate="none" if exact else "tanh"), x)


BEND = P(o.Add, P((o.Tanh, o.Erf), name="inner"), ONE)
DENOMINATOR = P(o.Add, P(o.Exp, P(o.Neg, X)), ONE)
RULES = [
    *rules(gelu, changes="rounding", gelu_half_first=P(o.Mul, P(o.Mul, X, HALF), BEND), gelu_half_inside=P(o.Mul, X, P(o.Mul, BEND, HALF)),
           gelu_half_last=P(o.Mul, P(o.Mul, X, BEND), HALF)),
    *rules(lambda x: o.emit(o.Sigmoid(), x), changes="rounding", sigmoid=P(o.Reciprocal, DENOMINATOR)),
    *rules(lambda x: o.emit(o.Silu(), x), changes="rounding", silu_by_division=P(o.Div, X, DENOMINATOR), silu=P(o.Mul, X, P(o.Sigmoid, X))),
]
