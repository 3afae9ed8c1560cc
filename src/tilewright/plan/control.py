"""Loops and branches in a schedule: the rows of the thunk table, what lives across iterations, and where barriers stand.

A loop is the rows  loop · its test · test · its body · next · end,  a branch  if · then · jump · other · end.  Every thread goes the same
way, so all reach a barrier inside. A loop or branch whose kernels all run on one thread is that thread's alone: the others go on at
its `end`.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..core.dims import Dim
from ..core.records import dataclass
from ..kernels.launch import Branch, Buffer, Item, Launch, Loop, Pointer, Program, flatten, parts, roots
from .barriers import Access

Kind = Literal["kernel", "loop", "test", "next", "if", "jump", "end"]
LONG_COUNT = 64  # a loop of more iterations, or of an unknown number, can be left when the user interrupts it
UNKNOWN_COUNT = 1_000_000  # iterations of a loop that nothing bounds, for estimates


@dataclass(eq=False)
class Row:
    """One thunk. `target`: where next, jump, or a false predicate go; `end`: the last row of the loop or branch it belongs to."""

    kind: Kind
    launch: int = -1
    item: Loop | Branch | None = None
    target: int = -1
    end: int = -1


class Schedule:
    """The rows of a program with control flow."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rows: list[Row] = []
        self.row_of: list[int] = []  # the row of each launch
        self.times: list[Dim] = []  # how often each launch runs, at most
        self.heads: dict[Loop | Branch, int] = {}
        self.ends: dict[Loop | Branch, int] = {}
        self.spans: list[tuple[Loop, int, int]] = []  # inner loops first: the launches from .. up to (not including) .. of each
        self.reads: list[tuple[Buffer, int]] = []  # buffers of predicates, and the launch before which they are read
        self._block(program.block, 1)
        self.checks = self._checks()

    def _checks(self) -> set[int]:
        """Rows where a loop ends after an error: its exit may hang on what a kernel, having failed, did not compute. At its head where one
        before it may fail, at every iteration's end where one in it may."""
        fails = [x.fails for x in self.program.launches]
        found: set[int] = set()
        for loop, first, stop in self.spans:
            head, last = self.heads[loop], self.ends[loop] - 1  # `next` stands before `end`
            found |= {head} if any(fails[:first]) else set()
            found |= {last} if any(fails[first:stop]) else set()
        return found

    def _block(self, block: Sequence[Item], times: Dim) -> None:
        for item in block:
            if isinstance(item, Launch):
                self.row_of.append(len(self.rows))
                self.rows.append(Row("kernel", len(self.times)))
                self.times.append(times)
            elif isinstance(item, Loop):
                self._loop(item, times)
            else:
                self._branch(item, times)

    def _loop(self, loop: Loop, times: Dim) -> None:
        first = len(self.times)
        inner = times * (UNKNOWN_COUNT if loop.count is None else loop.count)
        head = self._open("loop", loop)
        rows = [head]
        self._block(loop.test, inner)
        if loop.predicate is not None:
            rows.append(self._row("test", loop))
            self.reads.append((loop.predicate.buffer, len(self.times)))
        self._block(loop.body, inner)
        rows.append(self._row("next", loop))
        end = self._row("end", loop)
        self._close(loop, [*rows, end], end)
        self.rows[rows[-1]].target = head + 1
        self.spans.append((loop, first, len(self.times)))

    def _branch(self, branch: Branch, times: Dim) -> None:
        head = self._open("if", branch)
        self.reads.append((branch.predicate.buffer, len(self.times)))
        self._block(branch.then, times)
        jump = self._row("jump", branch)
        self.rows[head].target = jump + 1
        self._block(branch.other, times)
        end = self._row("end", branch)
        self.rows[jump].target = end
        self._close(branch, [head, jump, end], end)

    def _open(self, kind: Kind, item: Loop | Branch) -> int:
        self.heads[item] = self._row(kind, item)
        return self.heads[item]

    def _row(self, kind: Kind, item: Loop | Branch) -> int:
        self.rows.append(Row(kind, item=item))
        return len(self.rows) - 1

    def _close(self, item: Loop | Branch, rows: Sequence[int], end: int) -> None:
        self.ends[item] = end
        for r in rows:
            self.rows[r].end = end
            if self.rows[r].kind == "test":
                self.rows[r].target = end

    # --- one thread's loops -------------------------------------------------------------------------------------------------------------
    def alone(self, serial: Sequence[bool]) -> dict[Loop | Branch, bool]:
        """Items that one thread runs, with whether they are the outermost of that kind."""
        number = {x: i for i, x in enumerate(self.program.launches)}
        found: dict[Loop | Branch, bool] = {}

        def visit(block: Sequence[Item], inside: bool) -> None:
            for item in block:
                if isinstance(item, Launch):
                    continue
                mine = inside or all(serial[number[x]] for part in parts(item) for x in flatten(part))
                if mine:
                    found[item] = not inside
                for part in parts(item):
                    visit(part, mine)

        visit(self.program.block, False)
        return found


def is_long(item: Item) -> bool:
    """Something in it may take long: a barrier is at its end, so that an interrupt can stop it anywhere."""
    if isinstance(item, Launch):
        return False
    if isinstance(item, Loop) and (item.count is None or item.predicate is not None or not isinstance(item.count, int)
                                   or item.count > LONG_COUNT):
        return True
    return any(is_long(x) for part in parts(item) for x in part)


def is_unbounded(item: Item) -> bool:
    """Data alone ends a loop in it."""
    if isinstance(item, Launch):
        return False
    return (isinstance(item, Loop) and item.count is None) or any(is_unbounded(x) for part in parts(item) for x in part)


Span = tuple[int, int, bool, bool]  # lo, hi, write, on one thread
Pending = dict[object, set[Span]]
Parity = Mapping[Loop, int]


class Barriers:
    """Where barriers are, for one choice of launches that run on one thread. A loop is gone through until nothing changes: what one
    iteration leaves pending the next one meets."""

    def __init__(self, schedule: Schedule, touch: Callable[[Launch, Parity], list[Access]],
                 space: Callable[[Pointer, Parity], list[Access]], serial: Sequence[bool]) -> None:
        self.schedule, self.touch, self.space, self.serial = schedule, touch, space, serial
        self.number = {x: i for i, x in enumerate(schedule.program.launches)}
        self.alone = schedule.alone(serial)
        self.flags = [False] * len(schedule.rows)

    def run(self) -> list[bool]:
        self._block(self.schedule.program.block, {}, {})
        return self.flags

    def _meet(self, row: int, mine: Sequence[Access], alone: bool, pending: Pending) -> Pending:
        """What is pending after a row with these accesses; its flag is set where they conflict with what was pending."""
        clash = self.flags[row] or any(
            lo < a.hi and a.lo < hi and (a.write or write) and not (alone and was_alone)
            for a in mine
            for lo, hi, write, was_alone in pending.get(a.space, ())
        )
        self.flags[row] = clash
        after: Pending = {} if clash else {k: set(v) for k, v in pending.items()}
        for a in mine:
            after.setdefault(a.space, set()).add((a.lo, a.hi, a.write, alone))
        return after

    def _block(self, block: Sequence[Item], pending: Pending, parity: dict[Loop, int]) -> Pending:
        for item in block:
            if isinstance(item, Launch):
                k = self.number[item]
                pending = self._meet(self.schedule.row_of[k], self.touch(item, parity), self.serial[k], pending)
            elif item in self.alone:
                pending = self._meet(self.schedule.heads[item], self._all(item, parity), True, pending)
                if is_long(item):
                    self.flags[self.schedule.ends[item]] = True
                    pending = {}
            elif isinstance(item, Loop):
                pending = self._loop(item, pending, parity)
            else:
                pending = self._meet(self.schedule.heads[item], self.space(item.predicate, parity), False, pending)
                pending = _merged([self._block(part, pending, parity) for part in parts(item)])
        return pending

    def _loop(self, loop: Loop, pending: Pending, parity: dict[Loop, int]) -> Pending:
        head, last = self.schedule.heads[loop], self.schedule.ends[loop] - 1
        if head in self.schedule.checks:  # all threads decide alike: a barrier
            self.flags[head], pending = True, {}
        exits = [pending]
        test = next((i for i in range(self.schedule.heads[loop], self.schedule.ends[loop])
                     if self.schedule.rows[i].kind == "test" and self.schedule.rows[i].item is loop), -1)
        before: list[bool] = []
        while before != self.flags:
            before = list(self.flags)
            for turn in (0, 1, 0):
                inner = {**parity, loop: turn}
                pending = self._block(loop.test, pending, inner)
                if loop.predicate is not None:
                    pending = self._meet(test, self.space(loop.predicate, inner), False, pending)
                    exits.append(pending)
                pending = self._block(loop.body, pending, inner)
                if last in self.schedule.checks:
                    self.flags[last], pending = True, {}
                exits.append(pending)
        return _merged(exits)

    def _all(self, item: Loop | Branch, parity: Parity) -> list[Access]:
        found: list[Access] = []
        if item.predicate is not None:
            found += self.space(item.predicate, parity)
        for part in parts(item):
            for x in part:
                found += self.touch(x, parity) if isinstance(x, Launch) else self._all(x, parity)
        return found


def _merged(several: Sequence[Pending]) -> Pending:
    out: Pending = {}
    for one in several:
        for space, spans in one.items():
            out.setdefault(space, set()).update(spans)
    return out


def across(program: Program, schedule: Schedule, steps: Mapping[Buffer, Sequence[int]]) -> dict[Buffer, list[tuple[int, int]]]:
    """For each temp, the launches (first, last) of every loop through which it must stay: it was there before, is read after, or is carried
    from one iteration to the next. `steps`: the launches that touch it."""
    found: dict[Buffer, list[tuple[int, int]]] = {}
    for loop, first, stop in schedule.spans:
        if stop == first:
            continue
        carried = {b for c in loop.carried for b in roots(c)}
        for b, touched in steps.items():
            inside = any(first <= k < stop for k in touched)
            if b in carried or (inside and not all(first <= k < stop for k in touched)):
                found.setdefault(b, []).append((first, stop - 1))
    return found
