"""Elementwise ops of one operand: arithmetic, exponentials, trigonometry.

`lower` sees f32, f64, integer and bool tiles; small floats are widened around it.

Rounding to integers.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ...core.dtypes import real_of
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, register
from ..families import Unary, boolean, enter_ops, i32, i64, u8, unary_samples
from ..special import erf as special
from ..tiles import TileBuilder


@register
class Neg(Unary):
    """-x; integers wrap."""

    public, aten, complex, numpy = "neg negative", "neg negative", "parts", "negative"
    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3), i64(2, 2))
    errors = [E(boolean(3), match="needs float or integer operands; cast first, got dtype=bool")]
    dydx = lambda x, y: -1.0

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.unary("neg", x) if x.dtype.is_float else 0 - x

    def on_bits(self, t: TileBuilder, *words: Any) -> Any:
        return t.binary("xor", words[0], 1 << (8 * words[0].dtype.itemsize - 1))


@register
class Abs(Unary):
    """|x|; the most negative integer stays itself."""

    public, aten, complex, numpy = "abs absolute", "abs absolute", "rule", "abs"
    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3), u8(4))
    errors = [E(boolean(3), match="needs float or integer operands")]
    dydx = lambda x, y: F.one("sign", x)

    def infer(self, *types: TensorType) -> TensorType:
        out = super().infer(*types)
        return out.with_dtype(real_of(out.dtype))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if x.dtype.is_float:
            return t.unary("abs", x)
        return x if x.dtype.kind == "u" else t.select(t.cmp("lt", x, 0), 0 - x, x)

    def on_bits(self, t: TileBuilder, *words: Any) -> Any:
        return t.binary("and", words[0], (1 << (8 * words[0].dtype.itemsize - 1)) - 1)


@register
class Sign(Unary):
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""

    public, aten, complex = "sign", "sign sgn", "rule"
    steps = True
    kinds = "fiu"
    samples = unary_samples(-4, 4, i32(3))
    errors = [E(boolean(3), match="needs float or integer operands")]
    dydx = lambda x, y: None

    def ref(self, x: Any) -> Any:
        return (np.greater(x, 0).astype(x.dtype) - np.less(x, 0).astype(x.dtype)).astype(x.dtype)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        positive = t.select(t.cmp("gt", x, 0), t.full((), 1, x.dtype), 0)
        return positive if x.dtype.kind == "u" else t.select(t.cmp("lt", x, 0), t.full((), -1, x.dtype), positive)


@register
class Rsqrt(Unary):
    """1 / sqrt(x)."""

    public, aten, complex = "rsqrt", "rsqrt", "rule"
    tile = "rsqrt"
    samples = unary_samples(0.1, 9)
    dydx = lambda x, y: F.mul(F.div(y, x), -0.5)

    def ref(self, x: Any) -> Any:
        return np.reciprocal(np.sqrt(x))

    def decompose(self, x: Value) -> Value:
        return F.one("reciprocal", F.one("sqrt", x))


@register
class Erf(Unary):
    """The error function."""

    public, aten = "erf", "erf special_erf"
    tile = "erf"
    samples = unary_samples(-5, 5)
    dydx = lambda x, y: F.mul(F.exp(F.neg(F.square(x))), 2 / sqrt(pi))

    def ref(self, x: Any) -> Any:
        return special.erf(x)


@register
class Sigmoid(Unary):
    """1 / (1 + exp(-x))."""

    public, aten, complex = "sigmoid", "sigmoid special_expit", "rule"
    tile = "sigmoid"
    dydx = lambda x, y: F.mul(y, F.sub(1, y))

    def ref(self, x: Any) -> Any:
        return special.sigmoid(x)


@register
class Square(Unary):
    """x * x."""

    public, aten, complex = "square", "square", "rule"
    kinds = "fiu"
    samples = unary_samples(-4, 4, i64(3))
    errors = [E(boolean(3), match="needs float or integer operands")]
    dydx = lambda x, y: F.mul(x, 2)

    def ref(self, x: Any) -> Any:
        return np.multiply(x, x)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return x * x


class Rounding(Unary):
    steps = True
    dydx = lambda x, y: None


enter_ops(Unary, __name__, {
    "Exp": ("e**x.", {"public": "exp", "aten": "exp", "complex": "rule", "numpy": "exp", "tile": "exp", "dydx": lambda x, y: y}),
    "Log": ("Natural logarithm.", {"public": "log", "aten": "log", "complex": "rule", "numpy": "log", "tile": "log",
                                   "samples": unary_samples(0.01, 9), "dydx": lambda x, y: F.one("reciprocal", x)}),
    "Log1p": ("log(1 + x), accurate near 0.", {"public": "log1p", "aten": "log1p special_log1p", "numpy": "log1p", "tile": "log1p",
              "samples": unary_samples(-0.9, 4), "dydx": lambda x, y: F.one("reciprocal", F.add(x, 1))}),
    "Expm1": ("exp(x) - 1, accurate near 0.", {"public": "expm1", "aten": "expm1 special_expm1", "numpy": "expm1", "tile": "expm1",
              "dydx": lambda x, y: F.add(y, 1)}),
    "Sqrt": ("Square root, correctly rounded.", {"public": "sqrt", "aten": "sqrt", "complex": "rule", "numpy": "sqrt", "tile": "sqrt",
             "samples": unary_samples(0, 9), "dydx": lambda x, y: F.div(0.5, y)}),
    "Sin": ("Sine of radians.", {"public": "sin", "aten": "sin", "complex": "rule", "numpy": "sin", "tile": "sin",
            "samples": unary_samples(-9, 9), "dydx": lambda x, y: F.one("cos", x)}),
    "Cos": ("Cosine of radians.", {"public": "cos", "aten": "cos", "complex": "rule", "numpy": "cos", "tile": "cos",
            "samples": unary_samples(-9, 9), "dydx": lambda x, y: F.neg(F.one("sin", x))}),
    "Tan": ("Tangent of radians.", {"public": "tan", "aten": "tan", "complex": "rule", "numpy": "tan", "tile": "tan",
            "samples": unary_samples(-1.4, 1.4), "dydx": lambda x, y: F.add(F.square(y), 1)}),
    "Tanh": ("Hyperbolic tangent.", {"public": "tanh", "aten": "tanh", "complex": "rule", "numpy": "tanh", "tile": "tanh",
             "dydx": lambda x, y: F.sub(1, F.square(y))}),
    "Reciprocal": ("1 / x.", {"public": "reciprocal", "aten": "reciprocal", "complex": "rule", "numpy": "reciprocal", "tile": "reciprocal",
                   "samples": unary_samples(0.2, 5), "dydx": lambda x, y: F.neg(F.square(y))}),
})
enter_ops(Rounding, __name__, {
    "Floor": ("Largest integer not above x.", {"public": "floor", "numpy": "floor", "tile": "floor"}),
    "Ceil": ("Smallest integer not below x.", {"public": "ceil", "numpy": "ceil", "tile": "ceil"}),
    "Round": ("Nearest integer, halves to even.", {"public": "round", "numpy": "rint", "tile": "round"}),
    "Trunc": ("x without its fraction.", {"public": "trunc", "numpy": "trunc", "tile": "trunc"}),
})
