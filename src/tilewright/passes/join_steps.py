"""What the steps of an unrolled loop do alike, one slice or one weight gradient at a time, is done once for all of them.

A loop over `x[:, t]` multiplies slices of one tensor by one matrix. Its backward pass adds a product for every step to the gradient of a
weight, a sum to that of a bias, and writes the gradient of every slice into zeros as large as `x`, which takes the square of the steps.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..core.dims import bounds, product
from ..ir.graph import Graph, Node, Value, replace_values
from ..ir.rewrite import sort_nodes
from ..ops import functions as F
from .base import Log, Pass

LEAST = 4  # products, sums or slices that are worth a copy of their operands
ROWS = 256  # rows of a product that is small for its matrix
WIDTH = 4  # times a product's result
ELEMENTS = 1 << 16  # elements of a sum that is small


@dataclass(frozen=True)
class Piece:
    """`value` in places start, start + step ... of an axis, and zeros elsewhere."""

    leaf: Value
    value: Value
    axis: int
    start: int
    size: int
    step: int = 1


def is_zero(v: Value) -> bool:
    """A constant whose elements are +0."""
    while isinstance(v.op, (o.Expand, o.Reshape, o.Slice)):
        v = v.node.operands[0]
    if not isinstance(v.op, o.Constant):
        return False
    array = v.op.data.array
    return not array.any() and not (v.dtype.is_float and np.signbit(array).any())


def as_piece(v: Value) -> Piece | None:
    """What v is of, where it is zeros around one value along one axis."""
    op, operands = v.op, v.node.operands
    if isinstance(op, o.Concat):
        parts = [i for i, p in enumerate(operands) if not is_zero(p)]
        axis, start = op.axis, sum((p.shape[op.axis] for p in operands[: parts[0]]), 0) if parts else 0
        if len(parts) != 1 or len(operands) < 2:
            return None
        value, step = operands[parts[0]], 1
    elif isinstance(op, o.UpdateSlice) and operands[0].dtype is operands[1].dtype and is_zero(operands[0]):
        axis, start, step, value = op.axis, op.start, op.step, operands[1]
    elif isinstance(op, o.Pad) and op.value == 0 and not np.signbit(op.value):
        axes = [a for a, (lo, hi) in enumerate(zip(op.lo, op.hi, strict=True)) if not (lo == 0 and hi == 0)]
        if len(axes) != 1:
            return None
        axis, start, step, value = axes[0], op.lo[axes[0]], 1, operands[0]
    else:
        return None
    sizes = (start, value.shape[axis], v.shape[axis])
    return Piece(v, value, axis, start, value.shape[axis], step) if all(isinstance(d, int) for d in sizes) and value.shape[axis] else None


def small_for_its_result(product_of: Node) -> bool:
    """A product that spends its time on adding to its result."""
    op: Any = product_of.op
    a, b = (v.shape for v in product_of.operands)
    if len(a) != 2 or len(b) != 2:
        return False
    k, m = (a[0], a[1]) if op.transpose_a else (a[1], a[0])
    n = b[0] if op.transpose_b else b[1]
    rows, columns = bounds(m)[0], bounds(n)[0]
    return isinstance(k, int) and 2 * k * (rows + columns) < 3 * rows * columns


def plus_zero(v: Value) -> Value:
    """As v is after zeros were added: no element is -0."""
    return F.add(v, 0.0) if v.dtype.is_float else v


@dataclass
class Joiner:
    graph: Graph
    log: Log
    users: dict[Value, list[Node]] = field(init=False)
    outputs: set[Value] = field(init=False)
    made: dict[Any, Value] = field(default_factory=dict)  # concatenations

    def __post_init__(self) -> None:
        self.users, self.outputs = self.graph.users(), set(self.graph.outputs)

    def once(self, v: Value) -> bool:
        return len(self.users.get(v, ())) == 1 and v not in self.outputs

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        key = (axis, *values)
        if key not in self.made:
            self.made[key] = values[0] if len(values) == 1 else F.concat(values, axis)
        return self.made[key]

    # --- sums

    def leaves(self, root: Value) -> list[Value]:
        """What a tree of additions that nobody else reads adds up, in order."""
        found, stack = list[Value](), [root]
        while stack:
            v = stack.pop()
            if isinstance(v.op, o.Add) and (v is root or self.once(v)) and all(x.shape == v.shape for x in v.node.operands):
                stack.extend(reversed(v.node.operands))
            else:
                found.append(v)
        return found

    def total(self, values: list[Value]) -> Value | None:
        """The sum of values of one type; None where nothing can be joined."""
        groups: dict[Any, list[Value]] = defaultdict(list)
        for v in values:
            groups[self.kind(v)].append(v)
        rest, joined = list[Value](), list[Value]()
        for kind, group in groups.items():
            if kind is None:
                rest.extend(group)
            elif kind[0] == "pieces":
                some, left = self.pieces([as_piece(v) for v in group])  # type: ignore[misc]
                joined.extend(some)
                rest.extend(left)
            elif len(group) < LEAST:
                rest.extend(group)
            else:
                joined.append(self.product(group) if kind[0] == "product" else self.sum(group))
                self.log.hit(f"join_{kind[0]}s", len(group))
        if not joined:
            return None
        first, *others = [*rest, *joined]
        for v in others:
            first = F.add(first, v)
        return first

    def kind(self, v: Value) -> Any:
        """What is alike of values that can be joined; None: v cannot."""
        if not self.once(v):
            return None
        if isinstance(v.op, o.Matmul):
            a, b = v.node.operands
            return ("product", v.op, a.dtype, b.dtype) if small_for_its_result(v.node) else None
        source = v.node.operands[0] if isinstance(v.op, o.Reshape) and self.once(v.node.operands[0]) else v
        if isinstance(source.op, o.Sum) and source.op.axes:
            x = source.node.operands[0]
            shape = list(x.shape)
            size = shape.pop(source.op.axes[0])
            small = isinstance(size, int) and bounds(product(x.shape))[1] <= ELEMENTS
            return ("sum", source.op, x.dtype, tuple(shape), v.shape) if small else None
        return ("pieces",) if as_piece(v) is not None else None

    def product(self, values: list[Value]) -> Value:
        """One product of the operands one after the other along the axis that is summed."""
        op: Any = values[0].op
        left, right = (self.concat([v.node.operands[i] for v in values], axis)
                       for i, axis in ((0, 0 if op.transpose_a else 1), (1, 1 if op.transpose_b else 0)))
        return F.emit(op, left, right)

    def sum(self, values: list[Value]) -> Value:
        sources = [v.node.operands[0] if isinstance(v.op, o.Reshape) else v for v in values]
        op: Any = sources[0].op
        made = F.emit(op, self.concat([s.node.operands[0] for s in sources], op.axes[0]))
        return made if made.shape == values[0].shape else F.reshape(made, values[0].shape)

    def pieces(self, found: list[Piece]) -> tuple[list[Value], list[Value]]:
        """(values that several pieces became, leaves that stay as they are)"""
        places: dict[Any, list[Piece]] = defaultdict(list)
        for p in found:
            places[p.axis, p.start, p.size, p.step].append(p)
        shape, alone = found[0].leaf.shape, list[Piece]()
        joined: dict[Piece, int] = {}  # -> how many of the pieces given it stands for
        for same in places.values():
            p = same[0]
            if len(same) > 1:
                values = [q.value for q in same]
                inner = self.total(values)
                if inner is None:
                    inner = values[0]
                    for v in values[1:]:
                        inner = F.add(inner, v)
                p = Piece(p.leaf, inner, p.axis, p.start, p.size, p.step)
            joined[p] = len(same)
        pieces = self.interleaved(joined)
        lanes: list[list[Piece]] = []
        for p in sorted(pieces, key=lambda p: (p.axis, p.start)):
            fits = [lane for lane in lanes if lane[-1].axis == p.axis and lane[-1].start + lane[-1].size <= p.start] if p.step == 1 else []
            if fits:
                fits[0].append(p)
            elif p.step == 1:
                lanes.append([p])
            else:
                alone.append(p)
        some, left = list[Value](), [p.leaf for p in alone if joined[p] == 1]
        lanes += [[p] for p in alone if joined[p] > 1]
        for lane in lanes:
            count = sum(joined[p] for p in lane)
            if count == 1:
                left.append(lane[0].leaf)
            else:
                some.append(self.filled(lane, shape))
                self.log.hit("join_pieces", count)
        return some, left

    def interleaved(self, joined: dict[Piece, int]) -> list[Piece]:
        """Pieces of every k-th element that together have all of them are one piece."""
        steps: dict[Any, dict[int, Piece]] = defaultdict(dict)
        for p in joined:
            if p.step > 1:
                steps[p.axis, p.step, p.size, p.start // p.step][p.start % p.step] = p
        for (axis, step, size, _), some in steps.items():
            if len(some) < step:
                continue
            first = some[0]
            lead, tail = first.value.shape[:axis], first.value.shape[axis + 1 :]
            columns = [F.reshape(plus_zero(some[i].value), (*lead, size, 1, *tail)) for i in range(step)]
            whole = F.reshape(F.concat(columns, axis + 1), (*lead, size * step, *tail))
            joined[Piece(first.leaf, whole, axis, first.start, size * step)] = sum(joined.pop(some[i]) for i in range(step))
        return list(joined)

    def filled(self, lane: list[Piece], shape: tuple[Any, ...]) -> Value:
        """Pieces that do not meet, in order, with zeros between them. What is added to zeros is +0 where it is -0."""
        axis = lane[0].axis
        if any(p.step > 1 for p in lane):
            p = lane[0]
            return F.emit(o.UpdateSlice(axis=axis, start=p.start, step=p.step), p.leaf.node.operands[0], p.value)
        values = self.of_one_matrix([p.value for p in lane], axis) if sum(p.size for p in lane) == shape[axis] else None
        if values is not None:
            return plus_zero(values)
        parts, end = list[Value](), 0
        for p in lane:
            if p.start > end:
                parts.append(self.zeros(p, axis, p.start - end))
            parts.append(plus_zero(p.value))
            end = p.start + p.size
        if end < shape[axis]:
            parts.append(self.zeros(lane[0], axis, shape[axis] - end))
        return self.concat(parts, axis)

    def zeros(self, p: Piece, axis: int, size: int) -> Value:
        shape = (*p.value.shape[:axis], size, *p.value.shape[axis + 1 :])
        return F.emit(o.Expand(shape=shape), F.scalar(self.graph, 0.0, p.value.dtype))

    # --- products by one matrix

    def of_one_matrix(self, values: Sequence[Value], axis: int) -> Value | None:
        """The concatenation of small products by one matrix as one product of the concatenated rows."""
        ops = {v.op for v in values if isinstance(v.op, o.Matmul)}
        if len(values) < LEAST or len(ops) != 1 or not all(isinstance(v.op, o.Matmul) and self.once(v) for v in values):
            return None
        op: Any = values[0].op
        lefts, matrices = zip(*(v.node.operands for v in values), strict=True)
        rank = len(values[0].shape)
        alike = len(set(matrices)) == 1 and len({v.dtype for v in lefts}) == 1
        if op.transpose_a or not alike or len(matrices[0].shape) != 2 or axis == rank - 1:
            return None
        wide = bounds(lefts[0].shape[-1])[1] > WIDTH * bounds(values[0].shape[-1])[0]  # the rows are more to copy than the results
        if wide or any(bounds(product(v.shape[:-1]))[1] > ROWS for v in values):
            return None
        self.log.hit("join_rows", len(values))
        return F.emit(op, self.concat(lefts, axis), matrices[0])

    def slices(self, mapping: dict[Value, Value]) -> None:
        """Small products of slices of one value by one matrix are slices of one product."""
        groups: dict[Any, list[tuple[Node, Node]]] = defaultdict(list)
        for n in self.graph.nodes:
            if not isinstance(n.op, o.Matmul) or n.op.transpose_a or len(n.operands[1].shape) != 2:
                continue
            left = n.operands[0]
            cut = left.node.operands[0].node if isinstance(left.op, o.Reshape) else left.node
            if not isinstance(cut.op, o.Slice) or left.shape[-1] != cut.value.shape[-1]:
                continue
            x = cut.operands[0]
            axes = [a for a, (d, whole) in enumerate(zip(cut.value.shape, x.shape, strict=True)) if d != whole]
            if len(axes) != 1 or axes[0] == len(x.shape) - 1 or cut.op.steps[axes[0]] != 1 or bounds(product(left.shape[:-1]))[1] > ROWS:
                continue
            groups[x, n.operands[1], n.op, axes[0]].append((n, cut))
        for (x, matrix, op, axis), group in groups.items():
            cuts = {cut.op: cut for _, cut in group}
            sizes = [cut.value.shape[axis] for cut in cuts.values()]
            length = x.shape[axis]
            if len(cuts) < LEAST or not all(isinstance(d, int) for d in (*sizes, length)) or not 0.75 * length <= sum(sizes) <= length:
                continue
            whole, results = F.emit(op, x, matrix), [n.value for n, _ in group]
            bias = self.bias(results)
            if bias is not None:
                whole, results = F.add(whole, bias), [self.users[v][0].value for v in results]
            for v, (_, cut) in zip(results, group, strict=True):
                at: Any = cut.op
                part = F.emit(o.Slice(starts=(*at.starts[:-1], 0), sizes=(*at.sizes[:-1], whole.shape[-1]), steps=at.steps), whole)
                mapping[v] = F.reshape(part, v.shape)
            self.log.hit("join_slices", len(group))

    def bias(self, products: list[Value]) -> Value | None:
        """The row that all of them get added, and nothing else reads them."""
        if not all(self.once(v) and isinstance(self.users[v][0].op, o.Add) and self.users[v][0].value.type == v.type for v in products):
            return None
        rows = {next(x for x in self.users[v][0].operands if x is not v) for v in products}
        row = rows.pop()
        return row if not rows and row.shape == products[0].shape[-1:] else None


@dataclass(frozen=True)
class JoinSteps(Pass):
    """Before: products have their transposes; nothing is fused. After: small products of many slices of one value by one matrix are slices
    of one product. Many small products, or sums, that a tree of additions adds up are one, of their operands one after the other; values in
    zeros, at places that do not meet, are a concatenation, and that of small products by one matrix is one product."""

    name: ClassVar[str] = "join-steps"

    def run(self, graph: Graph, log: Log) -> Graph:
        joiner, mapping = Joiner(graph, log), dict[Value, Value]()
        roots = [n for n in graph.nodes if isinstance(n.op, o.Add) and not (
            joiner.once(n.value) and isinstance(joiner.users[n.value][0].op, o.Add) and joiner.users[n.value][0].types == n.types)]
        joined = [n for n in graph.nodes if isinstance(n.op, o.Concat)]
        joiner.slices(mapping)
        for n in roots:
            graph.place = n.place
            leaves = joiner.leaves(n.value)
            if len(leaves) > 1 and (made := joiner.total(leaves)) is not None and made.type == n.value.type:
                mapping[n.value] = made
        for n in joined:
            graph.place = n.place
            made = joiner.of_one_matrix(n.operands, n.op.axis)  # type: ignore[attr-defined]
            if made is not None:
                mapping[n.value] = made
        graph.place = ""
        if not mapping:
            return graph
        replace_values(graph, mapping)
        sort_nodes(graph)
        return graph
