"""On a GPU, products of one row with packed matrices round the row to values themselves, with the RMS norm that makes it; two products
that meet in one epilogue (gate and up) are one region."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node
from .base import Log, Pass
from .regions import starts_region
from .row_products import RowRegion, with_regions

LONGEST = 16384  # what kernels/quant/cuda/qdot.py keeps in shared memory


def dot_of(n: Node) -> Node | None:
    """The product with a packed matrix that is the node, or the only anchor of its region."""
    if isinstance(n.op, o.QDot):
        return n
    if not isinstance(n.op, o.Fused) or len(n.values) != 1:
        return None
    anchors = [x for x in n.op.body.nodes if starts_region(x)]
    return anchors[0] if len(anchors) == 1 and isinstance(anchors[0].op, o.QDot) else None


def quantized_of(n: Node) -> Node | None:
    """The rounding whose quantized values the product of this node reads, where it is of one row and a node of its own."""
    dot = dot_of(n)
    if dot is None:
        return None
    value = dot.operands[0]
    if dot is not n:
        assert isinstance(n.op, o.Fused)
        outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
        if value not in outer:
            return None
        value = outer[value]
    made = value.node
    if not isinstance(made.op, o.QuantizeRows) or any(d != 1 for d in value.shape[:-1]) or n.types[0].shape != dot.types[0].shape:
        return None
    k = value.shape[-1]
    return made if isinstance(k, int) and k <= LONGEST and made.operands[0].dtype.name == "f32" else None


@dataclass(frozen=True)
class QuantizedRows(Pass):
    """Before: regions are made; the target is a GPU. After: a `qdot` of one row has the rounding of the row, and the RMS norm before it,
    in its region, and takes with it another `qdot` of the same quantized values that only its own epilogue reads."""

    name: ClassVar[str] = "quantized-rows"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs = graph.users(), set(graph.outputs)
        found = {n: made for n in graph.nodes if (made := quantized_of(n)) is not None}
        if not found:
            return graph
        partner: dict[Node, Node] = {}
        for n, made in found.items():
            for v in n.operands:
                other = v.node
                if found.get(other) is not made or users[v] != [n] or v in outputs or v.shape != n.types[0].shape:
                    continue
                if alike(n, other) and other not in partner and n not in partner.values():
                    partner[n] = other
                    break
        return with_regions(graph, found, partner, self.region, lambda products: log.hit("products_with_quantized", products))

    @staticmethod
    def region(r: RowRegion, made: Node) -> None:
        norm = made.operands[0].node
        if isinstance(norm.op, o.RmsNorm) and norm.op.naxes == 1 and norm.op.affine == "weight":
            if all(v.dtype.name == "f32" for v in norm.operands):
                r.take(norm)
        r.take(made)


def alike(a: Node, b: Node) -> bool:
    """Two products that one kernel can make: same format, same sizes."""
    one, other = dot_of(a), dot_of(b)
    return one is not None and other is not None and one.op == other.op
