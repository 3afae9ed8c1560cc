"""The process-wide worker threads. Python starts them once; each then sits in a native loop with the GIL released.

`run(job)` is the native entry itself: one foreign call of one integer per inference. When the workers are busy with another
caller's job, it runs the schedule alone on the caller's thread, so callers never wait for each other.

The pool's block never moves. A forked child has no workers: its block is reset in place, runs alone at first, and `ensure` starts new
workers. At exit the workers are told to stop, woken and joined; a call after that runs alone.
"""
from __future__ import annotations

import atexit
import ctypes
import functools
import os
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.config import MAX_THREADS, load
from ..core.errors import ConfigError
from ..core.workers import spawn
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import available_cores, host_target
from ..target.cpu.jit import Library
from .crash import arm
from .memory import Allocation
from .native import layout as L
from .native.walker import EXPORTS, runtime_ir, runtime_key

STALL_US = 500  # that a caller sleeps at barriers where the cores are free: workers that wake up, an interrupt
RETREAT_US = 1_000_000  # at most, until a job tries again whether all its threads find cores
PATIENCE_S = 1.0  # before a system that refused a thread is asked again
_WORD = ctypes.c_void_p  # plain integers; the fastest of ctypes' argument types
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tw_run": (ctypes.c_ssize_t, (_WORD,)),
    "tw_worker": (None, (_WORD, _WORD, _WORD)),
    "tw_acquire": (None, (_WORD,)),
    "tw_release": (None, (_WORD,)),
    "tw_stop": (None, (_WORD,)),
    "tw_spin": (None, (_WORD,)),
    "tw_ticks": (ctypes.c_size_t, ()),
}


class Pool:
    """Worker threads and the native entry. Use `process_pool()`; tests make their own."""

    def __init__(self) -> None:
        target = host_target(level="native")
        cache = CodeCache()
        source = runtime_key(target), functools.partial(runtime_ir, target)
        (code,), _ = cache.build([source], target, "light")  # half the time of O2, as fast to run
        self.notes = cache.notes
        self.library = Library([code], EXPORTS)
        native: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            native[name] = ctypes.CFUNCTYPE(result, *arguments)(self.library.address(name))
        self.run: Callable[[int], int] = native["tw_run"]
        self._native = native
        self._block = Allocation(L.POOL_LINES + L.LINE * MAX_THREADS)
        self._words = self._block.array(np.int64, (self._block.nbytes // 8,))
        self.address = self._block.address
        self._joins: list[Callable[[], None]] = []
        self._lock = allocate_lock()
        self._ended = False
        self._patience = 0.0  # the time until which nobody asks for more workers
        self.note = ""  # what the user should know about the threads
        self._calibrate()
        self._configure()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.close)

    def _calibrate(self) -> None:
        """How many pauses and clock ticks a microsecond has: the most pauses and the middle of the ticks of a few short runs, because
        others share the machine and may have it between the readings of two clocks."""
        count, pauses, ticks = 2000, 0.0, list[float]()
        for _ in range(5):
            tick0, time0 = self._native["tw_ticks"](), time.perf_counter_ns()
            self._native["tw_spin"](count)
            tick1, time1 = self._native["tw_ticks"](), time.perf_counter_ns()
            elapsed = max(time1 - time0, 1) / 1000
            pauses = max(pauses, count / elapsed)
            ticks.append((tick1 - tick0) / elapsed)
        self._pauses_per_us, self.ticks_per_us = pauses, sorted(ticks)[len(ticks) // 2]

    def _configure(self) -> None:
        config = load()
        self._set(L.POOL_CORES, available_cores())
        mask = bytearray(L.MASK_BYTES)
        for core in os.sched_getaffinity(0):
            if core < 8 * L.MASK_BYTES:
                mask[core // 8] |= 1 << core % 8
        self._words[L.POOL_MASK // 8:(L.POOL_MASK + L.MASK_BYTES) // 8] = np.frombuffer(bytes(mask), np.int64)
        self._set(L.POOL_IDLE_SPIN, int(config.idle_spin_us * self._pauses_per_us))
        self._set(L.POOL_BURST, int(config.idle_spin_us * self.ticks_per_us))
        self._set(L.POOL_RATE, int(1.024 * self.ticks_per_us))
        self._set(L.POOL_STALL, int(STALL_US * self.ticks_per_us))
        self._set(L.POOL_RETREAT, int(RETREAT_US * self.ticks_per_us))
        self._set(L.POOL_BARRIER_SPIN, int(config.barrier_spin_us * self._pauses_per_us))

    def _set(self, offset: int, value: int) -> None:
        self._words[offset // 8] = value

    @property
    def workers(self) -> int:
        """Worker threads running now."""
        return int(self._words[L.POOL_WORKERS // 8])

    def ensure(self, threads: int) -> int:
        """Have workers for jobs of `threads` threads (the caller's own counts); gives `threads`, checked."""
        if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(f"threads: must be an integer from 1 to {MAX_THREADS}, got {threads!r}")
        if threads - 1 <= self.workers or self._ended or time.monotonic() < self._patience:
            return threads
        with self._lock:
            self._native["tw_acquire"](self.address)  # no job runs while workers join
            try:
                self._configure()
                seen = int(self._words[L.POOL_TICKET // 8])
                self.note = ""
                for index in range(self.workers + 1, threads):
                    join = spawn(self._native["tw_worker"], self.address, index, seen)
                    if join is None:  # jobs run on those there are
                        self._patience = time.monotonic() + PATIENCE_S
                        self.note = (f"threads: the system gives {self.workers + 1} of {threads} threads (ulimit -u, pids.max); "
                                     "calls run on those")
                        break
                    self._joins.append(join)
                    self._set(L.POOL_WORKERS, index)
            finally:
                self._native["tw_release"](self.address)
        return threads

    def stop(self) -> None:
        """End all workers after the job they are in; `ensure` starts new ones."""
        with self._lock:
            self._native["tw_stop"](self.address)
            for join in self._joins:
                join()
            self._joins.clear()
            self._set(L.POOL_STOP, 0)

    def close(self) -> None:
        """End all workers for good; later runs are the caller's thread alone."""
        self._ended = True
        self.stop()

    def _after_fork(self) -> None:
        ctypes.memset(self.address, 0, self._block.nbytes)
        self._joins = []
        self._lock = allocate_lock()
        self._patience = 0.0
        self._configure()


def default_threads() -> int:
    """Threads of a session that names none: TILEWRIGHT_THREADS, else one per core."""
    return load().threads or available_cores()


_pool: Pool | None = None
_creating = allocate_lock()


def process_pool() -> Pool:
    """The pool that every session of this process shares, made on first use."""
    global _pool
    if _pool is None:
        with _creating:
            if _pool is None:
                _pool = Pool()
    arm(_pool.library)
    return _pool


def _renew_lock() -> None:
    global _creating
    _creating = allocate_lock()


os.register_at_fork(after_in_child=_renew_lock)
