"""What of PyTorch is another while AOTAutograd traces a graph of ours."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any


class Exchanged:
    """A context inside which `put` holds, in all threads: the first to enter calls it, the last to leave calls `restore`."""

    def __init__(self, put: Callable[[], None], restore: Callable[[], None]) -> None:
        self.put, self.restore, self.inside, self.lock = put, restore, 0, threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.put()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.restore()


def exchanged_kernels(found: Callable[[], Iterator[tuple[Any, Any, Callable[..., Any]]]]) -> Exchanged:
    """Inside, ops have other kernels in Python: (op, dispatch key, kernel)."""
    before: dict[tuple[Any, Any], Any] = {}

    def put() -> None:
        for op, key, kernel in found():
            before[op, key] = op.py_kernels.get(key)
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()

    def restore() -> None:
        for (op, key), kernel in before.items():
            if kernel is None:
                del op.py_kernels[key]
            else:
                op.py_kernels[key] = kernel
            op._dispatch_cache.clear()
        before.clear()

    return Exchanged(put, restore)
