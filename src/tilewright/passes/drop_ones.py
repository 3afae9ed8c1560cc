"""On a GPU, elementwise work whose shapes differ by axes of one element alone gets one shape, so that it can be one kernel."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..core.dims import Shape
from ..ir.graph import Graph, Node, Value
from ..ir.rewrite import sort_nodes
from .base import Log, Pass
from .fuse import leads_to_anchor
from .regions import is_elementwise, joins_anchor


@dataclass(frozen=True)
class DropOnes(Pass):
    """Before: the target is a GPU. After: where an elementwise node reads an elementwise result to which a reshape gave axes of one element
    (what a step of a loop adds to a stack reads what the next step takes), the node and all elementwise work of its shape around it are
    without these axes, unless it could be the epilogue of a contraction; whoever else reads it reads a reshape. No bits change."""

    name: ClassVar[str] = "drop-ones"

    def run(self, graph: Graph, log: Log) -> Graph:
        users, done = graph.users(), set[Node]()
        for root in list(graph.nodes):
            if root in done or not is_elementwise(root) or len(root.values) != 1:
                continue
            made = next((made for v in root.operands if (made := self.narrower(v, root.value.shape))), None)
            if made is None:
                continue
            around = self.around(root, users)
            done |= around
            if all(joins_anchor(n) and not leads_to_anchor(n.value) for n in around):
                self.drop([n for n in graph.nodes if n in around], root.value.shape, made, graph, users)
                log.hit("drop_ones")
        if done:
            sort_nodes(graph, late=True)
        return graph

    @staticmethod
    def narrower(v: Value, want: Shape) -> Shape | None:
        """The shape of an elementwise result before a reshape gave it the axes of one element that it has here."""
        if not isinstance(v.op, o.Reshape) or v.shape != want:
            return None
        y = v.node.operands[0]
        same = [d for d in y.shape if d != 1] == [d for d in want if d != 1]
        return y.shape if same and len(y.shape) < len(want) and is_elementwise(y.node) else None

    @staticmethod
    def around(root: Node, users: dict[Value, list[Node]]) -> set[Node]:
        """Elementwise nodes of one shape that are connected with a node."""
        found, todo = {root}, [root]
        while todo:
            n = todo.pop()
            for m in (*(v.node for v in n.operands), *users[n.value]):
                if m not in found and is_elementwise(m) and len(m.values) == 1 and m.value.shape == root.value.shape:
                    found.add(m)
                    todo.append(m)
        return found

    @staticmethod
    def drop(nodes: list[Node], want: Shape, made: Shape, graph: Graph, users: dict[Value, list[Node]]) -> None:
        """Make nodes of one shape again in another one, which has the same axes of more than one element."""
        places = (i for i, d in enumerate(want) if d != 1)
        axes = [next(places) if d != 1 else None for d in made]  # the axis of `want` for each axis of `made`
        new: dict[Value, Value] = {}

        def moved(v: Value) -> Value:
            if v not in new:
                lead = len(want) - len(v.shape)
                shape = tuple(1 if a is None or a < lead else v.shape[a - lead] for a in axes) if v.shape else ()
                below = v.node.operands[0] if isinstance(v.op, o.Reshape) else v
                tail = shape[len(shape) - len(v.shape) :] if len(v.shape) <= len(shape) else None
                new[v] = v if v.shape in (shape, tail) else below if below.shape == shape else o.emit(o.Reshape(shape=shape), below)
            return new[v]

        for n in nodes:
            new[n.value] = o.emit(n.op, *map(moved, n.operands))
            new[n.value].node.name, new[n.value].node.place = n.name, n.place
        inside = set(nodes)
        for n in nodes:
            outside = [u for u in dict.fromkeys(users[n.value]) if u not in inside]
            if not outside and n.value not in graph.outputs:
                continue
            back = o.emit(o.Reshape(shape=want), new[n.value])
            for u in outside:
                u.operands = tuple(back if v is n.value else v for v in u.operands)
                users.setdefault(back, []).append(u)
            graph.outputs = [back if v is n.value else v for v in graph.outputs]
        for made_now in new.values():
            users.setdefault(made_now, [])
            for v in made_now.node.operands:
                users.setdefault(v, []).append(made_now.node)
