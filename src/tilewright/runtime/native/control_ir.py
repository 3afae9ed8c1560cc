"""LLVM IR of loops and branches in the walk: the moving arguments of kernels, and the control thunks.

Every thread counts the iterations of the loops it is in, on its own stack. A kernel whose arguments depend on them gets a copy of its
argument block with the moves applied, so nothing shared is written between iterations and no barrier is needed for it.
"""
from __future__ import annotations

from . import layout as L
from .barrier import field, job


def move_ir() -> str:
    """moved(args, moves, counters, block): the argument words for this iteration, in `block`."""
    return f"""
define internal void @moved(ptr %args, ptr %moves, ptr %counters, ptr %block) #0 {{
entry:
{field("words", "moves", 0)}{field("count", "moves", 8)}\
  %bytes = shl i64 %words, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %block, ptr align 8 %args, i64 %bytes, i1 false)
  br label %loop
loop:
  %m = phi i64 [ 0, %entry ], [ %m1, %next ]
  %more = icmp ult i64 %m, %count
  br i1 %more, label %body, label %out
body:
  %off = mul i64 %m, {L.MOVE_WORDS * 8}
  %at = add i64 %off, 16
  %entryp = getelementptr i8, ptr %moves, i64 %at
{field("word", "entryp", 0)}{field("depth", "entryp", 8)}{field("other", "entryp", 16)}{field("step", "entryp", 24)}\
  %counterp = getelementptr i64, ptr %counters, i64 %depth
  %i = load i64, ptr %counterp, align 8
  %wordp = getelementptr i64, ptr %block, i64 %word
  %value = load i64, ptr %wordp, align 8
  %choice = icmp sge i64 %other, 0
  br i1 %choice, label %choose, label %slide
slide:
  %far = mul i64 %i, %step
  %sum = add i64 %value, %far
  br label %next
choose:
  %otherp = getelementptr i64, ptr %block, i64 %other
  %odd = load i64, ptr %otherp, align 8
  %low = and i64 %i, 1
  %isodd = icmp ne i64 %low, 0
  %chosen = select i1 %isodd, i64 %odd, i64 %value
  br label %next
next:
  %new = phi i64 [ %sum, %slide ], [ %chosen, %choose ]
  store i64 %new, ptr %wordp, align 8
  %m1 = add i64 %m, 1
  br label %loop
out:
  ret void
}}
"""


def failed_ir() -> str:
    """failed(job): whether a kernel has filled its error block."""
    return f"""
define internal i1 @failed(ptr %job) #0 {{
entry:
{job("blocks", L.JOB_FAULTS, "ptr")}{job("count", L.JOB_FAULT_COUNT)}\
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %look ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %look, label %no
look:
  %off = mul i64 %k, {L.ERROR_WORDS * 8}
  %block = getelementptr i8, ptr %blocks, i64 %off
  %code = load atomic i64, ptr %block monotonic, align 8
  %k1 = add i64 %k, 1
  %bad = icmp ne i64 %code, 0
  br i1 %bad, label %yes, label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def control_thunk_ir() -> str:
    """goes(thunk, i, args, counters, state, cancel, first, many, failed) -> the thunk to run after control thunk i. `failed`: a loop that
    looks for errors ends, for its exit may hang on what the failed kernel did not compute.

    state: [the end of the outermost loop or branch that thread 0 is alone in, or 0; the thunk to resume at, or -1]."""
    return f"""
define internal i64 @goes(ptr %thunk, i64 %i, ptr %args, ptr %counters, ptr %state, ptr %cancel, i1 %first, i1 %many, i1 %failed) #0 {{
entry:
{field("flags", "thunk", L.THUNK_FLAGS * 8)}{field("count", "thunk", L.THUNK_GRID * 8)}{field("depth", "thunk", L.THUNK_DEPTH * 8)}\
{field("target", "thunk", L.THUNK_TARGET * 8)}{field("end", "thunk", L.THUNK_END * 8)}{field("region", "thunk", L.THUNK_REGION * 8)}\
  %after = add i64 %i, 1
  %counter = getelementptr i64, ptr %counters, i64 %depth
  %serialbit = and i64 %flags, {L.SERIAL}
  %serial = icmp ne i64 %serialbit, 0
  %idle = xor i1 %first, true
  %skip = and i1 %serial, %idle
  %kind = lshr i64 %flags, {L.KIND_SHIFT}
  switch i64 %kind, label %step [
    i64 {L.KINDS["loop"]}, label %loop
    i64 {L.KINDS["test"]}, label %test
    i64 {L.KINDS["next"]}, label %next
    i64 {L.KINDS["if"]}, label %if
    i64 {L.KINDS["jump"]}, label %jump
    i64 {L.KINDS["end"]}, label %close
  ]
step:
  ret i64 %after
jump:
  ret i64 %target
loop:
  ; a thread that goes around knows the count too: what reads a carry after the loop goes by it
  %start = select i1 %skip, i64 %count, i64 0
  store i64 %start, ptr %counter, align 8
  br i1 %skip, label %around, label %enter
around:
  ret i64 %end
enter:
  call void @alone(ptr %state, i64 %region)
  %some = icmp sgt i64 %count, 0
  %sound = xor i1 %failed, true
  %runs = and i1 %some, %sound
  %body = select i1 %runs, i64 %after, i64 %end
  ret i64 %body
if:
  br i1 %skip, label %around, label %decide
decide:
  call void @alone(ptr %state, i64 %region)
  br label %test
test:
  %bytep = load ptr, ptr %args, align 8
  %byte = load i8, ptr %bytep, align 1
  %true = icmp ne i8 %byte, 0
  %way = select i1 %true, i64 %after, i64 %target
  ret i64 %way
next:
  %i0 = load i64, ptr %counter, align 8
  %i1 = add i64 %i0, 1
  store i64 %i1, ptr %counter, align 8
  %left.over = icmp slt i64 %i1, %count
  %fine = xor i1 %failed, true
  %again = and i1 %left.over, %fine
  %there = select i1 %again, i64 %target, i64 %after
  %canstop = icmp ne i64 %region, 0
  %polls = and i1 %canstop, %many
  br i1 %polls, label %poll, label %go
poll:
  %stop = call i1 @wanted_stop(ptr %cancel)
  br i1 %stop, label %leave, label %go
leave:
  %resumep = getelementptr i64, ptr %state, i64 1
  store i64 %there, ptr %resumep, align 8
  ret i64 %region
go:
  ret i64 %there
close:
  ; a thread that comes here from an interrupt has not passed the loop's head
  %counted = icmp ne i64 %count, 0
  %learns = and i1 %skip, %counted
  %was = load i64, ptr %counter, align 8
  %is = select i1 %learns, i64 %count, i64 %was
  store i64 %is, ptr %counter, align 8
  %open = load i64, ptr %state, align 8
  %mine = icmp eq i64 %open, %i
  %left = select i1 %mine, i64 0, i64 %open
  store i64 %left, ptr %state, align 8
  ret i64 %after
}}

define internal void @alone(ptr %state, i64 %region) alwaysinline #0 {{
  %outermost = icmp ne i64 %region, 0
  %old = load i64, ptr %state, align 8
  %new = select i1 %outermost, i64 %region, i64 %old
  store i64 %new, ptr %state, align 8
  ret void
}}
"""
