"""The native runtime in host code (`target/cpu/host_code.py`): barrier, placement of threads, the walk through a schedule, the workers.

Every thread of a job walks the same thunks; each runs its part of a kernel's grid, cut in units of the thunk's chunk. The parts depend
on the grid and the number of threads only; of a kernel that is shared, a thread that is done takes over programs of the others' parts.
No kernel's result depends on who runs which of its programs, so any number of threads gives the same bits. A job of one thread runs no
atomic instruction.
"""

from __future__ import annotations

from ...core.errors import UnsupportedError
from ...core.target_spec import TargetSpec
from .. import crash
from . import layout as L
from .barriers import BARRIERS, PLACES, RETREAT

# Ctrl-C ends a long native call. Python only notes a signal; its handler runs when the main thread is back in Python, which a native call
# delays. So a call that is expected to take long (JOB_LONG) and runs on the main thread, where alone handlers run, puts a handler of ours
# in front of Python's for its own duration: it sets a word, then calls Python's. Thread 0 looks at the word between thunks, and the call
# returns with CANCELLED. Python then runs its handlers. What they raise ends the call; where they raise nothing the session continues with
# the thunk that was next (`Session.settle`), so that a handler of the user's that only takes note changes no result.
# Short calls pay one load and one branch; long ones four system calls, about a microsecond. Calls of other threads never look at the word.
SIGINT = 2
ACTION_BYTES = 256  # room for libc's struct sigaction, whose first field is the handler
INTERRUPTS = """
def on_interrupt(number, info, context):
    store64_relaxed(address(interrupted), 1)
    call(ld64(address(python_handler)), number, info, context)


@cold
def arm(job):  # whether our handler is in front
    own = stack(ACTION_BYTES)
    if job[JOB_CANCEL] != 0 or syscall(GETTID, 0, 0, 0, 0, 0, 0) != getpid() & 4294967295:
        return 0
    sigaction(SIGINT, 0, own)
    handler = own[0]
    if handler == 0 or handler == 1:  # SIG_DFL, SIG_IGN
        return 0
    store64_relaxed(address(interrupted), 0)
    if handler != address(on_interrupt):  # in a child that was forked during such a call, what was saved then still holds
        copy(address(python_action), own, ACTION_BYTES)
        st64(address(python_handler), handler)
        own[0] = address(on_interrupt)
        sigaction(SIGINT, own, 0)
    job[JOB_CANCEL] = address(interrupted)
    return 1


@cold
def disarm(job):
    sigaction(SIGINT, address(python_action), 0)
    job[JOB_CANCEL] = 0


@inline
def wanted_stop(cancel):
    return cancel != 0 and load64_relaxed(cancel) != 0
"""

# Loops and branches. Every thread counts the iterations of the loops it is in, on its own stack. A kernel whose arguments depend on them
# gets a copy of its argument block with the moves applied, so nothing shared is written between iterations and no barrier is needed for it.
# `goes` gives the thunk to run after control thunk i. `bad`: a loop that looks for errors ends, for its exit may hang on what the failed
# kernel did not compute. state: the end of the outermost loop or branch that thread 0 is alone in, or 0 · the thunk to resume at, or -1.
CONTROL = """
def moved(args, moves, counters, block):
    copy(block, args, 8 * moves[0])
    for m in range(moves + 16, moves + 16 + 8 * MOVE_WORDS * moves[1], 8 * MOVE_WORDS):
        at = block + 8 * m[0]
        i = counters[m[1]]
        other = m[2]
        if other < 0:
            at[0] += i * m[3]
        elif i & 1:
            at[0] = block[other]


def failed(job):  # whether a kernel has filled its error block
    block = job[JOB_FAULTS]
    for row in range(block, block + 8 * ERROR_WORDS * job[JOB_FAULT_COUNT], 8 * ERROR_WORDS):
        if load64_relaxed(row) != 0:
            return 1
    return 0


@inline
def alone(state, region):
    if region != 0:
        state[0] = region


def goes(thunk, i, args, counters, state, cancel, first, many, bad):
    flags = thunk[THUNK_FLAGS]
    count = thunk[THUNK_GRID]
    counter = counters + 8 * thunk[THUNK_DEPTH]
    target = thunk[THUNK_TARGET]
    region = thunk[THUNK_REGION]
    kind = flags >> KIND_SHIFT
    skip = flags & SERIAL and not first
    if kind == KIND_LOOP:
        if skip:  # a thread that goes around knows the count too: what reads a carry after the loop goes by it
            counter[0] = count
            return thunk[THUNK_END]
        counter[0] = 0
        alone(state, region)
        return i + 1 if count > 0 and not bad else thunk[THUNK_END]
    if kind == KIND_IF:
        if skip:
            return thunk[THUNK_END]
        alone(state, region)
    if kind == KIND_IF or kind == KIND_TEST:
        return i + 1 if ld8(args[0]) != 0 else target
    if kind == KIND_NEXT:
        done = counter[0] + 1
        counter[0] = done
        if bad or done >= count:
            target = i + 1
        if region != 0 and many and wanted_stop(cancel):
            state[1] = target
            return region
        return target
    if kind == KIND_JUMP:
        return target
    if kind == KIND_END:
        if skip and count != 0:  # a thread that comes here from an interrupt has not passed the loop's head
            counter[0] = count
        if state[0] == i:
            state[0] = 0
    return i + 1
"""

WALK = """
@inline
def part(pool, thunk, fn, args, begin, end, scratch, way, may, t, n, grid, e):
    piece = thunk[THUNK_SHARE]
    if piece != 0 and may:
        share(pool, fn, args, scratch, t, n, grid, e, piece)
        return
    piece = thunk[THUNK_PIECE]
    if piece == 0 or way & 1 == 0:
        call(fn, args, begin, end, scratch)
        return
    while end > begin:  # every second time a thunk that streams is walked from its end: it finds what the last walk left in the caches
        low = max(end - piece, begin)
        call(fn, args, low, end, scratch)
        end = low


# Pieces of the own part, then of the others': taken from the word in the owner's line, which counts the part up. The number of another
# barrier in it means that nobody has begun: no thread passes the next barrier before all have left this kernel.
@noinline
def share(pool, fn, args, scratch, t, n, grid, e, piece):
    mark = (e + 1) << WORK_BITS
    v = t
    for k in range(n):
        begin = (grid * v + n - 1) // n
        end = (grid * (v + 1) + n - 1) // n
        word = pool + POOL_LINES + LINE_WORK + v * LINE
        while 1:
            w = load64_acquire(word)
            at = w & WORK_PLACE if w & WORK_MARK == mark else begin
            if at >= end:
                break
            stop = min(at + piece, end)
            if swap64_both(word, w, mark | stop):
                call(fn, args, at, stop, scratch)
        v += 1
        if v == n:
            v = 0


def walk(pool, job, t, n, epoch):  # the epoch after the last barrier × 2 + (1 when cancelled)
    thunks = job[JOB_THUNKS]
    count = job[JOB_COUNT]
    scratch = job[JOB_SCRATCH] + t * job[JOB_SCRATCH_STRIDE]
    cancel = job[JOB_CANCEL]
    profile = job[JOB_PROFILE]
    turn = job[JOB_TURN]
    start = job[JOB_START]
    others = job[JOB_OTHERS]
    now = slot(myself())
    store64_volatile(now, myself())
    store64_volatile(now + 8, job)
    many = n > 1
    first = t == 0
    counters = stack(COUNTER_BYTES)
    block = stack(MOVED_BYTES)
    state = [0, -1]
    if others != 0:  # a run that was cancelled goes on
        copy(counters, job + 8 * JOB_COUNTERS, COUNTER_BYTES)
        if start != others:
            state[0] = others
    i = start if first else others
    stopped = 0
    while i < count:
        thunk = thunks + 8 * THUNK_WORDS * i
        flags = thunk[THUNK_FLAGS]
        if not many:
            if wanted_stop(cancel):
                stopped = 1
                break
        elif flags & BARRIER:
            epoch += 1
            if first:
                if flags & CHECKS:  # the others have arrived and wait for this thread: nobody reports more
                    await_all(pool, t, n, epoch)
                    if failed(job):
                        store64_relaxed(pool + POOL_LINES + LINE_FAILED, epoch)
                if wanted_stop(cancel):
                    store64_relaxed(pool + POOL_LINES + LINE_CANCELLED, epoch)
            arrive(pool, t, epoch)
            await_all(pool, t, n, epoch)
            if load64_relaxed(pool + POOL_LINES + LINE_CANCELLED) == epoch:
                stopped = 1
                break
        args = thunk[THUNK_ARGS]
        if flags >= MOVING:
            if flags & MOVING:
                moved(args, thunk[THUNK_MOVES], counters, block)
                args = block
            if flags >> KIND_SHIFT:
                if flags >> KIND_SHIFT == KIND_NEXT:
                    turn += 1
                bad = 0
                if flags & CHECKS:
                    shared = many and flags & BARRIER
                    bad = load64_relaxed(pool + POOL_LINES + LINE_FAILED) == epoch if shared else failed(job)
                i = goes(thunk, i, args, counters, state, cancel, first, many, bad)
                continue
        store64_volatile(now + 16, i)
        grid = thunk[THUNK_GRID]
        begin = 0
        end = grid
        apart = many and flags & SERIAL == 0
        if apart:
            chunk = max(thunk[THUNK_CHUNK], 1)
            units = (grid + chunk - 1) // chunk if chunk > 1 else grid
            begin = (units * t + n - 1) // n * chunk
            end = min((units * (t + 1) + n - 1) // n * chunk, grid)
        elif not first:
            end = 0
        if begin < end:
            fn = thunk[THUNK_FN]
            may = apart and (flags & BARRIER or i == 0)  # the number of a barrier names one kernel: the first after it (or of the job)
            if profile == 0:
                part(pool, thunk, fn, args, begin, end, scratch, turn + i, may, t, n, grid, epoch)
            else:
                times = profile + 16 * (i * job[JOB_THREADS] + t)
                before = times[1]
                tick = ticks()
                part(pool, thunk, fn, args, begin, end, scratch, turn + i, may, t, n, grid, epoch)
                tock = ticks()
                if before != 0:  # a kernel in a loop: from its first start on, the time of all its runs
                    times[1] = before + tock - tick
                else:
                    times[0] = tick
                    times[1] = tock
        i += 1
    if stopped and first:
        job[JOB_STOPPED] = i if state[1] < 0 else state[1]
        job[JOB_STOPPED_OTHERS] = state[0] or i
        copy(job + 8 * JOB_COUNTERS, counters, COUNTER_BYTES)
    store64_volatile(now + 8, 0)
    return 2 * epoch + stopped
"""

# The native entry (`tw_run`), the worker loop (`tw_worker`) and the pool's controls. A ticket announces a job: its number and how many
# threads it wants. Workers wait for a new ticket, first awake, then asleep. Only the caller that set the pool's busy word writes tickets;
# everyone else walks the schedule alone.
DISPATCH = """
def tw_run(job):  # patch the argument blocks, then walk with the workers, or alone when they are taken
    pool = job[JOB_POOL]
    error = job[JOB_ERROR]
    wish = job[JOB_THREADS]
    job[JOB_TURN] += 1
    io = job[JOB_IO]
    p = job[JOB_PATCHES]
    for patch in range(p, p + 8 * PATCH_WORDS * job[JOB_PATCH_COUNT], 8 * PATCH_WORDS):
        patch[0][0] = io[patch[1]] + patch[2]
    if error != 0:
        copy(error, [0, 0, 0, 0], 32)
    guarded = arm(job) if job[JOB_LONG] != 0 else 0
    if wish <= 1:
        status = walk(pool, job, 0, 1, 0) & 1
    else:
        status = together(pool, job, wish)
    job[JOB_START] = 0
    job[JOB_OTHERS] = 0
    if guarded:
        disarm(job)
    if error != 0 and error[0] != 0:
        status |= FAILED
    return status


def together(pool, job, wish):
    n = allowed(pool, wish)
    crowd = load32_relaxed(pool + POOL_CROWD)
    if crowd != 0:
        room = max(ld64(pool + POOL_CORES) - crowd, 1)
        n = min(n, room)
    if n > 1 and swap32_acquire(pool + POOL_BUSY, 0, 1):
        workers = ld64(pool + POOL_WORKERS)
        n = min(n, workers + 1)
        if n > 1:
            return with_workers(pool, job, n) | few(workers, wish)
        tw_release(pool)
    add32_ordered(pool + POOL_CROWD, 1)
    r = walk(pool, job, 0, 1, 0)
    add32_ordered(pool + POOL_CROWD, -1)
    return r & 1 | few(load64_relaxed(pool + POOL_WORKERS), wish)


@inline
def few(workers, wish):
    return FEW_WORKERS if workers + 1 < wish else 0


def with_workers(pool, job, n):
    ticket = pool + POOL_TICKET
    number = (load64_relaxed(ticket) + 1) & 4294967295
    if load32_ordered(pool + POOL_IDLE) != 0 and job[JOB_LIGHT] != 0:  # too short to wait for somebody who sleeps
        age = ticks() - load64_relaxed(pool + POOL_RECENT)
        if age >= 0 and age < ld64(pool + POOL_BURST):  # one of many: the next ones find the workers awake
            spread(pool, n)
            exchange64_ordered(ticket, number)
            wake(ticket)
        tw_release(pool)
        r = walk(pool, job, 0, 1, 0)
        store64_relaxed(pool + POOL_RECENT, ticks())
        return r & 1
    spread(pool, n)
    st64(pool + POOL_JOB, job)
    epoch = ld64(pool + POOL_EPOCH)
    st64(pool + POOL_LOST, 0)
    begin = ticks()
    exchange64_ordered(ticket, n << 32 | number)
    if load32_ordered(pool + POOL_IDLE) != 0:
        wake(ticket)
    r = walk(pool, job, 0, n, epoch)
    last = (r >> 1) + 1
    await_all(pool, 0, n, last)
    st64(pool + POOL_EPOCH, last)
    judge(pool, n, begin)
    tw_release(pool)
    return r & 1


def doze(pool, known):
    ticket = pool + POOL_TICKET
    add32_ordered(pool + POOL_IDLE, 1)
    w = load64_ordered(ticket)
    while w == known:
        sleep(ticket, known)
        w = load64_ordered(ticket)
    add32_ordered(pool + POOL_IDLE, -1)
    return w


def tw_worker(pool, t, seen):  # take part in every job of more than t threads until told to stop
    ticket = pool + POOL_TICKET
    line = pool + POOL_LINES + t * LINE
    st32(line + LINE_TID, syscall(GETTID, 0, 0, 0, 0, 0, 0))
    while 1:
        limit = ld64(pool + POOL_IDLE_SPIN)
        i = 0
        w = load64_acquire(ticket)
        while w == seen and i < limit and may_spin(pool, t + 1):
            relax(i)
            i += 1
            w = load64_acquire(ticket)
        if w == seen:
            w = doze(pool, seen)
        while 1:
            if load64_relaxed(pool + POOL_STOP) != 0:
                return
            n = w >> 32
            if n == 0 or t < n:
                break
            w = doze(pool, w)  # a job of fewer threads
        seen = w
        if n != 0:
            store32_relaxed(line + LINE_CPU, sched_getcpu() + 1)
            r = walk(pool, ld64(pool + POOL_JOB), t, n, ld64(pool + POOL_EPOCH))
            arrive(pool, t, (r >> 1) + 1)


def tw_acquire(pool):
    while not swap32_acquire(pool + POOL_BUSY, 0, 1):
        sched_yield()


def tw_release(pool):
    store32_release(pool + POOL_BUSY, 0)


def tw_stop(pool):
    tw_acquire(pool)
    store64_relaxed(pool + POOL_WORKERS, 0)
    store64_relaxed(pool + POOL_STOP, 1)
    ticket = pool + POOL_TICKET
    exchange64_ordered(ticket, (load64_relaxed(ticket) + 1) & 4294967295)
    wake(ticket)
    tw_release(pool)


def tw_spin(count):
    while count > 0:
        pause()
        count -= 1


def tw_ticks():
    return ticks()
"""

SOURCE = BARRIERS + RETREAT + PLACES + INTERRUPTS + CONTROL + crash.SOURCE + WALK + DISPATCH
CONSTANTS = {
    **{name: value for name, value in vars(L).items() if isinstance(value, int)}, **crash.CONSTANTS,
    **{f"KIND_{name.upper()}": value for name, value in L.KINDS.items()},
    "YIELD_EVERY": 2048,  # pauses, some 30 microseconds
    "SIGINT": SIGINT, "ACTION_BYTES": ACTION_BYTES, "COUNTER_BYTES": 8 * L.COUNTERS, "MOVED_BYTES": 8 * L.MOVED_WORDS,
    "WORK_MARK": -1 << L.WORK_BITS, "WORK_PLACE": (1 << L.WORK_BITS) - 1,
}  # fmt: skip
BLOCKS = {"interrupted": 1, "python_handler": 1, "python_action": ACTION_BYTES // 8, **crash.BLOCKS}
EXPORTS = ("tw_run", "tw_worker", "tw_acquire", "tw_release", "tw_stop", "tw_spin", "tw_ticks", *crash.EXPORTS)
CALLS = ("FUTEX", "GETTID", "SETAFFINITY", "WRITE", "TGKILL", "CLOCK")


def _machine(target: TargetSpec) -> tuple[dict[str, str], tuple[int, ...]]:
    """The pause instruction, the clock and the thread's pointer as LLVM instructions, and the numbers of the system calls in CALLS."""
    if "linux" not in target.triple:
        raise UnsupportedError(f"runtime: worker threads sleep on Linux futexes, this is {target.triple}; only Linux is supported")
    if target.is_x86:
        own = "load i64, ptr addrspace(257) null, align 8"  # fs:0, where the pointer itself is
        clock = "call i64 @llvm.readcyclecounter()"
        return {"pause": "call void @llvm.x86.sse2.pause()", "ticks": clock, "myself": own}, (202, 186, 203, 1, 234, 228)
    if target.is_arm:
        read = "call i64 @llvm.read_volatile_register.i64(metadata !{})"
        instructions = {"pause": "call void @llvm.aarch64.isb(i32 15)", "ticks": read.format(0), "myself": read.format(1)}
        return instructions, (98, 178, 122, 64, 131, 113)
    raise UnsupportedError(f"runtime: no native runtime for {target.triple}; supported: x86-64, AArch64")


def runtime_key(target: TargetSpec) -> str:
    """A text that stands for the module in the cache: writing the module takes longer than reading its code from there."""
    return f"runtime {CONSTANTS} {BLOCKS} {_machine(target)} {crash.names_ir()} {SOURCE}"


def runtime_ir(target: TargetSpec) -> str:
    """The whole native runtime as one module of LLVM IR."""
    from ...target.cpu.host_code import compile_host

    instructions, numbers = _machine(target)
    text, _ = compile_host(SOURCE, {**CONSTANTS, **dict(zip(CALLS, numbers, strict=True))}, BLOCKS, EXPORTS, instructions)
    declared = sorted({f"declare {i.removeprefix('call ')}\n".replace(" 15)", ")").replace("!0)", ")").replace("!1)", ")")
                       for i in instructions.values() if i.startswith("call ")})
    inline = [f"define internal i64 @{name}() alwaysinline nounwind {{\n  " + (f"{i}\n  ret i64 0\n}}\n" if " void " in i else
              f"%r = {i}\n  ret i64 %r\n}}\n") for name, i in instructions.items()]
    return "".join([*declared, *inline, crash.names_ir(), text, "!0 = !{!\"cntvct_el0\"}\n!1 = !{!\"tpidr_el0\"}\n"])
