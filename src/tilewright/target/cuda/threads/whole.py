"""Loops and branches inside one kernel (`kernels/cuda/whole.py`) → PTX: one block runs each launch, with a barrier behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ....core.errors import CompileError
from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import WARP, BlockKernel
from ....kernels.cuda.whole import SHARED, Call, Choose, Fixed, Piece, Place, Repeat, Slid, WholeKernel, together
from ..arithmetic import math
from ..ptx.text import KernelText, module_text
from .emit import Emitter
from .layout import Group


def emit_whole(kernel: WholeKernel, target: TargetSpec) -> str:
    k = KernelText(kernel.name, [f"w{i}" for i in range(kernel.words)])
    walk = _Walk(kernel, k)
    walk.pieces(kernel.pieces)
    k.shared = walk.shared
    if k.shared > SHARED:
        raise CompileError(f"cuda: kernel {kernel.name} declares {k.shared} bytes of shared memory, a kernel has at most {SHARED}")
    text = k.text([f".maxntid {kernel.block}, 1, 1"], target.cpu)
    return module_text(target.cpu, math.tables(text) + text)


class _Inlined(Emitter):
    """A kernel's program in the text of another; its argument words are in registers."""

    def __init__(self, kernel: BlockKernel, text: KernelText, words: Sequence[str], block: int) -> None:
        super().__init__(kernel, Group(kernel.threads, kernel.vector), text)
        self.part = block > kernel.threads  # the block's first threads run it, the others wait
        self._given: Iterator[str] = iter(words)
        self.loops = 1  # every step reuses its registers and shared memory

    def _parameter(self, name: str) -> str:
        return next(self._given)

    def barrier(self) -> None:
        self.k.emit(f"bar.sync 1, {self.layout.threads};" if self.part else "bar.sync 0;")


class _Walk:
    def __init__(self, kernel: WholeKernel, k: KernelText) -> None:
        self.kernel, self.k = kernel, k
        self.turns: dict[int, str] = {}  # the step of every loop, also of those that have ended
        self.private = 0
        self.shared = 0  # bytes of the call that needs most

    def pieces(self, pieces: Sequence[Piece]) -> None:
        for p in pieces:
            if isinstance(p, Call):
                self._call(p)
            elif isinstance(p, Repeat):
                self._repeat(p)
            else:
                self._choose(p)

    def word(self, i: int) -> str:
        return self.k.value("i64", f"ld.param.u64 {{}}, [p{i}];")

    def place(self, p: Place) -> str:
        k = self.k
        if isinstance(p, Fixed):
            return self.word(p.word)
        if isinstance(p, Slid):
            return k.value("i64", f"mad.lo.s64 {{}}, {self.turns[p.loop]}, {self.word(p.step)}, {self.place(p.base)};")
        even, odd = self.place(p.even), self.place(p.odd)
        last = k.value("i64", f"and.b64 {{}}, {self.turns[p.loop]}, 1;")
        return k.value("i64", f"selp.b64 {{}}, {even}, {odd}, {k.value('i1', f'setp.eq.u64 {{}}, {last}, 0;')};")

    def _call(self, c: Call) -> None:
        """Programs one after another where each takes several warps, else as many at a time as there are groups."""
        k, threads = self.k, c.kernel.threads
        programs = together(c.kernel, self.kernel.block)
        kernel = replace(c.kernel, programs=programs, streamed=frozenset(), ready=frozenset(), early=False)
        e = _Inlined(kernel, k, [self.place(w) for w in c.words], self.kernel.block)
        e.private = self.private
        e.parameters()
        k.shared = 0  # a barrier followed the call before: its shared memory is free
        grid, pid = self.word(c.grid), k.reg("i64")
        tid = k.value("i32", "mov.u32 {}, %tid.x;")
        top, done = k.label("programs"), k.label("programs_done")
        if threads > WARP:
            k.emit(f"mov.b64 {pid}, 0;")
            if e.part:
                k.emit(f"@{k.value('i1', f'setp.ge.u32 {{}}, {tid}, {threads};')} bra {done};")
        else:
            k.emit(f"cvt.u64.u32 {pid}, {k.value('i32', f'shr.u32 {{}}, {tid}, {threads.bit_length() - 1};')};")
            if programs < self.kernel.block // threads:  # groups that have no shared memory begin behind the last program
                k.emit(f"@{k.value('i1', f'setp.ge.u64 {{}}, {pid}, {programs};')} mov.b64 {pid}, {grid};")
        k.place(top)
        k.emit(f"@{k.value('i1', f'setp.ge.u64 {{}}, {pid}, {grid};')} {e.branch} {done};")
        e.env[kernel.pid] = pid
        e.block(kernel.body)
        k.emit(f"add.s64 {pid}, {pid}, {programs};")
        k.emit(f"{e.branch} {top};")
        k.place(done)
        self.private, self.shared = e.private, max(self.shared, k.shared)
        if threads <= WARP:
            k.emit("bar.warp.sync -1;")  # groups of a warp end at different times
        self._sync()

    def _sync(self) -> None:
        """What the block wrote is there for all its threads."""
        self.k.emit("bar.sync 0;")

    def _false(self, predicate: Place) -> str:
        """Whether a predicate's byte is 0, the same for all threads; nobody writes it before all have read it."""
        k = self.k
        pointer = k.value("i64", f"cvta.to.global.u64 {{}}, {self.place(predicate)};")
        byte = k.value("i32", f"ld.global.u8 {{}}, [{pointer}];")
        self._sync()
        return k.value("i1", f"setp.eq.u32 {{}}, {byte}, 0;")

    def _repeat(self, r: Repeat) -> None:
        k = self.k
        turn = self.turns[r.loop] = k.reg("i64")
        top, done = k.label("step"), k.label("steps_done")
        k.emit(f"mov.b64 {turn}, 0;")
        k.place(top)
        if r.count is not None:
            k.emit(f"@{k.value('i1', f'setp.ge.s64 {{}}, {turn}, {self.word(r.count)};')} bra.uni {done};")
        self.pieces(r.test)
        if r.predicate is not None:
            k.emit(f"@{self._false(r.predicate)} bra.uni {done};")
        self.pieces(r.body)
        k.emit(f"add.s64 {turn}, {turn}, 1;")
        k.emit(f"bra.uni {top};")
        k.place(done)

    def _choose(self, c: Choose) -> None:
        k, other, done = self.k, self.k.label("other"), self.k.label("chosen")
        k.emit(f"@{self._false(c.predicate)} bra.uni {other};")
        self.pieces(c.then)
        k.emit(f"bra.uni {done};")
        k.place(other)
        self.pieces(c.other)
        k.place(done)
