"""Transposes, scalar factors and widening casts on either side of a matmul become its flags, its alpha and its dtype, before folding could
materialise them."""
from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core import dtypes as dt
from ..ir.graph import Node, Value
from ..ir.rewrite import Match, P, Rule, Such, X, Y, rule
from .base import Pass, normal, scalar, swaps_last_two
from .sums_of_products import sum_of_products, sum_of_two, sum_of_two_products

EIGHT = (dt.f8e4m3, dt.f8e5m2)
C = Such("c", lambda v: scalar(v) is not None)


@rule(P(o.Matmul, P(o.Transpose, X, name="inner"), Y, name="root"))
def transposed_left(x: Value, y: Value, inner: Any, root: Any) -> Value | None:
    if not swaps_last_two(inner.op.perm):
        return None
    return o.emit(dataclasses.replace(root.op, transpose_a=not root.op.transpose_a), x, y)


@rule(P(o.Matmul, X, P(o.Transpose, Y, name="inner"), name="root"))
def transposed_right(x: Value, y: Value, inner: Any, root: Any) -> Value | None:
    if not swaps_last_two(inner.op.perm):
        return None
    return o.emit(dataclasses.replace(root.op, transpose_b=not root.op.transpose_b), x, y)


@rule(P(o.Transpose, P(o.Matmul, Such("weight", lambda v: isinstance(v.op, o.Constant)), Y, name="inner", once=True), name="view"),
      changes="rounding")
def transposed_product(weight: Value, y: Value, inner: Any, view: Any) -> Value | None:
    """A weight on the left of a product whose result is transposed stands on the right, where kernels keep it packed."""
    if not swaps_last_two(view.op.perm) or weight.type.ndim != 2 or y.type.ndim != len(view.op.perm) or isinstance(y.op, o.Constant):
        return None
    op = inner.op
    return o.emit(dataclasses.replace(op, transpose_a=not op.transpose_b, transpose_b=not op.transpose_a), y, weight)


WINDOWS = (o.Slice, o.Reshape, o.Transpose)
MOVES = (2.0**-16, 2.0**16)  # factors that a product may be multiplied with instead of its operand


def factor(node: Node) -> float | None:
    """What x is multiplied with in x*c or x/c (the other operand keeps its shape)."""
    number = scalar(node.operands[1])
    if not isinstance(number, float) or not math.isfinite(number) or node.operands[0].type != node.types[0]:
        return None
    if isinstance(node.op, o.Div):
        return None if number == 0 else 1.0 / number
    return number


def moves(by: float) -> bool:
    """The factor is so near to 1 that products overflow and underflow where those of the scaled operand do, or nearly."""
    return MOVES[0] <= abs(by) <= MOVES[1]


def scaled(matmul: Node, by: float | None, x: Value, y: Value) -> Value | None:
    """`matmul` of x and y, times a factor; none that its dtype does not hold with all digits."""
    op: Any = matmul.op
    if by is None or not normal(op.alpha * by, matmul.types[0].dtype):
        return None
    return o.emit(dataclasses.replace(op, alpha=op.alpha * by), x, y)


@rule(P((o.Mul, o.Div), P(o.Matmul, X, Y, name="inner", once=True), C, name="root"), changes="rounding")
def scaled_result(x: Value, y: Value, inner: Any, root: Any) -> Value | None:
    return scaled(inner, factor(root), x, y) if root.operands[0] is inner.value else None


@rule(P((o.Mul, o.Div), Such("view", lambda v: isinstance(v.op, WINDOWS)), C, name="root"), changes="rounding")
def scaled_view(view: Value, root: Any, m: Match) -> Value | None:
    """A part of a product, or the product in another shape: all of it is scaled, which costs nothing."""
    chain, at = list[Node](), view
    while isinstance(at.op, WINDOWS) and m.readers(at) == 1:
        chain.append(at.node)
        at = at.node.operands[0]
    if root.operands[0] is not view or not isinstance(at.op, o.Matmul) or m.readers(at) != 1:
        return None
    made = scaled(at.node, factor(root), *at.node.operands)
    for n in reversed(chain):
        made = None if made is None else o.emit(n.op, made)
    return made


@rule(P(o.Matmul, P((o.Mul, o.Div), X, C, name="inner"), Y, name="root"), changes="rounding")
def scaled_left(x: Value, y: Value, inner: Any, root: Any) -> Value | None:
    by = factor(inner)
    if by is None or not moves(by) or inner.operands[0] is not x or isinstance(x.op, o.Constant):
        return None
    return scaled(root, by, x, y)


@rule(P(o.Matmul, Y, P((o.Mul, o.Div), X, C, name="inner"), name="root"), changes="rounding")
def scaled_right(x: Value, y: Value, inner: Any, root: Any) -> Value | None:
    by = factor(inner)
    if by is None or not moves(by) or inner.operands[0] is not x or isinstance(x.op, o.Constant):
        return None
    return scaled(root, by, y, x)


@rule(P(o.Matmul, P(o.Cast, X), P(o.Cast, Y), name="root"), changes="rounding")
def widened_operands(x: Value, y: Value, root: Any) -> Value | None:
    """Eight-bit numbers that are widened only to be multiplied are multiplied as they are: the products are exact either way. An f32 result
    keeps its operands, because tensor cores add eight-bit floats with fewer bits than f32."""
    floats = x.dtype in EIGHT and y.dtype in EIGHT and root.types[0].dtype in (dt.f16, dt.bf16)
    integers = x.dtype in (dt.i8, dt.u8) and y.dtype is dt.i8 and root.types[0].dtype is dt.i32
    if not (floats or integers) or root.op.dtype is not None:
        return None
    return o.emit(dataclasses.replace(root.op, dtype=root.types[0].dtype), x, y)


@dataclass(frozen=True)
class AbsorbIntoMatmul(Pass):
    """Before: canonical graph.
    After: no matmul operand is a swap of the last two axes or a scalar multiple, and no matmul's only reader scales it: these are
    `transpose_a`, `transpose_b` and `alpha`. No constant is the left operand of a matmul whose result is only transposed. Eight-bit
    operands are not widened first: the result has its own `dtype`. Sums of products whose operands are stretched along each other's axes
    are matmuls, and sums of two long slices additions."""

    name: ClassVar[str] = "absorb-into-matmul"
    rules: ClassVar[tuple[Rule, ...]] = (widened_operands, transposed_left, transposed_right, transposed_product, scaled_result,
                                         scaled_view, scaled_left, scaled_right, sum_of_products, sum_of_two_products, sum_of_two)
