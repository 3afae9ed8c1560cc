"""The token graph of a kernel's run: which access follows which, across threads, copies and the tensor core.

Every access and every completion is a token, one bit of a Python integer. An agent (a thread) carries the tokens that it follows: its own
earlier accesses, and what it learned where it waited. An asynchronous access (a copy, a `wgmma`) is followed only by those who waited for
its end. Two accesses of the same bytes, one of which writes, must be ordered: the later one's agent follows the earlier one's token. What
was written by plain stores, or by another thread's copy to memory, must also have passed a proxy fence before TMA or the
tensor core touches it; such tokens are in `seen`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..ptx.flow import Op

MEMORY = "memory"  # the space that all blocks share
SHIFT = 11  # accesses are kept by pieces of 2048 bytes
_NONE: dict[Any, Access] = {}


@dataclass(frozen=True)
class Finding:
    """Something that is not ordered, or never ends."""

    kind: str  # race, proxy, registers, phase, stuck, exit, use
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(eq=False)
class Access:
    token: int
    op: Op
    who: str
    write: bool
    apart: bool  # by TMA or the tensor core
    lo: int
    hi: int


@dataclass(eq=False)
class Agent:
    """One thread of a block, which stands for `weight` threads that do the same at other places."""

    name: str
    tid: int
    block: int
    weight: int
    registers: list[Any]
    words: list[int]
    symbols: dict[str, int]
    nctaid: int
    ctaid: int
    rank: int
    pc: int = 0
    waiting: Any = None
    at: Any = None  # generation of the barrier that it has arrived at
    cluster_at: Any = None
    reach: int = 0
    seen: int = 0
    late: bool = False  # the previous kernel has ended
    open_copies: list[tuple[int, int]] = field(default_factory=list)  # tokens: source is read, target is written
    copies: list[list[tuple[int, int]]] = field(default_factory=list)
    open_pieces: int = 0
    pieces: list[int] = field(default_factory=list)
    products: int = 0  # tokens of wgmma that are in no group yet
    in_group: tuple[int, int] = (0, 0)  # their accumulators, and the registers that they read
    flying: list[tuple[int, int]] = field(default_factory=list)  # the same of every group that is not known to have ended
    committed: int = 0
    ended: int = 0  # groups
    unfenced: int = -1  # registers touched since `wgmma.fence`
    polled: Any = None
    steps: int = 0
    learned: list[tuple[Op, int]] = field(default_factory=list)  # what each wait brought
    votes: int = 0

    def vote(self) -> bool:
        """A warp's vote on data: both ways are gone, and warps differ in when."""
        self.votes += 1
        return (2 * self.votes + (self.tid >> 5)) % 5 > 1

    @property
    def leads(self) -> bool:
        """The thread that stands for its warpgroup where all of its threads do one thing together."""
        return self.tid % 128 == 0


class TokenGraph:
    def __init__(self, explain: bool = False, together: bool = False) -> None:
        self.count = 0
        self.plain = 0  # tokens of plain accesses: they pass only with a release and an acquire
        self.live: dict[Any, dict[Any, Access]] = {}  # (space, writes, piece) -> the last accesses
        self.findings: dict[tuple[str, int, int], Finding] = {}
        self.explain = explain
        self.together = together  # threads write different pieces of what is kept as one: only reading and writing must be ordered
        self.fences: list[tuple[Op, int]] = []  # what each proxy fence brought
        self.needs: dict[int, dict[tuple[int, int], None]] = {}  # line of a wait or fence -> pairs of lines that it orders
        self.met: dict[int, bool] = {}  # line that reads shared memory -> another agent, a copy or, all of it, the reader had written it
        self.accesses = 0

    def token(self) -> int:
        self.count += 1
        return 1 << self.count

    def find(self, kind: str, op: Op, text: str, other: int = 0) -> None:
        self.findings.setdefault((kind, op.line, other), Finding(kind, op.line, text))

    def learn(self, a: Agent, op: Op, reach: int, seen: int, fence: bool = False) -> None:
        """`a` follows these tokens from here on."""
        if self.explain:
            gained = (seen & ~a.seen) if fence else (reach & ~a.reach)
            if gained:
                (self.fences if fence else a.learned).append((op, gained))
        a.reach |= reach
        a.seen |= seen

    def access(self, a: Agent, op: Op, space: Any, lo: int, size: int, *, write: bool, apart: bool = False, pending: bool = False) -> int:
        """An access begins: everything it must follow, it follows. Its token is known to the agent at once unless it is `pending`."""
        hi = lo + size
        reach, seen = a.reach, a.seen
        self.accesses += 1
        if not write:
            self.met.setdefault(op.line, False)
        first, last = lo >> SHIFT, hi - 1 >> SHIFT
        places = range(first, last + 1)
        if first == last and not write:
            found = self.live.get((space, True, first), _NONE)
        else:
            found = {k: x for w in (True, False)[: 1 + write] for p in places for k, x in self.live.get((space, w, p), _NONE).items()}
        for key, x in found.items():
            if x.lo < hi and lo < x.hi and not (write and x.write and self.together):
                if not reach & x.token:
                    self._race(a, op, x, write)
                elif apart and x.write and not seen & x.token and (not x.apart or (space == MEMORY and x.who != a.name)):
                    self.find("proxy", op, f"{_said(op, write)} what line {x.op.line} stored, with no proxy fence between", x.op.line)
                elif self.explain:
                    self._credit(a, op, x, apart)
                if not write:
                    self.met[op.line] = self.met[op.line] or x.apart or x.who != a.name or (x.lo <= lo and hi <= x.hi)
                elif lo <= x.lo and x.hi <= hi:  # whoever comes later is ordered by this write
                    for p in range(x.lo >> SHIFT, (x.hi - 1 >> SHIFT) + 1):
                        del self.live[space, x.write, p][key]
        token = self.token()
        new = Access(token, op, a.name, write, apart, lo, hi)
        for p in places:
            self.live.setdefault((space, write, p), {})[a.name, op.line, lo, hi] = new
        if not apart:
            self.plain |= token
        if not pending:
            a.reach |= token
        return token

    def _race(self, a: Agent, op: Op, x: Access, write: bool) -> None:
        way = f"`{x.op.opcode}` (line {x.op.line}, {x.who})"
        self.find("race", op, f"{_said(op, write)} ({a.name}) what {way} {'writes' if x.write else 'reads'}, in no order", x.op.line)

    def _credit(self, a: Agent, op: Op, x: Access, apart: bool) -> None:
        """Note the wait, and the fence, that put the later access behind the earlier one."""
        fenced = apart and x.write and a.seen & x.token
        for want in (False, True) if fenced else (False,):
            for by, gained in reversed(self.fences if want else a.learned):
                if gained & x.token:
                    self.needs.setdefault(by.line, {})[x.op.line, op.line] = None
                    break


def _said(op: Op, write: bool) -> str:
    return f"`{op.opcode}` {'writes over' if write else 'reads'}"
