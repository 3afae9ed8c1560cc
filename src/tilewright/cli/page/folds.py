"""Repeated layers of a model: where the launches of a schedule repeat, the page shows the first layer and folds the others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from .data import Box, Inspection


@dataclass(frozen=True)
class Repeat:
    """`count` copies of `period` items, the first of which begins at `first`."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.period * self.count


def layers(data: Inspection) -> Repeat | None:
    """The repetition among the launches of a schedule."""
    return repeated([(s.kernel, s.grid, s.flops) for s in data.steps])


def folded(data: Inspection) -> list[Box]:
    """The boxes of the graph, with all copies of a layer but the first as one box."""
    again = layers(data)
    if again is None:
        return data.boxes
    hidden = {s.box for s in data.steps[again.first + again.period : again.end]} - {s.box for s in data.steps[: again.first + again.period]}
    name = "repeated layers"
    sources = dict.fromkeys(s for b in data.boxes if b.name in hidden for s in b.sources if s not in hidden)
    fold = Box(name, "other", f"… {again.count - 1} times more", f"{len(hidden)} boxes", "the same launches again", tuple(sources))
    out: list[Box] = []
    for b in data.boxes:
        if b.name not in hidden:
            out.append(replace(b, sources=tuple(dict.fromkeys(name if s in hidden else s for s in b.sources))))
        elif fold not in out:
            out.append(fold)
    return out


def repeated(keys: Sequence[Hashable], least: int = 3) -> Repeat | None:
    """The repetition of a run of at least two items that covers most of `keys`, the shortest period first; None below `least` copies.

    >>> repeated("xababababy")
    Repeat(first=1, period=2, count=4)
    """
    best: Repeat | None = None
    for period in range(2, len(keys) // least + 1):
        start = 0
        while start + least * period <= len(keys):
            end = start + period
            while end < len(keys) and keys[end] == keys[end - period]:
                end += 1
            count = (end - start) // period
            if count >= least and (best is None or count * period > best.count * best.period):
                best = Repeat(start, period, count)
            start = max(start + 1, end - period + 1)
    return best
