"""On a GPU, a product of few rows whose result is split into gates takes what is computed from the gates with it: a step of a recurrent
layer is one launch."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..core.dims import product
from ..ir.graph import Graph, Node, Value
from .base import Log, Pass
from .regions import starts_region
from .row_products import RowRegion


@dataclass(frozen=True)
class GateProducts(Pass):
    """Before: regions are made; the target is a GPU. After: a product of few rows with a small matrix, whose result is split along its last
    axis into equal parts that one pointwise region reads, is one region with that one."""

    name: ClassVar[str] = "gate-products"
    rows: int = 64
    bytes: int = 8 << 20  # of the matrix: larger ones have kernels that stream them better

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
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            if n in gone:
                continue
            if n not in found:
                graph.copy_into(new, env, [n])
                continue
            region = RowRegion(n.name)
            for member in (*found[n], n):
                region.take(member)
            region.body.outputs = [region.inner[v] for v in n.values]
            made = new.add(o.Fused(body=region.body), *(env[v] for v in region.operands), name=f"{n.name}_gates", place=n.place)
            env.update(zip(n.values, made.values, strict=True))
            log.hit("gates")
        new.take_ends(graph, env)
        return new

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
