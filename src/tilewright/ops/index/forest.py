"""Ensembles of decision trees: each row walks every tree from its root to a leaf, and what the leaves say is put together."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, N, f32, f64, i32, require_kind, u32

HOWS = ("sum", "max", "min")
_LOW, _HIGH = (-2, -2, 0, -2, 0), (2, 2, 30, 2, 30)


def some_trees(arrays: list[Any]) -> list[Any]:
    """Links that lead on: a node has its children behind it."""
    x, limits, links, weights, roots = arrays
    most = len(links) + len(weights)
    own = np.arange(len(links))
    made = [links[:, 0] % x.shape[1], *(np.minimum(own + 1 + links[:, k] % 4, most - 1) for k in (1, 2))]
    return [x, limits, np.stack(made, 1).astype(links.dtype), weights, roots % most]


@register
class Forest(Composite):
    """What trees say of rows x[R, F]. Node i compares x[:, feature] with limits[i]; links[n, 3] hold the feature, the node to go to where
    x is above the limit (or NaN), and the one where it is not. Node n + k is leaf k, which says row k of weights[m, C]. roots[T] are the
    trees' first nodes, and no leaf is deeper than `depth`. The leaves' weights are summed in f64 in the order of the trees (or the largest
    or smallest is taken), in `parts` of as many trees: [parts, R, C]. Places outside of a table are clamped into it."""

    depth: int
    how: str = "sum"
    parts: int = 1

    whole = True
    samples = [S(f32(19, 5), f32(12), u32(12, 3), f32(6, 3), u32(4), high=_HIGH, low=_LOW, fit=some_trees, depth=12),
               S(f32(3, 5), f32(12), u32(12, 3), f32(6, 1), u32(11), high=_HIGH, low=_LOW, fit=some_trees, depth=12, parts=5),
               S(f64(9, 4), f64(20), u32(20, 3), f64(4, 11), u32(3), high=_HIGH, low=_LOW, fit=some_trees, depth=20, parts=2),
               S(f32(N, 5), f32(5), u32(5, 3), f32(4, 2), u32(9), high=_HIGH, low=_LOW, fit=some_trees, depth=5, how="max"),
               S(f32(8, 1), f32(1), u32(1, 3), f32(1, 1), u32(2), high=_HIGH, low=_LOW, fit=some_trees, depth=0, how="min"),
               S(f32(9, 3), f32(4), u32(4, 3), f32(3, 130), u32(2), high=_HIGH, low=_LOW, fit=some_trees, depth=4)]
    errors = [E(f32(9), f32(3), u32(3, 3), f32(2, 1), u32(1), match="needs rows of features", depth=1),
              E(f32(9, 2), f64(3), u32(3, 3), f32(2, 1), u32(1), match="needs limits and weights in the dtype", depth=1),
              E(f32(9, 2), f32(3), i32(3, 3), f32(2, 1), u32(1), match="needs links and roots in u32", depth=1),
              E(f32(9, 2), f32(3), u32(3, 2), f32(2, 1), u32(1), match="needs a limit and three links", depth=1),
              E(f32(9, 2), f32(3), u32(3, 3), f32(0, 1), u32(1), match="needs leaves, each with a row", depth=1),
              E(i32(9, 2), i32(3), u32(3, 3), i32(2, 1), u32(1), match="needs float operands", depth=1),
              E(f32(9, 2), f32(3), u32(3, 3), f32(2, 1), u32(1), match="needs one of", depth=1, how="product"),
              E(f32(9, 2), f32(3), u32(3, 3), f32(2, 1), u32(3), match="needs at least a tree in every part", depth=1, parts=4)]

    def infer(self, x: TensorType, limits: TensorType, links: TensorType, weights: TensorType, roots: TensorType) -> TensorType:
        require_kind((x,), "f")
        require(self.how in HOWS, f"needs one of {', '.join(HOWS)}", how=self.how)
        require(x.ndim == 2 and x.shape[1] != 0, "needs rows of features", x=x)
        require(limits.dtype is x.dtype and weights.dtype is x.dtype, "needs limits and weights in the dtype of the features", x=x,
                limits=limits, weights=weights)
        require(links.dtype is dt.u32 and roots.dtype is dt.u32, "needs links and roots in u32", links=links, roots=roots)
        require(limits.ndim == 1 and links.shape == (*limits.shape, 3),
                "needs a limit and three links for every node", limits=limits, links=links)
        sizes = (*limits.shape, *weights.shape, *roots.shape)
        require(weights.ndim == 2 and roots.ndim == 1 and all(isinstance(d, int) and d > 0 for d in sizes),
                "needs leaves, each with a row of weights, and roots", weights=weights, roots=roots, limits=limits)
        require(1 <= self.parts <= roots.shape[0], "needs at least a tree in every part", parts=self.parts, roots=roots)
        return TensorType(dt.f64 if self.how == "sum" else x.dtype, (self.parts, x.shape[0], weights.shape[1]))

    def ref(self, x: Any, limits: Any, links: Any, weights: Any, roots: Any) -> Any:
        n, at = len(links), np.broadcast_to(roots.astype(np.int64), (len(x), len(roots)))
        for _ in range(self.depth):
            node = np.minimum(at, n - 1)
            value = np.take_along_axis(x, np.minimum(links[node, 0], x.shape[1] - 1).astype(np.int64), 1)
            at = np.where(at < n, np.where(value <= limits[node], links[node, 2], links[node, 1]), at)
        found = weights[np.clip(at - n, 0, len(weights) - 1)].astype(np.float64 if self.how == "sum" else x.dtype)
        put: Any = {"sum": np.sum, "max": np.max, "min": np.min}[self.how]
        return np.stack([put(found[:, a:b], axis=1) for a, b in self.shares(len(roots))])

    def shares(self, trees: int) -> list[tuple[int, int]]:
        """The first tree of every part and the one behind its last."""
        edges = [trees * k // self.parts for k in range(self.parts + 1)]
        return list(zip(edges[:-1], edges[1:], strict=True))

    def decompose(self, x: Value, limits: Value, links: Value, weights: Value, roots: Value) -> Value:
        nodes, leaves, shape = limits.shape[0], weights.shape[0], (x.shape[0], roots.shape[0])
        assert isinstance(nodes, int) and isinstance(leaves, int)
        graph = x.node.graph
        places = F.cast(F.minimum(links, F.dim_value(graph, nodes + leaves - 1, dt.u32)), dt.i32)
        tables = [F.reshape(F.slice_(places, 1, k, 1), (nodes,)) for k in range(3)]
        features = F.minimum(tables[0], F.dim_value(graph, x.shape[1] - 1, dt.i32))
        first = F.cast(F.minimum(roots, F.dim_value(graph, nodes + leaves - 1, dt.u32)), dt.i32)
        at = F.expand(F.reshape(first, (1, roots.shape[0])), shape)
        for _ in range(self.depth):
            node = F.minimum(at, nodes - 1)
            value = F.one("gather_along_axis", x, F.gather(features, node), axis=1)
            below = F.less_equal(value, F.gather(limits, node))
            at = F.where(F.less(at, nodes), F.where(below, F.gather(tables[2], node), F.gather(tables[1], node)), at)
        found = F.gather(weights, F.maximum(F.sub(at, nodes), 0), 0)
        found = F.cast(found, dt.f64) if self.how == "sum" else found
        assert isinstance(shape[1], int)
        out = (1, x.shape[0], weights.shape[1])
        return F.concat([F.reshape(F.one(self.how, F.slice_(found, 1, a, b - a), axes=(1,)), out) for a, b in self.shares(shape[1])], 0)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return (target is not None and target.kind != "cpu") or operands[0].dtype not in (dt.f32, dt.f64)

    def flops(self, x: TensorType, *types: TensorType) -> Dim:
        return x.shape[0] * types[3].shape[0] * (self.depth + types[2].shape[1])
