"""Activation functions: elementwise ops with a decomposition in plainer ones.

NaN goes through all of them. Forms follow PyTorch; `lower` picks the cheapest accurate spelling.
"""
from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Unary, bf16, boolean, f16, f32, f64, i32, unary_samples
from ..special import erf as special
from ..tiles import TileBuilder

TANH_SCALE = sqrt(2 / pi)
TANH_CUBIC = 0.044715


@register
class Relu(Unary):
    """max(0, x); NaN stays NaN, and -0.0 is kept."""

    public = "relu"
    kinds = "fi"
    samples = unary_samples(-4, 4, i32(5))
    errors = [E(boolean(3), match="needs float or integer operands; cast first, got dtype=bool")]

    def ref(self, x: Any) -> Any:
        return np.maximum(np.zeros((), x.dtype), x)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.binary("max", t.full((), 0, x.dtype), x)

    def decompose(self, x: Value) -> Value:
        return F.maximum(0, x)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return F.where(F.greater(inputs[0], 0), g, 0)


@register
class Silu(Unary):
    """x * sigmoid(x), also called swish."""

    public, aten = "silu", "silu"

    def ref(self, x: Any) -> Any:
        return x * special.sigmoid(x)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return x * t.unary("sigmoid", x)

    def decompose(self, x: Value) -> Value:
        return F.mul(x, F.sigmoid(x))

    def derivative(self, x: Value, y: Value) -> Value:
        s = F.sigmoid(x)
        return F.add(s, F.mul(y, F.sub(1, s)))


@register
class Gelu(Unary):
    """x * Phi(x): exactly through erf, or the tanh approximation."""

    public = "gelu"
    approximate: str = "none"
    samples = [*unary_samples(), S(f32(3, 5), approximate="tanh"), S(f64(5), approximate="tanh"), S(bf16(4), approximate="tanh"),
               S(f16(3), approximate="tanh")]
    errors = [*Unary.errors, E(f32(3), approximate="fast", match="approximate must be 'none' or 'tanh', got approximate=fast")]

    def infer(self, *types: TensorType) -> TensorType:
        require(self.approximate in ("none", "tanh"), "approximate must be 'none' or 'tanh'", approximate=self.approximate)
        return super().infer(*types)

    def ref(self, x: Any) -> Any:
        if self.approximate == "none":
            return (x * 0.5 * (1 + special.erf(x * sqrt(0.5)))).astype(x.dtype)
        return x * special.sigmoid(2 * TANH_SCALE * (x + TANH_CUBIC * x * x * x))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if self.approximate == "none":
            return x * 0.5 * (t.unary("erf", x * sqrt(0.5)) + 1.0)
        # 0.5 * (1 + tanh(u)) == sigmoid(2u), which loses no digits in the negative tail
        return x * t.unary("sigmoid", x * (x * x * (2 * TANH_SCALE * TANH_CUBIC) + 2 * TANH_SCALE))

    def decompose(self, x: Value) -> Value:
        if self.approximate == "none":
            return F.mul(F.mul(x, 0.5), F.add(F.erf(F.mul(x, sqrt(0.5))), 1.0))
        inner = F.mul(F.add(x, F.mul(F.mul(x, F.mul(x, x)), TANH_CUBIC)), TANH_SCALE)
        return F.mul(F.mul(x, 0.5), F.add(F.tanh(inner), 1.0))

    def derivative(self, x: Value, y: Value) -> Value:
        if self.approximate == "none":
            density = F.mul(F.exp(F.mul(F.square(x), -0.5)), 1 / sqrt(2 * pi))
            return F.add(F.mul(F.add(F.erf(F.mul(x, sqrt(0.5))), 1), 0.5), F.mul(x, density))
        # y = x * s with s = sigmoid(u), u = 2 * TANH_SCALE * (x + TANH_CUBIC * x**3)
        square = F.square(x)
        s = F.sigmoid(F.mul(x, F.add(F.mul(square, 2 * TANH_SCALE * TANH_CUBIC), 2 * TANH_SCALE)))
        inner = F.mul(x, F.add(F.mul(square, 6 * TANH_SCALE * TANH_CUBIC), 2 * TANH_SCALE))
        return F.mul(s, F.add(F.mul(inner, F.sub(1, s)), 1))


@register
class LeakyRelu(Unary):
    """x where positive, slope * x elsewhere."""

    public = "leaky_relu"
    slope: float = 0.01
    samples = [S(f32(3, 5), slope=0.2), S(f64(4), slope=0.01), S(f32(0), slope=0.1), S(bf16(5), slope=0.3)]
    errors = [E(i32(3), slope=0.1, match="needs float operands")]

    def ref(self, x: Any) -> Any:
        return np.where(x > 0, x, x * x.dtype.type(self.slope))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.select(t.cmp("gt", x, 0), x, x * self.slope)

    def decompose(self, x: Value) -> Value:
        return F.where(F.greater(x, 0), x, F.mul(x, self.slope))

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return F.where(F.greater(inputs[0], 0), g, F.mul(g, self.slope))


@register
class Elu(Unary):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    public = "elu"
    alpha: float = 1.0
    samples = [S(f32(3, 5), alpha=1.0), S(f64(4), alpha=0.5), S(f16(4), alpha=1.5)]
    errors = [E(i32(3), match="needs float operands")]

    def ref(self, x: Any) -> Any:
        return np.where(x > 0, x, x.dtype.type(self.alpha) * np.expm1(np.where(x > 0, 0, x)))  # keeps -0

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.select(t.cmp("gt", x, 0), x, t.unary("expm1", x) * self.alpha)

    def decompose(self, x: Value) -> Value:
        return F.where(F.greater(x, 0), x, F.mul(F.expm1(x), self.alpha))

    def derivative(self, x: Value, y: Value) -> Value:
        return F.where(F.greater(x, 0), 1, F.mul(F.exp(F.minimum(x, 0)), self.alpha))


@register
class Softplus(Unary):
    """log(1 + exp(x)); x itself above 20, where they agree in f32."""

    public = "softplus"
    samples = unary_samples(-30, 30)
    dydx = lambda x, y: F.sigmoid(x)

    def ref(self, x: Any) -> Any:
        return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.select(t.cmp("gt", x, 20), x, t.unary("log1p", t.unary("exp", x)))

    def decompose(self, x: Value) -> Value:
        smooth = F.add(F.maximum(x, 0), F.log1p(F.exp(F.neg(F.abs_(x)))))  # small floats must not overflow in between
        return F.where(F.greater(x, 20), x, smooth)


@register
class Mish(Unary):
    """x * tanh(softplus(x))."""

    public, aten = "mish", "mish"
    samples = unary_samples(-30, 30)

    def ref(self, x: Any) -> Any:
        return x * np.tanh(Softplus().ref(x))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return x * t.unary("tanh", Softplus().lower(t, x))

    def decompose(self, x: Value) -> Value:
        return F.mul(x, F.tanh(F.softplus(x)))

    def derivative(self, x: Value, y: Value) -> Value:
        t = F.tanh(F.softplus(x))
        return F.add(t, F.mul(F.mul(x, F.sigmoid(x)), F.sub(1, F.square(t))))


@register
class Hardsigmoid(Unary):
    """clip(x + 3, 0, 6) / 6."""

    public, aten = "hardsigmoid", "hardsigmoid"
    samples = unary_samples(-5, 5)

    def ref(self, x: Any) -> Any:
        return np.clip(x + 3, 0, 6) / 6

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.binary("min", t.binary("max", x + 3.0, 0.0), 6.0) / 6.0

    def decompose(self, x: Value) -> Value:
        return F.div(F.minimum(F.maximum(F.add(x, 3), 0), 6), 6)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        x, = inputs
        return F.where(F.logical_and(F.greater(x, -3), F.less(x, 3)), F.div(g, 6), 0)


@register
class Hardswish(Unary):
    """x * clip(x + 3, 0, 6) / 6."""

    public, aten = "hardswish", "hardswish"
    samples = unary_samples(-5, 5)
    dydx = lambda x, y: F.where(F.less_equal(x, -3), 0, F.where(F.less(x, 3), F.add(F.div(x, 3), 0.5), 1))

    def ref(self, x: Any) -> Any:
        return x * np.clip(x + 3, 0, 6) / 6

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return x * t.binary("min", t.binary("max", x + 3.0, 0.0), 6.0) / 6.0

    def decompose(self, x: Value) -> Value:
        return F.div(F.mul(x, F.minimum(F.maximum(F.add(x, 3), 0), 6)), 6)
