"""Checks of a placement that share no code with the planner: overlap, alignment, bounds. Deliberately naive."""
from __future__ import annotations

from collections.abc import Mapping

from ..core.dims import evaluate
from ..core.validation import Finding, Severity, validator
from ..kernels.launch import Buffer, Pointer, Program
from .plan import Placement


@validator("plan")
def arena_overlap(program: Program, placement: Placement, env: Mapping[str, int]) -> list[Finding]:
    """No two buffers share bytes at a step where the content of both matters."""
    found: list[Finding] = []
    alive: dict[Buffer, set[int]] = {}
    for b in placement.offsets:
        steps = [k for k, launch in enumerate(program.launches) if any(x is b for x in (*launch.reads, *launch.writes))]
        alive[b] = set(range(min(steps), max(steps) + 1))
    allowed = {(k, a, b) for k, launch in enumerate(program.launches) for a, b in launch.inplace}
    buffers = list(placement.offsets)
    for n, a in enumerate(buffers):
        for b in buffers[n + 1 :]:
            a0, b0 = placement.offsets[a], placement.offsets[b]
            if not (a0 < b0 + evaluate(b.nbytes, env) and b0 < a0 + evaluate(a.nbytes, env)):
                continue
            for step in sorted(alive[a] & alive[b]):
                exact = a0 == b0 and ((step, a, b) in allowed or (step, b, a) in allowed)
                if not exact:
                    found.append(Finding(Severity.ERROR, "plan", f"buffers {a.name} and {b.name} overlap in the arena at launch {step}"))
                    break
    return found


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
    for step, launch in enumerate(program.launches):
        for a in (a for way in launch.ways for a in way.arguments):
            if not isinstance(a, Pointer):
                continue
            offset, extent, size = evaluate(a.offset, env), evaluate(a.extent, env), evaluate(a.buffer.nbytes, env)
            if offset < 0 or (size and offset + extent > size):
                text = f"launch {step} ({launch.name}) touches bytes {offset}..{offset + extent} of {a.buffer.name}, which has {size}"
                found.append(Finding(Severity.ERROR, "plan", text))
            if not any(a.buffer is b for b in (*launch.reads, *launch.writes)):
                text = f"launch {step} ({launch.name}) has a pointer to {a.buffer.name} but declares no access"
                found.append(Finding(Severity.ERROR, "plan", text))
    return found
