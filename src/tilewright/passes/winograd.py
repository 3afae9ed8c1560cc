"""Convolutions of 3×3 at step 1 by constant weights become Winograd's, whose products are a quarter (or less than half) as many.

Those of small floats are multiplied in f32 then. Pairs of bf16 numbers are multiplied twice as fast: only the quarter pays for them.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dtypes import bf16, f16, f32
from ..core.winograd import transformed
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Such, X, rule
from ..ops.matmul.winograd import Transformed
from .base import Log, Pass, apply_rules

LEAST = 16  # channels and results: fewer do not pay for the transforms
LARGE = 1 << 17  # weights of a tap from which tiles of 2×2 are better: those of 4×4 would have more weights than caches hold

C = Such("c", lambda v: isinstance(v.op, o.Constant))


@rule(P(o.Conv, X, C, name="conv"), changes="rounding")
def winograd(x: Value, c: Value, conv: Any, m: Match) -> Value | None:
    op = conv.op
    inside = all(isinstance(p, int) and p >= 0 for pair in op.padding for p in pair)
    plain = set(op.stride) == set(op.dilation) == {1} and not op.transposed and inside
    results, channels, *kernel = c.shape
    known = isinstance(channels, int) and isinstance(results, int) and channels >= LEAST and results // op.groups >= LEAST
    size = c.type.numel
    if not plain or c.dtype not in (f32, bf16, f16) or tuple(kernel[-2:]) != (3, 3) or not known or not isinstance(size, int):
        return None
    assert isinstance(c.op, o.Constant)
    tile = 4 if size // 9 < LARGE else 2
    if tile == 2 and c.dtype is bf16:
        return None
    made: Any = Transformed(c.op.data, tile)
    if c.op.data.array.flags.writeable:  # its owner may change it later
        made = transformed(c.op.data.array, tile)
    u = m.graph.constant(made, c.node.name)
    whole = o.WinogradConv(tile=tile, padding=op.padding, outer=tuple(kernel[:-2]), groups=op.groups)
    out: Value = whole(x, u, name=conv.name, place=conv.place)
    return out


@dataclass(frozen=True)
class Winograd(Pass):
    """Before: batch norms are in the weights of their convolutions.
    After: on a CPU, no convolution with 3×3 taps along its last axes at step 1 in f32, f16 or bf16 by constant weights of 16 channels and
    results a group (large ones in bf16 excepted). What it becomes depends on the weights' type alone."""

    name: ClassVar[str] = "winograd"

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [winograd], log)
        return graph
