"""LLVM IR of the barrier and of thread placement; the pieces of text that all of the native runtime's IR is written with.

The barrier: each thread writes the barrier's number (an epoch that only grows) into its own line and reads everybody else's. A thread
that waits spins for a bounded number of pauses, and not at all when there are more threads than cores; then it sleeps on the
other's line with a futex. Whoever writes a line wakes its sleepers: the write is a full fence, and a sleeper counts itself before it looks
again, so no wake-up is lost.
"""
from __future__ import annotations

from . import layout as L

YIELD_EVERY = 2048  # pauses, some 30 microseconds


def field(name: str, base: str, offset: int | str, kind: str = "i64", order: str = "", align: int = 8) -> str:
    """Two lines of IR: %name = the field at `offset` bytes of %base."""
    return (f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n"
            f"  %{name} = load {'atomic ' if order else ''}{kind}, ptr %{name}.p {order}, align {align}".replace(" ,", ",") + "\n")


def job(name: str, word: int, kind: str = "i64") -> str:
    return field(name, "job", word * 8, kind)


def futex_ir(number: int) -> str:
    return f"""
define internal void @sleep(ptr %word, i32 %seen) #1 {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i64 128, i32 %seen, ptr null, ptr null, i64 0)
  ret void
}}
define internal void @wake(ptr %word) #1 {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}}
"""


def barrier_ir(pause: str) -> str:
    return f"""
define internal void @arrive(ptr %pool, i64 %t, i64 %e) #0 {{
  %off = mul i64 %t, {L.LINE}
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES}
  %line = getelementptr i8, ptr %lines, i64 %off
  %old = atomicrmw xchg ptr %line, i64 %e seq_cst, align 8
{field("sleepers", "line", L.LINE_SLEEPERS, "i32", "seq_cst", 4)}
  %none = icmp eq i32 %sleepers, 0
  br i1 %none, label %out, label %call
call:
  call void @wake(ptr %line)
  br label %out
out:
  ret void
}}

; spinning pays only while every running thread has a core of its own
define internal i1 @may_spin(ptr %pool, i64 %n) alwaysinline #0 {{
{field("crowd", "pool", L.POOL_CROWD, "i32", "monotonic", 4)}
{field("cores", "pool", L.POOL_CORES)}
  %others = sext i32 %crowd to i64
  %all = add i64 %n, %others
  %r = icmp sle i64 %all, %cores
  ret i1 %r
}}

; the scheduler may have put the thread we wait for on our own core: let it run now and then
define internal void @relax(i64 %i) alwaysinline #0 {{
  {pause}
  %low = and i64 %i, {YIELD_EVERY - 1}
  %turn = icmp eq i64 %low, {YIELD_EVERY - 1}
  br i1 %turn, label %yield, label %out
yield:
  %r = call i32 @sched_yield()
  br label %out
out:
  ret void
}}

define internal void @await_slow(ptr %pool, ptr %line, i64 %n, i64 %e) noinline #0 {{
entry:
{field("limit", "pool", L.POOL_BARRIER_SPIN)}
  br label %spin
spin:
  %i = phi i64 [ 0, %entry ], [ %i1, %again ]
  %free = call i1 @may_spin(ptr %pool, i64 %n)
  %below = icmp slt i64 %i, %limit
  %go = and i1 %free, %below
  br i1 %go, label %again, label %doze
again:
  call void @relax(i64 %i)
  %i1 = add i64 %i, 1
  %v = load atomic i64, ptr %line acquire, align 8
  %there = icmp sge i64 %v, %e
  br i1 %there, label %out, label %spin
doze:
  %sleepers = getelementptr i8, ptr %line, i64 {L.LINE_SLEEPERS}
  %in = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  br label %look
look:
  %w = load atomic i64, ptr %line seq_cst, align 8
  %up = icmp sge i64 %w, %e
  br i1 %up, label %leave, label %rest
rest:
  %low = trunc i64 %w to i32
  call void @sleep(ptr %line, i32 %low)
  br label %look
leave:
  %ex = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  br label %out
out:
  ret void
}}

define internal void @await_all(ptr %pool, i64 %t, i64 %n, i64 %e) #0 {{
entry:
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES}
  br label %loop
loop:
  %u = phi i64 [ 0, %entry ], [ %u1, %next ]
  %self = icmp eq i64 %u, %t
  br i1 %self, label %next, label %test
test:
  %off = mul i64 %u, {L.LINE}
  %line = getelementptr i8, ptr %lines, i64 %off
  %v = load atomic i64, ptr %line acquire, align 8
  %there = icmp sge i64 %v, %e
  br i1 %there, label %next, label %slow
slow:
  call void @await_slow(ptr %pool, ptr %line, i64 %n, i64 %e)
  br label %next
next:
  %u1 = add i64 %u, 1
  %more = icmp slt i64 %u1, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


def place_ir(setaffinity: int) -> str:
    """Move workers off the caller's core. The scheduler likes to wake a thread next to its waker; at a barrier both would then wait for
    each other on one core, for as long as it takes the load balancer to notice."""
    return f"""
define internal void @exile(ptr %pool, ptr %line, i32 %cpu1) #1 {{
  %mask = alloca [{L.MASK_BYTES} x i8], align 8
  %all = getelementptr i8, ptr %pool, i64 {L.POOL_MASK}
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %mask, ptr align 8 %all, i64 {L.MASK_BYTES}, i1 false)
  %cpu = sub i32 %cpu1, 1
  %word = lshr i32 %cpu, 6
  %bit = and i32 %cpu, 63
  %inside = icmp ult i32 %word, {L.MASK_BYTES // 8}
  br i1 %inside, label %go, label %out
go:
  %w = getelementptr i64, ptr %mask, i32 %word
  %b64 = zext i32 %bit to i64
  %one = shl i64 1, %b64
  %not = xor i64 %one, -1
  %old = load i64, ptr %w, align 8
  %new = and i64 %old, %not
  store i64 %new, ptr %w, align 8
{field("tid", "line", L.LINE_TID, "i32", align=4)}\
  %r = call i64 (i64, ...) @syscall(i64 {setaffinity}, i32 %tid, i64 {L.MASK_BYTES}, ptr %mask)
  br label %out
out:
  ret void
}}

define internal void @spread(ptr %pool, i64 %n) #0 {{
entry:
{field("cores", "pool", L.POOL_CORES)}\
  %fits = icmp sle i64 %n, %cores
  br i1 %fits, label %start, label %out
start:
  %cpu = call i32 @sched_getcpu()
  %cpu1 = add i32 %cpu, 1
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES}
  br label %loop
loop:
  %u = phi i64 [ 1, %start ], [ %u1, %next ]
  %off = mul i64 %u, {L.LINE}
  %line = getelementptr i8, ptr %lines, i64 %off
{field("at", "line", L.LINE_CPU, "i32", "monotonic", 4)}\
  %clash = icmp eq i32 %at, %cpu1
  br i1 %clash, label %move, label %next
move:
  call void @exile(ptr %pool, ptr %line, i32 %cpu1)
  br label %next
next:
  %u1 = add i64 %u, 1
  %more = icmp slt i64 %u1, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""
