"""Derivatives and batching of scan (cond and while: `control_branches.py`).

Reverse mode of a scan is one scan in the other direction. Its carries are the cotangents of the carries and one sum for every captured
value that is differentiated; what it needs of the forward pass was stacked there slice by slice (carries, intermediate values), or is
at hand already (slices of xs, captured values and what is computed from them alone, which is computed again rather than stacked).
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.dims import Dim
from ...core.errors import VerifyError
from ...ir.graph import Graph, Value, subgraph
from .. import functions as F
from ..base import MaybeValues, Op, Values
from .bodies import transforms

if TYPE_CHECKING:
    from .flow import Scan


@dataclass(frozen=True)
class Saved:
    """How a forward pass was split: `body` is the graph before, `forward` the one with residuals behind its outputs, and `stacked` says
    which residuals the op saves (the others are inputs, or computed from captured inputs)."""

    body: Graph
    forward: Graph
    backward: Graph
    stacked: tuple[bool, ...]

    @property
    def residuals(self) -> Values:
        return tuple(self.forward.outputs[len(self.body.outputs) :])


def split(body: Graph, invariant: Sequence[Value] | None = None) -> Saved:
    """`body` for reverse mode with respect to all its float inputs. `invariant`: inputs that do not change from step to step."""
    forward, backward = transforms().split_vjp(body, [is_float(v) for v in body.inputs])
    at_hand = set(forward.inputs) if invariant is None else {forward.inputs[body.inputs.index(v)] for v in invariant}
    residuals = forward.outputs[len(body.outputs) :]
    if invariant is None:
        return Saved(body, forward, backward, tuple(v not in at_hand for v in residuals))
    return Saved(body, forward, backward, tuple(not _from(v, at_hand) for v in residuals))


def _from(value: Value, inputs: set[Value]) -> bool:
    """Whether a value depends on no other inputs than these."""
    return all(n.values[0] in inputs for n in subgraph([value]) if n.op.name == "input")


def is_float(v: Value) -> bool:
    return bool(v.dtype.kind in "fc")


def add_node(graph: Graph, op: Op, operands: Sequence[Value]) -> Values:
    return graph.add(op, *operands).values


def keep(op: Any, saved: Any) -> Any:
    """A saving op remembers its split: `vjp` is called on this very object. The memory is no attribute: the op is an ordinary one."""
    object.__setattr__(op, "_saved", saved)
    return op


def kept(op: Any) -> Any:
    found = getattr(op, "_saved", None)
    if found is None:
        raise VerifyError(f"{op.name}: its reverse-mode rule belongs to the op that `for_vjp` gives")
    return found


def is_zero(v: Value) -> bool:
    """A cotangent that nothing contributes to: zeros made by `split_vjp`."""
    op, node = v.op, v.node
    while op.name == "expand":
        node = node.operands[0].node
        op = node.op
    return op.name == "constant" and not node.op.attrs()["data"].array.any()


def scan_saving(op: Scan) -> Op:
    n, m = op.carries, op.xs
    saved = split(op.body, op.body.inputs[n + m :])
    slices = set(saved.forward.inputs[n : n + m])
    saved = dataclasses.replace(saved, stacked=tuple(s and v not in slices for v, s in zip(saved.residuals, saved.stacked, strict=True)))
    forward = _with_outputs(saved.forward, [*saved.forward.outputs[: len(op.body.outputs)], *chosen(saved.residuals, saved.stacked)])
    return keep(dataclasses.replace(op, body=forward), saved)  # type: ignore[no-any-return]


def _with_outputs(graph: Graph, outputs: Sequence[Value]) -> Graph:
    made, env = graph.clone()
    made.outputs = [env[v] for v in outputs]
    return made


def chosen(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [v for v, f in zip(values, flags, strict=True) if f]


class _Body:
    """The body of a scan under construction: inputs as they are asked for, sorted into carries, slices and captured at the end."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.groups: tuple[list[Value], list[Value], list[Value]] = ([], [], [])
        self.operands: tuple[list[Value], list[Value], list[Value]] = ([], [], [])

    def take(self, group: int, outer: Value, name: str) -> Value:
        """An input for `outer`: its own type, or that of one slice."""
        type_ = outer.type.with_shape(outer.shape[1:]) if group == 1 else outer.type
        inner = self.graph.input(type_, name)
        self.groups[group].append(inner)
        self.operands[group].append(outer)
        return inner

    def finish(self, outputs: Sequence[Value]) -> tuple[Graph, list[Value]]:
        """The graph without unused slices and captured inputs, and the operands that are left."""
        needed = set(subgraph(outputs))
        g, operands = self.graph, list(self.operands[0])
        for group in (1, 2):
            used = [v.node in needed for v in self.groups[group]]
            operands += chosen(self.operands[group], used)
            self.groups[group][:] = chosen(self.groups[group], used)
        g.inputs = [v for group in self.groups for v in group]
        ends = {v.node for v in g.inputs}
        g.nodes = [n for n in g.nodes if n in ends or (n in needed and n.op.name != "input")]
        g.outputs = list(outputs)
        return g, operands


def scan_vjp(op: Scan, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
    saved: Saved = kept(op)
    n, m, graph = op.carries, op.xs, outputs[0].node.graph
    originals = len(saved.body.outputs)
    if any(g is not None for g in cotangents[originals:]):
        raise VerifyError("scan: a cotangent for what its own reverse mode saved")
    body = _Body(f"{saved.body.name}_backward")
    g = body.graph
    # the cotangents of the carries, and of what the steps returned
    given: list[Value] = []
    for v, ct in zip(saved.body.outputs[:n], cotangents, strict=False):
        if is_float(v):
            given.append(body.take(0, F.full(graph, v.shape, 0, v.dtype) if ct is None else ct, "d_carry"))
    flows = len(given)
    for v, ct in zip(saved.body.outputs[n:], cotangents[n:originals], strict=True):
        if is_float(v):
            given.append(F.full(g, v.shape, 0, v.dtype) if ct is None else body.take(1, ct, "d_y"))
    env = _residuals(saved, body, inputs, iter(outputs[originals:]), n, m)
    feeds = dict(zip(saved.backward.inputs, (*(env[v] for v in saved.residuals), *given), strict=True))
    floats = [i for i, v in enumerate(saved.body.inputs) if is_float(v)]
    grads = dict(zip(floats, saved.backward.outputs, strict=True))
    grads = {i: v for i, v in grads.items() if i < n or (wanted[i] and not is_zero(v))}
    saved.backward.copy_into(g, feeds, subgraph(list(grads.values())))
    found = {i: feeds[v] for i, v in grads.items()}
    sums = [i for i in found if i >= n + m]
    for i in sums:
        total = body.take(0, F.full(graph, inputs[i].shape, 0, inputs[i].dtype), "sum")
        found[i] = F.add(total, found[i])
    slices = [i for i in found if n <= i < n + m]
    made, operands = body.finish([*(found[i] for i in found if i < n), *(found[i] for i in sums), *(found[i] for i in slices)])
    if not made.outputs:
        return (None,) * len(inputs)
    back = dataclasses.replace(op, body=made, carries=flows + len(sums), xs=len(body.groups[1]), reverse=not op.reverse)
    results = iter(add_node(graph, back, operands))
    order = [*(i for i in found if i < n), *sums, *slices]
    by_input = {i: next(results) for i in order}
    return tuple(by_input.get(i) if w else None for i, w in enumerate(wanted))


def _residuals(saved: Saved, body: _Body, inputs: Values, stacks: Iterator[Value], n: int, m: int) -> dict[Value, Value]:
    """Where the backward step finds every residual of the forward step."""
    env: dict[Value, Value] = {}
    forward = saved.forward
    for i, v in enumerate(forward.inputs[n:]):
        env[v] = body.take(1 if i < m else 2, inputs[n + i], v.name)
    for v, stacked in zip(saved.residuals, saved.stacked, strict=True):
        if stacked:
            stack = next(stacks)
            if v not in env:
                env[v] = body.take(1, stack, "saved")
        elif v not in env:
            forward.copy_into(body.graph, env, subgraph([v]))
    return env


def jvp_of_step(body: Graph, carries: int, tangents: MaybeValues) -> tuple[Graph, tuple[bool, ...], list[bool]]:
    """A loop's body with tangents, which of its outputs move, and which of its inputs: a carry that moves once moves in later steps."""
    active = [t is not None for t in tangents]
    while True:
        made, moved = transforms().jvp_graph(body, active)
        grown = [a or (i < carries and moved[i]) for i, a in enumerate(active)]
        if grown == active:
            return made, moved, active
        active = grown


def scan_jvp(op: Scan, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues]:
    n, m = op.carries, op.xs
    body, moved, active = jvp_of_step(op.body, n, tangents)
    values, count = len(op.body.inputs), len(op.body.outputs)
    graph = inputs[0].node.graph
    # inputs of `body`: all of op.body's, then the tangents of the active ones; sorted into carries, slices, captured
    slot = [i for i, a in enumerate(active) if a]
    order = [*range(n), *(values + k for k, i in enumerate(slot) if i < n)]
    order += [*range(n, n + m), *(values + k for k, i in enumerate(slot) if n <= i < n + m)]
    order += [*range(n + m, values), *(values + k for k, i in enumerate(slot) if i >= n + m)]
    given = [*inputs, *(tangents[i] if tangents[i] is not None else F.full(graph, inputs[i].shape, 0, inputs[i].dtype) for i in slot)]
    # outputs: all of op.body's, then the tangents of the moved ones; an active carry that does not move any more keeps a zero tangent
    tangent = dict(zip([k for k, mv in enumerate(moved) if mv], body.outputs[count:], strict=True))
    made, env = body.clone()
    heads = [i for i in slot if i < n]
    carried = [env[tangent[i]] if i in tangent else F.full(made, body.outputs[i].shape, 0, body.outputs[i].dtype) for i in heads]
    tails = [k for k in tangent if k >= n]
    results = [env[v] for v in body.outputs[:count]]
    made.outputs = [*results[:n], *carried, *results[n:], *(env[tangent[k]] for k in tails)]
    made.inputs = [made.inputs[k] for k in order]
    both = dataclasses.replace(op, body=made, carries=n + len(heads), xs=m + sum(n <= i < n + m for i in slot))
    out = add_node(graph, both, [given[k] for k in order])
    first, rest = out[: n + len(heads)], out[n + len(heads) :]
    pushed: dict[int, Value] = {**dict(zip(heads, first[n:], strict=True)), **dict(zip(tails, rest[count - n :], strict=True))}
    return (*first[:n], *rest[: count - n]), tuple(pushed.get(k) for k in range(count))


def scan_batch(op: Scan, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
    n, m, graph = op.carries, op.xs, inputs[0].node.graph
    flags = list(batched)
    while True:
        body, out = transforms().batch_graph(op.body, flags, size, [*flags[:n], *[False] * (len(op.body.outputs) - n)])
        if list(out[:n]) == flags[:n]:
            break
        flags[:n] = [a or b for a, b in zip(flags[:n], out[:n], strict=True)]
    operands = [F.broadcast_batch(v, batched[i], size) if i < n and flags[i] else v for i, v in enumerate(inputs)]
    operands[n : n + m] = [_swapped(v) if b else v for v, b in zip(operands[n : n + m], flags[n : n + m], strict=True)]
    made = add_node(graph, dataclasses.replace(op, body=body), operands)
    stacked = [_swapped(v) if b else F.broadcast_batch(v, False, size) for v, b in zip(made[n:], out[n:], strict=True)]
    return (*(F.broadcast_batch(v, b, size) for v, b in zip(made[:n], out[:n], strict=True)), *stacked)


def _swapped(v: Value) -> Value:
    """The batch axis and the axis of the steps exchanged: a view."""
    return F.transpose(v, (1, 0, *range(2, len(v.shape))))
