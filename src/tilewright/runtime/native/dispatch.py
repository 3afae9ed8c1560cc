"""LLVM IR of the native entry (`tw_run`), the worker loop (`tw_worker`) and the pool's controls.

A ticket announces a job: its number and how many threads it wants. Workers wait for a new ticket, first awake, then asleep. Only the
caller that set the pool's busy word writes tickets; everyone else walks the schedule alone.
"""
from __future__ import annotations

from . import layout as L
from .barrier import field, job


def run_ir(clock: str) -> str:
    """tw_run(job): patch the argument blocks, then walk with the workers, or alone when they are taken."""
    return f"""
define i64 @tw_run(ptr %job) #0 {{
entry:
{job("pool", L.JOB_POOL, "ptr")}{job("patches", L.JOB_PATCHES, "ptr")}{job("pcount", L.JOB_PATCH_COUNT)}\
{job("io", L.JOB_IO, "ptr")}{job("light", L.JOB_LIGHT)}{job("error", L.JOB_ERROR, "ptr")}{job("wish", L.JOB_THREADS)}\
{job("long", L.JOB_LONG)}\
  %turnp = getelementptr i8, ptr %job, i64 {L.JOB_TURN * 8}
  %turn = load i64, ptr %turnp, align 8
  %turn1 = add i64 %turn, 1
  store i64 %turn1, ptr %turnp, align 8
  br label %patch
patch:
  %p = phi i64 [ 0, %entry ], [ %p1, %patching ]
  %pmore = icmp ult i64 %p, %pcount
  br i1 %pmore, label %patching, label %clear
patching:
  %poff = mul i64 %p, {L.PATCH_WORDS * 8}
  %entryp = getelementptr i8, ptr %patches, i64 %poff
{field("word", "entryp", 0, "ptr")}{field("index", "entryp", 8)}{field("offset", "entryp", 16)}\
  %iop = getelementptr i64, ptr %io, i64 %index
  %base = load i64, ptr %iop, align 8
  %value = add i64 %base, %offset
  store i64 %value, ptr %word, align 8
  %p1 = add i64 %p, 1
  br label %patch
clear:
  %haserr = icmp ne ptr %error, null
  br i1 %haserr, label %wipe, label %foresee
wipe:
  store <{L.ERROR_WORDS} x i64> zeroinitializer, ptr %error, align 8
  br label %foresee
foresee:
  %lengthy = icmp ne i64 %long, 0
  br i1 %lengthy, label %watch, label %choose
watch:
  %armed = call i1 @arm(ptr %job)
  br label %choose
choose:
  %guarded = phi i1 [ false, %foresee ], [ %armed, %watch ]
  %single = icmp sle i64 %wish, 1
  br i1 %single, label %one, label %many
one:
  %r1 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 1, i64 0)
  br label %finish
many:
  %crowdp = getelementptr i8, ptr %pool, i64 {L.POOL_CROWD}
  %crowd = load atomic i32, ptr %crowdp monotonic, align 4
{field("cores", "pool", L.POOL_CORES)}
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
{field("workers", "pool", L.POOL_WORKERS)}
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
{field("ticket", "pool", L.POOL_TICKET, "i64", "monotonic")}\
{field("idle", "pool", L.POOL_IDLE, "i32", "seq_cst", 4)}\
  %num = add i64 %ticket, 1
  %low = and i64 %num, 4294967295
  %asleep = icmp ne i32 %idle, 0
  %small = icmp ne i64 %light, 0
  %rush = and i1 %asleep, %small
  br i1 %rush, label %light.job, label %assign
light.job:
{field("recent", "pool", L.POOL_RECENT, "i64", "monotonic")}{field("burst", "pool", L.POOL_BURST)}\
  %clock = {clock}
  %age = sub i64 %clock, %recent
  %follows = icmp ult i64 %age, %burst
  br i1 %follows, label %rally, label %quiet
rally:
  call void @spread(ptr %pool, i64 %n)
  %olda = atomicrmw xchg ptr %ticket.p, i64 %low seq_cst, align 8
  call void @wake(ptr %ticket.p)
  br label %quiet
quiet:
  store atomic i32 0, ptr %pool release, align 4
  %r4 = call i64 @walk(ptr %pool, ptr %job, i64 0, i64 1, i64 0)
  %ended = {clock}
  store atomic i64 %ended, ptr %recent.p monotonic, align 8
  br label %after
assign:
  call void @spread(ptr %pool, i64 %n)
  %jobp = getelementptr i8, ptr %pool, i64 {L.POOL_JOB}
  store ptr %job, ptr %jobp, align 8
{field("epoch", "pool", L.POOL_EPOCH)}\
  %high = shl i64 %n, 32
  %new = or i64 %high, %low
  %oldt = atomicrmw xchg ptr %ticket.p, i64 %new seq_cst, align 8
{field("idle2", "pool", L.POOL_IDLE, "i32", "seq_cst", 4)}\
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
  %rm = phi i64 [ %r2, %aside ], [ %r3, %go ], [ %r4, %quiet ]
  %seen = phi i64 [ %now, %aside ], [ %workers, %go ], [ %workers, %quiet ]
  %team = add i64 %seen, 1
  %short = icmp slt i64 %team, %wish
  %missing = select i1 %short, i64 {L.FEW_WORKERS}, i64 0
  br label %finish
finish:
  %r = phi i64 [ %r1, %one ], [ %rm, %after ]
  %extra = phi i64 [ 0, %one ], [ %missing, %after ]
  %startp = getelementptr i8, ptr %job, i64 {L.JOB_START * 8}
  store i64 0, ptr %startp, align 8
  %othersp = getelementptr i8, ptr %job, i64 {L.JOB_OTHERS * 8}
  store i64 0, ptr %othersp, align 8
  br i1 %guarded, label %unwatch, label %result
unwatch:
  call void @disarm(ptr %job)
  br label %result
result:
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
  %status = phi i64 [ %st1, %result ], [ %st2, %inspect ]
  ret i64 %status
}}
"""


def worker_ir(gettid: int) -> str:
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
{field("limit", "pool", L.POOL_IDLE_SPIN)}
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
{field("stop", "pool", L.POOL_STOP, "i64", "monotonic")}
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
{field("job", "pool", L.POOL_JOB, "ptr")}{field("epoch", "pool", L.POOL_EPOCH)}\
  %r = call i64 @walk(ptr %pool, ptr %job, i64 %t, i64 %n, i64 %epoch)
  %last = ashr i64 %r, 1
  %fin = add i64 %last, 1
  call void @arrive(ptr %pool, i64 %t, i64 %fin)
  br label %fresh
out:
  ret void
}}
"""


def control_ir(pause: str, clock: str) -> str:
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
{field("ticket", "pool", L.POOL_TICKET, "i64", "monotonic")}\
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
