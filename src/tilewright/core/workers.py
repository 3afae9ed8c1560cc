"""Threads that may not come: a system with a limit on threads refuses them, and one short of memory may lose a thread that it has started.

`spawn` starts a thread or says that there is none; `threading.Thread.start` would wait for ever for a thread that dies before its first
line. `Workers` spreads work that the caller can do as well: it never fails for lack of threads.
"""
from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
PATIENCE_S = 10.0  # for the first sign of life of a thread


def spawn(work: Callable[..., None], *args: Any) -> Callable[[], None] | None:
    """`work(*args)` on a thread of its own: a function that waits for its end, or None where there is no thread."""
    begun, mine, over = (_thread.allocate_lock() for _ in range(3))
    begun.acquire()
    over.acquire()

    def run() -> None:
        if not mine.acquire(False):
            return  # nobody waits any more
        begun.release()
        try:
            work(*args)
        finally:
            over.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return None
    if not begun.acquire(timeout=PATIENCE_S) and mine.acquire(False):
        return None

    def join() -> None:
        with over:
            pass

    return join


class Task(Generic[T]):
    """Work to be done once, by whoever comes first."""

    def __init__(self, work: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._work, self._args = work, args
        self._taken, self._over = _thread.allocate_lock(), _thread.allocate_lock()
        self._over.acquire()
        self._result: T
        self._problem: BaseException | None = None

    def do(self) -> None:
        if not self._taken.acquire(False):
            return
        try:
            self._result = self._work(*self._args)
        except BaseException as problem:
            self._problem = problem
        finally:
            self._over.release()

    def drop(self) -> None:
        """Nobody begins it any more; where somebody has, wait for that."""
        if not self._taken.acquire(False):
            with self._over:
                pass

    def result(self) -> T:
        """What the work gives or raises; it is done now where nobody has begun."""
        self.do()
        with self._over:
            if self._problem is not None:
                raise self._problem
            return self._result


class Workers:
    """At most `count` threads beside the caller's, started as work comes. At the end of the `with` block none of them works any more; what
    nobody has begun by then is dropped."""

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))  # threads that may be started
        self._waiting: deque[Task[Any]] = deque()
        self._all: list[Task[Any]] = []

    def submit(self, work: Callable[..., T], *args: Any) -> Task[T]:
        task = Task(work, args)
        self._all.append(task)
        self._waiting.append(task)
        try:
            self._free.pop()
            _thread.start_new_thread(self._run, ())
        except (IndexError, RuntimeError):
            pass  # all are at work, or there is none to be had: the caller does it in the end
        return task

    def map(self, work: Callable[..., T], items: Iterable[Any]) -> list[T]:
        """`work` of every item, in order. `items` may be a generator: what it has given is worked on while it makes the next."""
        return [task.result() for task in [self.submit(work, item) for item in items]]

    def _run(self) -> None:
        """Until nothing waits; the next `submit` may start another thread."""
        while True:
            try:
                task = self._waiting.popleft()
            except IndexError:
                self._free.append(0)
                return
            task.do()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._all:
            task.drop()
