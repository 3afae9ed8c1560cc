"""What of PyTorch is another while AOTAutograd traces a graph of ours."""
from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


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
