"""Special functions and the rarer activations that are formulas made of ops, and those whose arguments are no op's."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...core import dtypes as dt
from ...ops import REGISTRY, formulas
from ..promote import as_float, as_tracer, dtype_of
from ..trace import Functions, apply, built
from .elementwise import FUNCTIONS as POINTWISE
from .elementwise import ON_FLOATS, _floats, where
from .reductions import one_axis

public = FUNCTIONS = Functions()


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


for _name, _made in formulas.UNARY.items():
    FUNCTIONS[_name] = _formula(_made, 1)
    if (_shown := inspect.signature(_made)).return_annotation == "Value" and len(_shown.parameters) == 1:
        ON_FLOATS.append(_name)
for _name, _made in formulas.BINARY.items():
    FUNCTIONS[_name] = _formula(_made, 2)


@public
def heaviside(x: Any, middle: Any) -> Any:
    """0 below zero, 1 above, `middle` at zero; NaN of NaN, where PyTorch's is 0."""
    a, b = _floats(x, middle)
    return where(POINTWISE["isnan"](a), a, built(formulas.heaviside, a, b))


@public
def polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma."""
    return apply(REGISTRY["polygamma"](n=n), as_float(x))  # type: ignore[call-arg]


@public
def float_power(x: Any, y: Any) -> Any:
    """x ** y in f64, of complex numbers in c128."""
    wide = dt.c128 if any(dtype_of(v)[0].kind == "c" for v in (x, y)) else dt.f64
    return apply(REGISTRY["pow"](), as_tracer(x, wide), as_tracer(y, wide))


@public
def glu(x: Any, axis: int = -1) -> Any:
    """The first half along an axis times the sigmoid of the second."""
    x = as_float(x)
    return built(formulas.glu, x, axis=one_axis("glu", axis, x.ndim))
