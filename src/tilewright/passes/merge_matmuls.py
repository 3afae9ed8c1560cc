"""Linear layers that read the same value (q, k and v) become one matmul on their concatenated weights, and a split."""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value, replace_values
from ..ir.rewrite import sort_nodes
from .base import Log, Pass

READERS = (o.Reshape, o.Transpose, o.Slice, o.Split, o.Attention, o.Rope)


@dataclass(frozen=True)
class Linear:
    """One candidate: x @ w (+ b), and the value that others read."""

    matmul: Node
    w: Value
    bias: Value | None
    result: Value


@dataclass(frozen=True)
class MergeMatmuls(Pass):
    """Before: CSE done, biases still plain additions.
    After: matmuls with one left operand, constant right operands that nothing else reads, equal flags, alike biases, and results that
    are only viewed or attended to, are one matmul whose result is split along its last axis. Results with an epilogue of their own
    stay apart."""

    name: ClassVar[str] = "merge-matmuls"

    def run(self, graph: Graph, log: Log) -> Graph:
        users = graph.users()
        outputs = set(graph.outputs)
        groups: dict[Any, list[Linear]] = defaultdict(list)
        for n in graph.nodes:
            found = self.candidate(n, users, outputs)
            if found is not None:
                op: Any = n.op
                key = (n.operands[0], op, found.bias is not None, found.w.shape[1 if op.transpose_b else 0])
                groups[key].append(found)
        mapping: dict[Value, Value] = {}
        for group in groups.values():
            if len(group) > 1:
                self.merge(graph, group, mapping)
                log.hit("merge_matmuls", len(group))
        if mapping:
            replace_values(graph, mapping)
            sort_nodes(graph)
        return graph

    def candidate(self, n: Node, users: dict[Value, list[Node]], outputs: set[Value]) -> Linear | None:
        if not isinstance(n.op, o.Matmul) or n.op.transpose_a:
            return None
        w = n.operands[1]
        if not isinstance(w.op, o.Constant) or len(w.shape) != 2 or len(users[w]) != 1 or w in outputs:
            return None
        result, bias = n.value, None
        if len(users[result]) == 1 and result not in outputs and isinstance(users[result][0].op, o.Add):
            add = users[result][0]
            other = add.operands[1] if add.operands[0] is result else add.operands[0]
            if isinstance(other.op, o.Constant) and other.shape == result.shape[-1:] and add.types[0] == result.type:
                result, bias = add.value, other
        if result in outputs or not users[result] or not all(isinstance(u.op, READERS) for u in users[result]):
            return None
        return Linear(n, w, bias, result)

    def merge(self, graph: Graph, group: list[Linear], mapping: dict[Value, Value]) -> None:
        first: Any = group[0].matmul
        axis = 0 if first.op.transpose_b else 1
        w = self.joined(graph, [g.w for g in group], axis)
        y: Value = first.op(first.operands[0], w, place=first.place)
        if group[0].bias is not None:
            y = o.Add()(y, self.joined(graph, [g.bias for g in group if g.bias is not None], 0), place=first.place)
        parts = o.Split(axis=len(y.shape) - 1, sizes=tuple(g.result.shape[-1] for g in group))(y, place=first.place)
        mapping.update(zip((g.result for g in group), parts, strict=True))

    @staticmethod
    def joined(graph: Graph, parts: list[Value], axis: int) -> Value:
        joined = o.Joined([v.op.data for v in parts if isinstance(v.op, o.Constant)], axis)
        return graph.constant(joined, joined.name)
