"""Inverse circular functions, hyperbolic functions and their inverses, and powers and logarithms of base 2 and 10."""
from __future__ import annotations

from typing import Any, ClassVar

from ...ir.graph import Value
from .. import functions as F
from ..base import E, S, Sample, Values, register
from ..families import Binary, Unary, bf16, f32, f64, i32
from ..special import vector_math as vm
from ..tiles import TileBuilder


def few(low: float, high: float) -> list[Sample]:
    """Samples of a function whose shapes go the same way as those of every other elementwise op."""
    return [S(f32(3, 5), low=low, high=high), S(f64(7), low=low, high=high), S(bf16(2, 3), low=low, high=high)]


class Formula(Unary):
    """Written in tile operations (`vector_math`); the reference is NumPy's function."""

    formula: ClassVar[Any] = None

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return type(self).formula(t, x)


@register
class Asin(Formula):
    """Arc sine, in -pi/2 .. pi/2."""

    public, aten, numpy = "asin arcsin", "asin arcsin", "arcsin"
    samples = few(-0.95, 0.95)
    formula = staticmethod(vm.asin)
    dydx = lambda x, y: F.rsqrt(F.sub(1, F.square(x)))


@register
class Acos(Formula):
    """Arc cosine, in 0 .. pi."""

    public, aten, numpy = "acos arccos", "acos arccos", "arccos"
    samples = few(-0.95, 0.95)[:2]
    formula = staticmethod(vm.acos)
    dydx = lambda x, y: F.neg(F.rsqrt(F.sub(1, F.square(x))))


@register
class Atan(Formula):
    """Arc tangent, in -pi/2 .. pi/2."""

    public, aten, numpy = "atan arctan", "atan arctan", "arctan"
    samples = few(-4, 4)
    formula = staticmethod(vm.atan)
    dydx = lambda x, y: F.one("reciprocal", F.add(F.square(x), 1))


@register
class Sinh(Formula):
    """Hyperbolic sine."""

    public, aten, complex, numpy = "sinh", "sinh", "rule", "sinh"
    samples = few(-5, 5)[:2]
    formula = staticmethod(vm.sinh)
    dydx = lambda x, y: F.one("cosh", x)


@register
class Cosh(Formula):
    """Hyperbolic cosine."""

    public, aten, complex, numpy = "cosh", "cosh", "rule", "cosh"
    samples = few(-5, 5)[:2]
    formula = staticmethod(vm.cosh)
    dydx = lambda x, y: F.one("sinh", x)


@register
class Asinh(Formula):
    """Inverse hyperbolic sine."""

    public, aten, numpy = "asinh arcsinh", "asinh arcsinh", "arcsinh"
    samples = few(-9, 9)[:2]
    formula = staticmethod(vm.asinh)
    dydx = lambda x, y: F.rsqrt(F.add(F.square(x), 1))


@register
class Acosh(Formula):
    """Inverse hyperbolic cosine, of numbers from 1 on."""

    public, aten, numpy = "acosh arccosh", "acosh arccosh", "arccosh"
    samples = few(1.1, 9)[:2]
    formula = staticmethod(vm.acosh)
    dydx = lambda x, y: F.rsqrt(F.mul(F.sub(x, 1), F.add(x, 1)))


@register
class Atanh(Formula):
    """Inverse hyperbolic tangent, of numbers between -1 and 1."""

    public, aten, numpy = "atanh arctanh", "atanh arctanh", "arctanh"
    samples = few(-0.95, 0.95)[:2]
    formula = staticmethod(vm.atanh)
    dydx = lambda x, y: F.one("reciprocal", F.sub(1, F.square(x)))


@register
class Atan2(Binary):
    """The angle of the point (y, x): atan(x / y) in the quadrant that the signs say, in -pi .. pi. The first operand is the height."""

    public, aten, numpy = "atan2 arctan2", "atan2 arctan2", "arctan2"
    samples = [S(f32(3, 5), f32(5), low=-3, high=3), S(f64(4), f64(), low=-3, high=3), S(bf16(3), bf16(3), low=1, high=3)]
    errors = [E(i32(3), i32(3), match="needs float operands; cast first")]

    def lower(self, t: TileBuilder, y: Any, x: Any) -> Any:
        return vm.atan2(t, y, x)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        y, x = inputs
        square = F.add(F.square(x), F.square(y))
        part = F.div(x if i == 0 else F.neg(y), F.where(F.equal(square, 0), 1, square))
        return F.mul(g, part)


@register
class Exp2(Unary):
    """2**x."""

    public, aten, numpy = "exp2", "exp2 special_exp2", "exp2"
    tile = "exp2"
    samples = few(-5, 5)[:2]
    dydx = lambda x, y: F.mul(y, vm.LN2)


@register
class Log2(Unary):
    """Logarithm of base 2."""

    public, aten, numpy = "log2", "log2", "log2"
    tile = "log2"
    samples = few(0.1, 9)[:2]
    dydx = lambda x, y: F.div(1 / vm.LN2, x)


@register
class Log10(Formula):
    """Logarithm of base 10."""

    public, aten, numpy = "log10", "log10", "log10"
    samples = few(0.1, 9)[:2]
    formula = staticmethod(vm.log10)
    dydx = lambda x, y: F.div(1 / vm.LN10, x)
