"""Special functions, inverse and hyperbolic functions and the rarer activations: ops of the registry by name, and formulas made of ops."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...core import dtypes as dt
from ...ops import REGISTRY, formulas
from ..promote import as_float, as_tracer
from ..trace import apply, built
from .elementwise import _floats, binary, unary
from .reductions import one_axis

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


UNARY = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2", "log2", "log10", "erfc", "erfcx", "erfinv", "ndtri",
         "log_ndtr", "lgamma", "digamma", "i0", "i0e", "i1", "i1e", "signbit")
BINARY = ("atan2", "copysign", "nextafter", "hypot", "zeta", "igamma", "igammac")
INTEGER = ("gcd", "lcm")
ALIASES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
           "arctan2": "atan2", "gammainc": "igamma", "gammaincc": "igammac"}


def _float_binary(name: str) -> Callable[[Any, Any], Any]:
    op = REGISTRY[name]

    def call(x: Any, y: Any) -> Any:
        a, b = _floats(x, y)
        out = apply(op(), a, b)
        out.weak = a.weak and b.weak
        return out

    call.__doc__ = op.__doc__
    return call


def _formula(fn: Callable[..., Any], arity: int) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(x: Any, *rest: Any, **options: Any) -> Any:
        operands = [as_float(x)] if arity == 1 else _floats(x, rest[0])
        out = built(fn, *operands, **_named(fn, arity, rest[arity - 1 :], options))
        if not isinstance(out, tuple):
            out.weak = all(v.weak for v in operands)
        return out

    return call


def _named(fn: Callable[..., Any], arity: int, rest: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(fn).parameters)[arity:]
    return {**dict(zip(names, rest, strict=False)), **options}


for _name in UNARY:
    FUNCTIONS[_name] = unary(_name)
for _name in BINARY:
    FUNCTIONS[_name] = _float_binary(_name)
for _name in INTEGER:
    FUNCTIONS[_name] = binary(_name)
for _name, _fn in FUNCTIONS.items():
    _fn.__name__ = _fn.__qualname__ = _name
for _name, _made in formulas.UNARY.items():
    FUNCTIONS[_name] = _formula(_made, 1)
for _name, _made in formulas.BINARY.items():
    FUNCTIONS[_name] = _formula(_made, 2)


@public
def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma."""
    return apply(REGISTRY["polygamma"](n=n), as_float(x))  # type: ignore[call-arg]


@public
def float_power(x: Any, y: Any) -> Any:
    """x ** y in f64."""
    return apply(REGISTRY["pow"](), as_tracer(x, dt.f64), as_tracer(y, dt.f64))


@public
def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second."""
    x = as_float(x)
    return built(formulas.glu, x, axis=one_axis("glu", axis, x.ndim))
