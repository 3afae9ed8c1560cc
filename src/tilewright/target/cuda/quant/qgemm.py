"""Products of many rows with packed matrices as PTX: quantized values become bf16 in registers, in the layout that `mma.sync` takes.

A block has `panels` panels of 16 rows of the matrix and `rows` rows of activations (bf16). Both come by `cp.async`: the matrix in units
(`kernels/quant/cuda/fragments.py`), the activations 64 columns at a time into a ring of `STAGES`. A warp has `tall` panels and `wide` times
eight rows. An element is one sum over K in order, whatever the tile is: all tiles give the same bits.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import QGemmKernel
from ....kernels.quant.cuda.fragments import COLUMNS, ROWS, Fragments
from ....kernels.quant.cuda.qgemm import HOPPER_STAGES, PAD, STAGES
from ....tile.ir import TileType, Var
from ..matmul.groups import PIECES, Groups
from ..ptx.text import KernelText, literal, module_text
from ..threads.access import Address
from ..threads.layout import Regs, Spots
from ..tiled.epilogue import Epilogue
from .qgemm_numbers import numbers_of

WORDS = ("panels", "rows", "groups")
NAME = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def emit_qgemm(kernel: QGemmKernel, target: TargetSpec) -> str:
    return QGemm(kernel).module(target)


def step_blocks(f: Fragments) -> int:
    """Blocks of 32 columns in a stage of activations."""
    return min(2, f.blocks)


def unit_stages(f: Fragments) -> int:
    """Units of the matrix that are kept: the next one is asked for when a unit begins."""
    return 2 if f.blocks > 2 else STAGES


def pitch_of(kernel: QGemmKernel) -> int:
    """Bytes of a row of activations in a stage."""
    return 2 * COLUMNS * step_blocks(Fragments(kernel.format, kernel.k)) + (0 if kernel.wgmma else PAD)


def qgemm_shared(kernel: QGemmKernel) -> int:
    (_, unit), (_, stage) = places(kernel)
    return unit_stages(Fragments(kernel.format, kernel.k)) * unit + (HOPPER_STAGES if kernel.wgmma else STAGES) * stage


def places(kernel: QGemmKernel) -> tuple[tuple[int, int], ...]:
    """First byte and bytes of a stage of both rings: of units, and of activations, which come first where they are swizzled."""
    f = Fragments(kernel.format, kernel.k)
    unit, stage = kernel.panels * f.bytes, kernel.rows * pitch_of(kernel)
    return ((HOPPER_STAGES * stage, unit), (0, stage)) if kernel.wgmma else ((0, unit), (unit_stages(f) * unit, stage))


class QGemm:
    ring = ".extern .shared .align 128 .b8 ring[];\n\n"
    stages, asked = STAGES, STAGES - 1  # stages of activations: in the ring, and in flight ahead of the one that is read
    shown: tuple[str, ...] = ("bar.sync 0;",)  # what makes a stage that has arrived readable for all

    def __init__(self, kernel: QGemmKernel) -> None:
        g = self.kernel = kernel
        self.f = Fragments(g.format, g.k)
        self.k = KernelText(g.name, [])
        assert g.acc is not None and isinstance(g.acc.type, TileType)
        self.share = g.wide // g.splits  # times eight rows of a warp that this block finishes
        self.count = self.f.units // g.splits  # units of a panel in this block
        self.eights = min(self.share, g.acc.type.shape[0] // 8)  # times eight rows of a warp that the epilogue has in hand at a time
        rows = tuple(8 * i + c for i in range(self.eights) for c in range(2))
        columns = tuple((16 * s + 8 * u,) for s in range(g.tall) for u in range(2))
        self.e = Epilogue(g, Spots(rows, columns, g.block), self.k)
        self.per = step_blocks(self.f)
        self.pitch = pitch_of(g)
        (self.units_from, self.unit_bytes), (self.stages_from, self.stage_bytes) = places(g)
        self.units = unit_stages(self.f)

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        e.parameters(WORDS)
        panels, rows, groups = (v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i in range(3))
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        self.warp, self.lane = v("i32", f"shr.u32 {{}}, {self.tid}, 5;"), v("i32", f"and.b32 {{}}, {self.tid}, 31;")
        self.line, self.quad = v("i32", f"shr.u32 {{}}, {self.lane}, 2;"), v("i32", f"and.b32 {{}}, {self.lane}, 3;")
        block = v("i32", "mov.u32 {}, %ctaid.x;")  # blocks of the same panels follow one another
        if g.splits > 1:
            self.rank = v("i32", "mov.u32 {}, %cluster_ctarank;")
            block = v("i32", f"shr.u32 {{}}, {block}, {g.splits.bit_length() - 1};")
        first_row = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {block}, {groups};')}, {g.rows};")
        first_panel = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {block}, {groups};')}, {g.panels};")
        ring = v("i32", "mov.u32 {}, ring;")
        self.base, self.stages_at = (v("i32", f"add.u32 {{}}, {ring}, {at};") if at else ring for at in (self.units_from, self.stages_from))
        self._matrix_copies(first_panel, panels)
        self._row_copies(first_row, rows)
        down = v("i32", f"rem.u32 {{}}, {self.warp}, {g.down};")
        right = v("i32", f"div.u32 {{}}, {self.warp}, {g.down};")
        self.numbers = numbers_of(k, self.f, self.lane, self.line)
        self.mine = v("i32", f"mad.lo.u32 {{}}, {down}, {g.tall * self.f.bytes}, {self.base};")
        # ldmatrix: lane l gives the address of row l%8 of columns 8·(l/8)
        row = v("i32", f"mad.lo.u32 {{}}, {right}, {8 * g.wide}, {v('i32', f'and.b32 {{}}, {self.lane}, 7;')};")
        eight = v("i32", f"bfe.u32 {{}}, {self.lane}, 3, 1;")
        self.reads = v("i32", f"mad.lo.u32 {{}}, {row}, {self.pitch}, {v('i32', f'mad.lo.u32 {{}}, {eight}, 16, {self.stages_at};')};")
        self.sums = [[[k.reg("float") for _ in range(4)] for _ in range(g.wide)] for _ in range(g.tall)]
        for r in (r for line in self.sums for four in line for r in four):
            k.emit(f"mov.f32 {r}, {literal('float', 0.0)};")
        self._loop()
        if g.splits > 1:
            first_row = self._gather(first_row, right)
        self._finish(first_row, first_panel, down, right)
        if g.splits > 1:
            self._sync()  # nobody leaves while others read its memory
        text = k.text([f".maxntid {g.block}, 1, 1"] + [f".reqnctapercluster {g.splits}, 1, 1"] * (g.splits > 1), target.cpu)
        return module_text(target.cpu, self.ring + text)

    def _place(self, piece: str) -> str:
        """Where a piece of a row goes."""
        return piece

    def _view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    # --- copies -------------------------------------------------------------------------------------------------------
    def _matrix_copies(self, first: str, panels: str) -> None:
        """Some warps copy one panel's unit each, 16 bytes a lane at a time."""
        k, g, v = self.k, self.kernel, self.k.value
        which = v("i32", f"rem.u32 {{}}, {self.warp}, {g.panels};")
        turn = v("i32", f"div.u32 {{}}, {self.warp}, {g.panels};")
        self.piece = v("i32", f"mad.lo.u32 {{}}, {turn}, 32, {self.lane};")
        panel = v("i32", f"add.u32 {{}}, {first}, {which};")
        inside = v("i1", f"setp.lt.u32 {{}}, {panel}, {panels};")
        self.panel_size = v("i32", f"selp.b32 {{}}, 16, 0, {inside};")
        panel = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'selp.b32 {{}}, {panel}, 0, {inside};')};")
        start = v("i64", f"mad.lo.s64 {{}}, {panel}, {self.f.units * self.f.bytes}, {self._view(g.weights).pointer};")
        if g.splits > 1:
            start = v("i64", f"mad.wide.u32 {{}}, {self.rank}, {self.count * self.f.bytes}, {start};")
        self.source = k.reg("i64")
        k.emit(f"mad.wide.u32 {self.source}, {self.piece}, 16, {start};")
        place = v("i32", f"mad.lo.u32 {{}}, {which}, {self.f.bytes}, {self.base};")
        self.place = v("i32", f"mad.lo.u32 {{}}, {self.piece}, 16, {place};")

    def _copy_unit(self, slot: str, guard: str | None) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        pieces, hop = self.f.bytes // 16, 32 * (g.warps // g.panels)
        to = v("i32", f"add.u32 {{}}, {self.place}, {slot};")
        for i in range(0, pieces, hop):
            size = self.panel_size
            when = guard
            if i + hop > pieces:
                when = v("i1", f"setp.lt.u32 {{}}, {self.piece}, {pieces - i};")
                when = when if guard is None else v("i1", f"and.pred {{}}, {when}, {guard};")
            k.emit(f"{f'@{when} ' if when else ''}cp.async.cg.shared.global [{to}+{16 * i}], [{self.source}+{16 * i}], 16, {size};")
        k.emit(f"add.s64 {self.source}, {self.source}, {self.f.bytes};")

    def _row_copies(self, first: str, rows: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        across = 2 * COLUMNS * self.per // 16
        piece = v("i32", f"and.b32 {{}}, {self.tid}, {across - 1};")
        self.own_row = v("i32", f"shr.u32 {{}}, {self.tid}, {across.bit_length() - 1};")
        self.row_hop = g.block // across
        self.rows_left = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {rows}, {first};')}, {self.own_row};")
        row = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'add.u32 {{}}, {first}, {self.own_row};')};")
        start = v("i64", f"mad.lo.s64 {{}}, {row}, {2 * g.k}, {self._view(g.x).pointer};")
        if g.splits > 1:
            start = v("i64", f"mad.wide.u32 {{}}, {self.rank}, {2 * g.k // g.splits}, {start};")
        self.row_source = k.reg("i64")
        k.emit(f"mad.wide.u32 {self.row_source}, {piece}, 16, {start};")
        to = v("i32", f"mad.lo.u32 {{}}, {self.own_row}, {self.pitch}, {self.stages_at};")
        self.row_place = v("i32", f"mad.lo.u32 {{}}, {self._place(piece)}, 16, {to};")

    def _copy_rows(self, slot: str, guard: str | None) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        to = v("i32", f"add.u32 {{}}, {self.row_place}, {slot};")
        for i in range(0, g.rows, self.row_hop):
            size = v("i32", f"selp.b32 {{}}, 16, 0, {v('i1', f'setp.gt.s32 {{}}, {self.rows_left}, {i};')};")
            when = guard
            if i + self.row_hop > g.rows:
                when = v("i1", f"setp.lt.u32 {{}}, {self.own_row}, {g.rows - i};")
                when = when if guard is None else v("i1", f"and.pred {{}}, {when}, {guard};")
            near = v("i64", f"add.s64 {{}}, {self.row_source}, {i * 2 * g.k};") if i else self.row_source
            k.emit(f"{f'@{when} ' if when else ''}cp.async.cg.shared.global [{to}+{i * self.pitch}], [{near}], 16, {size};")
        k.emit(f"add.s64 {self.row_source}, {self.row_source}, {2 * COLUMNS * self.per};")

    # --- the loop over K ----------------------------------------------------------------------------------------------
    def _loop(self) -> None:
        """Step s: wait for its stage, ask for stage s + `asked` in the place of the last that nobody reads any more, multiply."""
        k, v, f = self.k, self.k.value, self.f
        steps, ahead = f.blocks // self.per, self.units - 1  # steps of a unit; units in flight when the loop begins
        total = self.count * steps
        copies, flying = Groups(k, *PIECES), []
        for i in range(self.asked):
            if i < min(ahead, self.count):
                self._copy_unit(str(i * self.unit_bytes), None)
            if i < total:
                self._copy_rows(str(i * self.stage_bytes), None)
            flying.append(copies.commit())
        self._begin()
        read, write, unit_read, unit_write, unit, step = (k.reg("i32") for _ in range(6))
        firsts = (0, self.asked * self.stage_bytes, 0, ahead * self.unit_bytes, 0, self.asked)
        for reg, value in zip((read, write, unit_read, unit_write, unit, step), firsts, strict=True):
            k.emit(f"mov.u32 {reg}, {value};")
        top = k.label("unit")
        k.place(top)
        start = copies.in_flight
        for j in range(steps):
            copies.wait(flying.pop(0))
            for line in self.shown:
                k.emit(line)
            more = v("i1", f"setp.lt.u32 {{}}, {step}, {total};")
            if j == 0:
                next_unit = v("i32", f"add.u32 {{}}, {unit}, {ahead};")
                self._copy_unit(unit_write, v("i1", f"setp.lt.u32 {{}}, {next_unit}, {self.count};"))
            self._copy_rows(write, more)
            flying.append(copies.commit())
            self._multiply(j, v("i32", f"add.u32 {{}}, {self.mine}, {unit_read};"), read)
            k.emit(f"add.u32 {step}, {step}, 1;")
            for reg in (read, write):
                self._turn(reg, self.stage_bytes, self.stages)
        for reg in (unit_read, unit_write):
            self._turn(reg, self.unit_bytes, self.units)
        k.emit(f"add.u32 {unit}, {unit}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {unit}, {self.count};')} bra {top};")
        copies.again(start)
        copies.drain()
        self._end()

    def _begin(self) -> None:
        """Before the loop, while the first stages are in flight."""

    def _end(self) -> None:
        """Behind the loop."""

    def _turn(self, reg: str, size: int, count: int) -> None:
        self.k.emit(f"add.u32 {reg}, {reg}, {size};")
        self.k.emit(f"@{self.k.value('i1', f'setp.eq.u32 {{}}, {reg}, {size * count};')} mov.u32 {reg}, 0;")

    def _multiply(self, step: int, unit: str, rows: str) -> None:
        k, g = self.k, self.kernel
        rows = k.value("i32", f"add.u32 {{}}, {self.reads}, {rows};")
        for tall in range(g.tall):
            self.numbers.load(tall, unit, tall * self.f.bytes, step * self.per, self.per)
        for b in range(self.per):
            for half in range(2):
                a = [self.numbers.registers(tall, step * self.per + b, half) for tall in range(g.tall)]
                for i in range(g.wide):
                    two = [k.reg("i32") for _ in range(2)]
                    at = 8 * i * self.pitch + 2 * (COLUMNS * b + 16 * half)
                    k.emit(f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{{', '.join(two)}}}, [{rows}+{at}];")
                    for tall in range(g.tall):
                        c = ", ".join(self.sums[tall][i])
                        k.emit(f"{NAME} {{{c}}}, {{{', '.join(a[tall])}}}, {{{', '.join(two)}}}, {{{c}}};")

    # --- sums of a cluster --------------------------------------------------------------------------------------------
    def _sync(self) -> None:
        self.k.emit("barrier.cluster.arrive.aligned;")
        self.k.emit("barrier.cluster.wait.aligned;")

    def _gather(self, first_row: str, right: str) -> str:
        """All sums into shared memory, four of a thread side by side; this block's share of the rows is the sums of all blocks, in order.
        Gives its first row."""
        k, g, v = self.k, self.kernel, self.k.value
        k.emit("bar.sync 0;")
        here = v("i32", f"mad.lo.u32 {{}}, {self.tid}, 16, {v('i32', 'mov.u32 {}, ring;')};")
        for s, line in enumerate(self.sums):
            for i, four in enumerate(line):
                k.emit(f"st.shared.v4.f32 [{here}+{16 * g.block * (s * g.wide + i)}], {{{', '.join(four)}}};")
        self._sync()
        first = v("i32", f"mad.lo.u32 {{}}, {self.rank}, {16 * g.block * self.share}, {here};")
        there = [v("i32", f"mapa.shared::cluster.u32 {{}}, {first}, {r};") for r in range(g.splits)]
        for s, line in enumerate(self.sums):
            for i, own in enumerate(line[: self.share]):
                for r, at in enumerate(there):
                    found = own if r == 0 else [k.reg("float") for _ in own]
                    k.emit(f"ld.shared::cluster.v4.f32 {{{', '.join(found)}}}, [{at}+{16 * g.block * (s * g.wide + i)}];")
                    for a, b in zip(own, found if r else (), strict=False):
                        k.emit(f"add.rn.f32 {a}, {a}, {b};")
        self.sums = [line[: self.share] for line in self.sums]
        return v("i32", f"mad.lo.u32 {{}}, {self.rank}, {8 * self.share}, {first_row};")

    def _finish(self, first_row: str, first_panel: str, down: str, right: str) -> None:
        g, e, v = self.kernel, self.e, self.k.value
        assert g.acc is not None and g.row is not None and g.column is not None and isinstance(g.acc.type, TileType)
        row = v("i32", f"mad.lo.u32 {{}}, {right}, {8 * g.wide}, {v('i32', f'shl.b32 {{}}, {self.quad}, 1;')};")
        column = v("i32", f"mad.lo.u32 {{}}, {down}, {ROWS * g.tall}, {self.line};")
        e.corner = (v("i64", f"cvt.u64.u32 {{}}, {row};"), v("i64", f"cvt.u64.u32 {{}}, {column};"))
        e.env[g.column] = v("i64", f"mul.wide.u32 {{}}, {first_panel}, {ROWS};")
        for start in range(0, self.share, self.eights):
            at = v("i32", f"add.u32 {{}}, {first_row}, {8 * start};") if start else first_row
            e.env[g.row] = v("i64", f"cvt.u64.u32 {{}}, {at};")
            # number n of a fragment: row of the matrix line (+ 8 from the second on), activations 2·quad and 2·quad + 1
            e.env[g.acc] = Regs(g.acc.type, {
                (8 * i + n % 2, 16 * s + 8 * (n // 2)): r
                for s, line in enumerate(self.sums) for i, four in enumerate(line[start : start + self.eights]) for n, r in enumerate(four)
            })  # fmt: skip
            e.block(g.body)
