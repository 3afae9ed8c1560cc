"""Control flow: `If`, `Loop` and `Scan` as ops of ours where types allow, and run by the host over compiled bodies where they do not."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import FormatError, ShapeError, TilewrightError, UnsupportedError
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from ...ops import functions as F
from .content import Contents
from .importer import Builder, Nothing, Strings
from .model import Item, Sub, items_of
from .registry import Context, NeedsHost, axis_of
from .tables import op

COUNTER, MOST_ROUNDS = 64, 4096  # elements of a counter, and rounds that are counted while the graph is made

class Body:
    """A subgraph as a graph of its own; what it reads of the graphs around it is captured."""

    def __init__(self, builder: Builder, sub: Sub, inputs: Sequence[TensorType | Any]) -> None:
        """`inputs`: a type for each input of the body, or a constant that stands for it."""
        self.outer = builder
        self.inner = Builder(builder.source, sub.graph.name or "body")
        self.captured: dict[Value, Value] = {}
        self.inner.scope.outer = self._capture
        frame = sub.frame
        names = {k: v for k, v in frame.names.items() if k not in {i.name for i in sub.graph.input}}
        own = {o for n in sub.graph.node for o in n.output if o} | {t.name for t in sub.graph.initializer}
        frame = type(frame)({k: v for k, v in names.items() if k not in own}, frame.opsets, frame.attrs, frame.prefix, frame.depth)
        self.inner.constants(sub.graph, frame)
        if len(sub.graph.input) != len(inputs):
            raise ShapeError(f"the body takes {len(sub.graph.input)} inputs and is given {len(inputs)}")
        for info, t in zip(sub.graph.input, inputs, strict=True):
            bound = self.inner.graph.input(t, info.name or "x") if isinstance(t, TensorType) else self.inner.graph.constant(t, "known")
            self.inner.scope.bindings[info.name] = bound
        self.inner.run(items_of(builder.source, sub.graph.node, frame))
        if self.inner.left:
            raise NeedsHost("its body needs data or the host")
        if self.inner.context.seed is not None:
            raise NeedsHost("its body draws random numbers")
        self.outputs: list[Value] = []
        for o in sub.graph.output:
            made = self.inner.scope.get(frame.names.get(o.name, o.name))
            if not isinstance(made, Value):
                raise NeedsHost("its body gives what is no tensor")
            self.outputs.append(made)

    @property
    def graph(self) -> Graph:
        return self.inner.graph

    def known(self, v: Value) -> Any:
        return self.inner.context.known(v)

    def _capture(self, name: str) -> Any:
        return self._inside(self.outer.scope.get(name))

    def _inside(self, b: Any) -> Any:
        if isinstance(b, Nothing):
            return b
        if isinstance(b, Strings):
            raise NeedsHost("its body reads strings")
        if isinstance(b, list):
            return [self._inside(x) for x in b]
        if b in self.captured:  # under another name: a branch that passes on what it is given
            return self.captured[b]
        c = self.outer.context
        found = c.known(b)
        if isinstance(b.op, O.Constant):
            v = self.graph.constant(b.op.data, b.node.name)
        elif found is not None and found.dtype != object and found.size <= 64:
            v = self.graph.constant(found, "known")
        else:
            v = self.graph.input(b.type, "captured")
            self.captured[b] = v
            if found is not None:
                self.inner.context.contents.tell(v, found)
        if b in c.coded:
            self.inner.context.coded[v] = c.coded[b]
        return v


def share(bodies: Sequence[Body], own: int) -> list[Value]:
    """Give every body an input for what any of them captured, behind its first `own` inputs; the captured values."""
    every = list(dict.fromkeys(v for b in bodies for v in b.captured))
    for b in bodies:
        first = b.graph.inputs[:own]
        b.graph.inputs = list(first)
        for v in every:
            if v in b.captured:
                b.graph.inputs.append(b.captured[v])
            else:
                b.graph.input(v.type, "captured")
    return every


def compiled_if(builder: Builder, item: Item, predicate: Value) -> tuple[Value, ...] | None:
    """Both branches as graphs, or None where they cannot be. Sizes of a call may fit one branch only: an error of the other is none."""
    try:
        sides = [Body(builder, item.attrs[k], ()) for k in ("then_branch", "else_branch")]
    except (NeedsHost, TilewrightError):
        return None
    a, b = sides
    if [v.type for v in a.outputs] != [v.type for v in b.outputs] or any(v in s.inner.context.coded for s in sides for v in s.outputs):
        return None
    every = share(sides, 0)
    for s in sides:
        s.graph.outputs = list(s.outputs)
    made = O.Cond(then=a.graph, other=b.graph)(F.reshape(predicate, ()), *every)
    return made if isinstance(made, tuple) else (made,)


@op("Loop")
def loop(c: Context, trip: Value | None, cond: Value | None, *carried: Any, body: Sub) -> Any:
    builder: Builder = c.builder  # type: ignore[attr-defined]
    if not all(isinstance(v, Value) for v in carried) or any(v in c.coded for v in carried):
        raise NeedsHost("it carries what is no tensor")
    first = True if cond is None else c.known(cond)
    always = first is not None and bool(np.all(first))
    n = len(carried)
    types = [v.type for v in carried]
    scans = len(body.graph.output) - 1 - n
    if always:
        made = Body(builder, body, (TensorType(dt.i64, ()), np.array(True), *types))
        known = made.known(made.outputs[0])
        if known is not None and bool(np.all(known)):
            if trip is None:
                raise FormatError("Loop: without a number of rounds, one whose condition stays true does not end")
            (count,) = c.dims(trip, "the number of rounds")
            if isinstance(count, int):
                count = max(count, 0)
            return _loop_as_scan(c, made, count, carried)
        if scans and (rounds := _rounds(c, made, trip, carried)) is not None:
            return _loop_as_scan(c, made, rounds, carried)
    if scans:
        raise NeedsHost("it stops when data says so and stacks what each round gives")
    made = Body(builder, body, (TensorType(dt.i64, ()), TensorType(dt.bool_, ()), *types))
    outs = [F.reshape(made.outputs[0], ()), *made.outputs[1:]]
    if [v.type for v in outs[1:]] != types:
        raise NeedsHost("it carries values that change their types")
    return _loop_as_while(c, made, outs, trip, cond, carried)


def _rounds(c: Context, body: Body, trip: Value | None, carried: Sequence[Value]) -> int | None:
    """How often a loop runs whose condition comes from counters alone, as TensorFlow's loops over time have it; None for any other."""
    number, *inputs = body.graph.inputs[: len(carried) + 1]

    def told(pairs: Iterable[tuple[Value, Any]]) -> dict[Value, Any]:
        return {v: a for v, a in pairs if a is not None and a.dtype != object and a.size <= COUNTER}

    limit = None if trip is None else c.known(trip)
    if trip is not None and (limit is None or limit.dtype == object):
        return None
    most = MOST_ROUNDS if limit is None else min(MOST_ROUNDS, max(int(limit.reshape(-1)[0]), 0))
    captured = told((inner, c.known(outer)) for outer, inner in body.captured.items())
    state = told((v, c.known(x)) for v, x in zip(inputs, carried, strict=True))
    for i in range(most):
        contents = Contents()
        for v, a in (*captured.items(), *state.items(), (number, np.asarray(i, np.int64))):
            contents.tell(v, a)
        go = contents.of(body.outputs[0])
        if go is None or go.dtype == object:
            return None
        if not np.all(go):
            return i + 1
        state = told((v, contents.of(x)) for v, x in zip(inputs, body.outputs[1:], strict=False) if v in state)
    return most if most < MOST_ROUNDS else None


def _loop_as_scan(c: Context, body: Body, count: Dim, carried: Sequence[Value]) -> tuple[Value, ...]:
    n, g = len(carried), body.graph
    if [v.type for v in body.outputs[1 : n + 1]] != [v.type for v in carried]:
        raise NeedsHost("it carries values that change their types")
    number, *rest = g.inputs[: n + 1]
    every = share([body], n + 1)
    g.inputs = [*rest, number, *g.inputs[n + 1 :]]
    g.outputs = list(body.outputs[1:])
    if not g.outputs:
        return ()
    steps = F.iota(c.graph, (count,), 0, dt.i64)
    made = O.Scan(body=g, carries=n, xs=1, length=count)(*carried, steps, *every)
    return made if isinstance(made, tuple) else (made,)


def _loop_as_while(c: Context, body: Body, outs: list[Value], trip: Value | None, cond: Value | None,
                   carried: Sequence[Value]) -> tuple[Value, ...]:
    g, n = body.graph, len(carried)
    limit = F.reshape(F.cast(trip, dt.i64), ()) if trip is not None else None
    every = share([body], n + 2)
    g.outputs = [F.add(g.inputs[0], 1), *outs]
    test = Graph("test")
    for v in g.inputs:
        test.input(v.type, "x")
    ok = test.inputs[1]
    if limit is not None:
        for other in (g, test):
            last = other.input(limit.type, "limit")
        every = [*every, limit]
        ok = F.logical_and(ok, F.less(test.inputs[0], last))
    test.outputs = [ok]
    start = F.reshape(cond, ()) if cond is not None else c.scalar(True, dt.bool_)
    made = O.While(test=test, body=g, carries=n + 2)(c.scalar(0, dt.i64), start, *carried, *every)
    return tuple(made[2:])


@op("Scan", since=9)
def scan(c: Context, *inputs: Any, body: Sub, num_scan_inputs: int, scan_input_axes: Any = None, scan_input_directions: Any = None,
         scan_output_axes: Any = None, scan_output_directions: Any = None) -> Any:
    n = len(inputs) - num_scan_inputs
    state, slices = list(inputs[:n]), list(inputs[n:])
    for k, x in enumerate(slices):
        axis = axis_of(scan_input_axes[k] if scan_input_axes else 0, len(x.shape))
        x = F.transpose(x, (axis, *(a for a in range(len(x.shape)) if a != axis)))
        slices[k] = F.flip(x, (0,)) if scan_input_directions and scan_input_directions[k] else x
    results = _scanned(c, body, state, slices)
    done = list(results[:n])
    for k, y in enumerate(results[n:]):
        if scan_output_directions and scan_output_directions[k]:
            y = F.flip(y, (0,))
        axis = axis_of(scan_output_axes[k] if scan_output_axes else 0, len(y.shape))
        order = [*range(1, len(y.shape))]
        order.insert(axis, 0)
        done.append(F.transpose(y, order))
    return tuple(done)


def _scanned(c: Context, sub: Sub, state: list[Value], slices: list[Value]) -> tuple[Value, ...]:
    builder: Builder = c.builder  # type: ignore[attr-defined]
    length = slices[0].shape[0]
    body = Body(builder, sub, [*(v.type for v in state), *(x.type.with_shape(x.shape[1:]) for x in slices)])
    every = share([body], len(state) + len(slices))
    body.graph.outputs = list(body.outputs)
    made = O.Scan(body=body.graph, carries=len(state), xs=len(slices), length=length)(*state, *slices, *every)
    return made if isinstance(made, tuple) else (made,)


@op("Scan", until=8)
def scan8(c: Context, lengths: Value | None, *inputs: Value, body: Sub, num_scan_inputs: int, directions: Any = None) -> Any:
    """Opset 8: every input has a batch axis in front, and sequences may have lengths of their own."""
    if lengths is not None:
        raise UnsupportedError("Scan of opset 8 with sequence_lens is not supported")
    n, batch = len(inputs) - num_scan_inputs, inputs[0].shape[0]
    if not isinstance(batch, int):
        raise UnsupportedError("Scan of opset 8 needs a known batch size")
    rows = []
    for b in range(batch):
        one = [F.reshape(F.slice_(x, 0, b, 1), x.shape[1:]) for x in inputs]
        slices = [F.flip(x, (0,)) if directions and directions[k] else x for k, x in enumerate(one[n:])]
        rows.append(_scanned(c, body, one[:n], slices))
    return tuple(F.concat([F.reshape(v, (1, *v.shape)) for v in column], 0) for column in zip(*rows, strict=True))
