"""LLVM IR that lets Ctrl-C end a long native call.

Python only notes a signal; its handler runs when the main thread is back in Python, which a native call delays. So a call that is expected
to take long (JOB_LONG) and runs on the main thread, where alone handlers run, puts a handler of ours in front of Python's for its own
duration: it sets a word, then calls Python's. Thread 0 looks at the word between thunks, and the call returns with CANCELLED. Python then
runs its handlers. What they raise ends the call; where they raise nothing the session continues with the thunk that was next
(`Session.settle`), so that a handler of the user's that only takes note changes no result.

Short calls pay one load and one branch; long ones four system calls, about a microsecond. Calls of other threads never look at the word.
"""
from __future__ import annotations

from . import layout as L

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
