"""Which values of a graph lie channels last: decided once for the whole graph, before kernels are chosen.

A value keeps its shape [N, C, spatial…]; only its strides differ, so every template reads it as it reads any other layout. Convolutions
want it, and pools, concatenations and elementwise regions after them follow.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.dims import Shape
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Node, Value
from ..ir.layout import Layout
from ..ops.contractions import Conv
from ..ops.fused import Fused
from ..ops.indexing import Concat
from ..ops.pooling import AvgPool, MaxPool
from ..ops.winograd import WinogradConv
from .region import is_anchor

FOLLOWS = (MaxPool, AvgPool, Concat)


def channels_last(shape: Shape) -> Layout:
    """A contiguous [N, spatial…, C], seen as [N, C, spatial…]."""
    lay = Layout.contiguous((shape[0], *shape[2:], shape[1]))
    return lay.permute((0, len(shape) - 1, *range(1, len(shape) - 1)))


def channels_last_layouts(graph: Graph, target: TargetSpec) -> dict[Value, Layout]:
    """The values that lie channels last on a kind of target."""
    if target.kind == "cuda":
        from .cuda.channels_last import wants
    else:
        wants = is_conv
    return {v: channels_last(v.shape) for v in _values(graph, wants)}


def is_conv(node: Node) -> bool:
    return isinstance(node.op, (Conv, WinogradConv))


def _values(graph: Graph, wants: Callable[[Node], bool]) -> set[Value]:
    found: set[Value] = set()
    for node in graph.nodes:
        anchors = [n for n in node.op.body.nodes if is_anchor(n)] if isinstance(node.op, Fused) else [node]
        if any(wants(n) for n in anchors):
            found.update(v for v in node.values if len(v.shape) >= 3)
        elif (not anchors and isinstance(node.op, Fused)) or node.op.traits.elementwise or isinstance(node.op, FOLLOWS):
            found.update(v for v in node.values if any(u in found and len(u.shape) == len(v.shape) for u in node.operands))
    return found
