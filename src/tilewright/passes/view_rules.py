"""Rules about views: no-ops go, neighbours merge, reshapes of leading axes move up and transposes of them down to where they cancel."""
from __future__ import annotations

import dataclasses
from typing import Any

from .. import ops as o
from ..core.dims import Dim, Shape, at_least, floordiv
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Such, X, Y, rule, rules
from ..ops import functions as F
from .base import constant, elementwise_classes, scalar


@rule(P(o.Transpose, X, name="view"))
def same_order(x: Value, view: Any) -> Value | None:
    """Axes of size 1 may move freely: a transpose that keeps the order of the others is a reshape."""
    perm = view.op.perm
    if perm == tuple(range(len(perm))):
        return x
    wide = [p for p in perm if x.shape[p] != 1]
    out: Value = o.Reshape(shape=view.types[0].shape)(x)
    return out if wide == sorted(wide) else None


@rule(P(o.Slice, X, name="view"))
def whole_slice(x: Value, view: Any) -> Value | None:
    op = view.op
    whole = op.sizes == x.shape and all(s == 0 for s in op.starts)
    return x if whole and all(k == 1 or n == 1 for k, n in zip(op.steps, op.sizes, strict=True)) else None


@rule(P(o.Transpose, P(o.Transpose, X, name="inner"), name="outer"))
def transpose_of_transpose(x: Value, inner: Any, outer: Any) -> Value:
    return o.emit(o.Transpose(perm=tuple(inner.op.perm[p] for p in outer.op.perm)), x)


@rule(P(o.Reshape, P(o.Transpose, X, name="inner"), name="view"))
def ones_before_transpose(x: Value, inner: Any, view: Any) -> Value | None:
    """Axes of size 1 come and go before a transpose, not behind it: the reshape meets others further up, the transpose its readers."""
    old, new = inner.types[0].shape, view.types[0].shape
    places = [i for i, n in enumerate(new) if n != 1]
    if [n for n in old if n != 1] != [new[i] for i in places]:
        return None
    order = [p for p in inner.op.perm if x.shape[p] != 1]
    shape, perm = list(new), list(range(len(new)))
    for i, p in zip(places, order, strict=True):
        perm[i] = places[sorted(order).index(p)]
        shape[perm[i]] = x.shape[p]
    return o.emit(o.Transpose(perm=tuple(perm)), o.Reshape(shape=tuple(shape))(x))


@rule(P(o.Reshape, P(o.Transpose, P(o.Reshape, X, name="merged"), name="inner"), name="view"))
def transpose_between_reshapes(x: Value, merged: Any, inner: Any, view: Any) -> Value | None:
    """Axes that are one while others are exchanged, and apart again behind it, were never one: [S, B, E] -> [S, B·H, D] -> [B·H, S, D] ->
    [B, H, S, D] only splits E."""
    whole = common_parts(x.shape, merged.types[0].shape)
    if whole is None:
        return None
    for parts in (whole, [[d for d in axis if d != 1] or axis[:1] for axis in whole]):  # axes of size 1 may be gone behind it
        first = [sum(map(len, parts[:i])) for i in range(len(parts))]
        perm = tuple(first[p] + i for p in inner.op.perm for i in range(len(parts[p])))
        shape = tuple(d for axis in parts for d in axis)
        if view.types[0].shape == tuple(shape[p] for p in perm):
            return o.emit(o.Transpose(perm=perm), o.Reshape(shape=shape)(x))
    return None


def common_parts(a: Shape, b: Shape) -> list[list[Dim]] | None:
    """For each axis of b, its parts: together the coarsest shape that only splits the axes of a and of b; None where there is none."""
    parts: list[list[Dim]] = [[] for _ in b]
    left, rest = list(a), list(enumerate(b))
    while left and rest:
        p, (axis, q) = left.pop(), rest.pop()
        if p == 0 or q == 0:
            return None
        small, large = (p, q) if floordiv(q, p) * p == q else (q, p)
        if floordiv(large, small) * small != large:
            return None
        parts[axis].insert(0, small)
        if p != q and small is p:
            rest.append((axis, floordiv(q, p)))
        elif p != q:
            left.append(floordiv(p, q))
    if parts:
        parts[0][:0] = left
    return parts if all(d == 1 for d in (*left, *(d for _, d in rest))) and parts else None


@rule(P(o.Slice, P(o.Slice, X, name="inner"), name="outer"))
def slice_of_slice(x: Value, inner: Any, outer: Any) -> Value:
    a, b = inner.op, outer.op
    starts = tuple(s + t * k for s, t, k in zip(a.starts, b.starts, a.steps, strict=True))
    return o.emit(o.Slice(starts=starts, sizes=b.sizes, steps=tuple(j * k for j, k in zip(a.steps, b.steps, strict=True))), x)


@rule(P(o.Slice, P(o.Reshape, P(o.Slice, P(o.Reshape, P(o.Pad, X, name="pad"), name="turned"), name="cut"), name="back"), name="root"))
def diagonals(x: Value, pad: Any, turned: Any, cut: Any, back: Any, root: Any) -> Value | None:
    """Scores by relative place, x[i, j - i + rows - 1]: models pad a column and fold the matrix at another width, so that every row moves
    by one. Where what is kept has nothing of that column, it lies in x, whose rows then are one element shorter."""
    padded = len(x.shape) >= 2 and pad.op.lo == (0,) * (len(x.shape) - 1) + (1,) and all(d == 0 for d in pad.op.hi)
    return _moved_rows(x, turned, cut, back, root) if padded else None


@rule(P(o.Slice, P(o.Reshape, P(o.Slice, P(o.Reshape, P(o.Concat, Y, X, name="by"), name="turned"), name="cut"), name="back"), name="root"))
def diagonals_behind_a_column(x: Value, y: Value, by: Any, turned: Any, cut: Any, back: Any, root: Any) -> Value | None:
    """The same where models put a column before the scores, whatever is in it."""
    padded = len(x.shape) >= 2 and by.op.axis == len(x.shape) - 1 and y.shape[-1] == 1
    return _moved_rows(x, turned, cut, back, root) if padded else None


def _moved_rows(x: Value, turned: Any, cut: Any, back: Any, root: Any) -> Value | None:
    lead = x.shape[:-2]
    rows, width = x.shape[-2:]
    plain = (0,) * len(lead)
    if turned.types[0].shape != (*lead, width + 1, rows) or back.types[0].shape != x.shape or {*cut.op.steps, *root.op.steps} != {1}:
        return None
    kept = root.op.starts[-1] + root.op.sizes[-1]
    if cut.op.starts != (*plain, 1, 0) or root.op.starts[:-1] != (*plain, 0) or root.op.sizes[:-1] != x.shape[:-1]:
        return None
    if not at_least(width + 1 - rows - kept, 0) or not at_least(width - 1 - kept, 0):
        return None
    line: Value = o.Reshape(shape=(*lead, rows * width))(x)
    line = o.Slice(starts=(*plain, rows - 1), sizes=(*lead, rows * (width - 1)), steps=(1,) * len(lead) + (1,))(line)
    return o.emit(root.op, o.Reshape(shape=(*lead, rows, width - 1))(line))


REDUCTIONS = (o.Sum, o.Mean, o.Max, o.Min, o.Prod, o.Any, o.All, o.Var, o.Std, o.LogSumExp)


@rule(P(o.Reshape, P(REDUCTIONS, X, name="inner", once=True), name="view"))
def keep_dims(x: Value, inner: Any, view: Any) -> Value | None:
    """A reduction whose axes are put back as 1s keeps them itself."""
    kept = tuple(1 if k in inner.op.axes else n for k, n in enumerate(x.shape))
    if inner.op.keepdims or view.types[0].shape != kept:
        return None
    return o.emit(dataclasses.replace(inner.op, keepdims=True), x)


@rule(P((o.Sum, o.Mean, o.Max, o.Min, o.Prod, o.Any, o.All), X, name="root"))
def reduced_ones(x: Value, root: Any) -> Value | None:
    """A reduction of single elements is a reshape, a sum also makes 0 of -0."""
    if not root.op.axes or any(x.shape[a] != 1 for a in root.op.axes) or root.types[0].dtype is not x.dtype:
        return None
    signed = x.dtype.is_float and isinstance(root.op, (o.Sum, o.Mean))
    return o.emit(o.Reshape(shape=root.types[0].shape), F.add(x, 0.0) if signed else x)


def kept_tail(old: Shape, new: Shape) -> int:
    """How many trailing axes two shapes share."""
    count = 0
    for a, b in zip(reversed(old), reversed(new), strict=False):
        if a != b:
            break
        count += 1
    return count


def strided(value: Value) -> bool:
    """The value is a view whose elements are (in general) not contiguous, so that reshaping it may need a copy."""
    return isinstance(value.op, (o.Transpose, o.Expand, o.Slice, o.Flip, o.Split))


@rule(P(o.Reshape, P(elementwise_classes(), name="inner", once=True), name="view"))
def reshape_before_elementwise(inner: Any, view: Any) -> Value | None:
    """Leading axes are regrouped before the arithmetic instead of after it: the reshape meets its inverse further up."""
    new, old = view.types[0].shape, inner.types[0].shape
    tail = kept_tail(old, new)
    if tail == 0 or len(old) < 2 or len(new) < 2:
        return None
    operands = []
    for v in inner.operands:
        if v.shape == old and not strided(v):
            operands.append(o.Reshape(shape=new)(v))
        elif len(v.shape) <= tail:
            operands.append(v)
        else:
            return None
    if all(a is b for a, b in zip(operands, inner.operands, strict=True)):
        return None
    out: Value = inner.op(*operands, name=inner.name, place=inner.place)
    return out if out.shape == new else None


@rule(P(o.Reshape, P(elementwise_classes(), name="inner", once=True), name="view"))
def ones_before_elementwise(inner: Any, view: Any) -> Value | None:
    """Axes of size 1 are put behind a vector before the arithmetic, not after it, so that what broadcasts it can do the arithmetic, too.
    Indices are not broadcast: their masks would be computed for both shapes."""
    new, old = view.types[0].shape, inner.types[0].shape
    if not inner.types[0].dtype.is_float or len(old) != 1 or old == (1,) or kept_tail(old, new) or tuple(d for d in new if d != 1) != old:
        return None
    if any(v.shape not in ((), old) or strided(v) for v in inner.operands):
        return None
    operands = [o.Reshape(shape=new)(v) if v.shape else v for v in inner.operands]
    return o.emit(inner.op, *operands, name=inner.name, place=inner.place)


@rule(P(o.Reshape, P((o.LayerNorm, o.RmsNorm, o.Softmax), name="inner", once=True), name="view"))
def reshape_before_norm(inner: Any, view: Any) -> Value | None:
    new, old = view.types[0].shape, inner.types[0].shape
    tail, op = kept_tail(old, new), inner.op
    rows = len(old) - op.axis if isinstance(op, o.Softmax) else op.naxes
    if tail < rows or len(new) < rows or strided(inner.operands[0]):
        return None
    if isinstance(op, o.Softmax):
        op = o.Softmax(axis=len(new) - rows)
    return o.emit(op, o.Reshape(shape=new)(inner.operands[0]), *inner.operands[1:], name=inner.name, place=inner.place)


@rule(P(o.Reshape, P(o.Matmul, name="inner", once=True), name="view"), changes="rounding")
def reshape_before_matmul(inner: Any, view: Any) -> Value | None:
    """x @ w with a plain matrix w: the leading axes of x and of the result are the same. (Kernels add in one order, NumPy does not.)"""
    x, w = inner.operands
    new = view.types[0].shape
    if inner.op.transpose_a or len(w.shape) != 2 or len(new) < 2 or new[-1] != inner.types[0].shape[-1]:
        return None
    return o.emit(inner.op, o.Reshape(shape=(*new[:-1], x.shape[-1]))(x), w, name=inner.name, place=inner.place)


def reads_rows_apart(v: Value, m: Match) -> bool:
    """Whether all that reads a value, through arithmetic, exchanges its axes or leaves all but the last one as they are."""
    if v in m.graph.outputs:
        return False
    readers = m.users(v)
    if len(readers) == 1 and readers[0].op.traits.elementwise and readers[0].types[0].shape == v.shape:
        return reads_rows_apart(readers[0].value, m)
    lead = v.shape[:-1]
    return bool(readers) and all(isinstance(n.op, (o.Transpose, o.Slice, o.Split))
                                 or (isinstance(n.op, o.Reshape) and n.types[0].shape[: len(lead)] == lead) for n in readers)


@rule(P(o.Matmul, Such("x", lambda v: isinstance(v.op, (o.Transpose, o.Reshape))), Y, name="root"), changes="rounding")
def transpose_behind_matmul(x: Value, y: Value, root: Any, m: Match) -> Value | None:
    """x @ w with a plain matrix w takes the rows of x as they lie: leading axes, or those left when the others became one, are exchanged
    behind the product. (Kernels add in one order, NumPy does not.)"""
    inner = x.node if isinstance(x.op, o.Transpose) else x.node.operands[0].node
    if root.op.transpose_a or len(y.shape) != 2 or not isinstance(inner.op, o.Transpose):
        return None
    perm, lead = inner.op.perm, len(x.shape) - 1
    order = sorted(perm[:lead])
    if inner.types[0].shape[:lead] != x.shape[:-1] or order == list(perm[:lead]) or not reads_rows_apart(root.value, m):
        return None
    if isinstance(x.op, o.Transpose) and perm[-1] != lead:
        return None
    rows: Value = o.Transpose(perm=(*order, *perm[lead:]))(inner.operands[0])
    if isinstance(x.op, o.Reshape):
        rows = o.Reshape(shape=(*rows.shape[:lead], x.shape[-1]))(rows)
    made: Value = root.op(rows, y, name=root.name, place=root.place)
    return o.emit(o.Transpose(perm=(*(order.index(p) for p in perm[:lead]), lead)), made)


def follows_matmul(v: Value, m: Match) -> bool:
    """A product, or arithmetic behind one that nothing else reads."""
    if m.readers(v) != 1 or isinstance(v.op, o.Matmul):
        return m.readers(v) == 1
    return v.op.traits.elementwise and any(u.shape == v.shape and follows_matmul(u, m) for u in v.node.operands)


@rule(P(elementwise_classes(), name="root"))
def transpose_behind_epilogue(root: Any, m: Match) -> Value | None:
    """Arithmetic behind a product whose leading axes are exchanged comes first: it is computed with the product."""
    turned = [v for v in root.operands if isinstance(v.op, o.Transpose) and v.op.perm[-1] == len(v.shape) - 1]
    if len(turned) != 1 or m.readers(turned[0]) != 1 or not follows_matmul(turned[0].node.operands[0], m):
        return None
    if root.types[0].shape != turned[0].shape or any(v is not turned[0] and len(v.shape) > 1 for v in root.operands):
        return None
    made: Value = root.op(*(v.node.operands[0] if v is turned[0] else v for v in root.operands), name=root.name, place=root.place)
    return o.emit(o.Transpose(perm=turned[0].node.op.perm), made)


def narrowed(v: Value, ndim: int) -> Value | None:
    """v without an expansion or leading axes of size 1 that broadcasting supplies anyway."""
    x = v.node.operands[0] if isinstance(v.op, (o.Expand, o.Reshape)) else None
    if x is None or (isinstance(v.op, o.Reshape) and (1,) * (len(v.shape) - len(x.shape)) + x.shape != v.shape):
        return None
    return x if len(x.shape) <= ndim else None


@rule(P(elementwise_classes(2), name="root"))
def broadcast_itself(root: Any) -> Value | None:
    """Elementwise ops broadcast: an operand need not be expanded when another one gives the shape."""
    want = root.types[0].shape
    for k, v in enumerate(root.operands):
        x = narrowed(v, len(want))
        if x is None:
            continue
        operands = (*root.operands[:k], x, *root.operands[k + 1 :])
        if broadcast(tuple(u.shape for u in operands)) == want:
            return o.emit(root.op, *operands)
    return None


@rule(P(elementwise_classes(), name="root"))
def expand_after_elementwise(root: Any) -> Value | None:
    """Arithmetic on expanded values is done before they are expanded, once an element."""
    want = root.types[0].shape
    operands = tuple(v.node.operands[0] if isinstance(v.op, o.Expand) else v for v in root.operands)
    if not any(isinstance(v.op, o.Expand) for v in root.operands) or broadcast(tuple(v.shape for v in operands)) == want:
        return None
    return o.emit(o.Expand(shape=want), root.op(*operands, name=root.name, place=root.place))


def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    out: list[Dim] = []
    for axis in range(-max(len(s) for s in shapes), 0):
        wide = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        out.append(wide.pop() if wide else 1)
    return tuple(out)


@rule(P(elementwise_classes(2), name="root"))
def rank_zero_scalar(root: Any, m: Match) -> Value | None:
    """One-element constants are rank 0 where that leaves the shape alone."""
    for k, v in enumerate(root.operands):
        if isinstance(v.op, o.Constant) and len(v.shape) > 0 and scalar(v) is not None:
            rest = tuple(u.shape for j, u in enumerate(root.operands) if j != k)
            if broadcast(rest) == root.types[0].shape:
                small = constant(m.graph, v.op.data.number, v.dtype)
                return o.emit(root.op, *(small if j == k else u for j, u in enumerate(root.operands)))
    return None


RULES = [
    *rules(lambda x, view: x if x.type == view.types[0] else None, same_shape=P((o.Reshape, o.Expand), X, name="view")), same_order,
    whole_slice, *rules(lambda x, view: x if len(view.op.sizes) == 1 else None, whole_split=P(o.Split, X, name="view")),
    *rules(lambda x, outer: o.emit(outer.op, x), reshape_of_reshape=P(o.Reshape, P(o.Reshape, X), name="outer"),
           expand_of_expand=P(o.Expand, P(o.Expand, X), name="outer")),
    transpose_of_transpose, ones_before_transpose, transpose_between_reshapes, slice_of_slice, diagonals, diagonals_behind_a_column,
    *rules(lambda x, inner, outer: x if inner.op.axes == outer.op.axes else None,
           flip_of_flip=P(o.Flip, P(o.Flip, X, name="inner"), name="outer")),
    keep_dims, reduced_ones, reshape_before_elementwise,
    ones_before_elementwise, reshape_before_norm, reshape_before_matmul, transpose_behind_matmul, transpose_behind_epilogue,
    broadcast_itself, expand_after_elementwise, rank_zero_scalar]
