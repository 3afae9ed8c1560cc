"""On a GPU, products of long rows with few tiles of results (gradients of weights) are many products of parts of the rows, and a sum."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.dtypes import bf16, compute_dtype, f16, f32
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from ..ops.matmul.contractions import Matmul
from .base import Log, Pass

TILE = 64  # rows and columns of the smallest tile of a result that a block computes
LONGEST = 4096  # elements of rows that are not split
PART = 512  # elements of a part at least


@dataclass(frozen=True)
class SplitLongProducts(Pass):
    """Before: products have their transposes; nothing is fused. After: a product of two matrices with few tiles of results for the chip
    and long rows is the sum of a batch of products, each of as many elements."""

    name: ClassVar[str] = "split-long-products"
    cores: int = 1

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(self.parts(n) > 1 for n in graph.nodes):
            return graph
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            parts = self.parts(n)
            if parts == 1:
                graph.copy_into(new, env, [n])
                continue
            op = n.op
            assert isinstance(op, Matmul)
            new.place = n.place
            a, b = (env[v] for v in n.operands)
            a, b = split(a, parts, 0 if op.transpose_a else 1), split(b, parts, 1 if op.transpose_b else 0)
            made = F.matmul(a, b, transpose_a=op.transpose_a, transpose_b=op.transpose_b, alpha=op.alpha)
            wide = F.sum_(F.cast(made, compute_dtype(made.dtype)), (0,))  # what 16-bit floats leave their products as is not rounded
            env[n.value] = F.cast(wide, n.value.dtype)
            new.place = ""
            log.hit(op.name)
        new.take_ends(graph, env)
        return new

    def parts(self, n: Node) -> int:
        """Of the rows; 1: the product stays."""
        op = n.op
        if type(op) is not Matmul or op.dtype is not None or n.value.dtype not in (bf16, f16, f32):
            return 1
        a, b = (v.shape for v in n.operands)
        if len(a) != 2 or len(b) != 2 or not all(isinstance(d, int) for d in (*a, *b)):
            return 1
        rows, k = (a[1], a[0]) if op.transpose_a else (a[0], a[1])
        columns = b[0] if op.transpose_b else b[1]
        tiles = -(-rows // TILE) * -(-columns // TILE)
        found = 1
        while k > LONGEST and tiles and k % (2 * found) == 0 and k // (2 * found) >= PART and 2 * found * tiles <= self.cores:
            found *= 2
        return found if rows > 1 and columns > 1 else 1


def split(x: Value, parts: int, axis: int) -> Value:
    """A matrix as a batch of its parts along an axis."""
    rows, columns = x.shape
    if axis == 0:
        return F.reshape(x, (parts, rows // parts, columns))
    return F.transpose(F.reshape(x, (rows, parts, columns // parts)), (1, 0, 2))
