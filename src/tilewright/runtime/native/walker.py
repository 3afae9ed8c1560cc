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
    if ld64(job + 8 * JOB_CANCEL) != 0 or syscall(GETTID, 0, 0, 0, 0, 0, 0) != getpid() & 4294967295:
        return 0
    sigaction(SIGINT, 0, own)
    handler = ld64(own)
    if handler == 0 or handler == 1:  # SIG_DFL, SIG_IGN
        return 0
    store64_relaxed(address(interrupted), 0)
    if handler != address(on_interrupt):  # in a child that was forked during such a call, what was saved then still holds
        copy(address(python_action), own, ACTION_BYTES)
        st64(address(python_handler), handler)
        st64(own, address(on_interrupt))
        sigaction(SIGINT, own, 0)
    st64(job + 8 * JOB_CANCEL, address(interrupted))
    return 1


@cold
def disarm(job):
    sigaction(SIGINT, address(python_action), 0)
    st64(job + 8 * JOB_CANCEL, 0)


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
    copy(block, args, 8 * ld64(moves))
    m = moves + 16
    end = m + 8 * MOVE_WORDS * ld64(moves + 8)
    while m < end:
        at = block + 8 * ld64(m)
        i = ld64(counters + 8 * ld64(m + 8))
        other = ld64(m + 16)
        if other < 0:
            st64(at, ld64(at) + i * ld64(m + 24))
        elif i & 1:
            st64(at, ld64(block + 8 * other))
        m += 8 * MOVE_WORDS


def failed(job):  # whether a kernel has filled its error block
    block = ld64(job + 8 * JOB_FAULTS)
    end = block + 8 * ERROR_WORDS * ld64(job + 8 * JOB_FAULT_COUNT)
    while block < end:
        if load64_relaxed(block) != 0:
            return 1
        block += 8 * ERROR_WORDS
    return 0


@inline
def alone(state, region):
    if region != 0:
        st64(state, region)


def goes(thunk, i, args, counters, state, cancel, first, many, bad):
    flags = ld64(thunk + 8 * THUNK_FLAGS)
    count = ld64(thunk + 8 * THUNK_GRID)
    counter = counters + 8 * ld64(thunk + 8 * THUNK_DEPTH)
    target = ld64(thunk + 8 * THUNK_TARGET)
    region = ld64(thunk + 8 * THUNK_REGION)
    kind = flags >> KIND_SHIFT
    skip = flags & SERIAL and not first
    if kind == KIND_LOOP:
        if skip:  # a thread that goes around knows the count too: what reads a carry after the loop goes by it
            st64(counter, count)
            return ld64(thunk + 8 * THUNK_END)
        st64(counter, 0)
        alone(state, region)
        if count > 0 and not bad:
            return i + 1
        return ld64(thunk + 8 * THUNK_END)
    if kind == KIND_IF:
        if skip:
            return ld64(thunk + 8 * THUNK_END)
        alone(state, region)
    if kind == KIND_IF or kind == KIND_TEST:
        if ld8(ld64(args)) != 0:
            return i + 1
        return target
    if kind == KIND_NEXT:
        done = ld64(counter) + 1
        st64(counter, done)
        if bad or done >= count:
            target = i + 1
        if region != 0 and many and wanted_stop(cancel):
            st64(state + 8, target)
            return region
        return target
    if kind == KIND_JUMP:
        return target
    if kind == KIND_END:
        if skip and count != 0:  # a thread that comes here from an interrupt has not passed the loop's head
            st64(counter, count)
        if ld64(state) == i:
            st64(state, 0)
    return i + 1
"""

WALK = """
@inline
def part(pool, thunk, fn, args, begin, end, scratch, way, may, t, n, grid, e):
    piece = ld64(thunk + 8 * THUNK_SHARE)
    if piece != 0 and may:
        share(pool, fn, args, scratch, t, n, grid, e, piece)
        return
    piece = ld64(thunk + 8 * THUNK_PIECE)
    if piece == 0 or way & 1 == 0:
        call(fn, args, begin, end, scratch)
        return
    while end > begin:  # every second time a thunk that streams is walked from its end: it finds what the last walk left in the caches
        low = end - piece
        if low < begin:
            low = begin
        call(fn, args, low, end, scratch)
        end = low


# Pieces of the own part, then of the others': taken from the word in the owner's line, which counts the part up. The number of another
# barrier in it means that nobody has begun: no thread passes the next barrier before all have left this kernel.
@noinline
def share(pool, fn, args, scratch, t, n, grid, e, piece):
    mark = (e + 1) << WORK_BITS
    v = t
    k = 0
    while k < n:
        begin = (grid * v + n - 1) // n
        end = (grid * (v + 1) + n - 1) // n
        word = pool + POOL_LINES + LINE_WORK + v * LINE
        while 1:
            w = load64_acquire(word)
            at = begin
            if w & WORK_MARK == mark:
                at = w & WORK_PLACE
            if at >= end:
                break
            stop = at + piece
            if stop > end:
                stop = end
            if swap64_both(word, w, mark | stop):
                call(fn, args, at, stop, scratch)
        v += 1
        if v == n:
            v = 0
        k += 1


def walk(pool, job, t, n, epoch):  # the epoch after the last barrier × 2 + (1 when cancelled)
    thunks = ld64(job + 8 * JOB_THUNKS)
    count = ld64(job + 8 * JOB_COUNT)
    scratch = ld64(job + 8 * JOB_SCRATCH) + t * ld64(job + 8 * JOB_SCRATCH_STRIDE)
    cancel = ld64(job + 8 * JOB_CANCEL)
    profile = ld64(job + 8 * JOB_PROFILE)
    turn = ld64(job + 8 * JOB_TURN)
    start = ld64(job + 8 * JOB_START)
    others = ld64(job + 8 * JOB_OTHERS)
    now = slot(myself())
    store64_volatile(now, myself())
    store64_volatile(now + 8, job)
    many = n > 1
    first = t == 0
    counters = stack(COUNTER_BYTES)
    block = stack(MOVED_BYTES)
    state = stack(16)
    st64(state, 0)
    st64(state + 8, -1)
    if others != 0:  # a run that was cancelled goes on
        copy(counters, job + 8 * JOB_COUNTERS, COUNTER_BYTES)
        if start != others:
            st64(state, others)
    i = others
    if first:
        i = start
    stopped = 0
    while i < count:
        thunk = thunks + 8 * THUNK_WORDS * i
        flags = ld64(thunk + 8 * THUNK_FLAGS)
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
        args = ld64(thunk + 8 * THUNK_ARGS)
        if flags >= MOVING:
            if flags & MOVING:
                moved(args, ld64(thunk + 8 * THUNK_MOVES), counters, block)
                args = block
            if flags >> KIND_SHIFT:
                if flags >> KIND_SHIFT == KIND_NEXT:
                    turn += 1
                bad = 0
                if flags & CHECKS:
                    if many and flags & BARRIER:
                        bad = load64_relaxed(pool + POOL_LINES + LINE_FAILED) == epoch
                    else:
                        bad = failed(job)
                i = goes(thunk, i, args, counters, state, cancel, first, many, bad)
                continue
        store64_volatile(now + 16, i)
        grid = ld64(thunk + 8 * THUNK_GRID)
        begin = 0
        end = grid
        apart = many and flags & SERIAL == 0
        if apart:
            chunk = ld64(thunk + 8 * THUNK_CHUNK)
            units = grid
            if chunk > 1:
                units = (grid + chunk - 1) // chunk
            else:
                chunk = 1
            begin = (units * t + n - 1) // n * chunk
            end = (units * (t + 1) + n - 1) // n * chunk
            if end > grid:
                end = grid
        elif not first:
            end = 0
        if begin < end:
            fn = ld64(thunk + 8 * THUNK_FN)
            may = apart and (flags & BARRIER or i == 0)  # the number of a barrier names one kernel: the first after it (or of the job)
            if profile == 0:
                part(pool, thunk, fn, args, begin, end, scratch, turn + i, may, t, n, grid, epoch)
            else:
                times = profile + 16 * (i * ld64(job + 8 * JOB_THREADS) + t)
                before = ld64(times + 8)
                tick = ticks()
                part(pool, thunk, fn, args, begin, end, scratch, turn + i, may, t, n, grid, epoch)
                tock = ticks()
                if before != 0:  # a kernel in a loop: from its first start on, the time of all its runs
                    st64(times + 8, before + tock - tick)
                else:
                    st64(times, tick)
                    st64(times + 8, tock)
        i += 1
    if stopped and first:
        resume = ld64(state + 8)
        if resume < 0:
            resume = i
        region = ld64(state)
        if region == 0:
            region = i
        st64(job + 8 * JOB_STOPPED, resume)
        st64(job + 8 * JOB_STOPPED_OTHERS, region)
        copy(job + 8 * JOB_COUNTERS, counters, COUNTER_BYTES)
    store64_volatile(now + 8, 0)
    return 2 * epoch + stopped
"""

# The native entry (`tw_run`), the worker loop (`tw_worker`) and the pool's controls. A ticket announces a job: its number and how many
# threads it wants. Workers wait for a new ticket, first awake, then asleep. Only the caller that set the pool's busy word writes tickets;
# everyone else walks the schedule alone.
DISPATCH = """
def tw_run(job):  # patch the argument blocks, then walk with the workers, or alone when they are taken
    pool = ld64(job + 8 * JOB_POOL)
    error = ld64(job + 8 * JOB_ERROR)
    wish = ld64(job + 8 * JOB_THREADS)
    st64(job + 8 * JOB_TURN, ld64(job + 8 * JOB_TURN) + 1)
    io = ld64(job + 8 * JOB_IO)
    p = ld64(job + 8 * JOB_PATCHES)
    end = p + 8 * PATCH_WORDS * ld64(job + 8 * JOB_PATCH_COUNT)
    while p < end:
        st64(ld64(p), ld64(io + 8 * ld64(p + 8)) + ld64(p + 16))
        p += 8 * PATCH_WORDS
    if error != 0:
        st64(error, 0)
        st64(error + 8, 0)
        st64(error + 16, 0)
        st64(error + 24, 0)
    guarded = 0
    if ld64(job + 8 * JOB_LONG) != 0:
        guarded = arm(job)
    if wish <= 1:
        status = walk(pool, job, 0, 1, 0) & 1
    else:
        status = together(pool, job, wish)
    st64(job + 8 * JOB_START, 0)
    st64(job + 8 * JOB_OTHERS, 0)
    if guarded:
        disarm(job)
    if error != 0 and ld64(error) != 0:
        status |= FAILED
    return status


def together(pool, job, wish):
    n = allowed(pool, wish)
    crowd = load32_relaxed(pool + POOL_CROWD)
    if crowd != 0:
        room = ld64(pool + POOL_CORES) - crowd
        if room < 1:
            room = 1
        if n > room:
            n = room
    if n > 1 and swap32_acquire(pool + POOL_BUSY, 0, 1):
        workers = ld64(pool + POOL_WORKERS)
        if n > workers + 1:
            n = workers + 1
        if n > 1:
            return with_workers(pool, job, n) | few(workers, wish)
        tw_release(pool)
    add32_ordered(pool + POOL_CROWD, 1)
    r = walk(pool, job, 0, 1, 0)
    add32_ordered(pool + POOL_CROWD, -1)
    return r & 1 | few(load64_relaxed(pool + POOL_WORKERS), wish)


@inline
def few(workers, wish):
    if workers + 1 < wish:
        return FEW_WORKERS
    return 0


def with_workers(pool, job, n):
    ticket = pool + POOL_TICKET
    number = (load64_relaxed(ticket) + 1) & 4294967295
    if load32_ordered(pool + POOL_IDLE) != 0 and ld64(job + 8 * JOB_LIGHT) != 0:  # too short to wait for somebody who sleeps
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
