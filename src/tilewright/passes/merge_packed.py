"""On a GPU, products of the same codes (or bf16 rows) with packed matrices of one format (q, k and v) become one product and a split."""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value, replace_values
from ..ir.rewrite import sort_nodes
from .base import Log, Pass
from .merge_matmuls import READERS


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
