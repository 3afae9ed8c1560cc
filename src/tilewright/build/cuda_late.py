"""Argument words that follow the symbols of a call (a decoder's position): they lie in device memory, and a call rewrites them there.

One CUDA graph then serves every value. A kernel's parameter is the address of its word; values are an address or nothing, plus a dim.
Kernels that take their numbers as parameters alone (those of the tensor cores, with their tensor maps) have them rewritten in the graph's
node instead (`Schedule.follow`): a few microseconds for each such kernel at a call with another value.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.dims import Dim, symbols
from ..kernels.cuda.kernel import SimtKernel, identified, reads_late
from ..kernels.launch import Argument, Launch, Pointer, Program, Variant, Word
from ..plan.values import DimTable
from ..runtime.cuda import driver as gpu
from ..runtime.cuda import launch as cuda_launch


def follows(d: Dim, called: set[str]) -> bool:
    return any(s.name in called for s in symbols(d))


def late_arguments(arguments: Sequence[Argument], called: set[str]) -> frozenset[int]:
    """Positions of the arguments that follow the call's symbols."""

    def dim(a: Argument) -> Dim:
        return a.value if isinstance(a, Word) else a.offset if isinstance(a, Pointer) else 0

    return frozenset(i for i, a in enumerate(arguments) if follows(dim(a), called))


def make_late(program: Program, called: set[str]) -> bool:
    """Let the kernels of a program read such arguments from memory, where they can. False, and nothing is changed, where a grid, a choice
    of kernels or the size of a temporary value follows the symbols, or the program has loops: those need a graph per value."""
    if program.block:
        return False
    ways: list[tuple[Launch | Variant, frozenset[int]]] = []
    for launch in program.launches:
        for way in launch.ways:
            found = late_arguments(way.arguments, called)
            fixed = [way.grid, *(v.value for v in launch.variants)]
            if any(follows(d, called) for d in fixed):
                return False
            ways.append((way, found))
    if any(follows(b.nbytes, called) for b in program.temps):
        return False
    for way, found in ways:
        if found and reads_late(way.kernel):
            assert isinstance(way.kernel, SimtKernel)
            kernel = copy.copy(way.kernel)
            kernel.indirect = found
            object.__setattr__(way, "kernel", identified(kernel))  # a variant is frozen
    return True


class LateWords:
    """The words of one schedule."""

    def __init__(self, count: int) -> None:
        self.memory = gpu.Memory(8 * count)
        self._dims: dict[Dim, int] = {}
        self._entries: list[tuple[int, int, int]] = []  # fixed address, number of the input or output (or -1), dim
        self._columns: Any = None  # the entries as arrays
        self._sizes: Any = None  # env -> the values of all dims
        self._addresses: list[int] = []
        self._found: list[int] = []
        self._fixed = self._values = np.zeros(0, np.int64)  # what the addresses give, and with the dims

    @property
    def count(self) -> int:
        return len(self._entries)

    def add(self, base: int, slot: int, dim: Dim) -> int:
        """The address of a new word."""
        self._entries.append((base, slot, self._dims.setdefault(dim, len(self._dims))))
        return self.memory.address + 8 * (len(self._entries) - 1)

    def write(self, env: Mapping[str, int], addresses: Sequence[int], stream: int) -> None:
        """Rewrite the words where the values or the addresses are others than last time. The copy is ordered by the stream; its source is
        read before the call comes back, since it is ordinary memory."""
        if not self._entries:
            return
        if self._columns is None:  # all words have been added when the first call is made
            self._columns = np.array(self._entries, np.int64).T.copy()
            table = DimTable(sorted({s for d in self._dims for s in symbols(d)}, key=lambda s: s.name))
            for d in self._dims:
                table.add(d)
            self._sizes = table.compile()
        base, slot, dim = self._columns
        found = self._sizes(env)
        if addresses != self._addresses:
            self._fixed = base + np.array([*addresses, 0], np.int64)[slot]  # -1 is nothing
        elif found == self._found:
            return
        self._addresses, self._found = [], []  # until the copy has begun
        self._values = self._fixed + np.array(found, np.int64)[dim]
        status = cuda_launch.library().cuMemcpyHtoDAsync_v2(self.memory.address, self._values.ctypes.data, self._values.nbytes, stream)
        cuda_launch.check(status, "cuMemcpyHtoDAsync", "words that follow the call's symbols")
        self._addresses, self._found = list(addresses), found
