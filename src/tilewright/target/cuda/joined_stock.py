"""Pieces of matrices that threads of a joined kernel ask for ahead of time, over the ends of programs and stages.

A thread copies by `cp.async` what it will read itself, into cells of its own, and takes it in the same order: one group a piece, `depth`
pieces on their way or waiting, no barrier. The piece that takes the place of the one just used is the next of the thread's list, which goes
on into later stages while the blocks have yet to meet: matrices are there from the start.
"""

from __future__ import annotations

from typing import Any

from ...core.errors import CompileError
from ...kernels.cuda.fragments import Fragments
from ...kernels.cuda.joined import CELL, STOCK_HEAD, JoinedKernel, stock_words, threads_of
from ...kernels.cuda.kernel import BlockKernel, QDotKernel
from ...tile.ir import Instr, Kernel, TileType, Var, ViewType
from .access import Access, Address, _load_piece
from .emit import Emitter
from .layout import Group, Key, Regs
from .ptx_text import KernelText
from .qdot_small import unit_of
from .qdot_unit import Unit, vector


class _Cells(Access):
    """A tile of which every piece lies in a cell of this thread."""

    def __init__(self, stock: Stock, first: int, *args: Any) -> None:
        super().__init__(*args)
        self.stock, self.at = stock, first

    def place(self, key: Key) -> tuple[str, int]:
        self.at += 1
        return self.stock.slot, (self.at - 1) * self.stock.pitch


class _Asking(Emitter):
    """The loads of a kernel's matrices for some program, as copies: of the body, what their addresses depend on."""

    def __init__(self, kernel: BlockKernel, stock: Stock) -> None:
        super().__init__(kernel, Group(kernel.threads, kernel.vector), stock.k)
        stock.scope.enter(self)
        self.stock, self.cell = stock, 0
        words = iter(stock.words_of(kernel))
        for p in kernel.params:
            if isinstance(p.type, ViewType) and p.name in kernel.streamed:
                pointer = next(words)
                self.env[p] = Address(pointer, tuple(next(words) if s is None else str(s) for s in p.type.strides), p.type.dtype)

    def ask(self, pid: str) -> None:
        self.env[self.kernel.pid] = pid
        for instr in self.kernel.body.body:
            if instr.op.startswith("index.") and all(x in self.env for x in instr.operands if isinstance(x, Var)):
                self.index_op(instr)
            elif instr.op == "load" and instr.operands[0] in self.env:
                self._copy(instr)

    def _copy(self, instr: Instr) -> None:
        view, at, limits, _ = self._access(instr)
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        found = Access(self, view, at, type_.shape, instr.attrs["axes"], limits)
        for piece in self.layout.pieces(type_.shape):
            (pointer, offset), inside = found.place(piece[0]), found.inside(piece[0])
            self.stock.copy(self.cell, pointer, offset, CELL, "" if inside is None else f"@{inside} ")
            self.cell += 1


class Scope:
    """Values that several emitters of a stage compute once, at its beginning: kept for the whole kernel they would take registers."""

    def __init__(self, k: KernelText) -> None:
        self.k, self.at, self.lines = k, len(k.lines), list[str]()
        self.known: dict[tuple[int, int], dict[str, str]] = {}

    def enter(self, e: Emitter) -> None:
        assert isinstance(e.layout, Group)
        e.opening, e._known = self.lines, self.known.setdefault((e.layout.threads, e.layout.vector), {})

    def close(self) -> None:
        self.k.lines[self.at : self.at] = self.lines


class Stock:
    """The list of pieces as every thread goes through it, and the slot of its next one."""

    def __init__(self, k: KernelText, kernel: JoinedKernel, table: str, tid: str) -> None:
        self.k, self.kernel, self.tid, self.scope = k, kernel, tid, Scope(k)
        self.pitch = CELL * kernel.block
        v = k.value
        start = v("i64", f"add.s64 {{}}, {table}, {v('i64', f'ld.global.nc.u64 {{}}, [{table}];')};")
        self.slot, self.kind, self.sub, self.pid, self.programs = (k.reg("i32") for _ in range(5))
        self.record = k.reg("i64")
        self.words = [k.reg("i64") for _ in range(kernel.stock - STOCK_HEAD)]
        k.emit(f"mov.u32 {self.slot}, {self._first()};")
        k.emit(f"sub.s64 {self.record}, {start}, {8 * kernel.stock};")
        self._stage()
        self._remember("st")
        left, again = k.reg("i32"), k.label("ask")
        k.emit(f"mov.u32 {left}, {kernel.depth};")
        k.place(again)
        self.ask()
        k.emit(f"sub.u32 {left}, {left}, 1;")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {left}, 0;')} bra {again};")
        self.scope.close()

    def _first(self) -> str:
        return self.k.value("i32", f"mad.lo.u32 {{}}, {self.tid}, {CELL}, {self.k.value('i32', 'mov.u32 {}, ring;')};")

    def _remember(self, op: str) -> None:
        """Where a warp is in its list, from or to shared memory: in registers of every thread it would cost others."""
        k, v = self.k, self.k.value
        warp = v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        at = v("i32", f"mad.lo.u32 {{}}, {warp}, {state_bytes(self.kernel)}, {v('i32', 'mov.u32 {}, ring;')};")
        start = self.kernel.depth * self.kernel.slot
        first = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 31;')}, 0;")
        k.emit("bar.warp.sync -1;")
        held = [(r, 32, 4 * i) for i, r in enumerate((self.kind, self.programs, self.pid, self.sub))]
        held += [(r, 64, 16 + 8 * i) for i, r in enumerate((self.record, *self.words))]
        for r, bits, offset in held:
            place = f"[{at}+{start + offset}]"
            k.emit(f"@{first} st.shared.u{bits} {place}, {r};" if op == "st" else f"ld.shared.u{bits} {r}, {place};")

    def _stage(self) -> None:
        """To the next stage that has a program for this thread."""
        k, v = self.k, self.k.value
        again = k.label("stage")
        k.place(again)
        k.emit(f"add.s64 {self.record}, {self.record}, {8 * self.kernel.stock};")
        for i, register in ((0, self.kind), (1, self.programs)):
            k.emit(f"ld.global.nc.u32 {register}, [{self.record}+{8 * i}];")
        shift = v("i32", f"ld.global.nc.u32 {{}}, [{self.record}+16];")
        for i, word in enumerate(self.words):
            k.emit(f"ld.global.nc.u64 {word}, [{self.record}+{8 * (STOCK_HEAD + i)}];")
        group = v("i32", f"shr.u32 {{}}, {self.tid}, {shift};")
        k.emit(f"mad.lo.u32 {self.pid}, {group}, {self.kernel.grid}, {v('i32', 'mov.u32 {}, %ctaid.x;')};")
        k.emit(f"mov.u32 {self.sub}, 0;")
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {self.pid}, {self.programs};')} bra {again};")

    def words_of(self, kernel: Kernel) -> list[str]:
        """Where a kind's matrices lie in the stage that is asked for."""
        fixed, given = self.kernel.fixed[self.kernel.kinds.index(kernel)], iter(self.words)
        return [next(given) if (known := fixed[i]) is None else str(known) for i in stock_words(kernel)]

    def ask(self) -> None:
        """Ask for the next piece into the slot, one group even where there is none left, and go to the next slot."""
        k, v = self.k, self.k.value
        dispatch, done = k.label("which"), k.label("asked")
        self._remember("ld")
        ways = [(i, x, k.label("piece")) for i, (x, c) in enumerate(zip(self.kernel.kinds, self.kernel.cells, strict=True)) if c]
        k.place(dispatch)
        for i, _, label in ways:
            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.kind}, {i};')} bra {label};")
        k.emit(f"bra {done};")
        for _, kernel, label in ways:
            k.place(label)
            if isinstance(kernel, QDotKernel):
                self._unit(kernel, dispatch, done)
            else:
                assert isinstance(kernel, BlockKernel)
                _Asking(kernel, self).ask(v("i64", f"cvt.u64.u32 {{}}, {self.pid};"))
            self._program(threads_of(kernel))
            k.emit(f"bra {done};")
        k.place(done)
        k.emit("cp.async.commit_group;")
        self._remember("st")
        k.emit(f"add.u32 {self.slot}, {self.slot}, {self.kernel.slot};")
        first = self._first()
        end = v("i32", f"add.u32 {{}}, {first}, {self.kernel.depth * self.kernel.slot};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.slot}, {end};')} mov.u32 {self.slot}, {first};")

    refill = ask

    def _program(self, threads: int) -> None:
        """To the thread's next program, in this stage or a later one."""
        k, v = self.k, self.k.value
        more = k.label("more")
        k.emit(f"add.u32 {self.pid}, {self.pid}, {self.kernel.grid * (self.kernel.block // threads)};")
        k.emit(f"mov.u32 {self.sub}, 0;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {self.pid}, {self.programs};')} bra {more};")
        self._stage()
        k.place(more)

    def _unit(self, g: QDotKernel, dispatch: str, done: str) -> None:
        """A unit of a packed matrix: the thread's warp has every `warps`-th of a strip, strip after strip, matrix after matrix."""
        k, v, f = self.k, self.k.value, Fragments(g.format, g.k)
        *matrices, count_ = self.words_of(g)
        tid = v("i32", f"and.b32 {{}}, {self.tid}, {g.block - 1};")
        warp, lane = v("i32", f"shr.u32 {{}}, {tid}, 5;"), v("i32", f"and.b32 {{}}, {tid}, 31;")
        own = v("i32", f"sub.u32 {{}}, {f.units + g.warps - 1}, {warp};")
        own = v("i32", f"shr.u32 {{}}, {own}, {g.warps.bit_length() - 1};")
        some = k.label("some")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {own}, 0;')} bra {some};")
        self._stage()  # of which this warp has no part
        k.emit(f"bra {dispatch};")
        k.place(some)
        strips = v("i32", f"cvt.u32.u64 {{}}, {count_};" if count_.startswith("%") else f"mov.u32 {{}}, {count_};")
        first = v("i32", f"mul.lo.u32 {{}}, {self.pid}, {g.per};")
        count = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {strips}, {first};')}, {g.per};")
        line, unit = (v("i32", f"{op}.u32 {{}}, {self.sub}, {own};") for op in ("div", "rem"))
        matrix, strip = (v("i32", f"{op}.u32 {{}}, {line}, {count};") for op in ("div", "rem"))
        row = v("i32", f"add.u32 {{}}, {first}, {strip};")
        number = v("i32", f"mad.lo.u32 {{}}, {unit}, {g.warps}, {v('i32', f'mad.lo.u32 {{}}, {row}, {f.units}, {warp};')};")
        base = matrices[0]
        for i in range(1, len(matrices)):
            base = v("i64", f"selp.b64 {{}}, {matrices[i]}, {base}, {v('i1', f'setp.eq.u32 {{}}, {matrix}, {i};')};")
        wide = v("i64", f"cvt.u64.u32 {{}}, {number};")
        at = v("i64", f"mad.lo.s64 {{}}, {wide}, {f.bytes}, {base};")
        cells = iter(range(max(self.kernel.cells)))
        made = unit_of(k, f, lane, v("i32", f"shr.u32 {{}}, {lane}, 2;"), g.spread)
        made.each(at, lambda part, place, offset: self.copy(next(cells), place, offset, 4 * len(part), ""))
        k.emit(f"add.u32 {self.sub}, {self.sub}, 1;")
        total = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'mul.lo.u32 {{}}, {own}, {count};')}, {len(g.weights)};")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {self.sub}, {total};')} bra {done};")

    def copy(self, cell: int, pointer: str, offset: int, nbytes: int, guard: str) -> None:
        kind = "cg" if nbytes == CELL else "ca"
        self.k.emit(f"{guard}cp.async.{kind}.shared.global.L2::256B [{self.slot}+{cell * self.pitch}], [{pointer}+{offset}], {nbytes};")

    # --- what a program takes -----------------------------------------------------------------------------------------
    def arrived(self) -> None:
        """The piece in the slot is there."""
        self.k.emit(f"cp.async.wait_group {self.kernel.depth - 1};")

    def take(self, unit: Unit) -> None:
        """A unit of a packed matrix into its registers."""
        self.arrived()
        cells, nowhere = iter(range(max(self.kernel.cells))), self.k.value("i64", "mov.b64 {}, 0;")
        unit.each(nowhere, lambda part, _, __: self.k.emit(f"ld.shared{vector(part)}, [{self.slot}+{next(cells) * self.pitch}];"))

    def load(self, e: Emitter, first: int, instr: Instr) -> tuple[Regs, int]:
        """A tile of a matrix whose pieces begin at a cell; gives the next one too."""
        view, at, limits, _ = e._access(instr)
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        where = Address(view.pointer, view.strides, view.dtype, "shared")
        cells = _Cells(self, first, e, where, at, type_.shape, instr.attrs["axes"], limits)
        out = Regs(type_, {})
        for piece in e.layout.pieces(type_.shape):
            if not cells.whole(piece):
                raise CompileError(f"cuda: kernel {e.kernel.name} reads a matrix in pieces of less than {CELL} bytes")
            out.values.update(zip(piece, _load_piece(cells, piece, instr.attrs.get("other", 0) or 0), strict=True))
        return out, cells.at


def state_bytes(kernel: JoinedKernel) -> int:
    """What a warp remembers: kind, programs, program and piece of its next one, the record and its words."""
    return -(-(16 + 8 * (1 + kernel.stock - STOCK_HEAD)) // 16) * 16


def asks(kernel: JoinedKernel, kind: Kernel) -> bool:
    return bool(kernel.depth and kernel.cells[kernel.kinds.index(kind)])
