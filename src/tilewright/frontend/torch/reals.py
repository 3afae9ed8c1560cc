"""Floats that torch computes from sizes (what a variance is divided by, the square root of a head's size): f64 values of the graph."""

from __future__ import annotations

from functools import reduce
from typing import Any

from ... import ops as O
from ...core.dtypes import f64
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from .aten.registry import Context

BINARY = {"Add": O.Add, "Mul": O.Mul, "FloatTrueDiv": O.Div, "IntTrueDiv": O.Div, "Pow": O.Pow, "FloatPow": O.Pow, "PowByNatural": O.Pow}
UNARY = {"sqrt": O.Sqrt, "exp": O.Exp, "log": O.Log, "log2": O.Log2}


def real(c: Context, e: Any) -> Value:
    """The value of a sympy expression over sizes."""
    kind = type(e).__name__
    if e.is_number:
        return c.scalar(float(e), f64)
    if e.is_integer or kind == "ToFloat":
        return c.scalar(c.symbols.dim(e if e.is_integer else e.args[0]), f64)
    parts = [real(c, a) for a in e.args]
    if kind in BINARY:
        return reduce(lambda a, b: c.emit(BINARY[kind](), a, b), parts)
    found = UNARY.get(kind.removeprefix("OpaqueUnaryFn_"))
    if found is None:
        raise UnsupportedError(f"a float computed from sizes by {kind}")
    return c.emit(found(), *parts)
