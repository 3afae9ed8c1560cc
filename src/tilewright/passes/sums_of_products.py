"""Sums of products of broadcast operands, as models write contractions by hand, become matmuls, and sums of two slices additions."""
from __future__ import annotations

from typing import Any

from .. import ops as o
from ..core.dims import Dim, bounds, product
from ..ir.graph import Value
from ..ir.rewrite import Match, P, X, rule

LEAST = 4  # rows, columns and elements of a product that pays
LONG = 16  # elements behind the axis of a sum of two


def bare(v: Value, rank: int) -> Value:
    """v without what stretches it, of this rank."""
    while isinstance(v.op, o.Expand):
        v = v.node.operands[0]
    out: Value = v if len(v.shape) == rank else o.Reshape(shape=(1,) * (rank - len(v.shape)) + v.shape)(v)
    return out


def is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


def matrix(v: Value, axes: list[list[int]]) -> Value:
    """v with its axes in this order, the last groups of axes as one each."""
    batch, *groups = axes
    order = [*batch, *(a for g in groups for a in g)]
    rest = [a for a in range(len(v.shape)) if a not in order]  # axes of size 1
    turned: Value = v if [*order, *rest] == list(range(len(v.shape))) else o.Transpose(perm=(*order, *rest))(v)
    shape = (*(v.shape[a] for a in batch), *(product(tuple(v.shape[a] for a in g)) for g in groups))
    out: Value = o.Reshape(shape=shape)(turned)
    return out


def stretched(x: Value, y: Value, whole: tuple[Dim, ...]) -> bool:
    """Whether both are broadcast: what most products are not is not looked at further."""
    return all(v.shape != whole or isinstance(v.op, o.Expand) for v in (x, y))


@rule(P(o.Sum, P(o.Mul, name="inner", once=True), name="root"), changes="rounding")
def sum_of_products(inner: Any, root: Any, m: Match) -> Value | None:
    """sum(x * y) over axes that both have, where each is stretched along axes of the other."""
    whole, summed = inner.types[0].shape, set(root.op.axes)
    if not inner.types[0].dtype.is_float or not stretched(inner.operands[0], inner.operands[1], whole):
        return None
    x, y = (bare(v, len(whole)) for v in inner.operands)
    batch, rows, columns, inside = list[int](), list[int](), list[int](), list[int]()
    for a, size in enumerate(whole):
        of_x, of_y = not is_one(x.shape[a]), not is_one(y.shape[a])
        if is_one(size):
            continue
        if a in summed:
            if not (of_x and of_y):
                return None
            inside.append(a)
        else:
            (batch if of_x and of_y else rows if of_x else columns).append(a)
    sizes = [product(tuple(whole[a] for a in axes)) for axes in (rows, columns, inside)]
    if not rows or not columns or not inside or any(bounds(s)[1] < LEAST for s in sizes):
        return None
    flip_a, flip_b = max(rows) > max(inside), max(columns) < max(inside)  # rows as they lie in memory
    left = matrix(x, [batch, inside, rows] if flip_a else [batch, rows, inside])
    right = matrix(y, [batch, columns, inside] if flip_b else [batch, inside, columns])
    made: Value = o.Matmul(transpose_a=flip_a, transpose_b=flip_b)(left, right)
    order = [*batch, *rows, *columns]
    made = o.Reshape(shape=tuple(whole[i] for i in order))(made)
    kept = sorted(order)
    if order != kept:
        made = o.Transpose(perm=tuple(order.index(i) for i in kept))(made)
    return o.emit(o.Reshape(shape=root.types[0].shape), made)


def halves(v: Value, rank: int, axis: int) -> list[Value]:
    """What lies at either place of an axis of a value of this rank, without the axis; v may be stretched along it."""
    own = axis - (rank - len(v.shape))
    if own < 0:
        return [v, v]
    rest = tuple(d for a, d in enumerate(v.shape) if a != own)
    if v.shape[own] == 1:
        return [o.Reshape(shape=rest)(v)] * 2
    sizes, steps = tuple(1 if a == own else d for a, d in enumerate(v.shape)), (1,) * len(v.shape)
    return [o.Reshape(shape=rest)(o.Slice(starts=tuple(i * (a == own) for a in range(len(sizes))), sizes=sizes, steps=steps)(v))
            for i in range(2)]


def _adds_two(root: Any, x: Value) -> bool:
    """Whether a sum has two terms, of long runs."""
    axes, shape = root.op.axes, x.shape
    return len(axes) == 1 and shape[axes[0]] == 2 and x.dtype.is_float and bounds(product(shape[axes[0] + 1 :]))[0] >= LONG


@rule(P(o.Sum, X, name="root"), changes="rounding")
def sum_of_two(x: Value, root: Any, m: Match) -> Value | None:
    """Two slices of long runs are added with what stands before and behind them."""
    if not _adds_two(root, x):
        return None
    return o.emit(o.Reshape(shape=root.types[0].shape), o.Add()(*halves(x, len(x.shape), root.op.axes[0])))


@rule(P(o.Sum, P(o.Mul, name="inner", once=True), name="root"), changes="rounding")
def sum_of_two_products(inner: Any, root: Any, m: Match) -> Value | None:
    """Their factors are sliced: no product is stored."""
    whole = inner.value
    if not _adds_two(root, whole):
        return None
    pairs = zip(*(halves(v, len(whole.shape), root.op.axes[0]) for v in inner.operands), strict=True)
    return o.emit(o.Reshape(shape=root.types[0].shape), o.Add()(*(o.Mul()(x, y) for x, y in pairs)))
