"""Native code that lays a matrix out in panels, at the speed of memory. NumPy's general copies are several times slower here.

Two cases, by which axis of the source is contiguous. N: panel rows are short runs of the source's rows, copied a few rows at a time
so that both sides stay within few pages. K: blocks of n × n elements are transposed in registers (log2 n rounds of interleaving).
Elements are moved as integers of their size and may lie at any address; whatever else a source may be is left to NumPy by the caller.
"""
from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..core.records import dataclass
from ..core.target_spec import TargetSpec
from ..target.cpu.cache import CodeCache
from ..target.cpu.host import host_target
from ..target.cpu.jit import Library

Array = np.ndarray[Any, Any]
ROWS = 16  # source rows in flight where N is contiguous
PIECE = 4 << 20  # bytes that a thread takes at a time


@dataclass(frozen=True)
class Job:
    """How to pack one matrix: the address of the code, and its arguments but for target and panels."""

    library: Library  # kept: the address is its
    code: int
    source: Array
    n: int
    k: int
    line: int

    def words(self, out: Array, first: int, last: int) -> tuple[int, ...]:
        return (self.code, self.source.ctypes.data, out.ctypes.data, first, last, self.n, self.k, self.line)


def panel_job(rows: Array, width: int) -> Job | None:
    """How native code packs `rows` [N, K] into panels of `width`, or None where no fast way fits."""
    n, k = rows.shape
    size = rows.dtype.itemsize
    line_n, line_k = rows.strides
    if n == 0 or k == 0 or size not in (2, 4, 8) or not 0 < width <= 4096:
        return None
    if line_n == size and line_k >= 0:
        way, line = "runs", line_k
    elif line_k == size and line_n >= 0 and width % 2 == 0:
        way, line = "blocks", line_n
    else:
        return None
    library = once(_library, host_target(), size, width)
    return Job(library, library.address(f"tw_pack_{way}"), rows, n, k, line)


class Batch:
    """Many matrices to pack, cut into pieces that threads take one after the other inside one native call each: none of them waits for
    the interpreter in between."""

    def __init__(self, jobs: Sequence[tuple[Job, Array]]) -> None:
        rows = []
        for job, out in jobs:
            step = max(1, PIECE // max(1, out[0].nbytes))
            rows += [job.words(out, p, min(p + step, len(out))) for p in range(0, len(out), step)]
        self._table = np.array(rows, np.int64)
        self._next = np.zeros(1, np.int64)
        self._keep = list(jobs)

    def run(self) -> None:
        """Take pieces until none is left. Those that other threads have taken may still be in flight."""
        if self._keep:
            call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(self._keep[0][0].library.address("tw_pack_all"))
            call(self._table.ctypes.data, len(self._table), self._next.ctypes.data)


def panel_packer(rows: Array, width: int) -> Callable[[Array, int, int], None] | None:
    """A function that fills panels `first` … `last`-1 of its argument from `rows` [N, K], or None where no fast way fits."""
    job = panel_job(rows, width)
    if job is None:
        return None
    found, call = job, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(job.code)

    def fill(out: Array, first: int, last: int) -> None:
        call(*found.words(out, first, last)[1:])

    return fill


_lock = allocate_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def once(make: Callable[..., Library], *args: Any) -> Library:
    """What a cached function makes: packing threads ask at the same time, and a library that loses such a race would be unloaded under its
    caller."""
    with _lock:
        return make(*args)


@cache
def _library(target: TargetSpec, size: int, width: int) -> Library:
    blocks = width % 2 == 0
    (code,), _ = CodeCache().compile([_runs(target, size, width) + (_blocks(target, size, width) if blocks else "") + _all(target)], target)
    return Library([code], ["tw_pack_all", "tw_pack_runs", *(["tw_pack_blocks"] if blocks else [])])


def block_side(target: TargetSpec, size: int, width: int) -> int:
    """Elements on a side of the blocks that are transposed in registers: a power of two that divides the width."""
    side = min(16, target.vector_bits // 8 // size)
    while width % side:
        side //= 2
    return side


def _header(target: TargetSpec, name: str) -> str:
    return f"define void @{name}(ptr %src, ptr %dst, i64 %first, i64 %last, i64 %n, i64 %k, i64 %line) {target.attributes} {{\nentry:"


def _all(target: TargetSpec) -> str:
    """Takes rows of a table, counted by `next`, and calls one of the others for each: its address, then its arguments."""
    kinds = ["ptr"] * 3 + ["i64"] * 5
    loads = "\n".join(f"  %p{i} = getelementptr i64, ptr %row, i64 {i}\n  %a{i} = load {kind}, ptr %p{i}" for i, kind in enumerate(kinds))
    arguments = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds) if i)
    return f"""
define void @tw_pack_all(ptr %table, i64 %count, ptr %next) {target.attributes} {{
entry:
  br label %take
take:
  %i = atomicrmw add ptr %next, i64 1 monotonic
  %some = icmp slt i64 %i, %count
  br i1 %some, label %one, label %out
one:
  %at = mul i64 %i, 64
  %row = getelementptr i8, ptr %table, i64 %at
{loads}
  call void %a0({arguments})
  br label %take
out:
  ret void
}}
"""


def _runs(target: TargetSpec, size: int, width: int) -> str:
    """out[p, k, :] = source[k, p * width …], rows in groups of ROWS; a short last panel is filled up with zeros."""
    run = size * width
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
{_header(target, "tw_pack_runs")}
  %bytes = mul i64 %n, {size}
  br label %group
group:
  %g = phi i64 [ 0, %entry ], [ %g1, %grouped ]
  %g1 = add i64 %g, {ROWS}
  %stop = call i64 @llvm.smin.i64(i64 %g1, i64 %k)
  br label %panel
panel:
  %p = phi i64 [ %first, %group ], [ %p1, %panelled ]
  %at = mul i64 %p, {run}
  %rest = sub i64 %bytes, %at
  %have = call i64 @llvm.smin.i64(i64 %rest, i64 {run})
  %lack = sub i64 {run}, %have
  %full = icmp eq i64 %have, {run}
  %pk = mul i64 %p, %k
  br label %row
row:
  %r = phi i64 [ %g, %panel ], [ %r1, %rowed ]
  %so = mul i64 %r, %line
  %so1 = add i64 %so, %at
  %s = getelementptr i8, ptr %src, i64 %so1
  %do = add i64 %pk, %r
  %do1 = mul i64 %do, {run}
  %d = getelementptr i8, ptr %dst, i64 %do1
  br i1 %full, label %whole, label %part
whole:
  call void @llvm.memcpy.p0.p0.i64(ptr %d, ptr %s, i64 {run}, i1 false)
  br label %rowed
part:
  call void @llvm.memcpy.p0.p0.i64(ptr %d, ptr %s, i64 %have, i1 false)
  %e = getelementptr i8, ptr %d, i64 %have
  call void @llvm.memset.p0.i64(ptr %e, i8 0, i64 %lack, i1 false)
  br label %rowed
rowed:
  %r1 = add i64 %r, 1
  %rmore = icmp slt i64 %r1, %stop
  br i1 %rmore, label %row, label %panelled
panelled:
  %p1 = add i64 %p, 1
  %pmore = icmp slt i64 %p1, %last
  br i1 %pmore, label %panel, label %grouped
grouped:
  %gmore = icmp slt i64 %g1, %k
  br i1 %gmore, label %group, label %out
out:
  ret void
}}
"""


def _blocks(target: TargetSpec, size: int, width: int) -> str:
    """out[p, k, j] = source[p * width + j, k]. Whole blocks through registers; columns beyond them, and a short panel, one by one."""
    side = block_side(target, size, width)
    element, vector = f"i{8 * size}", f"<{side} x i{8 * size}>"
    lines = []
    for i in range(side):
        lines += [f"  %lo{i} = mul i64 %line, {i}", f"  %lp{i} = getelementptr i8, ptr %s, i64 %lo{i}",
                  f"  %v0_{i} = load {vector}, ptr %lp{i}, align 1"]
    rounds = side.bit_length() - 1
    for t in range(rounds):
        for i in range(side // 2):
            a, b = f"{vector} %v{t}_{i}", f"{vector} %v{t}_{i + side // 2}"
            for half in range(2):
                picks = [x for j in range(side // 2) for x in (half * side // 2 + j, side + half * side // 2 + j)]
                mask = f"<{side} x i32> <{', '.join(f'i32 {x}' for x in picks)}>"
                lines.append(f"  %v{t + 1}_{2 * i + half} = shufflevector {a}, {b}, {mask}")
    for i in range(side):
        lines += [f"  %sp{i} = getelementptr i8, ptr %d, i64 {i * width * size}",
                  f"  store {vector} %v{rounds}_{i}, ptr %sp{i}, align {size}"]
    body = "\n".join(lines)
    return f"""
{_header(target, "tw_pack_blocks")}
  %blocks = and i64 %k, -{side}
  %room = mul i64 %k, {width * size}
  br label %panel
panel:
  %p = phi i64 [ %first, %entry ], [ %p1, %panelled ]
  %row = mul i64 %p, {width}
  %po = mul i64 %row, %line
  %ps = getelementptr i8, ptr %src, i64 %po
  %qo = mul i64 %p, %room
  %pd = getelementptr i8, ptr %dst, i64 %qo
  %left = sub i64 %n, %row
  %have = call i64 @llvm.smin.i64(i64 %left, i64 {width})
  %full = icmp eq i64 %have, {width}
  br i1 %full, label %columns, label %short
short:
  call void @llvm.memset.p0.i64(ptr %pd, i8 0, i64 %room, i1 false)
  br label %columns
columns:
  %from = phi i64 [ 0, %short ], [ %blocks, %panel ]
  %any = icmp sgt i64 %from, 0
  br i1 %any, label %kloop, label %rest
kloop:
  %kk = phi i64 [ 0, %columns ], [ %kk1, %kdone ]
  %ko = mul i64 %kk, {size}
  %ks = getelementptr i8, ptr %ps, i64 %ko
  %kdo = mul i64 %kk, {width * size}
  %kd = getelementptr i8, ptr %pd, i64 %kdo
  br label %jloop
jloop:
  %j = phi i64 [ 0, %kloop ], [ %j1, %jloop ]
  %jo = mul i64 %j, %line
  %s = getelementptr i8, ptr %ks, i64 %jo
  %jd = mul i64 %j, {size}
  %d = getelementptr i8, ptr %kd, i64 %jd
{body}
  %j1 = add i64 %j, {side}
  %jmore = icmp slt i64 %j1, {width}
  br i1 %jmore, label %jloop, label %kdone
kdone:
  %kk1 = add i64 %kk, {side}
  %kmore = icmp slt i64 %kk1, %blocks
  br i1 %kmore, label %kloop, label %rest
rest:
  %some = icmp slt i64 %from, %k
  br i1 %some, label %line_, label %panelled
line_:
  %jr = phi i64 [ 0, %rest ], [ %jr1, %lined ]
  %jro = mul i64 %jr, %line
  %js = getelementptr i8, ptr %ps, i64 %jro
  br label %one
one:
  %c = phi i64 [ %from, %line_ ], [ %c1, %one ]
  %cs = getelementptr {element}, ptr %js, i64 %c
  %x = load {element}, ptr %cs, align 1
  %co = mul i64 %c, {width}
  %cj = add i64 %co, %jr
  %cd = getelementptr {element}, ptr %pd, i64 %cj
  store {element} %x, ptr %cd, align {size}
  %c1 = add i64 %c, 1
  %cmore = icmp slt i64 %c1, %k
  br i1 %cmore, label %one, label %lined
lined:
  %jr1 = add i64 %jr, 1
  %jrmore = icmp slt i64 %jr1, %have
  br i1 %jrmore, label %line_, label %panelled
panelled:
  %p1 = add i64 %p, 1
  %pmore = icmp slt i64 %p1, %last
  br i1 %pmore, label %panel, label %out
out:
  ret void
}}
"""
