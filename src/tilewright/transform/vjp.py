"""Reverse mode: a graph's forward pass with the cotangents of its inputs appended.

The forward pass is copied node by node; an op whose rule goes through its decomposition is replaced by it, and one that wants to save
something by the op that returns it. Then the rules run backwards and their results are summed per value.
"""
from __future__ import annotations

from collections.abc import Sequence

from ..core.dims import Dim
from ..core.errors import UnsupportedError
from ..ir.graph import Graph, Node, Value, inline, subgraph
from ..ops import Slice
from ..ops import functions as F
from ..ops.base import MaybeValues, name_origin
from .inline import Pass, expands, prune

Active = tuple[bool, ...]


class Tape(Pass):
    """A forward pass into `graph`, and what has to be undone."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.active: set[Value] = set()
        self.steps: list[tuple[Node, Active]] = []

    def node(self, n: Node, env: dict[Value, Value]) -> None:
        operands = tuple(env[v] for v in n.operands)
        active = tuple(v in self.active for v in operands)
        if not any(active) or not any(v.dtype.kind in "fc" for v in n.values):
            self.copy(n, env)
        elif expands(n, "vjp", active):
            self.expand(n, "vjp", env)
        else:
            saving = self.graph.add(n.op.for_vjp(), *operands, name=n.name, place=n.place)
            self.steps.append((saving, active))
            self.active.update(v for v in saving.values if v.dtype.kind in "fc")
            env.update(zip(n.values, saving.values, strict=False))  # further outputs are what the rule saves

    def backward(self, cotangents: dict[Value, Value]) -> None:
        """Enter the cotangent of every active value, given those of the outputs."""
        parts = Parts()
        for node, active in reversed(self.steps):
            given = tuple(parts.whole(v, cotangents) for v in node.values)
            if all(g is None for g in given):
                continue
            self.graph.place = node.place
            if parts.takes(node, given[0]):
                continue
            before = len(self.graph.nodes)
            try:
                found = node.op.vjp(node.operands, node.values, given, active)
            except UnsupportedError as e:
                raise UnsupportedError(f"{e}{f' ({node.place})' if node.place else ''}") from None
            name_origin(self.graph.nodes[before:], node)
            for v, wanted, g in zip(node.operands, active, found, strict=True):
                if wanted and g is not None:
                    g = F.sum_to(g, v.shape)
                    cotangents[v] = F.add(cotangents[v], g) if v in cotangents else g
        self.graph.place = ""
        parts.finish(cotangents)


class Parts:
    """Cotangents of slices of a value, kept until the value's own is asked for: slices that fill it are then concatenated, where padding
    each with zeros and adding them up would write the whole value once for each of them."""

    def __init__(self) -> None:
        self._kept: dict[Value, list[tuple[int, int, Value]]] = {}  # value -> (axis, start, cotangent)

    def takes(self, node: Node, g: Value | None) -> bool:
        """Keep the cotangent of a slice along one axis; False for any other node."""
        op = node.op
        if not isinstance(op, Slice) or g is None or any(s != 1 for s in op.steps):
            return False
        x = node.operands[0]
        cut = [a for a, (size, d) in enumerate(zip(op.sizes, x.shape, strict=True)) if size != d]
        if len(cut) != 1 or not all(isinstance(d, int) for d in (op.starts[cut[0]], op.sizes[cut[0]], x.shape[cut[0]])):
            return False
        start = op.starts[cut[0]]
        assert isinstance(start, int)
        self._kept.setdefault(x, []).append((cut[0], start, g))
        return True

    def whole(self, v: Value, cotangents: dict[Value, Value]) -> Value | None:
        """The cotangent of v with all its parts."""
        for axis in sorted({a for a, _, _ in self._kept.get(v, ())}):
            pieces = sorted(((s, g) for a, s, g in self._kept[v] if a == axis), key=lambda p: p[0])
            while pieces:  # overlapping parts make further rounds
                row, end, rest = list[Value](), 0, []
                for start, g in pieces:
                    if start < end:
                        rest.append((start, g))
                        continue
                    if start > end:
                        row.append(_zeros_along(v, axis, start - end))
                    row.append(g)
                    end = start + int(g.shape[axis])
                if end < v.shape[axis]:
                    row.append(_zeros_along(v, axis, v.shape[axis] - end))
                total = row[0] if len(row) == 1 else F.concat(row, axis)
                cotangents[v] = F.add(cotangents[v], total) if v in cotangents else total
                pieces = rest
        self._kept.pop(v, None)
        return cotangents.get(v)

    def finish(self, cotangents: dict[Value, Value]) -> None:
        """Parts of inputs, which no node asks for."""
        for v in list(self._kept):
            self.whole(v, cotangents)


def _zeros_along(v: Value, axis: int, size: Dim) -> Value:
    return F.full(v.node.graph, (*v.shape[:axis], size, *v.shape[axis + 1 :]), 0, v.dtype)


def differentiable(v: Value) -> bool:
    return v.dtype.kind in "fc"


def vjp_graph(body: Graph, wanted: Sequence[bool], *, with_outputs: bool = False,
              seeds: Sequence[bool] | None = None) -> tuple[Graph, tuple[bool, ...]]:
    """(graph, found). graph: the inputs, then a cotangent of each float output (of each that `seeds` names) -> [outputs, then] a cotangent
    of each wanted input that the outputs depend on; `found` says which of the wanted these are."""
    made = Graph(f"{body.name}_vjp")
    tape, env = Tape(made), dict[Value, Value]()
    for v, want in zip(body.inputs, wanted, strict=True):
        env[v] = made.input(v.type, v.name)
        if want and differentiable(v):
            tape.active.add(env[v])
    tape.run(body, env)
    cotangents: dict[Value, Value] = {}
    for v, seeded in zip(body.outputs, seeds or (True,) * len(body.outputs), strict=True):
        if seeded and differentiable(v):
            g = made.input(v.type, f"d_{v.name}")
            out = env[v]
            cotangents[out] = F.add(cotangents[out], g) if out in cotangents else g
    tape.backward(cotangents)
    grads = [cotangents.get(env[v]) for v, want in zip(body.inputs, wanted, strict=True) if want]
    made.outputs = [*(env[v] for v in body.outputs if with_outputs), *(g for g in grads if g is not None)]
    return prune(made), tuple(g is not None for g in grads)


def pull_back(body: Graph, target: Graph, inputs: Sequence[Value], cotangents: MaybeValues, wanted: Sequence[bool]) -> MaybeValues:
    """Append the body's forward and backward pass to `target`: a cotangent for each wanted input (None where it is zero)."""
    graph, found = vjp_graph(body, wanted)
    given = [F.full(target, v.shape, 0, v.dtype) if g is None else g
             for v, g in zip(body.outputs, cotangents, strict=True) if differentiable(v)]
    made = iter(inline(graph, target, [*inputs, *given]))
    hits = iter(found)
    return tuple(next(made) if w and next(hits) else None for w in wanted)


def split_vjp(body: Graph, wanted: Sequence[bool]) -> tuple[Graph, Graph]:
    """(forward, backward). forward: inputs -> outputs, then residuals. backward: residuals, then a cotangent of each float output -> a
    cotangent of each wanted input (zeros where nothing depends on it)."""
    whole, found = vjp_graph(body, wanted, with_outputs=True)
    count = len(body.inputs)
    late = dependents(whole, whole.inputs[count:])
    outputs, grads = whole.outputs[: len(body.outputs)], iter(whole.outputs[len(body.outputs) :])
    forward, backward = Graph(f"{body.name}_forward"), Graph(f"{body.name}_backward")
    early = dict(zip(whole.inputs[:count], (forward.input(v.type, v.name) for v in whole.inputs[:count]), strict=True))
    whole.copy_into(forward, early, [n for n in whole.nodes if n not in late and n.values[0] not in whole.inputs])
    env: dict[Value, Value] = {}
    residuals: list[Value] = []
    needed = set(subgraph(whole.outputs[len(body.outputs) :]))
    for n in whole.nodes:
        if n in late and n in needed:
            for v in n.operands:
                if v.node not in late and v not in env:
                    if v.node.op.traits.source and v not in whole.inputs:
                        whole.copy_into(backward, env, [v.node])
                    else:
                        residuals.append(v)
                        env[v] = backward.input(v.type, f"r{len(residuals) - 1}")
    for v in whole.inputs[count:]:
        env[v] = backward.input(v.type, v.name)
    whole.copy_into(backward, env, [n for n in whole.nodes if n in late and n in needed])
    backward.nodes.sort(key=lambda n: n.values[0] not in backward.inputs)  # inputs first; the sort is stable
    forward.outputs = [*(early[v] for v in outputs), *(early[v] for v in residuals)]
    hits = iter(found)
    backward.outputs = []
    for v, want in zip(body.inputs, wanted, strict=True):
        if want:
            hit = next(hits)
            backward.outputs.append(_backward_value(next(grads), whole, env, backward) if hit else F.full(backward, v.shape, 0, v.dtype))
    return prune(forward), backward


def _backward_value(v: Value, whole: Graph, env: dict[Value, Value], backward: Graph) -> Value:
    """A gradient that does not depend on any cotangent (a constant, or nothing at all) is computed in the backward graph too."""
    if v not in env:
        whole.copy_into(backward, env, [n for n in subgraph([v]) if n.values[0] not in env])
    return env[v]


def dependents(graph: Graph, values: Sequence[Value]) -> set[Node]:
    """The nodes that depend on any of `values`, their own included."""
    found = {v.node for v in values}
    for n in graph.nodes:
        if any(v.node in found for v in n.operands):
            found.add(n)
    return found
