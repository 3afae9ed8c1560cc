"""The regularised incomplete gamma functions as ops; their formulas are in `vector_igamma.py`."""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import Binary, f32, f64, i32
from ..pointwise.casts import Cast
from ..tiles import TileBuilder
from .vector_igamma import incomplete
from .vector_math import ARRAYS

SAMPLES = [S(f32(3, 5), f32(5), low=(0.2, 0.1), high=(9, 12)), S(f64(4), f64(), low=(0.2, 0.1), high=(3, 4)),
           S(f32(7), f32(7), low=(60, 40), high=(90, 120)), S(f64(6), f64(6), low=(300, 290), high=(320, 330))]


def density(a: Value, x: Value) -> Value:
    """x^(a - 1) e^-x / gamma(a), the derivative of P in x. In f64: the terms of the exponent are large and cancel."""
    wide = [Cast(dtype=dt.f64)(v) for v in (a, x)]
    over = F.sub(wide[0], 1)
    flat = F.equal(over, 0)  # also where x is 0
    power = F.where(flat, 0, F.mul(over, F.log(F.where(flat, 1, wide[1]))))
    found: Value = Cast(dtype=x.dtype)(F.exp(F.sub(F.sub(power, wide[1]), F.one("lgamma", wide[0]))))
    return found


class IncompleteGamma(Binary):
    """Of (a, x), a the shape."""

    part: ClassVar[int]
    errors = [E(i32(3), i32(3), match="needs float operands; cast first")]
    unsupported = dict.fromkeys(("vjp", "jvp"), NotSupported("the derivative by a has no closed form; that by x is there"))

    def ref(self, a: Any, x: Any) -> Any:
        with np.errstate(all="ignore"):
            wide = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
            return np.asarray(incomplete(ARRAYS, *wide)[self.part]).astype(np.asarray(a).dtype)

    def lower(self, t: TileBuilder, a: Any, x: Any) -> Any:
        return incomplete(t, a, x)[self.part]

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        if i == 0:
            raise UnsupportedError(f"{self.name}: the derivative with respect to its first operand has no closed form")
        slope = F.mul(g, density(*inputs))
        return F.neg(slope) if self.part else slope


@register
class Igamma(IncompleteGamma):
    """The lower one, P(a, x): how likely a gamma variable of shape a is below x."""

    public, aten = "igamma gammainc", "igamma special_gammainc"
    part = 0
    samples = SAMPLES


@register
class Igammac(IncompleteGamma):
    """The upper one, Q(a, x) = 1 - P(a, x), with its own digits where it is small."""

    public, aten = "igammac gammaincc", "igammac special_gammaincc"
    part = 1
    samples = SAMPLES
