"""Launches of kernels on arrays of the CPU: one compiled kernel for all sizes and for all strides of a class, called without a session."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.dims import Dim, Expr, Symbol, sym
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..kernels.launch import Buffer, ErrorWord, Pointer, Word
from ..plan.barriers import is_serial, nanoseconds
from ..plan.values import DimTable
from ..runtime import layout as L
from ..runtime.code import compile_kernels
from ..runtime.executable import SHARE_NS, SHARES
from ..runtime.faults import fault
from ..runtime.job import Job, patches, thunks
from ..runtime.pool import default_threads
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
    for k, (argument, name, known) in enumerate(zip((*d.signature.inputs, *d.signature.outputs), d.names, classes, strict=True)):
        shape = tuple(Signature._size(t, sizes, name, d.name) for t in argument.dims or ())
        dtype = bound.dtypes[argument.dtype]
        strides = tuple(sym(f"stride_{name}_{a}", 0, STEP) if s is None else s for a, s in enumerate(known))
        type_ = TensorType(dtype, shape)
        out = k >= len(d.inputs)
        if out:
            outputs.append(type_)
        places.append(Place_(type_, Buffer(name, "output" if out else "input", type_.nbytes, k), Layout(shape, strides)))
    n = len(d.inputs)
    return Bound(sizes, bound.dtypes, tuple(outputs)), places[:n], places[n:]


@dataclass(eq=False)
class _Ready:
    job: Job
    table: Any
    words: Any


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
        self.sources: list[tuple[str, int]] = []  # of each argument word
        self.views: list[int] = []
        for w in launch.arguments:
            if isinstance(w, Pointer):
                self.sources.append(("array", w.buffer.index))
                self.views.append(w.buffer.index)
            elif isinstance(w, ErrorWord):
                self.sources.append(("error", 0))
                self.views.append(-1)
            else:
                self.sources.append(("value", table.add(w.value)))
        self.symbols = list(used)
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

    def __call__(self, arrays: Sequence[Array], sizes: dict[str, int]) -> None:
        env = dict(sizes)
        for name, a in zip(self.d.names, arrays, strict=True):
            for axis, s in enumerate(a.strides):
                env[f"stride_{name}_{axis}"] = s // a.itemsize
        values = self.values(env)
        grid, flops, moved = (int(values[i]) for i in self.fixed)
        if grid == 0:
            return
        ready = self.free.pop() if self.free else self._grow()
        addresses = [a.__array_interface__["data"][0] for a in arrays]
        words = [addresses[k] if what == "array" else ready.job.error_address if what == "error" else values[k] for what, k in self.sources]
        if self.target.checks:
            for k in self.views:
                words += [0, (1 << 63) - 1] if k < 0 else memory_of(arrays[k])
            words.append(ready.job.error_address)
        ready.words[:] = words
        serial = bool(is_serial(np.array([grid]), np.array([flops]), np.array([moved]))[0])
        ready.table[0, L.THUNK_GRID] = grid
        ready.table[0, L.THUNK_FLAGS] = L.SERIAL if serial else 0
        pieces = min(max(float(nanoseconds(np.array(flops), np.array(moved))) // SHARE_NS, 1), SHARES)
        ready.table[0, L.THUNK_SHARE] = max(1, -(-grid // int(pieces))) if not serial and grid < 1 << L.WORK_BITS else 0
        ready.job.error[:] = 0
        ready.job.run()
        found = ready.job.error.tolist()
        if len(self.free) < FREE:
            self.free.append(ready)
        if found[0]:
            raise fault(self.launch, found, env, "")


def memory_of(a: Array) -> list[int]:
    """First and last byte (and one more) that an array's elements take."""
    low = high = a.__array_interface__["data"][0]
    if a.size == 0:
        return [low, low]
    for n, s in zip(a.shape, a.strides, strict=True):
        low, high = low + min(0, (n - 1) * s), high + max(0, (n - 1) * s)
    return [low, high + a.itemsize]
