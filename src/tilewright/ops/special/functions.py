"""Special functions: the error function's and the gamma function's relatives, modified Bessel functions. NumPy has few of them, so the
reference runs the op's own formula on f64 arrays, and PyTorch is what it is compared with."""
from __future__ import annotations

from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np

from ...core.errors import UnsupportedError, require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import Binary, Unary, f32, f64, i32
from ..pointwise.hyperbolic import few
from ..tiles import TileBuilder
from . import vector_bessel as vb
from . import vector_math as vm


class Special(Unary):
    """Written in tile operations; the reference runs them on f64 arrays."""

    formula: ClassVar[Any] = None

    def ref(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(self.lower(vm.ARRAYS, np.asarray(x, np.float64))).astype(x.dtype)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return type(self).formula(t, x)


def gauss(x: Value, scale: float) -> Value:
    """scale * exp(-x^2)"""
    return F.mul(F.exp(F.neg(F.square(x))), scale)


@register
class Erfc(Special):
    """1 - erf(x), accurate also where it is tiny."""

    public, aten = "erfc", "erfc special_erfc"
    samples = few(-3, 6)
    formula = staticmethod(vm.erfc)
    dydx = lambda x, y: gauss(x, -2 / sqrt(pi))


@register
class Erfcx(Special):
    """erfc(x) exp(x^2)."""

    public, aten = "erfcx", "special_erfcx"
    samples = few(-2, 6)[:2]
    formula = staticmethod(vm.erfcx)
    dydx = lambda x, y: F.sub(F.mul(F.mul(x, y), 2), 2 / sqrt(pi))


@register
class Erfinv(Special):
    """The number whose error function is x."""

    public, aten = "erfinv", "erfinv special_erfinv"
    samples = few(-0.98, 0.98)[:2]
    formula = staticmethod(vm.erfinv)
    dydx = lambda x, y: F.mul(F.exp(F.square(y)), sqrt(pi) / 2)


@register
class Ndtri(Special):
    """The number below which a standard normal variable lies with probability x."""

    public, aten = "ndtri", "special_ndtri"
    samples = few(0.01, 0.99)[:2]
    formula = staticmethod(vm.ndtri)
    dydx = lambda x, y: F.mul(F.exp(F.mul(F.square(y), 0.5)), sqrt(2 * pi))


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
class Lgamma(Special):
    """log |gamma(x)|."""

    public, aten = "lgamma", "lgamma special_gammaln"
    samples = few(-2.9, 9)[:2]
    formula = staticmethod(vm.lgamma)
    dydx = lambda x, y: F.one("digamma", x)


@register
class Digamma(Special):
    """The derivative of log-gamma."""

    public, aten = "digamma", "digamma special_digamma special_psi"
    samples = few(0.2, 9)[:2]
    formula = staticmethod(vm.digamma)
    dydx = lambda x, y: F.one("polygamma", x, n=1)


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


@register
class I0(Special):
    """The modified Bessel function of the first kind, of order 0."""

    public, aten = "i0", "i0 special_i0 special_modified_bessel_i0"
    samples = few(-9, 12)[:2]
    formula = staticmethod(vb.i0)
    dydx = lambda x, y: F.one("i1", x)


@register
class I1(Special):
    """The modified Bessel function of the first kind, of order 1."""

    public, aten = "i1", "special_i1 special_modified_bessel_i1"
    samples = few(-9, 12)[:2]
    formula = staticmethod(vb.i1)
    dydx = lambda x, y: F.sub(F.one("i0", x), over(y, x))


@register
class I0e(Special):
    """exp(-|x|) times i0."""

    public, aten = "i0e", "special_i0e"
    samples = few(-9, 12)[:2]
    formula = staticmethod(vb.i0e)
    dydx = lambda x, y: F.sub(F.one("i1e", x), F.mul(F.one("sign", x), y))


@register
class I1e(Special):
    """exp(-|x|) times i1."""

    public, aten = "i1e", "special_i1e"
    samples = few(-9, 12)[:2]
    formula = staticmethod(vb.i1e)
    dydx = lambda x, y: F.sub(F.sub(F.one("i0e", x), over(y, x)), F.mul(F.one("sign", x), y))


def over(y: Value, x: Value) -> Value:
    """y / x of a function that is x / 2 near 0."""
    return F.where(F.equal(x, 0), 0.5, F.div(y, F.where(F.equal(x, 0), 1, x)))
