"""On a GPU, attention of one query row appends the row's key and value to their caches itself: no launches for a rope and two copies."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value
from .base import Log, Pass


@dataclass(frozen=True)
class Append:
    """slice(update_slice(cache, new)): everything up to the new row. `rope` makes the row, where nothing else reads it."""

    seen: Node
    update: Node
    rope: Node | None

    @property
    def nodes(self) -> set[Node]:
        return {self.seen, self.update, *((self.rope,) if self.rope is not None else ())}


def attention_of(n: Node) -> Node | None:
    """The attention that is the node, or that is in its region with nothing but ropes and elementwise consumers."""
    if type(n.op) is o.Attention:
        return n
    if not isinstance(n.op, o.Fused) or len(n.values) != 1:
        return None
    return next((x for x in n.op.body.nodes if type(x.op) is o.Attention), None)


@dataclass(frozen=True)
class CacheAttention(Pass):
    """Before: regions are made; the target is a GPU. After: an attention of one row that sees caches up to and with the row that this call
    appends has both updates (and the rope of the key) in its region, whose further results are the caches. The caches are donated inputs
    that nothing else reads, so the kernel writes the row in place."""

    name: ClassVar[str] = "cache-attention"

    def run(self, graph: Graph, log: Log) -> Graph:
        users = graph.users()
        found: dict[Node, tuple[Append, Append]] = {}
        for n in graph.nodes:
            if (pair := self.pair(graph, n, users)) is not None:
                found[n] = pair
        if not found:
            return graph
        gone = {x for pair in found.values() for a in pair for x in a.nodes}
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            if n in found:
                self.region(new, env, n, found[n])
                log.hit("caches", 2)
            elif n not in gone:
                graph.copy_into(new, env, [n])
        new.take_ends(graph, env)
        return new

    def pair(self, graph: Graph, n: Node, users: dict[Value, list[Node]]) -> tuple[Append, Append] | None:
        attention = attention_of(n)
        if attention is None or not isinstance(attention.op, o.Attention) or attention.op.has_mask or attention.op.has_bias:
            return None
        q, k, v = attention.operands[:3]
        d = q.shape[-1]
        if q.shape[2] != 1 or not isinstance(d, int) or d & (d - 1) or not 16 <= d <= 256 or v.shape[-1] != d:
            return None
        if attention is not n:
            assert isinstance(n.op, o.Fused)
            outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
            if k not in outer or v not in outer:
                return None
            k, v = outer[k], outer[v]
        keys, values = self.append(graph, k, n, users), self.append(graph, v, n, users)
        if keys is None or values is None or k is v:
            return None
        a, b = keys.update.op, values.update.op
        assert isinstance(a, o.UpdateSlice) and isinstance(b, o.UpdateSlice)
        if a.start != b.start or (attention.op.causal and attention.op.offset != a.start):
            return None
        return keys, Append(values.seen, values.update, None)  # values are not rotated

    @staticmethod
    def append(graph: Graph, v: Value, reader: Node, users: dict[Value, list[Node]]) -> Append | None:
        seen = v.node
        if not isinstance(seen.op, o.Slice) or users[v] != [reader] or v in graph.outputs:
            return None
        update = seen.operands[0].node
        if not isinstance(update.op, o.UpdateSlice) or update.op.axis != 2 or users[update.value] != [seen]:
            return None
        old, new = update.operands
        want = (*old.shape[:2], update.op.start + 1, old.shape[3])
        plain = all(s == 0 for s in seen.op.starts) and all(s == 1 for s in seen.op.steps) and v.shape == want
        donor = next((i for i, x in enumerate(graph.inputs) if x is old), None)
        if not plain or donor is None or donor not in graph.donated or users[old] != [update] or new.shape[2] != 1:
            return None
        if graph.outputs[graph.donated[donor]] is not update.value or graph.outputs.count(update.value) != 1:
            return None
        rope = new.node
        whole = isinstance(rope.op, o.Rope) and not rope.op.interleaved and rope.op.n_rot in (None, new.shape[-1])
        return Append(seen, update, rope if whole and users[new] == [update] and new not in graph.outputs else None)

    @staticmethod
    def region(new: Graph, env: dict[Value, Value], n: Node, pair: tuple[Append, Append]) -> None:
        body, inner = Graph(n.name), dict[Value, Value]()
        operands: list[Value] = []

        def inside(v: Value) -> Value:
            if v not in inner:
                inner[v] = body.input(v.type, v.node.name)
                operands.append(v)
            return inner[v]

        for a in pair:
            for x in (a.rope, a.update, a.seen):
                if x is not None:
                    made = body.add(x.op, *(inside(v) for v in x.operands), name=x.name, place=x.place)
                    inner.update(zip(x.values, made.values, strict=True))
        given = [inside(v) for v in n.operands]
        if isinstance(n.op, o.Fused):
            local = dict(zip(n.op.body.inputs, given, strict=True))
            n.op.body.copy_into(body, local)
            result = local[n.op.body.outputs[0]]
        else:
            result = body.add(n.op, *given, name=n.name, place=n.place).values[0]
        body.outputs = [result, *(inner[a.update.value] for a in pair)]
        region = new.add(o.Fused(body=body), *(env[v] for v in operands), name=f"{n.name}_cached", place=n.place)
        env.update(zip((n.values[0], *(a.update.value for a in pair)), region.values, strict=True))
