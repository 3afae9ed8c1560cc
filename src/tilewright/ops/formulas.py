"""Functions written in ops that exist: each appends to its operands' graph. Traced functions (`tw.xlogy`) and the PyTorch frontend share
them. Operands have one float dtype unless a comment says otherwise; derivatives come from the ops, and where a formula has a hole
(0 * log 0) the argument is replaced before the hole, so that the derivative has none either.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, pi, sqrt
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import product
from ..core.errors import ShapeError
from ..ir.graph import Value
from . import functions as F
from .functions import one
from .special.vector_math import LN2

SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def _product_of_log(x: Value, y: Value, log: Callable[[Value], Value], zero: float) -> Value:
    hole = F.logical_and(F.equal(x, 0), F.logical_or(F.less_equal(y, zero), F.equal(y, float("inf"))))
    return F.mul(x, log(F.where(hole, 1, y)))


def xlogy(x: Value, y: Value) -> Value:
    """x * log(y), 0 where x is 0 (NaN where y is NaN)."""
    return _product_of_log(x, y, F.log, 0.0)


def xlog1py(x: Value, y: Value) -> Value:
    """x * log(1 + y), 0 where x is 0 (NaN where y is NaN)."""
    return _product_of_log(x, y, F.log1p, -1.0)


def entr(x: Value) -> Value:
    """-x * log(x): 0 at 0, minus infinity below."""
    return F.where(F.less(x, 0), -float("inf"), F.neg(xlogy(x, F.where(F.less(x, 0), 1, x))))


def _distance(x: Value, y: Value) -> Value:
    """-|x - y|, 0 where both are the same infinity."""
    return F.neg(F.abs_(F.where(F.equal(x, y), 0, F.sub(x, y))))


def logaddexp(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) without overflow."""
    return F.add(F.maximum(x, y), F.log1p(F.exp(_distance(x, y))))


def logaddexp2(x: Value, y: Value) -> Value:
    """log2(2**x + 2**y) without overflow."""
    return F.add(F.maximum(x, y), F.mul(F.log1p(one("exp2", _distance(x, y))), 1 / LN2))


def heaviside(x: Value, middle: Value) -> Value:
    """0 below zero, 1 above, `middle` at zero. Integers too."""
    return F.where(F.equal(x, 0), middle, F.cast(F.greater(x, 0), x.dtype))


SINC = [(-1) ** k / factorial(2 * k + 1) for k in range(10)]  # in powers of the squared angle; the next term is 2e-20 at an angle of 1


def sinc(x: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0; near 0 by its series, since the derivative of the quotient cancels there."""
    angle = F.mul(x, pi)
    near = F.less(F.abs_(angle), 1)
    square = F.square(F.where(near, angle, 0))
    series = F.mul(square, SINC[-1])
    for c in SINC[-2:0:-1]:
        series = F.mul(F.add(series, c), square)
    series = F.add(series, SINC[0])
    far = F.where(near, 1, angle)
    return F.where(near, series, F.div(one("sin", far), far))


def logit(x: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)), x cut to eps .. 1 - eps first."""
    if eps is not None:
        x = F.minimum(F.maximum(x, eps), 1 - eps)
    return F.log(F.div(x, F.sub(1, x)))


def nan_to_num(x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    """x with NaN replaced (by 0), infinities by the ends of the dtype's range unless other numbers are given."""
    if not x.dtype.is_float:
        return x
    top = float(np.finfo(np.float32).max) if x.dtype is dt.bf16 else float(np.finfo(x.dtype.np).max)
    top = 3.3895313892515355e38 if x.dtype is dt.bf16 else top
    out = F.where(one("is_nan", x), 0.0 if nan is None else nan, x)
    out = F.where(F.equal(x, float("inf")), top if posinf is None else posinf, out)
    return F.where(F.equal(x, -float("inf")), -top if neginf is None else neginf, out)


def ndtr(x: Value) -> Value:
    """The standard normal distribution function."""
    return F.mul(one("erfc", F.mul(x, -sqrt(0.5))), 0.5)


def ldexp(x: Value, exponent: Value) -> Value:
    """x * 2**exponent."""
    return F.mul(x, one("exp2", exponent))


def frexp(x: Value) -> tuple[Value, Value]:
    """(m, e) with x = m * 2**e and |m| in [1/2, 1); zeros, infinities and NaN keep themselves and e = 0."""
    plain = F.logical_and(F.logical_not(F.equal(x, 0)), F.less(F.abs_(x), float("inf")))
    size = F.where(plain, F.abs_(x), 1)
    guess = one("floor", one("log2", size))

    def down(by: Value) -> Value:  # two steps, because one factor may leave the dtype's range
        half = one("floor", F.mul(by, 0.5))
        return F.mul(F.mul(size, one("exp2", F.neg(half))), one("exp2", F.sub(half, by)))

    near = down(guess)  # in [1, 2), unless the logarithm's floor was off by one
    off = F.sub(F.cast(F.greater_equal(near, 2), x.dtype), F.cast(F.less(near, 1), x.dtype))
    e = F.add(F.add(guess, 1), off)
    e = F.where(plain, e, 0)
    m = F.where(plain, one("copysign", down(e), x), x)
    return m, F.cast(e, dt.i32)


def celu(x: Value, alpha: float = 1.0) -> Value:
    """x where positive, alpha * (exp(x / alpha) - 1) elsewhere."""
    return F.where(F.greater(x, 0), x, F.mul(F.expm1(F.div(F.minimum(x, 0), alpha)), alpha))


def selu(x: Value) -> Value:
    """elu with the scale and slope that keep mean and variance."""
    return F.mul(one("elu", x, alpha=SELU_ALPHA), SELU_SCALE)


def between(x: Value, low: float, high: float) -> Value:
    """x cut to low .. high (x where it equals one), with no derivative at and beyond the ends."""
    cut = one("stop_gradient", F.minimum(high, F.maximum(low, x)))
    return F.where(F.logical_or(F.less_equal(x, low), F.greater_equal(x, high)), cut, x)


def hardtanh(x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    """x cut to low .. high."""
    return between(x, low, high)


def relu6(x: Value) -> Value:
    """x cut to 0 .. 6."""
    return between(x, 0.0, 6.0)


def hardshrink(x: Value, size: float = 0.5) -> Value:
    """x, 0 where |x| <= size."""
    inside = F.logical_and(F.greater_equal(x, -size), F.less_equal(x, size))
    return F.where(inside, 0, x)


def softshrink(x: Value, size: float = 0.5) -> Value:
    """x moved towards 0 by size, 0 where |x| <= size."""
    moved = F.where(F.greater(x, size), F.sub(x, size), F.where(F.less(x, -size), F.add(x, size), 0))
    return F.where(one("is_nan", x), x, moved)


def tanhshrink(x: Value) -> Value:
    """x - tanh(x)."""
    return F.sub(x, F.tanh(x))


def threshold(x: Value, limit: float, value: float) -> Value:
    """x, `value` where x <= limit."""
    return F.where(F.less_equal(x, limit), value, x)


def log_sigmoid(x: Value) -> Value:
    """log(1 / (1 + exp(-x))), accurate on both sides."""
    return F.sub(F.minimum(x, 0), F.log1p(F.exp(F.neg(F.abs_(x)))))


def softsign(x: Value) -> Value:
    """x / (1 + |x|)."""
    return F.div(x, F.add(F.abs_(x), 1))


def prelu(x: Value, slope: Value) -> Value:
    """x where positive, slope * x elsewhere."""
    return F.where(F.greater(x, 0), x, F.mul(x, slope))


def glu(x: Value, axis: int) -> Value:
    """The first half along an axis times the sigmoid of the second."""
    half = x.shape[axis] // 2
    a, b = F.split(x, axis, (half, half))
    return F.mul(a, F.sigmoid(b))


UNARY: dict[str, Callable[..., Any]] = {f.__name__: f for f in (entr, sinc, logit, nan_to_num, ndtr, frexp, celu, selu, hardtanh, relu6,
                                                                hardshrink, softshrink, tanhshrink, threshold, log_sigmoid, softsign)}
BINARY: dict[str, Callable[..., Any]] = {f.__name__: f for f in (xlogy, xlog1py, logaddexp, logaddexp2, heaviside, ldexp, prelu)}


def compensated_sum(x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
    """The sum of f32 and smaller in f64; of f64 as pairs (sum, what it lost), halved until one pair is left."""
    if not x.dtype.is_float:
        return F.sum_(x, axes, keepdims=keepdims)
    if x.dtype is not dt.f64:
        return F.cast(F.sum_(F.cast(x, dt.f64), axes, keepdims=keepdims), x.dtype)
    kept = [a for a in range(len(x.shape)) if a not in axes]
    n = product([x.shape[a] for a in axes])
    if not isinstance(n, int):
        raise ShapeError(f"sum: a compensated sum of f64 needs sizes that are known, got {n} elements")
    lead = [x.shape[a] for a in kept]
    high = F.reshape(F.transpose(x, [*kept, *axes]), (*lead, n))
    low: Value | None = None
    axis = len(lead)
    while n > 1:
        half = (n + 1) // 2
        if n % 2:
            high = F.pad(high, (0,) * (axis + 1), (*(0,) * axis, 1))
            low = None if low is None else F.pad(low, (0,) * (axis + 1), (*(0,) * axis, 1))
        a, b = F.split(high, axis, (half, half))
        high = F.add(a, b)
        t = F.sub(high, a)
        lost = F.add(F.sub(a, F.sub(high, t)), F.sub(b, t))
        if low is not None:
            p, q = F.split(low, axis, (half, half))
            lost = F.add(lost, F.add(p, q))
        low, n = lost, half
    total = high if low is None else F.add(high, F.where(F.less(F.abs_(high), float("inf")), low, 0))
    if n == 0:
        total = F.full(x.node.graph, (*lead, 1), 0, x.dtype)
    shape = [1 if a in axes else d for a, d in enumerate(x.shape)] if keepdims else lead
    return F.reshape(total, shape)
