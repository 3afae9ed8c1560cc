"""Which launches run on one thread, and before which a barrier must stand.

All threads walk the schedule in lockstep order. Two accesses conflict when their bytes overlap and one of them writes. A barrier
is needed only where conflicting accesses may happen on different threads: two launches that both run on thread 0 need none.
Barriers are placed as late as possible, which gives the fewest.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.records import dataclass
from ..kernels.launch import Alternating, Buffer, Launch, Loop, Pointer, Sliding

SERIAL_NS = 2000.0  # below this estimated time on one core a launch is not worth a barrier
FLOPS_PER_NS = 60.0  # rough speed of one core, only for that estimate
BYTES_PER_NS = 30.0


@dataclass(frozen=True)
class Access:
    """Bytes `lo` to `hi` of an address space (the arena, or one input or output buffer), read or written."""

    space: object
    lo: int
    hi: int
    write: bool


def nanoseconds(flops: Any, moved: Any) -> Any:
    """Rough time of this work on one core; numbers or arrays of them."""
    return flops / FLOPS_PER_NS + moved / BYTES_PER_NS


def is_serial(grid: Any, flops: Any, moved: Any) -> Any:
    """Too little work to divide: one program, or an estimated time below the threshold. Numbers or arrays of them."""
    return (grid <= 1) | (nanoseconds(flops, moved) < SERIAL_NS)


def accesses(launch: Launch, offsets: dict[Buffer, int], sizes: dict[Buffer, int],
             parity: Mapping[Loop, int] | None = None) -> list[Access]:
    """What a launch touches. Constants never change and are left out; inputs are kept, because they may alias nothing we write. `parity`
    says in which iteration, even or odd, each loop around the launch is."""
    found: list[Access] = []
    for write, buffers in ((False, launch.reads), (True, launch.writes)):
        for b in dict.fromkeys(buffers):
            if b.kind == "window":
                found += [access(r, write, offsets, sizes) for r in held(b, parity or {}) if r.kind != "const" and sizes[r]]
            elif b.kind != "const" and sizes[b] != 0:
                found.append(access(b, write, offsets, sizes, *_window(launch, b, sizes[b])))
    return found


def access(b: Buffer, write: bool, offsets: dict[Buffer, int], sizes: dict[Buffer, int], lo: int = 0, hi: int | None = None) -> Access:
    base = offsets.get(b, 0)
    return Access("arena" if b.kind == "temp" else b, base + lo, base + (sizes[b] if hi is None else hi), write)


def held(buffer: Buffer, parity: Mapping[Loop, int]) -> tuple[Buffer, ...]:
    """The buffers behind a window in an iteration of this parity of each loop; both of an alternating one where that is unknown."""
    if isinstance(buffer, Sliding):
        return held(buffer.base, parity)
    if isinstance(buffer, Alternating):
        if buffer.loop in parity:
            return held(buffer.odd if parity[buffer.loop] else buffer.even, parity)
        return tuple(dict.fromkeys((*held(buffer.even, parity), *held(buffer.odd, parity))))
    return (buffer,)


def _window(launch: Launch, buffer: Buffer, size: int) -> tuple[int, int]:
    """The part of a buffer that a launch may touch: exact only where all its pointers have constant extents."""
    pointers = [a for way in launch.ways for a in way.arguments if isinstance(a, Pointer) and a.buffer is buffer]
    windows = [(p.offset, p.offset + p.extent) for p in pointers if isinstance(p.offset, int) and isinstance(p.extent, int) and p.extent]
    if not windows or len(windows) < len(pointers):
        return 0, size
    return max(0, min(w[0] for w in windows)), min(size, max(w[1] for w in windows))


def derive_barriers(touched: Sequence[Sequence[Access]], serial: Sequence[bool]) -> list[bool]:
    """For each launch: must all threads wait for each other before it?"""
    barriers: list[bool] = []
    pending: dict[object, list[tuple[int, int, bool, bool]]] = {}  # space -> (lo, hi, write, serial) since the last barrier
    for mine, alone in zip(touched, serial, strict=True):
        barrier = any(
            lo < a.hi and a.lo < hi and (a.write or write) and not (alone and was_alone)
            for a in mine
            for lo, hi, write, was_alone in pending.get(a.space, ())
        )
        if barrier:
            pending.clear()
        for a in mine:
            pending.setdefault(a.space, []).append((a.lo, a.hi, a.write, alone))
        barriers.append(barrier)
    return barriers
