"""The argument blocks and thunks of a program: what every word holds, which words change with the iterations of loops, and the control
thunks between the kernels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.dims import Dim
from ..core.errors import CompileError
from ..core.records import dataclass, field
from ..kernels.launch import Alternating, Argument, Branch, Buffer, Loop, Pointer, Sliding
from ..plan.control import Schedule, is_long
from ..plan.values import DimTable
from .native import layout as L

Words = np.ndarray[Any, Any]


@dataclass
class Block:
    """The argument words of one kernel (or control thunk) with no windows left: pointers that a loop changes start as those of its first
    iteration; words behind the kernel's own hold the addresses of odd iterations."""

    words: list[Argument]
    moves: list[tuple[int, int, int, Dim]] = field(default_factory=list)  # word, depth, word of odd iterations or -1, bytes a step


def block_of(name: str, arguments: Sequence[Argument]) -> Block:
    block = Block(list(arguments))
    for i, a in enumerate(arguments):
        if isinstance(a, Pointer):
            _resolve(block, i, a)
    if block.moves and len(block.words) > L.MOVED_WORDS:
        raise CompileError(f"{name}: a kernel inside a loop takes at most {L.MOVED_WORDS} argument words, got {len(block.words)}; "
                           "split the step into several values")
    return block


def _resolve(block: Block, word: int, pointer: Pointer) -> None:
    b: Buffer = pointer.buffer
    if isinstance(b, Sliding):
        _resolve(block, word, Pointer(b.base, pointer.offset + b.offset, pointer.extent))
        if b.step != 0:
            block.moves.append((word, b.loop.depth, -1, b.step))
    elif isinstance(b, Alternating):
        _resolve(block, word, Pointer(b.even, pointer.offset, pointer.extent))
        if b.even is not b.odd:
            other = len(block.words)
            block.words.append(pointer)
            _resolve(block, other, Pointer(b.odd, pointer.offset, pointer.extent))
            block.moves.append((word, b.loop.depth, other, 0))
    else:
        block.words[word] = pointer


class Moves:
    """All moves of a program as one table of words; `addresses` says where each block's part begins (-1: it has none)."""

    def __init__(self, blocks: Sequence[Block], table: DimTable) -> None:
        words: list[int] = []
        dims: list[tuple[int, int]] = []  # (position, number of the dim)
        self.starts: list[int] = []
        for b in blocks:
            self.starts.append(len(words) if b.moves else -1)
            if b.moves:
                words += [len(b.words), len(b.moves)]
            for word, depth, other, step in b.moves:
                words += [word, depth, other, 0]
                dims.append((len(words) - 1, table.add(step)))
        self._words = np.array(words, np.int64)
        both = np.array(dims, np.int64).reshape(-1, 2)
        self._positions, self._dims = both[:, 0].copy(), both[:, 1].copy()
        self.used = np.array(self.starts, np.int64).reshape(-1)

    def __bool__(self) -> bool:
        return len(self._words) > 0

    @property
    def dims(self) -> list[int]:
        return [int(d) for d in self._dims]

    def table(self, values: Words) -> Words:
        made = self._words.copy()
        made[self._positions] = values[self._dims]
        return made


class Controls:
    """The control thunks of a schedule."""

    def __init__(self, schedule: Schedule, table: DimTable) -> None:
        self.schedule = schedule
        self.rows = np.array(schedule.row_of, np.int64)
        self.predicates: list[tuple[int, Block]] = []
        counts: list[tuple[int, int]] = []
        words = np.zeros((len(schedule.rows), L.THUNK_WORDS), np.int64)
        for r, row in enumerate(schedule.rows):
            item = row.item
            if item is None:
                continue
            words[r, L.THUNK_FLAGS] = L.KINDS[row.kind] << L.KIND_SHIFT | (L.CHECKS if r in schedule.checks else 0)
            words[r, L.THUNK_TARGET], words[r, L.THUNK_END] = row.target, row.end
            if isinstance(item, Loop):
                words[r, L.THUNK_DEPTH], words[r, L.THUNK_GRID] = item.depth, L.NO_LIMIT
                if item.count is not None and row.kind in ("loop", "next", "end"):
                    counts.append((r, table.add(item.count)))
            if row.kind in ("test", "if"):
                assert item.predicate is not None
                self.predicates.append((r, block_of(item.name, (item.predicate,))))
        self._words = words
        both = np.array(counts, np.int64).reshape(-1, 2)
        self._counted, self._counts = both[:, 0].copy(), both[:, 1].copy()
        self.times = np.array([table.add(d) for d in schedule.times], np.int64)

    @property
    def dims(self) -> list[int]:
        return [int(d) for d in (*self._counts, *self.times)]

    def thunks(self, values: Words, serial: Sequence[bool]) -> Words:
        """The table with everything but the kernels' rows, barriers and predicates filled in."""
        made = self._words.copy()
        made[self._counted, L.THUNK_GRID] = values[self._counts]
        alone = self.schedule.alone(serial)
        inside: dict[Loop | Branch, int] = {}
        for item, outermost in alone.items():  # outer ones come first
            if outermost:
                inside[item] = self.schedule.ends[item]
        for r, row in enumerate(self.schedule.rows):
            if row.item is None or row.item not in alone:
                continue
            made[r, L.THUNK_FLAGS] |= L.SERIAL
            if row.kind in ("loop", "if") and alone[row.item]:
                made[r, L.THUNK_REGION] = inside[row.item]
            elif row.kind == "next":
                around = next(x for x, end in inside.items() if self.schedule.heads[x] <= r <= end)
                made[r, L.THUNK_REGION] = inside[around] if is_long(around) else 0
        return made
