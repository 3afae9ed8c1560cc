"""Convolutions of 3×3 at step 1 by constant weights in f32 become Winograd's, whose products are a quarter (or less than half) as many."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dtypes import f32
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Such, X, rule
from ..ops.winograd import transformed
from .base import Log, Pass, apply_rules

LEAST = 16  # channels and results: fewer do not pay for the transforms
LARGE = 1 << 17  # channels × results from which tiles of 2×2 are better: those of 4×4 would have more weights than caches hold

C = Such("c", lambda v: isinstance(v.op, o.Constant))


@rule(P(o.Conv, X, C, name="conv"))
def winograd(x: Value, c: Value, conv: Any, m: Match) -> Value | None:
    op = conv.op
    plain = op.stride == op.dilation == (1, 1) and op.groups == 1 and not op.transposed
    if not plain or c.dtype is not f32 or c.shape[2:] != (3, 3) or min(*c.shape[:2]) < LEAST or any(p < 0 for pair in op.padding for p in pair):
        return None
    assert isinstance(c.op, o.Constant)
    tile = 4 if c.shape[0] * c.shape[1] < LARGE else 2
    u = m.graph.constant(transformed(c.op.data.array, tile), c.node.name)
    out: Value = o.WinogradConv(tile=tile, padding=op.padding)(x, u, name=conv.name, place=conv.place)
    return out


@dataclass(frozen=True)
class Winograd(Pass):
    """Before: batch norms are in the weights of their convolutions.
    After: no convolution of 3×3 at step 1 in f32 by constant weights with 16 channels and results, on a CPU. What it becomes depends on
    the weights' shape alone."""

    name: ClassVar[str] = "winograd"

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [winograd], log)
        return graph
