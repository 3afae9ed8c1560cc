"""Ops on complex numbers in terms of real and imaginary parts. A pass writes them so before kernels are chosen, and derivatives go through
them too: a cotangent of z is the pair of its parts' cotangents, which is PyTorch's convention. What has no rule here takes no complex
operands."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.dtypes import real_of
from ...core.errors import UnsupportedError
from ...ir.graph import Graph, Node, Value
from .. import functions as F
from ..base import Op, Values
from ..families import values_of
from .parts import join, parts

Pair = tuple[Value, Value]
KEPT = frozenset(("input", "real", "imag", "complex", "view_as_real", "view_as_complex", "scan", "while", "cond", "custom_vjp",
                  "custom_forward", "custom_jvp", "checkpoint"))
RULES: dict[str, Callable[..., Value]] = {}


def rule(fn: Callable[..., Value]) -> Callable[..., Value]:
    RULES[fn.__name__.rstrip("_")] = fn
    return fn


def has_complex(node: Node) -> bool:
    """Whether the node computes on complex numbers (and is not only their start, end or container)."""
    kinds = [v.dtype.kind for v in (*node.operands, *node.values)]
    return "c" in kinds and node.op.name not in KEPT


def lowered(op: Op, operands: Values, graph: Graph) -> Values:
    """The op's results, complex ones made of their parts."""
    if op.name == "constant":
        array = op.attrs()["data"].array
        return (join(graph.constant(np.array(array.real)), graph.constant(np.array(array.imag))),)
    if op.name in RULES:
        return values_of(RULES[op.name](op, *operands))
    if op.complex != "parts":
        raise UnsupportedError(f"{op.name}: is not defined here for complex operands; take real and imaginary parts")
    halves = [values_of(op(*(parts(v)[k] if v.dtype.kind == "c" else v for v in operands))) for k in range(2)]
    return tuple(join(a, b) if a.dtype.is_float else a for a, b in zip(*halves, strict=True))


def expanded(node: Node) -> Graph:
    """A node with complex operands as a graph over their parts."""
    made = Graph(node.op.name)
    made.place = node.place
    inputs = tuple(made.input(v.type, f"x{i}") for i, v in enumerate(node.operands))
    made.outputs = list(lowered(node.op, inputs, made))
    return made


# --- arithmetic ------------------------------------------------------------------------------------------------------------------
def times(a: Pair, b: Pair) -> Pair:
    return (F.sub(F.mul(a[0], b[0]), F.mul(a[1], b[1])), F.add(F.mul(a[0], b[1]), F.mul(a[1], b[0])))


def over(a: Pair, b: Pair) -> Pair:
    """a / b by Smith's formula, as NumPy and PyTorch compute it: squares neither overflow nor vanish, zeros and infinities divide."""
    (x, y), (c, d) = a, b
    c_size, d_size = F.abs_(c), F.abs_(d)
    wide = F.greater_equal(c_size, d_size)
    large, small = F.where(wide, c, d), F.where(wide, d, c)
    ratio = F.div(small, large)
    scale = F.div(1, F.add(large, F.mul(small, ratio)))
    rx, ry = F.mul(x, ratio), F.mul(y, ratio)
    re = F.mul(F.where(wide, F.add(x, ry), F.add(rx, y)), scale)
    im = F.mul(F.where(wide, F.sub(y, rx), F.sub(ry, x)), scale)
    zero = F.equal(F.maximum(c_size, d_size), 0)
    return F.where(zero, F.div(x, c_size), re), F.where(zero, F.div(y, d_size), im)


def magnitude(z: Value) -> Value:
    """|z|; its derivative at 0 is 0."""
    re, im = parts(z)
    none = F.logical_and(F.equal(re, 0), F.equal(im, 0))
    return F.where(none, 0, F.one("hypot", F.where(none, 1, re), im))


def conj(z: Value) -> Value:
    re, im = parts(z)
    return join(re, F.neg(im))


def angle(z: Value) -> Value:
    """The argument of z, in -pi..pi; of a real number 0 or pi."""
    if z.dtype.kind == "c":
        re, im = parts(z)
        none = F.logical_and(F.equal(re, 0), F.equal(im, 0))
        return F.where(none, F.one("atan2", F.one("stop_gradient", im), F.one("stop_gradient", re)),
                       F.one("atan2", F.where(none, 0, im), F.where(none, 1, re)))
    straight = F.where(F.less(z, 0), float(np.pi), F.zeros(z))
    return F.where(F.one("is_nan", z), z, straight) if z.dtype.is_float else straight


def polar(size: Value, angle: Value) -> Value:
    return join(F.mul(size, F.one("cos", angle)), F.mul(size, F.one("sin", angle)))


def scalar(like: Value, number: float) -> Pair:
    one = F.full(like.node.graph, (), number, like.dtype)
    return one, F.full(like.node.graph, (), 0.0, like.dtype)


@rule
def reciprocal(op: Op, x: Value) -> Value:
    re, im = parts(x)
    return join(*over((F.expand(scalar(re, 1.0)[0], re.shape), F.zeros(re)), (re, im)))


@rule
def sign(op: Op, x: Value) -> Value:
    """z / |z|, 0 at 0."""
    re, im = parts(x)
    size = magnitude(x)
    none = F.equal(size, 0)
    safe = F.where(none, 1, size)
    return join(F.where(none, 0, F.div(re, safe)), F.where(none, 0, F.div(im, safe)))


def odd(x: Value) -> Value:
    """Whether x is infinite or NaN."""
    return F.logical_not(F.equal(F.sub(x, x), 0))


def zero_wins(a: Value, b: Value) -> Value:
    """a b, but 0 where one is 0 and the other infinite or NaN, as C has it of complex functions."""
    none = F.logical_or(F.logical_and(F.equal(a, 0), odd(b)), F.logical_and(F.equal(b, 0), odd(a)))
    return F.where(none, 0, F.mul(a, b))


@rule
def exp(op: Op, x: Value) -> Value:
    re, im = parts(x)
    size = F.exp(re)
    endless = F.logical_and(F.equal(re, float("inf")), odd(im))
    return join(F.where(endless, size, zero_wins(size, F.one("cos", im))), zero_wins(size, F.one("sin", im)))


@rule
def log(op: Op, x: Value) -> Value:
    return join(F.log(magnitude(x)), angle(x))


@rule
def sqrt(op: Op, x: Value) -> Value:
    """The root with a real part that is not negative."""
    re, im = parts(x)
    none = F.logical_and(F.equal(re, 0), F.equal(im, 0))
    safe = F.where(none, 1, re)
    t = F.sqrt(F.mul(F.add(F.abs_(safe), F.one("hypot", safe, im)), 0.5))
    other = F.div(F.mul(im, 0.5), t)
    negative = F.less(re, 0)
    a = F.where(negative, F.abs_(other), t)
    b = F.where(negative, F.one("copysign", t, im), other)
    high = F.one("is_inf", im)
    return join(F.where(none, 0, F.where(high, float("inf"), a)), F.where(none, 0, F.where(high, im, b)))


@rule
def tanh(op: Op, x: Value) -> Value:
    re, im = parts(x)
    t, u = F.tanh(re), F.where(F.one("is_inf", re), 0, F.one("tan", im))
    below = F.add(F.square(F.mul(t, u)), 1)
    return join(zero_wins(t, F.div(F.add(F.square(u), 1), below)), zero_wins(u, F.div(F.square(F.div(1, F.one("cosh", re))), below)))


@rule
def tan(op: Op, x: Value) -> Value:
    """-i tanh(iz)."""
    re, im = parts(x)
    a, b = parts(tanh(op, join(F.neg(im), re)))
    return join(b, F.neg(a))


@rule
def sigmoid(op: Op, x: Value) -> Value:
    re, im = parts(exp(op, join(*(F.neg(p) for p in parts(x)))))
    return reciprocal(op, join(F.add(re, 1), im))


@rule
def pow_(op: Op, x: Value, y: Value) -> Value:
    """exp(y log x). 0 ** y is 1 where y is 0, else 0 or infinite by the sign of its real part, and NaN without one."""
    re, im = parts(x)
    none = F.logical_and(F.equal(re, 0), F.equal(im, 0))
    (a, b), (size, turn) = parts(y), parts(log(op, join(F.where(none, 1, re), im)))
    power = exp(op, join(F.sub(zero_wins(a, size), zero_wins(b, turn)), F.add(zero_wins(a, turn), zero_wins(b, size))))
    nan, none_too = float("nan"), F.logical_and(F.equal(a, 0), F.equal(b, 0))
    at_zero = F.where(F.less(a, 0), float("inf"), F.where(F.greater(a, 0), 0, F.where(none_too, F.cast(none_too, re.dtype), nan)))
    u, v = parts(power)
    return join(F.where(none, at_zero, u), F.where(none, F.where(odd(at_zero), nan, F.zeros(v)), v))


# --- comparisons, casts, sums ------------------------------------------------------------------------------------------------------
@rule
def equal(op: Op, x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return F.logical_and(F.equal(a, c), F.equal(b, d))


@rule
def cast(op: Any, x: Value) -> Value:
    if op.dtype.kind == "c":
        wanted = real_of(op.dtype)
        re, im = parts(x) if x.dtype.kind == "c" else (x, None)
        re = F.cast(re, wanted)
        return join(re, F.zeros(re) if im is None else F.cast(im, wanted))
    re, im = parts(x)
    if op.dtype.is_bool:
        return F.logical_or(F.apply("not_equal", re, 0), F.apply("not_equal", im, 0))
    return F.cast(re, op.dtype)


@rule
def matmul(op: Any, x: Value, y: Value) -> Value:
    (a, b), (c, d) = parts(x), parts(y)
    return join(F.sub(op(a, c), op(b, d)), F.add(op(a, d), op(b, c)))


@rule
def prod(op: Any, x: Value) -> Value:
    """Pairs along one axis after the other."""
    z = parts(x)
    for axis in op.axes:
        z = _product_along(z, axis)
    if not op.keepdims:
        shape = tuple(d for i, d in enumerate(x.shape) if i not in op.axes)
        z = F.reshape(z[0], shape), F.reshape(z[1], shape)
    return join(*z)


def _product_along(z: Pair, axis: int) -> Pair:
    n = z[0].shape[axis]
    if not isinstance(n, int):
        raise UnsupportedError(f"prod: of complex numbers needs a known size along the axis, got {n}")
    if n == 0:
        shape = tuple(1 if i == axis else d for i, d in enumerate(z[0].shape))
        return F.full(z[0].node.graph, shape, 1, z[0].dtype), F.full(z[0].node.graph, shape, 0, z[0].dtype)
    while n > 1:
        half = n // 2
        low, high = ((F.slice_(z[0], axis, s, half), F.slice_(z[1], axis, s, half)) for s in (0, half))
        rest = [F.slice_(p, axis, n - 1, 1) for p in z] if n % 2 else None
        z = times(low, high)
        if rest is not None:
            z = F.concat([z[0], rest[0]], axis), F.concat([z[1], rest[1]], axis)
        n = half + n % 2
    return z


@rule
def pad(op: Any, x: Value) -> Value:
    re, im = parts(x)
    return join(values_of(op(re))[0], values_of(replace(op, value=0.0)(im))[0])


def _of_parts(first: str, second: str, third: str, fourth: str, *, sign: float = 1.0) -> Callable[..., Value]:
    """first(re) second(im) + i sign third(re) fourth(im)."""
    def made(op: Op, x: Value) -> Value:
        re, im = parts(x)
        other = zero_wins(F.one(third, re), F.one(fourth, im))
        return join(zero_wins(F.one(first, re), F.one(second, im)), other if sign > 0 else F.neg(other))

    return made


RULES |= {
    "mul": lambda op, x, y: join(*times(parts(x), parts(y))),
    "div": lambda op, x, y: join(*over(parts(x), parts(y))),
    "square": lambda op, x: join(*times(parts(x), parts(x))),
    "abs": lambda op, x: magnitude(x),
    "rsqrt": lambda op, x: reciprocal(op, sqrt(op, x)),
    "sin": _of_parts("sin", "cosh", "cos", "sinh"),
    "cos": _of_parts("cos", "cosh", "sin", "sinh", sign=-1.0),
    "sinh": _of_parts("sinh", "cos", "cosh", "sin"),
    "cosh": _of_parts("cosh", "cos", "sinh", "sin"),
    "not_equal": lambda op, x, y: F.logical_not(equal(op, x, y)),
    "is_nan": lambda op, x: F.logical_or(*(F.one("is_nan", p) for p in parts(x))),
    "is_inf": lambda op, x: F.logical_or(*(F.one("is_inf", p) for p in parts(x))),
}
