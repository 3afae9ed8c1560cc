"""On a GPU, products of one row take the norm of the row with them, and two products that meet in one epilogue (gate and up) are one
region.

On a GPU, a product of few rows whose result is split into gates takes what is computed from the gates with it: a step of a recurrent
layer is one launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .. import ops as o
from ..core.dims import product
from ..ir.graph import Graph, Node, Value, exchanged, replace_values
from ..ir.rewrite import sort_nodes
from .base import Log, Pass
from .merge_matmuls import READERS
from .regions import starts_region


@dataclass(frozen=True)
class MergePacked(Pass):
    """Before: products with packed matrices are `qdot`s and `qproduct`s; the target is a GPU. After: those with one left operand, one
    format, constant matrices that nothing else reads and results that are only viewed, rotated or attended to are one on the joined
    matrices."""

    name: ClassVar[str] = "merge-packed"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs = graph.users(), set(graph.outputs)
        groups: dict[Any, list[Node]] = defaultdict(list)
        for n in graph.nodes:
            if isinstance(n.op, (o.QDot, o.QProduct)) and isinstance(n.operands[-1].op, o.Constant) and users[n.operands[-1]] == [n]:
                if n.value not in outputs and users[n.value] and all(isinstance(u.op, READERS) for u in users[n.value]):
                    groups[type(n.op), n.operands[0], n.op.format, n.op.k].append(n)
        mapping: dict[Value, Value] = {}
        for (kind, _, format_, k), members in groups.items():
            if len(members) < 2:
                continue
            sizes = tuple(n.op.n for n in members if isinstance(n.op, (o.QDot, o.QProduct)))
            joined = o.Joined([n.operands[-1].op.data for n in members if isinstance(n.operands[-1].op, o.Constant)], 0)
            first = members[0]
            matrix = graph.constant(joined, joined.name)
            whole: Value = kind(format=format_, n=sum(sizes), k=k)(*first.operands[:-1], matrix, place=first.place)
            parts = o.Split(axis=len(whole.shape) - 1, sizes=sizes)(whole, place=first.place)
            mapping.update(zip((n.value for n in members), parts, strict=True))
            log.hit("merge_packed", len(members))
        if mapping:
            replace_values(graph, mapping)
            sort_nodes(graph)
        return graph


T = TypeVar("T")


@dataclass(frozen=True)
class Product:
    """A product of one row, alone or in a region: the row and the matrix, as values of the graph."""

    node: Node
    left: Value
    matrix: Value


def product_of(n: Node) -> Product | None:
    """What `kernels/matmul/cuda/row_products.py` serves: one row, a matrix in memory from the start with rows along K of known length."""
    found: tuple[Value, ...]
    if isinstance(n.op, o.Matmul):
        op, found = n.op, n.operands
    elif isinstance(n.op, o.Fused) and len(n.values) == 1:
        outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
        anchors = [x for x in n.op.body.nodes if starts_region(x)]
        if len(anchors) != 1 or not isinstance(anchors[0].op, o.Matmul) or any(v not in outer for v in anchors[0].operands):
            return None
        op, found = anchors[0].op, tuple(outer[v] for v in anchors[0].operands)
    else:
        return None
    left, matrix = found
    if op.transpose_a or not op.transpose_b or len(matrix.shape) != 2 or not isinstance(matrix.op, (o.Input, o.Constant)):
        return None
    (columns, k), rows = matrix.shape, left.shape[:-1]
    sizes = isinstance(columns, int) and isinstance(k, int) and columns % 2 == 0 and k % 8 == 0 and k > 0
    if not sizes or any(d != 1 for d in rows) or n.types[0].shape != (*rows, columns):
        return None
    return Product(n, left, matrix) if left.dtype is matrix.dtype and left.dtype.name in ("bf16", "f16", "f32") else None


@dataclass(frozen=True)
class RowProducts(Pass):
    """Before: regions are made; the target is a GPU. After: a product of one row that an RMS norm makes computes the norm itself, and
    takes with it another product of that row that only its own epilogue reads."""

    name: ClassVar[str] = "row-products"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs = graph.users(), set(graph.outputs)
        found = {n: p for n in graph.nodes if (p := product_of(n)) is not None and self.normed(p)}
        partner: dict[Node, Node] = {}
        for n, p in found.items():
            for v in n.operands:
                other = found.get(v.node)
                if other is None or other.left is not p.left or users[v] != [n] or v in outputs or v.shape != n.types[0].shape:
                    continue
                if v.node not in partner and n not in partner.values():
                    partner[n] = v.node
                    break
        return with_regions(graph, found, partner, self.region, lambda products: log.hit("products_with_norm", products))

    @staticmethod
    def normed(p: Product) -> bool:
        norm = p.left.node
        if not isinstance(norm.op, o.RmsNorm) or norm.op.naxes != 1 or norm.op.affine != "weight":
            return False
        return all(v.dtype is p.left.dtype for v in norm.operands)

    @staticmethod
    def region(r: RowRegion, p: Product) -> None:
        r.take(p.left.node)


class RowRegion:
    """The body of a region in the making: what makes the row, then the products that read it."""

    def __init__(self, name: str) -> None:
        self.body, self.inner, self.operands = Graph(name), dict[Value, Value](), list[Value]()

    def inside(self, v: Value) -> Value:
        if v not in self.inner:
            self.inner[v] = self.body.input(v.type, v.node.name)
            self.operands.append(v)
        return self.inner[v]

    def take(self, n: Node) -> None:
        """A node, or what is inside a region."""
        given = [self.inside(v) for v in n.operands]
        if isinstance(n.op, o.Fused):
            local = dict(zip(n.op.body.inputs, given, strict=True))
            n.op.body.copy_into(self.body, local)
            made = [local[v] for v in n.op.body.outputs]
        else:
            made = list(self.body.add(n.op, *given, name=n.name, place=n.place).values)
        self.inner.update(zip(n.values, made, strict=True))

    def closed(self, members: Sequence[Node], new: Graph, env: Mapping[Value, Value], name: str) -> Sequence[Value]:
        """The region with these nodes as one of the new graph, with the results of the last."""
        for m in members:
            self.take(m)
        self.body.outputs = [self.inner[v] for v in members[-1].values]
        return new.add(o.Fused(body=self.body), *(env[v] for v in self.operands), name=name).values


def with_regions(graph: Graph, found: Mapping[Node, T], partner: Mapping[Node, Node], begin: Callable[[RowRegion, T], None],
                 hit: Callable[[int], None]) -> Graph:
    """The graph with a region for every node of `found`, which takes its partner along; `begin` puts in what makes the row."""
    taken = set(partner.values())

    def change(n: Node, new: Graph, env: dict[Value, Value]) -> Sequence[Value] | None:
        if n not in found:
            return () if n in taken else None
        region, members = RowRegion(n.name), [partner[n], n] if n in partner else [n]
        begin(region, found[n])
        hit(len(members))
        return region.closed(members, new, env, f"{n.name}_row")

    return exchanged(graph, change)


@dataclass(frozen=True)
class GateProducts(Pass):
    """Before: regions are made; the target is a GPU. After: a product of few rows with a small matrix, whose result is split along its last
    axis into equal parts that one pointwise region reads, is one region with that one."""

    name: ClassVar[str] = "gate-products"
    rows: int = 64
    bytes: int = 8 << 20  # the largest matrix: kernels for larger ones stream them better

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs = graph.users(), set(graph.outputs)
        found: dict[Node, tuple[Node, Node]] = {}  # the pointwise region -> the product and the split before it
        for n in graph.nodes:
            ends = self.reader(n, users, outputs) if self.suits(n) and n.value not in outputs else None
            if ends is not None and ends[1] not in found:
                found[ends[1]] = (n, ends[0])
        if not found:
            return graph
        gone = {n for pair in found.values() for n in pair}

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Sequence[Value] | None:
            if n not in found:
                return () if n in gone else None
            log.hit("gates")
            return RowRegion(n.name).closed([*found[n], n], new, env, f"{n.name}_gates")

        return exchanged(graph, change)

    def suits(self, n: Node) -> bool:
        """A product of 2 to `rows` rows of floats with a matrix of known size whose rows lie along K."""
        anchor: Node | None = n
        if isinstance(n.op, o.Fused):
            anchor = next((x for x in n.op.body.nodes if starts_region(x)), None)
            if anchor is None or len(n.values) != 1 or any(v not in n.op.body.inputs for v in anchor.operands):
                return False
        if anchor is None or not isinstance(anchor.op, o.Matmul) or anchor.op.transpose_a or not anchor.op.transpose_b:
            return False
        (left, matrix), out = anchor.operands, anchor.types[0]
        rows = product(out.shape[:-1])
        known = len(matrix.shape) == 2 and all(isinstance(d, int) for d in matrix.shape) and isinstance(rows, int)
        if not known or not (isinstance(rows, int) and 2 <= rows <= self.rows) or n.types[0] != out:
            return False
        if sum(d != 1 for d in out.shape[:-1]) > 1:  # strides may not describe several axes as one
            return False
        nbytes, dtype = matrix.type.nbytes, left.dtype
        small = isinstance(nbytes, int) and nbytes <= self.bytes
        return small and dtype is matrix.dtype is out.dtype and dtype.name in ("bf16", "f16", "f32")

    @staticmethod
    def reader(n: Node, users: dict[Value, list[Node]], outputs: set[Value]) -> tuple[Node, Node] | None:
        """The split of a product's result and the one pointwise region that reads its parts."""
        readers = users[n.value]
        if len(readers) != 1 or not isinstance(readers[0].op, o.Split):
            return None
        split, op = readers[0], readers[0].op
        ends = {u for v in split.values for u in users[v]}
        if op.axis != len(n.value.shape) - 1 or len(set(op.sizes)) != 1 or len(ends) != 1 or any(v in outputs for v in split.values):
            return None
        (end,) = ends
        shape = split.values[0].shape
        inside = end.op.body.nodes if isinstance(end.op, o.Fused) else [end]
        plain = all(x.op.traits.elementwise or x.op.traits.source or x.op.traits.view for x in inside)
        checked = any(x.op.faulty(x.operands) for x in inside if x.op.traits.elementwise)
        return (split, end) if plain and not checked and all(v.shape == shape for v in end.values) else None
