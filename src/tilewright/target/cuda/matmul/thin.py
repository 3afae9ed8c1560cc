"""Products of a few dozen rows with a matrix whose rows lie along K, written as PTX for `mma.sync`: the matrix goes from memory
straight into fragments.

A block owns `panel` rows of the matrix; its warps share K in blocks of 32, one after another. A thread loads 16 bytes (8 neighbours
along K) of each of its rows: the
tensor core wants other positions of K in a thread, but a sum does not care about the order as long as both operands have the same one.
At the end the warps' sums are added in order through shared memory, and the epilogue (tile IR) runs on groups of `panel` threads, one
row each.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import ThinKernel
from ....tile.ir import TileType
from ..ptx.text import KernelText, literal, module_text
from ..threads.access import Address
from ..threads.control import STREAMED
from ..threads.emit import Emitter
from ..threads.layout import Group, Regs

STEP = 64  # bytes of a row that a warp reads at once: 32 elements


def emit_thin(kernel: ThinKernel, target: TargetSpec) -> str:
    return Thin(kernel).module(target)


class Thin:
    def __init__(self, kernel: ThinKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.e = Emitter(kernel, Group(kernel.panel, 1), self.k)

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        e.parameters(["m", "n", "blocks"])
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        self.warp, lane = v("i32", f"shr.u32 {{}}, {self.tid}, 5;"), v("i32", f"and.b32 {{}}, {self.tid}, 31;")
        self.line, self.quad = v("i32", f"shr.u32 {{}}, {lane}, 2;"), v("i32", f"and.b32 {{}}, {lane}, 3;")
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        self.column = v("i64", f"mul.wide.u32 {{}}, {block}, {g.panel};")
        m, n = e.word(0), e.word(1)
        right = self._rows(g.b, g.panel, n, self.column)
        left = self._rows(g.a, g.rows, m, None)
        self.sums = [[k.reg("float") for _ in range(4)] for _ in range(g.panel // 16 * (g.rows // 8))]
        for r in (r for s in self.sums for r in s):
            k.emit(f"mov.f32 {r}, {literal('float', 0.0)};")
        self._multiply(left, right)
        self._finish()
        return module_text(target.cpu, k.text([f".maxntid {g.block}, 1, 1"], target.cpu))

    def _rows(self, view: object, count: int, limit: str, first: str | None) -> list[str]:
        """Addresses of this thread's first piece of the rows line, line + 8, …; rows past the end read the last one."""
        v = self.k.value
        address = self.e.env[view]  # type: ignore[index]
        assert isinstance(address, Address)
        last = v("i64", f"sub.s64 {{}}, {limit}, 1;")
        inside = v("i32", f"mad.lo.u32 {{}}, {self.warp}, {STEP}, {v('i32', f'shl.b32 {{}}, {self.quad}, 4;')};")
        start = v("i64", f"add.s64 {{}}, {address.pointer}, {v('i64', f'cvt.u64.u32 {{}}, {inside};')};")
        stride = address.strides[0]
        stride = v("i64", f"shl.b64 {{}}, {stride}, 1;") if stride.startswith("%") else str(int(stride) * 2)
        out = []
        for r in range(0, count, 8):
            row = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.line}, {r};')};")
            row = v("i64", f"add.s64 {{}}, {row}, {first};") if first is not None else row
            row = v("i64", f"min.s64 {{}}, {row}, {last};")
            at = self.k.reg("i64")
            self.k.emit(f"mad.lo.s64 {at}, {row}, {stride}, {start};")
            out.append(at)
        return out

    def _multiply(self, left: list[str], right: list[str]) -> None:
        """This warp's blocks of K: warp, warp + warps, …"""
        k, g, v = self.k, self.kernel, self.k.value
        blocks = v("i32", f"cvt.u32.u64 {{}}, {self.e.word(2)};")
        mine = v("i32", f"sub.s32 {{}}, {v('i32', f'add.u32 {{}}, {blocks}, {g.warps - 1};')}, {self.warp};")
        mine = v("i32", f"shr.u32 {{}}, {mine}, {g.warps.bit_length() - 1};")
        for steps in (g.unroll, 1) if g.unroll > 1 else (1,):
            count = k.reg("i32")
            k.emit(f"div.u32 {count}, {mine}, {steps};" if steps > 1 else f"rem.u32 {count}, {mine}, {g.unroll};")
            if g.unroll == 1:
                k.emit(f"mov.u32 {count}, {mine};")
            top, done = k.label("blocks"), k.label("blocks_done")
            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {count}, 0;')} bra {done};")
            k.place(top)
            self._block(left, right, steps)
            for p in (*left, *right):
                k.emit(f"add.s64 {p}, {p}, {steps * g.warps * STEP};")
            k.emit(f"sub.u32 {count}, {count}, 1;")
            k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {count}, 0;')} bra {top};")
            k.place(done)

    def _block(self, left: list[str], right: list[str], steps: int) -> None:
        k, g = self.k, self.kernel

        def load(pointer: str, step: int, hint: str) -> list[str]:
            regs = [k.reg("i32") for _ in range(4)]
            k.emit(f"ld.global{hint}.v4.b32 {{{', '.join(regs)}}}, [{pointer}+{step * g.warps * STEP}];")
            return regs

        matrix = [[load(p, s, STREAMED) for p in right] for s in range(steps)]
        rows = [[load(p, s, ".nc") for p in left] for s in range(steps)]
        name = f"mma.sync.aligned.m16n8k16.row.col.f32.{g.dtype}.{g.dtype}.f32"
        for s in range(steps):
            for half in (0, 2):
                for i in range(g.panel // 16):
                    upper, lower = matrix[s][2 * i], matrix[s][2 * i + 1]
                    a = ", ".join((upper[half], lower[half], upper[half + 1], lower[half + 1]))
                    for j, x in enumerate(rows[s]):
                        c = ", ".join(self.sums[i * len(rows[s]) + j])
                        k.emit(f"{name} {{{c}}}, {{{a}}}, {{{x[half]}, {x[half + 1]}}}, {{{c}}};")

    def _finish(self) -> None:
        """Sums of the warps in order, then the epilogue."""
        k, g, e, v = self.k, self.kernel, self.e, self.k.value
        at_once = g.block // g.panel  # rows of the epilogue
        pitch, height = g.panel + 4, -(-g.rows // at_once) * at_once  # the pitch keeps a warp's stores in different banks
        at = k.alloc_shared(g.warps * height * pitch * 4)
        base = v("i32", f"add.u32 {{}}, {v('i32', 'mov.u32 {}, scratch;')}, {at};")
        mine = v("i32", f"mad.lo.u32 {{}}, {self.warp}, {height * pitch * 4}, {base};")
        mine = v("i32", f"mad.lo.u32 {{}}, {self.quad}, {2 * pitch * 4}, {mine};")
        mine = v("i32", f"mad.lo.u32 {{}}, {self.line}, 4, {mine};")
        for i in range(g.panel // 16):
            for j in range(g.rows // 8):
                for c, r in enumerate(self.sums[i * (g.rows // 8) + j]):
                    place = ((8 * j + c % 2) * pitch + 16 * i + 8 * (c // 2)) * 4
                    k.emit(f"st.shared.f32 [{mine}+{place}], {r};")
        k.emit("bar.sync 0;")
        row = v("i32", f"shr.u32 {{}}, {self.tid}, {g.panel.bit_length() - 1};")
        here = v("i32", f"mad.lo.u32 {{}}, {row}, {pitch * 4}, {base};")
        here = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, {g.panel - 1};')}, 4, {here};")
        assert g.acc is not None and g.row is not None and g.column is not None and isinstance(g.acc.type, TileType)
        e.env[g.column] = self.column
        for first in range(0, g.rows, at_once):
            total = ""
            for w in range(g.warps):
                part = v("float", f"ld.shared.f32 {{}}, [{here}+{(w * height + first) * pitch * 4}];")
                total = v("float", f"add.rn.f32 {{}}, {total}, {part};") if w else part
            e.env[g.acc] = Regs(g.acc.type, {(0, 0): total})
            e.env[g.row] = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'add.u32 {{}}, {row}, {first};')};")
            e.block(g.body)
