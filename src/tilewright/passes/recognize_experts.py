"""Rows times matrices that were looked up for them: one grouped product, which copies no matrix."""
from __future__ import annotations

from typing import Any

from .. import ops as o
from ..ir.graph import Value
from ..ir.rewrite import P, Rule, rule


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


RULES: list[Rule] = [product_with_chosen_matrices]
