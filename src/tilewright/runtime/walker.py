"""The native runtime as LLVM IR text: walking a schedule on N threads, the barrier, the worker loop.

Every thread of a job walks the same thunks; each runs its part of a kernel's grid, cut in units of the thunk's chunk. The parts depend
on the grid and the number of threads only, and no kernel's result depends on its part, so any number of threads gives the same bits.

The barrier: each thread writes the barrier's number (an epoch that only grows) into its own line and reads everybody else's. A thread
that waits spins for a bounded number of pauses, and not at all when there are more threads than cores; then it sleeps on the
other's line with a futex. Whoever writes a line wakes its sleepers: the write is a full fence, and a sleeper counts itself before it looks
again, so no wake-up is lost. A job of one thread meets no atomic instruction.
"""
from __future__ import annotations

from ..core.errors import UnsupportedError
from ..core.target_spec import TargetSpec
from . import layout as L

YIELD_EVERY = 2048  # pauses, some 30 microseconds
EXPORTS = ("tw_run", "tw_worker", "tw_acquire", "tw_release", "tw_stop", "tw_spin", "tw_ticks")


def _machine(target: TargetSpec) -> tuple[str, str, tuple[int, int, int]]:
    """The pause instruction, the clock, and the numbers of the system calls futex, gettid and sched_setaffinity."""
    if "linux" not in target.triple:
        raise UnsupportedError(f"runtime: worker threads sleep on Linux futexes, this is {target.triple}; only Linux is supported")
    if target.is_x86:
        return "call void @llvm.x86.sse2.pause()", "call i64 @llvm.readcyclecounter()", (202, 186, 203)
    if target.is_arm:
        return 'call void asm sideeffect "isb", ""()', 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()', (98, 178, 122)
    raise UnsupportedError(f"runtime: no native runtime for {target.triple}; supported: x86-64, AArch64")


def _field(name: str, base: str, offset: int | str, kind: str = "i64", order: str = "", align: int = 8) -> str:
    """Two lines of IR: %name = the field at `offset` bytes of %base."""
    return (f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n"
            f"  %{name} = load {'atomic ' if order else ''}{kind}, ptr %{name}.p {order}, align {align}".replace(" ,", ",") + "\n")


def _job(name: str, word: int, kind: str = "i64") -> str:
    return _field(name, "job", word * 8, kind)


def runtime_ir(target: TargetSpec) -> str:
    """The whole native runtime as one module."""
    pause, clock, (futex, gettid, setaffinity) = _machine(target)
    declarations = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
    if target.is_x86:
        declarations += "declare void @llvm.x86.sse2.pause()\n"
    parts = (declarations, _futex(futex), _barrier(pause), _walk(clock), _place(setaffinity), _run(), _worker(gettid), _control(pause, clock))
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\nattributes #1 = { nounwind noinline cold }\n"


def _futex(number: int) -> str:
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


def _barrier(pause: str) -> str:
    return f"""
define internal void @arrive(ptr %pool, i64 %t, i64 %e) #0 {{
  %off = mul i64 %t, {L.LINE}
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES}
  %line = getelementptr i8, ptr %lines, i64 %off
  %old = atomicrmw xchg ptr %line, i64 %e seq_cst, align 8
{_field("sleepers", "line", L.LINE_SLEEPERS, "i32", "seq_cst", 4)}
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
{_field("crowd", "pool", L.POOL_CROWD, "i32", "monotonic", 4)}
{_field("cores", "pool", L.POOL_CORES)}
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
{_field("limit", "pool", L.POOL_BARRIER_SPIN)}
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


def _walk(clock: str) -> str:
    """walk(pool, job, t, n, epoch) → the epoch after the last barrier × 2 + (1 when cancelled)."""
    return f"""
define internal i1 @wanted_stop(ptr %cancel) alwaysinline #0 {{
  %has = icmp ne ptr %cancel, null
  br i1 %has, label %look, label %no
look:
  %v = load atomic i64, ptr %cancel monotonic, align 8
  %r = icmp ne i64 %v, 0
  ret i1 %r
no:
  ret i1 false
}}

define internal i64 @walk(ptr %pool, ptr %job, i64 %t, i64 %n, i64 %epoch0) #0 {{
entry:
{_job("thunks", L.JOB_THUNKS, "ptr")}{_job("count", L.JOB_COUNT)}{_job("scratch0", L.JOB_SCRATCH, "ptr")}\
{_job("stride", L.JOB_SCRATCH_STRIDE)}{_job("cancel", L.JOB_CANCEL, "ptr")}{_job("profile", L.JOB_PROFILE, "ptr")}\
  %soff = mul i64 %stride, %t
  %scratch = getelementptr i8, ptr %scratch0, i64 %soff
  %many = icmp sgt i64 %n, 1
  %first = icmp eq i64 %t, 0
  %timed = icmp ne ptr %profile, null
  %nm1 = sub i64 %n, 1
  %t1 = add i64 %t, 1
  %stopp = getelementptr i8, ptr %pool, i64 {L.POOL_LINES + L.LINE_CANCELLED}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %epoch = phi i64 [ %epoch0, %entry ], [ %epoch1, %next ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %body, label %done
body:
  %toff = mul i64 %i, {L.THUNK_WORDS * 8}
  %thunk = getelementptr i8, ptr %thunks, i64 %toff
{_field("fn", "thunk", L.THUNK_FN * 8, "ptr")}{_field("args", "thunk", L.THUNK_ARGS * 8, "ptr")}{_field("grid", "thunk", L.THUNK_GRID * 8)}\
{_field("flags", "thunk", L.THUNK_FLAGS * 8)}{_field("chunk", "thunk", L.THUNK_CHUNK * 8)}\
  br i1 %many, label %shared, label %alone
alone:
  %astop = call i1 @wanted_stop(ptr %cancel)
  br i1 %astop, label %cancelled, label %start
shared:
  %bit = and i64 %flags, {L.BARRIER}
  %sync = icmp ne i64 %bit, 0
  br i1 %sync, label %meet, label %start
meet:
  %e = add i64 %epoch, 1
  br i1 %first, label %decide, label %report
decide:
  %want = call i1 @wanted_stop(ptr %cancel)
  br i1 %want, label %mark, label %report
mark:
  store atomic i64 %e, ptr %stopp monotonic, align 8
  br label %report
report:
  call void @arrive(ptr %pool, i64 %t, i64 %e)
  call void @await_all(ptr %pool, i64 %t, i64 %n, i64 %e)
  %s = load atomic i64, ptr %stopp monotonic, align 8
  %halt = icmp eq i64 %s, %e
  br i1 %halt, label %cancelled, label %start
start:
  %epoch1 = phi i64 [ %epoch, %alone ], [ %epoch, %shared ], [ %e, %report ]
  %serialbit = and i64 %flags, {L.SERIAL}
  %serial = icmp ne i64 %serialbit, 0
  %whole = xor i1 %many, true
  %one = or i1 %serial, %whole
  br i1 %one, label %single, label %split
single:
  %mine = select i1 %first, i64 %grid, i64 0
  br label %part
split:
  %coarse = icmp ugt i64 %chunk, 1
  br i1 %coarse, label %units, label %cut
units:
  %cm1 = sub i64 %chunk, 1
  %up = add i64 %grid, %cm1
  %uc = udiv i64 %up, %chunk
  br label %cut
cut:
  %us = phi i64 [ %grid, %split ], [ %uc, %units ]
  %ch = phi i64 [ 1, %split ], [ %chunk, %units ]
  %b0 = mul i64 %us, %t
  %b1 = add i64 %b0, %nm1
  %b2 = udiv i64 %b1, %n
  %b3 = mul i64 %b2, %ch
  %e0 = mul i64 %us, %t1
  %e1 = add i64 %e0, %nm1
  %e2 = udiv i64 %e1, %n
  %e3 = mul i64 %e2, %ch
  %e4 = call i64 @llvm.umin.i64(i64 %e3, i64 %grid)
  br label %part
part:
  %begin = phi i64 [ 0, %single ], [ %b3, %cut ]
  %end = phi i64 [ %mine, %single ], [ %e4, %cut ]
  %work = icmp slt i64 %begin, %end
  br i1 %work, label %timing, label %next
timing:
  br i1 %timed, label %measured, label %plain
plain:
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  br label %next
measured:
  %slot0 = mul i64 %i, %n
  %slot1 = add i64 %slot0, %t
  %slot2 = shl i64 %slot1, 4
  %slot = getelementptr i8, ptr %profile, i64 %slot2
  %slotend = getelementptr i8, ptr %slot, i64 8
  %tick0 = {clock}
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  %tick1 = {clock}
  store i64 %tick0, ptr %slot, align 8
  store i64 %tick1, ptr %slotend, align 8
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
cancelled:
  %ec = phi i64 [ %epoch, %alone ], [ %e, %report ]
  br label %done
done:
  %last = phi i64 [ %epoch, %loop ], [ %ec, %cancelled ]
  %flag = phi i64 [ 0, %loop ], [ 1, %cancelled ]
  %twice = shl i64 %last, 1
  %r = or i64 %twice, %flag
  ret i64 %r
}}
"""


def _place(setaffinity: int) -> str:
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
{_field("tid", "line", L.LINE_TID, "i32", align=4)}\
  %r = call i64 (i64, ...) @syscall(i64 {setaffinity}, i32 %tid, i64 {L.MASK_BYTES}, ptr %mask)
  br label %out
out:
  ret void
}}

define internal void @spread(ptr %pool, i64 %n) #0 {{
entry:
{_field("cores", "pool", L.POOL_CORES)}\
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
{_field("at", "line", L.LINE_CPU, "i32", "monotonic", 4)}\
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


def _run() -> str:
    """tw_run(job): patch the argument blocks, then walk with the workers, or alone when they are taken."""
    return f"""
define i64 @tw_run(ptr %job) #0 {{
entry:
{_job("pool", L.JOB_POOL, "ptr")}{_job("patches", L.JOB_PATCHES, "ptr")}{_job("pcount", L.JOB_PATCH_COUNT)}\
{_job("io", L.JOB_IO, "ptr")}{_job("light", L.JOB_LIGHT)}{_job("error", L.JOB_ERROR, "ptr")}{_job("wish", L.JOB_THREADS)}\
  br label %patch
patch:
  %p = phi i64 [ 0, %entry ], [ %p1, %patching ]
  %pmore = icmp ult i64 %p, %pcount
  br i1 %pmore, label %patching, label %clear
patching:
  %poff = mul i64 %p, {L.PATCH_WORDS * 8}
  %entryp = getelementptr i8, ptr %patches, i64 %poff
{_field("word", "entryp", 0, "ptr")}{_field("index", "entryp", 8)}{_field("offset", "entryp", 16)}\
  %iop = getelementptr i64, ptr %io, i64 %index
  %base = load i64, ptr %iop, align 8
  %value = add i64 %base, %offset
  store i64 %value, ptr %word, align 8
  %p1 = add i64 %p, 1
  br label %patch
clear:
  %haserr = icmp ne ptr %error, null
  br i1 %haserr, label %wipe, label %choose
wipe:
  store <{L.ERROR_WORDS} x i64> zeroinitializer, ptr %error, align 8
  br label %choose
choose:
  %single = icmp sle i64 %wish, 1
  br i1 %single, label %one, label %many
one:
  %r1 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 1, i64 0)
  br label %finish
many:
  %crowdp = getelementptr i8, ptr %pool, i64 {L.POOL_CROWD}
  %crowd = load atomic i32, ptr %crowdp monotonic, align 4
{_field("cores", "pool", L.POOL_CORES)}
  %crowd64 = sext i32 %crowd to i64
  %room0 = sub i64 %cores, %crowd64
  %room = call i64 @llvm.smax.i64(i64 %room0, i64 1)
  %nobody = icmp eq i32 %crowd, 0
  %fit = call i64 @llvm.umin.i64(i64 %wish, i64 %room)
  %n0 = select i1 %nobody, i64 %wish, i64 %fit
  %tight = icmp sle i64 %n0, 1
  br i1 %tight, label %aside, label %try
try:
  %got = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic, align 4
  %ok = extractvalue {{ i32, i1 }} %got, 1
  br i1 %ok, label %have, label %aside
have:
{_field("workers", "pool", L.POOL_WORKERS)}
  %hands = add i64 %workers, 1
  %n = call i64 @llvm.umin.i64(i64 %n0, i64 %hands)
  %few = icmp sle i64 %n, 1
  br i1 %few, label %giveup, label %post
giveup:
  store atomic i32 0, ptr %pool release, align 4
  br label %aside
aside:
  %wc = atomicrmw add ptr %crowdp, i32 1 monotonic, align 4
  %r2 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 1, i64 0)
  %wd = atomicrmw sub ptr %crowdp, i32 1 monotonic, align 4
  %nowp = getelementptr i8, ptr %pool, i64 {L.POOL_WORKERS}
  %now = load atomic i64, ptr %nowp monotonic, align 8
  br label %after
post:
{_field("ticket", "pool", L.POOL_TICKET, "i64", "monotonic")}\
{_field("idle", "pool", L.POOL_IDLE, "i32", "seq_cst", 4)}\
  %num = add i64 %ticket, 1
  %low = and i64 %num, 4294967295
  %asleep = icmp ne i32 %idle, 0
  %small = icmp ne i64 %light, 0
  %rush = and i1 %asleep, %small
  call void @spread(ptr %pool, i64 %n)
  br i1 %rush, label %alert, label %assign
alert:
  %olda = atomicrmw xchg ptr %ticket.p, i64 %low seq_cst, align 8
  call void @wake(ptr %ticket.p)
  store atomic i32 0, ptr %pool release, align 4
  %r4 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 1, i64 0)
  br label %after
assign:
  %jobp = getelementptr i8, ptr %pool, i64 {L.POOL_JOB}
  store ptr %job, ptr %jobp, align 8
{_field("epoch", "pool", L.POOL_EPOCH)}\
  %high = shl i64 %n, 32
  %new = or i64 %high, %low
  %oldt = atomicrmw xchg ptr %ticket.p, i64 %new seq_cst, align 8
{_field("idle2", "pool", L.POOL_IDLE, "i32", "seq_cst", 4)}\
  %awake = icmp eq i32 %idle2, 0
  br i1 %awake, label %go, label %rouse
rouse:
  call void @wake(ptr %ticket.p)
  br label %go
go:
  %r3 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 %n, i64 %epoch)
  %laste = ashr i64 %r3, 1
  %fin = add i64 %laste, 1
  call void @await_all(ptr %pool, i64 0, i64 %n, i64 %fin)
  store i64 %fin, ptr %epoch.p, align 8
  store atomic i32 0, ptr %pool release, align 4
  br label %after
after:
  %rm = phi i64 [ %r2, %aside ], [ %r3, %go ], [ %r4, %alert ]
  %seen = phi i64 [ %now, %aside ], [ %workers, %go ], [ %workers, %alert ]
  %team = add i64 %seen, 1
  %short = icmp slt i64 %team, %wish
  %missing = select i1 %short, i64 {L.FEW_WORKERS}, i64 0
  br label %finish
finish:
  %r = phi i64 [ %r1, %one ], [ %rm, %after ]
  %extra = phi i64 [ 0, %one ], [ %missing, %after ]
  %stopped = and i64 %r, 1
  %st1 = or i64 %stopped, %extra
  br i1 %haserr, label %inspect, label %return
inspect:
  %code = load i64, ptr %error, align 8
  %bad = icmp ne i64 %code, 0
  %errbit = select i1 %bad, i64 {L.FAILED}, i64 0
  %st2 = or i64 %st1, %errbit
  br label %return
return:
  %status = phi i64 [ %st1, %finish ], [ %st2, %inspect ]
  ret i64 %status
}}
"""


def _worker(gettid: int) -> str:
    """tw_worker(pool, t, seen): take part in every job of more than t threads until told to stop."""
    return f"""
define void @tw_worker(ptr %pool, i64 %t, i64 %seen0) #0 {{
entry:
  %ticketp = getelementptr i8, ptr %pool, i64 {L.POOL_TICKET}
  %idlep = getelementptr i8, ptr %pool, i64 {L.POOL_IDLE}
  %t1 = add i64 %t, 1
  %off = mul i64 %t, {L.LINE}
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES}
  %line = getelementptr i8, ptr %lines, i64 %off
  %cpup = getelementptr i8, ptr %line, i64 {L.LINE_CPU}
  %tidp = getelementptr i8, ptr %line, i64 {L.LINE_TID}
  %tid = call i64 (i64, ...) @syscall(i64 {gettid})
  %tid32 = trunc i64 %tid to i32
  store i32 %tid32, ptr %tidp, align 4
  br label %fresh
fresh:
  %seen = phi i64 [ %seen0, %entry ], [ %w, %work ], [ %w, %mine ]
{_field("limit", "pool", L.POOL_IDLE_SPIN)}
  br label %spin
spin:
  %i = phi i64 [ 0, %fresh ], [ %i1, %again ]
  %w0 = load atomic i64, ptr %ticketp acquire, align 8
  %same0 = icmp eq i64 %w0, %seen
  br i1 %same0, label %idle, label %news
idle:
  %free = call i1 @may_spin(ptr %pool, i64 %t1)
  %below = icmp slt i64 %i, %limit
  %stay = and i1 %free, %below
  br i1 %stay, label %again, label %doze
again:
  call void @relax(i64 %i)
  %i1 = add i64 %i, 1
  br label %spin
doze:
  %known = phi i64 [ %seen, %idle ], [ %w, %stranger ]
  %in = atomicrmw add ptr %idlep, i32 1 seq_cst, align 4
  br label %look
look:
  %w1 = load atomic i64, ptr %ticketp seq_cst, align 8
  %same1 = icmp eq i64 %w1, %known
  br i1 %same1, label %rest, label %up
rest:
  %low = trunc i64 %known to i32
  call void @sleep(ptr %ticketp, i32 %low)
  br label %look
up:
  %ex = atomicrmw sub ptr %idlep, i32 1 seq_cst, align 4
  br label %news
news:
  %w = phi i64 [ %w0, %spin ], [ %w1, %up ]
{_field("stop", "pool", L.POOL_STOP, "i64", "monotonic")}
  %quit = icmp ne i64 %stop, 0
  br i1 %quit, label %out, label %mine
mine:
  %n = lshr i64 %w, 32
  %ready = icmp eq i64 %n, 0
  br i1 %ready, label %fresh, label %chosen
chosen:
  %member = icmp slt i64 %t, %n
  br i1 %member, label %work, label %stranger
stranger:
  br label %doze
work:
  %cpu = call i32 @sched_getcpu()
  %cpu1 = add i32 %cpu, 1
  store atomic i32 %cpu1, ptr %cpup monotonic, align 4
{_field("job", "pool", L.POOL_JOB, "ptr")}{_field("epoch", "pool", L.POOL_EPOCH)}\
  %r = call i64 @walk(ptr %pool, ptr %job, i64 %t, i64 %n, i64 %epoch)
  %last = ashr i64 %r, 1
  %fin = add i64 %last, 1
  call void @arrive(ptr %pool, i64 %t, i64 %fin)
  br label %fresh
out:
  ret void
}}
"""


def _control(pause: str, clock: str) -> str:
    return f"""
define void @tw_acquire(ptr %pool) #0 {{
entry:
  br label %loop
loop:
  %got = cmpxchg ptr %pool, i32 0, i32 1 acquire monotonic, align 4
  %ok = extractvalue {{ i32, i1 }} %got, 1
  br i1 %ok, label %out, label %wait
wait:
  %r = call i32 @sched_yield()
  br label %loop
out:
  ret void
}}
define void @tw_release(ptr %pool) #0 {{
  store atomic i32 0, ptr %pool release, align 4
  ret void
}}
define void @tw_stop(ptr %pool) #0 {{
  call void @tw_acquire(ptr %pool)
  %workersp = getelementptr i8, ptr %pool, i64 {L.POOL_WORKERS}
  store atomic i64 0, ptr %workersp monotonic, align 8
  %stopp = getelementptr i8, ptr %pool, i64 {L.POOL_STOP}
  store atomic i64 1, ptr %stopp monotonic, align 8
{_field("ticket", "pool", L.POOL_TICKET, "i64", "monotonic")}\
  %num = add i64 %ticket, 1
  %low = and i64 %num, 4294967295
  %old = atomicrmw xchg ptr %ticket.p, i64 %low seq_cst, align 8
  call void @wake(ptr %ticket.p)
  call void @tw_release(ptr %pool)
  ret void
}}
define void @tw_spin(i64 %count) #0 {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  {pause}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}}
define i64 @tw_ticks() #0 {{
  %t = {clock}
  ret i64 %t
}}
"""
