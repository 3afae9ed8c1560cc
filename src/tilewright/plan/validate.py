"""Checks of a placement that share no code with the planner: overlap, alignment, bounds. Deliberately naive."""
from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ..core.dims import evaluate
from ..core.validation import Finding, Severity, validator
from ..kernels.launch import Alternating, Buffer, Item, Launch, Loop, Pointer, Program, Sliding, parts, roots
from .plan import Placement


@validator("plan")
def arena_overlap(program: Program, placement: Placement, env: Mapping[str, int]) -> list[Finding]:
    """No two buffers share bytes at a step where the content of both matters."""
    found: list[Finding] = []
    alive: dict[Buffer, set[int]] = {}
    loops, predicates, _ = _control(program.block, 0)
    touched: dict[Buffer, list[int]] = {b: [] for b in placement.offsets}
    for k, launch in enumerate(program.launches):
        for b in {r for x in (*launch.reads, *launch.writes) for r in roots(x)} & touched.keys():
            touched[b].append(k)
    for b, steps in touched.items():
        steps += [min(k, len(program.launches) - 1) for x, k in predicates if b in roots(x)]
        alive[b] = set(range(min(steps), max(steps) + 1))
        for loop, inside in loops:  # inner loops first
            elsewhere = alive[b] - inside or any(b in roots(c) for c in loop.carried)
            if elsewhere and inside.intersection(steps):
                alive[b] |= inside
    allowed = {(k, a, b) for k, launch in enumerate(program.launches) for a, b in launch.inplace}
    buffers = list(placement.offsets)
    ends = {b: placement.offsets[b] + evaluate(b.nbytes, env) for b in buffers}
    for n, a in enumerate(buffers):
        for b in buffers[n + 1 :]:
            a0, b0 = placement.offsets[a], placement.offsets[b]
            if not (a0 < ends[b] and b0 < ends[a]):
                continue
            for step in sorted(alive[a] & alive[b]):
                exact = a0 == b0 and ((step, a, b) in allowed or (step, b, a) in allowed)
                if not exact:
                    found.append(Finding(Severity.ERROR, "plan", f"buffers {a.name} and {b.name} overlap in the arena at launch {step}"))
                    break
    return found


def _control(block: list[Item], start: int) -> tuple[list[tuple[Loop, set[int]]], list[tuple[Buffer, int]], int]:
    """The loops of a block, inner ones first, each with the numbers of its launches; the buffers of predicates with the launch before which
    they are read; and the number after the block."""
    loops: list[tuple[Loop, set[int]]] = []
    predicates: list[tuple[Buffer, int]] = []
    at = start
    for item in block:
        if isinstance(item, Launch):
            at += 1
            continue
        first = at
        for k, part in enumerate(parts(item)):
            if item.predicate is not None and k == isinstance(item, Loop):
                predicates.append((item.predicate.buffer, at))
            inner, more, at = _control(part, at)
            loops += inner
            predicates += more
        if isinstance(item, Loop):
            loops.append((item, set(range(first, at))))
    return loops, predicates, at


@validator("plan")
def arena_bounds(_: Program, placement: Placement, env: Mapping[str, int]) -> list[Finding]:
    """Every buffer is aligned and lies inside the arena."""
    found: list[Finding] = []
    for b, offset in placement.offsets.items():
        if offset % 64:
            found.append(Finding(Severity.ERROR, "plan", f"buffer {b.name} is at offset {offset}, which is not a multiple of 64"))
        if offset < 0 or offset + evaluate(b.nbytes, env) > placement.size:
            found.append(Finding(Severity.ERROR, "plan", f"buffer {b.name} ends beyond the arena of {placement.size} bytes"))
    return found


@validator("plan")
def pointer_bounds(program: Program, _: Placement, env: Mapping[str, int]) -> list[Finding]:
    """Every argument pointer and the bytes it may touch lie inside its buffer, and the launch declares the access."""
    found: list[Finding] = []
    value = cache(lambda d: evaluate(d, env))
    for step, launch in enumerate(program.launches):
        for a in (a for way in launch.ways for a in way.arguments):
            if not isinstance(a, Pointer):
                continue
            extent = value(a.extent)
            for root, offset in _reach(a.buffer, value(a.offset), env):
                size = value(root.nbytes)
                if size and extent and (offset < 0 or offset + extent > size):  # an empty buffer is never touched
                    text = f"launch {step} ({launch.name}) touches bytes {offset}..{offset + extent} of {root.name}, which has {size}"
                    found.append(Finding(Severity.ERROR, "plan", text))
            if not any(a.buffer is b for b in (*launch.reads, *launch.writes)):
                text = f"launch {step} ({launch.name}) has a pointer to {a.buffer.name} but declares no access"
                found.append(Finding(Severity.ERROR, "plan", text))
    return found


def _reach(buffer: Buffer, offset: int, env: Mapping[str, int]) -> list[tuple[Buffer, int]]:
    """The buffers behind a pointer with its offset, in the first and in the last iteration of every loop."""
    if isinstance(buffer, Sliding):
        start = offset + evaluate(buffer.offset, env)
        count = buffer.loop.count
        last = (evaluate(count, env) if count is not None else 1) - 1
        if last < 0:  # never runs
            return []
        ends = dict.fromkeys((start, start + last * evaluate(buffer.step, env)))
        return [found for at in ends for found in _reach(buffer.base, at, env)]
    if isinstance(buffer, Alternating):
        return [*_reach(buffer.even, offset, env), *_reach(buffer.odd, offset, env)]
    return [(buffer, offset)]
