"""The native runtime as LLVM IR text: `runtime_ir` is the whole module, `walk_ir` the walk through a schedule.

Every thread of a job walks the same thunks; each runs its part of a kernel's grid, cut in units of the thunk's chunk. The parts depend
on the grid and the number of threads only; of a kernel that is shared, a thread that is done takes over programs of the others' parts.
No kernel's result depends on who runs which of its programs, so any number of threads gives the same bits. A job of one thread meets no
atomic instruction.
"""

from __future__ import annotations

from ...core.errors import UnsupportedError
from ...core.target_spec import TargetSpec
from .. import crash
from ..crash import crash_ir, slot_ir
from . import layout as L
from .barrier import barrier_ir, field, futex_ir, job, place_ir
from .control_ir import control_thunk_ir, failed_ir, move_ir
from .dispatch import control_ir, run_ir, worker_ir

# LLVM IR that lets Ctrl-C end a long native call.
# Python only notes a signal; its handler runs when the main thread is back in Python, which a native call delays. So a call that is
# expected to take long (JOB_LONG) and runs on the main thread, where alone handlers run, puts a handler of ours in front of Python's for
# its own duration: it sets a word, then calls Python's. Thread 0 looks at the word between thunks, and the call returns with CANCELLED.
# Python then runs its handlers. What they raise ends the call; where they raise nothing the session continues with the thunk that was next
# (`Session.settle`), so that a handler of the user's that only takes note changes no result.
# Short calls pay one load and one branch; long ones four system calls, about a microsecond. Calls of other threads never look at the word.
SIGINT = 2
ACTION_BYTES = 256  # room for libc's struct sigaction, whose first field is the handler


def interrupt_ir(gettid: int) -> str:
    """arm(job) → whether our handler is in front, disarm(job)."""
    cancel = L.JOB_CANCEL * 8
    return f"""
@interrupted = internal global i64 0
@python.handler = internal global ptr null
@python.action = internal global [{ACTION_BYTES} x i8] zeroinitializer, align 16
declare i32 @getpid()
declare i32 @sigaction(i32, ptr, ptr)

define internal void @on_interrupt(i32 %number, ptr %info, ptr %context) #0 {{
  store atomic i64 1, ptr @interrupted monotonic, align 8
  %next = load ptr, ptr @python.handler, align 8
  call void %next(i32 %number, ptr %info, ptr %context)
  ret void
}}
define internal i1 @arm(ptr %job) #1 {{
entry:
  %own = alloca [{ACTION_BYTES} x i8], align 16
  %cancelp = getelementptr i8, ptr %job, i64 {cancel}
  %taken = load ptr, ptr %cancelp, align 8
  %free = icmp eq ptr %taken, null
  %tid = call i64 (i64, ...) @syscall(i64 {gettid})
  %pid = call i32 @getpid()
  %pid64 = sext i32 %pid to i64
  %main = icmp eq i64 %tid, %pid64
  %may = and i1 %free, %main
  br i1 %may, label %look, label %no
look:
  %r0 = call i32 @sigaction(i32 {SIGINT}, ptr null, ptr %own)
  %handler = load ptr, ptr %own, align 16
  %number = ptrtoint ptr %handler to i64
  %real = icmp ugt i64 %number, 1  ; neither SIG_DFL nor SIG_IGN
  br i1 %real, label %clear, label %no
clear:
  store atomic i64 0, ptr @interrupted monotonic, align 8
  %ours = icmp eq ptr %handler, @on_interrupt  ; a child that was forked during such a call: what was saved then still holds
  br i1 %ours, label %watch, label %install
install:
  call void @llvm.memcpy.p0.p0.i64(ptr @python.action, ptr %own, i64 {ACTION_BYTES}, i1 false)
  store ptr %handler, ptr @python.handler, align 8
  store ptr @on_interrupt, ptr %own, align 16
  %r1 = call i32 @sigaction(i32 {SIGINT}, ptr %own, ptr null)
  br label %watch
watch:
  store ptr @interrupted, ptr %cancelp, align 8
  ret i1 true
no:
  ret i1 false
}}
define internal void @disarm(ptr %job) #1 {{
  %r = call i32 @sigaction(i32 {SIGINT}, ptr @python.action, ptr null)
  %cancelp = getelementptr i8, ptr %job, i64 {cancel}
  store ptr null, ptr %cancelp, align 8
  ret void
}}
"""


EXPORTS = ("tw_run", "tw_worker", "tw_acquire", "tw_release", "tw_stop", "tw_spin", "tw_ticks", *crash.EXPORTS)


def _machine(target: TargetSpec) -> tuple[str, str, str, tuple[int, int, int, int, int]]:
    """The pause instruction, the clock, the thread's pointer, and the numbers of the system calls futex, gettid, sched_setaffinity, write
    and tgkill."""
    if "linux" not in target.triple:
        raise UnsupportedError(f"runtime: worker threads sleep on Linux futexes, this is {target.triple}; only Linux is supported")
    if target.is_x86:
        own = "load i64, ptr addrspace(257) null, align 8"  # fs:0, where the pointer itself stands
        return "call void @llvm.x86.sse2.pause()", "call i64 @llvm.readcyclecounter()", own, (202, 186, 203, 1, 234)
    if target.is_arm:
        read = "call i64 @llvm.read_volatile_register.i64(metadata !{})"
        return "call void @llvm.aarch64.isb(i32 15)", read.format(0), read.format(1), (98, 178, 122, 64, 131)
    raise UnsupportedError(f"runtime: no native runtime for {target.triple}; supported: x86-64, AArch64")


def runtime_ir(target: TargetSpec) -> str:
    """The whole native runtime as one module."""
    pause, clock, own, (futex, gettid, setaffinity, write, tgkill) = _machine(target)
    declarations = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
    declarations += "".join(f"declare {call.removeprefix('call ')}\n" for call in (pause.replace(" 15", ""), clock.replace(" !0", "")))
    parts = (declarations, futex_ir(futex), barrier_ir(pause), move_ir(), failed_ir(), control_thunk_ir(), slot_ir(own), walk_ir(clock),
             place_ir(setaffinity), interrupt_ir(gettid), run_ir(clock), worker_ir(gettid), control_ir(pause, clock),
             crash_ir(write, tgkill, gettid))
    end = "attributes #0 = { nounwind }\nattributes #1 = { nounwind noinline cold }\n!0 = !{!\"cntvct_el0\"}\n!1 = !{!\"tpidr_el0\"}\n"
    return "\n".join(parts) + "\n" + end


def walk_ir(clock: str) -> str:
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

; Every second time a thunk that streams is walked from its end, piece by piece: it meets what the last walk left in the caches
define internal void @part(ptr %pool, ptr %thunk, ptr %fn, ptr %args, i64 %begin, i64 %end, ptr %scratch, i64 %way, i1 %may, i64 %t, i64 %n,
                           i64 %grid, i64 %e) alwaysinline #0 {{
entry:
{field("share", "thunk", L.THUNK_SHARE * 8)}\
  %long = icmp ne i64 %share, 0
  %give = and i1 %long, %may
  br i1 %give, label %together, label %fixed
together:
  call void @share(ptr %pool, ptr %fn, ptr %args, ptr %scratch, i64 %t, i64 %n, i64 %grid, i64 %e, i64 %share)
  ret void
fixed:
{field("piece", "thunk", L.THUNK_PIECE * 8)}\
  %odd = trunc i64 %way to i1
  %streams = icmp ne i64 %piece, 0
  %back = and i1 %odd, %streams
  br i1 %back, label %pieces, label %whole
whole:
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
pieces:
  %high = phi i64 [ %end, %fixed ], [ %low, %pieces ]
  %down = sub i64 %high, %piece
  %low = call i64 @llvm.smax.i64(i64 %down, i64 %begin)
  call void %fn(ptr %args, i64 %low, i64 %high, ptr %scratch)
  %more = icmp sgt i64 %low, %begin
  br i1 %more, label %pieces, label %out
out:
  ret void
}}

; Pieces of the own part, then of the others': taken from the word in the owner's line, which counts the part up. The number of another
; barrier in it means that nobody has begun: no thread passes the next barrier before all have left this kernel.
define internal void @share(ptr %pool, ptr %fn, ptr %args, ptr %scratch, i64 %t, i64 %n, i64 %grid, i64 %e, i64 %piece) noinline #0 {{
entry:
  %lines = getelementptr i8, ptr %pool, i64 {L.POOL_LINES + L.LINE_WORK}
  %number = add i64 %e, 1
  %mark = shl i64 %number, {L.WORK_BITS}
  %nm1 = sub i64 %n, 1
  br label %whose
whose:
  %v = phi i64 [ %t, %entry ], [ %v2, %empty ]
  %k = phi i64 [ 1, %entry ], [ %k1, %empty ]
  %v1 = add i64 %v, 1
  %b0 = mul i64 %grid, %v
  %b1 = add i64 %b0, %nm1
  %begin = udiv i64 %b1, %n
  %e0 = mul i64 %grid, %v1
  %e1 = add i64 %e0, %nm1
  %end = udiv i64 %e1, %n
  %off = mul i64 %v, {L.LINE}
  %word = getelementptr i8, ptr %lines, i64 %off
  br label %look
look:
  %w = load atomic i64, ptr %word acquire, align 8
  %its = and i64 %w, {-1 << L.WORK_BITS}
  %fresh = icmp ne i64 %its, %mark
  %next = and i64 %w, {(1 << L.WORK_BITS) - 1}
  %at = select i1 %fresh, i64 %begin, i64 %next
  %none = icmp uge i64 %at, %end
  br i1 %none, label %empty, label %take
take:
  %far = add i64 %at, %piece
  %stop = call i64 @llvm.umin.i64(i64 %far, i64 %end)
  %rest = or i64 %mark, %stop
  %got = cmpxchg ptr %word, i64 %w, i64 %rest acq_rel monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %got, 1
  br i1 %mine, label %run, label %look
run:
  call void %fn(ptr %args, i64 %at, i64 %stop, ptr %scratch)
  br label %look
empty:
  %k1 = add i64 %k, 1
  %over = icmp eq i64 %v1, %n
  %v2 = select i1 %over, i64 0, i64 %v1
  %more = icmp sle i64 %k1, %n
  br i1 %more, label %whose, label %done
done:
  ret void
}}

define internal i64 @walk(ptr %pool, ptr %job, i64 %t, i64 %n, i64 %epoch0) #0 {{
entry:
{job("thunks", L.JOB_THUNKS, "ptr")}{job("count", L.JOB_COUNT)}{job("scratch0", L.JOB_SCRATCH, "ptr")}\
{job("stride", L.JOB_SCRATCH_STRIDE)}{job("cancel", L.JOB_CANCEL, "ptr")}{job("profile", L.JOB_PROFILE, "ptr")}\
{job("wish", L.JOB_THREADS)}{job("start0", L.JOB_START)}{job("others0", L.JOB_OTHERS)}{job("turn", L.JOB_TURN)}\
  %myself = call i64 @myself()
  %now = call ptr @slot(i64 %myself)
  %now.job = getelementptr i8, ptr %now, i64 8
  %now.thunk = getelementptr i8, ptr %now, i64 16
  store volatile i64 %myself, ptr %now, align 8
  store volatile ptr %job, ptr %now.job, align 8
  %soff = mul i64 %stride, %t
  %scratch = getelementptr i8, ptr %scratch0, i64 %soff
  %many = icmp sgt i64 %n, 1
  %first = icmp eq i64 %t, 0
  %timed = icmp ne ptr %profile, null
  %nm1 = sub i64 %n, 1
  %t1 = add i64 %t, 1
  %stopp = getelementptr i8, ptr %pool, i64 {L.POOL_LINES + L.LINE_CANCELLED}
  %failp = getelementptr i8, ptr %pool, i64 {L.POOL_LINES + L.LINE_FAILED}
  %counters = alloca [{L.COUNTERS} x i64], align 8
  %state = alloca [2 x i64], align 8
  %block = alloca [{L.MOVED_WORDS} x i64], align 8
  %resumep = getelementptr i64, ptr %state, i64 1
  %savedp = getelementptr i8, ptr %job, i64 {L.JOB_COUNTERS * 8}
  store i64 0, ptr %state, align 8
  store i64 -1, ptr %resumep, align 8
  %first.thunk = select i1 %first, i64 %start0, i64 %others0
  %resumed = icmp ne i64 %others0, 0
  br i1 %resumed, label %restore, label %loop
restore:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %counters, ptr align 8 %savedp, i64 {L.COUNTERS * 8}, i1 false)
  %inside = icmp ne i64 %start0, %others0
  %region0 = select i1 %inside, i64 %others0, i64 0
  store i64 %region0, ptr %state, align 8
  br label %loop
loop:
  %i = phi i64 [ %first.thunk, %entry ], [ %first.thunk, %restore ], [ %i1, %next ], [ %ic, %control ]
  %epoch = phi i64 [ %epoch0, %entry ], [ %epoch0, %restore ], [ %epoch1, %next ], [ %epoch1, %control ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %body, label %done
body:
  %toff = mul i64 %i, {L.THUNK_WORDS * 8}
  %thunk = getelementptr i8, ptr %thunks, i64 %toff
{field("fn", "thunk", L.THUNK_FN * 8, "ptr")}{field("given", "thunk", L.THUNK_ARGS * 8, "ptr")}{field("grid", "thunk", L.THUNK_GRID * 8)}\
{field("flags", "thunk", L.THUNK_FLAGS * 8)}{field("chunk", "thunk", L.THUNK_CHUNK * 8)}\
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
  br i1 %first, label %lead, label %report
lead:
  %checkbit = and i64 %flags, {L.CHECKS}
  %checks = icmp ne i64 %checkbit, 0
  br i1 %checks, label %gather, label %decide
gather:
  ; the others have arrived and wait for this thread: what they have reported is there, and nobody reports more
  call void @await_all(ptr %pool, i64 %t, i64 %n, i64 %e)
  %bad = call i1 @failed(ptr %job)
  br i1 %bad, label %blame, label %decide
blame:
  store atomic i64 %e, ptr %failp monotonic, align 8
  br label %decide
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
  %plainbits = icmp ult i64 %flags, {L.MOVING}
  br i1 %plainbits, label %kernel, label %special
special:
  %movebit = and i64 %flags, {L.MOVING}
  %moving = icmp ne i64 %movebit, 0
  br i1 %moving, label %move, label %kinds
move:
{field("moves", "thunk", L.THUNK_MOVES * 8, "ptr")}\
  call void @moved(ptr %given, ptr %moves, ptr %counters, ptr %block)
  br label %kinds
kinds:
  %changed = phi ptr [ %given, %special ], [ %block, %move ]
  %kind = lshr i64 %flags, {L.KIND_SHIFT}
  %iskernel = icmp eq i64 %kind, 0
  br i1 %iskernel, label %kernel, label %checking
checking:
  %lookbit = and i64 %flags, {L.CHECKS}
  %looks = icmp ne i64 %lookbit, 0
  br i1 %looks, label %together, label %control
together:
  %metbit = and i64 %flags, {L.BARRIER}
  %has.met = icmp ne i64 %metbit, 0
  %met = and i1 %has.met, %many
  br i1 %met, label %agreed, label %own
agreed:
  %blamed = load atomic i64, ptr %failp monotonic, align 8
  %same = icmp eq i64 %blamed, %epoch1
  br label %control
own:
  %seen = call i1 @failed(ptr %job)
  br label %control
control:
  %failed = phi i1 [ false, %checking ], [ %same, %agreed ], [ %seen, %own ]
  %ic = call i64 @goes(ptr %thunk, i64 %i, ptr %changed, ptr %counters, ptr %state, ptr %cancel, i1 %first, i1 %many, i1 %failed)
  br label %loop
kernel:
  %args = phi ptr [ %given, %start ], [ %changed, %kinds ]
  store volatile i64 %i, ptr %now.thunk, align 8
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
  %way = add i64 %turn, %i
  ; the number of a barrier names one kernel: the first after it (or of the job)
  %afterbit = and i64 %flags, {L.BARRIER}
  %after = icmp ne i64 %afterbit, 0
  %very = icmp eq i64 %i, 0
  %named = or i1 %after, %very
  %apart = xor i1 %one, true
  %may = and i1 %named, %apart
  br i1 %work, label %timing, label %next
timing:
  br i1 %timed, label %measured, label %plain
plain:
  call void @part(ptr %pool, ptr %thunk, ptr %fn, ptr %args, i64 %begin, i64 %end, ptr %scratch, i64 %way, i1 %may, i64 %t, i64 %n,
                  i64 %grid, i64 %epoch1)
  br label %next
measured:
  %slot0 = mul i64 %i, %wish
  %slot1 = add i64 %slot0, %t
  %slot2 = shl i64 %slot1, 4
  %slot = getelementptr i8, ptr %profile, i64 %slot2
  %slotend = getelementptr i8, ptr %slot, i64 8
  %before = load i64, ptr %slotend, align 8
  %tick0 = {clock}
  call void @part(ptr %pool, ptr %thunk, ptr %fn, ptr %args, i64 %begin, i64 %end, ptr %scratch, i64 %way, i1 %may, i64 %t, i64 %n,
                  i64 %grid, i64 %epoch1)
  %tick1 = {clock}
  %again = icmp ne i64 %before, 0
  br i1 %again, label %longer, label %once
longer:
  ; a kernel in a loop: from its first start on, the time of all its runs
  %took = sub i64 %tick1, %tick0
  %total = add i64 %before, %took
  store i64 %total, ptr %slotend, align 8
  br label %next
once:
  store i64 %tick0, ptr %slot, align 8
  store i64 %tick1, ptr %slotend, align 8
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
cancelled:
  %ec = phi i64 [ %epoch, %alone ], [ %e, %report ]
  br i1 %first, label %note, label %done
note:
  %stoppedp = getelementptr i8, ptr %job, i64 {L.JOB_STOPPED * 8}
  %othersp = getelementptr i8, ptr %job, i64 {L.JOB_STOPPED_OTHERS * 8}
  %resume = load i64, ptr %resumep, align 8
  %left.early = icmp sge i64 %resume, 0
  %mine.next = select i1 %left.early, i64 %resume, i64 %i
  %region = load i64, ptr %state, align 8
  %isalone = icmp ne i64 %region, 0
  %others.next = select i1 %isalone, i64 %region, i64 %i
  store i64 %mine.next, ptr %stoppedp, align 8
  store i64 %others.next, ptr %othersp, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %savedp, ptr align 8 %counters, i64 {L.COUNTERS * 8}, i1 false)
  br label %done
done:
  %last = phi i64 [ %epoch, %loop ], [ %ec, %cancelled ], [ %ec, %note ]
  %flag = phi i64 [ 0, %loop ], [ 1, %cancelled ], [ 1, %note ]
  store volatile ptr null, ptr %now.job, align 8
  %twice = shl i64 %last, 1
  %r = or i64 %twice, %flag
  ret i64 %r
}}
"""
