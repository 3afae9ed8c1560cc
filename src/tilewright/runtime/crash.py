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
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..build.packing import Array
    from ..target.cpu.jit import Library

SIGNALS = {11: "SIGSEGV", 7: "SIGBUS", 8: "SIGFPE", 4: "SIGILL"}  # the module signal, which takes half a millisecond, says the same
SLOTS, SLOT = 256, 64  # slots of SLOT bytes: the thread's pointer · the job · the thunk
MASK_BYTES = 128  # the size of the mask in libc's struct sigaction: handler · mask · flags · restorer
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


ACTION_BYTES, NAME_BYTES = ctypes.sizeof(_Action), 24
CONSTANTS = {"SLOTS": SLOTS, "SLOT": SLOT, "PATIENCE": PATIENCE, "SIGACTION": ACTION_BYTES, "NAME_BYTES": NAME_BYTES,
             "UNNAMED_BYTES": len(UNNAMED)}
BLOCKS = {"crash_slots": SLOTS * SLOT // 8, "crash_claimed": 1, "tw_crash_actions": 32 * ACTION_BYTES // 8, "tw_crash_file": 1}
SOURCE = '''
@inline
def slot(thread):
    return address(crash_slots) + (((thread >> 12) ^ (thread >> 20)) & (SLOTS - 1)) * SLOT


def report(signal, job, thunk):
    name = address(crash_names) + NAME_BYTES * signal
    size = ld8(name + NAME_BYTES - 1)
    if size == 0:
        return
    file = ld64(address(tw_crash_file))
    syscall(WRITE, file, name, size, 0, 0, 0)
    row = job[JOB_NAMES]
    if row != 0:
        row += 16 * thunk
    if row != 0 and row[0] != 0:
        syscall(WRITE, file, row[0], row[1], 0, 0, 0)
    else:
        syscall(WRITE, file, address(crash_unnamed), UNNAMED_BYTES, 0, 0, 0)


def tw_crash(signal, info, context):
    signal = signal & 4294967295
    thread = myself()
    own = slot(thread)
    job = own[1]
    if own[0] == thread and job != 0:
        if exchange64_ordered(address(crash_claimed), 1) == 0:
            report(signal, job, own[2])
        else:
            for waited in range(PATIENCE):
                syscall(GETTID, 0, 0, 0, 0, 0, 0)
    sigaction(signal, address(tw_crash_actions) + signal * SIGACTION, 0)
    if ldi32(info + 8) <= 0:  # by somebody, and not by an instruction that runs again
        syscall(TGKILL, getpid(), syscall(GETTID, 0, 0, 0, 0, 0, 0), signal, 0, 0, 0)
'''


def names_ir() -> str:
    """The names of signals, by number: text and, in the last byte, its length."""
    texts = {number: f"tilewright: {name}".encode() for number, name in SIGNALS.items()}
    rows = b"".join((text := texts.get(n, b"")).ljust(NAME_BYTES - 1, b"\0") + bytes([len(text)]) for n in range(32))
    tables = {"crash_names": rows, "crash_unnamed": UNNAMED}
    escaped = {name: "".join(map("\\{:02X}".format, data)) for name, data in tables.items()}
    return "".join(f'@{name} = internal constant [{len(data)} x i8] c"{escaped[name]}"\n' for name, data in tables.items())


def arm(library: Library) -> None:
    """Put the handler in front of those of faulthandler, where that is enabled and ours is not there."""
    if not faulthandler.is_enabled():
        return
    libc, ours = ctypes.CDLL(None, use_errno=True), library.address("tw_crash")
    ctypes.c_int64.from_address(library.address("tw_crash_file")).value = FILE
    for number in SIGNALS:
        found = _Action()
        if libc.sigaction(number, None, ctypes.byref(found)) or found.handler == ours:
            continue
        kept = library.address("tw_crash_actions") + number * ctypes.sizeof(_Action)
        ctypes.memmove(kept, ctypes.addressof(found), ctypes.sizeof(_Action))
        found.handler, found.flags = ours, SA_SIGINFO | SA_ONSTACK
        libc.sigaction(number, ctypes.byref(found), None)
