"""Derivatives and batching of cond and while. See `control_rules.py`."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import UnsupportedError
from ...ir.graph import Graph, Value, inline, subgraph
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, MaybeValues, Op, Values
from .bodies import transforms
from .rules import Saved, add_node, chosen, is_float, is_zero, jvp_of_step, keep, kept, split

if TYPE_CHECKING:
    from .flow import Cond, While


# --- cond -------------------------------------------------------------------------------------------------------------------------------
def cond_saving(op: Cond) -> Op:
    """Both branches return what either of them saves; the one that does not run gives zeros."""
    a, b = split(op.then), split(op.other)
    graphs = []
    for mine, other, first in ((a, b, True), (b, a, False)):
        made, env = mine.forward.clone()
        own = [env[v] for v in chosen(mine.residuals, mine.stacked)]
        blank = [F.full(made, v.shape, 0, v.dtype) for v in chosen(other.residuals, other.stacked)]
        made.outputs = [*(env[v] for v in mine.forward.outputs[: len(mine.body.outputs)]), *(own + blank if first else blank + own)]
        graphs.append(made)
    return keep(dataclasses.replace(op, then=graphs[0], other=graphs[1]), (a, b))  # type: ignore[no-any-return]


def cond_vjp(op: Cond, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
    sides: tuple[Saved, Saved] = kept(op)
    graph, count = outputs[0].node.graph, len(sides[0].body.outputs)
    floats = [i for i, v in enumerate(inputs[1:], 1) if is_float(v)]
    grads = [dict(zip(floats, s.backward.outputs, strict=True)) for s in sides]
    asked = [i for i in floats if wanted[i] and not all(is_zero(side[i]) for side in grads)]
    if not asked:
        return (None,) * len(inputs)
    saves = iter(outputs[count:])
    operands = [*inputs[1:]]
    places = []
    for s in sides:
        where = {v: i for i, v in enumerate(s.forward.inputs)}
        spots = []
        for v, stacked in zip(s.residuals, s.stacked, strict=True):
            spots.append(len(operands) if stacked else where[v])
            operands += [next(saves)] if stacked else []
        places.append(spots)
    given = [k for k, v in enumerate(sides[0].body.outputs) if is_float(v)]
    start = len(operands)
    zeros = {k: F.full(graph, outputs[k].shape, 0, outputs[k].dtype) for k in given if cotangents[k] is None}
    operands += [zeros.get(k) or cotangents[k] for k in given]  # type: ignore[misc]
    graphs = []
    for s, spots, side in zip(sides, places, grads, strict=True):
        made = Graph(s.backward.name)
        ins = [made.input(v.type, f"x{i}") for i, v in enumerate(operands)]
        env = dict(zip(s.backward.inputs, (*(ins[i] for i in spots), *ins[start:]), strict=True))
        s.backward.copy_into(made, env, subgraph([side[i] for i in asked]))
        made.outputs = [env[side[i]] for i in asked]
        graphs.append(made)
    back = dataclasses.replace(op, then=graphs[0], other=graphs[1])
    found = dict(zip(asked, add_node(graph, back, [inputs[0], *operands]), strict=True))
    return tuple(found.get(i) for i in range(len(inputs)))


def cond_jvp(op: Cond, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues]:
    active = [t is not None for t in tangents[1:]]
    pushed = [transforms().jvp_graph(g, active) for g in (op.then, op.other)]
    count = len(op.then.outputs)
    moves = [k for k in range(count) if any(moved[k] for _, moved in pushed)]
    graphs = []
    for body, moved in pushed:
        made, env = body.clone()
        own = dict(zip([k for k in range(count) if moved[k]], body.outputs[count:], strict=True))
        extra = [env[own[k]] if k in own else F.full(made, body.outputs[k].shape, 0, body.outputs[k].dtype) for k in moves]
        made.outputs = [*(env[v] for v in body.outputs[:count]), *extra]
        graphs.append(made)
    both = dataclasses.replace(op, then=graphs[0], other=graphs[1])
    out = add_node(inputs[0].node.graph, both, [*inputs, *(t for t in tangents[1:] if t is not None)])
    found = dict(zip(moves, out[count:], strict=True))
    return out[:count], tuple(found.get(k) for k in range(count))


def cond_batch(op: Cond, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
    graph, flags = inputs[0].node.graph, batched[1:]
    every = [True] * len(op.then.outputs)
    graphs = [transforms().batch_graph(g, flags, size, every)[0] for g in (op.then, op.other)]
    if not batched[0]:
        return add_node(graph, dataclasses.replace(op, then=graphs[0], other=graphs[1]), inputs)
    # some cases go one way and some the other: both are computed
    a, b = (_side(op, g, graph, p, inputs[1:], flags, size) for g, p in zip(graphs, (inputs[0], F.logical_not(inputs[0])), strict=True))
    return tuple(_choose(inputs[0], x, y) for x, y in zip(a, b, strict=True))


def _side(op: Cond, body: Graph, graph: Graph, taken: Value, operands: Values, flags: Sequence[bool], size: Dim) -> Values:
    """One batched branch. The cases that do not take it must not divide by zero in it, nor bring NaN into derivatives: they get the
    operands of one that does, and where none does nothing runs."""
    if is_tame(body) or not isinstance(size, int) or size == 0:
        return inline(body, graph, operands)
    idle = Graph("idle")
    for v in body.inputs:
        idle.input(v.type, v.name)
    idle.outputs = [F.full(idle, v.shape, 0, v.dtype) for v in body.outputs]
    some = REGISTRY["any"](axes=(0,), keepdims=False)(taken)  # type: ignore[call-arg]
    return add_node(graph, dataclasses.replace(op, then=body, other=idle), [some, *_sound(taken, operands, flags)])


TAME = frozenset((
    "add", "sub", "mul", "neg", "abs", "sign", "maximum", "minimum", "where", "cast", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "logical_and", "logical_or", "logical_not", "logical_xor", "sum", "any", "all", "relu", "tanh", "sigmoid",
    "sin", "cos", "square", "matmul", "iota", "constant", "input",
))


def is_tame(body: Graph) -> bool:
    """Nothing in it can fail, or has a derivative that is not a number, for any finite operands."""
    return all(n.op.traits.view or n.op.name in TAME for n in body.nodes)


def _sound(active: Value, values: Sequence[Value], flags: Sequence[bool]) -> list[Value]:
    """Batched values with those of the first active case in place of the inactive ones'."""
    first = REGISTRY["arg_max"](axis=0)(F.cast(active, dt.i32))  # type: ignore[call-arg]
    return [_choose(active, v, REGISTRY["gather"](axis=0)(v, first)) if f else v  # type: ignore[call-arg]
            for v, f in zip(values, flags, strict=True)]


def _choose(predicate: Value, x: Value, y: Value) -> Value:
    """x in the cases where the predicate is true, else y."""
    return F.where(F.reshape(predicate, (*predicate.shape, *[1] * (len(x.shape) - 1))), x, y)


# --- while ------------------------------------------------------------------------------------------------------------------------------
def while_as_scan(op: While, values: Values) -> Value | Values:
    if op.max_iterations is None:
        raise UnsupportedError("while: only a loop with max_iterations is a scan")
    n = op.carries
    step = Graph(op.body.name)
    going = step.input(TensorType(dt.bool_, ()), "going")
    ins = [step.input(v.type, v.name) for v in op.body.inputs]
    on = F.logical_and(going, inline(op.test, step, ins)[0])
    still = Graph("still")
    still.outputs = [still.input(v.type, v.name) for v in op.body.inputs][:n]
    carries = add_node(step, REGISTRY["cond"](then=op.body, other=still), [on, *ins])  # type: ignore[call-arg]
    step.outputs = [on, *carries]
    graph = values[0].node.graph
    scan = REGISTRY["scan"](body=step, carries=n + 1, xs=0, length=op.max_iterations)  # type: ignore[call-arg]
    made = add_node(graph, scan, [F.scalar(graph, True, dt.bool_), *values])[1:]
    return made[0] if n == 1 else made


def while_jvp(op: While, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues]:
    n = op.carries
    body, moved, active = jvp_of_step(op.body, n, tangents)
    values, graph = len(op.body.inputs), inputs[0].node.graph
    slot = [i for i, a in enumerate(active) if a]
    heads = [i for i in slot if i < n]
    order = [*range(n), *(values + k for k, i in enumerate(slot) if i < n)]
    order += [*range(n, values), *(values + k for k, i in enumerate(slot) if i >= n)]
    given = [*inputs, *(tangents[i] if tangents[i] is not None else F.full(graph, inputs[i].shape, 0, inputs[i].dtype) for i in slot)]
    tangent = dict(zip([k for k, mv in enumerate(moved) if mv], body.outputs[n:], strict=True))
    made, env = body.clone()
    carried = [env[tangent[i]] if i in tangent else F.full(made, body.outputs[i].shape, 0, body.outputs[i].dtype) for i in heads]
    made.outputs = [*(env[v] for v in body.outputs[:n]), *carried]
    made.inputs = [made.inputs[k] for k in order]
    test = Graph(op.test.name)
    ins = {k: test.input(v.type, f"x{k}") for k, v in zip(order, made.inputs, strict=True)}
    test.outputs = list(inline(op.test, test, [ins[k] for k in range(values)]))
    both = dataclasses.replace(op, test=test, body=made, carries=n + len(heads))
    out = add_node(graph, both, [given[k] for k in order])
    found = dict(zip(heads, out[n:], strict=True))
    return out[:n], tuple(found.get(k) for k in range(n))


def _masked(body: Graph, each: Graph, flags: Sequence[bool], size: Dim) -> Graph:
    """A batched step that changes only the cases that go on; the others run on the values of one that does (see `_side`)."""
    made = Graph(body.name)
    ins = [made.input(v.type, v.name) for v in body.inputs]
    (going,) = inline(each, made, ins)
    given = ins if is_tame(body) or not isinstance(size, int) or size == 0 else _sound(going, ins, flags)
    made.outputs = [_choose(going, new, old) for new, old in zip(inline(body, made, given), ins, strict=False)]
    return made


def while_batch(op: While, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
    n, graph = op.carries, inputs[0].node.graph
    flags = list(batched)
    while True:
        body, out = transforms().batch_graph(op.body, flags, size, flags[:n])
        if list(out) == flags[:n]:
            break
        flags[:n] = [a or b for a, b in zip(flags[:n], out, strict=True)]
    test, (varies,) = transforms().batch_graph(op.test, flags, size)
    if varies:  # cases stop at different times: go on while any does, and change only those that do
        flags[:n] = [True] * n
        body, _ = transforms().batch_graph(op.body, flags, size, flags[:n])
        each, _ = transforms().batch_graph(op.test, flags, size, [True])
        test, env = each.clone()
        test.outputs = [REGISTRY["any"](axes=(0,), keepdims=False)(env[each.outputs[0]])]  # type: ignore[call-arg]
        body = _masked(body, each, flags, size)
    operands = [F.broadcast_batch(v, batched[i], size) if i < n and flags[i] else v for i, v in enumerate(inputs)]
    made = add_node(graph, dataclasses.replace(op, test=test, body=body), operands)
    return tuple(F.broadcast_batch(v, f, size) for v, f in zip(made, flags, strict=False))
