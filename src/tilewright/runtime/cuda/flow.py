"""Loops and branches of a program on a GPU: what is recorded into a CUDA graph, and what the host decides while it runs.

A loop of a known number of steps is written out, step by step, into the graph around it as long as that stays small. Longer ones are a
loop on the host over launches whose arguments move. The predicate of a `while` or a `cond` is read back from the device: the host waits
for it, and the report says so. (Small ones were one kernel before anybody got here: `kernels/cuda/whole.py`.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.dims import Dim, evaluate
from ...kernels.cuda.whole import WholeKernel
from ...kernels.launch import Alternating, Argument, Branch, Item, Launch, Loop, Pointer, Sliding, flatten, parts

RECORDED = 2048  # kernels of a written-out loop; a node takes some microseconds to make and to give new addresses
Turns = Mapping[Loop, int]


@dataclass(frozen=True)
class Moved(Pointer):
    """A pointer that also goes forward by so many bytes in every step of loops that run on the host."""

    slides: tuple[tuple[Loop, Dim], ...] = ()


@dataclass(eq=False)
class Straight:
    """Launches one after another, each with the step it belongs to of every written-out loop."""

    launches: list[tuple[Launch, Turns]] = field(default_factory=list)


@dataclass(eq=False)
class Repeat:
    """A loop on the host."""

    loop: Loop
    count: int
    body: list[Part]


@dataclass(eq=False)
class Until:
    """A loop whose predicate the host reads before every step."""

    loop: Loop
    limit: int | None
    test: list[Part]
    body: list[Part]
    predicate: Pointer
    turns: Turns


@dataclass(eq=False)
class Choice:
    """A branch whose predicate the host reads."""

    branch: Branch
    then: list[Part]
    other: list[Part]
    turns: Turns


Part = Straight | Repeat | Until | Choice


def recorded(item: Item, env: Mapping[str, int]) -> int | None:
    """How many kernels an item is when it is written out, None where it cannot be: the host decides something inside."""
    if isinstance(item, Launch):
        return 1
    if isinstance(item, Branch) or item.predicate is not None or item.count is None:
        return None
    inner = 0
    for x in item.body:
        n = recorded(x, env)
        if n is None:
            return None
        inner += n
    total = inner * evaluate(item.count, env)
    return total if total <= RECORDED else None


def parts_of(block: Sequence[Item], env: Mapping[str, int], turns: Turns | None = None) -> list[Part]:
    """A block for these values of the symbols. `turns`: the steps of the written-out loops around it."""
    turns, out = dict(turns or {}), list[Part]()

    def append(part: Part) -> None:
        if isinstance(part, Straight) and out and isinstance(out[-1], Straight):
            out[-1].launches += part.launches
        else:
            out.append(part)

    for item in block:
        if isinstance(item, Launch):
            append(Straight([(item, turns)]))
        elif isinstance(item, Branch):
            append(Choice(item, parts_of(item.then, env, turns), parts_of(item.other, env, turns), turns))
        elif item.predicate is not None:
            limit = None if item.count is None else evaluate(item.count, env)
            append(Until(item, limit, parts_of(item.test, env, turns), parts_of(item.body, env, turns), item.predicate, turns))
        else:
            assert item.count is not None
            count = evaluate(item.count, env)
            if recorded(item, env) is None:
                append(Repeat(item, count, parts_of(item.body, env, turns)))
                continue
            for i in range(count):
                for part in parts_of(item.body, env, {**turns, item: i}):
                    append(part)
            turns = {**turns, item: count}  # what comes after finds the last carries by it
    return out


def settled(argument: Argument, turns: Turns, live: Turns) -> Argument:
    """An argument without windows. `turns` are steps of written-out loops; of those in `live`, which run on the host, only whether the step
    is odd is fixed here: slices go into the result's slides."""
    if not isinstance(argument, Pointer):
        return argument
    b, offset, slides = argument.buffer, argument.offset, list[tuple[Loop, Dim]]()
    while isinstance(b, (Sliding, Alternating)):
        if isinstance(b, Alternating):
            turn = turns[b.loop] if b.loop in turns else live[b.loop]
            b = b.odd if turn % 2 else b.even
            continue
        offset = offset + b.offset
        if b.loop in turns:
            offset = offset + b.step * turns[b.loop]
        else:
            slides.append((b.loop, b.step))
        b = b.base
    return Moved(b, offset, argument.extent, tuple(slides)) if slides else Pointer(b, offset, argument.extent)


def follows(launches: Sequence[tuple[Launch, Turns]]) -> tuple[list[Loop], list[Loop]]:
    """The loops on the host by whose parity, and those by whose step, arguments of these launches go."""
    odd: dict[Loop, None] = {}
    slid: dict[Loop, None] = {}

    def visit(b: Any, turns: Turns) -> None:
        if isinstance(b, Alternating):
            if b.loop not in turns and b.even is not b.odd:
                odd[b.loop] = None
            visit(b.even, turns)
            visit(b.odd, turns)
        elif isinstance(b, Sliding):
            if b.loop not in turns and b.step != 0:
                slid[b.loop] = None
            visit(b.base, turns)

    for launch, turns in launches:
        for way in launch.ways:
            for a in way.arguments:
                if isinstance(a, Pointer):
                    visit(a.buffer, turns)
    return list(odd), list(slid)


def describe_control(block: Sequence[Item], env: Mapping[str, int], depth: int = 0, *, inside: bool = False) -> list[dict[str, Any]]:
    """Every loop and branch, outer ones first: what it is, how many steps it takes, how it runs. `inside`: of one kernel."""
    rows: list[dict[str, Any]] = []
    for item in block:
        if isinstance(item, Launch):
            if isinstance(item.kernel, WholeKernel):
                rows += describe_control(item.kernel.items, env, depth, inside=True)
            continue
        count = None if isinstance(item, Branch) or item.count is None else evaluate(item.count, env)
        kind = "cond" if isinstance(item, Branch) else "scan" if item.predicate is None else "while"
        how = "one block of threads goes through it in one kernel"
        if kind != "scan" and not inside:
            how = f"the host reads the predicate{' before every step' if kind == 'while' else ''} and waits for it"
        elif not inside:
            how = "every step is recorded in the graph around it" if recorded(item, env) is not None else "the host launches every step"
        launches = [x.name for part in parts(item) for x in flatten(part)]
        rows.append({"name": item.name, "kind": kind, "depth": depth, "steps": count, "launches": launches,
                     "synchronises": kind != "scan" and not inside, "how": how})  # fmt: skip
        for part in parts(item):
            rows += describe_control(part, env, depth + 1, inside=inside)
    return rows


def enclosing(block: Sequence[Item]) -> dict[Launch, str]:
    """The name of the innermost loop or branch around every launch that is in one."""
    found: dict[Launch, str] = {}
    for item in block:
        if not isinstance(item, Launch):
            for part in parts(item):
                found |= {x: item.name for x in part if isinstance(x, Launch)} | enclosing(part)
    return found
