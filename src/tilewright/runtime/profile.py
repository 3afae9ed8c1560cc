"""Measured runs: the time of every launch on every thread, as rows, as text and as a trace for Perfetto or chrome://tracing."""
from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from os import PathLike
from threading import Timer
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dims import evaluate
from ..core.errors import InputError, UnsupportedError
from ..core.files import write_file
from ..plan.control import is_unbounded
from .arguments import Bound, bind
from .cost import LIMITS, Finding, lint
from .native import layout as L

if TYPE_CHECKING:
    from .executable import Instance
    from .session import Session

LIMIT_S = 1.0  # seconds that a run on zeros may take: where data alone ends a loop, it may not end
BEATEN = 1.15  # a launch this much faster than its roofline says that the machine was busy when it was measured


@dataclass(eq=False)
class Profile:
    """`rows`: one dict per launch (name, microseconds, flops, bytes, predicted time, share of the roofline, …). `findings`: the launches
    that matter and are far from their roofline, with the reason. `events`: what each thread did in the run kept for the trace."""

    name: str
    env: dict[str, int]
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(repr=False)
    total_us: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    threads: int = 0  # threads of the host; 0 on a GPU
    preempted: float = 0.0  # times a run that other processes took a CPU from it

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace in Chrome's format."""
        who = [f"thread {t}" for t in range(self.threads)] or ["GPU"]
        names = [{"ph": "M", "pid": 1, "tid": t, "name": "thread_name", "args": {"name": name}} for t, name in enumerate(who)]
        process = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"tilewright {self.name}"}}
        text = json.dumps({"traceEvents": [process, *names, *self.events], "displayTimeUnit": "ns"})
        write_file(path, text.encode(), subject="profile")

    def __str__(self) -> str:
        from .report import launch_table

        shape = ", ".join(f"{k} = {v}" for k, v in self.env.items())
        head = f"{self.name}: {self.total_us:.1f} us"
        head += f" on {self.threads} thread{'s' if self.threads > 1 else ''}" if self.threads else ""
        head += f" at {shape}" if shape else ""
        head += f"; {len(self.rows)} launches"
        head += f"; the machine is busy: others took a CPU {self.preempted:.0f} times a run" if self.preempted >= 1 else ""
        return "\n".join([head, str(launch_table(self.rows)), *(f"slow: {x}" for x in self.findings)])


def one_after_another(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of launches of which only the times are known."""
    starts = accumulate((row["us"] for row in rows), initial=0.0)
    return [_event(row, 0, start, row["us"]) for row, start in zip(rows, starts, strict=False)]


def _event(row: dict[str, Any], thread: int, start: float, us: float) -> dict[str, Any]:
    shown = {key: row[key] for key in ("launch", "kernel", "grid", "flops", "bytes")}
    return {"name": row["name"], "cat": "kernel", "ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": us, "args": shown}


def describe(session: Session, env: dict[str, int]) -> dict[str, Any]:
    """What a report says of a program on a CPU beside what it says of all: the times of a run on zeros, which are valid as numbers, masks
    and indices alike; barriers and scratch memory."""
    executable = session.executable
    assert executable is not None
    arrays = [np.zeros(tuple(evaluate(d, env) for d in t.shape), t.dtype.np) for t in session.interface.inputs]
    profile = measure_bound(session, Bound([a.ctypes.data for a in arrays], list(arrays), dict(env)), 3, zeros=True)
    workspace = session.take()
    instance = workspace.instance(tuple(env[s.name] for s in session.interface.symbols))
    session.give(workspace)
    return {
        "total_us": profile.total_us,
        "launches": profile.rows,
        "lint": [str(x) for x in profile.findings],
        "kernels": {symbol: {} for symbol in executable.code.symbols},
        "compiled_kernels": executable.code.compiled,
        "barriers": sum(r["barrier"] for r in profile.rows),
        "scratch_per_thread": instance.scratch,
        "notes": [session.pool.note] if session.pool.note else [],
    }


def measure(session: Session, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, repeat: int = 5) -> Profile:
    """Run `repeat` times with a clock around every kernel; times are medians, the trace is the fastest run."""
    if session.executable is None:
        raise UnsupportedError("profile: the reference target has no kernels to measure; compile with target='cpu'")
    if repeat < 1:
        raise InputError(f"profile: repeat must be at least 1, got {repeat}")
    bound = bind(session.interface.input_names, session.interface.inputs, session.model.signature.flatten(args, kwargs))
    return measure_bound(session, bound, repeat)


def measure_bound(session: Session, bound: Bound, repeat: int, *, zeros: bool = False) -> Profile:
    executable, interface = session.executable, session.interface
    assert executable is not None
    workspace = session.take()
    key = tuple(bound.env[s.name] for s in interface.symbols)
    instance, job = workspace.prepared(key)
    outputs = [np.empty(tuple(evaluate(d, bound.env) for d in t.shape), t.dtype.np) for t in interface.outputs]
    for i, address in enumerate((*bound.addresses, *(o.ctypes.data for o in outputs))):
        workspace.io[i] = address
    threads, count = int(job[L.JOB_THREADS]), len(instance.thunks)
    runs: list[Any] = []
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    over = np.zeros(1, np.int64)
    timer = Timer(LIMIT_S, over.fill, (1,)) if zeros and any(map(is_unbounded, executable.program.block)) else None
    if timer is not None:
        timer.start()
    for _ in range(repeat + 1):  # the first warms up
        ticks = np.zeros((count, threads, 2), np.int64)
        job[L.JOB_PROFILE] = ticks.ctypes.data
        address = workspace.job(key)
        if timer is not None:
            job[L.JOB_CANCEL] = over.ctypes.data
        try:
            status = session.pool.run(address)
        finally:
            job[L.JOB_PROFILE] = job[L.JOB_CANCEL] = 0
        if over[0]:  # what has run until then is what the report tells
            runs = [ticks[executable.rows]] * 2
            break
        if status:
            session.settle(status, workspace)
        if workspace.errors[:, 0].any():
            if not zeros:
                session.fail(workspace)
            workspace.errors[:] = 0  # zeros may be bad data: a matrix of them is singular
        runs.append(ticks[executable.rows])
    if timer is not None:
        timer.cancel()
    session.give(workspace)
    preempted = (resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - taken) / (repeat + 1)
    per_us = session.pool.ticks_per_us
    spans = [_spans(t) / per_us for t in runs[1:]]
    best = min(runs[1:], key=_total)
    rows = executable.costs(instance)
    for row, us in zip(rows, np.median(spans, axis=0), strict=True):
        row["us"] = float(us)
    findings = judge(session, instance, rows, np.min(spans, axis=0).tolist())
    total = float(np.median([_total(t) for t in runs[1:]])) / per_us
    return Profile(session.name, dict(bound.env), rows, _events(rows, best, per_us), total, findings, threads, preempted)


def _spans(ticks: Any) -> Any:
    """The longest part of each launch: how long the slowest thread worked on it, without the time in which it was still waking up."""
    return (ticks[..., 1] - ticks[..., 0]).max(axis=1, initial=0).astype(float)


def _total(ticks: Any) -> float:
    used = ticks[ticks > 0]
    return float(used.max() - used.min()) if used.size else 0.0


def judge(session: Session, instance: Instance, rows: list[dict[str, Any]], fastest: Sequence[float]) -> list[Finding]:
    """Give every row its predicted time, its bound, and the share of the roofline that its `fastest` run reached; the findings of the lint.
    A launch that is faster than the machine was when it was measured has it measured again."""
    from .cpu_cost import launch_costs
    from .machine import peaks, remeasure

    assert session.executable is not None
    for limits in (peaks, remeasure):
        costs = launch_costs(session.executable, instance, session.model.target, limits(session.threads), limits(1))
        beaten = any(cost.roofline_us > BEATEN * us and us > 1 for cost, us in zip(costs, fastest, strict=True))
        if not beaten:
            break
    for row, cost, us in zip(rows, costs, fastest, strict=True):
        row.update(cost.columns(us))
    return lint(zip((r["name"] for r in rows), costs, fastest, strict=True), LIMITS["cpu"])


def _events(rows: list[dict[str, Any]], ticks: Any, per_us: float) -> list[dict[str, Any]]:
    used = ticks[ticks > 0]
    zero = used.min() if used.size else 0
    return [_event(row, thread, (int(begin) - int(zero)) / per_us, int(end - begin) / per_us)
            for row, parts in zip(rows, ticks, strict=True) for thread, (begin, end) in enumerate(parts) if end]
