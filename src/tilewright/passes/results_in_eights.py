"""On a GPU whose copies write pieces of 16 bytes, convolutions of many channels to few results have results of zeros beside them."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from ..core.dims import Dim
from ..ir.graph import Graph, Node, Value, exchanged
from ..ops import functions as F
from ..ops.matmul.contractions import Conv
from .base import Log, Pass

EIGHT = 8  # results of 16 bits in a piece
MANY, MOST = 32, 32  # channels from which on, and results up to which zeros are added
SMALLEST, PIXELS = 48, 1 << 16  # a side of an image, and pixels of all


@dataclass(frozen=True)
class ResultsInEights(Pass):
    """Before: padding is absorbed; the target copies by TMA. After: a convolution of 16 bits with steps of one, of many channels over
    large images, has a multiple of 8 results, of which the first are wanted: its pixels are read once for all taps."""

    name: ClassVar[str] = "results-in-eights"

    def run(self, graph: Graph, log: Log) -> Graph:
        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | None:
            if not self.suits(n):
                return None
            x, w = (env[v] for v in n.operands)
            results = n.value.shape[1]
            assert isinstance(results, int)
            zeros = F.full(new, (-results % EIGHT, *w.shape[1:]), 0.0, w.dtype)
            log.hit(n.op.name)
            return F.slice_(n.op(x, F.concat([w, zeros], 0)), 1, 0, results)

        return exchanged(graph, change) if any(self.suits(n) for n in graph.nodes) else graph

    def suits(self, n: Node) -> bool:
        op = n.op
        if not isinstance(op, Conv) or n.value.dtype.itemsize != 2 or op.transposed or op.groups != 1 or {*op.stride, *op.dilation} != {1}:
            return False
        (batch, results, *image), (_, channels, *taps) = (_known(v.shape) for v in (n.value, n.operands[1]))
        if len(image) != 2 or results % EIGHT == 0 or not 0 < results <= MOST or channels < MANY or prod(taps) < 4:
            return False
        return min(image) >= SMALLEST and batch * prod(image) >= PIXELS


def _known(shape: tuple[Dim, ...]) -> list[int]:
    return [d if isinstance(d, int) else 0 for d in shape]
