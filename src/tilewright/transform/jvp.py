"""Forward mode: tangents travel beside the values they belong to."""
from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import UnsupportedError
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from ..ops.base import MaybeValues, Values
from .inline import Pass, expands, prune


class Push(Pass):
    """A forward pass into `graph` with the tangents of its values; a value without one does not move."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.tangents: dict[Value, Value] = {}

    def node(self, n: Node, env: dict[Value, Value]) -> None:
        operands = tuple(env[v] for v in n.operands)
        given = tuple(self.tangents.get(v) for v in operands)
        active = tuple(t is not None for t in given)
        moving = any(active) and any(v.dtype.kind in "fc" for v in n.values)
        if moving and expands(n, "jvp", active):
            self.expand(n, "jvp", env)
            return
        values, found = self._applied(n, operands, given, moving)
        env.update(zip(n.values, values, strict=True))
        for v, t in zip(values, found, strict=True):
            if t is not None and v.dtype.kind in "fc":
                self.tangents[v] = F.expand(t, v.shape)
        self.graph.place = ""

    def _applied(self, n: Node, operands: Values, given: MaybeValues, moving: bool) -> tuple[Values, MaybeValues]:
        """The node in this graph and the tangents of its results."""
        self.graph.place = n.place
        try:
            both = n.op.push(operands, given) if moving else None
            if both is not None:
                return both
            values = self.graph.add(n.op, *operands, name=n.name, place=n.place).values
            return values, n.op.jvp(operands, values, given) if moving else (None,) * len(values)
        except UnsupportedError as e:
            raise UnsupportedError(f"{e}{f' ({n.place})' if n.place else ''}") from None


def jvp_graph(body: Graph, active: Sequence[bool]) -> tuple[Graph, tuple[bool, ...]]:
    """(graph, moved). graph: inputs, then a tangent of each active input -> outputs, then a tangent of each moved output."""
    made = Graph(f"{body.name}_jvp")
    push, env = Push(made), dict[Value, Value]()
    for v in body.inputs:
        env[v] = made.input(v.type, v.name)
    for v, a in zip(body.inputs, active, strict=True):
        if a:
            push.tangents[env[v]] = made.input(v.type, f"t_{v.name}")
    push.run(body, env)
    outputs = [env[v] for v in body.outputs]
    moved = tuple(v in push.tangents for v in outputs)
    made.outputs = [*outputs, *(push.tangents[v] for v in outputs if v in push.tangents)]
    return prune(made), moved
