"""On a GPU, products of one row take the norm of the row with them, and two products that meet in one epilogue (gate and up) are one
region."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value
from .base import Log, Pass
from .regions import is_anchor


@dataclass(frozen=True)
class Product:
    """A product of one row, alone or in a region: the row and the matrix, as values of the graph."""

    node: Node
    left: Value
    matrix: Value


def product_of(n: Node) -> Product | None:
    """What `kernels/cuda/row_products.py` serves: one row, a matrix in memory from the start with rows along K of known length."""
    found: tuple[Value, ...]
    if isinstance(n.op, o.Matmul):
        op, found = n.op, n.operands
    elif isinstance(n.op, o.Fused) and len(n.values) == 1:
        outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
        anchors = [x for x in n.op.body.nodes if is_anchor(x)]
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
    takes with it
    another product of that row that only its own epilogue reads."""

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
        taken = set(partner.values())
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            if n in taken:
                continue
            if n not in found:
                graph.copy_into(new, env, [n])
                continue
            self.region(new, env, found[n], [partner[n], n] if n in partner else [n])
            log.hit("products_with_norm", 2 if n in partner else 1)
        new.take_ends(graph, env)
        return new

    @staticmethod
    def normed(p: Product) -> bool:
        norm = p.left.node
        if not isinstance(norm.op, o.RmsNorm) or norm.op.naxes != 1 or norm.op.affine != "weight":
            return False
        return all(v.dtype is p.left.dtype for v in norm.operands)

    @staticmethod
    def region(new: Graph, env: dict[Value, Value], p: Product, members: list[Node]) -> None:
        body, inner = Graph(p.node.name), dict[Value, Value]()
        operands: list[Value] = []

        def inside(v: Value) -> Value:
            if v not in inner:
                inner[v] = body.input(v.type, v.node.name)
                operands.append(v)
            return inner[v]

        norm = p.left.node
        inner[p.left] = body.add(norm.op, *(inside(v) for v in norm.operands), name=norm.name, place=norm.place).values[0]
        for n in members:
            given = [inside(v) for v in n.operands]
            if isinstance(n.op, o.Fused):
                local = dict(zip(n.op.body.inputs, given, strict=True))
                n.op.body.copy_into(body, local)
                inner[n.values[0]] = local[n.op.body.outputs[0]]
            else:
                inner[n.values[0]] = body.add(n.op, *given, name=n.name, place=n.place).values[0]
        body.outputs = [inner[p.node.values[0]]]
        made = new.add(o.Fused(body=body), *(env[v] for v in operands), name=f"{p.node.name}_row", place=p.node.place)
        env[p.node.values[0]] = made.values[0]
