"""On a GPU, attention of one query row appends the row's key and value to their caches itself: no launches for a rope and two copies."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value, exchanged
from .base import Log, Pass


@dataclass(frozen=True)
class Append:
    """slice(update_slice(cache, new)): everything up to the new row. `rope` makes the row, where nothing else reads it; `blocks` makes its
    quantized values and scales, each for an update of its own."""

    seen: Node
    update: Node
    rope: Node | None
    blocks: Node | None

    @property
    def nodes(self) -> list[Node]:
        return [x for x in (self.rope, self.blocks, self.update, self.seen) if x is not None]


def attention_of(n: Node) -> Node | None:
    """The attention that is the node, or that is in its region with nothing but ropes and elementwise consumers."""
    kinds = (o.Attention, o.Q8Attention)
    if type(n.op) in kinds:
        return n
    if not isinstance(n.op, o.Fused) or len(n.values) != 1:
        return None
    return next((x for x in n.op.body.nodes if type(x.op) in kinds), None)


@dataclass(frozen=True)
class CacheAttention(Pass):
    """Before: regions are made; the target is a GPU. After: an attention of one row that sees caches up to and with the row that this call
    appends has both updates (and the rope of the key) in its region, whose further results are the caches. The caches are donated inputs
    that nothing else reads, so the kernel writes the row in place."""

    name: ClassVar[str] = "cache-attention"

    def run(self, graph: Graph, log: Log) -> Graph:
        users = graph.users()
        found: dict[Node, list[Append]] = {}
        for n in graph.nodes:
            if (appends := self.appends(graph, n, users)) is not None:
                found[n] = appends
        if not found:
            return graph
        gone = {x for appends in found.values() for a in appends for x in a.nodes}

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Sequence[Value] | None:
            if n not in found:
                return () if n in gone else None
            self.region(new, env, n, found[n])
            log.hit("caches", len(found[n]))
            return ()

        return exchanged(graph, change)

    def appends(self, graph: Graph, n: Node, users: dict[Value, list[Node]]) -> list[Append] | None:
        """The rows appended to keys and values; for a cache in eight bits their quantized values, then their scales."""
        attention = attention_of(n)
        if attention is None or not isinstance(attention.op, o.Attention) or attention.op.has_mask or attention.op.has_bias:
            return None
        q, *parts = attention.operands
        d = q.shape[-1]
        if q.shape[2] != 1 or not isinstance(d, int) or d & (d - 1) or not 16 <= d <= 256 or parts[1].shape[-1] != d:
            return None
        if attention is not n:
            assert isinstance(n.op, o.Fused)
            outer = dict(zip(n.op.body.inputs, n.operands, strict=True))
            if any(x not in outer for x in parts):
                return None
            parts = [outer[x] for x in parts]
        found = [a for x in parts if (a := self.append(graph, x, n, users)) is not None]
        if len(found) < len(parts) or len({*parts}) < len(parts):
            return None
        starts = [a.update.op.start for a in found if isinstance(a.update.op, o.UpdateSlice)]
        if any(s != starts[0] for s in starts) or (attention.op.causal and attention.op.offset != starts[0]):
            return None
        makers = [a.blocks for a in found]
        eight = isinstance(attention.op, o.Q8Attention)
        if (None in makers or makers[:2] != makers[2:] or makers[0] is makers[1]) if eight else any(m is not None for m in makers):
            return None
        return [replace(a, rope=None) if i % 2 else a for i, a in enumerate(found)]  # values are not rotated

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
        blocks, reads = None, update
        if isinstance(new.node.op, o.Q8Blocks):
            blocks = reads = new.node
            if any(len(users[x]) != 1 or x in graph.outputs for x in blocks.values):
                return None
            new = blocks.operands[0]
        rope = new.node
        whole = isinstance(rope.op, o.Rope) and not rope.op.interleaved and rope.op.n_rot in (None, new.shape[-1])
        return Append(seen, update, rope if whole and users[new] == [reads] and new not in graph.outputs else None, blocks)

    @staticmethod
    def region(new: Graph, env: dict[Value, Value], n: Node, appends: list[Append]) -> None:
        body, inner = Graph(n.name), dict[Value, Value]()
        operands: list[Value] = []

        def inside(v: Value) -> Value:
            if v not in inner:
                inner[v] = body.input(v.type, v.node.name)
                operands.append(v)
            return inner[v]

        for x in dict.fromkeys(x for a in appends for x in a.nodes):
            made = body.add(x.op, *(inside(v) for v in x.operands), name=x.name, place=x.place)
            inner.update(zip(x.values, made.values, strict=True))
        given = [inside(v) for v in n.operands]
        if isinstance(n.op, o.Fused):
            local = dict(zip(n.op.body.inputs, given, strict=True))
            n.op.body.copy_into(body, local)
            result = local[n.op.body.outputs[0]]
        else:
            result = body.add(n.op, *given, name=n.name, place=n.place).values[0]
        body.outputs = [result, *(inner[a.update.value] for a in appends)]
        region = new.add(o.Fused(body=body), *(env[v] for v in operands), name=f"{n.name}_cached", place=n.place)
        env.update(zip((n.values[0], *(a.update.value for a in appends)), region.values, strict=True))
