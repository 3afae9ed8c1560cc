"""Results that their kernel writes at once into the place that a concatenation wants them in, so that nothing is left to copy.

On a CPU: channels of pixels that lie channels last, also all channels of a value whose slices are joined in order; columns of rows that
elementwise regions and lookups compute; one contiguous run (the steps of a loop), also of a concatenation. On a GPU: results that a kernel
stores through any strides (the backward pass of attention on tensor cores) and that reach the concatenation as [B, H, S, D] -> [B, S, H,
D] -> [B·S, H·D]: the cotangents of q, k and v, which together are that of one projection; and what products, lookups and elementwise
kernels compute where it is one contiguous run of the concatenation (the steps of a recurrent layer), or where nobody else reads it and it
lies in rows there (looked-up rows side by side); channels last, what convolutions compute and concatenations of concatenations (dense
blocks: every layer reads a part of the last concatenation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ...core.dims import Dim, divisible, product
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ops.attention.backward import AttentionBackward
from ...ops.fused import Fused
from ...ops.index.indexing import Concat, Gather, Index
from ...ops.matmul.contractions import Conv, Matmul
from ...ops.views import Reshape, Transpose
from ..conv.channels_last import behind_views, seen_through


@dataclass(frozen=True)
class Piece:
    """A value that lies in a concatenation's result, from a place of its axis on, as channels, one run, or rows."""

    node: Node  # the concatenation
    start: int
    kind: str = "channels"


def computed_in_concat(graph: Graph, target: TargetSpec, others: Mapping[Value, Layout]) -> dict[Value, Piece]:
    """value -> its place. `others`: values that do not lie contiguous."""
    found: dict[Value, Piece] = {}
    users = graph.users()
    if target.kind != "cuda":
        found = _channels(graph, others) | _columns(graph, others)
        for n in graph.nodes:
            if isinstance(n.op, Concat) and all(d == 1 for d in n.value.shape[: n.op.axis]) and n.value not in others:
                _pieces(n, graph, users, others, found, line=64)
        return found
    for n in graph.nodes:
        if not isinstance(n.op, Concat):
            continue
        if n.value not in others or n.op.axis == len(n.value.shape) - 1:  # contiguous, or with padded rows
            _pieces(n, graph, users, others, found)
        elif n.op.axis == 1:
            _stacked(n, graph, users, others, found)
        if n.op.axis != 1 or len(n.value.shape) != 2:
            continue
        roots = [_root(v, users, graph) for v in n.operands]
        if any(r is None for r in roots) or len(set(roots)) != len(roots):
            continue
        start = 0
        for r, v in zip(roots, n.operands, strict=True):
            assert r is not None
            found[r] = Piece(n, start)
            start += int(v.shape[1])
    return found


def _pieces(n: Node, graph: Graph, users: dict[Value, list[Node]], others: Mapping[Value, Layout], found: dict[Value, Piece],
            line: int = 16) -> None:
    """Enter what is computed contiguous, at multiples of `line` bytes of the concatenation; columns of an elementwise kernel anywhere."""
    assert isinstance(n.op, Concat)
    axis, start = n.op.axis, cast(Dim, 0)
    own = others.get(n.value)
    if own is not None and own.strides[-1] != 1:
        return  # channels last
    one = all(d == 1 for d in n.value.shape[:axis])
    inner, item = product(n.value.shape[axis + 1 :]), n.value.dtype.itemsize
    pitch = n.value.shape[axis] * inner if own is None or len(own.strides) < 2 else own.strides[-2]
    for v in n.operands:
        root, chain = behind_views(v)
        layout = seen_through(chain, Layout.contiguous(root.shape))
        columns = axis == len(n.value.shape) - 1 and _elementwise(root.node) and not root.node.op.traits.source
        plain = root not in others or (columns and others[root].strides[-1] == 1)  # padded rows alone need no padding inside of others
        whole = plain and layout is not None and layout.is_contiguous and root.type.nbytes == v.type.nbytes
        alone = all(len(users[x]) == 1 for x in (root, *chain))
        same = root.shape == v.shape or (1 not in root.shape and [d for d in v.shape if d != 1] == list(root.shape))
        even = isinstance(start, int) and all(_aligned(d, item, line) for d in (start * inner, pitch, v.shape[axis] * inner))
        merged = columns and len(root.shape) > len(v.shape) and root.shape[: len(v.shape) - 1] == v.shape[:-1]
        rows = alone and ((same and (even or columns)) or merged)
        placed = isinstance(start, int) and (_aligned(start * inner, item, line) or (rows and not one)) and root not in found
        placed = placed and (_plain(root.node) or (line > 16 and isinstance(root.node.op, Concat)))
        if placed and whole and (one or rows) and not any(behind_views(x)[0] is root for x in graph.outputs):
            assert isinstance(start, int)
            found[root] = Piece(n, start, "run" if one else "rows")
        start = start + v.shape[axis]


def _stacked(n: Node, graph: Graph, users: dict[Value, list[Node]], others: Mapping[Value, Layout], found: dict[Value, Piece]) -> None:
    """Enter channels of a concatenation that lies channels last: what convolutions compute for it alone, and other concatenations, which
    elementwise regions and convolutions read as well as their copies. Pixels and parts begin at multiples of 16 bytes."""
    start, item = 0, n.value.dtype.itemsize
    if others[n.value].strides[1] != 1:
        return
    for v in n.operands:
        size = v.shape[1]
        if not isinstance(size, int):
            return
        readers = [u for u in users[v] if u is not n]
        joined = isinstance(v.node.op, Concat) and all(_elementwise(u) or isinstance(u.op, Concat) or _convolution(u) for u in readers)
        alone = v not in found and v not in graph.outputs and n.operands.count(v) == 1
        even = all(_aligned(d, item) for d in (start, size, n.value.shape[1]))
        if alone and even and v in others and others[v].strides[1] == 1 and (joined or (_convolution(v.node) and not readers)):
            found[v] = Piece(n, start)
        start += size


def _convolution(n: Node) -> bool:
    """A region around one convolution without groups."""
    anchors = [m.op for m in n.op.body.nodes if m.op.traits.anchor] if isinstance(n.op, Fused) else [n.op]
    return len(anchors) == 1 and isinstance(anchors[0], Conv) and anchors[0].groups == 1 and len(n.values) == 1


def _aligned(elements: Dim, item: int, line: int = 16) -> bool:
    return divisible(elements * item, line)


def _plain(n: Node) -> bool:
    """A region of elementwise ops, perhaps around products or lookups: its kernels store through any strides."""
    inside = n.op.body.nodes if isinstance(n.op, Fused) else [n]
    known = all(x.op.traits.elementwise or x.op.traits.view or x.op.traits.source or isinstance(x.op, (Gather, Matmul)) for x in inside)
    return known and all(v.dtype.kind != "c" for v in n.values) and not n.op.traits.source and not n.op.traits.view


def _channels(graph: Graph, channels_last: Mapping[Value, Layout]) -> dict[Value, Piece]:
    found: dict[Value, Piece] = {}
    for n in graph.nodes:
        if not isinstance(n.op, Concat) or n.op.axis != 1 or n.value not in channels_last:
            continue
        if not all(isinstance(v.shape[1], int) for v in n.operands):
            continue
        pieces: dict[Value, list[tuple[int, int]]] = {}  # where a value would begin, and how many of its channels are joined there
        start = 0
        for v in n.operands:
            root, chain = behind_views(v)
            plain = channels_last.get(root)
            layout, size = seen_through(chain, plain), int(v.shape[1])
            channels = (v.shape[0], *v.shape[2:]) == (root.shape[0], *root.shape[2:])  # not some of the pixels
            if channels and plain is not None and layout is not None and layout.strides == plain.strides and isinstance(layout.offset, int):
                pieces.setdefault(root, []).append((start - layout.offset, size))
            start += size
        for root, places in pieces.items():
            begin, whole = places[0][0], sum(size for _, size in places) == root.shape[1]
            if whole and all(at == begin for at, _ in places) and root not in found and root not in graph.outputs:
                found[root] = Piece(n, begin)
    return found


def _columns(graph: Graph, channels_last: Mapping[Value, Layout]) -> dict[Value, Piece]:
    """Parts of a last axis whose kernels store rows at any distance, and whose other readers are elementwise."""
    found: dict[Value, Piece] = {}
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
                found[v] = Piece(n, start)
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


def layout_in(part: Piece, v: Value, whole: Layout) -> Layout:
    """One run of elements, what lies along the concatenation's axis, or [B, H, S, D] in its rows."""
    op, shape = part.node.op, part.node.value.shape
    assert isinstance(op, Concat)
    if part.kind == "run":
        return Layout(v.shape, Layout.contiguous(v.shape).strides, whole.offset + part.start * product(shape[op.axis + 1 :]))
    if part.kind == "rows":
        if len(v.shape) == len(shape):
            return whole.slice(op.axis, part.start, v.shape[op.axis])
        lead = len(shape) - 1
        if op.axis == lead and len(v.shape) > len(shape) and v.shape[:lead] == shape[:lead]:  # its last axes are the columns
            return Layout(v.shape, (*whole.strides[:-1], *Layout.contiguous(v.shape[lead:]).strides), whole.offset + part.start)
        axes = [i for i, d in enumerate(shape) if d != 1]
        axes = axes if len(axes) == len(v.shape) else [i for i in axes if i != op.axis]  # an axis of size 1 in the part
        return Layout(v.shape, tuple(whole.strides[i] for i in axes), whole.offset + part.start * whole.strides[op.axis])
    if len(v.shape) == len(whole.shape):
        return whole.slice(op.axis, part.start, v.shape[op.axis])
    width = part.node.value.shape[1]
    _, _, s, d = v.shape
    return Layout(v.shape, (s * width, d, width, 1), part.start)
