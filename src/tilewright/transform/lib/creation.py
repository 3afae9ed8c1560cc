"""Arrays from nothing: fills, ramps, triangles."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Expr, ceildiv, maximum
from ...core.errors import ShapeError
from ...ops import Expand, Iota
from ..promote import as_tracer
from ..trace import Functions, Tracer, apply, current, dtype_given, user_place
from .elementwise import FUNCTIONS as ELEMENTWISE
from .shapes import shape_of

public = FUNCTIONS = Functions()


@public
def full(shape: Any, value: Any, dtype: Any = None) -> Any:
    """One value everywhere; f32, i64 or bool as the value is, unless a dtype is given."""
    x = as_tracer(value, None if dtype is None else dtype_given(dtype))
    wanted = shape_of(shape)
    if any(isinstance(d, int) and d < 0 for d in wanted):
        raise ShapeError(f"full: sizes must not be negative, got shape={wanted} ({user_place()})")
    return apply(Expand(shape=wanted), x)


@public
def zeros(shape: Any, dtype: Any = "f32") -> Any:
    """Zeros."""
    return full(shape, 0, dtype)


@public
def ones(shape: Any, dtype: Any = "f32") -> Any:
    """Ones."""
    return full(shape, 1, dtype)


def _like(x: Any, dtype: Any) -> tuple[Any, Any]:
    x = as_tracer(x)
    return x.shape, x.value.dtype if dtype is None else dtype


@public
def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Zeros of x's shape and dtype."""
    shape, d = _like(x, dtype)
    return full(shape, 0, d)


@public
def ones_like(x: Any, dtype: Any = None) -> Any:
    """Ones of x's shape and dtype."""
    shape, d = _like(x, dtype)
    return full(shape, 1, d)


@public
def full_like(x: Any, value: Any, dtype: Any = None) -> Any:
    """One value everywhere, of x's shape and dtype."""
    shape, d = _like(x, dtype)
    return full(shape, value, d)


@public
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """start, start + step, ... below stop; integers where all of them are."""
    first, last = (0, start) if stop is None else (start, stop)
    floats = any(isinstance(n, (float, np.floating)) for n in (first, last, step))
    kind = dtype_given(("f32" if floats else "i64") if dtype is None else dtype)
    if step != 0 and all(isinstance(n, (int, float, np.number)) and not isinstance(n, bool) for n in (first, last, step)) and \
            (floats or not kind.is_int):
        return as_tracer(np.arange(first, last, step).astype(kind.np))
    if isinstance(last, Expr) and type(first) is type(step) is int and step > 0:
        count = maximum(ceildiv(last - first, step), 0)
    elif any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in (first, last, step)) or step == 0:
        traced = any(isinstance(n, Tracer) for n in (first, last, step))
        hint = "; sizes are known when a function is traced: name the argument in tw.jit(f, static=(...))" if traced else ""
        raise ShapeError(f"arange: needs numbers and a step that is not 0, got start={first}, stop={last}, step={step}{hint} "
                         f"({user_place()})")
    else:
        count = max(-((int(first) - int(last)) // int(step)), 0)  # len() of a range ends at 63 bits
    trace = current()
    op = Iota(shape=(count,), axis=0, dtype=kind, start=first, step=step)
    return trace.wrap(trace.graph.add(op, place=user_place()).value)


def _below(x: Any, k: int) -> Any:
    rows, columns = arange(x.shape[-2]), arange(x.shape[-1])
    return ELEMENTWISE["less_equal"](columns, rows.reshape(-1, 1) + k)


@public
def tril(x: Any, k: int = 0) -> Any:
    """The last two axes with zeros above the k-th diagonal."""
    x = as_tracer(x)
    return ELEMENTWISE["where"](_below(x, k), x, np.zeros((), x.dtype))


@public
def triu(x: Any, k: int = 0) -> Any:
    """The last two axes with zeros below the k-th diagonal."""
    x = as_tracer(x)
    return ELEMENTWISE["where"](_below(x, k - 1), np.zeros((), x.dtype), x)


@public
def eye(n: int, m: int | None = None, k: Any = 0, dtype: Any = "f32") -> Any:
    """Ones on the k-th diagonal. A dtype may stand in the place of k."""
    k, dtype = (k, dtype) if hasattr(k, "__index__") else (0, k)
    if n < 0 or (m is not None and m < 0):
        raise ShapeError(f"eye: sizes must not be negative, got n={n}, m={m} ({user_place()})")
    rows, columns = arange(n), arange(n if m is None else m)
    return ELEMENTWISE["astype"](ELEMENTWISE["equal"](rows.reshape(-1, 1) + k, columns), dtype)
