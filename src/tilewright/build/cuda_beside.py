"""Alike launches that need nothing of each other become one: lookups in many tables, means side by side, parts of a concatenation.

A launch takes some two microseconds however little it does. Launches of one kernel become a launch of the same kernel with several sets of
argument words (`SimtKernel.beside`): blocks serve the sets in turn, and a block that its set has no program for ends.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from ..core.dims import Dim
from ..kernels.cuda.kernel import BlockKernel, SimtKernel, identified
from ..kernels.cuda.tiled import TiledKernel
from ..kernels.launch import Argument, Buffer, ErrorWord, Launch, Program, Word, roots
from .cuda_late import late_arguments

WORDS = 500  # words of 8 bytes: parameters have room for 4096 bytes
MOST = 10 << 20  # bytes of a launch: a larger one fills the chip for longer than it takes to start
ALIVE = 256 << 20  # bytes of all, whose results are alive together
IDLE = 1024  # blocks that may end at once, where launches differ in size


@dataclass(eq=False)
class Group:
    """Launches that run as one, and what of memory they touch."""

    launches: list[Launch]
    key: object = None
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)
    apart: bool = True

    def add(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.reads |= _memory(launch.reads)
        self.writes |= _memory(launch.writes)
        self.apart = self.apart and launch.apart

    def hinders(self, launch: Launch) -> bool:
        """Whether a launch must come after this group: memory that one writes and the other touches."""
        reads, writes = _memory(launch.reads), _memory(launch.writes)
        both = not (self.apart and launch.apart) and writes & self.writes
        return bool(both or writes & self.reads or reads & self.writes)

    def takes(self, launch: Launch) -> bool:
        """Whether it has room for another."""
        sizes = [_number(x.grid) for x in (*self.launches, launch)]
        words = len(sizes) * (len(launch.arguments) + 1)
        idle = (max(sizes) * len(sizes) - sum(sizes)) // _programs(launch)
        alive = sum(_number(x.bytes) for x in (*self.launches, launch))
        return words <= WORDS and alive <= ALIVE and idle <= max(IDLE, sum(sizes) // _programs(launch))

    def joined(self) -> Launch:
        """The launch of all."""
        first, n = self.launches[0], len(self.launches)
        if n == 1:
            return first
        kernel = copy.copy(first.kernel)
        assert isinstance(kernel, SimtKernel)
        kernel.beside = n
        each = [[ErrorWord(turn) if isinstance(a, ErrorWord) else a for a in x.arguments] + [Word(x.grid)]
                for turn, x in enumerate(self.launches)]
        arguments: tuple[Argument, ...] = tuple(a for column in zip(*each, strict=True) for a in column)
        touched = [b for x in self.launches for used in (x.reads, x.writes) for b in set(used)]
        return Launch(
            f"{first.name} and {n - 1} more", identified(kernel), arguments, max(_number(x.grid) for x in self.launches),
            tuple(dict.fromkeys(b for x in self.launches for b in x.reads)), tuple(dict.fromkeys(b for x in self.launches for b in x.writes)),
            tuple((a, b) for x in self.launches for a, b in x.inplace if touched.count(a) == touched.count(b) == 1),
            max(_number(x.scratch) for x in self.launches), sum(_number(x.flops) for x in self.launches),
            sum(_number(x.bytes) for x in self.launches), note=f"{n} launches side by side, {first.note}".rstrip(", "),
            sites=tuple(s for x in self.launches for s in x.sites),
        )  # fmt: skip


def run_beside(program: Program, called: set[str]) -> None:
    """Join the launches of a program that has no loops. A launch moves ahead to the first like it that nothing between the two hinders;
    those that may report an error stay in order. `called`: symbols that a call gives, whose words cannot be among many."""
    if program.block:
        return
    groups: list[Group] = []
    for launch in program.launches:
        key, place = _key(launch, called), -1
        if key is not None:
            for i in reversed(range(len(groups))):
                g = groups[i]
                if g.hinders(launch):
                    break
                if g.key == key and g.takes(launch):
                    place = i
                if launch.fails and any(x.fails for x in g.launches):
                    break
        if place < 0:
            groups.append(Group([], key))
        groups[place].add(launch)
    program.launches = [g.joined() for g in groups]


def _key(launch: Launch, called: set[str]) -> object:
    """What alike launches have in common; None: it stays alone."""
    kernel, sizes = launch.kernel, (launch.grid, launch.bytes, launch.flops, launch.scratch)
    simple = type(kernel) in (BlockKernel, TiledKernel) and not getattr(kernel, "maps", ()) and not launch.variants and not launch.on_host
    if not simple or not all(isinstance(d, int) for d in sizes) or _number(launch.bytes) > MOST or not launch.grid:
        return None
    return None if late_arguments(launch.arguments, called) else (kernel.name, len(launch.arguments), len(launch.sites))


def _programs(launch: Launch) -> int:
    return launch.kernel.programs if isinstance(launch.kernel, BlockKernel) else 1


def _memory(buffers: tuple[Buffer, ...]) -> set[Buffer]:
    return {r for b in buffers for r in roots(b) if r.kind != "const"}


def _number(d: Dim) -> int:
    assert isinstance(d, int)
    return d
