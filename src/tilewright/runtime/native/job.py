"""A schedule made ready to run: thunks, patches and the job block that the native runtime reads.

>>> import numpy as np
>>> thunks(2).shape
(2, 8)
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..memory import Allocation
from ..pool import Pool, process_pool
from . import layout as L

Words = NDArray[np.int64]


def thunks(count: int) -> Words:
    """An empty thunk table, one row per thunk; columns are THUNK_FN, THUNK_ARGS, THUNK_GRID, THUNK_FLAGS, THUNK_CHUNK of `layout`."""
    return np.zeros((count, L.THUNK_WORDS), np.int64)


def patches(rows: Sequence[tuple[int, int, int]]) -> Words:
    """The patch table from (address of an argument word, index of the call's pointer, byte offset)."""
    return np.array(rows, np.int64).reshape(len(rows), L.PATCH_WORDS)


class Job:
    """One instance of a schedule. At most one run at a time may use it; it keeps alive whatever it was given.

    `io` holds the call's pointers: fill it before `run()`. A `light` job takes less time than waking a worker (some 50 µs): when the
    workers sleep it runs alone, and wakes them only when such calls follow one another closely. `light` holds that word.
    """

    __slots__ = ("_block", "_keep", "_run", "address", "cancel", "error", "io", "light", "pool", "profile", "threads")

    def __init__(self, table: Words, patch_table: Words, *, threads: int, io_count: int, scratch: int = 0, light: bool = False,
                 pool: Pool | None = None, keep: object = None) -> None:
        self.pool = process_pool() if pool is None else pool
        self.threads = self.pool.ensure(threads)
        stride = -(-scratch // 128) * 128
        scratch_block = Allocation(max(stride * threads, 64))
        table, patch_table = np.ascontiguousarray(table, np.int64), np.ascontiguousarray(patch_table, np.int64)
        self._block = Allocation((L.JOB_WORDS + L.ERROR_WORDS + 4 + io_count) * 8)
        words = self._block.array(np.int64, (self._block.nbytes // 8,))
        self.address = self._block.address
        self.error: Words = words[L.JOB_WORDS:L.JOB_WORDS + L.ERROR_WORDS]
        self.cancel: Words = words[L.JOB_WORDS + L.ERROR_WORDS:L.JOB_WORDS + L.ERROR_WORDS + 1]
        self.io: Words = words[L.JOB_WORDS + L.ERROR_WORDS + 4:]
        self.profile: Words | None = None
        words[L.JOB_THUNKS], words[L.JOB_COUNT] = table.ctypes.data, len(table)
        words[L.JOB_PATCHES], words[L.JOB_PATCH_COUNT] = patch_table.ctypes.data, len(patch_table)
        words[L.JOB_THREADS] = threads
        words[L.JOB_SCRATCH], words[L.JOB_SCRATCH_STRIDE] = scratch_block.address, stride
        words[L.JOB_CANCEL] = self.address + (L.JOB_WORDS + L.ERROR_WORDS) * 8
        words[L.JOB_ERROR] = self.address + L.JOB_WORDS * 8
        words[L.JOB_POOL] = self.pool.address
        words[L.JOB_IO] = self.address + (L.JOB_WORDS + L.ERROR_WORDS + 4) * 8
        self.light: Words = words[L.JOB_LIGHT:L.JOB_LIGHT + 1]
        self.light[0] = light
        self._keep = (table, patch_table, scratch_block, keep)
        self._run = self.pool.run

    @property
    def error_address(self) -> int:
        """Where the error block lies: what an ErrorWord argument holds."""
        return self.address + L.JOB_WORDS * 8

    def run(self) -> int:
        """Run once with the pointers in `io`; gives status bits of `layout`: 0, CANCELLED, FAILED."""
        status = self._run(self.address)
        return self.settle(status) if status else 0

    def settle(self, status: int) -> int:
        """Clear FEW_WORKERS from a native status by starting the missing workers (a forked child has none) for the next run."""
        if status & L.FEW_WORKERS:
            self.pool.ensure(self.threads)
        return status & ~L.FEW_WORKERS

    def run_profiled(self) -> tuple[int, Words]:
        """Run once and measure: status, and ticks [thunk, thread, begin/end], zero where a thread had no part."""
        words = self._block.array(np.int64, (L.JOB_WORDS,))
        ticks = np.zeros((int(words[L.JOB_COUNT]), self.threads, 2), np.int64)
        words[L.JOB_PROFILE] = ticks.ctypes.data
        try:
            return self.run(), ticks
        finally:
            words[L.JOB_PROFILE] = 0
