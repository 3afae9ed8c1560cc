"""Copying a graph into another one: what every transform does with its result."""
from __future__ import annotations

from ..core.errors import UnsupportedError
from ..ir.graph import Graph, Node, Value, subgraph
from ..ops.base import Op, name_origin
from ..ops.complex.rules import expanded, has_complex
from ..ops.families import values_of


def prune(graph: Graph) -> Graph:
    """Drop the nodes that no output needs; inputs stay."""
    needed = set(subgraph(graph.outputs)) | {v.node for v in graph.inputs}
    graph.nodes = [n for n in graph.nodes if n in needed]
    return graph


class Pass:
    """A pass over the nodes of bodies that writes a transformed copy of each into `graph`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, body: Graph, env: dict[Value, Value]) -> None:
        for n in body.nodes:
            if n.values[0] not in env:
                self.node(n, env)

    def node(self, n: Node, env: dict[Value, Value]) -> None:
        raise NotImplementedError

    def copy(self, n: Node, env: dict[Value, Value]) -> None:
        """The node as it is."""
        made = self.graph.add(n.op, *(env[v] for v in n.operands), name=n.name, place=n.place)
        env.update(zip(n.values, made.values, strict=True))

    def expand(self, n: Node, rule: str, env: dict[Value, Value]) -> None:
        """The node by way of plainer ops."""
        made = expansion(n, rule)
        inner = {v: env[x] for v, x in zip(made.inputs, n.operands, strict=True)}
        self.run(made, inner)
        env.update((v, inner[out]) for v, out in zip(n.values, made.outputs, strict=True))


RULES = {"vjp": "reverse-mode derivative", "jvp": "forward-mode derivative", "batch": "batching rule"}


def expands(node: Node, rule: str, active: tuple[bool, ...]) -> bool:
    """Whether a transform goes through plainer ops instead of the op's rule: derivatives of complex numbers are those of their parts."""
    return node.op.expands(rule, active) or (rule != "batch" and has_complex(node))


def expansion(node: Node, rule: str) -> Graph:
    """The node's op in plainer ops, as a graph of its own; an error that names the op where it has neither them nor the rule."""
    op = node.op
    if rule != "batch" and has_complex(node):
        return expanded(node)
    if rule in op.unsupported or type(op).decompose is Op.decompose:
        why = f": {op.unsupported[rule].reason}" if rule in op.unsupported else ""
        where = f" ({node.place})" if node.place else ""
        raise UnsupportedError(f"{op.name}: has no {RULES[rule]}{why}{where}")
    made = Graph(op.name)
    made.place = node.place
    inputs = [made.input(v.type, f"x{i}") for i, v in enumerate(node.operands)]
    made.outputs = list(values_of(op.decompose(*inputs)))
    name_origin(made.nodes, node)
    return made
