"""Threads for work that could be done here as well: compiling, packing.

Where the system gives no thread (a limit on processes), the work is done by those there are, or by the caller; it never fails for that.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """At most `count` threads, started as work comes and ended with the `with` block, which waits for all of it."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        future: Future[T] = Future()
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}")
            try:
                thread.start()
                self._threads.append(thread)
            except RuntimeError:  # no more threads: the next one may ask again
                pass
        if self._threads:
            self._queue.put((future, lambda: work(*args)))
        else:
            _do(future, lambda: work(*args))
        return future

    def map(self, work: Callable[..., T], items: Iterable[Any]) -> list[T]:
        """`work` of every item, in order. `items` may be a generator: what it has given is worked on while it makes the next."""
        return [f.result() for f in [self.submit(work, item) for item in items]]

    def _run(self) -> None:
        while (found := self._queue.get()) is not None:
            _do(*found)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as problem:
        future.set_exception(problem)
