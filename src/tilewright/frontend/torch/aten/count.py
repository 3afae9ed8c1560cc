"""Histograms and bags of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.dims import product
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.index import counting as N
from .registry import Context, aten, placed, rows


def _edges(c: Context, x: Value, bins: Sequence[int], range_: Sequence[float] | None) -> list[Value]:
    """Even edges of each column of x[N, D], of the column's own range unless one is given."""
    rows = x.shape[0]
    found = []
    for d, count in enumerate(bins):
        if range_ is None:
            low, high = N.own_range(F.reshape(F.slice_(x, 1, d, 1), (rows,)))
        else:
            a, b = float(range_[2 * d]), float(range_[2 * d + 1])
            low, high = (c.scalar(v, x.dtype) for v in ((a - 0.5, b + 0.5) if a == b else (a, b)))
        found.append(N.even_edges(low, high, count))
    return found


def _rows(x: Value) -> Value:
    return F.reshape(x, (product(x.shape[:-1]), x.shape[-1]))


@aten("histogram.bin_ct")
@placed
def histogram(c: Context, x: Value, bins: int = 100, *, range: Any = None, weight: Value | None = None,  # noqa: A002
              density: bool = False) -> Any:
    flat = F.reshape(x, (product(x.shape), 1))
    (edges,) = _edges(c, flat, [bins], range)
    return N.histogram(flat, [edges], weight, density=density), edges


@aten("_histogramdd_from_bin_cts.default")
@placed
def histogramdd(c: Context, x: Value, bins: Sequence[int], *, range: Any = None, weight: Value | None = None,  # noqa: A002
                density: bool = False) -> Any:
    flat = _rows(x)
    return N.histogram(flat, _edges(c, flat, bins, range), weight, density=density)


@aten("embedding_bag.default", "embedding_bag.padding_idx")
@placed
def embedding_bag(c: Context, table: Value, ids: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
                  sparse: bool = False, weights: Value | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Any:
    from ..convert import Missing

    padding, by_count = None if padding_idx is None else padding_idx % table.shape[0], scale_grad_by_freq and c.differentiable
    out = N.embedding_bag(table, ids, offsets, weights, mode=("sum", "mean", "max")[mode], padding=padding, last=include_last_offset,
                          by_count=by_count)
    missing = Missing("bag numbers and sizes of embedding_bag")
    return out, missing, missing, missing


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def inner_embedding_bag(c: Context, table: Value, ids: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
                        sparse: bool = False, weights: Value | None = None, include_last_offset: bool = False,
                        padding_idx: int = -1) -> Any:
    """As above; here no padding is -1."""
    padding = None if padding_idx < 0 else padding_idx
    return embedding_bag(c, table, ids, offsets, scale_grad_by_freq, mode, sparse, weights, include_last_offset, padding)


rows({
    "histogram.bins_tensor": lambda c, x, bins, *, weight=None, density=False:
        (N.histogram(F.reshape(x, (product(x.shape), 1)), [bins], weight, density=density), bins),
    "_histogramdd_bin_edges.default": lambda c, x, bins, *, range=None, **_: tuple(_edges(c, _rows(x), bins, range)),  # noqa: A006
    "_histogramdd_from_bin_tensors.default":
        lambda c, x, bins, *, weight=None, density=False: N.histogram(_rows(x), list(bins), weight, density=density),
}, place=True)
