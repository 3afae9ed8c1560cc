"""What a run of `token_machine` holds: the launch, barriers of every kind, and the rules that all arrivals and waits share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ptx.flow import Op
from .replay import Replay
from .token_graph import Agent, TokenGraph


@dataclass(frozen=True)
class Launch:
    """A small launch: argument words, the threads that are followed (number, how many it stands for), blocks and their cluster."""

    words: tuple[int, ...]
    threads: tuple[tuple[int, int], ...]
    boxes: tuple[int, ...] = ()  # bytes that a copy through each tensor map moves
    blocks: int = 1  # that run together
    cluster: int = 1
    grid: int = 1
    rows: int = 64  # rows of the left operand of a product that matter
    # rings that all threads fill and read together, piece by piece: first byte, bytes of a stage. An access stands for its whole stage
    cells: tuple[tuple[int, int], ...] = ()


@dataclass(eq=False)
class MBarrier:
    count: int
    init: int
    pending: int = 0
    bytes: int = 0
    reach: int = 0
    seen: int = 0
    done: list[tuple[int, int, int]] = field(default_factory=list)  # every phase that is done: its token, and what who waits for it follows
    watched: dict[int, int] = field(default_factory=dict)  # phase -> tokens of the waits that saw it end


@dataclass(eq=False)
class ThreadBarrier:
    """A barrier of threads: who has come, and what those follow who leave."""

    weight: int = 0
    came: set[str] = field(default_factory=set)
    reach: int = 0
    seen: int = 0
    done: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Group:
    """A group of wgmma of one warpgroup."""

    came: int = 0
    tokens: int = 0
    reach: int = 0


class State:
    """The base of the parts of `Machine`."""

    def __init__(self, replay: Replay, agents: Sequence[Agent], launch: Launch, dropped: frozenset[int], explain: bool) -> None:
        self.replay, self.agents, self.launch, self.dropped = replay, list(agents), launch, dropped
        self.graph = TokenGraph(explain, together=bool(launch.cells))
        self.barriers: dict[tuple[int, int], MBarrier] = {}
        self.barriers_of: dict[Any, ThreadBarrier] = {}
        self.groups: dict[tuple[int, int], list[Group]] = {}
        self.memory: dict[Any, int] = {}
        self.places: dict[int, tuple[int, int]] = {}  # address of a counter in memory -> what its releases carry
        self.ranges: dict[Any, list[tuple[int, int]]] = {}
        self.masks: dict[int, tuple[int, ...]] = {}
        # whether the kernel starts while the one before still runs
        self.ordered = any(op.opcode == "griddepcontrol.launch_dependents" for op in replay.function.ops)
        self.inits = 0
        self.foreign: dict[int, list[tuple[int, Op]]] = {}  # block -> accesses of its memory by others
        self.alive = {a.name for a in self.agents}

    def _place(self, a: Agent, address: int) -> tuple[int, int]:
        """(block, offset) of an address in shared memory, of this block or of another one of the cluster."""
        rank = address >> 24
        return (a.block if not rank else a.block - a.rank + rank - 1), address & 0xFFFFFF

    def _piece(self, a: Agent, address: int, size: int) -> tuple[int, int, int]:
        """(block, first byte, bytes) of a plain access; where threads share rings, ring and stage as one number."""
        space, lo = self._place(a, address)
        cells = self.launch.cells
        if not cells:
            return space, lo, size
        lo -= a.symbols.get("ring", a.symbols.get("scratch", 0))
        ring = max((i for i, (first, _) in enumerate(cells) if first <= lo), default=0)
        return space, 100 * ring + (lo - cells[ring][0]) // cells[ring][1], 1

    def _barrier(self, a: Agent, op: Op, address: int, *, apart: bool = False) -> MBarrier | None:
        place = self._place(a, address)
        b = self.barriers.get(place)
        if b is None or not (a.seen if apart else a.reach) & b.init:
            why = "before it is certainly initialised" if b is None or not apart else "whose initialisation has passed no proxy fence"
            self.graph.find("use", op, f"`{op.opcode}` ({a.name}) uses the mbarrier at {place[1]} {why}")
        if b is not None and place[0] != a.block:
            token = self.graph.token()
            a.reach |= token
            self.foreign.setdefault(place[0], []).append((token, op))
        return b

    def _known(self, a: Agent, op: Op, b: MBarrier, phase: int, what: str) -> None:
        if phase >= 0 and not a.reach & b.done[phase][0]:
            self.graph.find("phase", op, f"{a.name} {what}, and does not know that the round before has ended")

    def _turn(self, b: MBarrier, op: Op) -> None:
        if b.pending < b.count or b.bytes:
            return
        token, phase = self.graph.token(), len(b.done)
        missed = b.watched.get(phase - 1, 0) & ~b.reach
        if missed:
            self.graph.find("phase", op, f"the round of `{op.opcode}` may end before everybody has seen the end of the round before")
        b.done.append((token, b.reach | token, b.seen | token))
        b.pending = b.bytes = b.reach = b.seen = 0
