"""Threads under a scheduler that changes its mind often: what two threads can do to each other they do within seconds."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

HANG = 600.0  # seconds until a thread or a process is said to hang: a loaded machine takes minutes for what takes seconds


@contextmanager
def shaken(seed: int, often: float = 0.02) -> Iterator[None]:
    """Python switches threads after every few instructions, and a thread that calls or returns gives way at random. Threads that are
    started inside have it; so has the caller."""
    states = threading.local()
    numbers = iter(range(seed, seed + 1_000_000))

    def give_way(frame: Any, event: str, argument: Any) -> None:
        rng = getattr(states, "rng", None)
        if rng is None:
            rng = states.rng = random.Random(next(numbers))
        draw = rng.random()
        if draw < often:
            time.sleep(0 if draw < 0.9 * often else 1e-4)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threading.setprofile(give_way)
    try:
        yield
    finally:
        threading.setprofile(None)
        sys.setswitchinterval(before)


def together(works: Sequence[Callable[[], None]], seconds: float = HANG) -> None:
    """Run them on a thread each, all at once. The first problem is raised here; a thread that never ends is one."""
    problems: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait(HANG)
            work()
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for t in threads:
        t.start()
    end = time.monotonic() + seconds
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    assert problems or not any(t.is_alive() for t in threads), "a thread hangs"
    if problems:
        raise problems[0]


def at_once(count: int, work: Callable[[int], None]) -> None:
    """`work(i)` on `count` threads at once."""
    together([partial(work, i) for i in range(count)])


def ended(child: int) -> int:
    """The exit status of a forked process."""
    end = time.monotonic() + HANG
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(done[1])
