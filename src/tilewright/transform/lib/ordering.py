"""Sorting, running products along an axis, the choice of a token; histograms, counts and bags of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import dtypes as dt
from ...core.dims import product
from ...core.errors import ShapeError
from ...ops import ArgSort, CumProd, CumSum, Sample, Sort
from ...ops import functions as F
from ...ops.index import counting as N
from ..promote import as_float, as_tracer, promote
from ..trace import Functions, apply, built, dtype_given, install, user_place
from .reductions import in_dtype, numbers, one_axis
from .shapes import broadcast_to, stack

public = FUNCTIONS = Functions()


@public
def sort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Any:
    """The elements along an axis (None: all of them) in order; NaN counts as the largest. Every sort is stable."""
    x, axis = (as_tracer(x), axis) if axis is not None else (as_tracer(x).reshape(-1), 0)  # type: ignore[attr-defined]
    return apply(Sort(axis=one_axis("sort", axis, x.ndim), descending=descending), x)[0]


@public
def argsort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True, dtype: Any = "i64") -> Any:
    """The indices that put an axis (None: all elements) in order, equal elements in the order they had."""
    x, axis = (as_tracer(x), axis) if axis is not None else (as_tracer(x).reshape(-1), 0)  # type: ignore[attr-defined]
    return apply(ArgSort(axis=one_axis("argsort", axis, x.ndim), descending=descending, dtype=dtype_given(dtype)), x)


def _running(name: str, op: Any, x: Any, axis: int | None, dtype: Any, exclusive: bool, reverse: bool) -> Any:
    x = numbers(in_dtype(x, dtype))
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis)
    return apply(op(axis=one_axis(name, axis, x.ndim), exclusive=exclusive, reverse=reverse), x)


@public
def cumsum(x: Any, axis: int | None = None, *, dtype: Any = None, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running sum along one axis, or of all elements; `exclusive`: without the element itself, `reverse`: from the end."""
    return _running("cumsum", CumSum, x, axis, dtype, exclusive, reverse)


@public
def cumprod(x: Any, axis: int | None = None, *, dtype: Any = None, exclusive: bool = False, reverse: bool = False) -> Any:
    """Running product along one axis, or of all elements; `exclusive`: without the element itself, `reverse`: from the end."""
    return _running("cumprod", CumProd, x, axis, dtype, exclusive, reverse)


@public
def sample(logits: Any, *, temperature: Any = 1.0, top_k: Any = 0, top_p: Any = 1.0, min_p: Any = 0.0, seed: Any = 0, counter: Any = None,
           seen: Any = None, penalty: Any = 1.0) -> Any:
    """A token id of each row of logits[..., vocabulary], drawn from softmax(logits / temperature) after the filters top_k (0: none), top_p
    and min_p, in this order; temperature 0 takes the largest. Settings are numbers, or arrays with one a row. The draw depends on its
    row's logits, settings, `seed` and `counter` alone (the number of the row unless given). The `penalty` divides positive logits of tokens
    whose `seen` is not 0, and multiplies negative ones. A row whose largest logit is NaN or infinite is an ExecutionError.

    >>> import numpy as np, tilewright as tw
    >>> print(tw.sample(np.array([[0.0, 9.0, 1.0], [3.0, 2.0, 2.5]]), temperature=0))
    [1 0]
    """
    x = as_tracer(logits, dt.f32)
    if not x.ndim:
        raise ShapeError(f"sample: needs logits[..., vocabulary], got {x.type} ({user_place()})")
    for name, value, least in (("temperature", temperature, 0), ("top_p", top_p, 0), ("penalty", penalty, 0), ("top_k", top_k, 0)):
        if isinstance(value, (int, float)) and not value >= least:
            raise ShapeError(f"sample: {name} must be at least {least}, got {value} ({user_place()})")
    rows = x.shape[:-1]
    if counter is None:
        counter = built(lambda v: F.reshape(F.iota(v.node.graph, (product(rows),), 0, dt.i64), rows), x)

    def each(dtype: Any, *values: Any) -> Any:
        return stack([broadcast_to(as_tracer(v, dtype), rows) for v in values], -1)

    unseen = as_tracer(0 if seen is None else seen, dt.u8)
    settings, given = each(dt.f32, temperature, top_p, min_p, penalty), each(dt.i64, top_k, seed, counter)
    return apply(Sample(), x, broadcast_to(unseen, x.shape), settings, given)


install(sort=sort, argsort=argsort, cumsum=cumsum, cumprod=cumprod)


@public
def histogram(x: Any, bins: Any = 10, range: Sequence[float] | None = None, *, weights: Any = None, density: bool = False) -> Any:  # noqa: A002
    """(counts, edges) of all elements: `bins` even bins of their range (or of `range`), or between the given ascending edges."""
    given = [as_float(x)] if weights is None else promote(as_float(x), as_float(weights))
    if not isinstance(bins, int):
        given = [*given, as_tracer(bins, given[0].value.dtype)]

    def build(x: Any, *rest: Any) -> Any:
        flat = F.reshape(x, (x.type.numel, 1))
        if isinstance(bins, int):
            low, high = N.own_range(flat) if range is None else (F.scalar(x.node.graph, v, x.dtype) for v in range)
            edges = N.even_edges(low, high, bins)
        else:
            edges = rest[-1]
        counts = N.histogram(flat, [edges], rest[0] if weights is not None else None, density=density)
        return counts if density or weights is not None else F.cast(counts, dt.i64), edges

    if isinstance(bins, int) and bins < 1:
        raise ShapeError(f"histogram: needs one bin or more, got bins={bins} ({user_place()})")
    return built(build, *given)


@public
def bincount(x: Any, weights: Any = None, *, length: int) -> Any:
    """How often each of 0 … length - 1 stands in x, or the sum of its weights; a number outside is an error."""
    operands = [as_tracer(x), *([] if weights is None else [as_tracer(weights)])]
    return built(lambda x, *w: N.bincount(x, w[0] if w else None, length), *operands)


@public
def embedding_bag(table: Any, ids: Any, offsets: Any, weights: Any = None, *, mode: str = "sum", padding: int | None = None) -> Any:
    """Rows of a table that ids name, summed ("sum"), averaged ("mean") or their largest ("max") over bags; bag b begins at offsets[b].
    Ids equal to padding count for nothing, and bags of nothing are zeros."""
    if mode not in ("sum", "mean", "max") or (weights is not None and mode != "sum"):
        raise ShapeError(f"embedding_bag: mode must be sum, mean or max (sum with weights), got mode={mode!r} ({user_place()})")
    operands = [as_float(table), as_tracer(ids), as_tracer(offsets), *([] if weights is None else [as_float(weights)])]
    return built(lambda t, i, o, *w: N.embedding_bag(t, i, o, w[0] if w else None, mode=mode, padding=padding), *operands)
