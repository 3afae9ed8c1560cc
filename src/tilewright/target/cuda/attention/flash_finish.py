"""The last step of attention's backward pass on Hopper: dQ from sums in the order of registers. And what its kernels share."""

from __future__ import annotations

from types import SimpleNamespace

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import FlashGradKernel
from ....tile.ir import TileType, Var
from ..ptx.text import KernelText, literal, module_text
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs
from .flash_stats import ZERO

WORDS = ("sq", "sk", "offset", "window", "heads", "group", "q_tiles", "k_tiles", "padded", "chunk", "lines", "split")
PART = 64 * 64 * 4  # bytes of dQ of one warpgroup


class Common:
    """What both kernels share: argument words, pointers."""

    def __init__(self, kernel: FlashGradKernel, maps: int) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=maps)
        self.e = Emitter(kernel, Fragment(), self.k)
        self.e.parameters(WORDS)
        words = {n: self.k.value("i32", f"cvt.u32.u64 {{}}, {self.e.word(i)};") for i, n in enumerate(WORDS)}
        self.word = SimpleNamespace(**words)
        self.tid = self.k.value("i32", "mov.u32 {}, %tid.x;")

    def _pointer(self, var: Var | None) -> str:
        assert var is not None
        return str(self.e.env[var].pointer)

    def _store(self, sums: list[list[str]], **where: str) -> None:
        """Run the body over finished registers."""
        g, e = self.kernel, self.e
        for var, total in zip(g.sums, sums, strict=True):
            assert isinstance(var.type, TileType)
            values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(total)}
            e.env[var] = Regs(var.type, values)
        for name, reg in where.items():
            var = getattr(g, name)
            assert var is not None
            e.env[var] = self.k.value("i64", f"cvt.u64.u32 {{}}, {reg};")
        e.block(g.body)


class Finish(Common):
    """dQ from sums in the order of registers; tiles that no key block added to are zeros."""

    def __init__(self, kernel: FlashGradKernel) -> None:
        super().__init__(kernel, 0)

    def module(self, target: TargetSpec) -> str:
        g, k, v, w = self.kernel, self.k, self.k.value, self.word
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        tile, part = v("i32", f"shr.u32 {{}}, {block}, 1;"), v("i32", f"and.b32 {{}}, {block}, 1;")
        which, place = v("i32", f"div.u32 {{}}, {tile}, {w.q_tiles};"), v("i32", f"rem.u32 {{}}, {tile}, {w.q_tiles};")
        head, batch = v("i32", f"rem.u32 {{}}, {which}, {w.heads};"), v("i32", f"div.u32 {{}}, {which}, {w.heads};")
        added = v("i64", f"mad.wide.u32 {{}}, {tile}, 4, {self._pointer(g.turns)};")
        none = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'ld.global.u32 {{}}, [{added}];')}, 0;")
        at = v("i64", f"mad.wide.u32 {{}}, {block}, {PART}, {self._pointer(g.acc)};")
        row = v("i32", f"mul.lo.u32 {{}}, {place}, {g.queries};")
        column = v("i32", f"shl.b32 {{}}, {part}, 6;")
        if g.d == 64:
            row, column = v("i32", f"add.u32 {{}}, {row}, {column};"), v("i32", "mov.u32 {}, 0;")
        if g.out is not None:
            self._wide(at, none, row, column, head, batch)
        else:
            self._store([self._fragment(at, none)], row=row, head=head, batch=batch, column=column)
        return module_text(target.cpu, k.text([".maxntid 128, 1, 1"], target.cpu))

    def _scaled(self, at: str, offset: int, none: str) -> list[str]:
        k, four = self.k, [self.k.reg("float") for _ in range(4)]
        k.emit(f"ld.global.v4.f32 {{{', '.join(four)}}}, [{at}+{offset}];")
        for r in four:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', self.kernel.scale)};")
            k.emit(f"@{none} mov.f32 {r}, {ZERO};")
        return four

    def _fragment(self, at: str, none: str) -> list[str]:
        """The accumulators of one thread of a warpgroup."""
        mine = self.k.value("i64", f"mad.wide.u32 {{}}, {self.tid}, 16, {at};")
        return [r for j in range(8) for r in self._scaled(mine, 2048 * j, none)]

    def _wide(self, at: str, none: str, row: str, column: str, head: str, batch: str) -> None:
        """16 bytes a store: a thread takes what four neighbours had of rows r and r + 8, eight columns each."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        assert g.out is not None
        address = self.e.env[g.out]
        group = v("i32", f"and.b32 {{}}, {self.tid}, 7;")  # the group of eight columns
        column = v("i32", f"mad.lo.u32 {{}}, {group}, 8, {column};")
        strides = [str(x) for x in address.strides]
        base = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {batch};')}, {strides[0]}, 0;")
        base = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {head};')}, {strides[1]}, {base};")
        base = v("i64", f"add.s64 {{}}, {base}, {v('i64', f'cvt.u64.u32 {{}}, {column};')};")
        for half in range(2):
            line = v("i32", f"add.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 3;')}, {16 * half};")  # warp · 8 + row of its first eight
            from_ = v("i32", f"mad.lo.u32 {{}}, {line}, 64, {v('i32', f'mul.lo.u32 {{}}, {group}, 2048;')};")
            source = v("i64", f"add.s64 {{}}, {at}, {v('i64', f'cvt.u64.u32 {{}}, {from_};')};")
            fours = [self._scaled(source, 16 * c, none) for c in range(4)]
            inside = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'shr.u32 {{}}, {line}, 3;')}, 16, {v('i32', f'and.b32 {{}}, {line}, 7;')};")
            for h in range(2):
                mine = v("i32", f"add.u32 {{}}, {v('i32', f'add.u32 {{}}, {row}, {inside};')}, {8 * h};")
                packed = [v("i32", f"cvt.rn.{g.dtype}x2.f32 {{}}, {four[2 * h + 1]}, {four[2 * h]};") for four in fours]
                place = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {mine};')}, {strides[2]}, {base};")
                place = v("i64", f"add.s64 {{}}, {address.pointer}, {v('i64', f'shl.b64 {{}}, {place}, 1;')};")
                left = v("i1", f"setp.lt.u32 {{}}, {mine}, {w.sq};")
                if g.own != g.d:  # columns past the head's own are nowhere
                    left = v("i1", f"and.pred {{}}, {left}, {v('i1', f'setp.lt.u32 {{}}, {column}, {g.own};')};")
                k.emit(f"@{left} st.global.v4.b32 [{place}], {{{', '.join(packed)}}};")
