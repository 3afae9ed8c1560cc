"""Native code that lays a matrix out in panels, at the speed of memory. NumPy's general copies are several times slower here.

Two cases, by which axis of the source is contiguous. N: panel rows are short runs of the source's rows, copied a few rows at a time
so that both sides stay within few pages. K: blocks of n × n elements are transposed in registers (log2 n rounds of interleaving).
Elements are moved as integers of their size and may lie at any address; whatever else a source may be is left to NumPy by the caller.
"""
from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..core.records import dataclass
from ..core.target_spec import TargetSpec
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library
from ..target.cpu.transposes import transpose_ir

Array = np.ndarray[Any, Any]
ROWS = 16  # source rows in flight where N is contiguous
PIECE = 4 << 20  # bytes that a thread takes at a time


@dataclass(frozen=True)
class Job:
    """How to pack one matrix: the address of the code, and its arguments but for target and panels."""

    library: Library  # kept: the address is its
    code: int
    source: Array
    n: int
    k: int
    line: int

    def words(self, out: Array, first: int, last: int) -> tuple[int, ...]:
        return (self.code, self.source.ctypes.data, out.ctypes.data, first, last, self.n, self.k, self.line)


def panel_job(rows: Array, width: int) -> Job | None:
    """How native code packs `rows` [N, K] into panels of `width`, or None where no fast way fits."""
    n, k = rows.shape
    size = rows.dtype.itemsize
    line_n, line_k = rows.strides
    if n == 0 or k == 0 or size not in (2, 4, 8) or not 0 < width <= 4096:
        return None
    if line_n == size and line_k >= 0:
        way, line = "runs", line_k
    elif line_k == size and line_n >= 0 and width % 2 == 0:
        way, line = "blocks", line_n
    else:
        return None
    library = once(_library, host_target(), size, width)
    return Job(library, library.address(f"tw_pack_{way}"), rows, n, k, line)


class Batch:
    """Many matrices to pack, cut into pieces that threads take one after the other inside one native call each: none of them waits for
    the interpreter in between."""

    def __init__(self, jobs: Sequence[tuple[Job, Array]]) -> None:
        rows = []
        for job, out in jobs:
            step = max(1, PIECE // max(1, out[0].nbytes))
            rows += [job.words(out, p, min(p + step, len(out))) for p in range(0, len(out), step)]
        self._table = np.array(rows, np.int64)
        self._next = np.zeros(1, np.int64)
        self._keep = list(jobs)

    def run(self) -> None:
        """Take pieces until none is left. Those that other threads have taken may still be in flight."""
        if self._keep:
            call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(self._keep[0][0].library.address("tw_pack_all"))
            call(self._table.ctypes.data, len(self._table), self._next.ctypes.data)


def panel_packer(rows: Array, width: int) -> Callable[[Array, int, int], None] | None:
    """A function that fills panels `first` … `last`-1 of its argument from `rows` [N, K], or None where no fast way fits."""
    job = panel_job(rows, width)
    if job is None:
        return None
    found, call = job, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(job.code)

    def fill(out: Array, first: int, last: int) -> None:
        call(*found.words(out, first, last)[1:])

    return fill


_lock = allocate_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def once(make: Callable[..., Library], *args: Any) -> Library:
    """What a cached function makes: packing threads ask at the same time, and a library that loses such a race would be unloaded under its
    caller."""
    with _lock:
        return make(*args)


# Loops in host code (`target/cpu/host_code.py`). Of panels whose source has N contiguous: out[p, k, :] = source[k, p * WIDTH ...]; of those
# with K contiguous: out[p, k, j] = source[p * WIDTH + j, k], whole blocks through registers, columns beyond them one by one. What a short
# last panel lacks is zeros.
SOURCE = """
def tw_pack_all(table, count, next):  # rows of a table, counted by `next`: the address of one of the others, then its arguments
    i = add64_relaxed(next, 1)
    while i < count:
        row = table + 64 * i
        call(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7])
        i = add64_relaxed(next, 1)


def tw_pack_runs(source, out, first, last, n, k, line):
    for group in range(0, k, ROWS):
        for p in range(first, last):
            have = min((n - p * WIDTH) * SIZE, WIDTH * SIZE)
            for row in range(group, min(group + ROWS, k)):
                run = source + row * line + p * WIDTH * SIZE
                to = out + (p * k + row) * WIDTH * SIZE
                if have == WIDTH * SIZE:
                    copy(to, run, WIDTH * SIZE)
                else:
                    copy(to, run, have)
                    clear(to + have, WIDTH * SIZE - have)


def tw_pack_blocks(source, out, first, last, n, k, line):
    for p in range(first, last):
        rows = source + p * WIDTH * line
        to = out + p * k * WIDTH * SIZE
        have = min(n - p * WIDTH, WIDTH)
        done = 0
        if have == WIDTH:
            done = k & -SIDE
            for column in range(0, done, SIDE):
                for j in range(0, WIDTH, SIDE):
                    transpose(to + (column * WIDTH + j) * SIZE, rows + j * line + column * SIZE, WIDTH * SIZE, line)
        else:
            clear(to, k * WIDTH * SIZE)
        if done < k:
            for j in range(have):
                for column in range(done, k):
                    copy(to + (column * WIDTH + j) * SIZE, rows + j * line + column * SIZE, SIZE)
"""


@cache
def _library(target: TargetSpec, size: int, width: int) -> Library:
    constants = {"SIZE": size, "WIDTH": width, "ROWS": ROWS, "SIDE": block_side(target, size, width)}
    names = ["tw_pack_all", "tw_pack_runs", "tw_pack_blocks"]

    def text() -> str:
        from ..target.cpu.host_code import compile_host

        made, _ = compile_host(SOURCE, constants, {}, names, ["transpose"], attributes=target.attributes)
        return made + transpose_ir("transpose", constants["SIDE"], size, attributes=target.attributes)

    (code,), _ = CodeCache().build([(f"panels {constants} {SOURCE}", text)], target)
    return Library([code], names)


def block_side(target: TargetSpec, size: int, width: int) -> int:
    """Elements on a side of the blocks that are transposed in registers: a power of two that divides the width."""
    side = min(16, target.vector_bits // 8 // size)
    while width % side:
        side //= 2
    return side
