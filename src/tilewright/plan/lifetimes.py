"""When each temp buffer is alive, and which buffers share storage because a launch may run in place.

Time is the index of a launch. A buffer lives from its first write to its last read or write, both included. Liveness follows the
launches alone: an earlier sharing decision never changes who counts as the last reader.
"""
from __future__ import annotations

from collections.abc import Sequence

from ..core.dims import Dim, at_least
from ..core.errors import VerifyError
from ..core.records import dataclass, field
from ..kernels.launch import Buffer, Launch, Pointer, Program, roots
from .control import Schedule, across


@dataclass(eq=False)
class Interval:
    """One piece of storage: the buffers that live in it one after another, and the steps from `first` to `last`."""

    buffers: list[Buffer]
    first: int
    last: int
    sizes: list[Dim] = field(default_factory=list)  # the storage must hold the largest of these
    loops: list[tuple[int, int]] = field(default_factory=list)  # launches of loops through which the content must stay

    def __repr__(self) -> str:
        return f"{'+'.join(b.name for b in self.buffers)}[{self.first}..{self.last}]"


def lifetimes(program: Program, schedule: Schedule | None = None) -> list[Interval]:
    """One interval per temp buffer that some launch touches, in order of first write."""
    found: dict[Buffer, Interval] = {}
    steps: dict[Buffer, list[int]] = {}
    opening: dict[int, list[Buffer]] = {}
    for loop, first, stop in schedule.spans if schedule is not None else ():
        if stop > first:
            opening.setdefault(first, []).extend(b for c in loop.carried for b in roots(c))
    for step, launch in enumerate(program.launches):
        for b in opening.get(step, ()):  # in the first iteration the other buffer of a carry is not read, though it looks so
            found.setdefault(b, Interval([b], step, step, [b.nbytes])).last = step
        for b in _temps(launch.reads):
            if b not in found:
                raise VerifyError(f"plan: launch {step} ({launch.name}) reads {b.name}, which no earlier launch has written")
            found[b].last = step
            steps.setdefault(b, []).append(step)
        for b in launch.writes:
            if any(r.kind in ("input", "const") for r in roots(b)):
                raise VerifyError(f"plan: launch {step} ({launch.name}) writes {b.name}, which is {b.kind}")
        for b in _temps(launch.writes):
            found.setdefault(b, Interval([b], step, step, [b.nbytes])).last = step
            steps.setdefault(b, []).append(step)
    if schedule is not None:
        for window, step in schedule.reads:
            for b in _temps((window,)):
                at = min(step, len(program.launches) - 1)
                found[b].last = max(found[b].last, at)
                steps[b].append(at)
        for b, loops in across(program, schedule, steps).items():
            interval = found[b]
            interval.first = min(interval.first, *(first for first, _ in loops))
            interval.last = max(interval.last, *(last for _, last in loops))
            interval.loops = loops
    return list(found.values())


def _temps(buffers: Sequence[Buffer]) -> list[Buffer]:
    return [r for b in buffers for r in roots(b) if r.kind == "temp"]


def _views(launch: Launch, buffer: Buffer) -> int:
    """How many views of a buffer a launch reads or writes: a second one (x + x.T) may read elements that the first has overwritten."""
    return max(sum(isinstance(a, Pointer) and a.buffer is buffer for a in way.arguments) for way in launch.ways)


def share_inplace(program: Program, plain: list[Interval]) -> list[Interval]:
    """The intervals with in-place pairs merged, decided in one pass over the launches.

    A pair (read, written) is taken when both are temps, the read buffer is last used and the written one first used at this
    launch, and the storage provably holds the result. Each buffer joins at most once on either side.
    """
    by_buffer = {i.buffers[0]: i for i in plain}
    merged: dict[Interval, Interval] = {}  # an interval of `plain` -> the group that it joined
    groups = {i: Interval(list(i.buffers), i.first, i.last, list(i.sizes), list(i.loops)) for i in plain}
    taken: set[Buffer] = set()
    for step, launch in enumerate(program.launches):
        for source, target in launch.inplace:
            a, b = by_buffer.get(source), by_buffer.get(target)
            if a is None or b is None or source is target or source in taken or b in merged or _views(launch, source) > 1:
                continue
            if any(first <= step <= last for x in (a, b) for first, last in x.loops):  # the next iteration still wants it
                continue
            if a.last != step or b.first != step or not at_least(source.nbytes - target.nbytes, 0):
                continue
            group = groups[merged.get(a, a)]
            group.buffers.append(target)
            group.sizes.append(target.nbytes)
            group.last = b.last
            merged[b] = merged.get(a, a)
            taken.add(source)
    return [groups[i] for i in plain if i not in merged]
