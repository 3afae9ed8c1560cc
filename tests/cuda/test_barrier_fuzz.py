"""The barrier analyser on random PTX, with branches to anywhere: what goes wrong when every thread goes its way alone is always found, and
where all threads have the same numbers nothing is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fresh import fresh_rng
from tilewright.target.cuda.safety.barrier_safety import check

REGISTERS, PREDICATES = [f"%r{i}" for i in range(1, 6)], [f"%p{i}" for i in range(1, 5)]
COMPARE: dict[str, Any] = {"lt": int.__lt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}
SAID = {"mov": "mov.u32 {}, {};", "setp": "setp.{1}.u32 {0}, {2}, {3};", "bar": "bar.sync 0;", "bra": "bra L{};", "exit": "exit;",
        "add": "add.u32 {}, {}, {};", "and": "and.b32 {}, {}, {};"}  # fmt: skip
STEPS = 400  # steps of a thread; programs that take more are left out


class Program:
    """Instructions as tuples: (what, guard or "", its wanted value, ...)."""

    def __init__(self, pick: random.Random, number: str) -> None:
        self.ops: list[tuple[Any, ...]] = [("mov", "", True, "%r1", number), ("mov", "", True, "%r2", "%ctaid.x")]
        self.ops += [("mov", "", True, r, pick.randint(0, 9)) for r in REGISTERS[2:]]
        self.ops += [self._compare(pick, p) for p in PREDICATES]
        self.first = len(self.ops)  # what branches may reach
        count = pick.randint(4, 22)
        self.ops += [self._random(pick, count) for _ in range(count)]
        self.ops.append(("exit", "", True))

    def _compare(self, pick: random.Random, to: str) -> tuple[Any, ...]:
        return "setp", "", True, to, pick.choice([*COMPARE]), pick.choice(REGISTERS), pick.randint(0, 9)

    def _random(self, pick: random.Random, count: int) -> tuple[Any, ...]:
        kind = pick.choices(("bar", "bra", "exit", "add", "and", "setp"), (22, 18, 10, 22, 8, 20))[0]
        guard, wanted = pick.choice([*PREDICATES, *([""] * (0 if kind == "exit" else 2))]), pick.random() < 0.5
        if kind == "bar":
            return kind, "", True
        if kind == "setp":
            return self._compare(pick, pick.choice(PREDICATES))
        if kind == "bra":
            return kind, guard, wanted, pick.randint(0, count)
        return (kind, guard, wanted) if kind == "exit" else (kind, guard, wanted, *pick.choices(REGISTERS, k=2), pick.randint(1, 4))

    def text(self) -> str:
        lines = [".visible .entry k()", "{", ".reg .pred %p<9>;", ".reg .b32 %r<9>;"]
        for i, (kind, guard, wanted, *x) in enumerate(self.ops):
            label, if_ = f"L{i - self.first}:" if i >= self.first else "", f"@{'' if wanted else '!'}{guard} " if guard else ""
            lines.append(label + if_ + SAID[kind].format(*x))
        return "\n".join([*lines, "}"])

    def barriers(self, thread: int, block: int) -> list[int] | None:
        """The barriers that a thread comes to, in order."""
        values: dict[str, Any] = {"%tid.x": thread, "%ctaid.x": block}
        at = 0
        met: list[int] = []
        for _ in range(STEPS):
            kind, guard, wanted, *x = self.ops[at]
            at += 1
            if guard and values[guard] != wanted:
                continue
            if kind == "exit":
                return met
            if kind == "bra":
                at = self.first + x[0]
            elif kind == "bar":
                met.append(at)
            elif kind == "setp":
                values[x[0]] = COMPARE[x[1]](values[x[2]], x[3])
            else:
                a = values.get(x[1], x[1])
                values[x[0]] = a if kind == "mov" else (a + x[2]) % 2**32 if kind == "add" else a & x[2]
        return None


def test_what_happens_is_found() -> None:
    pick = random.Random(int(fresh_rng().integers(1 << 32)))
    faults = 0
    for _ in range(600):
        program = Program(pick, "%tid.x")
        ways = [[program.barriers(t, c) for t in range(11)] for c in range(2)]
        if all(None not in block for block in ways) and any(way != block[0] for block in ways for way in block):
            faults += 1
            assert check(program.text()), program.text()
    assert faults > 5  # about 42 of them


@pytest.mark.parametrize("number", ["%ctaid.x", "%nctaid.x"])
def test_what_all_threads_share_is_no_alarm(number: str) -> None:
    pick = random.Random(int(fresh_rng().integers(1 << 32)))
    for _ in range(200):
        program = Program(pick, number)
        assert not check(program.text()), program.text()
