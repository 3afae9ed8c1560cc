"""What this machine can do at most: multiply-adds and bytes a second, measured once per process with generated loops.

Reports divide a kernel's work by these to give its share of the roofline. Compute peak: independent FMA chains in registers. Bandwidth:
reading and copying blocks that fit in L1, in L2, in L3, and one that is larger; a kernel's ceiling is that of the level its data fits in.
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
from .memory import Allocation
from .native.job import Job, thunks
from .native.layout import THUNK_ARGS, THUNK_FN, THUNK_GRID

CHAINS = 12
STEPS = 20_000
READS = 8  # independent vectors a step
BANDWIDTH_BYTES = 128 << 20
PIECE = 4096
FILL = 0.75  # of a cache that a kernel's data may take and still count as held by it
L3_BYTES = 32 << 20  # at most: what a virtual machine reports is often the whole socket's
MOVED = 32 << 20  # bytes that one measurement of a cache moves


@dataclass(frozen=True)
class Level:
    """A level of the memory: data up to `capacity` bytes (of all threads together) moves at `bytes` a nanosecond."""

    name: str
    capacity: float
    bytes: float


@dataclass(frozen=True)
class Peaks:
    """f32 operations a nanosecond and the levels of the memory, the smallest first, with `threads` threads."""

    threads: int
    flops: float
    levels: tuple[Level, ...]
    integer: float = 1.0  # multiply-adds of bytes for one of f32

    @property
    def bytes(self) -> float:
        """Bandwidth of the memory itself, bytes a nanosecond."""
        return self.levels[-1].bytes

    def least(self, flops: int, moved: int, *, integer: bool = False) -> tuple[float, str]:
        """The least time in nanoseconds that this work can take, and what bounds it: `flops` or a level of the memory.

        >>> Peaks(1, 100.0, (Level("L1", 1e4, 50.0), Level("memory", float("inf"), 10.0))).least(1000, 1000)
        (20.0, 'L1')
        """
        level = next(x for x in self.levels if moved <= x.capacity)
        return max((flops / (self.flops * (self.integer if integer else 1.0)), "flops"), (moved / level.bytes, level.name))


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
    sums = [f"  %s{k} = phi {v} [ zeroinitializer, %round ], [ %n{k}, %loop ]" for k in range(READS)]
    reads, copies = list[str](), list[str]()
    for k in range(READS):
        at = [f"  %w{k} = add i64 %i, {k * lanes * 4}", f"  %q{k} = getelementptr i8, ptr %p, i64 %w{k}",
              f"  %l{k} = load {v}, ptr %q{k}, align 4"]
        reads += [*at, f"  %n{k} = fadd {v} %s{k}, %l{k}"]
        copies += [*at, f"  %o{k} = getelementptr i8, ptr %q, i64 %w{k}", f"  store {v} %l{k}, ptr %o{k}, align 4"]
    ends = [f"  %e{k} = getelementptr {v}, ptr %scratch, i64 {k}\n  store {v} %n{k}, ptr %e{k}, align 4" for k in range(READS)]
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
  %base = load ptr, ptr %args
  %spanp = getelementptr i64, ptr %args, i64 1
  %span = load i64, ptr %spanp
  %roundsp = getelementptr i64, ptr %args, i64 2
  %rounds = load i64, ptr %roundsp
  %skip = mul i64 %begin, %span
  %p = getelementptr i8, ptr %base, i64 %skip
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r1, %rest ]
  br label %loop
loop:
  %i = phi i64 [ 0, %round ], [ %i1, %loop ]
{chr(10).join(sums)}
{chr(10).join(reads)}
  %i1 = add i64 %i, {lanes * 4 * READS}
  %more = icmp slt i64 %i1, %span
  br i1 %more, label %loop, label %rest
rest:
{chr(10).join(ends)}
  %r1 = add i64 %r, 1
  %again = icmp slt i64 %r1, %rounds
  br i1 %again, label %round, label %out
out:
  ret void
}}
define void @tw_copy(ptr %args, i64 %begin, i64 %end, ptr %scratch) {attributes} {{
entry:
  %base = load ptr, ptr %args
  %spanp = getelementptr i64, ptr %args, i64 1
  %span = load i64, ptr %spanp
  %roundsp = getelementptr i64, ptr %args, i64 2
  %rounds = load i64, ptr %roundsp
  %skip = mul i64 %begin, %span
  %half = lshr i64 %span, 1
  %p = getelementptr i8, ptr %base, i64 %skip
  %q = getelementptr i8, ptr %p, i64 %half
  br label %round
round:
  %r = phi i64 [ 0, %entry ], [ %r1, %rest ]
  br label %loop
loop:
  %i = phi i64 [ 0, %round ], [ %i1, %loop ]
{chr(10).join(copies)}
  %i1 = add i64 %i, {lanes * 4 * READS}
  %more = icmp slt i64 %i1, %half
  br i1 %more, label %loop, label %rest
rest:
  %r1 = add i64 %r, 1
  %again = icmp slt i64 %r1, %rounds
  br i1 %again, label %round, label %out
out:
  ret void
}}
"""


@cache
def peaks(threads: int) -> Peaks:
    """Measured on first use; takes less than half a second."""
    target = host_target()
    (code,), _ = CodeCache().compile([_peak_ir(target)], target)
    library = Library([code], ["tw_peak", "tw_read", "tw_copy"])
    block = Allocation(BANDWIDTH_BYTES)
    # Ordinary numbers everywhere: untouched pages would all be one page of zeros, and denormals are slow. 0.5 * 1 + 0.5 stays 1.
    block.array(np.float32, (block.nbytes // 4,))[:] = 0.5
    arguments = np.array([block.address, 0, 0], np.int64)

    def best(symbol: str, grid: int, repeat: int) -> float:
        table = thunks(1)
        table[0, THUNK_FN], table[0, THUNK_ARGS], table[0, THUNK_GRID] = library.address(symbol), arguments.ctypes.data, grid
        job = Job(table, np.zeros((0, 3), np.int64), threads=threads, io_count=1, scratch=1024, keep=arguments)
        found = float("inf")
        for _ in range(repeat):
            start = time.perf_counter_ns()
            job.run()
            found = min(found, time.perf_counter_ns() - start)
        return found

    def bandwidth(size: float) -> float:
        """The better of reading and copying `size` bytes, each thread its own part, as often as makes a time worth taking."""
        span = max(int(size / threads) // PIECE * PIECE, PIECE)
        rounds = max(1, MOVED // (span * threads))
        arguments[1:] = span, rounds
        return span * threads * rounds / min(best("tw_read", threads, 3), best("tw_copy", threads, 3))

    work = 2 * CHAINS * STEPS * (target.vector_bits // 32) * 4 * threads
    flops = work / best("tw_peak", 4 * threads, 8)
    sizes = {"L1": target.l1d * threads * FILL, "L2": target.l2 * threads * FILL, "L3": min(target.l3 * FILL, L3_BYTES)}
    held = {name: size for name, size in sizes.items() if size * 2 <= BANDWIDTH_BYTES}
    levels = [Level(name, size, bandwidth(size * FILL)) for name, size in held.items()]
    levels.append(Level("memory", float("inf"), bandwidth(BANDWIDTH_BYTES)))
    return Peaks(threads, flops, tuple(levels), 4.0 if target.has_vnni else 1.0)
