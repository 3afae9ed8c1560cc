"""The matrix product of every chip from sm_80 on, written as PTX: `cp.async` into a ring of shared-memory stages, then one of three cores:
`mma.sync` fed by `ldmatrix`, plain multiply-adds in f32 and f64 (`ring_cores`), or `mma.sync` in f64 (`ring_doubles`).

A block computes bm × bn; a stage holds 128 bytes of K of both operands. An operand whose rows lie along K is kept as rows of 128 bytes,
whose 16-byte pieces change places so that the readers of neighbouring rows meet different banks; one whose rows lie the other way is kept
as it lies. What is past an edge is filled with zeros by the copy itself. An element is one sum over K in order, whatever M, N and the batch
are.
"""

from __future__ import annotations

from ....core.dtypes import dtype
from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import RingKernel
from ....tile.ir import TileType
from ..ptx.text import KernelText, module_text
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Regs, Spots
from .groups import PIECES, Groups
from .ring_cores import Core, FmaCore, MmaCore, Side
from .ring_doubles import DoubleCore

WORDS = ("m", "n", "k", "tiles_m", "tiles_n")
LINE = 128  # bytes of K in a stage


def emit_ring(kernel: RingKernel, target: TargetSpec) -> str:
    return Ring(kernel).module(target)


def ring_shared(kernel: RingKernel) -> int:
    return kernel.stages * (kernel.bm + kernel.bn) * LINE


class Epilogue(Emitter):
    """Tile IR over the elements a thread holds; `corner` is its first one inside the block, (row, column)."""

    corner = ("0", "0")

    def base(self, shape: tuple[int, ...], axis: int) -> str:
        return self.corner[axis - len(shape) + 2]


class Ring:
    def __init__(self, kernel: RingKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.core: Core = {"fma": FmaCore, "mma": MmaCore}.get(kernel.core, DoubleCore)(self.k, kernel)
        self.e = Epilogue(kernel, self.core.spots, self.k)
        self.item = dtype(kernel.dtype).itemsize

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        e.parameters(WORDS)
        m, n, depth, tiles_m, tiles_n = (v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i in range(5))
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        row, column, batch = self._position(tiles_m, tiles_n)
        base = v("i32", "mov.u32 {}, ring;")
        sides = [
            self._side(g.a, g.bm, g.outer_a, row, m, depth, batch, base),
            self._side(g.b, g.bn, g.outer_b, column, n, depth, batch, v("i32", f"add.u32 {{}}, {base}, {g.bm * LINE};")),
        ]
        steps = v("i32", f"mul.lo.u32 {{}}, {depth}, {self.item};")
        steps = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {steps}, {LINE - 1};')}, {LINE.bit_length() - 1};")
        self.core.place(self.tid, sides)
        self._loop(sides, steps)
        self._finish(row, column, batch)
        text = k.text([f".maxntid {g.block}, 1, 1", f".minnctapersm {g.per_sm}"], target.cpu)
        fp8 = g.dtype.startswith("f8")
        return module_text(target.cpu, ".extern .shared .align 128 .b8 ring[];\n\n" + text, version="8.4" if fp8 else "8.0")

    def _position(self, tiles_m: str, tiles_n: str) -> tuple[str, str, str]:
        """First row and column and the batch of this block: groups of `group` rows of tiles, columns before rows inside a group."""
        v, g = self.k.value, self.kernel
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        area = v("i32", f"mul.lo.u32 {{}}, {tiles_m}, {tiles_n};")
        batch, inside = v("i32", f"div.u32 {{}}, {block}, {area};"), v("i32", f"rem.u32 {{}}, {block}, {area};")
        per = v("i32", f"mul.lo.u32 {{}}, {tiles_n}, {g.group};")
        which, within = v("i32", f"div.u32 {{}}, {inside}, {per};"), v("i32", f"rem.u32 {{}}, {inside}, {per};")
        first = v("i32", f"mul.lo.u32 {{}}, {which}, {g.group};")
        height = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {tiles_m}, {first};')}, {g.group};")
        i = v("i32", f"add.u32 {{}}, {first}, {v('i32', f'rem.u32 {{}}, {within}, {height};')};")
        j = v("i32", f"div.u32 {{}}, {within}, {height};")
        return v("i32", f"mul.lo.u32 {{}}, {i}, {g.bm};"), v("i32", f"mul.lo.u32 {{}}, {j}, {g.bn};"), batch

    # --- copies -------------------------------------------------------------------------------------------------------
    def _side(self, view: object, rows: int, outer: bool, first: str, limit: str, depth: str, batch: str, base: str) -> Side:
        """Where this thread's pieces of an operand come from and go to. `left` counts what is inside along the axis that moves with the
        stages, `room` bytes (K outside) or rows along the other."""
        k, v, g, item = self.k, self.k.value, self.kernel, self.item
        address = self.e.env[view]  # type: ignore[index]
        assert isinstance(address, Address)
        strides = [v("i64", f"mul.lo.s64 {{}}, {s}, {item};") if s.startswith("%") else str(int(s) * item) for s in address.strides]
        across = rows * item // 16 if outer else LINE // 16  # pieces of a line
        piece = v("i32", f"and.b32 {{}}, {self.tid}, {across - 1};")
        line = v("i32", f"shr.u32 {{}}, {self.tid}, {across.bit_length() - 1};")
        hop = g.block // across  # lines between two pieces of a thread
        step = strides[2] if outer else strides[1]  # bytes between lines
        start = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {batch};')}, {strides[0]}, {address.pointer};")
        corner = v("i64", f"cvt.u64.u32 {{}}, {first};")
        start = v("i64", f"mad.lo.s64 {{}}, {corner}, {strides[1]}, {start};")
        start = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {line};')}, {step}, {start};")
        start = v("i64", f"add.s64 {{}}, {start}, {v('i64', f'mul.wide.u32 {{}}, {piece}, 16;')};")
        at = k.reg("i64")
        k.emit(f"mov.b64 {at}, {start};")
        after = v("i32", f"sub.s32 {{}}, {limit}, {first};")  # rows of the operand from here on
        left = k.reg("i32")
        if outer:
            bytes_ = v("i32", f"mul.lo.s32 {{}}, {after}, {item};")
            room = v("i32", f"sub.s32 {{}}, {bytes_}, {v('i32', f'shl.b32 {{}}, {piece}, 4;')};")
            room = v("i32", f"min.s32 {{}}, {v('i32', f'max.s32 {{}}, {room}, 0;')}, 16;")
            k.emit(f"sub.s32 {left}, {depth}, {line};")
        else:
            room = v("i32", f"sub.s32 {{}}, {after}, {line};")
            bytes_ = v("i32", f"mul.lo.s32 {{}}, {depth}, {item};")
            k.emit(f"sub.s32 {left}, {bytes_}, {v('i32', f'shl.b32 {{}}, {piece}, 4;')};")
        moved = self.core.moved(line, outer)
        place = v("i32", f"shl.b32 {{}}, {v('i32', f'xor.b32 {{}}, {piece}, {moved};')}, 4;")
        place = v("i32", f"mad.lo.u32 {{}}, {line}, {across * 16}, {v('i32', f'add.u32 {{}}, {base}, {place};')};")
        skip = v("i64", f"mul.lo.s64 {{}}, {step}, {hop};") if step.startswith("%") else str(int(step) * hop)
        jump = str(LINE) if not outer else v("i64", f"mul.lo.s64 {{}}, {step}, {LINE // item};") if step.startswith("%") else ""
        return Side(base, rows, outer, at, left, room, place, hop, skip, jump or str(int(step) * (LINE // item)), across * 16)

    def _copy(self, side: Side, slot: str) -> None:
        """This thread's pieces of the next stage; past the end nothing is read and zeros are written."""
        k, v = self.k, self.k.value
        to = v("i32", f"add.u32 {{}}, {side.place}, {slot};")
        at = side.at
        lines = LINE // self.item if side.outer else side.rows
        if not side.outer:
            size = v("i32", f"min.s32 {{}}, {v('i32', f'max.s32 {{}}, {side.left}, 0;')}, 16;")
        for i in range(0, lines, side.hop):
            inside = v("i1", f"setp.gt.s32 {{}}, {side.left if side.outer else side.room}, {i};")
            n = v("i32", f"selp.b32 {{}}, {side.room if side.outer else size}, 0, {inside};")
            k.emit(f"cp.async.cg.shared.global [{to}+{i * side.pitch}], [{at}], 16, {n};")
            if i + side.hop < lines:
                at = v("i64", f"add.s64 {{}}, {at}, {side.skip};")
        k.emit(f"add.s64 {side.at}, {side.at}, {side.jump};")
        k.emit(f"sub.s32 {side.left}, {side.left}, {LINE // self.item if side.outer else LINE};")

    def _loop(self, sides: list[Side], steps: str) -> None:
        k, v, g = self.k, self.k.value, self.kernel
        stage, whole = (g.bm + g.bn) * LINE, ring_shared(g)
        copies, ahead = Groups(k, *PIECES), []
        for s in range(g.stages - 1):
            for side in sides:
                self._copy(side, str(s * stage))
            ahead.append(copies.commit())
        read, write, step = k.reg("i32"), k.reg("i32"), k.reg("i32")
        for reg, value in ((read, 0), (write, (g.stages - 1) * stage), (step, 0)):
            k.emit(f"mov.u32 {reg}, {value};")
        top = k.label("stage")
        k.place(top)
        start = copies.under_way
        copies.wait(ahead[0])  # a round later it is the next one
        k.emit("bar.sync 0;")
        for side in sides:
            self._copy(side, write)
        copies.commit()
        copies.again(start)
        self.core.multiply(read)
        for reg in (read, write):
            k.emit(f"add.u32 {reg}, {reg}, {stage};")
            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {reg}, {whole};')} mov.u32 {reg}, 0;")
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {steps};')} bra {top};")
        copies.drain()

    def _finish(self, row: str, column: str, batch: str) -> None:
        g, e, v = self.kernel, self.e, self.k.value
        assert g.acc is not None and g.row is not None and g.column is not None and g.batch is not None
        assert isinstance(g.acc.type, TileType) and isinstance(e.layout, Spots)
        e.corner = self.core.corner()
        e.env[g.batch], e.env[g.column] = (v("i64", f"cvt.u64.u32 {{}}, {r};") for r in (batch, column))
        wide = v("i64", f"cvt.u64.u32 {{}}, {row};")
        for offset, values in self.core.slices():
            e.env[g.row] = v("i64", f"add.s64 {{}}, {wide}, {offset};") if offset else wide
            e.env[g.acc] = Regs(g.acc.type, values)
            e.block(g.body)
