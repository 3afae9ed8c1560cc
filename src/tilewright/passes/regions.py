"""Bookkeeping for fusion: which node is in which region, a linear order that stays valid, and the making of `Fused` nodes.

The order is what keeps the graph of regions free of cycles: every region has one position, after everything it reads and before
everything that reads it.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from .. import ops as o
from ..ir.graph import Graph, Node, Value


def starts_region(n: Node) -> bool:
    """Whether fusion grows a region around the node."""
    return bool(n.op.fusion) and (len(n.values) == 1 or isinstance(n.op, (o.ChannelSums, o.Moments)))


def is_elementwise(n: Node) -> bool:
    return n.op.traits.elementwise


def joins_anchor(n: Node) -> bool:
    """Elementwise, and nothing that must be checked element by element (kernels of anchors compute past the end of their rows) or that
    counts elements."""
    return n.op.traits.elementwise and not n.op.faulty(n.operands) and not counts(n)


def counts(n: Node) -> bool:
    """Its elements depend on their positions, which only pointwise kernels compute."""
    return any(isinstance(v.op, o.Positions) for v in n.operands)


def is_inner(v: Value) -> bool:
    """Rank-0 constants and positions live inside the region that uses them."""
    return isinstance(v.op, o.Positions) or (isinstance(v.op, o.Constant) and len(v.shape) == 0)


VIEW = 1e-6  # positions between a view and its reader


@dataclass
class Regions:
    """`loose`: views take the places that leave most room for regions, right behind what they are of or before their readers."""

    graph: Graph
    loose: bool = False
    users: dict[Value, list[Node]] = field(init=False)
    outputs: set[Value] = field(init=False)
    position: dict[Node, float] = field(init=False)
    owner: dict[Node, list[Node]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.users = self.graph.users()
        self.outputs = set(self.graph.outputs)
        self.position = {n: float(i) for i, n in enumerate(self.graph.nodes)}
        if self.loose:
            self._move_views()

    def _move_views(self) -> None:
        early = set[Node]()
        for n in self.graph.nodes:
            if not n.op.traits.view or len(n.operands) != 1:
                continue
            source = n.operands[0].node
            alone = not is_elementwise(source) and all(u.op.traits.view for v in source.values for u in self.users[v])
            if source in early or source.op.traits.source or alone:
                early.add(n)
                self.position[n] = self.position[source]
        for n in reversed(self.graph.nodes):
            readers = [u for v in n.values for u in self.users[v]]
            if n.op.traits.view and n not in early and readers and not any(map(is_elementwise, readers)):
                self.position[n] = min(self.position[u] for u in readers) - VIEW

    def free(self, n: Node) -> bool:
        return n not in self.owner

    def alone(self, v: Value, readers: Collection[Node]) -> bool:
        """Whether nothing but these reads a value."""
        return v not in self.outputs and all(u in readers for u in self.users[v])

    def exits(self, region: set[Node]) -> list[Value]:
        """Values of the region that something outside reads."""
        return [v for n in region for v in n.values if v in self.outputs or any(u not in region for u in self.users[v])]

    def more_exits(self, region: set[Node], n: Node) -> int:
        """By how many the values that something outside a region reads grow when a node joins it."""
        own = sum(v in self.outputs or any(u not in region for u in self.users[v]) for v in n.values)
        gone = [v for v in dict.fromkeys(n.operands) if v.node in region and v not in self.outputs]
        return own - sum(all(u is n or u in region for u in self.users[v]) for v in gone)

    def place(self, region: set[Node]) -> float | None:
        """A position between what the region reads and what reads it, or None: fusing it would (or might) close a cycle."""
        reads = [self.position[v.node] for n in region for v in n.operands if v.node not in region and not v.node.op.traits.source]
        readers = [self.position[u] for n in region for v in n.values for u in self.users[v] if u not in region]
        low, high = max(reads, default=-1.0), min(readers, default=float(len(self.position)))
        last = max(self.position[n] for n in region)
        return None if low >= high else last if low < last < high else (low + high) / 2

    def close(self, nodes: list[Node], position: float) -> None:
        for n in nodes:
            self.owner[n] = nodes
            self.position[n] = position

    def build(self) -> None:
        """Replace each region of more than one node, or of one that counts, by a Fused node."""
        graph, made = self.graph, set[int]()
        rank = {n: i for i, n in enumerate(graph.nodes)}
        new = Graph(graph.name)
        env: dict[Value, Value] = {}
        for n in sorted(graph.nodes, key=lambda n: (-1.0 if n.op.traits.source else self.position[n], rank[n])):
            region = self.owner.get(n)
            if region is None or (len(region) == 1 and not counts(n)):
                graph.copy_into(new, env, [n])
            elif id(region) not in made:
                made.add(id(region))
                self._fuse(sorted(region, key=rank.__getitem__), new, env)
        new.take_ends(graph, env)
        self.graph = new

    def _fuse(self, nodes: list[Node], new: Graph, env: dict[Value, Value]) -> None:
        inside = set(nodes)
        anchor = next((n for n in nodes if starts_region(n)), nodes[-1])
        graph, body, inner = anchor.graph, Graph(anchor.name), dict[Value, Value]()
        operands: list[Value] = []
        # the anchor's operands come first, in its order: templates find them there
        for n in (anchor, *nodes):
            for v in n.operands:
                if v in inner or v.node in inside:
                    continue
                if is_inner(v):
                    graph.copy_into(body, inner, [v.node])
                else:
                    inner[v] = body.input(v.type, v.node.name)
                    operands.append(v)
        graph.copy_into(body, inner, nodes)
        exits = [v for n in nodes for v in n.values if v in self.outputs or any(u not in inside for u in self.users[v])]
        body.outputs = [inner[v] for v in exits]
        name = f"{anchor.name}_region" if starts_region(anchor) else "pointwise"
        fused = new.add(o.Fused(body=body), *(env[v] for v in operands), name=name, place=anchor.place)
        env.update(zip(exits, fused.values, strict=True))
