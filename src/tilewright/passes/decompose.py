"""Composites that no kernel template serves become plainer ops."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Value
from ..ops.base import Op
from .base import Log, Pass


@dataclass(frozen=True)
class Decompose(Pass):
    """Before: any graph, everything recognised. After: no composite op without a template of its own is left."""

    name: ClassVar[str] = "decompose"
    optional: ClassVar[bool] = False  # select has no kernel for what this removes

    def run(self, graph: Graph, log: Log) -> Graph:
        while any(self.wanted(n.op) for n in graph.nodes):
            new, env = Graph(graph.name), dict[Value, Value]()
            for n in graph.nodes:
                if not self.wanted(n.op):
                    graph.copy_into(new, env, [n])
                    continue
                log.hit(n.op.name)
                made = n.op.decompose(*(env[v] for v in n.operands))
                env.update(zip(n.values, made if isinstance(made, tuple) else (made,), strict=True))
            new.take_ends(graph, env)
            graph = new
        return graph

    @staticmethod
    def wanted(op: Op) -> bool:
        return op.traits.composite and op.template is None and not op.traits.elementwise
