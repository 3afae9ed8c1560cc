"""Scores of attention forward in registers: soft cap, bias, masks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ....kernels.cuda.kernel import FlashKernel
from ..ptx.text import KernelText, literal
from ..threads.emit import Emitter

LOG2E = 1.0 / math.log(2.0)
INF = literal("float", -math.inf)


LEAST = literal("float", -3.4028234663852886e38)


def add_bias(k: KernelText, r: str, bias: str, dtype: str) -> None:
    """A bias onto a score in powers of two. The least bf16 is a number still: a row of them is an average, not a row that sees nothing."""
    k.emit(f"fma.rn.f32 {r}, {bias}, {literal('float', LOG2E)}, {r};")
    if dtype == "bf16":
        low, number = k.value("i1", f"setp.eq.f32 {{}}, {r}, {INF};"), k.value("i1", f"setp.gt.f32 {{}}, {bias}, {INF};")
        k.emit(f"@{k.value('i1', f'and.pred {{}}, {low}, {number};')} mov.f32 {r}, {LEAST};")


class FlashScores:
    """The part of `flash` between its products. A thread has two rows, eight apart, and two of every eight columns."""

    kernel: FlashKernel
    k: KernelText
    e: Emitter
    word: SimpleNamespace
    tid: str
    tile: str
    head: str
    batch: str
    row0: str
    scores: list[str]

    @property
    def changed(self) -> bool:
        """Scores are more than a multiple of the products: they are brought to powers of two before their maximum is taken."""
        g = self.kernel
        return g.softcap is not None or g.bias is not None or g.mask is not None or g.scale <= 0  # then the least product is the largest

    @property
    def factor(self) -> float:
        """What turns a score into an exponent of two."""
        return 1.0 if self.changed else self.kernel.scale * LOG2E

    def _extras(self) -> None:
        """For each piece of work: where the thread's first row of mask and bias is at its first column, and how many rows on its second."""
        g, v = self.kernel, self.k.value
        self.beside: dict[str, tuple[Any, str]] = {}
        if g.bias is None and g.mask is None:
            return
        row, column = self._place()
        last = v("i32", f"sub.u32 {{}}, {self.word.sq}, 1;")
        rows = [v("i32", f"min.u32 {{}}, {x}, {last};") for x in (row, v("i32", f"add.u32 {{}}, {row}, 8;"))]  # others are not stored
        self.apart = v("i32", f"sub.u32 {{}}, {rows[1]}, {rows[0]};")
        for name, view in (("bias", g.bias), ("mask", g.mask)):
            if view is not None:
                address, at = self.e.env[view], "0"
                for place, stride in zip((self.batch, self.head, rows[0], column), address.strides, strict=True):
                    at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {place};')}, {stride}, {at};")
                self.beside[name] = address, v("i64", f"mad.lo.s64 {{}}, {at}, {address.dtype.itemsize}, {address.pointer};")

    def _change(self, start: str) -> None:
        """Soft cap, bias and mask: scores become exponents of two, or −inf."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        room, at = "", {}
        if self.beside:
            room = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {w.sk}, {start};')}, {self._place()[1]};")
            wide = v("i64", f"cvt.s64.s32 {{}}, {start};")
            for name, (address, first) in self.beside.items():
                hop = v("i64", f"mul.lo.s64 {{}}, {wide}, {address.strides[3]};")
                at[name] = v("i64", f"mad.lo.s64 {{}}, {hop}, {address.dtype.itemsize}, {first};")
        for h in range(2):
            for name, (address, _) in self.beside.items() if h else ():
                hop = v("i64", f"mul.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {self.apart};')}, {address.strides[2]};")
                at[name] = v("i64", f"mad.lo.s64 {{}}, {hop}, {address.dtype.itemsize}, {at[name]};")
            columns = self._columns(h)
            for pair in (columns[i : i + 2] for i in range(0, len(columns), 2)):
                for r, _ in pair:
                    self._scaled(r)
                for some in (pair[i : i + g.together] for i in range(0, 2, g.together)):
                    inside = v("i1", f"setp.gt.s32 {{}}, {room}, {some[0][1]};") if at else ""
                    if "bias" in at:
                        for (r, _), x in zip(some, self._biases(at["bias"], some[0][1], inside), strict=True):
                            add_bias(k, r, x, g.dtype)
                    if "mask" in at:
                        seen = k.reg("i32")
                        k.emit(f"mov.b32 {seen}, -1;")
                        k.emit(f"@{inside} ld.global.u{8 * g.together} {seen}, [{self._moved(at['mask'], g.mask, some[0][1])}];")
                        for i, (r, _) in enumerate(some):
                            one = v("i32", f"and.b32 {{}}, {seen}, {0xFF << 8 * i};") if g.together > 1 else seen
                            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {one}, 0;')} mov.f32 {r}, {INF};")

    def _scaled(self, r: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        if g.softcap is None:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
            return
        power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
        power = v("float", f"ex2.approx.ftz.f32 {{}}, {power};")  # cap · tanh(x / cap) = cap − 2·cap / (exp(2x / cap) + 1)
        power = v("float", f"rcp.approx.ftz.f32 {{}}, {v('float', f'add.rn.f32 {{}}, {power}, 0f3F800000;')};")
        cap = g.softcap * LOG2E
        k.emit(f"fma.rn.f32 {r}, {power}, {literal('float', -2 * cap)}, {literal('float', cap)};")

    def _moved(self, at: str, view: object, column: int) -> str:
        """The address of a column relative to the thread's first."""
        address = self.e.env[view]  # type: ignore[index]
        stride, size = str(address.strides[3]), address.dtype.itemsize
        if stride in ("0", "1"):
            return f"{at}+{column * size * int(stride)}"
        return self.k.value("i64", f"mad.lo.s64 {{}}, {stride}, {column * size}, {at};")

    def _biases(self, at: str, column: int, inside: str) -> list[str]:
        """One bias, or two next to each other."""
        k, v, g = self.k, self.k.value, self.kernel
        halves, where = [k.reg("half") for _ in range(g.together)], self._moved(at, g.bias, column)
        if g.together == 1:
            k.emit(f"mov.b16 {halves[0]}, 0;")
            k.emit(f"@{inside} ld.global.b16 {halves[0]}, [{where}];")
        else:
            word = k.reg("i32")
            k.emit(f"mov.b32 {word}, 0;")
            k.emit(f"@{inside} ld.global.b32 {word}, [{where}];")
            if g.dtype == "bf16":
                upper = v("i32", f"and.b32 {{}}, {word}, -65536;")
                return [v("float", f"mov.b32 {{}}, {x};") for x in (v("i32", f"shl.b32 {{}}, {word}, 16;"), upper)]
            k.emit(f"mov.b32 {{{halves[0]}, {halves[1]}}}, {word};")
        if g.dtype == "f16":
            return [v("float", f"cvt.f32.f16 {{}}, {x};") for x in halves]
        bits = k.reg("i32")
        k.emit(f"mov.b32 {bits}, {{0, {halves[0]}}};")
        return [v("float", f"mov.b32 {{}}, {bits};")]

    def _limits(self) -> None:
        """Tiles that end before column `plain` need no mask; with a window, if they start from column `from_here` on."""
        g, v, w = self.kernel, self.k.value, self.word
        self.plain = w.sk
        seen = v("i32", f"add.s32 {{}}, {self.row0}, {w.offset};") if g.causal or g.windowed else ""
        if g.causal:
            self.plain = v("i32", f"min.s32 {{}}, {self.plain}, {v('i32', f'add.s32 {{}}, {seen}, 1;')};")
        if g.windowed:
            self.from_here = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {seen}, 64;')}, {w.window};")

    def _masked(self) -> None:
        """Soft cap, bias and masks: scores that are not seen become −inf."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        start = v("i32", f"mul.lo.u32 {{}}, {self.tile}, {g.keys};")
        if self.changed:
            self._change(start)
        skip = k.label("unmasked")
        clear = v("i1", f"setp.le.s32 {{}}, {v('i32', f'add.s32 {{}}, {start}, {g.keys};')}, {self.plain};")
        if g.windowed:
            clear = v("i1", f"and.pred {{}}, {clear}, {v('i1', f'setp.ge.s32 {{}}, {start}, {self.from_here};')};")
        k.emit(f"@{clear} bra {skip};")
        row, column = self._place()
        first = v("i32", f"add.s32 {{}}, {start}, {column};")  # the thread's
        for h in range(2):
            high = w.sk
            past = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {row}, {w.offset};')}, {8 * h + 1};")
            if g.causal:
                high = v("i32", f"min.s32 {{}}, {high}, {past};")
            room = v("i32", f"sub.s32 {{}}, {high}, {first};")
            floor = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {past}, {w.window};')}, {first};") if g.windowed else ""
            for r, c in self._columns(h):
                k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {room}, {c};')} mov.f32 {r}, {INF};")
                if g.windowed:
                    k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {floor}, {c};')} mov.f32 {r}, {INF};")
        k.place(skip)

    def _place(self) -> tuple[str, str]:
        """The first of the thread's two rows, and its first column in a tile; computed where it is needed: registers are scarce."""
        v = self.k.value
        lane, warp = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        row = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {lane};')}, {self.row0};")
        return row, v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 1;")

    def _columns(self, h: int) -> list[tuple[str, int]]:
        """The thread's scores in row h, and their columns relative to its first."""
        return [(self.scores[i + c], 2 * i - 4 * h + c) for i in range(h * 2, self.kernel.keys // 2, 4) for c in range(2)]
