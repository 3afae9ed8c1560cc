"""Launches of kernels on arrays of the CPU: one compiled kernel for all sizes and for all strides of a class, called without a session."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..build.code import compile_kernels
from ..core.dims import Dim, Expr, Symbol, sym
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..kernels.launch import Buffer, ErrorWord, Pointer, Word
from ..plan.barriers import is_serial, nanoseconds
from ..plan.values import DimTable
from ..runtime.executable import PIECE, SHARE_NS, SHARES
from ..runtime.faults import fault
from ..runtime.native import layout as L
from ..runtime.native.job import Job, patches, thunks
from ..runtime.pool import default_threads
from ..runtime.workspace import LONG_NS, WAKE_NS
from .build import Built, Definition, Place_, build
from .signature import Bound, Signature

Array = np.ndarray[Any, Any]
FREE = 8  # jobs kept for the next callers
STEP = 1 << 40  # bound on sizes and strides


def stride_class(strides: Sequence[int]) -> tuple[int | None, ...]:
    """Strides (of elements) that become part of the kernel; None: a run-time word."""
    return tuple(s if s in (-1, 0, 1) else None for s in strides)


def symbolic(d: Definition, bound: Bound, constants: dict[str, Any], classes: Sequence[tuple[int | None, ...]]) -> tuple[
        Bound, list[Place_], list[Place_]]:
    """The same signature over symbols: sizes by their names (those that are constants stay numbers), strides by argument and axis."""
    sizes: dict[str, Dim] = {n: constants[n] if n in constants else sym(n, 0, STEP) for n in bound.dims}
    outputs = []
    places: list[Place_] = []
    for k, (argument, name, steps) in enumerate(zip((*d.signature.inputs, *d.signature.outputs), d.names, classes, strict=True)):
        known = sizes if k < len(d.inputs) else {**{n: v for n, v in constants.items() if isinstance(v, int)}, **sizes}
        shape = tuple(Signature._size(t, known, name, d.name) for t in argument.dims or ())
        dtype = bound.dtypes[argument.dtype]
        strides = tuple(sym(f"stride_{name}_{a}", 0, STEP) if s is None else s for a, s in enumerate(steps))
        type_ = TensorType(dtype, shape)
        out = k >= len(d.inputs)
        if out:
            outputs.append(type_)
        places.append(Place_(type_, Buffer(name, "output" if out else "input", type_.nbytes, k), Layout(shape, strides)))
    n = len(d.inputs)
    return Bound(sizes, bound.dtypes, tuple(outputs)), places[:n], places[n:]


@dataclass(eq=False)
class Plan:
    """A launch at given sizes and strides."""

    env: dict[str, int]
    grid: int
    thunk: tuple[int, ...]  # its words from the grid on
    threads: int
    light: bool  # less work than waking a worker
    long: bool  # worth a look at signals
    words: list[int]  # argument words, 0 for addresses


@dataclass(eq=False)
class _Ready:
    """A job that a caller has to itself."""

    job: Job
    table: Any
    words: Any
    plan: Plan | None = None

    def set(self, plan: Plan) -> None:
        self.plan = plan
        self.words[: len(plan.words)] = plan.words
        self.table[0, L.THUNK_GRID :] = plan.thunk
        block = self.job._block.array(np.int64, (L.JOB_WORDS,))
        block[L.JOB_THREADS], block[L.JOB_LIGHT], block[L.JOB_LONG] = plan.threads, plan.light, plan.long

    def run(self) -> None:
        """One run. One that a signal stopped goes on where it was, unless Python's handler raises."""
        status = self.job.run()
        while status & L.CANCELLED:
            block = self.job._block.array(np.int64, (L.JOB_WORDS,))
            block[L.JOB_START], block[L.JOB_OTHERS] = block[L.JOB_STOPPED], block[L.JOB_STOPPED_OTHERS]
            status = self.job.run()


class CpuKernel:
    """A kernel for given dtypes, stride classes and constants."""

    def __init__(self, d: Definition, bound: Bound, constants: dict[str, Any], classes: Sequence[tuple[int | None, ...]],
                 target: TargetSpec) -> None:
        self.d = d
        over, inputs, outputs = symbolic(d, bound, constants, classes)
        self.built: Built = build(d, over, inputs, outputs, constants, "cpu", checks=target.checks)
        launch = self.launch = self.built.launch
        self.target = target
        self.code = compile_kernels([launch.kernel], target)
        self.address = self.code.address(self.code.symbols[0])
        used: dict[str, Symbol] = {}
        dims = [w.value for w in launch.arguments if isinstance(w, Word)]
        for dim in (*dims, launch.grid, launch.flops, launch.bytes, *(x for p in (*inputs, *outputs) for x in p.type.shape)):
            for s in dim.symbols if isinstance(dim, Expr) else ():
                used[s.name] = s
        table = DimTable(list(used.values()))
        self.fixed = [table.add(x) for x in (launch.grid, launch.flops, launch.bytes)]
        self.sources: list[tuple[str, int]] = []  # the source of each argument word
        self.views: list[int] = []
        for w in launch.arguments:
            if isinstance(w, Pointer):
                self.sources.append(("array", w.buffer.index))
                self.views.append(w.buffer.index)
            elif isinstance(w, ErrorWord):
                self.sources.append(("error", 0))
                self.views.append(-1)
            else:
                assert isinstance(w, Word), "kernels of the language call no library"
                self.sources.append(("value", table.add(w.value)))
        self.pointers = [(at, k) for at, (what, k) in enumerate(self.sources) if what == "array"]
        self.faults = target.checks or any(what == "error" for what, _ in self.sources)
        self.values = table.compile()
        self.free: list[_Ready] = []

    def _grow(self) -> _Ready:
        table = thunks(1)
        words = np.zeros(len(self.sources) + (2 * len(self.views) + 1 if self.target.checks else 0), np.int64)
        threads = default_threads()
        assert isinstance(self.launch.scratch, int)
        job = Job(table, patches([]), threads=threads, io_count=1, scratch=self.launch.scratch, keep=(words, self.code))
        table[0, L.THUNK_FN], table[0, L.THUNK_ARGS] = self.address, words.ctypes.data
        return _Ready(job, table, words)

    def plan(self, sizes: dict[str, int], strides: Sequence[tuple[int, ...]]) -> Plan:
        """What a launch on arrays of these sizes and strides (of elements) needs."""
        env = dict(sizes)
        for name, steps in zip(self.d.names, strides, strict=True):
            env.update({f"stride_{name}_{axis}": s for axis, s in enumerate(steps)})
        values = self.values(env)
        grid, flops, moved = (int(values[i]) for i in self.fixed)
        serial = bool(is_serial(grid, flops, moved))
        share = piece = 0
        if self.launch.streams:
            piece = max(1, PIECE * grid // max(moved, 1))
        elif not serial and grid < 1 << L.WORK_BITS:
            share = max(1, -(-grid // int(min(max(nanoseconds(flops, moved) // SHARE_NS, 1), SHARES))))
        threads = 1 if serial else default_threads()
        work = float(nanoseconds(flops, moved))
        words = [0 if what != "value" else int(values[k]) for what, k in self.sources]
        light, long = work * (1 - 1 / threads) < WAKE_NS, work >= LONG_NS
        return Plan(env, grid, (grid, L.SERIAL if serial else 0, 0, 0, piece, share), threads, light, long, words)

    def run(self, plan: Plan, arrays: Sequence[Array]) -> None:
        """One launch."""
        if plan.grid == 0:
            return
        try:
            ready = self.free.pop()
        except IndexError:  # others are running
            ready = self._grow()
        if ready.plan is not plan:
            ready.set(plan)
        words = ready.words
        for at, k in self.pointers:
            words[at] = arrays[k].__array_interface__["data"][0]
        if self.faults:
            self._prepare(ready, arrays)
        ready.run()
        found = ready.job.error.tolist() if self.faults else None
        if len(self.free) < FREE:
            self.free.append(ready)
        if found is not None and found[0]:
            raise fault(self.launch, found, plan.env, "")

    def _prepare(self, ready: _Ready, arrays: Sequence[Array]) -> None:
        """Error block and, where accesses are checked, the bounds of the arrays."""
        for at, (what, _) in enumerate(self.sources):
            if what == "error":
                ready.words[at] = ready.job.error_address
        if self.target.checks:
            more = [x for k in self.views for x in ([0, (1 << 63) - 1] if k < 0 else memory_of(arrays[k]))]
            ready.words[len(self.sources) :] = [*more, ready.job.error_address]
        ready.job.error[:] = 0


def memory_of(a: Array) -> list[int]:
    """First and last byte (and one more) that an array's elements take."""
    low = high = a.__array_interface__["data"][0]
    if a.size == 0:
        return [low, low]
    for n, s in zip(a.shape, a.strides, strict=True):
        low, high = low + min(0, (n - 1) * s), high + max(0, (n - 1) * s)
    return [low, high + a.itemsize]
