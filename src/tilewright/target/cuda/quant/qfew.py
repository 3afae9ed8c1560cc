"""Products of a few rows with packed matrices as PTX: quantized values go from memory into registers and become bf16 there, for `mma.sync`.

A block (or a cluster of blocks that share K) has `per` panels of 16 rows of the matrix; a group of warps takes a panel at a time, its warps
share the block's columns in units. The rows of activations lie in shared memory from the start, so that nothing in the loop waits for
another warp; registers of a unit are filled again while its last ones are used. The sums of all panels stay in shared memory until
the end, where those of the warps, then of the cluster's blocks, are added in order.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import QFewKernel
from ....kernels.quant.cuda.fragments import COLUMNS, ROWS, Fragments
from ....kernels.quant.cuda.qfew import PAD, PITCH, shared_bytes
from ....tile.ir import TileType, Var
from ..ptx.text import arch_number, literal, module_text
from ..threads.access import Address
from ..threads.control import EARLY
from ..threads.emit import Emitter
from ..threads.layout import Group, Regs
from .qdot_small import unit_of
from .qdot_unit import Unit
from .qgemm import NAME
from .qgemm_numbers import numbers_of

WORDS = ("panels", "rows")
ZERO = literal("float", 0.0)
STREAMED = f".nc{EARLY}"


def emit_qfew(kernel: QFewKernel, target: TargetSpec) -> str:
    return QFew(kernel).module(target)


def qfew_shared(kernel: QFewKernel) -> int:
    return shared_bytes(kernel.k, kernel.tiles, kernel.per, kernel.warps, kernel.cluster)


def places(kernel: QFewKernel) -> tuple[tuple[int, int], ...]:
    """First byte and bytes of the rows, of a panel's sums, and of those of a cluster's block."""
    g, lines = kernel, 8 * kernel.tiles
    rows, panel = lines * (2 * g.k // g.cluster + PAD), lines * g.warps * PITCH
    return (0, rows), (rows, panel), (rows + g.per * panel, lines * PITCH)


class QFew:
    def __init__(self, kernel: QFewKernel) -> None:
        g = self.kernel = kernel
        self.f = Fragments(g.format, g.k)
        self.e = Emitter(g, Group(ROWS, 1))
        self.k = self.e.k
        self.rows = 8 * g.tiles
        self.columns = g.k // g.cluster
        self.units = self.f.units // g.cluster  # units of a panel, in this block
        self.pitch = 2 * self.columns + PAD
        self.part = self.rows * PITCH  # bytes of a warp's sums of a panel

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        k.late = e.pending = arch_number(target.cpu) >= 90
        e.parameters(WORDS)
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        warp, self.lane = v("i32", f"shr.u32 {{}}, {self.tid}, 5;"), v("i32", f"and.b32 {{}}, {self.tid}, 31;")
        self.line, self.quad = v("i32", f"shr.u32 {{}}, {self.lane}, 2;"), v("i32", f"and.b32 {{}}, {self.lane}, 3;")
        self.warp, self.group = v("i32", f"rem.u32 {{}}, {warp}, {g.warps};"), v("i32", f"div.u32 {{}}, {warp}, {g.warps};")
        self.base = v("i32", "mov.u32 {}, ring;")
        (_, (self.sums_at, _), (self.block_at, _)) = places(g)
        panels, rows = (v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i in range(2))
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        self.rank = v("i32", "mov.u32 {}, %cluster_ctarank;") if g.cluster > 1 else "0"
        if g.cluster > 1:
            block = v("i32", f"shr.u32 {{}}, {block}, {g.cluster.bit_length() - 1};")
        across = v("i32", f"div.u32 {{}}, {v('i32', f'add.u32 {{}}, {panels}, {g.per - 1};')}, {g.per};")
        first_row = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {block}, {across};')}, {self.rows};")
        self.first = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {block}, {across};')}, {g.per};")
        self.count = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {panels}, {self.first};')}, {g.per};")
        self._products(rows, first_row)
        self._finish(first_row)
        directives = [f".maxntid {g.block}, 1, 1"] + [f".reqnctapercluster {g.cluster}, 1, 1"] * (g.cluster > 1)
        if g.cluster == 1 and g.groups < 3:  # the assembler would spill to make room for a second block, and there is none
            directives.append(".minnctapersm 1")
        return module_text(target.cpu, ".extern .shared .align 128 .b8 ring[];\n\n" + k.text(directives, target.cpu))

    def _view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    def _copy_rows(self, rows: str, first_row: str) -> None:
        """This block's columns of all its rows; rows past the end are zeros."""
        k, g, v = self.k, self.kernel, self.k.value
        across, x = 2 * self.columns // 16, self._view(g.x).pointer
        if g.cluster > 1:
            x = v("i64", f"mad.wide.u32 {{}}, {self.rank}, {2 * self.columns}, {x};")
        last = v("i32", f"sub.u32 {{}}, {rows}, 1;")
        for start in range(0, self.rows * across, g.block):
            piece = v("i32", f"add.u32 {{}}, {self.tid}, {start};") if start else self.tid
            line, at = v("i32", f"div.u32 {{}}, {piece}, {across};"), v("i32", f"rem.u32 {{}}, {piece}, {across};")
            row = v("i32", f"add.u32 {{}}, {line}, {first_row};")
            size = v("i32", f"selp.b32 {{}}, 16, 0, {v('i1', f'setp.le.u32 {{}}, {row}, {last};')};")
            row = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'min.u32 {{}}, {row}, {last};')};")
            source = v("i64", f"mad.wide.u32 {{}}, {at}, 16, {v('i64', f'mad.lo.s64 {{}}, {row}, {2 * g.k}, {x};')};")
            to = v("i32", f"mad.lo.u32 {{}}, {line}, {self.pitch}, {v('i32', f'mad.lo.u32 {{}}, {at}, 16, {self.base};')};")
            guard = ""
            if start + g.block > self.rows * across:
                guard = f"@{v('i1', f'setp.lt.u32 {{}}, {piece}, {self.rows * across};')} "
            k.emit(f"{guard}cp.async.cg.shared.global [{to}], [{source}], 16, {size};")

    # --- the loop over panels and units -------------------------------------------------------------------------------
    def _products(self, rows: str, first_row: str) -> None:
        """Sets of registers take units in turn; panels of a group are `groups` apart."""
        k, g, v, f = self.k, self.kernel, self.k.value, self.f
        own = v("i32", f"div.u32 {{}}, {v('i32', f'sub.u32 {{}}, {self.units + g.warps - 1}, {self.warp};')}, {g.warps};")
        mine = v("i32", f"sub.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.count}, {g.groups - 1};')}, {self.group};")
        mine = v("i32", f"div.u32 {{}}, {mine}, {g.groups};")  # panels of this group
        self.numbers = numbers_of(k, f, self.lane, self.line)
        spread = f.blocks == 8 and not f.name.startswith("F8")
        sets = [unit_of(k, f, self.lane, self.line, spread) for _ in range(g.sets)]
        # what is loaded next: its address, units left in its panel, panels left
        self.p, self.units_left, self.strips_left = k.reg("i64"), k.reg("i32"), k.reg("i32")
        number = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.first}, {self.group};')}, {f.units}, {self.warp};")
        if g.cluster > 1:
            number = v("i32", f"mad.lo.u32 {{}}, {self.rank}, {self.units}, {number};")
        k.emit(f"mad.lo.s64 {self.p}, {v('i64', f'cvt.u64.u32 {{}}, {number};')}, {f.bytes}, {self._view(g.weights).pointer};")
        k.emit(f"mov.u32 {self.units_left}, {own};")
        k.emit(f"mov.u32 {self.strips_left}, {mine};")
        back = v("i32", f"mul.lo.s32 {{}}, {own}, {-g.warps * f.bytes};")
        self.jump = v("i64", f"cvt.s64.s32 {{}}, {v('i32', f'add.s32 {{}}, {back}, {g.groups * f.units * f.bytes};')};")
        self.own = own
        for unit in sets:
            self._load(unit, EARLY)  # `.nc` would go behind the wait
        if self.e.pending:
            self.e.wait()
            self.e.pending = False
        self._copy_rows(rows, first_row)
        k.emit("cp.async.commit_group;")
        k.emit("cp.async.wait_group 0;")
        k.emit("bar.sync 0;")
        lane_row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.lane}, 7;')}, {self.pitch}, {self.base};")
        lane_row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.lane}, 3;')}, 16, {lane_row};")
        self.start = v("i32", f"mad.lo.u32 {{}}, {self.warp}, {2 * COLUMNS * f.blocks}, {lane_row};")
        # what is multiplied next: its columns, units left in its panel, panels left, where the panel's sums go
        self.at, self.todo, self.strips_todo, self.out = (k.reg("i32") for _ in range(4))
        k.emit(f"mov.u32 {self.at}, {self.start};")
        k.emit(f"mov.u32 {self.todo}, {own};")
        k.emit(f"mov.u32 {self.strips_todo}, {mine};")
        slot = v("i32", f"mad.lo.u32 {{}}, {self.group}, {g.warps}, {self.warp};")
        out = v("i32", f"mad.lo.u32 {{}}, {slot}, {self.part}, {self.base};")
        out = v("i32", f"mad.lo.u32 {{}}, {self.quad}, {2 * PITCH}, {out};")
        k.emit(f"mad.lo.u32 {self.out}, {self.line}, 4, {out};")
        self.sums = [[k.reg("float") for _ in range(4)] for _ in range(g.tiles)]
        self._clear()
        top, self.end = k.label("units"), k.label("all")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {mine}, 0;')} bra {self.end};")
        k.place(top)
        for which, unit in enumerate(sets):
            self._multiply(which, unit)
            self._load(unit, STREAMED)
            self._next()
        k.emit(f"bra {top};")
        k.place(self.end)

    def _load(self, unit: Unit, hint: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        unit.load(self.p, v("i1", f"setp.gt.s32 {{}}, {self.strips_left}, 0;"), hint)
        k.emit(f"add.s64 {self.p}, {self.p}, {g.warps * self.f.bytes};")
        k.emit(f"sub.u32 {self.units_left}, {self.units_left}, 1;")
        last = v("i1", f"setp.eq.u32 {{}}, {self.units_left}, 0;")
        k.emit(f"@{last} add.s64 {self.p}, {self.p}, {self.jump};")
        k.emit(f"@{last} sub.u32 {self.strips_left}, {self.strips_left}, 1;")
        k.emit(f"@{last} mov.u32 {self.units_left}, {self.own};")

    def _multiply(self, which: int, unit: Unit) -> None:
        k, g = self.k, self.kernel
        self.numbers.hold(which, unit)
        for b in range(self.f.blocks):
            tiles = []
            for t in range(g.tiles):
                four = [k.reg("i32") for _ in range(4)]
                at = 8 * t * self.pitch + 2 * COLUMNS * b
                k.emit(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{', '.join(four)}}}, [{self.at}+{at}];")
                tiles.append(four)
            for half in range(2):
                a = self.numbers.registers(which, b, half)
                for four, own in zip(tiles, self.sums, strict=True):
                    c = ", ".join(own)
                    k.emit(f"{NAME} {{{c}}}, {{{', '.join(a)}}}, {{{', '.join(four[2 * half : 2 * half + 2])}}}, {{{c}}};")

    def _next(self) -> None:
        """To the next unit; at the end of a panel its sums go to shared memory."""
        k, g, v = self.k, self.kernel, self.k.value
        more = k.label("more")
        k.emit(f"add.u32 {self.at}, {self.at}, {2 * g.warps * COLUMNS * self.f.blocks};")
        k.emit(f"sub.u32 {self.todo}, {self.todo}, 1;")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.todo}, 0;')} bra {more};")
        for t, own in enumerate(self.sums):
            for n, r in enumerate(own):  # row 2·quad + n % 2 of the tile, column line (+ 8)
                k.emit(f"st.shared.f32 [{self.out}+{self.sums_at + (8 * t + n % 2) * PITCH + 32 * (n // 2)}], {r};")
        self._clear()
        k.emit(f"add.u32 {self.out}, {self.out}, {g.groups * g.warps * self.part};")
        k.emit(f"mov.u32 {self.at}, {self.start};")
        k.emit(f"mov.u32 {self.todo}, {self.own};")
        k.emit(f"sub.u32 {self.strips_todo}, {self.strips_todo}, 1;")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.strips_todo}, 0;')} bra {self.end};")
        k.place(more)

    def _clear(self) -> None:
        for r in (r for tile in self.sums for r in tile):
            self.k.emit(f"mov.f32 {r}, {ZERO};")

    # --- sums and epilogue --------------------------------------------------------------------------------------------
    def _finish(self, first_row: str) -> None:
        """16 threads have a row of a panel; a cluster's block r has panels r, r + cluster, …"""
        k, g, e, v = self.k, self.kernel, self.e, self.k.value
        k.emit("bar.sync 0;")
        mine, column = v("i32", f"shr.u32 {{}}, {self.tid}, 4;"), v("i32", f"and.b32 {{}}, {self.tid}, 15;")
        here = v("i32", f"mad.lo.u32 {{}}, {column}, 4, {self.base};")
        assert g.acc is not None and g.row is not None and g.column is not None and isinstance(g.acc.type, TileType)
        at_once, lines = g.block // ROWS, g.per * self.rows
        if g.cluster > 1:
            for start in range(0, lines, at_once):
                row, panel, done = self._line(mine, start)
                k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {panel}, {self.count};')} bra {done};")
                total = self._total(self._place(here, panel, row, g.warps))
                k.emit(f"st.shared.f32 [{self._place(here, panel, row, 1)}+{self.block_at}], {total};")
                k.place(done)
            self._sync()
            lines = -(-g.per // g.cluster) * self.rows
        for start in range(0, lines, at_once):
            row, panel, done = self._line(mine, start)
            if g.cluster > 1:
                panel = v("i32", f"mad.lo.u32 {{}}, {panel}, {g.cluster}, {self.rank};")
            k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {panel}, {self.count};')} bra {done};")
            place = self._place(here, panel, row, g.warps if g.cluster == 1 else 1)
            total = self._total(place) if g.cluster == 1 else self._cluster_total(place)
            e.env[g.acc] = Regs(g.acc.type, {(0, 0): total})
            e.env[g.column] = v("i64", f"mul.wide.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.first}, {panel};')}, {ROWS};")
            e.env[g.row] = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'add.u32 {{}}, {first_row}, {row};')};")
            e.block(g.body)
            k.place(done)
        if g.cluster > 1:
            self._sync()  # nobody leaves while others read its memory

    def _sync(self) -> None:
        self.k.emit("barrier.cluster.arrive.aligned;")
        self.k.emit("barrier.cluster.wait.aligned;")

    def _line(self, mine: str, start: int) -> tuple[str, str, str]:
        """Row and panel of a thread's line, and where to go when there is none."""
        v = self.k.value
        number = v("i32", f"add.u32 {{}}, {mine}, {start};") if start else mine
        row = v("i32", f"and.b32 {{}}, {number}, {self.rows - 1};")
        return row, v("i32", f"shr.u32 {{}}, {number}, {self.rows.bit_length() - 1};"), self.k.label("line")

    def _place(self, here: str, panel: str, row: str, parts: int) -> str:
        """Where a panel's row lies, where a panel has so many parts."""
        v = self.k.value
        return v("i32", f"mad.lo.u32 {{}}, {row}, {PITCH}, {v('i32', f'mad.lo.u32 {{}}, {panel}, {parts * self.part}, {here};')};")

    def _total(self, place: str) -> str:
        """The sums of the warps."""
        v, total = self.k.value, ""
        for w in range(self.kernel.warps):
            part = v("float", f"ld.shared.f32 {{}}, [{place}+{self.sums_at + w * self.part}];")
            total = v("float", f"add.rn.f32 {{}}, {total}, {part};") if w else part
        return total

    def _cluster_total(self, place: str) -> str:
        """The sums of the blocks."""
        v, total = self.k.value, ""
        for r in range(self.kernel.cluster):
            there = v("i32", f"mapa.shared::cluster.u32 {{}}, {place}, {r};")
            part = v("float", f"ld.shared::cluster.f32 {{}}, [{there}+{self.block_at}];")
            total = v("float", f"add.rn.f32 {{}}, {total}, {part};") if r else part
        return total
