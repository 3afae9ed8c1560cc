"""Which values of a graph lie channels last in a GPU's memory: decided once for the whole graph, before kernels are chosen.

A value keeps its shape [N, C, spatial…]; only its strides differ, so every template reads it as it reads any other layout. Convolutions
that the matrix units serve want it, and so do pools and elementwise regions after them.
"""

from __future__ import annotations

from ...core.dims import Dim, Shape
from ...core.dtypes import bf16, f16
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ops.contractions import Conv
from ...ops.fused import Fused
from ...ops.indexing import Concat
from ...ops.pooling import AvgPool, MaxPool
from ..region import is_anchor

FOLLOWS = (MaxPool, AvgPool, Concat)


def channels_last(shape: Shape) -> Layout:
    """A contiguous [N, spatial…, C], seen as [N, C, spatial…]."""
    lay = Layout.contiguous((shape[0], *shape[2:], shape[1]))
    return lay.permute((0, len(shape) - 1, *range(1, len(shape) - 1)))


def channels_last_values(graph: Graph, target: TargetSpec) -> set[Value]:
    found: set[Value] = set()
    if target.cpu != "sm_90a":
        return found
    for node in graph.nodes:
        anchors = [n for n in node.op.body.nodes if is_anchor(n)] if isinstance(node.op, Fused) else [node]
        if any(wants(n) for n in anchors):
            found.update(v for v in node.values if len(v.shape) >= 3)
        elif (not anchors and isinstance(node.op, Fused)) or node.op.traits.elementwise or isinstance(node.op, FOLLOWS):
            found.update(v for v in node.values if any(u in found and same_rank(u.shape, v.shape) for u in node.operands))
    return found


def wants(node: Node) -> bool:
    op = node.op
    return isinstance(op, Conv) and not op.transposed and op.groups == 1 and node.operands[0].dtype in (bf16, f16)


def same_rank(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b)
