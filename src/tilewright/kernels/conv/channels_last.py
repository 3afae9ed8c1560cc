"""Which values of a graph lie channels last: decided once for the whole graph, before kernels are chosen.

A value keeps its shape [N, C, spatial…]; only its strides differ, so every template reads it as it reads any other layout. Convolutions
want it; elementwise regions, pools, concatenations, resizes and norms of whole images follow what they read, through views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...core.dims import Shape, product
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.fused import Fused
from ...ops.index.indexing import Concat, Gather, Pad
from ...ops.index.weighted import GatherSum
from ...ops.matmul.contractions import Conv
from ...ops.matmul.int_products import IntConv
from ...ops.matmul.winograd import WinogradConv
from ...ops.rows.norms import BatchNorm, LayerNorm
from ...ops.rows.pooling import AvgPool, MaxPool, MaxPoolBackward, MaxPoolIndices
from ..launch import Buffer
from ..region import Operand

FOLLOWS = (MaxPool, AvgPool, Concat, Gather, Pad, LayerNorm)


def channels_last(shape: Shape) -> Layout:
    """A contiguous [N, spatial…, C], seen as [N, C, spatial…]."""
    lay = Layout.contiguous((shape[0], *shape[2:], shape[1]))
    return lay.permute((0, len(shape) - 1, *range(1, len(shape) - 1)))


def channels_last_memory(name: str, type_: TensorType) -> Operand:
    """New memory that lies channels last."""
    return Operand(type_, Buffer(name, "temp", type_.nbytes), channels_last(type_.shape))


def behind_views(v: Value) -> tuple[Value, list[Value]]:
    """The value behind a chain of views, and the chain, the outermost view first."""
    chain = []
    while v.node.op.traits.view:
        chain.append(v)
        v = v.node.operands[0]
    return v, chain


def seen_through(chain: list[Value], layout: Layout | None) -> Layout | None:
    """The layout of the outermost view of something that lies so, when strides describe it."""
    for step in reversed(chain):
        layout = step.node.op.views(layout)[step.index] if layout is not None else None
    return layout


def channels_last_layouts(graph: Graph, target: TargetSpec) -> dict[Value, Layout]:
    """The values that lie channels last on a kind of target."""
    turned: Callable[[Node], bool] = lambda node: False
    if target.kind == "cuda":
        from .cuda.channels_last import follows, wants
        from .cuda.weight_gradient import is_weight_gradient as turned
    else:
        wants, follows = is_conv, is_follower
    found: dict[Value, Layout] = {}
    for node in graph.nodes:
        anchors = [n for n in node.op.body.nodes if n.op.traits.anchor] if isinstance(node.op, Fused) else [node]
        mine = any(wants(n) for n in anchors)
        if not mine and (node.op.traits.elementwise or all(follows(n) for n in anchors)):
            pixels = {v.shape[2:] for v in node.values}  # what is stretched along pixels does not say how they lie
            mine = any(_lies_last(u, found) for u in node.operands if not node.op.traits.elementwise or u.shape[2:] in pixels)
        if any(turned(n) for n in anchors):  # [C, O, taps…], of which the weights' own order is a view
            found.update((v, Layout.contiguous((v.shape[1], v.shape[0], *v.shape[2:])).permute((1, 0, *range(2, len(v.shape)))))
                         for v in node.values)  # fmt: skip
        elif mine:
            found.update((v, channels_last(v.shape)) for v in node.values if len(v.shape) >= 3)
        elif all(n.op.traits.reduction for n in anchors):  # what a region keeps beside a sum lies as its operand
            same = {u.shape for u in node.operands if len(u.shape) > 3 and _lies_last(u, found)}
            found.update((v, channels_last(v.shape)) for v in node.values if v.shape in same)
    return found


def turned_alike(graph: Graph, expected: Mapping[Value, Layout]) -> dict[Value, Layout]:
    """Elementwise results whose whole operands lie alike, other than contiguous, and whose readers see them contiguous so: the
    permutation before and the one behind are none."""
    users, found = graph.users(), dict[Value, Layout]()
    for node in graph.nodes:
        if not node.op.traits.elementwise or len(node.values) != 1 or (v := node.values[0]) in expected or v in graph.outputs:
            continue
        lies = set[Layout | None]()
        for u in node.operands:
            if u.shape == v.shape:
                root, chain = behind_views(u)
                seen = seen_through(chain, found.get(root, expected.get(root, Layout.contiguous(root.shape))))
                lies.add(None if seen is None else _of_sizes(seen))
        layout = lies.pop() if len(lies) == 1 else None
        if layout is None or layout.is_contiguous or not users[v]:
            continue
        read = [n.op.views(layout)[0] if n.op.traits.view else None for n in users[v]]
        if all(r is not None and r.is_contiguous and r.offset == 0 and product(r.shape) == v.type.numel for r in read):
            found[v] = layout
    return found


def _of_sizes(layout: Layout) -> Layout:
    """The same for every layout that differs in strides of axes of size 1 alone."""
    return Layout(layout.shape, tuple(0 if d == 1 else s for d, s in zip(layout.shape, layout.strides, strict=True)), layout.offset)


def is_conv(node: Node) -> bool:
    return isinstance(node.op, (Conv, IntConv, WinogradConv))


def is_follower(node: Node) -> bool:
    return isinstance(node.op, (*FOLLOWS, GatherSum, MaxPoolIndices, MaxPoolBackward, BatchNorm))


def _lies_last(v: Value, found: Mapping[Value, Layout]) -> bool:
    """Pixels that lie channels last, perhaps among more channels."""
    root, chain = behind_views(v)
    layout = seen_through(chain, found.get(root, Layout.contiguous(root.shape)))
    if layout is None or len(v.shape) < (3 if root in found else 4) or v.shape[1] == 1 or all(d == 1 for d in v.shape[2:]):
        return False
    return layout.strides[1] == 1 and all(s not in (0, 1) or d == 1 for d, s in zip(v.shape[2:], layout.strides[2:], strict=True))
