"""Rows times matrices that were looked up for them: one grouped product, which copies no matrix. Rows that were looked up times a matrix:
a product of the table, where it is shorter."""
from __future__ import annotations

from typing import Any

from .. import ops as o
from ..core.dims import Dim, at_least, product
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Rule, rule


def _chosen(v: Value) -> tuple[Value, Value] | None:
    """(stack, ids) of matrices v = stack[ids]."""
    if not isinstance(v.op, o.Gather) or v.op.axis != 0:
        return None
    stack, ids = v.node.operands
    return (stack, ids) if len(stack.shape) == 3 and len(ids.shape) == 1 else None


@rule(P(o.Matmul, name="root"), changes="rounding")
def product_with_chosen_matrices(root: Any) -> Value | None:
    """x[S,1,K] @ w[ids], or w[ids] @ x[S,K,1]."""
    op, (a, b) = root.op, root.operands
    if op.alpha != 1.0 or len(a.shape) != 3 or len(b.shape) != 3 or root.types[0].dtype is not a.dtype or a.dtype is not b.dtype:
        return None
    left, right = _chosen(a), _chosen(b)
    if right is not None and left is None and a.shape[2 if op.transpose_a else 1] == 1:
        (stack, ids), rows, transposed = right, a, op.transpose_b
    elif left is not None and right is None and b.shape[1 if op.transpose_b else 2] == 1:
        (stack, ids), rows, transposed = left, b, not op.transpose_a
    else:
        return None
    count, k = ids.shape[0], stack.shape[2 if transposed else 1]
    if rows.shape[0] != count:
        return None
    found: Value = o.GroupedMatmul(transpose_b=transposed)(o.Reshape(shape=(count, k))(rows), stack, ids, place=root.place)
    return o.emit(o.Reshape(shape=root.types[0].shape), found)


@rule(P(o.Matmul, name="root"), changes="rounding")
def product_of_chosen_rows(root: Any, m: Match) -> Value | None:
    """[a[i], b[j]] @ w = (a @ w0)[i] + (b @ w1)[j], of tables with at most half as many rows: messages along the edges of a graph."""
    op, (x, w) = root.op, root.operands
    if op.transpose_a or op.dtype is not None or len(w.shape) != 2 or x.dtype.kind != "f" or x.dtype is not w.dtype:
        return None
    last, along = len(x.shape) - 1, 1 if op.transpose_b else 0
    beside = isinstance(x.op, o.Concat) and x.op.axis == last and m.readers(x) == 1
    parts = x.node.operands if beside else (x,)
    looked = [v for v in parts if _shorter(v)]
    wide = sum(v.shape[last] for v in looked)
    if not looked or len(parts) - len(looked) > 1 or not isinstance(wide, int) or not at_least(wide - w.shape[1 - along], 0):
        return None
    total: Value | None = None
    start: Dim = 0
    for v in parts:
        size = v.shape[last]
        starts, sizes = tuple(start if a == along else 0 for a in range(2)), tuple(size if a == along else w.shape[a] for a in range(2))
        own = o.emit(o.Slice(starts=starts, sizes=sizes, steps=(1, 1)), w) if beside else w
        table, ids = v.node.operands if v in looked else (v, None)
        made = o.emit(op, table, own)
        made = made if ids is None else o.emit(o.Gather(axis=0), made, ids)
        total, start = made if total is None else o.emit(o.Add(), total, made), start + size
    return total


def _shorter(v: Value) -> bool:
    """Whether rows come from a table [n, k] with at most half as many."""
    if not isinstance(v.op, o.Gather) or v.op.axis != 0:
        return False
    table, ids = v.node.operands
    return len(table.shape) == 2 and at_least(product(ids.shape) - 2 * table.shape[0], 0) and at_least(table.shape[0], 1)


RULES: list[Rule] = [product_with_chosen_matrices, product_of_chosen_rows]
