"""The compiled signatures of jitted functions, kept by how lately they were used.

Every other shape is another program. A process that runs through many of them keeps a bounded number: the one that was used longest ago
is forgotten, and its code and memory are freed once no call is inside it.
"""
from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

KEPT = 2048  # programs of one store; small ones take some 60 KB each

_lock = threading.RLock()  # keys may compare by code of the user's, which may call a jitted function
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Programs:
    """At most `KEPT` programs of one or several functions. Any thread may use it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, Hashable], Any] = OrderedDict()

    def get(self, owner: int, key: Hashable) -> Any:
        with _lock:
            found = self._kept.get((owner, key))
            if found is not None:
                self._kept.move_to_end((owner, key))
            return found

    def put(self, owner: int, key: Hashable, program: Any) -> None:
        gone = []  # freed after the lock is
        with _lock:
            self._kept[owner, key] = program
            while len(self._kept) > KEPT:
                gone.append(self._kept.popitem(last=False))

    def of(self, owner: int) -> list[Hashable]:
        """The keys of one function, the least lately used first."""
        with _lock:
            return [key for whose, key in self._kept if whose == owner]

    def forget(self, owner: int) -> None:
        with _lock:
            gone = [self._kept.pop((owner, key)) for key in self.of(owner)]
        del gone
