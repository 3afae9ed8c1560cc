"""Memory for packed weights, brought in by a thread of its own while the model is imported and the passes run.

The first touch of a page is slow (the system clears it; a virtual machine may have to ask its host for it) and needs no Python, so
it is done on another core before the exact size is known. What was guessed too much is given back.
"""
from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from .memory import HUGE, Allocation

LEAST = 16 << 20  # less is not worth a thread
MOST = 1 << 30  # bytes touched ahead
STEP = 8 << 20  # bytes touched in one go: how long `take` may have to wait
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14 and later; elsewhere the request fails and pages come on first use
DONTNEED = 4


def packed_estimate(model: Any) -> int:
    """Bytes of the matrices among the parameters of a torch module or ExportedProgram: most of what will be packed. 0 for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, (torch.nn.Module, torch.export.ExportedProgram)):
        return 0
    matrices = [p for p in model.parameters() if type(p) is torch.nn.Parameter and p.ndim == 2 and p.device.type == "cpu"]
    return sum({p.data_ptr(): p.nbytes for p in matrices}.values())  # a tied weight is packed once


class Ahead:
    """A block of about the expected size, being touched. `take` ends that and gives a block that is large enough."""

    def __init__(self, expected: int) -> None:
        self._stop = threading.Event()
        self._touched = 0
        self._block = Allocation(expected + expected // 8 + HUGE)  # address space only: panels may be padded
        self._thread = threading.Thread(target=self._touch, args=(min(expected, MOST),), name="tilewright-memory", daemon=True)
        self._thread.start()

    @staticmethod
    def of(model: Any) -> Ahead | None:
        """For a model as the user gives it; None where little will be packed."""
        expected = packed_estimate(model)
        return Ahead(expected) if expected >= LEAST else None

    def _touch(self, wanted: int) -> None:
        advise = _madvise()
        while self._touched < wanted and not self._stop.is_set():
            step = min(STEP, wanted - self._touched)
            if advise(self._block.address + self._touched, step, POPULATE_WRITE):
                return  # not offered here
            self._touched += step

    def take(self, nbytes: int) -> Allocation:
        """Memory for `nbytes`: the block, without what is beyond, or another one where it is too small."""
        self.close()
        if nbytes > self._block.nbytes or nbytes < HUGE:
            return Allocation(nbytes)
        end = -(-nbytes // HUGE) * HUGE
        if self._touched > end:
            _madvise()(self._block.address + end, self._touched - end, DONTNEED)
        return self._block

    def close(self) -> None:
        """Touch no more."""
        self._stop.set()
        self._thread.join()


def _madvise() -> Callable[[int, int, int], int]:
    found: Any = ctypes.CDLL(None).madvise
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found  # type: ignore[no-any-return]
