"""Linear layers that read the same value (q, k and v) become one matmul on their concatenated weights, and a split.

On a GPU, products of long rows with few tiles of results (gradients of weights) are many products of parts of the rows, and a sum.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dtypes import bf16, compute_dtype, f16, f32
from ..ir.graph import Graph, Node, Value, exchanged, replace_values
from ..ir.rewrite import sort_nodes
from ..ops import functions as F
from ..ops.matmul.contractions import Matmul
from .base import Log, Pass

READERS = (o.Reshape, o.Transpose, o.Slice, o.Split, o.Attention, o.Rope)


@dataclass(frozen=True)
class Linear:
    """One candidate: x @ w (+ b), and the value that others read."""

    matmul: Node
    w: Value
    bias: Value | None
    result: Value


@dataclass(frozen=True)
class MergeMatmuls(Pass):
    """Before: CSE done, biases still plain additions.
    After: matmuls with one left operand, constant right operands that nothing else reads, equal flags, alike biases, and results that
    are only viewed or attended to, are one matmul whose result is split along its last axis. Results with an epilogue of their own
    stay apart."""

    name: ClassVar[str] = "merge-matmuls"

    def run(self, graph: Graph, log: Log) -> Graph:
        users = graph.users()
        outputs = set(graph.outputs)
        groups: dict[Any, list[Linear]] = defaultdict(list)
        for n in graph.nodes:
            found = self.candidate(n, users, outputs)
            if found is not None:
                op: Any = n.op
                key = (n.operands[0], op, found.bias is not None, found.w.shape[1 if op.transpose_b else 0])
                groups[key].append(found)
        mapping: dict[Value, Value] = {}
        for group in groups.values():
            if len(group) > 1:
                self.merge(graph, group, mapping)
                log.hit("merge_matmuls", len(group))
        if mapping:
            replace_values(graph, mapping)
            sort_nodes(graph)
        return graph

    def candidate(self, n: Node, users: dict[Value, list[Node]], outputs: set[Value]) -> Linear | None:
        if not isinstance(n.op, o.Matmul) or n.op.transpose_a:
            return None
        w = n.operands[1]
        if not isinstance(w.op, o.Constant) or len(w.shape) != 2 or len(users[w]) != 1 or w in outputs:
            return None
        result, bias = n.value, None
        if len(users[result]) == 1 and result not in outputs and isinstance(users[result][0].op, o.Add):
            add = users[result][0]
            other = add.operands[1] if add.operands[0] is result else add.operands[0]
            if isinstance(other.op, o.Constant) and other.shape == result.shape[-1:] and add.types[0] == result.type:
                result, bias = add.value, other
        if result in outputs or not users[result] or not all(isinstance(u.op, READERS) for u in users[result]):
            return None
        return Linear(n, w, bias, result)

    def merge(self, graph: Graph, group: list[Linear], mapping: dict[Value, Value]) -> None:
        first: Any = group[0].matmul
        axis = 0 if first.op.transpose_b else 1
        w = self.joined(graph, [g.w for g in group], axis)
        y: Value = first.op(first.operands[0], w, place=first.place)
        if group[0].bias is not None:
            y = o.Add()(y, self.joined(graph, [g.bias for g in group if g.bias is not None], 0), place=first.place)
        parts = o.Split(axis=len(y.shape) - 1, sizes=tuple(g.result.shape[-1] for g in group))(y, place=first.place)
        mapping.update(zip((g.result for g in group), parts, strict=True))

    @staticmethod
    def joined(graph: Graph, parts: list[Value], axis: int) -> Value:
        joined = o.Joined([v.op.data for v in parts if isinstance(v.op, o.Constant)], axis)
        return graph.constant(joined, joined.name)


TILE = 64  # rows and columns of the smallest tile of a result that a block computes
LONGEST = 4096  # elements of rows that are not split
PART = 512  # elements of a part at least
FEW = 256  # rows of a product that kernels cut into four parts by themselves


@dataclass(frozen=True)
class SplitLongProducts(Pass):
    """Before: products have their transposes; nothing is fused. After: a product of two matrices with few tiles of results for the chip
    and long rows is the sum of a batch of products, each of as many elements; one of a long row by a matrix whose rows lie across it is
    the sum of the matrix's rows, each scaled."""

    name: ClassVar[str] = "split-long-products"
    cores: int = 1

    def run(self, graph: Graph, log: Log) -> Graph:
        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | None:
            op, parts = n.op, self.parts(n)
            if parts == 1 or not isinstance(op, Matmul):
                return None
            a, b = (env[v] for v in n.operands)
            wide = compute_dtype(n.value.dtype)  # what 16-bit floats leave their products as is not rounded
            if 1 in n.value.shape:
                down, across = (F.cast(v, wide) for v in (a if op.transpose_a else F.transpose(a, (1, 0)), b))
                total = F.reshape(F.sum_(F.mul(down, F.transpose(across, (1, 0)) if op.transpose_b else across), (0,)), n.value.shape)
                total = total if op.alpha == 1.0 else F.mul(total, op.alpha)
            else:
                a, b = split(a, parts, 0 if op.transpose_a else 1), split(b, parts, 1 if op.transpose_b else 0)
                made = F.matmul(a, b, transpose_a=op.transpose_a, transpose_b=op.transpose_b, alpha=op.alpha)
                total = F.sum_(F.cast(made, wide), (0,))
            log.hit(op.name)
            return F.cast(total, n.value.dtype)

        return exchanged(graph, change) if any(self.parts(n) > 1 for n in graph.nodes) else graph

    def parts(self, n: Node) -> int:
        """How many parts the rows are cut into; 1: the product stays."""
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
        if 1 in (rows, columns):
            down = op.transpose_a if columns == 1 else not op.transpose_b  # the matrix's rows lie across K
            return k if down and k > LONGEST and rows * columns > 1 else 1
        if rows <= FEW and 4 * tiles >= self.cores:
            return 1
        while k > LONGEST and tiles and k % (2 * found) == 0 and k // (2 * found) >= PART and 2 * found * tiles <= self.cores:
            found *= 2
        return found


def split(x: Value, parts: int, axis: int) -> Value:
    """A matrix as a batch of its parts along an axis."""
    rows, columns = x.shape
    if axis == 0:
        return F.reshape(x, (parts, rows // parts, columns))
    return F.transpose(F.reshape(x, (rows, parts, columns // parts)), (1, 0, 2))
