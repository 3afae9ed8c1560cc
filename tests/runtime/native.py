"""Hand-written kernels in LLVM IR, and schedules of them, for the tests of the native runtime."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime import pool
from tilewright.runtime.native import layout as L
from tilewright.runtime.native.job import Job, patches, thunks
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir

LOOP = """
define void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
  %p = load ptr, ptr %args
  %np = getelementptr i64, ptr %args, i64 1
  %n = load i64, ptr %np
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %at = getelementptr i64, ptr %p, i64 %i
{body}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""
# The first program ends when all others have (or after a very long time).
JOIN = """
define internal i64 @meet(ptr %counter, i64 %i, i64 %n) {
entry:
  %first = icmp eq i64 %i, 0
  br i1 %first, label %spin, label %count
count:
  %old = atomicrmw add ptr %counter, i64 1 seq_cst
  ret i64 0
spin:
  %k = phi i64 [ 0, %entry ], [ %k1, %spin ]
  %k1 = add i64 %k, 1
  %v = load atomic i64, ptr %counter seq_cst, align 8
  %v1 = add i64 %v, 1
  %there = icmp sge i64 %v1, %n
  %late = icmp sgt i64 %k, 4294967296
  %done = or i1 %there, %late
  br i1 %done, label %out, label %spin
out:
  ret i64 %v
}
"""
# Every program but the first takes some milliseconds: of a core, or asleep.
LINGER = """
declare i32 @usleep(i32)

define internal i64 @linger(i64 %i) {
entry:
  %first = icmp eq i64 %i, 0
  br i1 %first, label %out, label %spin
spin:
  %k = phi i64 [ 0, %entry ], [ %k1, %spin ]
  %k1 = add i64 %k, 1
  call void asm sideeffect "", ""()
  %late = icmp sgt i64 %k, 40000000
  br i1 %late, label %out, label %spin
out:
  ret i64 0
}

define internal i64 @doze(i64 %i) {
entry:
  %first = icmp eq i64 %i, 0
  br i1 %first, label %out, label %wait
wait:
  %r = call i32 @usleep(i32 10000)
  br label %out
out:
  ret i64 0
}
"""
# add: cell[i] += 1. mirror: cell[n + i] = cell[n - 1 - i] * 3 + 1, which other threads wrote. fold: the way back.
BODIES = {
    "add": "  %v = load i64, ptr %at\n  %w = add i64 %v, 1\n  store i64 %w, ptr %at",
    "mirror": """  %a = sub i64 %n, 1
  %b = sub i64 %a, %i
  %src = getelementptr i64, ptr %p, i64 %b
  %v = load i64, ptr %src
  %m = mul i64 %v, 3
  %w = add i64 %m, 1
  %c = add i64 %n, %i
  %dst = getelementptr i64, ptr %p, i64 %c
  store i64 %w, ptr %dst""",
    "fold": """  %t = shl i64 %n, 1
  %a = sub i64 %t, 1
  %b = sub i64 %a, %i
  %src = getelementptr i64, ptr %p, i64 %b
  %v = load i64, ptr %src
  %m = mul i64 %v, 3
  %w = add i64 %m, 1
  store i64 %w, ptr %at""",
    # where: cell[i] = the scratch address of the thread that ran program i
    "where": "  %s = ptrtoint ptr %scratch to i64\n  store i64 %s, ptr %at",
    # late, asleep: the same, long after the first program was done; asleep, as if it had no core
    "late": "  %v = call i64 @linger(i64 %i)\n  %s = ptrtoint ptr %scratch to i64\n  store i64 %s, ptr %at",
    "asleep": "  %v = call i64 @doze(i64 %i)\n  %s = ptrtoint ptr %scratch to i64\n  store i64 %s, ptr %at",
    # uneven: the first of n programs waits for all others, which cell[n] counts; cell[0] = how many there were in the end
    "uneven": """  %np1 = getelementptr i64, ptr %p, i64 %n
  %v = call i64 @meet(ptr %np1, i64 %i, i64 %n)
  store i64 %v, ptr %at""",
    # order: cell[i] = how many programs ran before this one; cell[n] counts them
    "order": """  %np1 = getelementptr i64, ptr %p, i64 %n
  %v = load i64, ptr %np1
  store i64 %v, ptr %at
  %w = add i64 %v, 1
  store i64 %w, ptr %np1""",
    # fail: the error block (address in word 1) gets (7, 0, i, 0)
    "fail": """  %e = inttoptr i64 %n to ptr
  store i64 7, ptr %e
  %ep = getelementptr i64, ptr %e, i64 2
  store i64 %i, ptr %ep""",
}

# Tests count on their threads, however loaded the machine is.
pool.STALL_US = 10**9
pool.process_pool()._configure()


@functools.cache
def library() -> Library:
    text = JOIN + LINGER + "\n".join(LOOP.format(name=name, body=body) for name, body in BODIES.items())
    return Library([compile_ir(text, host_target())], list(BODIES))


class Schedule:
    """A job over one array of cells: `steps` are (kernel, grid, flags, chunk); every kernel gets (cells, n)."""

    def __init__(self, steps: Sequence[tuple[str, int, int, int]], cells: int, *, n: int = 0, threads: int = 1, scratch: int = 0,
                 light: bool = False, piece: int = 0, share: int = 0) -> None:
        self.cells: NDArray[np.int64] = np.zeros(cells, np.int64)
        self.arguments = np.zeros((len(steps), 2), np.int64)
        self.arguments[:, 1] = n
        base = self.arguments.ctypes.data
        table = thunks(len(steps))
        for row, (k, (kernel, grid, flags, chunk)) in zip(table, enumerate(steps), strict=True):
            row[L.THUNK_FN], row[L.THUNK_ARGS] = library().address(kernel), base + 16 * k
            row[L.THUNK_GRID], row[L.THUNK_FLAGS], row[L.THUNK_CHUNK] = grid, flags, chunk
            row[L.THUNK_PIECE], row[L.THUNK_SHARE] = piece, share
        words = patches([(base + 16 * k, 0, 0) for k in range(len(steps))])
        self.job = Job(table, words, threads=threads, io_count=1, scratch=scratch, light=light, keep=self)
        self.job.io[0] = self.cells.ctypes.data

    def run(self) -> int:
        return self.job.run()


def ping_pong(rounds: int, n: int, threads: int, *, light: bool = False, chunk: int = 1, share: int = 0) -> Schedule:
    """mirror and fold in turn: each step reads what another thread wrote in the step before, so a missing barrier shows."""
    steps = [("mirror" if k % 2 == 0 else "fold", n, L.BARRIER if k else 0, chunk) for k in range(2 * rounds)]
    return Schedule(steps, 2 * n, n=n, threads=threads, light=light, share=share)


def ping_pong_expected(start: NDArray[np.int64], rounds: int) -> NDArray[np.int64]:
    """The same in NumPy."""
    low = start.copy()
    high = low
    for _ in range(rounds):
        high = low[::-1] * 3 + 1
        low = high[::-1] * 3 + 1
    return np.concatenate([low, high])
