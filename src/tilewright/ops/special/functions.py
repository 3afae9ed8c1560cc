"""Special functions: the error function's and the gamma function's relatives, modified Bessel functions. NumPy has few of them, so the
reference runs the op's own formula on f64 arrays, and PyTorch is what it is compared with."""
from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from ...core.errors import UnsupportedError, require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import Binary, Formula, Unary, enter_formulas, f32, f64, few, i32
from ..tiles import TileBuilder
from . import vector_bessel as vb
from . import vector_math as vm


class Special(Formula):
    """Written in tile operations; the reference runs them on f64 arrays."""

    def ref(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(self.lower(vm.ARRAYS, np.asarray(x, np.float64))).astype(x.dtype)


def gauss(x: Value, scale: float) -> Value:
    """scale * exp(-x^2)"""
    return F.mul(F.exp(F.neg(F.square(x))), scale)


@register
class LogNdtr(Special):
    """The logarithm of the standard normal distribution function."""

    public, aten = "log_ndtr", "special_log_ndtr"
    samples = few(-9, 4)[:2]
    formula = staticmethod(vm.log_ndtr)

    def derivative(self, x: Value, y: Value) -> Value:
        """The density over the distribution function: through erfcx below 0, where both are tiny."""
        t = F.mul(x, sqrt(0.5))
        low = F.div(sqrt(2 / pi), F.one("erfcx", F.neg(F.minimum(t, 0))))
        high = F.div(F.mul(gauss(t, sqrt(2 / pi)), 1.0), F.one("erfc", F.neg(F.maximum(t, 0))))
        return F.where(F.less(x, 0), low, high)


@register
class Polygamma(Special):
    """The n-th derivative of digamma."""

    n: int = 1
    samples = [S(f32(3, 5), n=1, low=0.2, high=6), S(f64(7), n=2, low=0.2, high=4), S(f64(5), n=4, low=-2.9, high=-2.6)]
    errors = [*Unary.errors, E(f32(3), n=-1, match="n must not be negative, got n=-1")]

    def infer(self, *types: TensorType) -> TensorType:
        require(self.n >= 0, "n must not be negative", n=self.n)
        return super().infer(*types)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return vm.digamma(t, x) if self.n == 0 else vm.polygamma(t, x, self.n)

    def derivative(self, x: Value, y: Value) -> Value:
        return F.one("polygamma", x, n=self.n + 1)


@register
class Zeta(Binary):
    """Hurwitz zeta: the sum of (y + k)^-x over k = 0, 1, 2, …, for x > 1 and y > 0."""

    public, aten = "zeta", "special_zeta.default|self_scalar|other_scalar"
    samples = [S(f32(3, 5), f32(5), low=(1.5, 0.3), high=(6, 6)), S(f64(4), f64(), low=(1.5, 0.3), high=(4, 9))]
    errors = [E(i32(3), i32(3), match="needs float operands; cast first")]
    unsupported = dict.fromkeys(("vjp", "jvp"), NotSupported("the derivative by the exponent has no closed form; that by y is there"))

    def ref(self, x: Any, y: Any) -> Any:
        with np.errstate(all="ignore"):
            a, b = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
            return np.asarray(vm.zeta(vm.ARRAYS, a, b)).astype(x.dtype)

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return vm.zeta(t, x, y)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        x, y = inputs
        if i == 0:
            raise UnsupportedError("zeta: the derivative with respect to its first operand has no closed form")
        return F.neg(F.mul(g, F.mul(x, F.one("zeta", F.add(x, 1), y))))


def over(y: Value, x: Value) -> Value:
    """y / x of a function that is x / 2 near 0."""
    return F.where(F.equal(x, 0), 0.5, F.div(y, F.where(F.equal(x, 0), 1, x)))


enter_formulas(Special, __name__, {
    "Erfc": ("1 - erf(x), accurate also where it is tiny.", vm.erfc, lambda x, y: gauss(x, -2 / sqrt(pi)), few(-3, 6),
             {"public": "erfc", "aten": "erfc special_erfc"}),
    "Erfcx": ("erfc(x) exp(x^2).", vm.erfcx, lambda x, y: F.sub(F.mul(F.mul(x, y), 2), 2 / sqrt(pi)), few(-2, 6)[:2],
             {"public": "erfcx", "aten": "special_erfcx"}),
    "Erfinv": ("The number whose error function is x.", vm.erfinv, lambda x, y: F.mul(F.exp(F.square(y)), sqrt(pi) / 2),
             few(-0.98, 0.98)[:2], {"public": "erfinv", "aten": "erfinv special_erfinv"}),
    "Ndtri": ("The number below which a standard normal variable lies with probability x.", vm.ndtri,
             lambda x, y: F.mul(F.exp(F.mul(F.square(y), 0.5)), sqrt(2 * pi)), few(0.01, 0.99)[:2],
             {"public": "ndtri", "aten": "special_ndtri"}),
    "Lgamma": ("log |gamma(x)|.", vm.lgamma, lambda x, y: F.one("digamma", x), few(-2.9, 9)[:2],
             {"public": "lgamma", "aten": "lgamma special_gammaln"}),
    "Digamma": ("The derivative of log-gamma.", vm.digamma, lambda x, y: F.one("polygamma", x, n=1), few(0.2, 9)[:2],
             {"public": "digamma", "aten": "digamma special_digamma special_psi"}),
    "I0": ("The modified Bessel function of the first kind, of order 0.", vb.i0, lambda x, y: F.one("i1", x), few(-9, 12)[:2],
             {"public": "i0", "aten": "i0 special_i0 special_modified_bessel_i0"}),
    "I1": ("The modified Bessel function of the first kind, of order 1.", vb.i1, lambda x, y: F.sub(F.one("i0", x), over(y, x)),
             few(-9, 12)[:2], {"public": "i1", "aten": "special_i1 special_modified_bessel_i1"}),
    "I0e": ("exp(-|x|) times i0.", vb.i0e, lambda x, y: F.sub(F.one("i1e", x), F.mul(F.one("sign", x), y)), few(-9, 12)[:2],
             {"public": "i0e", "aten": "special_i0e"}),
    "I1e": ("exp(-|x|) times i1.", vb.i1e, lambda x, y: F.sub(F.sub(F.one("i0e", x), over(y, x)), F.mul(F.one("sign", x), y)),
             few(-9, 12)[:2], {"public": "i1e", "aten": "special_i1e"}),
})
