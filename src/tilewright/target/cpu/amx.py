"""AMX: whether tiles can be used, and the code that multiplies them.

A process must ask Linux for the tiles' state before it touches them, and a virtual machine may show the feature without having it. So a
child process asks, runs one product of each kind and checks it; only then this process asks, too. Without either, the machine counts as
one without AMX.
"""
from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.target_spec import TargetSpec

if TYPE_CHECKING:
    from .llvm_text import FunctionText

ARCH_PRCTL, REQUEST, TILE_DATA = 158, 0x1023, 18  # the system call, "request permission", the state's number
SIDE = 16  # rows of a tile, and words of its rows

# void k(a, b, c, d): c = a · b in bytes, d = a · b in bf16, each 16 rows of 64 bytes (LLVM's code for the intrinsics below).
_CODE = (
    "554881ec700b00000f57c00f118424400300000f118424500300000f118424600300000f11842470030000c684244003000001c68424700300001066"
    "c78424500300004000c68424710300001066c78424520300004000c68424720300001066c78424540300004000c68424730300001066c78424560300"
    "004000c4e2784984244003000066b840006641b81000c4e27b49c041b940000000c4a27b4b0c0fc4a27b4b140e48bd4000000000000000c4e27a4b84"
    "2c80030000c4e27b4b9c2c80030000c4e2695ed9c4a27a4b1c0ac4e26a5cc1c4a27a4b04094881c4700b00005dc4e27849c0c3"
)
_CHILD = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
if libc.syscall(*map(int, sys.argv[2:])) != 0:
    sys.exit(1)
code = bytes.fromhex(sys.argv[1])
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
a, b, c, d = (ctypes.create_string_buffer(1024) for _ in range(4))
a.raw, b.raw = bytes(range(256)) * 4, bytes((7 * i) % 251 for i in range(1024))
call(a, b, c, d)
signed = [x - 256 if x > 127 else x for x in b.raw]
got = list((ctypes.c_int32 * 256).from_buffer_copy(c))
terms = [(k, j) for k in range(16) for j in range(4)]
want = [sum(a.raw[64 * r + 4 * k + j] * signed[64 * k + 4 * n + j] for k, j in terms) for r in range(16) for n in range(16)]
sys.exit(0 if got == want else 2)
"""


@functools.cache
def usable() -> bool:
    """Whether tiles work here; this process may use them afterwards."""
    if sys.platform != "linux":
        return False
    import subprocess  # only machines that say they have AMX come here

    try:
        given = ["".join(_CODE), *map(str, (ARCH_PRCTL, REQUEST, TILE_DATA))]
        done = subprocess.run([sys.executable, "-I", "-S", "-c", _CHILD, *given], timeout=60, check=False, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return done.returncode == 0 and ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST, TILE_DATA) == 0
    except (OSError, AttributeError, subprocess.SubprocessError):
        return False


def tile_dot(f: FunctionText, target: TargetSpec, views: Sequence[tuple[str, str]], count: str, rows: int, cols: int, kind: str) -> None:
    """c[rows, cols] = a · b over `count` words (a multiple of 16): `views` are pointer and row stride in bytes of c, a and b. Tiles of sums
    stay in registers while K passes."""
    (c, c_step), (a, a_step), (b, b_step) = views
    heights = [(r, min(SIDE, rows - r)) for r in range(0, rows, SIDE)]
    places = [(r, h, n) for r, h in heights for n in range(0, cols, SIDE)]
    zeros = [_tile(f, "tilezero", [("i16", str(h)), ("i16", "64")]) for _, h, _ in places]
    before, head, out = f.block, f.fresh_label("tiles"), f.fresh_label("stored")
    f.jump(head)
    f.label(head)
    index, following = f.fresh("k"), f.fresh("k")
    sums, after = [f.fresh("s") for _ in places], [f.fresh("s") for _ in places]
    f.emit(f"{index} = phi i64 [ 0, %{before} ], [ {following}, %{head} ]")
    for name, zero, more in zip(sums, zeros, after, strict=True):
        f.emit(f"{name} = phi x86_amx [ {zero}, %{before} ], [ {more}, %{head} ]")
    left_at = f.gep("i32", a, index)
    right_at = f.gep("i8", b, f.op("mul", "i64", index, b_step))
    left = {r: _load(f, h, f.gep("i8", left_at, f.op("mul", "i64", a_step, str(r))), a_step) for r, h in heights}
    right = {n: _load(f, SIDE, f.gep("i32", right_at, str(n)), b_step) for n in range(0, cols, SIDE)}
    name = f"llvm.x86.{kind}.internal"
    shape = [("i16", ""), ("i16", "64"), ("i16", "64")]
    f.declarations[name] = f"declare x86_amx @{name}(i16, i16, i16, x86_amx, x86_amx, x86_amx)"
    for (r, h, n), old, new in zip(places, sums, after, strict=True):
        sizes = ", ".join(f"{t} {v or h}" for t, v in shape)
        f.emit(f"{new} = call x86_amx @{name}({sizes}, x86_amx {old}, x86_amx {left[r]}, x86_amx {right[n]})")
    f.emit(f"{following} = add nsw i64 {index}, {SIDE}")
    f.branch(f.icmp("slt", "i64", following, count), head, out)
    f.label(out)
    for (r, h, n), tile in zip(places, after, strict=True):
        to = f.gep("i32", f.gep("i8", c, f.op("mul", "i64", c_step, str(r))), str(n))
        f.intrinsic("llvm.x86.tilestored64.internal", "void", [("i16", str(h)), ("i16", "64"), ("ptr", to), ("i64", c_step),
                                                               ("x86_amx", tile)])


def _tile(f: FunctionText, name: str, args: list[tuple[str, str]]) -> str:
    return f.intrinsic(f"llvm.x86.{name}.internal", "x86_amx", args)


def _load(f: FunctionText, height: int, pointer: str, step: str) -> str:
    return _tile(f, "tileloadd64", [("i16", str(height)), ("i16", "64"), ("ptr", pointer), ("i64", step)])
