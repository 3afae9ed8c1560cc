"""Host code of the barrier between the threads of a job, of how many threads a job gets, and of the cores that they run on."""
from __future__ import annotations

# The barrier: each thread writes the barrier's number (an epoch that only grows) into its own line and reads everybody else's. A thread
# that waits spins for a bounded number of pauses, and not at all when there are more threads than cores; then it sleeps on the other's
# line with a futex. Whoever writes a line wakes its sleepers: the write is a full fence, and a sleeper counts itself before it looks again,
# so no wake-up is lost.
BARRIERS = """
@cold
def sleep(word, seen):
    syscall(FUTEX, word, 128, seen, 0, 0, 0)


@cold
def wake(word):
    syscall(FUTEX, word, 129, 2147483647, 0, 0, 0)


def arrive(pool, t, e):
    line = pool + POOL_LINES + t * LINE
    exchange64_ordered(line, e)
    if load32_ordered(line + LINE_SLEEPERS) != 0:
        wake(line)


@inline
def may_spin(pool, n):  # spinning pays only while every running thread has a core of its own
    return n + load32_relaxed(pool + POOL_CROWD) <= ld64(pool + POOL_CORES)


@inline
def relax(i):  # the scheduler may have put the thread we wait for on our own core: let it run now and then
    pause()
    if i & (YIELD_EVERY - 1) == YIELD_EVERY - 1:
        sched_yield()


@cold
def running(pool, line):  # ticks that a worker has had a core
    time = stack(16)
    syscall(CLOCK, ((ld32(line + LINE_TID) ^ -1) << 3) | 6, time, 0, 0, 0, 0)
    return (time[0] * 1000000000 + time[1]) * ld64(pool + POOL_RATE) >> 10


@noinline
def await_slow(pool, line, t, n, e):
    limit = ld64(pool + POOL_BARRIER_SPIN)
    i = 0
    while i < limit and may_spin(pool, n):
        relax(i)
        i += 1
        if load64_acquire(line) >= e:
            return
    begin = ticks() - running(pool, line) if t == 0 else 0
    add32_ordered(line + LINE_SLEEPERS, 1)
    w = load64_ordered(line)
    while w < e:
        sleep(line, w)
        w = load64_ordered(line)
    add32_ordered(line + LINE_SLEEPERS, -1)
    if t == 0:
        st64(pool + POOL_LOST, ld64(pool + POOL_LOST) + ticks() - running(pool, line) - begin)


def await_all(pool, t, n, e):
    for u in range(n):
        line = pool + POOL_LINES + u * LINE
        if u != t and load64_acquire(line) < e:
            await_slow(pool, line, t, n, e)
"""

# Where other processes have the cores, a barrier waits for the scheduler. A job whose caller slept at barriers for more than half of its
# time, while the worker it waited for had no core, would have been no slower on half as many threads: those are what the next jobs get,
# for as long as the caller slept, and twice as long after each further trial that fails. A trial that succeeds halves the next wait. A
# worker that has more to do than the caller runs meanwhile, which the system's clock of its thread tells: that time does not count.
RETREAT = """
@inline
def allowed(pool, n):  # how many of n threads a job may have now
    limit = load64_relaxed(pool + POOL_LIMIT)
    return limit if limit != 0 and n > limit and ticks() - load64_relaxed(pool + POOL_RETRY) < 0 else n


@inline
def judge(pool, n, begin):
    if ld64(pool + POOL_LOST) > ld64(pool + POOL_STALL) or load64_relaxed(pool + POOL_LIMIT) != 0:
        retreat(pool, n, begin)


@cold
def retreat(pool, n, begin):
    now = ticks()
    lost = ld64(pool + POOL_LOST)
    failures = ld64(pool + POOL_FAILURES)
    if lost > ld64(pool + POOL_STALL) and lost + lost > now - begin:
        wait = lost << failures
        if wait > ld64(pool + POOL_RETREAT):
            wait = ld64(pool + POOL_RETREAT)
        elif failures < 8:
            st64(pool + POOL_FAILURES, failures + 1)
        store64_relaxed(pool + POOL_RETRY, now + wait)
        store64_relaxed(pool + POOL_LIMIT, n >> 1)
    elif n > load64_relaxed(pool + POOL_LIMIT):
        st64(pool + POOL_FAILURES, failures >> 1)
        store64_relaxed(pool + POOL_LIMIT, 0)
"""

# Workers are moved off the caller's core. The scheduler likes to wake a thread next to its waker; at a barrier both would then wait for
# each other on one core, for as long as it takes the load balancer to notice.
PLACES = """
@cold
def exile(pool, line, cpu):
    mask = stack(MASK_BYTES)
    copy(mask, pool + POOL_MASK, MASK_BYTES)
    word = cpu >> 6
    if word < MASK_BYTES // 8:
        word = mask + 8 * word
        word[0] = word[0] & ((1 << (cpu & 63)) ^ -1)
        syscall(SETAFFINITY, ld32(line + LINE_TID), MASK_BYTES, mask, 0, 0, 0)


def spread(pool, n):
    if n > ld64(pool + POOL_CORES):
        return
    cpu = sched_getcpu() & 4294967295
    for u in range(1, n):
        line = pool + POOL_LINES + u * LINE
        if load32_relaxed(line + LINE_CPU) == cpu + 1:
            exile(pool, line, cpu)
"""
