"""What one call needs for itself: an arena, thread scratch, error blocks, and the instances of the shapes it has seen lately.

Concurrent callers each take a workspace from a bounded free list. A workspace keeps at most `KEPT` instances; its arena grows to
the largest shape and is shared by all of them, so memory stays flat over any number of shapes.
"""
from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

import numpy as np

from ..plan.plan import round_up
from .executable import CpuExecutable, Instance
from .memory import Allocation
from .native import layout as L

KEPT = 32  # instances of one workspace
WAKE_NS = 50_000  # from a sleeping worker to its first instruction
LONG_NS = 1_000_000  # calls that take longer by the estimate look out for Ctrl-C (see native/walker.py); the shorter ones just finish
Key = tuple[int, ...]


class Workspace:
    """Memory and instances of one caller at a time. `io` takes the addresses of inputs and outputs before a run."""

    __slots__ = ("_arena", "_late", "_scratch", "errors", "executable", "fixed", "instances", "io", "pool", "threads")

    def __init__(self, executable: CpuExecutable, pool: int, threads: int) -> None:
        self.executable, self.pool, self.threads = executable, pool, threads
        interface = executable.interface
        count = max(1, len(interface.inputs) + len(interface.outputs))
        self.io = (ctypes.c_int64 * count)()
        self.errors = np.zeros((max(1, len(executable.error_launches)), L.ERROR_WORDS), np.int64)
        self.instances: OrderedDict[Key, tuple[int, Instance, Any]] = OrderedDict()
        self._arena, self._scratch = Allocation(0), Allocation(0)
        self._late = [i for i, s in enumerate(interface.symbols) if s.name in interface.called] if executable.rebinds else []
        self.fixed = 0 if interface.symbols else self.job(())  # the only job of a program without symbols

    def job(self, key: Key) -> int:
        """The address of the job for these symbol values; the schedule is built when the shape is new here. Values that the call gives
        are written into the schedule of their power of two, where they fit there."""
        if self._late:
            return self._bound(key)[0]
        found = self.instances.get(key)
        if found is None:
            return self._build(key)
        self.instances.move_to_end(key)
        return found[0]

    def _bound(self, key: Key) -> tuple[int, Instance, Any]:
        symbols = self.executable.interface.symbols
        env = dict(zip((s.name for s in symbols), key, strict=True))
        self.executable.check(env)
        for at in (self._rounded(key), key):
            if at not in self.instances:
                self._build(at)
            found = self.instances[at]
            late = found[1].late
            assert late is not None
            if late.bind(found[1], key, env):
                self.instances.move_to_end(at)
                return found
        raise AssertionError("a schedule fits the values that it was made for")

    def _rounded(self, key: Key) -> Key:
        symbols = self.executable.interface.symbols
        return tuple(round_up(v, symbols[i]) if i in self._late else v for i, v in enumerate(key))

    def instance(self, key: Key) -> Instance:
        return self.prepared(key)[0]

    def prepared(self, key: Key) -> tuple[Instance, Any]:
        """The instance for these symbol values, and its job block."""
        if self._late:
            return self._bound(key)[1:]
        self.job(key)
        return self.instances[key][1:]

    def _build(self, key: Key) -> int:
        env = dict(zip((s.name for s in self.executable.interface.symbols), key, strict=True))
        if not self._late:
            self.executable.check(env)
        need = self.executable.arena_bytes(env)
        if need > self._arena.nbytes:
            kept, self.instances = self.instances, OrderedDict()  # nobody may use them where no new block is to be had
            self._arena = Allocation(0)  # the old block goes before the new one comes
            self._arena = Allocation(need)
            for _, old, _ in kept.values():
                old.rebase(self._arena.address)
            self.instances = kept
        made = self.executable.instantiate(env, self._arena.address, self.errors.ctypes.data)
        if made.scratch * self.threads > self._scratch.nbytes:
            self._scratch = Allocation(made.scratch * self.threads)
            for _, _, other in self.instances.values():
                other[L.JOB_SCRATCH] = self._scratch.address
        job = np.zeros(L.JOB_WORDS, np.int64)
        job[L.JOB_THUNKS], job[L.JOB_COUNT] = made.thunks.ctypes.data, len(made.thunks)
        job[L.JOB_PATCHES], job[L.JOB_PATCH_COUNT] = made.patches.ctypes.data, len(made.patches)
        job[L.JOB_THREADS] = 1 if made.serial else self.threads
        job[L.JOB_SCRATCH], job[L.JOB_SCRATCH_STRIDE] = self._scratch.address, made.scratch
        job[L.JOB_POOL], job[L.JOB_IO] = self.pool, ctypes.addressof(self.io)
        job[L.JOB_FAULTS], job[L.JOB_FAULT_COUNT] = self.errors.ctypes.data, len(self.executable.error_launches)
        job[L.JOB_NAMES] = made.names.ctypes.data
        # What more threads would save is less than waking them costs: run alone unless they are awake.
        job[L.JOB_LIGHT] = made.nanoseconds * (1 - 1 / self.threads) < WAKE_NS
        job[L.JOB_LONG] = made.nanoseconds >= LONG_NS
        while len(self.instances) >= KEPT:
            self.instances.popitem(last=False)
        self.instances[key] = (job.ctypes.data, made, job)
        return int(job.ctypes.data)

    def part(self, begin: int, end: int) -> int:
        """The address of the job that was asked for last, which then runs these of its launches. The parts of a call follow one another."""
        address, _, words = next(reversed(self.instances.values()))
        words[L.JOB_START] = words[L.JOB_OTHERS] = begin
        words[L.JOB_COUNT] = end
        words[L.JOB_TURN] -= begin > 0
        return address

    def last_env(self) -> dict[str, int]:
        """Symbol values of the job that ran last."""
        return dict(next(reversed(self.instances.values()))[1].env)

    def latest(self) -> Any:
        """The words of the job that ran last."""
        return next(reversed(self.instances.values()))[2]

    @property
    def nbytes(self) -> int:
        return self._arena.nbytes + self._scratch.nbytes
