"""Batching: a graph for many cases at once. What does not depend on the batch is computed once."""
from __future__ import annotations

from collections.abc import Sequence

from ..core.dims import Dim
from ..core.errors import UnsupportedError, VerifyError
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from ..ops.base import name_origin
from .inline import expansion, prune


class Batcher:
    """A pass into `graph`; batched values have the new axis in front."""

    def __init__(self, graph: Graph, size: Dim) -> None:
        self.graph, self.size = graph, size
        self.batched: set[Value] = set()

    def run(self, body: Graph, env: dict[Value, Value]) -> None:
        for n in body.nodes:
            if n.values[0] not in env:
                self._node(n, env)

    def _node(self, n: Node, env: dict[Value, Value]) -> None:
        operands = tuple(env[v] for v in n.operands)
        flags = tuple(v in self.batched for v in operands)
        if not any(flags):
            copy = self.graph.add(n.op, *operands, name=n.name, place=n.place)
            env.update(zip(n.values, copy.values, strict=True))
        elif n.op.expands("batch", flags):
            made = expansion(n, "batch")
            inner = dict(zip(made.inputs, operands, strict=True))
            self.run(made, inner)
            env.update((v, inner[out]) for v, out in zip(n.values, made.outputs, strict=True))
        else:
            self.graph.place, before = n.place, len(self.graph.nodes)
            try:
                found = n.op.batch(operands, flags, self.size)
            except UnsupportedError as e:
                raise UnsupportedError(f"{e}{f' ({n.place})' if n.place else ''}") from None
            name_origin(self.graph.nodes[before:], n)
            for v, out in zip(n.values, found, strict=True):
                if out.shape != (self.size, *v.shape):
                    raise VerifyError(f"{n.op.name}: its batching rule gave {out.type} for {self.size} of {v.type}")
            self.batched.update(found)
            env.update(zip(n.values, found, strict=True))
            self.graph.place = ""


def batch_graph(body: Graph, batched: Sequence[bool], size: Dim, force: Sequence[bool] | None = None) -> tuple[Graph, tuple[bool, ...]]:
    """(graph, out_batched): the body with an axis of `size` in front of the batched inputs and of the batched outputs. `force` names
    outputs that must be batched."""
    made = Graph(f"{body.name}_batched")
    batcher, env = Batcher(made, size), dict[Value, Value]()
    for v, b in zip(body.inputs, batched, strict=True):
        env[v] = made.input(v.type.with_shape((size, *v.shape)) if b else v.type, v.name)
        if b:
            batcher.batched.add(env[v])
    batcher.run(body, env)
    wanted = [False] * len(body.outputs) if force is None else list(force)
    outputs, flags = [], []
    for v, must in zip(body.outputs, wanted, strict=True):
        out = env[v]
        flag = out in batcher.batched
        outputs.append(F.broadcast_batch(out, flag, size) if must else out)
        flags.append(flag or must)
    made.outputs = outputs
    return prune(made), tuple(flags)
