"""Functions of `tw.` (which work on traced arrays) in graphs that are built from values."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.graph import Value
from ...transform import lib as _lib  # noqa: F401  gives tracers their operators
from ...transform.trace import Trace, entered
from .registry import Context


def traced_call(c: Context, fn: Callable[..., Any], *values: Value) -> Any:
    """fn of values of this graph: what it does is appended to the graph."""
    trace = Trace(c.graph.name)
    trace.graph = c.graph
    with entered(trace):
        out = fn(*(trace.wrap(v) for v in values))
        return tuple(trace.lift(x) for x in out) if isinstance(out, tuple) else trace.lift(out)
