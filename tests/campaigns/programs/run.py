"""Runs the calls of a program in Tilewright: jitted, one at a time, or as a graph with chosen passes, threads and dims that vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core.target_spec import TargetSpec
from tilewright.plan import barriers
from tilewright.transform.promote import as_tracer
from tilewright.transform.trace import Traced, trace, tracing

from .program import DYNAMIC, EAGER, JIT, Builder, Call, Program, Val, leaves_of, needed


def _traced(x: Any) -> Any:
    """NumPy's arrays take no traced indices."""
    return as_tracer(x) if tracing() else x


PARTS: dict[str, Any] = {
    "getitem": lambda x, key: _traced(x)[key],
    "scan_carry": lambda *args, **options: tw.scan(*args, **options)[0],
    "scan_stack": lambda *args, **options: tw.scan(*args, **options)[1],
    "while_array": lambda *args, **options: tw.while_loop(*args, **options)[1],
    "wild_take": tw.take,
    "wild_floor_divide": tw.floor_divide,
}


def tilewright_function(name: str) -> Any:
    """`tw.name`; `name[i]` is result i of a function that gives several."""
    if name in PARTS:
        return PARTS[name]
    base, _, index = name.rstrip("]").partition("[")
    function = getattr(tw, base)
    return (lambda *args, **options: function(*args, **options)[int(index)]) if index else function


def function_of(calls: Sequence[Call], inputs: Sequence[Val], outputs: Sequence[Val], env: Mapping[str, int] | None) -> Callable[..., Any]:
    """A Python function of the inputs that does these calls."""
    calls = needed(calls, [v.number for v in outputs])

    def program(*args: Any) -> tuple[Any, ...]:
        values = {v.number: a for v, a in zip(inputs, args, strict=True)}
        for call in calls:
            values[call.out] = call.run(tilewright_function, values, env)
        return tuple(values[v.number] for v in outputs)

    return program


def traced(builder: Builder, outputs: Sequence[Val], *, symbols: bool) -> Traced:
    spec, leaves = leaves_of(builder.inputs)
    return trace(function_of(builder.calls, builder.inputs, outputs, None if symbols else builder.env), spec, leaves, "program")


def run(program: Program, builder: Builder, outputs: Sequence[Val], calls: Sequence[Sequence[Any]], *,
        target: TargetSpec | None = None) -> list[list[Any]]:
    """The results for each list of arguments; only a program whose dims vary takes arguments of several sizes."""
    function = function_of(builder.calls, builder.inputs, outputs, builder.env)
    if program.way == EAGER:
        return [[np.asarray(v) for v in function(*args)] for args in calls]
    if program.way == JIT:
        jitted = tw.jit(function)
        return [list(jitted(*args)) for args in calls]
    with divided(program.threads % 2 == 1):
        return compiled(program, builder, outputs, calls, target)


def compiled(program: Program, builder: Builder, outputs: Sequence[Val], calls: Sequence[Sequence[Any]],
             target: TargetSpec | None) -> list[list[Any]]:
    graph = traced(builder, outputs, symbols=program.way == DYNAMIC).graph
    session = compile_graph(graph, graph_signature(graph), target or target_spec("cpu"), disable=program.off,
                            threads=1 + program.threads % 2, level="strict")  # fmt: skip
    return [several(session, args) for args in calls]


def several(session: Any, args: Sequence[Any]) -> list[Any]:
    """The results of one call, and the same bits from two more."""
    found = [got if isinstance(got, tuple) else (got,) for got in (session(*args) for _ in range(3))]
    for again in found[1:]:
        for a, b in zip(again, found[0], strict=True):
            assert a.tobytes() == b.tobytes(), "another call with the same arguments gives other bits"
    return list(found[0])


@contextmanager
def divided(on: bool) -> Iterator[None]:
    """With `on`, every kernel is worth dividing among threads."""
    before = barriers.SERIAL_NS
    barriers.SERIAL_NS = 0.0 if on else before
    try:
        yield
    finally:
        barriers.SERIAL_NS = before
