"""On a GPU, products of one row with packed matrices round the row to codes themselves, with the RMS norm that makes it; two products
that meet in one epilogue (gate and up) are one region."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value
from .base import Log, Pass
from .regions import is_anchor

LONGEST = 16384  # what kernels/cuda/qdot.py keeps in shared memory


def dot_of(n: Node) -> Node | None:
    """The product with a packed matrix that is the node, or the only anchor of its region."""
    if isinstance(n.op, o.QDot):
        return n
    if not isinstance(n.op, o.Fused) or len(n.values) != 1:
        return None
    anchors = [x for x in n.op.body.nodes if is_anchor(x)]
    return anchors[0] if len(anchors) == 1 and isinstance(anchors[0].op, o.QDot) else None


def codes_of(n: Node) -> Node | None:
    """The rounding whose codes the product of this node reads, where it is of one row and a node of its own."""
    dot = dot_of(n)
    if dot is None:
        return None
    value = dot.operands[0]
    if dot is not n:
        assert isinstance(n.op, o.Fused)
        outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
        if value not in outer:
            return None
        value = outer[value]
    made = value.node
    if not isinstance(made.op, o.QuantiseRows) or any(d != 1 for d in value.shape[:-1]) or n.types[0].shape != dot.types[0].shape:
        return None
    k = value.shape[-1]
    return made if isinstance(k, int) and k <= LONGEST and made.operands[0].dtype.name == "f32" else None


@dataclass(frozen=True)
class RowCodes(Pass):
    """Before: regions are made; the target is a GPU. After: a `qdot` of one row has the rounding of the row, and the RMS norm before it,
    in its region, and takes with it another `qdot` of the same codes that only its own epilogue reads."""

    name: ClassVar[str] = "row-codes"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs = graph.users(), set(graph.outputs)
        found = {n: made for n in graph.nodes if (made := codes_of(n)) is not None}
        if not found:
            return graph
        partner: dict[Node, Node] = {}
        for n, made in found.items():
            for v in n.operands:
                other = v.node
                if found.get(other) is not made or users[v] != [n] or v in outputs or v.shape != n.types[0].shape:
                    continue
                if alike(n, other) and other not in partner and n not in partner.values():
                    partner[n] = other
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
            log.hit("products_with_codes", 2 if n in partner else 1)
        new.take_ends(graph, env)
        return new

    @staticmethod
    def region(new: Graph, env: dict[Value, Value], made: Node, members: list[Node]) -> None:
        last = members[-1]
        body, inner = Graph(last.name), dict[Value, Value]()
        operands: list[Value] = []

        def inside(v: Value) -> Value:
            if v not in inner:
                inner[v] = body.input(v.type, v.node.name)
                operands.append(v)
            return inner[v]

        x = made.operands[0]
        norm = x.node
        if isinstance(norm.op, o.RmsNorm) and norm.op.naxes == 1 and norm.op.affine == "weight":
            if all(v.dtype.name == "f32" for v in norm.operands):
                inner[x] = body.add(norm.op, *(inside(v) for v in norm.operands), name=norm.name, place=norm.place).values[0]
        codes = body.add(made.op, inside(x), name=made.name, place=made.place)
        inner.update(zip(made.values, codes.values, strict=True))
        for n in members:
            given = [inside(v) for v in n.operands]
            if isinstance(n.op, o.Fused):
                local = dict(zip(n.op.body.inputs, given, strict=True))
                n.op.body.copy_into(body, local)
                inner[n.values[0]] = local[n.op.body.outputs[0]]
            else:
                inner[n.values[0]] = body.add(n.op, *given, name=n.name, place=n.place).values[0]
        body.outputs = [inner[last.values[0]]]
        region = new.add(o.Fused(body=body), *(env[v] for v in operands), name=f"{last.name}_row", place=last.place)
        env[last.values[0]] = region.values[0]


def alike(a: Node, b: Node) -> bool:
    """Two products that one kernel can make: same format, same sizes."""
    one, other = dot_of(a), dot_of(b)
    return one is not None and other is not None and one.op == other.op
