"""Sorting and running products along an axis."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops import ArgSort, CumProd, CumSum, Sort
from ..promote import as_tracer
from ..trace import apply, dtype_given, install
from .reductions import numbers, one_axis

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


@public
def sort(x: Any, axis: int = -1, *, descending: bool = False) -> Any:
    """The elements along an axis in order; NaN counts as the largest."""
    x = as_tracer(x)
    return apply(Sort(axis=one_axis("sort", axis, x.ndim), descending=descending), x)[0]


@public
def argsort(x: Any, axis: int = -1, *, descending: bool = False, dtype: Any = "i64") -> Any:
    """The indices that put an axis in order, equal elements in the order they had."""
    x = as_tracer(x)
    return apply(ArgSort(axis=one_axis("argsort", axis, x.ndim), descending=descending, dtype=dtype_given(dtype)), x)


@public
def cumsum(x: Any, axis: int = 0, *, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running sum along one axis; `exclusive`: without the element itself, `reverse`: from the end."""
    x = numbers(x)
    return apply(CumSum(axis=one_axis("cumsum", axis, x.ndim), exclusive=exclusive, reverse=reverse), x)


@public
def cumprod(x: Any, axis: int = 0, *, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running product along one axis; `exclusive`: without the element itself, `reverse`: from the end."""
    x = numbers(x)
    return apply(CumProd(axis=one_axis("cumprod", axis, x.ndim), exclusive=exclusive, reverse=reverse), x)


install(sort=sort, argsort=argsort, cumsum=cumsum, cumprod=cumprod)
