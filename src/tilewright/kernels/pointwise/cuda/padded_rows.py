"""Which values have rows padded to whole 16-byte pieces in a GPU's memory: those whose readers are products, or pass rows on to them.

Rows of, say, 63 or 191 16-bit floats start at odd addresses where they lie without gaps: writing them, reading them back and copying them
for the tensor cores each cost several times the bytes. A value keeps its shape; only the stride between its rows differs.
"""

from __future__ import annotations

from ....core.dims import Dim
from ....core.target_spec import TargetSpec
from ....ir.graph import Graph, Node, Value
from ....ir.layout import Layout
from ....ops.fused import Fused
from ....ops.index.indexing import Concat
from ....ops.matmul.contractions import Matmul

PIECE = 16  # bytes
LEAST = 32  # bytes of a row that is worth it


def padded_rows(graph: Graph, target: TargetSpec) -> dict[Value, Layout]:
    """value -> its layout with padded rows."""
    users, found = graph.users(), dict[Value, Layout]()
    for n in graph.nodes:
        if not (isinstance(n.op, Concat) or _pointwise(n)):
            continue
        for v in n.values:
            readers = users[v]
            if v in graph.outputs or not readers or not all(isinstance(r.op, Concat) or _pointwise(r) or _product(r, v) for r in readers):
                continue
            if any(_product(r, v) or isinstance(r.op, Concat) for r in readers) and (lay := _padded(v)) is not None:
                found[v] = lay
    return found


def _padded(v: Value) -> Layout | None:
    width, item = v.shape[-1] if v.shape else 0, v.dtype.itemsize
    if len(v.shape) < 2 or not isinstance(width, int) or width * item % PIECE == 0 or width * item < LEAST:
        return None
    step: Dim = -(-width * item // PIECE) * PIECE // item
    strides: list[Dim] = [1]
    for d in reversed(v.shape[1:-1]):
        strides.append(step)
        step = step * d
    return Layout(v.shape, (step, *reversed(strides[1:]), 1) if len(v.shape) > 2 else (step, 1), 0)


def _pointwise(n: Node) -> bool:
    return n.op.traits.elementwise or (isinstance(n.op, Fused) and not any(x.op.traits.anchor for x in n.op.body.nodes))


def _product(n: Node, v: Value) -> bool:
    """Whether a node is a product and the value its left operand."""
    if isinstance(n.op, Matmul):
        return n.operands[0] is v and n.operands[1] is not v and not n.op.transpose_a
    if not isinstance(n.op, Fused):
        return False
    anchor = next((x for x in n.op.body.nodes if x.op.traits.anchor), None)
    inside = [i for i, o in zip(n.op.body.inputs, n.operands, strict=True) if o is v]
    return anchor is not None and isinstance(anchor.op, Matmul) and not anchor.op.transpose_a and inside == [anchor.operands[0]]
