"""The order of launches, where another one needs less memory: a function should not take more because of how it was written.

Candidates are the order of the graph, greedy ones (of the launches that could run, the one that leaves the least memory alive) and a
walk from the results that finishes one operand before it begins the next, the largest first. One of the greedy ones moves a launch
together with those that only prepare its operands (packing, transposes). The order of the graph stays unless another one is clearly
smaller, because neighbours in it tend to find each other's results in the caches.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.dims import Symbol, evaluate
from ..kernels.launch import Buffer, Item, Launch, Program, flatten, roots, touched
from .control import Schedule
from .lifetimes import lifetimes, share_inplace
from .pack import Item as Piece
from .pack import lower_bound

CLEARLY = 0.97  # the share of the graph's own order's memory that another order must reach
LEAST = 1 << 16  # bytes worth the trouble
MOST = 4000  # items of one block: beyond that the order stays
TYPICAL = 512  # the value of a symbol with a wide range, for comparing orders


@dataclass
class Step:
    """An item of a block: what it reads and writes of the arena, and the steps before and behind it."""

    reads: set[Buffer]
    writes: set[Buffer]
    before: set[int]
    behind: set[int]


def ordered(program: Program, symbols: Sequence[Symbol]) -> Program:
    """The program with its launches in the order that needs the least memory, or as it was."""
    items: list[Item] = program.block or list(program.launches)
    if not 2 < len(items) <= MOST:
        return program
    env = typical(symbols)
    sizes = {b: evaluate(b.nbytes, env) for b in program.temps}
    best, least = program, peak(program, env)
    if least < LEAST:
        return program
    steps = dependencies(items)
    wanted = min(CLEARLY * least, least - LEAST)
    for way in (together, greedy, depth_first):
        order = way(steps, sizes)
        found = _arranged(program, [items[i] for i in order])
        size = peak(found, env)
        if size < wanted:
            best, wanted = found, size
    return best


def typical(symbols: Sequence[Symbol]) -> dict[str, int]:
    """Values of symbols, for comparing sizes."""
    return {s.name: max(s.lo, min(s.hi, TYPICAL)) for s in symbols}


def peak(program: Program, env: Mapping[str, int]) -> int:
    """The least bytes that the lifetimes of this order allow."""
    plain = lifetimes(program, Schedule(program) if program.block else None)
    pieces = [Piece(max(evaluate(b.nbytes, env) for b in i.buffers), i.first, i.last) for i in share_inplace(program, plain)]
    return lower_bound(pieces)


def _arranged(program: Program, items: list[Item]) -> Program:
    return replace(program, launches=flatten(items), block=items if program.block else [])


def dependencies(items: Sequence[Item]) -> list[Step]:
    """Every item with those that must come before and behind it: a read follows the writes before it, a write follows the reads and writes
    before it. What may report an error keeps its order, so that the error is the one that the program meets first."""
    steps: list[Step] = []
    written: dict[Buffer, list[int]] = {}
    read: dict[Buffer, list[int]] = {}
    failing: int | None = None
    for i, item in enumerate(items):
        if isinstance(item, Launch):
            reads, writes = ({r for b in of for r in roots(b)} for of in (item.reads, item.writes))
        else:
            reads = writes = {r for b in touched(item) for r in roots(b)}
        before = {k for b in reads | writes for k in written.get(b, ())} | {k for b in writes for k in read.get(b, ())}
        if not isinstance(item, Launch) or item.fails:
            before |= set() if failing is None else {failing}
            failing = i
        for b in reads:
            read.setdefault(b, []).append(i)
        for b in writes:
            written.setdefault(b, []).append(i)
        steps.append(Step({b for b in reads if b.kind == "temp"}, {b for b in writes if b.kind == "temp"}, before, set()))
        for k in before:
            steps[k].behind.add(i)
    return steps


def together(steps: Sequence[Step], sizes: Mapping[Buffer, int]) -> list[int]:
    """The greedy order of groups: a step, and those before it that serve it alone and leave more memory alive than they end. One of these
    by itself looks cheap long before its result is wanted."""
    users = Counter(b for s in steps for b in s.reads | s.writes)
    leader = list(range(len(steps)))
    for i, s in reversed(list(enumerate(steps))):
        grown = sum(sizes[b] for b in s.writes) - sum(sizes[b] for b in s.reads if users[b] == 2)
        if len(s.behind) == 1 and grown > 0:
            leader[i] = leader[next(iter(s.behind))]
    groups: dict[int, list[int]] = {}
    for i, j in enumerate(leader):
        groups.setdefault(j, []).append(i)
    number = {j: k for k, j in enumerate(sorted(groups))}
    joined = [Step(set(), set(), set(), set()) for _ in number]
    for i, s in enumerate(steps):
        mine = joined[number[leader[i]]]
        mine.reads |= s.reads
        mine.writes |= s.writes
        mine.before |= {number[leader[k]] for k in s.before} - {number[leader[i]]}
        mine.behind |= {number[leader[k]] for k in s.behind} - {number[leader[i]]}
    members = [groups[j] for j in number]
    return [i for k in greedy(joined, sizes) for i in members[k]]


def greedy(steps: Sequence[Step], sizes: Mapping[Buffer, int]) -> list[int]:
    """Always the step, among those that could run, after which the least is alive; among equals the graph's first."""
    users: dict[Buffer, int] = {}
    for s in steps:
        for b in s.reads | s.writes:
            users[b] = users.get(b, 0) + 1
    waiting = [len(s.before) for s in steps]
    ready = {i for i, n in enumerate(waiting) if n == 0}
    alive: set[Buffer] = set()
    order: list[int] = []

    def change(i: int) -> tuple[int, int]:
        s = steps[i]
        made = sum(sizes[b] for b in s.writes - alive)
        ended = sum(sizes[b] for b in s.reads | s.writes if users[b] == 1)
        return made - ended, i

    while ready:
        i = min(ready, key=change)
        ready.remove(i)
        order.append(i)
        for b in steps[i].reads | steps[i].writes:
            users[b] -= 1
            if users[b]:
                alive.add(b)
            else:
                alive.discard(b)
        for k in steps[i].behind:
            waiting[k] -= 1
            if waiting[k] == 0:
                ready.add(k)
    return order


def depth_first(steps: Sequence[Step], sizes: Mapping[Buffer, int]) -> list[int]:
    """From the last steps back: before a step all that it needs, the part that needs the most memory first."""
    need = [0] * len(steps)
    weight: Callable[[int], int] = lambda i: sum(sizes[b] for b in steps[i].writes)
    for i, s in enumerate(steps):
        need[i] = max([weight(i), *(need[k] for k in s.before)])
    order: list[int] = []
    done = [False] * len(steps)
    for last in (i for i, s in enumerate(steps) if not s.behind):
        stack = [(last, False)]
        while stack:
            i, ready = stack.pop()
            if ready:
                order.append(i)
            elif not done[i]:
                done[i] = True
                stack.append((i, True))
                stack += [(k, False) for k in sorted(steps[i].before, key=lambda k: (need[k], -k)) if not done[k]]
    return order
