"""On a GPU whose copies write pieces of 16 bytes, convolutions of many channels to few results, and products whose rows are read along
their diagonals, have results of zeros beside them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dims import Dim
from ..ir.graph import Graph, Node, Value, exchanged
from ..ops import functions as F
from ..ops.matmul.contractions import Conv, Matmul
from ..ops.structure import Constant
from ..ops.views import Reshape, Slice, Transpose
from .base import Log, Pass

EIGHT = 8  # results of 16 bits in a piece
MANY, MOST = 32, 32  # channels from which on, and results up to which zeros are added
SMALLEST, PIXELS = 48, 1 << 16  # a side of an image, and pixels of all
LARGE, SHARE = 1 << 18, 4  # elements of a product, and the part of them that its right operand has at most


@dataclass(frozen=True)
class ResultsInEights(Pass):
    """Before: padding is absorbed; the target copies by TMA. After: a convolution of 16 bits with steps of one, of many channels over
    large images, has a multiple of 8 results, of which the first are wanted: its pixels are read once for all taps. So has a product of
    which only diagonals are read, as scores by relative place are."""

    name: ClassVar[str] = "results-in-eights"

    def run(self, graph: Graph, log: Log) -> Graph:
        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | None:
            if (found := Diagonals.of(n)) is not None:
                log.hit(n.op.name)
                return found.over_eights(new, env)
            if not self.suits(n):
                return None
            x, w = (env[v] for v in n.operands)
            results = n.value.shape[1]
            assert isinstance(results, int)
            zeros = F.full(new, (-results % EIGHT, *w.shape[1:]), 0.0, w.dtype)
            log.hit(n.op.name)
            return F.slice_(n.op(x, F.concat([w, zeros], 0)), 1, 0, results)

        return exchanged(graph, change) if any(self.suits(n) or Diagonals.of(n) for n in graph.nodes) else graph

    def suits(self, n: Node) -> bool:
        op = n.op
        if not isinstance(op, Conv) or n.value.dtype.itemsize != 2 or op.transposed or op.groups != 1 or {*op.stride, *op.dilation} != {1}:
            return False
        (batch, results, *image), (_, channels, *taps) = (_known(v.shape) for v in (n.value, n.operands[1]))
        if len(image) != 2 or results % EIGHT == 0 or not 0 < results <= MOST or channels < MANY or prod(taps) < 4:
            return False
        return min(image) >= SMALLEST and batch * prod(image) >= PIXELS


@dataclass(frozen=True)
class Diagonals:
    """A product [..., M, N] without gaps, of which row i of `result` is what begins `start` + `step` i elements behind that of row i."""

    product: Node
    result: Value
    start: int
    step: int

    @staticmethod
    def of(n: Node) -> Diagonals | None:
        """The product behind a slice that shows diagonals: of [..., I, N + step], of a part of all elements of a matrix as one row."""
        chain = [n]
        for kind in (Reshape, Slice, Reshape, Matmul):
            if not isinstance(chain[-1].op, (Slice, Reshape)) or not isinstance((v := chain[-1].operands[0]).node.op, kind):
                return None
            chain.append(v.node)
        shown, apart, part, row, product = chain
        width, item = product.value.shape[-1], product.value.dtype.itemsize
        if not isinstance(shown.op, Slice) or not isinstance(part.op, Slice) or item != 2 or not product.value.dtype.is_float:
            return None
        lead = product.value.shape[:-2]
        sizes = _known((*product.value.shape, *apart.value.shape[-2:], *shown.value.shape[-2:], part.op.starts[-1]))
        *_, m, width, _, stride, rows, columns, start = sizes
        plain = {*shown.op.starts, *part.op.starts[:-1]} == {0} and {*shown.op.steps, *part.op.steps} == {1}
        same = all(v.shape[: len(lead)] == lead for v in (row.value, part.value, apart.value, shown.value))
        if not plain or not same or 0 in sizes[:-1] or len(row.value.shape) != len(lead) + 1 or len(apart.value.shape) != len(lead) + 2:
            return None
        step, more = stride - width, -width % EIGHT
        ends = (start, start + step * (rows - 1))
        inside = min(ends) >= 0 and max(ends) + columns <= width and start + (width + more + step) * rows <= m * (width + more)
        few = prod(_known(product.operands[1].shape)) * SHARE <= prod(_known(product.value.shape))
        large = prod(_known(product.value.shape)) >= LARGE
        return Diagonals(product, shown.value, start, step) if more and inside and few and large else None

    def over_eights(self, new: Graph, env: dict[Value, Value]) -> Value:
        """The same of a product whose rows are filled up with zeros; constants are filled up here, as they lie."""
        op, (a, b), (*lead, m, width) = self.product.op, self.product.operands, _known(self.product.value.shape)
        assert isinstance(op, Matmul)
        axis, whole = len(b.shape) - (2 if op.transpose_b else 1), env[b]
        perm = tuple(range(len(b.shape)))
        if isinstance(b.op, Transpose):
            whole, perm = env[b.node.operands[0]], b.op.perm
        more = [-width % EIGHT if i == perm[axis] else d for i, d in enumerate(whole.shape)]
        if isinstance(whole.op, Constant):
            filled = new.constant(np.concatenate([whole.op.data.array, np.zeros(_known(more), b.dtype.np)], perm[axis]), whole.name)
        else:
            filled = F.concat([whole, F.full(new, more, 0.0, b.dtype)], perm[axis])
        made = op(env[a], F.transpose(filled, perm))
        assert isinstance(made, Value)
        (rows, columns), wide, last = _known(self.result.shape[-2:]), made.shape[-1], len(lead)
        row = F.slice_(F.reshape(made, (*lead, m * wide)), last, self.start, (wide + self.step) * rows)
        return F.slice_(F.reshape(row, (*lead, rows, wide + self.step)), last + 1, 0, columns)


def _known(shape: Sequence[Dim]) -> list[int]:
    return [d if isinstance(d, int) else 0 for d in shape]
