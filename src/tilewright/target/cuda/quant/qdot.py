"""Products with packed matrices as PTX: values go from memory into fragments of the integer tensor cores (`fragments.py`).

A block owns some panels of 16 rows of the matrix; its warps share K in units, unit w, w + warps, … each. Per block of 32 columns one
`mma.m16n8k32` (two of k16 where 16 columns have a scale of their own) gives exact integer sums, which are scaled into f32; of one row a
unit's blocks are columns of one product (`Unit.multiply_row`). The warps'
sums are added in order through shared memory, and the epilogue (tile IR) runs on 16 threads per row. The values of one row of activations
are made in every block: that is cheaper than a launch of its own. The first unit of the matrix is in flight before the kernel waits for
the one before.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import QDotKernel
from ....kernels.quant.cuda.fragments import ROWS, Fragments
from ....kernels.quant.cuda.small_floats import blocks_at_once
from ....tile.ir import TileType, Var
from ..ptx.text import arch_number, literal, module_text
from ..threads.access import Address
from ..threads.control import EARLY
from ..threads.emit import Emitter
from ..threads.layout import Group, Regs
from .qdot_activations import Activations, RowActivations, StoredActivations, row_of, starts_of
from .qdot_small import unit_of
from .qdot_unit import Unit

ZERO = literal("float", 0.0)
STREAMED = f".nc{EARLY}"  # branches around its loads keep them before the wait


def two_units(kernel: QDotKernel, f: Fragments) -> bool:
    """Every warp has two units of four-bit quantized values, and the block an SM (16 warps: down in a decode step)."""
    alone = not kernel.tiles and kernel.per == len(kernel.weights) == 1 and kernel.block == 512
    return alone and f.units == 2 * kernel.warps and f.low == 4 and not f.planes


def emit_qdot(kernel: QDotKernel, target: TargetSpec) -> str:
    return QDot(kernel).module(target)


class QDot:
    def __init__(self, kernel: QDotKernel) -> None:
        self.kernel, self.f = kernel, Fragments(kernel.format, kernel.k)
        self.e = Emitter(kernel, Group(ROWS, 1))
        self.k = self.e.k
        self.rows = max(1, 8 * kernel.tiles)
        self.spread = kernel.spread

    def module(self, target: TargetSpec) -> str:
        g, k = self.kernel, self.k
        k.late = self.e.pending = arch_number(target.cpu) >= 90
        k.starts_after_wait = k.late and g.norm is not None and not g.tiles and g.per == len(g.weights) == 1  # q, k, v: attention is next
        self.e.parameters(["panels", "rows"])
        self.program()
        directives = [f".maxntid {g.block}, 1, 1"]
        if not g.tiles and g.block == 256:  # all blocks of a decode step's products are there at once
            directives.append(f".minnctapersm {blocks_at_once(g.format)}")
        return module_text(target.cpu, k.text(directives, target.cpu))

    def program(self) -> None:
        """One block's panels; the emitter has the parameters."""
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        self.warp, self.lane = v("i32", f"shr.u32 {{}}, {self.tid}, 5;"), v("i32", f"and.b32 {{}}, {self.tid}, 31;")
        self.line, self.quad = v("i32", f"shr.u32 {{}}, {self.lane}, 2;"), v("i32", f"and.b32 {{}}, {self.lane}, 3;")
        self.base = v("i32", "mov.u32 {}, scratch;")
        panels = v("i32", f"cvt.u32.u64 {{}}, {e.word(0)};")
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        groups = v("i32", f"div.u32 {{}}, {v('i32', f'add.u32 {{}}, {panels}, {g.per - 1};')}, {g.per};") if g.per > 1 else panels
        first_row = None
        if g.tiles:
            at = v("i32", f"div.u32 {{}}, {block}, {groups};")
            block = v("i32", f"rem.u32 {{}}, {block}, {groups};")
            first_row = v("i32", f"mul.lo.u32 {{}}, {at}, {self.rows};")
        self.first = v("i32", f"mul.lo.u32 {{}}, {block}, {g.per};")
        self.count = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {panels}, {self.first};')}, {g.per};")
        room = len(g.weights) * g.per * self.rows * g.warps * ROWS * 4
        if g.tiles:  # the sums take the place of the quantized values when those have been used
            room = max(room, g.warps * g.tiles * StoredActivations.tile_bytes(self.f.blocks))
        self.sums_at = k.alloc_shared(room)
        own = v("i32", f"sub.u32 {{}}, {self.f.units + g.warps - 1}, {self.warp};")  # units of this warp in a panel
        self.own = v("i32", f"shr.u32 {{}}, {own}, {g.warps.bit_length() - 1};")
        self.idle = v("i1", f"setp.eq.u32 {{}}, {self.own}, 0;")
        unit = unit_of(k, self.f, self.lane, self.line, self.spread)
        pointers = [self._start(w) for w in g.weights]
        some = v("i1", f"setp.ne.u32 {{}}, {self.own}, 0;")
        unit.load(pointers[0], some, STREAMED)
        self.second: Unit | None = None
        if two_units(g, self.f):  # both in flight before the wait: there are registers for them, and the second one's trip is hidden
            self.second = unit_of(k, self.f, self.lane, self.line, self.spread)
            self.second.load(v("i64", f"add.s64 {{}}, {pointers[0]}, {g.warps * self.f.bytes};"), some, STREAMED)
        self.starts = starts_of(self) if g.x is not None else []
        early = g.norm_early and g.norm is not None
        self.norms = [row_of(self, g.norm, *at) for at in self.starts] if early else []
        if e.pending:
            e.wait()
            e.pending = False
        if g.norm is not None and not early:
            self.norms = [row_of(self, g.norm, *at) for at in self.starts]
        made: Activations = RowActivations(self) if g.x is not None else StoredActivations(self, first_row or "0")
        for i, p in enumerate(pointers):
            self._matrix(i, p, unit, made, pointers[i + 1] if i + 1 < len(pointers) else None)
        k.emit("bar.sync 0;")
        self._finish(made, first_row)

    def view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    def _start(self, weight: Var) -> str:
        """The address of this warp's first unit, in the block's first panel."""
        v = self.k.value
        unit = v("i32", f"mad.lo.u32 {{}}, {self.first}, {self.f.units}, {self.warp};")
        out = self.k.reg("i64")
        self.k.emit(f"mad.lo.s64 {out}, {v('i64', f'cvt.u64.u32 {{}}, {unit};')}, {self.f.bytes}, {self.view(weight).pointer};")
        return out

    def _matrix(self, number: int, p: str, unit: Unit, made: Activations, then: str | None) -> None:
        """All panels of one matrix: a unit is used, then its registers take the next one."""
        k, g, v = self.k, self.kernel, self.k.value
        size = self.f.bytes
        sums = [[k.reg("float") for _ in range(made.width)] for _ in range(max(1, g.tiles))]
        place = v("i32", f"mad.lo.u32 {{}}, {self.warp}, {ROWS * 4}, {self.base};")
        out = k.reg("i32")
        k.emit(f"mad.lo.u32 {out}, {self.line}, 4, {place};")
        left, units = k.reg("i32"), k.reg("i32")
        panel, inner, end = k.label("panel"), k.label("unit"), k.label("panel_end")
        k.emit(f"mov.u32 {left}, {self.count};")
        over = v("i64", f"cvt.s64.s32 {{}}, {v('i32', f'mul.lo.s32 {{}}, {self.own}, {-g.warps * size};')};")
        k.place(panel)
        for r in (r for tile in sums for r in tile):
            k.emit(f"mov.f32 {r}, {ZERO};")
        made.rewind()
        if self.second is not None:
            for u in (unit, self.second):
                self._multiply(u, made, sums)
                made.advance()
            self._panel_end(number, panel, end, out, left, made, sums)
            return
        k.emit(f"mov.u32 {units}, {self.own};")
        k.emit(f"@{self.idle} bra {end};")
        k.place(inner)
        self._multiply(unit, made, sums)
        k.emit(f"sub.u32 {units}, {units}, 1;")
        k.emit(f"add.s64 {p}, {p}, {g.warps * size};")
        last = v("i1", f"setp.eq.u32 {{}}, {units}, 0;")
        if g.per > 1 or then is not None:
            k.emit(f"@{last} add.s64 {p}, {p}, {over};")
            k.emit(f"@{last} add.s64 {p}, {p}, {self.f.units * size};")
            final = v("i1", f"setp.eq.u32 {{}}, {left}, 1;")
            final = v("i1", f"and.pred {{}}, {final}, {last};")
            if then is not None:
                k.emit(f"@{final} mov.b64 {p}, {then};")
            more = k.truth(True) if then is not None else v("i1", f"not.pred {{}}, {final};")
        else:
            more = v("i1", f"setp.ne.u32 {{}}, {units}, 0;")
        made.advance()
        unit.load(p, more, STREAMED)
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {units}, 0;')} bra {inner};")
        self._panel_end(number, panel, end, out, left, made, sums)

    def _multiply(self, unit: Unit, made: Activations, sums: list[list[str]]) -> None:
        made.bring()
        if self.spread:
            assert isinstance(made, RowActivations)
            unit.multiply_row(made, sums[0])
        else:
            unit.multiply(made, sums)

    def _panel_end(self, number: int, panel: str, end: str, out: str, left: str, made: Activations, sums: list[list[str]]) -> None:
        """The warp's sums into shared memory, then the next panel."""
        k, g, v = self.k, self.kernel, self.k.value
        k.place(end)
        if g.tiles:
            k.emit("bar.sync 0;")
        made.store(out, self.sums_at + number * g.per * self.rows * g.warps * ROWS * 4, sums)
        if g.per > 1:
            k.emit(f"add.u32 {out}, {out}, {g.warps * ROWS * 4};")
            k.emit(f"sub.u32 {left}, {left}, 1;")
            k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {left}, 0;')} bra {panel};")

    def _finish(self, made: Activations, first_row: str | None) -> None:
        """Sums of the warps in order, then the epilogue: 16 threads a panel (one row), or a row (one panel)."""
        k, g, e, v = self.k, self.kernel, self.e, self.k.value
        lines, at_once = g.per * self.rows, g.block // ROWS
        mine = v("i32", f"shr.u32 {{}}, {self.tid}, 4;")
        column = v("i32", f"and.b32 {{}}, {self.tid}, 15;")
        here = v("i32", f"mad.lo.u32 {{}}, {mine}, {g.warps * ROWS * 4}, {v('i32', f'mad.lo.u32 {{}}, {column}, 4, {self.base};')};")
        factor = made.factor()
        assert g.row is not None and g.column is not None
        for start in range(0, lines, at_once):
            line = v("i32", f"add.u32 {{}}, {mine}, {start};") if start else mine
            done = k.label("line")
            limit = self.count if not g.tiles else str(lines)
            if not g.tiles or start + at_once > lines:
                k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {line}, {limit};')} bra {done};")
            for i, acc in enumerate(g.accs):
                assert isinstance(acc.type, TileType)
                total = ""
                for w in range(g.warps):
                    at = self.sums_at + ((i * lines + start) * g.warps + w) * ROWS * 4
                    part = v("float", f"ld.shared.f32 {{}}, [{here}+{at}];")
                    total = v("float", f"add.rn.f32 {{}}, {total}, {part};") if w else part
                if factor:
                    total = v("float", f"mul.rn.f32 {{}}, {total}, {factor};")
                e.env[acc] = Regs(acc.type, {(0, 0): total})
            panel = v("i32", f"add.u32 {{}}, {self.first}, {line};") if not g.tiles else self.first
            row = "0" if first_row is None else v("i32", f"add.u32 {{}}, {first_row}, {line};")
            e.env[g.column] = v("i64", f"mul.wide.u32 {{}}, {panel}, {ROWS};")
            e.env[g.row] = v("i64", f"cvt.u64.u32 {{}}, {row};") if row != "0" else "0"
            e.block(g.body)
            k.place(done)
