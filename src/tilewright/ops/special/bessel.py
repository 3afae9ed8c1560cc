"""Bessel functions and Airy's function. The reference runs an op's own formula on f64 arrays; PyTorch is what it is compared with."""
from __future__ import annotations

from typing import ClassVar

from ...ir.graph import Value
from .. import functions as F
from ..base import NotSupported, register
from ..pointwise.hyperbolic import few
from . import vector_bessel as vb
from .functions import Special, over


@register
class BesselJ0(Special):
    """The Bessel function of the first kind, of order 0."""

    aten = "special_bessel_j0"
    samples = few(-15, 15)[1:2]
    formula = staticmethod(vb.bessel_j0)
    dydx = lambda x, y: F.neg(F.one("bessel_j1", x))


@register
class BesselJ1(Special):
    """The Bessel function of the first kind, of order 1."""

    aten = "special_bessel_j1"
    samples = few(-15, 15)[1:2]
    formula = staticmethod(vb.bessel_j1)
    dydx = lambda x, y: F.sub(F.one("bessel_j0", x), over(y, x))


@register
class BesselY0(Special):
    """The Bessel function of the second kind, of order 0."""

    aten = "special_bessel_y0"
    samples = few(0.3, 15)[1:2]
    formula = staticmethod(vb.bessel_y0)
    dydx = lambda x, y: F.neg(F.one("bessel_y1", x))


@register
class BesselY1(Special):
    """The Bessel function of the second kind, of order 1."""

    aten = "special_bessel_y1"
    samples = few(0.3, 15)[1:2]
    formula = staticmethod(vb.bessel_y1)
    dydx = lambda x, y: F.sub(F.one("bessel_y0", x), F.div(y, x))


@register
class ModifiedBesselK0(Special):
    """The modified Bessel function of the second kind, of order 0."""

    aten = "special_modified_bessel_k0"
    samples = few(0.3, 9)[1:2]
    formula = staticmethod(vb.k0)
    dydx = lambda x, y: F.neg(F.one("modified_bessel_k1", x))


@register
class ModifiedBesselK1(Special):
    """The modified Bessel function of the second kind, of order 1."""

    aten = "special_modified_bessel_k1"
    samples = few(0.3, 9)[1:2]
    formula = staticmethod(vb.k1)
    dydx = lambda x, y: F.neg(F.add(F.one("modified_bessel_k0", x), F.div(y, x)))


@register
class ScaledModifiedBesselK0(Special):
    """exp(x) times modified_bessel_k0."""

    aten = "special_scaled_modified_bessel_k0"
    samples = few(0.3, 9)[1:2]
    formula = staticmethod(vb.k0e)
    dydx = lambda x, y: F.sub(y, F.one("scaled_modified_bessel_k1", x))


@register
class ScaledModifiedBesselK1(Special):
    """exp(x) times modified_bessel_k1."""

    aten = "special_scaled_modified_bessel_k1"
    samples = few(0.3, 9)[1:2]
    formula = staticmethod(vb.k1e)
    dydx = lambda x, y: F.sub(y, F.add(F.one("scaled_modified_bessel_k0", x), F.div(y, x)))


@register
class SphericalBesselJ0(Special):
    """sin(x) / x."""

    aten = "special_spherical_bessel_j0"
    samples = few(-9, 9)[1:2]
    formula = staticmethod(vb.spherical_j0)

    def derivative(self, x: Value, y: Value) -> Value:
        """(cos(x) - y) / x; -x / 3 near 0, where that loses its digits."""
        small = F.less(F.abs_(x), 1e-3)
        safe = F.where(small, 1, x)
        return F.where(small, F.mul(x, -1 / 3), F.div(F.sub(F.one("cos", safe), y), safe))


@register
class AiryAi(Special):
    """Airy's function."""

    aten = "special_airy_ai"
    samples = few(-9, 5)[1:2]
    formula = staticmethod(vb.airy_ai)
    unsupported: ClassVar[dict[str, NotSupported]] = dict.fromkeys(
        ("vjp", "jvp"), NotSupported("its derivative is another special function, which nobody has asked for")
    )
