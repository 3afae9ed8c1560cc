"""Grouped products: torch's own, and the one that transformers registers for experts on machines without it."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....ir.graph import Value
from .registry import Context, aten


def _stack(w: Value) -> tuple[Value, bool]:
    """A stack of matrices, and whether it is to be read transposed: models keep [G, N, K] and give a transposed view."""
    if isinstance(w.node.op, O.Transpose) and w.node.op.perm == (0, 2, 1):
        return w.node.operands[0], True
    return w, False


@aten("transformers.grouped_mm_fallback.default")
def grouped(c: Context, x: Value, w: Value, ends: Value) -> Value:
    """Rows x[M, K] in the order of their groups, times w[G, K, N]."""
    stack, turned = _stack(w)
    return c.emit(O.GroupedGemm(transpose_b=turned), x, stack, ends)


@aten("_grouped_mm.default", "tilewright.grouped_mm.default")
def grouped_mm(c: Context, a: Value, b: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: Any = None) -> Value:
    """Groups along the rows of a, the columns of b, or the shared axis; two stacks are a batch. (torch itself refuses a bias.)"""
    return c.cast(_product(c, a, b, offs), c.dtype)


def _product(c: Context, a: Value, b: Value, ends: Value | None) -> Value:
    ranks = len(a.shape), len(b.shape)
    if ranks == (3, 3):
        return c.emit(O.Matmul(), a, b)
    assert ends is not None, "torch asks for offsets"
    if ranks == (2, 3):
        return grouped(c, a, b, ends)
    if ranks == (2, 2):
        return c.emit(O.GroupedOuter(), c.transpose(a, (1, 0)), b, ends)
    stack, turned = _stack(a)
    return c.transpose(c.emit(O.GroupedGemm(transpose_b=not turned), c.transpose(b, (1, 0)), stack, ends), (1, 0))
