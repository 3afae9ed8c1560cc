"""Timing of several contenders in one run: rounds in random order, so that a slow moment of the machine hits all of them alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def measure(calls: Mapping[str, Call], *, rounds: int = 11, slice_s: float = 0.1, processor: bool = False) -> dict[str, list[float]]:
    """Seconds of one call per contender and round: the median of a slice of calls after a pause and two untimed ones. With `processor` it
    is the least processor time of the process, which repeats on a busy machine where every contender has one thread."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        counts[name] = max(3, min(2000, int(slice_s / max(_once(call), 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            call = calls[name]
            time.sleep(0.02)  # the last contender's threads fall asleep
            call()
            call()
            if processor:  # runs of calls: reading this clock is a system call
                run = max(1, min(counts[name] // 3, int(3e-5 / max(_once(call), 1e-6))))
                times[name].append(min(_run(call, run) for _ in range(counts[name] // run)))
            else:
                times[name].append(statistics.median(_once(call) for _ in range(counts[name])))
    return times


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """Their time over ours, round by round.

    >>> print(ratio([1.0, 1.0, 1.0, 2.0], [2.0, 2.0, 3.0, 2.0]))
    2.00 (2.00–2.00)
    """
    found = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    return Ratio(statistics.median(found), found[len(found) // 4], found[-1 - len(found) // 4])


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _run(call: Call, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count
