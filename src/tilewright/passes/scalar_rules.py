"""Rules about arithmetic with numbers: neutral elements go, one spelling for each operation."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import DType
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, Such, X, Y, Z, rule, rules
from .base import DIGITS, constant, scalar

C = Such("c", lambda v: scalar(v) is not None)
HOLDS = {"bool": 1, "u8": 8, "i8": 7, "u16": 16, "i16": 15, "u32": 32, "i32": 31, "u64": 64, "i64": 63}  # bits of a non-negative int
RANGE = {"f8e4m3": 4, "f8e5m2": 5, "f16": 5, "bf16": 8, "f32": 8, "f64": 11}  # bits of the exponent


def lossless(a: DType, b: DType) -> bool:
    """Every value of a is a value of b."""
    if a is b or a.is_bool:
        return True
    if a.is_float:
        return b.is_float and DIGITS[a.name] <= DIGITS[b.name] and RANGE[a.name] <= RANGE[b.name]
    if b.is_float:
        return HOLDS[a.name] <= DIGITS[b.name] and RANGE[b.name] >= 8
    return b.is_int and HOLDS[a.name] <= HOLDS[b.name] and not (a.kind == "i" and b.kind == "u")


def spread(root: Node, x: Value) -> Value:
    """x in the root's shape."""
    out: Value = x if x.shape == root.types[0].shape else o.Expand(shape=root.types[0].shape)(x)
    return out


POSITIVE = (o.Exp, o.Square, o.Abs, o.Sigmoid, o.Softmax, o.Var)
KEEPS_SIGN = (o.Mean, o.Sum, o.Max, o.Sqrt, o.Add, o.Mul, o.Expand, o.Reshape, o.Transpose, o.Slice)


def positive(v: Value, depth: int = 8) -> bool:
    """Provably no element is negative or -0.0 (some may be NaN)."""
    number = scalar(v)
    if number is not None:
        return math.copysign(1.0, number) > 0
    if isinstance(v.op, KEEPS_SIGN) and depth:
        return all(positive(u, depth - 1) for u in v.node.operands)
    return isinstance(v.op, POSITIVE)


@rule(P(o.Cast, P(o.Cast, X, name="inner"), name="outer"))
def cast_of_cast(x: Value, inner: Any, outer: Any) -> Value | None:
    """The first of two casts goes when it loses nothing (and bool asks only: is it zero)."""
    if not lossless(x.dtype, inner.types[0].dtype):
        return None
    return o.emit(o.Cast(dtype=outer.op.dtype), x)


@rule(P((o.Add, o.Sub), X, C, name="root"))
def add_zero(x: Value, c: Value, root: Any) -> Value | None:
    """-0.0 + 0.0 is 0.0: of floats, only -0.0 is neutral (0.0, where it is subtracted)."""
    zero = scalar(c)
    if zero is None or zero != 0 or root.types[0].dtype.is_bool:
        return None
    neutral = not c.dtype.is_float or (math.copysign(1.0, zero) < 0) == isinstance(root.op, o.Add) or positive(x)
    return spread(root, x) if neutral else None


@rule(P((o.Mul, o.Div), X, C, name="root"))
def times_one(x: Value, c: Value, root: Node) -> Value | None:
    return spread(root, x) if scalar(c) == 1 and not root.types[0].dtype.is_bool else None


@rule(P(o.Sub, X, C, name="root"))
def subtract_number(x: Value, c: Value, m: Match) -> Value | None:
    """x - c is x + (-c); unsigned numbers have no negatives."""
    number = scalar(c)
    if number is None or c.dtype.kind not in "fi" or isinstance(x.op, o.Constant) or len(c.shape):
        return None
    if c.dtype.is_int and number == np.iinfo(c.dtype.np).min:  # has none either
        return None
    return o.emit(o.Add(), x, constant(m.graph, -number, c.dtype))


@rule(P(o.Div, X, C))
def divide_by_power_of_two(x: Value, c: Value, m: Match) -> Value | None:
    number = scalar(c)
    if not isinstance(number, float) or number == 0 or not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5 or len(c.shape):
        return None
    inverse = 1.0 / number
    if float(c.dtype.np.type(inverse)) != inverse or abs(inverse) < 2.0**-14:
        return None
    return o.emit(o.Mul(), x, constant(m.graph, inverse, c.dtype))


@rule(P((o.Add, o.Mul, o.Maximum, o.Minimum), name="root"))
def constant_on_the_right(root: Any) -> Value | None:
    a, b = root.operands
    if not isinstance(a.op, o.Constant) or isinstance(b.op, o.Constant):
        return None
    if isinstance(root.op, (o.Maximum, o.Minimum)) and scalar(a) in (None, 0.0):  # they take the second of 0.0 and -0.0
        return None
    return o.emit(root.op, b, a)


@rule(P(o.Pow, X, C, name="root"), changes="rounding")
def small_power(x: Value, c: Value, root: Node) -> Value | None:
    """Powers of -0.0 and -inf to 0.5 have other signs than roots."""
    number = scalar(c)
    if not x.dtype.is_float:
        return None
    if number == 1:
        return x
    if number == 3:
        return o.emit(o.Mul(), o.Square()(x), x)
    table: dict[float, Any] = {2: o.Square, -1: o.Reciprocal} | ({0.5: o.Sqrt, -0.5: o.Rsqrt} if positive(x) else {})
    if number not in table:
        return None
    return o.emit(table[number](), x)


@rule(P(o.Mul, X, X, name="root"))
def times_itself(x: Value, root: Node) -> Value | None:
    if not x.dtype.is_float:
        return None
    return o.emit(o.Square(), x)


@rule(P(o.Div, Such("c", lambda v: scalar(v) == 1), X, name="root"))
def one_over(x: Value, root: Node) -> Value | None:
    if not x.dtype.is_float:
        return None
    return o.emit(o.Reciprocal(), x)


@rule(P((o.BitwiseAnd, o.BitwiseOr, o.BitwiseXor, o.BitwiseNot), name="root"))
def bits_of_bools(root: Any) -> Value | None:
    if not root.types[0].dtype.is_bool:
        return None
    table: dict[type, Any] = {o.BitwiseAnd: o.LogicalAnd, o.BitwiseOr: o.LogicalOr, o.BitwiseXor: o.LogicalXor, o.BitwiseNot: o.LogicalNot}
    return o.emit(table[type(root.op)](), *root.operands)


@rule(P((o.LogicalAnd, o.LogicalOr), X, C, name="root"))
def logic_with_constant(x: Value, c: Value, root: Any) -> Value | None:
    neutral = isinstance(root.op, o.LogicalAnd)
    return spread(root, x) if scalar(c) == neutral else None


@rule(P(o.Where, X, Y, Z, name="root"))
def decided_where(x: Value, y: Value, z: Value, root: Node) -> Value | None:
    known = scalar(x)
    if known is None:
        return spread(root, y) if y is z else None
    return spread(root, y if known else z)


RULES = [
    *rules(lambda x, root: spread(root, x), cast_to_itself=P(o.Cast, X, name="root")), cast_of_cast, add_zero, times_one,
    *rules(lambda x: x, double_negation=P(o.Neg, P(o.Neg, X)), double_not=P(o.LogicalNot, P(o.LogicalNot, X))),
    *rules(lambda x, y: o.emit(o.Sub(), x, y), add_negative=P(o.Add, X, P(o.Neg, Y))),
    *rules(lambda x, y: o.emit(o.Add(), x, y), subtract_negative=P(o.Sub, X, P(o.Neg, Y))), subtract_number,
    divide_by_power_of_two, constant_on_the_right, small_power, times_itself, one_over, bits_of_bools, logic_with_constant, decided_where]
