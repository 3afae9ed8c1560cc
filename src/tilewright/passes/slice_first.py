"""On a GPU, slices of elementwise results move to what these read, so that they and their readers can be one kernel."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from .. import ops as o
from ..core.dims import Shape
from ..ir.graph import Graph, Node, Value
from ..ir.rewrite import sort_nodes
from .base import Log, Pass
from .fuse import leads_to_anchor
from .regions import is_elementwise, joins_anchor

AGAIN = 4  # how often an element may be computed, at most: storing it and reading it twice costs as much as some fifty operations


@dataclass(frozen=True)
class SliceFirst(Pass):
    """Before: the target is a GPU, equal values are one. After: an elementwise result of known size that only slices read, for elementwise
    work (a spline's basis by its neighbours of lower order, differences of neighbours), is computed for each slice from slices of its
    operands, unless its elements were computed too often then, or it could be the epilogue of a contraction. No bits change."""

    name: ClassVar[str] = "slice-first"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, outputs, made = graph.users(), set(graph.outputs), dict[tuple[Value, o.Slice], Value]()

        def cut(v: Value, by: o.Slice, shape: Shape) -> Value:
            """The part of an operand that a slice of the result needs: its axes are the last ones, those of size 1 are whole."""
            lead = len(shape) - len(v.shape)
            parts = [(s, n, k) if d != 1 or whole == 1 else (0, 1, 1)
                     for d, whole, s, n, k in zip(v.shape, shape[lead:], by.starts[lead:], by.sizes[lead:], by.steps[lead:], strict=True)]
            if all(s == 0 and n == d for (s, n, _), d in zip(parts, v.shape, strict=True)):
                return v
            starts, sizes, steps = (tuple(p) for p in zip(*parts, strict=True))
            if isinstance(v.op, o.Slice):
                inner = v.op
                starts = tuple(s + t * k for s, t, k in zip(inner.starts, starts, inner.steps, strict=True))
                v, steps = v.node.operands[0], tuple(j * k for j, k in zip(inner.steps, steps, strict=True))
            op = o.Slice(starts=starts, sizes=sizes, steps=steps)
            if (v, op) not in made:
                made[v, op] = o.emit(op, v)
                users[made[v, op]] = []
                users[v].append(made[v, op].node)
            return made[v, op]

        for n in reversed(list(graph.nodes)):
            cuts = self.cuts(n, users, outputs)
            for c in cuts:
                operands = [cut(v, c.op, n.value.shape) for v in n.operands]  # type: ignore[arg-type]
                again = o.emit(n.op, *operands)
                again.node.name, again.node.place = n.name, n.place
                users[again] = users.pop(c.value)
                for reader in users[again]:
                    reader.operands = tuple(again if v is c.value else v for v in reader.operands)
                for v in operands:
                    users[v].append(again.node)
            if cuts:
                for v in n.operands:
                    users[v] = [u for u in users[v] if u is not n]
                log.hit("slice_first")
        if made:
            sort_nodes(graph)
        return graph

    def cuts(self, n: Node, users: dict[Value, list[Node]], outputs: set[Value]) -> list[Node]:
        """The slices that alone read an elementwise result, if it may be computed for each of them."""
        if not is_elementwise(n) or not joins_anchor(n) or len(n.values) != 1 or n.value in outputs or leads_to_anchor(n.value):
            return []
        cuts = [c for c in dict.fromkeys(users[n.value]) if not isinstance(c.op, o.Slice) or users[c.value] or c.value in outputs]
        if not cuts or not all(isinstance(c.op, o.Slice) and c.value not in outputs for c in cuts):
            return []
        if not all(map(is_elementwise, (u for c in cuts for u in users[c.value]))):
            return []
        shapes = [c.value.shape for c in cuts]
        if not all(isinstance(d, int) and d > 0 for shape in (n.value.shape, *shapes) for d in shape):
            return []
        return cuts if sum(map(prod, shapes)) <= AGAIN * prod(n.value.shape) else []
