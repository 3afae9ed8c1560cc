"""Histograms, counts and bags of rows for traced functions."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import ShapeError
from ...ops import functions as F
from ...ops.index import counting as N
from ..promote import as_float, as_tracer, meet
from ..trace import Functions, built, user_place

public = FUNCTIONS = Functions()


@public
def histogram(x: Any, bins: Any = 10, range: Sequence[float] | None = None, *, weights: Any = None, density: bool = False) -> Any:  # noqa: A002
    """(counts, edges) of all elements: `bins` even bins of their range (or of `range`), or between the given ascending edges."""
    given = [as_float(x)] if weights is None else meet(as_float(x), as_float(weights))
    if not isinstance(bins, int):
        given = [*given, as_tracer(bins, given[0].value.dtype)]

    def build(x: Any, *rest: Any) -> Any:
        flat = F.reshape(x, (x.type.numel, 1))
        if isinstance(bins, int):
            low, high = N.own_range(flat) if range is None else (F.scalar(x.node.graph, v, x.dtype) for v in range)
            edges = N.even_edges(low, high, bins)
        else:
            edges = rest[-1]
        return N.histogram(flat, [edges], rest[0] if weights is not None else None, density=density), edges

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


