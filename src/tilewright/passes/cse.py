"""Common subexpressions: the same op on the same operands is computed once."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value
from ..ir.rewrite import sort_nodes
from .base import Log, Pass

BYTES = 64  # constants up to this size are compared by content


def key(n: Node, operands: tuple[Value, ...], kept: bool) -> Any:
    if isinstance(n.op, o.Constant):
        data = n.op.data
        size = data.type.nbytes
        if isinstance(size, int) and size <= BYTES:
            return ("bytes", n.types[0], data.content)
        return ("array", n.types[0], data.place)  # tied weights share their memory
    if n.op.traits.commutative:
        operands = tuple(sorted(operands, key=id))
    if kept and n.op.traits.reduction and getattr(n.op, "keepdims", False):
        return (replace(n.op, keepdims=False), operands)  # type: ignore[call-arg]
    return (n.op, operands)


@dataclass(frozen=True)
class Cse(Pass):
    """Before: any valid graph.  After: no two nodes apply an equal op to the same operands; `kept`: reductions that differ in the axes that
    they keep are one."""

    name: ClassVar[str] = "cse"
    kept: bool = False

    def run(self, graph: Graph, log: Log) -> Graph:
        seen: dict[Any, Node] = {}
        mapping: dict[Value, Value] = {}
        for n in list(graph.nodes):
            n.operands = tuple(mapping.get(v, v) for v in n.operands)
            if isinstance(n.op, (o.Input, o.Fused)):
                continue
            first = seen.setdefault(key(n, n.operands, self.kept), n)
            if first is n:
                continue
            for v, same in zip(n.values, first.values, strict=True):
                mapping[v] = same if v.type == same.type else o.Reshape(shape=v.shape)(same)
            log.hit(n.op.name)
        if mapping:
            graph.outputs = [mapping.get(v, v) for v in graph.outputs]
            sort_nodes(graph)
        return graph


@dataclass(frozen=True)
class Dce(Pass):
    """Before: any valid graph.  After: every node is an input or needed by an output."""

    name: ClassVar[str] = "dce"

    def run(self, graph: Graph, log: Log) -> Graph:
        before = len(graph.nodes)
        sort_nodes(graph)
        log.hit("unused", before - len(graph.nodes))
        return graph
