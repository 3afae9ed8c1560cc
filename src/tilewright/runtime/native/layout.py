"""Byte layouts that Python and the native runtime share: thunks, patches, jobs and the pool's block. All fields are 8-byte words."""
from __future__ import annotations

# thunk: fn (control: target) · args* · grid · flags · chunk · moves* · end · region
THUNK_WORDS = 8
THUNK_FN, THUNK_ARGS, THUNK_GRID, THUNK_FLAGS, THUNK_CHUNK, THUNK_MOVES, THUNK_END, THUNK_REGION = range(8)
BARRIER, SERIAL, MOVING = 1, 2, 4  # flags: a barrier stands before the thunk; thread 0 runs the whole grid; arguments change with loops
CHECKS = 8  # flag of loop and next: go to the end once a kernel has reported an error. What threads run together has a barrier there
# Control thunks have a kind in the flags, args* -> the address of their predicate, grid = the loop's count, chunk = loops around it,
# target = the thunk to go to (next: the loop's first; test and if: where a false predicate leads; jump), end = the last of its loop or
# branch. region: the end of the outermost loop or branch around it that thread 0 runs alone (loop, if: only when it is itself; next: only
# where the run may stop there).
KIND_SHIFT = 8
KINDS = {"kernel": 0, "loop": 1, "test": 2, "next": 3, "if": 4, "jump": 5, "end": 6}
THUNK_TARGET, THUNK_DEPTH = THUNK_FN, THUNK_CHUNK
THUNK_PIECE = THUNK_END  # a kernel's programs that are walked forwards where the thunk is walked from its end; 0: it never is
THUNK_SHARE = THUNK_REGION  # a kernel's programs that a thread takes at once, of its own or another's part; 0: its own part is all it runs
NO_LIMIT = 1 << 62

# moves of a kernel's arguments: words · moves, then for each: word · depth of the loop · word for odd iterations or -1 · bytes a step
MOVE_WORDS = 4
MOVED_WORDS = 256  # argument words of a kernel inside a loop

# patch: address of an argument word · index into the call's pointers · byte offset
PATCH_WORDS = 3

# job
(JOB_THUNKS, JOB_COUNT, JOB_PATCHES, JOB_PATCH_COUNT, JOB_THREADS, JOB_SCRATCH, JOB_SCRATCH_STRIDE,
 JOB_CANCEL, JOB_ERROR, JOB_PROFILE, JOB_POOL, JOB_IO, JOB_LIGHT,
 JOB_LONG, JOB_START, JOB_STOPPED,  # watch for Ctrl-C · the first thunk to run · the thunk before which a run was cancelled
 JOB_OTHERS, JOB_STOPPED_OTHERS,  # the same two of all threads but the first
 JOB_TURN) = range(19)  # calls so far: which thunks are walked from their ends
JOB_COUNTERS = 19  # the loops' counters of a run that was cancelled
COUNTERS = 12
JOB_FAULTS, JOB_FAULT_COUNT = 31, 32  # the error blocks of all launches
JOB_NAMES = 33  # for each thunk the address and length of a text that names it after a crash; 0: there are none
JOB_WORDS = 40
ERROR_WORDS = 4
INDEX_OUT_OF_RANGE, BAD_LOGITS, SINGULAR, NOT_POSITIVE, DIVISION, CAPACITY = 1, 2, 3, 4, 5, 9  # codes in the first word of an error block
OUT_OF_BOUNDS = 6  # reported by kernels that check their accesses (target/cpu/bounds.py)
RAISED, POSITION = 7, 8  # a function of the host raised; a position outside a view of a user's kernel (lang/build.py)

# status of a run, bits
OK, CANCELLED, FAILED, FEW_WORKERS = 0, 1, 2, 16

# pool: byte offsets; what different threads write lies 128 bytes apart (two cache lines: hardware fetches them in pairs)
POOL_BUSY = 0  # i32: a job has the workers
POOL_TICKET = 128  # i64: threads of the current job << 32 | number of the job; workers sleep on the low half
POOL_IDLE = 136  # i32: workers asleep on the ticket
POOL_JOB = 256  # the current job
POOL_EPOCH = 264  # i64: barriers passed so far
POOL_WORKERS = 384  # i64
POOL_CORES = 392  # i64
POOL_IDLE_SPIN = 400  # i64: pauses
POOL_BARRIER_SPIN = 408  # i64: pauses
POOL_STOP = 416  # i64
POOL_BURST = 424  # i64: clock ticks within which calls count as following one another
POOL_CROWD = 512  # i32: callers that run alone because the workers are taken
POOL_RECENT = 520  # i64: the clock when a light job last ran without the workers
POOL_LIMIT, POOL_RETRY = 528, 536  # i64: threads that jobs get while others have the cores (0: no limit) · the clock until then
POOL_LOST, POOL_FAILURES = 544, 552  # i64: ticks the caller slept while workers had no core · failed trials in a row
POOL_STALL, POOL_RETREAT = 560, 568  # i64: ticks of sleep that count as none · the longest time until the next trial
POOL_RATE = 576  # i64: ticks of the clock in 1024 ns
POOL_MASK = 640  # MASK_BYTES: the cores this process may use, as sched_setaffinity wants them
MASK_BYTES = 128
POOL_LINES = 768  # one line of LINE bytes per thread
LINE = 128
LINE_EPOCH = 0  # i64: barriers this thread has reached
LINE_SLEEPERS = 8  # i32: threads asleep on the epoch
LINE_CANCELLED = 16  # i64, thread 0's line only: the barrier at which the job was cancelled
LINE_FAILED = 32  # i64, thread 0's line only: the barrier at which it saw an error
LINE_CPU = 24  # i32: the core this worker began its last job on, plus 1
LINE_TID = 28  # i32: this worker's thread id
LINE_WORK = 64  # i64: the number of the barrier before a shared kernel, plus 1, << WORK_BITS | the next program of this thread's part
WORK_BITS = 20  # programs of a shared kernel; the other bits count barriers for some months
