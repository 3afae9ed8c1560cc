"""A crash inside native code says which kernel and launch it was: a line in front of what Python's faulthandler prints.

Every thread that walks a schedule keeps in a slot which job it walks and which thunk it runs: one store a thunk. The slot is found by the
thread's own pointer; of two threads that share a slot one is not named. Where faulthandler is enabled (by `python -X faulthandler`, by
the command line of this package and by pytest) a handler of ours stands in front of it. It looks up its thread's slot, writes the text
that the job has for the thunk, puts the handler behind it back and returns: the instruction runs again and crashes as before. Another
thread that crashes meanwhile waits, so that one report is whole; the process is gone before it has waited for long.
"""
from __future__ import annotations

import ctypes
import faulthandler
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .native import layout as L
from .native.barrier import field

if TYPE_CHECKING:
    from ..build.packing import Array
    from ..target.cpu.jit import Library

SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
SLOTS, SLOT = 256, 64  # slots of SLOT bytes: the thread's pointer · the job · the thunk
MASK_BYTES = 128  # of libc's struct sigaction: handler · mask · flags · restorer
SA_SIGINFO, SA_ONSTACK = 4, 0x08000000
EXPORTS = ("tw_crash", "tw_crash_actions", "tw_crash_file")
UNNAMED = b" in native code, in a schedule without names\n"
PATIENCE = 1 << 24  # system calls, some seconds: for a process that survives its crash
FILE = 2  # where the line is written: as for faulthandler, the standard error


class _Action(ctypes.Structure):
    """libc's struct sigaction on Linux."""

    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_char * MASK_BYTES), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


class Names:
    """Texts for the thunks of a program, in memory that a handler can read: address and length."""

    def __init__(self, texts: Sequence[str]) -> None:
        lines = [f" in {text}\n".encode() for text in texts]
        self._bytes = np.frombuffer(b"".join(lines) or b"\0", np.uint8)
        lengths = np.array([len(line) for line in lines], np.int64)
        self._rows = np.stack([self._bytes.ctypes.data + np.cumsum(lengths) - lengths, lengths], 1).astype(np.int64)

    def table(self, count: int, rows: Array, chosen: Array) -> Array:
        """For `count` thunks: text `chosen[k]` at `rows[k]`, none elsewhere."""
        found = np.zeros((count, 2), np.int64)
        found[rows] = self._rows[chosen]
        return found


def slot_ir(pointer: str) -> str:
    """myself() → the thread's own pointer, which the IR `pointer` gives; slot(myself) → its slot."""
    return f"""
@crash.slots = internal global [{SLOTS * SLOT} x i8] zeroinitializer, align {SLOT}
define internal i64 @myself() alwaysinline #0 {{
  %self = {pointer}
  ret i64 %self
}}
define internal ptr @slot(i64 %self) alwaysinline #0 {{
  %low = lshr i64 %self, 12
  %high = lshr i64 %self, 20
  %mixed = xor i64 %low, %high
  %number = and i64 %mixed, {SLOTS - 1}
  %offset = mul i64 %number, {SLOT}
  %slot = getelementptr i8, ptr @crash.slots, i64 %offset
  ret ptr %slot
}}
"""


def crash_ir(write: int, tgkill: int, gettid: int) -> str:
    """tw_crash(signal, info, context): the handler. The numbers are those of system calls."""
    texts = {s: f"tilewright: {s.name}".encode() for s in SIGNALS}
    strings = "".join(f'@crash.name{int(s)} = internal constant [{len(t)} x i8] c"{t.decode()}"\n' for s, t in texts.items())
    cases = "".join(f"    i32 {int(s)}, label %name{int(s)}\n" for s in SIGNALS)
    blocks = "".join(f"name{int(s)}:\n  br label %named\n" for s in SIGNALS)
    pointers = ", ".join(f"[ @crash.name{int(s)}, %name{int(s)} ]" for s in SIGNALS)
    lengths = ", ".join(f"[ {len(t)}, %name{int(s)} ]" for s, t in texts.items())
    unnamed = UNNAMED.decode().replace("\n", "\\0A")
    return f"""
{strings}
@crash.unnamed = internal constant [{len(UNNAMED)} x i8] c"{unnamed}"
@tw_crash_actions = global [{32 * ctypes.sizeof(_Action)} x i8] zeroinitializer, align 16
@tw_crash_file = global i64 2
@crash.claimed = internal global i64 0
define void @tw_crash(i32 %signal, ptr %info, ptr %context) #0 {{
entry:
  %self = call i64 @myself()
  %slot = call ptr @slot(i64 %self)
{field("key", "slot", 0)}{field("job", "slot", 8, "ptr")}{field("thunk", "slot", 16)}\
  %mine = icmp eq i64 %key, %self
  %walks = icmp ne ptr %job, null
  %inside = and i1 %mine, %walks
  br i1 %inside, label %claim, label %back
claim:
  %earlier = atomicrmw xchg ptr @crash.claimed, i64 1 seq_cst
  %first = icmp eq i64 %earlier, 0
  br i1 %first, label %who, label %wait
wait:
  %turn = phi i64 [ 0, %claim ], [ %next, %wait ]
  %w3 = call i64 (i64, ...) @syscall(i64 {gettid})
  %next = add i64 %turn, 1
  %waits = icmp ult i64 %next, {PATIENCE}
  br i1 %waits, label %wait, label %back
who:
  switch i32 %signal, label %back [
{cases}  ]
{blocks}named:
  %name = phi ptr {pointers}
  %size = phi i64 {lengths}
  %file = load i64, ptr @tw_crash_file, align 8
  %w0 = call i64 (i64, ...) @syscall(i64 {write}, i64 %file, ptr %name, i64 %size)
{field("names", "job", L.JOB_NAMES * 8, "ptr")}\
  %has = icmp ne ptr %names, null
  br i1 %has, label %look, label %plain
look:
  %row = getelementptr [2 x i64], ptr %names, i64 %thunk
{field("text", "row", 0, "ptr")}{field("length", "row", 8)}\
  %told = icmp ne ptr %text, null
  br i1 %told, label %tell, label %plain
tell:
  %w1 = call i64 (i64, ...) @syscall(i64 {write}, i64 %file, ptr %text, i64 %length)
  br label %back
plain:
  %w2 = call i64 (i64, ...) @syscall(i64 {write}, i64 %file, ptr @crash.unnamed, i64 {len(UNNAMED)})
  br label %back
back:
  %s64 = sext i32 %signal to i64
  %at = mul i64 %s64, {ctypes.sizeof(_Action)}
  %before = getelementptr i8, ptr @tw_crash_actions, i64 %at
  %r = call i32 @sigaction(i32 %signal, ptr %before, ptr null)
  %codep = getelementptr i8, ptr %info, i64 8
  %code = load i32, ptr %codep, align 4
  %sent = icmp sle i32 %code, 0  ; by somebody, and not by an instruction that runs again
  br i1 %sent, label %again, label %out
again:
  %pid = call i32 @getpid()
  %tid = call i64 (i64, ...) @syscall(i64 {gettid})
  %r2 = call i64 (i64, ...) @syscall(i64 {tgkill}, i32 %pid, i64 %tid, i32 %signal)
  br label %out
out:
  ret void
}}
"""


def arm(library: Library) -> None:
    """Put the handler in front of those of faulthandler, where that is enabled and ours is not there."""
    if not faulthandler.is_enabled():
        return
    libc, ours = ctypes.CDLL(None, use_errno=True), library.address("tw_crash")
    ctypes.c_int64.from_address(library.address("tw_crash_file")).value = FILE
    for number in SIGNALS:
        found = _Action()
        if libc.sigaction(int(number), None, ctypes.byref(found)) or found.handler == ours:
            continue
        kept = library.address("tw_crash_actions") + int(number) * ctypes.sizeof(_Action)
        ctypes.memmove(kept, ctypes.addressof(found), ctypes.sizeof(_Action))
        found.handler, found.flags = ours, SA_SIGINFO | SA_ONSTACK
        libc.sigaction(int(number), ctypes.byref(found), None)
