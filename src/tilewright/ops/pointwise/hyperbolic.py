"""Inverse circular functions, hyperbolic functions and their inverses, and powers and logarithms of base 2 and 10."""
from __future__ import annotations

from typing import Any

from ...ir.graph import Value
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Binary, Formula, Unary, bf16, enter_formulas, enter_ops, f32, f64, few, i32
from ..special import vector_math as vm
from ..tiles import TileBuilder


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


enter_ops(Unary, __name__, {
    "Exp2": ("2**x.", {"public": "exp2", "aten": "exp2 special_exp2", "numpy": "exp2", "tile": "exp2", "samples": few(-5, 5)[:2],
                       "dydx": lambda x, y: F.mul(y, vm.LN2)}),
    "Log2": ("Logarithm of base 2.", {"public": "log2", "aten": "log2", "numpy": "log2", "tile": "log2", "samples": few(0.1, 9)[:2],
                                      "dydx": lambda x, y: F.div(1 / vm.LN2, x)}),
})
enter_formulas(Formula, __name__, {
    "Asin": ("Arc sine, in -pi/2 .. pi/2.", vm.asin, lambda x, y: F.rsqrt(F.sub(1, F.square(x))), few(-0.95, 0.95),
             {"public": "asin arcsin", "aten": "asin arcsin", "numpy": "arcsin"}),
    "Acos": ("Arc cosine, in 0 .. pi.", vm.acos, lambda x, y: F.neg(F.rsqrt(F.sub(1, F.square(x)))), few(-0.95, 0.95)[:2],
             {"public": "acos arccos", "aten": "acos arccos", "numpy": "arccos"}),
    "Atan": ("Arc tangent, in -pi/2 .. pi/2.", vm.atan, lambda x, y: F.one("reciprocal", F.add(F.square(x), 1)), few(-4, 4),
             {"public": "atan arctan", "aten": "atan arctan", "numpy": "arctan"}),
    "Sinh": ("Hyperbolic sine.", vm.sinh, lambda x, y: F.one("cosh", x), few(-5, 5)[:2],
             {"public": "sinh", "aten": "sinh", "complex": "rule", "numpy": "sinh"}),
    "Cosh": ("Hyperbolic cosine.", vm.cosh, lambda x, y: F.one("sinh", x), few(-5, 5)[:2],
             {"public": "cosh", "aten": "cosh", "complex": "rule", "numpy": "cosh"}),
    "Asinh": ("Inverse hyperbolic sine.", vm.asinh, lambda x, y: F.rsqrt(F.add(F.square(x), 1)), few(-9, 9)[:2],
             {"public": "asinh arcsinh", "aten": "asinh arcsinh", "numpy": "arcsinh"}),
    "Acosh": ("Inverse hyperbolic cosine, of numbers from 1 on.", vm.acosh, lambda x, y: F.rsqrt(F.mul(F.sub(x, 1), F.add(x, 1))),
             few(1.1, 9)[:2], {"public": "acosh arccosh", "aten": "acosh arccosh", "numpy": "arccosh"}),
    "Atanh": ("Inverse hyperbolic tangent, of numbers between -1 and 1.", vm.atanh,
             lambda x, y: F.one("reciprocal", F.sub(1, F.square(x))), few(-0.95, 0.95)[:2],
             {"public": "atanh arctanh", "aten": "atanh arctanh", "numpy": "arctanh"}),
    "Log10": ("Logarithm of base 10.", vm.log10, lambda x, y: F.div(1 / vm.LN10, x), few(0.1, 9)[:2],
             {"public": "log10", "aten": "log10", "numpy": "log10"}),
})
