"""Special functions, inverse and hyperbolic functions, the rarer activations: ops by name, and the formulas of `ops/formulas.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....ir.graph import Value
from ....ops import formulas
from .elementwise import power
from .random import random_slopes
from .registry import Context, Handler, aten, rows


def _formula(fn: Any) -> Handler:
    """Tensor operands first, options behind."""

    def handler(c: Context, x: Any, *rest: Any, **options: Any) -> Any:
        return c.built(fn, c.value(x, c.dtype), *rest, **options)

    return handler


def _wide(fn: Handler) -> Handler:
    """In f32 for small floats: what a formula's numbers are rounded to."""

    def handler(c: Context, x: Value, *rest: Any, **options: Any) -> Any:
        dtype = c.dtype
        if dtype not in (dt.f16, dt.bf16):
            return fn(c, x, *rest, **options)
        c.computed = dt.f32
        try:
            out = fn(c, x, *rest, **options)
        finally:
            c.computed = None
        return c.cast(out, dtype)

    return handler


def _formula2(fn: Callable[..., Any]) -> Handler:
    def handler(c: Context, a: Any, b: Any) -> Any:
        return c.built(fn, c.value(a, c.dtype), c.value(b, c.dtype))

    return handler


_TENSOR_SCALAR = ("Tensor", "Scalar_Self", "Scalar_Other")
_SPECIAL = ("default", "self_scalar", "other_scalar")
aten(*(f"xlogy.{k}" for k in _TENSOR_SCALAR), *(f"special_xlogy.{k}" for k in _SPECIAL))(_formula2(formulas.xlogy))
aten(*(f"special_xlog1py.{k}" for k in _SPECIAL))(_formula2(formulas.xlog1py))
aten("logaddexp.default")(_formula2(formulas.logaddexp))
aten("logaddexp2.default")(_formula2(formulas.logaddexp2))
aten("heaviside.default")(_formula2(formulas.heaviside))
aten("ldexp.Tensor")(_formula2(formulas.ldexp))

_fn: Any
for _name, _fn in {
    "sinc": formulas.sinc, "special_sinc": formulas.sinc, "special_entr": formulas.entr, "special_ndtr": formulas.ndtr,
    "nan_to_num": formulas.nan_to_num, "hardshrink": formulas.hardshrink,
}.items():  # fmt: skip
    aten(f"{_name}.default")(_formula(_fn))
for _name, _fn in {"logit": formulas.logit, "special_logit": formulas.logit, "celu": formulas.celu, "softshrink": formulas.softshrink,
                   "threshold": formulas.threshold}.items():
    aten(f"{_name}.default")(_wide(_formula(_fn)))


def _polynomial(kind: str, shifted: bool) -> Handler:
    def handler(c: Context, x: Any, n: Any) -> Value:
        degree = c.value(n, dt.i64) if not isinstance(n, Value) else c.cast(n, dt.i64)
        return c.emit(O.OrthogonalPolynomial(kind=kind, shifted=shifted), c.value(x, c.dtype), degree)

    return handler


POLYNOMIALS = {
    **{f"chebyshev_polynomial_{k}": (f"chebyshev_{k}", False) for k in "tuvw"},
    **{f"shifted_chebyshev_polynomial_{k}": (f"chebyshev_{k}", True) for k in "tuvw"},
    "hermite_polynomial_h": ("hermite_h", False),
    "hermite_polynomial_he": ("hermite_he", False),
    "laguerre_polynomial_l": ("laguerre", False),
    "legendre_polynomial_p": ("legendre", False),
}
for _name, _kind in POLYNOMIALS.items():
    aten(*(f"special_{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")))(_polynomial(*_kind))


@aten("polygamma.default")
def polygamma(c: Context, n: int, x: Value) -> Value:
    return c.emit(O.Polygamma(n=n), c.cast(x, c.dtype))


@aten("rrelu.default", "rrelu_with_noise.default")
def rrelu(c: Context, x: Value, *args: Any, **options: Any) -> Any:
    """In evaluation the slope is the middle of its range; in training each element has a random one."""
    noise, numbers = [a for a in args if isinstance(a, Value)], [a for a in args if not isinstance(a, Value)]
    given = dict(zip(("lower", "upper", "training"), numbers, strict=False)) | options
    lower, upper = given.get("lower", 0.125), given.get("upper", 1 / 3)
    if given.get("training", False):
        return NotImplemented if noise else random_slopes(c, x, lower, upper)[0]
    return c.emit(O.LeakyRelu(slope=(lower + upper) / 2), x)


@aten("rrelu_with_noise_functional.default")
def rrelu_with_noise(c: Context, x: Value, noise: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
                     *_: Any) -> Any:
    """The slopes are a result too: the backward pass reads them."""
    if training:
        return random_slopes(c, x, lower, upper)
    return c.emit(O.LeakyRelu(slope=(lower + upper) / 2), x), noise


rows({
    "signbit.default": lambda c, x: c.emit(O.Signbit(), x) if not x.dtype.is_bool else c.expand(c.scalar(False, dt.bool_), x.shape),
    "frexp.Tensor": lambda c, x: c.built(formulas.frexp, x),
    "special_polygamma.default": lambda c, n, x: polygamma(c, n, x),
    "float_power.Tensor_Tensor float_power.Tensor_Scalar float_power.Scalar": lambda c, a, b: power(c, a, b),
})
