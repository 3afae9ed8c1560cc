"""Work of unequal size that threads take as they become free: programs that draw numbers until none are left.

Which thread does what differs from run to run, so items must not depend on each other, nor their results on who computes them. Programs of
the grid's first half count from the first item on, the others from the last one back: on two threads each keeps to its end of the items,
where its caches are warm, and only the middle changes hands.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.dtypes import i64
from ..tile.builder import Ix, KernelBuilder, View

GRID = 32  # programs, hence threads that can take part
WORDS = 3  # of a counter: numbers drawn, and those from either end


def clear(b: KernelBuilder, counters: View, count: Ix | int) -> None:
    """Before the launches that draw: in a launch of its own, by one program."""
    with b.loop(0, count) as loop:
        b.store(counters, (loop.index, 0), b.full((WORDS,), 0, i64))


def draw(b: KernelBuilder, counters: View, which: Ix | int, items: Ix, body: Callable[[Ix | int], None]) -> None:
    """body(item) for every item of a launch over GRID programs."""
    one, side = b.full((), 1, i64), b.pid // (GRID // 2)
    drawn = b.to_index(b.atomic("add", counters, (which, 0), b.full((), 0, i64)))
    with b.loop(0, items - drawn):
        number = b.to_index(b.atomic("add", counters, (which, 0), one))
        with b.if_(b.compare("lt", number, items)):
            place = b.to_index(b.atomic("add", counters, (which, side + 1), one))
            body((1 - side) * place + side * (items - 1 - place))
