"""Groups of asynchronous work while a kernel is written: each is a token, and the waits follow from the tokens.

Products (`wgmma`), pieces (`cp.async`) and copies out of shared memory are committed in groups, which end in their order. The author says
which group must have ended; how many later ones may still be in flight is counted here, stages that ended groups have read are released,
and nothing is written for a group that has ended already.

>>> from ..ptx.text import KernelText
>>> k = KernelText("two", [])
>>> products = Groups(k, *PRODUCTS)
>>> first = products.commit(frees=lambda: k.emit("// the stage is free"))
>>> second = products.commit()
>>> products.wait(first); products.wait(first); products.wait(second)
>>> print(*k.lines[2:], sep="\\n")
  wgmma.wait_group.sync.aligned 1;
  // the stage is free
  wgmma.wait_group.sync.aligned 0;
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.errors import CompileError
from ..ptx.text import KernelText

PRODUCTS = ("wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned")
PIECES = ("cp.async.commit_group", "cp.async.wait_group")
COPIES = ("cp.async.bulk.commit_group", "cp.async.bulk.wait_group")
Frees = Callable[[], None]


class Groups:
    """Groups of one kind in the order of their commits; a token is a group's number."""

    def __init__(self, k: KernelText, commit: str, wait: str, guard: str = "") -> None:
        self.k, self.names, self.guard = k, (commit, wait), f"@{guard} " if guard else ""
        self.count = self.ended = 0
        self.frees: dict[int, Frees] = {}

    def commit(self, frees: Frees | None = None) -> int:
        """End a group; `frees` writes what may happen when it is known to have ended."""
        self.k.emit(f"{self.guard}{self.names[0]};")
        return self.carried(frees)

    def carried(self, frees: Frees | None = None) -> int:
        """At the start of a loop: the group that the round before has left in flight (in the first round there is none)."""
        if frees is not None:
            self.frees[self.count] = frees
        self.count += 1
        return self.count - 1

    def wait(self, token: int, *, sometimes: bool = False, read: bool = False) -> None:
        """Until the group has ended, and with it all before it. `sometimes`: on one of two ways, after which it is not known to have ended;
        `read`: until its sources have been read."""
        if token < self.ended:
            return
        self._write(self.count - token - 1, read)
        if not sometimes and not read:
            for t in range(self.ended, token + 1):
                if t in self.frees:
                    self.frees.pop(t)()
            self.ended = token + 1

    def room(self, places: int) -> None:
        """Until one of so many places, which groups read in turn, may be written again."""
        self._write(places - 1, True)

    def drain(self) -> None:
        """Until nothing is in flight, however the way here went."""
        self._write(0, False)
        self.ended = self.count
        self.frees.clear()

    @property
    def in_flight(self) -> int:
        """How many groups are not known to have ended."""
        return self.count - self.ended

    def again(self, start: int) -> None:
        """The end of a loop's round, which started with so many groups in flight: the next one must find as many."""
        if self.in_flight != start:
            raise CompileError(f"cuda: a round starts with {start} groups in flight and leaves {self.in_flight} (kernel {self.k.name})")

    def _write(self, later: int, read: bool) -> None:
        self.k.emit(f"{self.guard}{self.names[1]}{'.read' if read else ''} {later};")
