"""Memory that a backward pass gives back while it runs: a saved tensor goes after its last reader.

Its schedule runs in parts. Between two of them the generated function drops the tensors that no later launch reads, so that what nobody
else holds (`retain_graph`, hooks, a result) returns to its allocator before new gradients are written.
"""
from __future__ import annotations

from typing import Any

from ..core.dims import evaluate
from ..kernels.launch import roots
from ..plan.order import typical
from .fragment import Argument, Fragment, ViewOf

LEAST = 8 << 20  # bytes worth a part of their own
PARTS = 32


def parts(fragment: Fragment, session: Any) -> list[tuple[int, list[int]]]:
    """The end of each part of the schedule, and the arguments that go behind it."""
    program = session.executable.program
    if program.block or not fragment.released:
        return []
    shown = {b.arg for r in fragment.results for b in (r.base if isinstance(r, ViewOf) else r,) if isinstance(b, Argument)}
    shown |= {arg for arg, _ in fragment.copies} | {fragment.sources[t.donor].arg for t in fragment.targets if t.donor is not None}
    numbers = {b: k for k, b in enumerate(program.inputs)}
    last: dict[int, int] = {}
    for step, launch in enumerate(program.launches):
        for b in launch.reads:
            last |= {numbers[r]: step for r in roots(b) if r in numbers}
    env = typical(session.interface.symbols)
    dropped = [(last.get(k, 0), s.arg, evaluate(program.inputs[k].nbytes, env)) for k, s in enumerate(fragment.sources)
               if s.arg in fragment.released and s.arg not in shown]
    enough = max(LEAST, sum(n for _, _, n in dropped) // PARTS)
    found: list[tuple[int, list[int]]] = []
    waiting: list[int] = []
    room = 0
    for step, arg, nbytes in sorted(dropped):
        waiting.append(arg)
        room += nbytes
        if room >= enough and step + 1 < len(program.launches):
            found.append((step + 1, waiting))
            waiting, room = [], 0
    return [*found, (len(program.launches), [])] if found else []
