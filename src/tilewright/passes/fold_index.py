"""Integer and boolean tensors that follow their indices fold for any length: to one number, to an iota, and gathers by them to views."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..core.dims import Dim, at_least, at_most
from ..core.dtypes import DType
from ..ir.graph import Graph, Node, Value
from ..ir.rewrite import Match, P, Rule, Var, X, Y, rule
from .analyze import Forms
from .base import Pass, constant
from .forms import Linear, number

SOURCES = (o.Constant, o.Iota, o.DimValue, o.Input)
I = Var("ids")


def filled(graph: Graph, value: Any, dtype: DType, shape: tuple[Dim, ...]) -> Value:
    small = constant(graph, value, dtype)
    out: Value = o.Expand(shape=shape)(small) if shape else small
    return out


def is_plain(v: Value) -> bool:
    """A source, or one expanded: nothing to gain."""
    if isinstance(v.op, o.Expand):
        v = v.node.operands[0]
    return isinstance(v.op, SOURCES)


def in_range(form: Linear, shape: tuple[Dim, ...], size: Dim) -> bool:
    """Provably 0 <= every element < size."""
    low = high = form.const
    for c, n in zip(form.coeffs, shape, strict=True):
        if not isinstance(c, int):
            return False
        low, high = low + min(c, 0) * (n - 1), high + max(c, 0) * (n - 1)
    return at_least(low, 0) and at_most(high - size, -1)


def sloped(form: Linear) -> list[int]:
    return [k for k, c in enumerate(form.coeffs) if c != 0]


def rows_of(x: Value, axis: int, form: Linear, shape: tuple[Dim, ...]) -> Value | None:
    """x's elements at positions `form` along `axis`, as a slice there; None when they are not evenly spaced upwards."""
    axes = sloped(form)
    if len(axes) > 1 or not in_range(form, shape, x.shape[axis]):
        return None
    size, step = (shape[axes[0]], form.coeffs[axes[0]]) if axes else (1, 1)
    if not isinstance(step, int) or step < 1:
        return None
    starts = tuple(form.const if k == axis else 0 for k in range(len(x.shape)))
    sizes = tuple(size if k == axis else n for k, n in enumerate(x.shape))
    return o.emit(o.Slice(starts=starts, sizes=sizes, steps=tuple(step if k == axis else 1 for k in range(len(x.shape)))), x)


FOLDABLE = tuple(c for c in o.REGISTRY.values() if not issubclass(c, SOURCES) and not issubclass(c, o.Fused))


@rule(P(FOLDABLE, name="root"))
def index_expression(root: Node, m: Match) -> Value | None:
    """A value that is one number everywhere, a dim, or an arithmetic progression along one axis, is made directly."""
    if len(root.values) != 1 or is_plain(root.values[0]):
        return None
    v = root.values[0]
    if v.dtype.is_float and not isinstance(root.op, o.Cast):
        return None
    form = m.known.of(v)
    value = number(form)
    if value is not None:
        return filled(m.graph, value, v.dtype, v.shape)
    if not isinstance(form, Linear):
        return None
    axes = sloped(form)
    if not axes and v.dtype.is_int:
        made: Value = m.graph.add(o.DimValue(dim=form.const, dtype=v.dtype)).value
        return o.Expand(shape=v.shape)(made) if v.shape else made
    if len(axes) != 1 or not isinstance(form.coeffs[axes[0]], int):
        return None
    step = form.coeffs[axes[0]]
    assert isinstance(step, int)
    # the other axes are expanded, so that the iota itself stays short
    small = tuple(n if k == axes[0] else 1 for k, n in enumerate(v.shape))
    line: Value = m.graph.add(o.Iota(shape=small, axis=axes[0], dtype=v.dtype, start=form.const, step=step)).value
    return line if small == v.shape else o.Expand(shape=v.shape)(line)


@rule(P(o.Constant, name="root"))
def uniform_constant(root: Any, m: Match) -> Value | None:
    """An integer or boolean array of one number is that number, expanded."""
    v = root.values[0]
    value = None if v.dtype.is_float or not v.shape else number(m.known.of(v))
    return None if value is None else filled(m.graph, value, v.dtype, v.shape)


@rule(P(o.Gather, X, I, name="root"))
def gather_of_range(x: Value, ids: Value, root: Any, m: Match) -> Value | None:
    """Rows in order are a slice; one row everywhere is an expansion; windows of rows overlap."""
    form, axes = m.known.of(ids), (root.op.axis,)
    if not isinstance(form, Linear):
        return None
    rows = rows_of(x, root.op.axis, form, ids.shape)
    return windows(x, axes, [form], ids.shape, m) if rows is None else spread(rows, axes, [form], ids.shape, root)


@rule(P(o.Index, name="root"))
def index_of_ranges(root: Any, m: Match) -> Value | None:
    x, *ids = root.operands
    axes = root.op.axes
    found = [m.known.of(v) for v in ids]
    linear = [f for f in found if isinstance(f, Linear)]
    if len(linear) != len(ids):
        return None
    rank = max(len(v.shape) for v in ids)
    shape = broadcast([v.shape for v in ids], rank)
    wide = [Linear(f.const, (0,) * (rank - len(f.coeffs)) + f.coeffs) for f in linear]
    used = [a for f in wide for a in sloped(f)]
    if used == sorted(set(used)):
        rows: Value | None = x
        for axis, f in zip(axes, wide, strict=True):
            rows = None if rows is None else rows_of(rows, axis, f, shape)
        if rows is not None:
            return spread(rows, axes, wide, shape, root)
    return windows(x, axes, wide, shape, m)


def windows(x: Value, axes: tuple[int, ...], forms: list[Linear], shape: tuple[Dim, ...], m: Match) -> Value | None:
    """x's elements at evenly spaced positions of adjacent axes, several slopes to an axis (im2col), as a view by strides."""
    lead, rest = x.shape[: axes[0]], [d for d in x.shape[axes[0] :] if isinstance(d, int)]
    sizes = [d for d in shape if isinstance(d, int)]
    if not m.known.windows or len(rest) != len(x.shape) - len(lead) or len(sizes) != len(shape) or 0 in sizes:
        return None
    if not all(in_range(f, shape, x.shape[a]) and isinstance(f.const, int) for a, f in zip(axes, forms, strict=True)):
        return None
    steps = [math.prod(rest[k + 1 :]) for k in range(len(rest))]
    strides = [sum(int(f.coeffs[k]) * step for f, step in zip(forms, steps, strict=False)) for k in range(len(shape))]
    if min(strides, default=0) < 0:
        return None
    offset = sum(int(f.const) * step for f, step in zip(forms, steps, strict=False))
    op = o.Strided(shape=(*sizes, *rest[len(axes) :]), strides=(*strides, *steps[len(axes) :]), offset=offset)
    return o.emit(op, o.Reshape(shape=(*lead, math.prod(rest)))(x))


@rule(P(o.GatherAlongAxis, X, I, name="root"))
def gather_along_range(x: Value, ids: Value, root: Any, m: Match) -> Value | None:
    """Position i takes element i: a slice. (One number everywhere is handled by index_expression.)"""
    form, axis = m.known.of(ids), root.op.axis
    if not isinstance(form, Linear) or sloped(form) not in ([], [axis]) or not in_range(form, ids.shape, x.shape[axis]):
        return None
    if any(a != b for k, (a, b) in enumerate(zip(x.shape, ids.shape, strict=True)) if k != axis):
        return None
    rows = rows_of(x, axis, form, ids.shape)
    return rows if rows is not None and rows.type == root.types[0] else None


@rule(P(o.Matmul, X, Y, name="root"), changes="rounding")
def product_of_looked_up_rows(x: Value, y: Value, root: Any) -> Value | None:
    """Rows that are looked up twice or more each, perhaps several side by side (messages along the edges of a graph), are multiplied
    before they are looked up, where their products are shorter."""
    op, joined = root.op, isinstance(x.op, o.Concat) and x.op.axis == len(x.shape) - 1
    parts = x.node.operands if joined else (x,)
    if op.transpose_a or op.dtype is not None or len(y.shape) != 2 or not x.dtype.is_float or (joined and x.dtype.itemsize < 4):
        return None  # sums of parts in 16 bits would be rounded once more
    inner = 1 if op.transpose_b else 0
    total, start, columns = None, 0, y.shape[1 - inner]
    for v in parts:
        if not isinstance(v.op, o.Gather) or v.op.axis != 0 or len(v.node.operands[0].shape) != 2:
            return None
        table, ids = v.node.operands
        size = v.shape[-1]
        if not isinstance(size, int) or not at_least(size - columns * 2, 0) or not at_least(ids.type.numel - table.shape[0] * 2, 0):
            return None
        ends = (start, size), (0, columns)
        (starts, sizes) = zip(*(ends if inner == 0 else ends[::-1]), strict=True)
        found: Value = o.Gather(axis=0)(op(table, o.Slice(starts=starts, sizes=sizes, steps=(1, 1))(y) if joined else y), ids)
        found.node.place = v.node.place
        total = found if total is None else o.Add()(total, found)
        start += size
    return total


def broadcast(shapes: list[tuple[Dim, ...]], rank: int) -> tuple[Dim, ...]:
    out: list[Dim] = []
    for axis in range(-rank, 0):
        wide = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def spread(x: Value, axes: tuple[int, ...], forms: list[Linear], shape: tuple[Dim, ...], root: Node) -> Value:
    """x's sliced `axes` seen as the index shape: axes that the indices do not depend on are expanded."""
    used = {a for f in forms for a in sloped(f)}
    inner = tuple(n if k in used else 1 for k, n in enumerate(shape))
    lead, tail = x.shape[: axes[0]], x.shape[axes[-1] + 1 :]
    out: Value = o.Reshape(shape=(*lead, *inner, *tail))(x)
    return out if out.type == root.types[0] else o.Expand(shape=root.types[0].shape)(out)


class Positions(Forms):
    """What is known of indices. `windows`: gathers of windows that overlap become views."""

    def __init__(self, graph: Graph, windows: bool) -> None:
        super().__init__(graph)
        self.windows = windows


@dataclass(frozen=True)
class FoldIndex(Pass):
    """Before: canonical graph.
    After: an integer or boolean value that is known from its indices for every length is a number, a dim or an iota (expanded); gathers
    with provably valid, evenly spaced indices are views, on a CPU windows that overlap among them. No product reads rows that are looked
    up many times and are longer than its results."""

    name: ClassVar[str] = "fold-index"
    windows: bool = True
    rules: ClassVar[tuple[Rule, ...]] = (index_expression, uniform_constant, gather_of_range, index_of_ranges, gather_along_range,
                                         product_of_looked_up_rows)

    def known(self, graph: Graph) -> Forms:
        return Positions(graph, self.windows)
