"""Asynchronous work in a kernel's text: is everything that copies, the tensor core and stages of a ring touch ordered by a wait?

A few threads of a block (or of a cluster, or of several blocks) are run through the text with their integers only (`replay`), and their
token graph is built (`token_machine`). It is checked that every read of a stage is behind its arrival, every overwriting behind the last
read, whatever plain stores wrote behind a proxy fence before TMA or the tensor core reads it, registers of products behind
their `wait_group`, that no barrier can be passed a round early or missed, and that somebody always goes on. The launch is small but goes
around every ring more than twice; after that everything repeats.

A finding is a thing that is not ordered. `Checked.needs` says which accesses each wait orders.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ....core.errors import CompileError
from ..ptx.flow import parse
from .replay import Replay, compile_function
from .token_graph import Agent, Finding
from .token_machine import Machine
from .token_state import Launch

_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b(\d+)\s+(\w+)\[(\d*)\]")
_MAPS = 1 << 50  # where tensor maps are said to lie
ORDERING = (
    "mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait", "bar.", "barrier.", "fence.", "wgmma.fence", "wgmma.commit", "wgmma.wait",
    "cp.async.commit", "cp.async.wait", "cp.async.bulk.commit", "cp.async.bulk.wait", "griddepcontrol.wait",
)  # fmt: skip
WAITS = (
    "mbarrier.try_wait", "bar.sync", "bar.warp", "barrier.cluster.wait", "wgmma.wait", "wgmma.fence", "cp.async.wait", "cp.async.bulk.wait",
    "fence.", "griddepcontrol.wait",
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    findings: tuple[Finding, ...]
    accesses: int
    needs: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # line of a wait -> (earlier, later) accesses it orders
    # line that reads shared memory -> another thread, a copy, or the reader itself had written there
    met: dict[int, bool] = field(default_factory=dict)


@lru_cache(maxsize=8)
def _replay(text: str) -> Replay:
    functions = parse(text)
    if len(functions) != 1:
        raise CompileError(f"tokens: one kernel at a time, got a text with {len(functions)}; cut it into kernels first")
    return compile_function(functions[0])


def orders(text: str) -> bool:
    """Whether a kernel has asynchronous work at all."""
    return "mbarrier." in text or "cp.async" in text or "wgmma." in text


def symbols(text: str, maps: int) -> dict[str, int]:
    """Places of a kernel's shared memory: static first, then the dynamic part at exactly its declared alignment."""
    found, at = {}, 0
    for align, bits, name, count in sorted(_SHARED.findall(text), key=lambda m: not m[3]):
        step = int(align)
        at = -(-at // step) * step
        if not count and at % (2 * step) == 0 and step < 1024:
            at += step  # no more aligned than it was declared
        found[name] = at
        at += int(bits) // 8 * int(count or 0)
    return {**found, **{f"map{i}": _MAPS + 128 * i for i in range(maps)}}


def check(text: str, launch: Launch, without: Sequence[int] = (), explain: bool = False) -> Checked:
    """Run the launch; `without` are instructions (by number) that are left out."""
    replay = _replay(text)
    maps = len(re.findall(r"\.b8 map\d+\[128\]", text))
    places = symbols(text, maps)
    agents = []
    for block in range(launch.blocks):
        for tid, weight in launch.threads:
            name = f"thread {tid}" + (f" of block {block}" if launch.blocks > 1 else "")
            registers = [0] * replay.registers
            rank = block % launch.cluster
            agents.append(Agent(name, tid, block, weight, registers, list(launch.words), places, launch.grid, block, rank))
    machine = Machine(replay, agents, launch, frozenset(without), explain)
    graph = machine.run()
    found = tuple(sorted(graph.findings.values(), key=lambda f: f.line))
    return Checked(found, graph.accesses, {line: tuple(pairs) for line, pairs in sorted(graph.needs.items())}, graph.met)


def ordering_ops(text: str) -> list[int]:
    """Numbers of the instructions that order something: what a mutation leaves out."""
    return [i for i, op in enumerate(_replay(text).function.ops) if op.opcode.startswith(ORDERING)]


@dataclass(frozen=True)
class Wait:
    """A wait or fence of a kernel's text: the accesses that it orders, and what goes wrong without it (nothing: it could be left out)."""

    line: int
    op: str
    orders: tuple[tuple[int, int], ...]
    without: tuple[Finding, ...]

    def why(self, lines: Sequence[str]) -> str:
        if self.orders:
            earlier, later = self.orders[0]
            more = f", and {len(self.orders) - 1} more pairs" if len(self.orders) > 1 else ""
            said = f"line {later} ({_opcode(lines, later)}) comes after line {earlier} ({_opcode(lines, earlier)}){more}"
            return said if self.without else f"{said}; another wait orders the same"
        return f"without it: {self.without[0].text}" if self.without else "orders nothing that others do not"


def _opcode(lines: Sequence[str], line: int) -> str:
    words = lines[line - 1].split()
    return ".".join(words[words[0].startswith("@")].rstrip(";").split(".")[:3])


def waits(text: str, launch: Launch) -> list[Wait]:
    """Every wait and fence in order, with who needs it."""
    needs = check(text, launch, explain=True).needs
    found = []
    for i, op in enumerate(_replay(text).function.ops):
        if op.opcode.startswith(WAITS):
            found.append(Wait(op.line, op.opcode, needs.get(op.line, ()), check(text, launch, [i]).findings))
    return found
