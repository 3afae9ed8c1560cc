"""Many launches as one kernel (`kernels/cuda/joined.py`) → PTX: blocks that stay go through a table of stages and meet after each.

Every kind of kernel stands in the text once, as it would in a launch of its own: the same instructions on the same elements, so the same
bits. A program takes the threads that it would have as a block; a block of the joined kernel runs several side by side, program after
program. Where a kernel of its own would wait for the one before (what it loads earlier is in memory from the start), its threads wait
here until all blocks have done the stages before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...kernels.cuda.fragments import ROWS
from ...kernels.cuda.joined import HEAD, SCRATCH, JoinedKernel, threads_of
from ...kernels.cuda.kernel import WARP, BlockKernel, DecodeKernel, QDotKernel
from ...tile.ir import Instr, Kernel, TileType
from . import math
from .access import Address
from .decode import decode_program
from .emit import Emitter
from .joined_barrier import MEETINGS
from .joined_stock import Scope, Stock, asks, state_bytes
from .layout import Group
from .ptx_text import KernelText, module_text
from .qdot import QDot
from .where import Where

RING = ".extern .shared .align 128 .b8 ring[];\n\n"


def emit_joined(kernel: JoinedKernel, target: TargetSpec) -> str:
    first = _Text(kernel, {})  # how much shared memory each kind takes is known when it has been written
    first.write()
    made = _Text(kernel, first.sizes)
    made.write()
    k = made.k
    k.shared = max(made.share(x) * (kernel.block // threads_of(x)) for x in kernel.kinds)
    if k.shared > SCRATCH:
        raise CompileError(f"cuda: kernel {kernel.name} declares {k.shared} bytes of shared memory beside its ring, at most {SCRATCH} fit")
    text = k.text([f".maxntid {kernel.block}, 1, 1", f".minnctapersm {kernel.how.blocks}"], target.cpu)
    return module_text(target.cpu, (RING if kernel.depth else "") + math.tables(text) + text)


def joined_shared(kernel: JoinedKernel) -> int:
    """Dynamic shared memory: the pieces, and what every warp has to remember of its list."""
    return kernel.depth * kernel.slot + (kernel.block // WARP * state_bytes(kernel) if kernel.depth else 0)


class _Place(Where):
    """Some threads of a block."""

    again = True

    def __init__(self, text: _Text, threads: int, share: int, pid: str, group: str, tid: str) -> None:
        super().__init__(text.k)
        self.part = threads < text.kernel.block
        self.threads, self.share, self.pid, self.group, self.tid = threads, share, pid, group, tid
        self.number = self.k.value("i32", f"add.u32 {{}}, {group}, 1;") if self.part and threads > WARP else ""

    def thread(self) -> str:
        return self.tid

    def program(self) -> str:
        return self.pid

    def base(self) -> str:
        start = self.k.value("i32", "mov.u32 {}, scratch;")
        return self.k.value("i32", f"mad.lo.u32 {{}}, {self.group}, {self.share}, {start};") if self.part else start

    def meet(self) -> None:
        if self.threads <= WARP:
            raise CompileError("cuda: programs of a warp or less have no barrier in a joined kernel")
        self.k.emit(f"bar.sync {self.number}, {self.threads};" if self.part else "bar.sync 0;")


class _Inside(Emitter):
    """A kernel's program as a stage; its argument words are in registers."""

    def __init__(self, text: _Text, kernel: Kernel, group: Group, words: Sequence[str], where: _Place) -> None:
        super().__init__(kernel, group, text.k)
        self.text, self.where = text, where
        self._given: Iterator[str] = iter(words)
        text.scope.enter(self)
        self.loops = self.around = 1  # every program reuses its registers and shared memory
        self.cell = 0  # the next of the piece that this program takes
        self.takes = asks(text.kernel, text.kind)
        self.base_at = ""

    def _parameter(self, name: str) -> str:
        return next(self._given)

    def barrier(self) -> None:
        self.where.meet()

    def warp(self) -> str:
        if not self.where.part or self.layout.threads <= WARP:
            return super().warp()
        warps = self.layout.threads // WARP
        return self._once("warp of", "i32", "mov.u32 {}, %tid.x;", "shr.u32 {}, $, 5;", f"and.b32 {{}}, $, {warps - 1};")

    def shared_base(self) -> str:
        if not self.where.part or self.layout.threads <= WARP:  # smaller programs find their own part
            return super().shared_base()
        return self.base_at

    def wait(self) -> None:
        self.text.wait(self.where, once=True)

    def do_load(self, instr: Instr) -> None:
        view = self._view(instr)
        if not (self.takes and view.hint):
            super().do_load(instr)
            return
        assert isinstance(instr.results[0].type, TileType) and self.text.stock is not None
        self.env[instr.results[0]], self.cell = self.text.stock.load(self, self.cell, instr)


class _Text:
    """The kernel under construction. `sizes`: shared memory of a program of each kind, from a first writing."""

    def __init__(self, kernel: JoinedKernel, sizes: dict[str, int]) -> None:
        self.kernel, self.given, self.sizes = kernel, sizes, dict[str, int]()
        self.k = KernelText(kernel.name, ["table", "sync"])
        self.private = 0
        self.kind: Kernel = kernel.kinds[0]
        self.stock: Stock | None = None

    def share(self, kind: Kernel) -> int:
        return -(-self.sizes.get(kind.name, self.given.get(kind.name, 0)) // 16) * 16

    def write(self) -> None:
        g, k, v = self.kernel, self.k, self.k.value
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        self.record, self.waited = k.reg("i64"), k.reg("i32")
        self.meeting = MEETINGS[g.how.barrier](k, g.grid)
        if g.depth:
            self.stock = Stock(k, g, self._table(), self.tid)
        k.emit(f"add.s64 {self.record}, {self._table()}, 8;")
        top, end, done = k.label("stages"), k.label("stage_end"), k.label("all_done")
        labels = [k.label("kind") for _ in g.kinds]
        k.place(top)
        kind = v("i64", f"ld.global.nc.u64 {{}}, [{self.record}];")
        self.programs = v("i32", f"ld.global.nc.u32 {{}}, [{self.record}+8];")
        k.emit(f"mov.u32 {self.waited}, 0;")
        k.emit(f"@{v('i1', f'setp.eq.u64 {{}}, {kind}, {len(labels)};')} bra.uni {done};")
        for i, label in enumerate(labels[1:], 1):
            k.emit(f"@{v('i1', f'setp.eq.u64 {{}}, {kind}, {i};')} bra.uni {label};")
        for i, (one, label) in enumerate(zip(g.kinds, labels, strict=True)):
            k.place(label)
            self.kind, k.shared, self.scope = one, 0, Scope(k)
            if self.stock is not None:
                self.stock.scope = self.scope
            self._stage(one)
            self.scope.close()
            self.sizes[one.name] = k.shared
            if i + 1 < len(labels):
                k.emit(f"bra.uni {end};")
        k.place(end)
        k.emit("bar.sync 0;")
        self.meeting.arrive(self.tid)
        k.emit(f"add.s64 {self.record}, {self.record}, {8 * g.record};")
        k.emit(f"bra.uni {top};")
        k.place(done)
        if g.depth:
            k.emit("cp.async.wait_group 0;")

    def _table(self) -> str:
        return self.k.value("i64", f"cvta.to.global.u64 {{}}, {self.k.value('i64', 'ld.param.u64 {}, [p0];')};")

    def wait(self, where: _Place, *, once: bool) -> None:
        """The program's threads wait for the stages before; `once`: not again for the next program of the stage."""
        k, v = self.k, self.k.value
        done = k.label("waited")
        if once:
            k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.waited}, 0;')} {'bra' if where.part else 'bra.uni'} {done};")
        self.meeting.wait(where.tid, where.threads, where.meet)
        if once:
            k.emit(f"mov.u32 {self.waited}, 1;")
            k.place(done)

    def _stage(self, kernel: Kernel) -> None:
        k, v, block = self.k, self.k.value, self.kernel.block
        threads = threads_of(kernel)
        small = threads <= WARP
        group = v("i32", f"shr.u32 {{}}, {self.tid}, {threads.bit_length() - 1};")
        tid = v("i32", f"and.b32 {{}}, {self.tid}, {threads - 1};") if threads < block else self.tid
        pid = k.reg("i32")
        k.emit(f"mov.u32 {pid}, %ctaid.x;")
        if threads < block:
            k.emit(f"mad.lo.u32 {pid}, {group}, {self.kernel.grid}, {pid};")
        where = _Place(self, threads, self.share(kernel), pid, group, tid)
        late = small or not (isinstance(kernel, QDotKernel) or getattr(kernel, "early", False))
        if small:
            self.meeting.wait(self.tid, block, lambda: k.emit("bar.sync 0;"))
        elif late:
            self.wait(where, once=False)
        top, none = k.label("programs"), k.label("none")
        branch = "bra.uni" if threads == block else "bra"
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {pid}, {self.programs};')} {branch} {none};")
        words, at = [], HEAD
        for known in self.kernel.fixed[self.kernel.kinds.index(kernel)]:
            words.append(v("i64", f"ld.global.nc.u64 {{}}, [{self.record}+{8 * at}];" if known is None else f"mov.b64 {{}}, {known};"))
            at += known is None
        e = self._emitter(kernel, words, where)
        e.pending = not late
        k.place(top)
        if asks(self.kernel, kernel) and isinstance(kernel, BlockKernel):
            assert self.stock is not None
            self.stock.arrived()
        self._program(kernel, e, where)
        if e.pending:
            raise CompileError(f"cuda: kernel {kernel.name} never waits for what it follows; a joined kernel cannot have it")
        if asks(self.kernel, kernel) and isinstance(kernel, BlockKernel):
            assert self.stock is not None
            self.stock.refill()
        self.private = e.private
        k.emit(f"add.u32 {pid}, {pid}, {self.kernel.grid * (block // threads)};")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {pid}, {self.programs};')} {branch} {top};")
        k.place(none)
        if small:
            k.emit("bar.warp.sync -1;")  # programs of a warp end at different times
        elif not late:
            self.wait(where, once=True)

    def _emitter(self, kernel: Kernel, words: Sequence[str], where: _Place) -> _Inside:
        if isinstance(kernel, BlockKernel):
            placed = replace(kernel, programs=self.kernel.block // kernel.threads if kernel.threads <= WARP else 1)
            e = _Inside(self, placed, Group(kernel.threads, kernel.vector), words, where)
        elif isinstance(kernel, DecodeKernel):
            e = _Inside(self, kernel, Group(kernel.threads, kernel.vector), words, where)
        else:
            e = _Inside(self, kernel, Group(ROWS, 1), words, where)
        e.private = self.private
        e.parameters(["strips", "rows"] if isinstance(kernel, QDotKernel) else [])
        if not getattr(kernel, "early", False):  # a stage before may have written them: no loads that take them for constants (.nc)
            e.env.update({p: replace(a, hint="") for p, a in e.env.items() if isinstance(a, Address) and a.hint})
        if where.part and where.threads > WARP and isinstance(kernel, BlockKernel):
            e.base_at = self.k.value("i64", f"cvt.u64.u32 {{}}, {where.base()};")
        return e

    def _program(self, kernel: Kernel, e: _Inside, where: _Place) -> None:
        if isinstance(kernel, BlockKernel):
            e.env[kernel.pid] = self.k.value("i64", f"cvt.u64.u32 {{}}, {where.pid};")
            e.block(kernel.body)
            return
        if isinstance(kernel, DecodeKernel):
            decode_program(kernel, e, where)
        else:
            assert isinstance(kernel, QDotKernel)
            QDot(kernel, e, where, self.stock if asks(self.kernel, kernel) else None).program()
        where.meet()  # the next program's threads write where these read
