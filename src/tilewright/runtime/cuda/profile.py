"""Measured runs on a GPU: the time of every kind of launch in a chain of its own, and of the whole."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.dtypes import i32, i64, u32, u64
from ...core.errors import InputError
from ...kernels.launch import Word
from ...tile.ir import ViewType
from ..cost import LIMITS, lint
from ..profile import Profile, one_after_another
from . import launch as cuda_launch
from .executable import Schedule, Step
from .report import describe_launches, launch_costs

if TYPE_CHECKING:
    from .session import CudaSession
    from .walk import Flow

COPIES = 8  # launches of a chain, at least
INDICES = (i32, i64, u32, u64)


def measure(session: CudaSession, repeat: int) -> Profile:
    """Medians of `repeat` runs on the memory of the session's last call, whose results are not kept. Launches of one kernel that agree in
    all sizes are timed as one chain, each with its own operands: repeating one of them would find its matrix in the cache. A launch in a
    loop has one row, with the time of one step. Launches overlap, so the total is less than their sum."""
    if repeat < 1:
        raise InputError(f"profile: repeat must be at least 1, got {repeat}")
    env = session.last_env() or {}
    whole = session.schedule(env)
    alike: dict[tuple[Any, ...], list[Step]] = {}
    for step in whole.steps:
        alike.setdefault(_kind(step), []).append(step)
    stream = session.last_stream
    times = {kind: _own_time(whole, steps, repeat, stream) for kind, steps in alike.items()}
    spent = {s.launch: times[_kind(s)] for s in whole.steps}  # one of every step of a loop
    costs = launch_costs(session, env)
    rows = [{**row, "us": spent[x], **costs[x].columns(spent[x])}
            for x, row in zip(session.executable.launches, describe_launches(session, env)[0], strict=True) if x in spent]  # fmt: skip
    findings = lint(((x.name, costs[x], us) for x, us in spent.items()), LIMITS["cuda"])
    return Profile(session.name, dict(env), rows, one_after_another(rows), _timed(whole.run, repeat, stream), findings)


def _kind(step: Step) -> tuple[Any, ...]:
    """Launches that differ in nothing but where their operands lie: sizes are words of a launch."""
    sizes = tuple(int(step.words[i]) for i, a in enumerate(step.arguments) if isinstance(a, Word))
    return step.launch.kernel.name, step.grid, step.shared, sizes


def _own_time(whole: Schedule | Flow, steps: list[Step], repeat: int, stream: int) -> float:
    """A kernel that is led by indices must find those of a call: other values have long taken their place in the arena, which are no
    places of anything. The launches before it run once, then it is timed alone.

    Blocks that wait for their turn (attention's backward pass) find it in counters that a launch before clears: run again without that
    one they would wait for ever. Both are timed, and that one's time is taken off."""
    if any(isinstance(p.type, ViewType) and p.type.dtype in INDICES for p in steps[0].launch.kernel.params):
        steps = steps[:1]
        before = whole.steps[: next(i for i, s in enumerate(whole.steps) if s is steps[0])]
        if before:
            _again(whole, before).run(stream)
    clears = [_clearing(whole, s) for s in steps]
    if any(c is None for c in clears):
        return _chain(whole, steps, repeat, stream)
    both = _chain(whole, [x for pair in zip(clears, steps, strict=True) for x in pair if x is not None], repeat, stream) * 2
    return max(both - _chain(whole, [c for c in clears if c is not None], repeat, stream), 0.0)


def _clearing(whole: Schedule | Flow, step: Step) -> Step | None:
    """The launch that clears the counters of this one, if it has some."""
    if getattr(step.launch.kernel, "ticket", None) is None:
        return None
    counters = {b for b in step.launch.writes if b.name.endswith(".turns")}
    before = whole.steps[: next(i for i, s in enumerate(whole.steps) if s is step)]
    return next(s for s in reversed(before) if counters & set(s.launch.writes))


def _chain(whole: Schedule | Flow, steps: list[Step], repeat: int, stream: int) -> float:
    times = -(-COPIES // len(steps))
    return _timed(_again(whole, steps * times).run, repeat, stream) / (len(steps) * times)


def _again(whole: Schedule | Flow, steps: list[Step]) -> Schedule:
    """These steps, on the memory and the operands of the whole."""
    copies = [dataclasses.replace(s, node=None, launched=None, config=None, on=None, alone=()) for s in steps]
    graph = Schedule(whole.env, whole.arena, copies, len(whole.addresses))
    graph.bind(list(whole.addresses))
    return graph


def _timed(run: Callable[[int], None], repeat: int, stream: int) -> float:
    """Median microseconds of a run."""
    taken = []
    for i in range(repeat + 1):
        start, stop = (cuda_launch.Event(cuda_launch.TIMES) for _ in range(2))
        start.record(stream)
        run(stream)
        stop.record(stream)
        if i:  # the first warms up
            taken.append(cuda_launch.elapsed_us(start, stop))
    return float(statistics.median(taken))
