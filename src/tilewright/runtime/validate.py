"""Checks of an instance before its first run: no null pointer, every range inside its buffer, nothing misaligned."""
from __future__ import annotations

from functools import cache

from ..core.dims import evaluate
from ..core.validation import Finding, Severity, validator
from ..kernels.launch import Pointer
from .executable import CpuExecutable, Instance
from .native.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID


@validator("execute")
def kernel_coverage(executable: CpuExecutable, instance: Instance) -> list[Finding]:
    """Every launch has code, an argument block of its own and a grid that is not negative."""
    found: list[Finding] = []
    base, end = instance.words.ctypes.data, instance.words.ctypes.data + instance.words.nbytes
    thunks = instance.thunks[executable.rows]
    for k, launch in enumerate(executable.launches):
        thunk = thunks[k]
        if not thunk[THUNK_FN]:
            found.append(Finding(Severity.ERROR, "execute", f"launch {k} ({launch.name}) has no code"))
        if not base <= thunk[THUNK_ARGS] <= end - 8 * len(launch.arguments):
            found.append(Finding(Severity.ERROR, "execute", f"launch {k} ({launch.name}) has its arguments outside the argument blocks"))
        if thunk[THUNK_GRID] < 0:
            found.append(Finding(Severity.ERROR, "execute", f"launch {k} ({launch.name}) has a grid of {thunk[THUNK_GRID]} programs"))
    return found


@validator("execute")
def argument_pointers(executable: CpuExecutable, instance: Instance) -> list[Finding]:
    """Pointers into the arena and into constants are not null, and the bytes they reach lie inside."""
    found: list[Finding] = []
    stored = zip(executable.program.constants, executable.constants, strict=True)
    ranges = {c.buffer: (s.ctypes.data, s.ctypes.data + s.nbytes) for c, s in stored}
    arena = (instance.arena, instance.arena + instance.placement.size)
    value = cache(lambda d: evaluate(d, instance.env))
    ways = [(k, launch, way) for k, launch in enumerate(executable.launches) for way in launch.ways]
    for number, (k, launch, way) in enumerate(ways):
        if value(way.grid) == 0:  # nothing runs: an empty tensor, whose last element is before its first
            continue
        for word, argument in enumerate(way.arguments, executable.start_of(number)):
            if isinstance(argument, Pointer) and argument.buffer.kind in ("temp", "const"):
                lo, hi = arena if argument.buffer.kind == "temp" else ranges[argument.buffer]
                at, extent = int(instance.words[word]), value(argument.extent)
                if extent and not (at and lo <= at and at + extent <= hi):
                    reach = f"{at - lo}..{at - lo + extent} of {hi - lo} bytes"
                    text = f"launch {k} ({launch.name}): a pointer to {argument.buffer.name} reaches {reach}"
                    found.append(Finding(Severity.ERROR, "execute", text))
    return found
