"""What this machine can do at most: multiply-adds and bytes a second, measured once per process with generated loops.

Reports divide a kernel's work by these to give its share of the roofline. Compute peak: independent FMA chains in registers.
Bandwidth: reading a block larger than the caches.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..core.target_spec import TargetSpec
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library
from .job import Job, thunks
from .layout import THUNK_ARGS, THUNK_FN, THUNK_GRID
from .memory import Allocation

CHAINS = 12
STEPS = 20_000
BANDWIDTH_BYTES = 128 << 20
PIECE = 1 << 16


@dataclass(frozen=True)
class Peaks:
    """f32 operations and bytes a nanosecond, with `threads` threads."""

    threads: int
    flops: float
    bytes: float

    def nanoseconds(self, flops: int, moved: int) -> float:
        """The least time that this work can take."""
        return max(flops / self.flops, moved / self.bytes)


def _peak_ir(target: TargetSpec) -> str:
    lanes = target.vector_bits // 32
    v = f"<{lanes} x float>"
    step = [f"  %a{i} = phi {v} [ splat (float 1.0), %outer ], [ %b{i}, %loop ]" for i in range(CHAINS)]
    if target.has_fma:
        step += [f"  %b{i} = call {v} @llvm.fma.v{lanes}f32({v} %a{i}, {v} %m, {v} %m)" for i in range(CHAINS)]
    else:
        for i in range(CHAINS):
            step += [f"  %c{i} = fmul {v} %a{i}, %m", f"  %b{i} = fadd {v} %c{i}, %m"]
    total = [f"  %t0 = fadd {v} %b0, %b1"] + [f"  %t{i} = fadd {v} %t{i - 1}, %b{i + 1}" for i in range(1, CHAINS - 1)]
    attributes = target.attributes
    return f"""
declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})
define void @tw_peak(ptr %args, i64 %begin, i64 %end, ptr %scratch) {attributes} {{
entry:
  %p = load ptr, ptr %args
  %m = load {v}, ptr %p, align 4
  br label %outer
outer:
  %o = phi i64 [ %begin, %entry ], [ %o1, %close ]
  br label %loop
loop:
  %i = phi i64 [ 0, %outer ], [ %i1, %loop ]
{chr(10).join(step)}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, {STEPS}
  br i1 %more, label %loop, label %close
close:
{chr(10).join(total)}
  store {v} %t{CHAINS - 2}, ptr %scratch, align 4
  %o1 = add i64 %o, 1
  %again = icmp slt i64 %o1, %end
  br i1 %again, label %outer, label %out
out:
  ret void
}}
define void @tw_read(ptr %args, i64 %begin, i64 %end, ptr %scratch) {attributes} {{
entry:
  %p = load ptr, ptr %args
  %first = mul i64 %begin, {PIECE}
  %last = mul i64 %end, {PIECE}
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %i1, %loop ]
  %s0 = phi {v} [ zeroinitializer, %entry ], [ %n0, %loop ]
  %s1 = phi {v} [ zeroinitializer, %entry ], [ %n1, %loop ]
  %q0 = getelementptr i8, ptr %p, i64 %i
  %q1 = getelementptr i8, ptr %q0, i64 {lanes * 4}
  %l0 = load {v}, ptr %q0, align 4
  %l1 = load {v}, ptr %q1, align 4
  %n0 = fadd {v} %s0, %l0
  %n1 = fadd {v} %s1, %l1
  %i1 = add i64 %i, {lanes * 8}
  %more = icmp slt i64 %i1, %last
  br i1 %more, label %loop, label %out
out:
  %t = fadd {v} %n0, %n1
  store {v} %t, ptr %scratch, align 4
  ret void
}}
"""


@cache
def peaks(threads: int) -> Peaks:
    """Measured on first use; takes about a tenth of a second."""
    target = host_target()
    (code,), _ = CodeCache().compile([_peak_ir(target)], target)
    library = Library([code], ["tw_peak", "tw_read"])
    block = Allocation(BANDWIDTH_BYTES)
    # Ordinary numbers everywhere: untouched pages would all be one page of zeros, and denormals are slow. 0.5 * 1 + 0.5 stays 1.
    block.array(np.float32, (block.nbytes // 4,))[:] = 0.5
    arguments = np.array([block.address], np.int64)

    def best(symbol: str, grid: int, repeat: int) -> float:
        table = thunks(1)
        table[0, THUNK_FN], table[0, THUNK_ARGS], table[0, THUNK_GRID] = library.address(symbol), arguments.ctypes.data, grid
        job = Job(table, np.zeros((0, 3), np.int64), threads=threads, io_count=1, scratch=256, keep=arguments)
        found = float("inf")
        for _ in range(repeat):
            start = time.perf_counter_ns()
            job.run()
            found = min(found, time.perf_counter_ns() - start)
        return found

    work = 2 * CHAINS * STEPS * (target.vector_bits // 32) * 4 * threads
    flops = work / best("tw_peak", 4 * threads, 8)
    return Peaks(threads, flops, BANDWIDTH_BYTES / best("tw_read", BANDWIDTH_BYTES // PIECE, 3))
