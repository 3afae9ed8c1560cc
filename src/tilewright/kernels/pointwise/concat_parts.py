"""Results that their kernel writes at once into the place that a concatenation wants them in, so that nothing is left to copy.

On a CPU: channels of pixels that lie channels last, also all channels of a value whose slices are joined in order; columns of rows that
elementwise regions and lookups compute. On a GPU: results that a kernel stores through any strides (the backward pass of attention on
tensor cores) and that reach the concatenation as [B, H, S, D] -> [B, S, H, D] -> [B·S, H·D]: the cotangents of q, k and v, which together
are that of one projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ops.attention.backward import AttentionBackward
from ...ops.fused import Fused
from ...ops.index.indexing import Concat, Gather, Index
from ...ops.views import Reshape, Transpose
from ..conv.channels_last import behind_views, seen_through


@dataclass(frozen=True)
class Part:
    """A value that lies in a concatenation's result, from a column on."""

    node: Node  # the concatenation
    start: int


def computed_in_concat(graph: Graph, target: TargetSpec, channels_last: Mapping[Value, Layout]) -> dict[Value, Part]:
    """value -> its place."""
    if target.kind != "cuda":
        return _channels(graph, channels_last) | _columns(graph, channels_last)
    found: dict[Value, Part] = {}
    users = graph.users()
    for n in graph.nodes:
        if not isinstance(n.op, Concat) or n.op.axis != 1 or len(n.value.shape) != 2:
            continue
        roots = [_root(v, users, graph) for v in n.operands]
        if any(r is None for r in roots) or len(set(roots)) != len(roots):
            continue
        start = 0
        for r, v in zip(roots, n.operands, strict=True):
            assert r is not None
            found[r] = Part(n, start)
            start += int(v.shape[1])
    return found


def _channels(graph: Graph, channels_last: Mapping[Value, Layout]) -> dict[Value, Part]:
    found: dict[Value, Part] = {}
    for n in graph.nodes:
        if not isinstance(n.op, Concat) or n.op.axis != 1 or n.value not in channels_last or not isinstance(n.value.shape[1], int):
            continue
        pieces: dict[Value, list[tuple[int, int]]] = {}  # where a value would begin, and how many of its channels are joined there
        start = 0
        for v in n.operands:
            root, chain = behind_views(v)
            plain = channels_last.get(root)
            layout, size = seen_through(chain, plain), v.shape[1]
            assert isinstance(size, int)
            if plain is not None and layout is not None and layout.strides == plain.strides and isinstance(layout.offset, int):
                pieces.setdefault(root, []).append((start - layout.offset, size))
            start += size
        for root, places in pieces.items():
            begin, whole = places[0][0], sum(size for _, size in places) == root.shape[1]
            if whole and all(at == begin for at, _ in places) and root not in found and root not in graph.outputs:
                found[root] = Part(n, begin)
    return found


def _columns(graph: Graph, channels_last: Mapping[Value, Layout]) -> dict[Value, Part]:
    """Parts of a last axis whose kernels store rows at any distance, and whose other readers are elementwise."""
    found: dict[Value, Part] = {}
    users = graph.users()
    for n in graph.nodes:
        rank = len(n.values[0].shape)
        if not isinstance(n.op, Concat) or rank < 2 or n.op.axis != rank - 1 or n.value in channels_last:
            continue
        sizes = [v.shape[-1] for v in n.operands]
        start = 0
        for v, size in zip(n.operands, sizes if all(isinstance(s, int) for s in sizes) else (), strict=False):
            alone = v not in found and v not in graph.outputs and n.operands.count(v) == 1
            if alone and _stores_rows(v.node) and all(u is n or _elementwise(u) for u in users[v]):
                found[v] = Part(n, start)
            start += int(size)
    return found


def _elementwise(node: Node) -> bool:
    body = node.op.body.nodes if isinstance(node.op, Fused) else [node]
    return all(m.op.traits.elementwise or m.op.traits.source for m in body)


def _stores_rows(node: Node) -> bool:
    if _elementwise(node):
        return not node.op.traits.source
    anchors = [m for m in node.op.body.nodes if m.op.traits.anchor] if isinstance(node.op, Fused) else [node]
    if len(anchors) != 1 or len(node.values) != 1:
        return False
    op = anchors[0].op
    return isinstance(op, Index) or (isinstance(op, Gather) and op.axis == 0)


def _root(v: Value, users: dict[Value, list[Node]], graph: Graph) -> Value | None:
    """The cotangent behind a transposition and a reshape that nobody else reads."""
    chain = [v]
    for kind in (Reshape, Transpose):
        if not isinstance(v.node.op, kind):
            return None
        v = v.node.operands[0]
        chain.append(v)
    op = chain[1].node.op
    alone = all(len(users[x]) == 1 and x not in graph.outputs for x in chain)
    known = all(isinstance(d, int) for d in v.shape) and isinstance(op, Transpose) and op.perm == (0, 2, 1, 3)
    if not alone or not known or not isinstance(v.node.op, AttentionBackward) or v.dtype.itemsize != 2:
        return None
    b, h, s, d = v.shape
    return v if chain[0].shape == (b * s, h * d) else None


def layout_in(part: Part, v: Value, whole: Layout) -> Layout:
    """Along the concatenation's axis, or [B, H, S, D] in its rows."""
    if len(v.shape) == len(whole.shape):
        assert isinstance(part.node.op, Concat)
        return whole.slice(part.node.op.axis, part.start, v.shape[part.node.op.axis])
    width = part.node.value.shape[1]
    _, _, s, d = v.shape
    return Layout(v.shape, (s * width, d, width, 1), part.start)
