"""Bessel functions and Airy's function. The reference runs an op's own formula on f64 arrays; PyTorch is what it is compared with.

Classical orthogonal polynomials by their recurrences, in f64: Chebyshev's of four kinds (also shifted to 0 .. 1), Hermite's, Laguerre's,
Legendre's. The degree is data, an integer an element; a tile runs as many steps as its largest degree wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, register
from ..families import Binary, broadcast_shapes, enter_formulas, f32, f64, few, i64, require_kind
from . import vector_bessel as vb
from .functions import Special, over


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


LIMIT = 500  # larger degrees give NaN: no user means them, and a wrong number must not run for hours


def _twice(k: Any, x: Any, q: Any, p: Any) -> Any:
    return (x + x) * q - p


Step = Callable[[Any, Any, Any, Any], Any]
# name -> (polynomial of degree 1, the one of degree k + 1 from those of k and k - 1)
KINDS: dict[str, tuple[Callable[[Any], Any], Step]] = {
    "chebyshev_t": (lambda x: x, _twice),
    "chebyshev_u": (lambda x: x + x, _twice),
    "chebyshev_v": (lambda x: x + x - 1.0, _twice),
    "chebyshev_w": (lambda x: x + x + 1.0, _twice),
    "hermite_h": (lambda x: x + x, lambda k, x, q, p: (x + x) * q - (k + k) * p),
    "hermite_he": (lambda x: x, lambda k, x, q, p: x * q - k * p),
    "laguerre": (lambda x: 1.0 - x, lambda k, x, q, p: ((k + k + 1.0 - x) * q - k * p) / (k + 1.0)),
    "legendre": (lambda x: x, lambda k, x, q, p: ((k + k + 1.0) * x * q - k * p) / (k + 1.0)),
}


@register
class OrthogonalPolynomial(Binary):
    """The polynomial of `kind` and degree n at x; 0 for negative degrees. `shifted`: of 2 x - 1. The second operand holds the degrees."""

    kind: str
    shifted: bool = False
    kinds = "i"
    samples = [*(S(f64(5), i64(5), kind=k, low=(-2, -1), high=(2, 7)) for k in ("chebyshev_u", "hermite_he", "laguerre")),
               S(f32(3, 5), i64(), kind="legendre", high=(1, 9), low=(-1, 0)),
               S(f64(4, 1), i64(3), kind="chebyshev_t", shifted=True, low=(-1, 0), high=(2, 5))]
    errors = [E(f32(3), f32(3), kind="legendre", match="needs integer operands; cast first, got dtype=f32"),
              E(i64(3), i64(3), kind="legendre", match="needs float operands"),
              E(f32(3), i64(3), kind="jacobi", match="kind must be one of chebyshev_t")]
    unsupported = dict.fromkeys(("vjp", "jvp"), NotSupported("no rule is written for it; write the polynomial out to differentiate it"))

    def infer(self, *types: TensorType) -> TensorType:
        x, n = types
        require(self.kind in KINDS, "kind must be one of {known}", known=" ".join(KINDS), kind=self.kind)
        require_kind((x,), "f")
        require_kind((n,), "i")
        return TensorType(x.dtype, broadcast_shapes(x.shape, n.shape))

    def ref(self, x: Any, n: Any) -> Any:
        v, n = np.broadcast_arrays(np.asarray(x, np.float64), n)
        v = v + v - 1.0 if self.shifted else v
        first, step = KINDS[self.kind]
        p, q = np.ones_like(v), first(v)
        with np.errstate(all="ignore"):
            for k in range(1, min(int(n.max(initial=1)), LIMIT)):
                p, q = np.where(k < n, q, p), np.where(k < n, step(float(k), v, q, p), q)
        out = np.where(n < 0, 0.0, np.where(n == 0, 1.0, np.where(n > LIMIT, np.nan, q)))
        return out.astype(x.dtype)

    def lower(self, t: Any, x: Any, n: Any) -> Any:
        v = t.cast(x, dt.f64)
        v = v + v - 1.0 if self.shifted else v
        first, step = KINDS[self.kind]
        shape = t.broadcast_shape(v.shape, n.shape)
        v, n = t.broadcast(v, shape), t.broadcast(t.cast(n, dt.i64), shape)
        most = n
        for axis in range(len(shape)):
            most = t.reduce("max", most, axis)
        stop = t.minimum(t.maximum(t.to_index(most), 1), LIMIT)
        with t.loop(1, stop, 1, carried=(t.broadcast(t.full((), 1.0, dt.f64), shape), t.broadcast(first(v), shape))) as loop:
            p, q = loop.carried
            k = t.from_index(loop.index)
            on = t.cmp("lt", k, n)
            loop.next(t.select(on, q, p), t.select(on, step(t.cast(k, dt.f64), v, q, p), q))
        y = t.select(t.cmp("eq", n, 0), 1.0, loop.results[1])
        return t.select(t.cmp("lt", n, 0), 0.0, t.select(t.cmp("gt", n, LIMIT), float("nan"), y))


enter_formulas(Special, __name__, {
    "BesselJ0": ("The Bessel function of the first kind, of order 0.", vb.bessel_j0, lambda x, y: F.neg(F.one("bessel_j1", x)),
             few(-15, 15)[1:2], {"aten": "special_bessel_j0"}),
    "BesselJ1": ("The Bessel function of the first kind, of order 1.", vb.bessel_j1, lambda x, y: F.sub(F.one("bessel_j0", x), over(y, x)),
             few(-15, 15)[1:2], {"aten": "special_bessel_j1"}),
    "BesselY0": ("The Bessel function of the second kind, of order 0.", vb.bessel_y0, lambda x, y: F.neg(F.one("bessel_y1", x)),
             few(0.3, 15)[1:2], {"aten": "special_bessel_y0"}),
    "BesselY1": ("The Bessel function of the second kind, of order 1.", vb.bessel_y1,
             lambda x, y: F.sub(F.one("bessel_y0", x), F.div(y, x)), few(0.3, 15)[1:2], {"aten": "special_bessel_y1"}),
    "ModifiedBesselK0": ("The modified Bessel function of the second kind, of order 0.", vb.k0,
             lambda x, y: F.neg(F.one("modified_bessel_k1", x)), few(0.3, 9)[1:2], {"aten": "special_modified_bessel_k0"}),
    "ModifiedBesselK1": ("The modified Bessel function of the second kind, of order 1.", vb.k1,
             lambda x, y: F.neg(F.add(F.one("modified_bessel_k0", x), F.div(y, x))), few(0.3, 9)[1:2],
             {"aten": "special_modified_bessel_k1"}),
    "ScaledModifiedBesselK0": ("exp(x) times modified_bessel_k0.", vb.k0e, lambda x, y: F.sub(y, F.one("scaled_modified_bessel_k1", x)),
             few(0.3, 9)[1:2], {"aten": "special_scaled_modified_bessel_k0"}),
    "ScaledModifiedBesselK1": ("exp(x) times modified_bessel_k1.", vb.k1e,
             lambda x, y: F.sub(y, F.add(F.one("scaled_modified_bessel_k0", x), F.div(y, x))), few(0.3, 9)[1:2],
             {"aten": "special_scaled_modified_bessel_k1"}),
})
