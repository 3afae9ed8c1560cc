"""Sums over bags of rows: the sum of an embedding's rows, read where they lie."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, register
from ..families import Composite, N, bf16, f32, f64, i32, i64, require_kind
from .indexing import check_indices, require_ids


def some_bounds(arrays: list[Any]) -> list[Any]:
    """Rising bounds of bags that cover the ids."""
    table, ids, bounds = arrays
    bounds = np.sort(bounds % (len(ids) + 1))
    bounds[:1], bounds[-1:] = 0, len(ids)
    return [table, ids, bounds]


def owners(bounds: Value, n: Dim) -> Value:
    """The bag of each of n places: the number of bounds at or before it, less one. The last bound is where the last bag ends."""
    graph, bags = bounds.node.graph, bounds.shape[0] - 1
    marks = F.scatter_add(F.full(graph, (n + 1,), 0, dt.i64), F.slice_(bounds, 0, 0, bags), F.full(graph, (bags,), 1, dt.i64))
    return F.sub(F.one("cum_sum", F.slice_(marks, 0, 0, n), axis=0), 1)


@register
class BagSum(Composite):
    """Rows of a table [V, D] that ids [n] name, summed over bags: bag b is ids[bounds[b]] to ids[bounds[b + 1] - 1], in this order. Bounds
    [B + 1] rise from 0 to n; a bag of nothing is zeros."""

    whole = True
    faults = True
    samples = [S(f32(9, 5), i64(14), i64(5), low=(-2, 0, 0), high=(2, 8, 14), fit=some_bounds),
               S(f64(3, 70), i32(20), i32(4), low=(-2, 0, 0), high=(2, 2, 20), fit=some_bounds),
               S(bf16(4, 3), i64(6), i64(3), low=(-2, 0, 0), high=(2, 3, 6), fit=some_bounds),
               S(f32(4, 3), i64(0), i64(3), low=0, high=1, fit=some_bounds),
               S(f32(4, N), i64(6), i64(3), low=(-2, 0, 0), high=(2, 3, 6), fit=some_bounds)]
    errors = [E(f32(9), i64(3), i64(2), match="needs a table of rows"), E(f32(9, 2), i64(3), i64(0), match="needs at least one bound"),
              E(f32(9, 2), f32(3), i64(2), match="indices must be integers"), E(i32(9, 2), i64(3), i64(2), match="needs float operands")]

    def infer(self, table: TensorType, ids: TensorType, bounds: TensorType) -> TensorType:
        require_kind((table,), "f")
        require_ids(ids)
        require_ids(bounds)
        require(table.ndim == 2 and ids.ndim == 1 and bounds.ndim == 1, "needs a table of rows, and ids and bounds in a line",
                table=table, ids=ids, bounds=bounds)
        require(bounds.shape[0] != 0, "needs at least one bound", bounds=bounds)
        return table.with_shape((bounds.shape[0] - 1, table.shape[1]))

    def ref(self, table: Any, ids: Any, bounds: Any) -> Any:
        check_indices(self.name, ids, table.shape[0], 0)
        wide = table.astype(np.float64)
        sums = [wide[ids[a:b]].sum(0) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
        return np.array(sums).reshape(len(sums), table.shape[1]).astype(table.dtype)

    def decompose(self, table: Value, ids: Value, bounds: Value) -> Value:
        zeros = F.full(table.node.graph, (bounds.shape[0] - 1, table.shape[1]), 0, table.dtype)
        return F.scatter_add(zeros, owners(bounds, ids.shape[0]), F.gather(table, ids))

    def flops(self, *types: TensorType) -> Dim:
        return types[1].numel * types[0].shape[1]
