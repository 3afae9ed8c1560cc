"""The plan of a program: where every temp buffer lies and how the launches are scheduled, for concrete symbol values.

The structure (lifetimes, sharing) is found once. Offsets are planned for the symbol values rounded up to powers of two and kept
per such bucket, so a new length in a known bucket re-uses them; barriers are kept per bucket and choice of serial launches.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import dims
from ..core.dims import Symbol
from ..core.records import dataclass, field
from ..kernels.launch import Buffer, Launch, Pointer, Program
from .barriers import Access, access, accesses, derive_barriers, held
from .control import Barriers, Parity, Schedule
from .lifetimes import Interval, lifetimes, share_inplace
from .pack import Item, align, lower_bound, pack
from .values import DimTable

Env = Mapping[str, int]
KEPT = 64  # placements of one plan; more only where sizes do not grow with their symbols


@dataclass(eq=False)
class Placement:
    """Offsets of the temp buffers in an arena of `size` bytes, valid while no buffer is larger than in `sizes`."""

    size: int
    offsets: dict[Buffer, int]
    sizes: dict[Buffer, int]  # bytes of all buffers, inputs and outputs too
    strategy: str
    inplace: bool
    vector: list[int]  # the offsets again, in the order of the plan's temps
    bound: int  # no plan with these lifetimes can be smaller
    intervals: list[Interval]
    touched: list[list[Access]] = field(default_factory=list)
    schedule: Schedule | None = None
    barriers: dict[tuple[bool, ...], list[bool]] = field(default_factory=dict)

    def sync(self, serial: tuple[bool, ...]) -> list[bool]:
        """Where barriers stand when exactly these launches are serial: one flag a launch, or a row of the schedule."""
        found = self.barriers.get(serial)
        if found is None:
            if len(self.barriers) > 64:
                self.barriers.clear()
            found = self.barriers[serial] = derive_barriers(self.touched, serial) if self.schedule is None else self._rows(serial)
        return found

    def _rows(self, serial: tuple[bool, ...]) -> list[bool]:
        assert self.schedule is not None

        def touch(launch: Launch, parity: Parity) -> list[Access]:
            return accesses(launch, self.offsets, self.sizes, parity)

        def read(pointer: Pointer, parity: Parity) -> list[Access]:
            return [access(b, False, self.offsets, self.sizes) for b in held(pointer.buffer, parity) if b.kind != "const"]

        return Barriers(self.schedule, touch, read, serial).run()


def round_up(value: int, symbol: Symbol) -> int:
    """The power of two at or above `value`, but not beyond the symbol's range."""
    return min(1 << max(0, value - 1).bit_length(), symbol.hi)


class Plan:
    """Placements of one program, one per bucket of symbol values."""

    def __init__(self, program: Program, symbols: Sequence[Symbol]) -> None:
        self.program, self.symbols = program, tuple(symbols)
        self.schedule = Schedule(program) if program.block else None
        self.plain = lifetimes(program, self.schedule)
        self.shared = share_inplace(program, self.plain)
        self.temps = [b for i in self.plain for b in i.buffers]
        self.buffers = [*program.inputs, *program.outputs, *(c.buffer for c in program.constants), *self.temps]
        table = DimTable(self.symbols)
        self._slots = [table.add(b.nbytes) for b in self.buffers]
        self._values = table.compile()
        used = {s.name for b in self.buffers for s in dims.symbols(b.nbytes)}
        self._sizing = [s for s in self.symbols if s.name in used]  # the others change no size: no placement of their own
        self._placements: dict[tuple[int, ...], Placement] = {}

    def sizes(self, env: Env) -> list[int]:
        values = self._values(env)
        return [values[k] for k in self._slots]

    def place(self, env: Env) -> Placement:
        """The placement for these values: a kept one of the same bucket where the sizes fit, otherwise one for exactly these."""
        found = self._kept(tuple(round_up(env[s.name], s) for s in self._sizing))
        if not self._sizing or self._fits(env, found):
            return found
        return self._kept(tuple(env[s.name] for s in self._sizing))

    def _kept(self, key: tuple[int, ...]) -> Placement:
        found = self._placements.get(key)
        if found is None:
            if len(self._placements) >= KEPT:
                self._placements.clear()
            env = {s.name: s.lo for s in self.symbols} | dict(zip((s.name for s in self._sizing), key, strict=True))
            found = self._placements[key] = self._place(env)
        return found

    def _fits(self, env: Env, placement: Placement) -> bool:
        """Sizes grow with the symbols almost always; where one does not, the exact values get a placement of their own."""
        planned = placement.sizes
        return all(now <= planned[b] for b, now in zip(self.buffers, self.sizes(env), strict=True))

    def _place(self, env: Env) -> Placement:
        sizes = dict(zip(self.buffers, self.sizes(env), strict=True))
        best: Placement | None = None
        for inplace, intervals in ((True, self.shared), (False, self.plain)):
            items = [Item(max(sizes[b] for b in i.buffers), i.first, i.last) for i in intervals]
            bound = lower_bound(items)
            if best is not None and (best.size <= bound or len(self.shared) == len(self.plain)):
                break  # nothing to gain without sharing
            packing = pack(items)
            if best is None or packing.size < best.size:
                offsets = {b: o for i, o in zip(intervals, packing.offsets, strict=True) for b in i.buffers}
                best = Placement(align(packing.size), offsets, sizes, packing.strategy, inplace, [], bound, intervals)
        assert best is not None
        best.vector = [best.offsets[b] for b in self.temps]
        best.schedule = self.schedule
        if self.schedule is None:
            best.touched = [accesses(launch, best.offsets, sizes) for launch in self.program.launches]
        return best
