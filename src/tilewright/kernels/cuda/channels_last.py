"""Which values of a graph lie channels last in a GPU's memory: decided once for the whole graph, before kernels are chosen.

A value keeps its shape [N, C, spatial…]; only its strides differ, so every template reads it as it reads any other layout. Convolutions
that the matrix units serve want it, and so do pools and elementwise regions after them.
"""

from __future__ import annotations

from math import prod

from ...core.dims import Dim, Shape
from ...core.dtypes import bf16, f16, f32
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ops.contractions import Conv
from ...ops.fused import Fused
from ...ops.indexing import Concat
from ...ops.pooling import AvgPool, MaxPool
from ..region import is_anchor

LEAST = 8  # channels of a group: fewer leave the matrix units idle
MOST_TAPS = 64  # of a channel by itself: they are spelled out
FOLLOWS = (MaxPool, AvgPool, Concat)


def channels_last(shape: Shape) -> Layout:
    """A contiguous [N, spatial…, C], seen as [N, C, spatial…]."""
    lay = Layout.contiguous((shape[0], *shape[2:], shape[1]))
    return lay.permute((0, len(shape) - 1, *range(1, len(shape) - 1)))


def channels_last_values(graph: Graph, target: TargetSpec) -> set[Value]:
    found: set[Value] = set()
    for node in graph.nodes:
        anchors = [n for n in node.op.body.nodes if is_anchor(n)] if isinstance(node.op, Fused) else [node]
        if any(wants(n) for n in anchors):
            found.update(v for v in node.values if len(v.shape) >= 3)
        elif (not anchors and isinstance(node.op, Fused)) or node.op.traits.elementwise or isinstance(node.op, FOLLOWS):
            found.update(v for v in node.values if any(u in found and same_rank(u.shape, v.shape) for u in node.operands))
    return found


def wants(node: Node) -> bool:
    op = node.op
    if not isinstance(op, Conv) or node.operands[0].dtype not in (bf16, f16, f32):
        return False
    return op.groups == 1 or in_groups(node) or in_pairs(node) or depthwise(node)


def depthwise(node: Node) -> bool:
    """Whether a convolution of every channel by itself has a kernel for values that lie channels last."""
    op, (x, w), out = node.op, node.operands, node.values[0]
    assert isinstance(op, Conv)
    if op.transposed or x.dtype not in (bf16, f16, f32) or w.dtype != x.dtype or op.groups == 1 or not 3 <= len(x.shape) <= 5:
        return False
    sizes = (*x.shape[1:], *w.shape, *out.shape[1:], *(p for pair in op.padding for p in pair))
    if not all(isinstance(d, int) and d >= 0 for d in sizes) or 0 in (*x.shape[1:], *w.shape, *out.shape[1:]):
        return False
    return x.shape[1] == out.shape[1] == op.groups and prod(d for d in w.shape[2:] if isinstance(d, int)) <= MOST_TAPS


def in_groups(node: Node) -> bool:
    """Whether the matrix units serve a convolution's groups: eight channels and more (or all of them), results in pairs."""
    op, (channels, results) = node.op, (node.operands[0].shape[1], node.values[0].shape[1])
    assert isinstance(op, Conv)
    if not isinstance(channels, int) or not isinstance(results, int) or results // op.groups % 2:
        return False
    return op.groups == 1 or (channels // op.groups >= LEAST and results // op.groups >= LEAST)


def in_pairs(node: Node) -> bool:
    """Whether pairs of groups, of four channels and four results each, are as good as groups of eight: over one or two axes."""
    op, (channels, results) = node.op, (node.operands[0].shape[1], node.values[0].shape[1])
    assert isinstance(op, Conv)
    half = LEAST // 2
    return op.groups % 2 == 0 and channels == results == half * op.groups and len(op.stride) <= 2


def same_rank(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b)
