"""Scores, weights and their cotangents of attention's backward pass on `mma.sync`, in registers: own rows, and columns of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

from ....kernels.attention.cuda.flash_kernels import MmaGradKernel
from ....tile.ir import Var
from ..ptx.text import KernelText, literal
from ..threads.access import Address
from ..threads.emit import Emitter

LOG2E = 1.0 / math.log(2.0)
NEVER, ZERO, ONE, FOUR = (literal("float", x) for x in (-math.inf, 0.0, 1.0, 4.0))
OWN = 64  # rows of a block


class GradScores:
    """The part of `attention_mma_grad` between its products. A thread has two own rows, eight apart, and two of every eight columns."""

    kernel: MmaGradKernel
    k: KernelText
    e: Emitter
    name: str  # the name of the instruction
    batch: str
    pitch: int  # bytes of a row in shared memory
    w: SimpleNamespace
    of_keys: bool  # own rows are keys, columns are queries
    rows: list[str]
    quad: str
    head: str
    first: str
    own_end: str
    end: str

    def _view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    def _wide(self, x: str) -> str:
        return self.k.value("i64", f"cvt.u64.u32 {{}}, {x};")

    def _head(self, view: Address, head: str, item: int) -> str:
        """The address of a head's first element."""
        v, pointer = self.k.value, view.pointer
        for x, stride in ((self.batch, view.strides[0]), (head, view.strides[1])):
            if stride != "0":
                step = v("i64", f"mul.lo.s64 {{}}, {self._wide(x)}, {stride};")
                pointer = v("i64", f"mad.lo.s64 {{}}, {step}, {item}, {pointer};")
        return pointer

    def _matrices(self, at: str, trans: str = "") -> list[str]:
        regs = [self.k.reg("i32") for _ in range(4)]
        self.k.emit(f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{{', '.join(regs)}}}, [{at}];")
        return regs

    def _mma(self, acc: list[str], a: list[str], b: list[str]) -> None:
        c = ", ".join(acc)
        self.k.emit(f"{self.name} {{{c}}}, {{{', '.join(a)}}}, {{{', '.join(b)}}}, {{{c}}};")

    def _add_product(self, total: list[str], left: list[list[str]], right: str, start: int) -> None:
        """total += left · the matrix that begins `start` bytes after `right`; left has four numbers of a thread for eight columns."""

        def pair(low: str, high: str) -> str:
            return self.k.value("i32", f"cvt.rn.{self.kernel.dtype}x2.f32 {{}}, {high}, {low};")

        for c in range(0, 8 * len(left), 16):
            upper, lower = left[c // 8], left[c // 8 + 1]
            a = [pair(*upper[:2]), pair(*upper[2:]), pair(*lower[:2]), pair(*lower[2:])]
            for n in range(0, self.kernel.d, 16):
                b = self._matrices(f"{right}+{start + c * self.pitch + 2 * n}", ".trans")
                self._mma(total[n // 2 : n // 2 + 4], a, b[:2])
                self._mma(total[n // 2 + 4 : n // 2 + 8], a, b[2:])

    def _line(self, head: str) -> str:
        return self.k.value("i32", f"mad.lo.u32 {{}}, {self.batch}, {self.w.heads}, {head};")

    def _own_statistics(self) -> None:
        """Logsumexps and δ of own rows, where these are queries."""
        v, w, g = self.k.value, self.w, self.kernel
        self.stats: list[list[str]] = []
        if not self.of_keys:
            at = [v("i32", f"mad.lo.u32 {{}}, {self._line(self.head)}, {w.padded}, {row};") for row in self.rows]
            for var in (g.lse, g.delta):
                places = [v("i64", f"mad.wide.u32 {{}}, {x}, 4, {self._view(var).pointer};") for x in at]
                self.stats.append([v("float", f"ld.global.f32 {{}}, [{place}];") for place in places])

    def _statistic(self, which: int, start: str, n: int, i: int, held: dict[int, list[str]]) -> str:
        """Logsumexp (0) or δ (1) of register i of four of a tile's n-th eight columns."""
        if not self.of_keys:
            return self.stats[which][i // 2]
        if n not in held:
            held[n] = [self.k.reg("float"), self.k.reg("float")]
            self.k.emit(f"ld.global.v2.f32 {{{', '.join(held[n])}}}, [{start}+{32 * n}];")
        return held[n][i % 2]

    def _statistics_of(self, var: Var | None, first: str, head: str) -> str:
        """Where a tile's logsumexps or δ begin for this thread, where the tile is of queries."""
        if not self.of_keys:
            return ""
        v = self.k.value
        at = v("i32", f"mad.lo.u32 {{}}, {self._line(head)}, {self.w.padded}, {v('i32', f'add.u32 {{}}, {first}, {self.quad};')};")
        return v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self._view(var).pointer};")

    @staticmethod
    def _each(four: list[list[str]]) -> Iterator[tuple[int, int, int, str]]:
        """(n-th eight columns, register of four, column relative to the thread's first, register)."""
        return ((n, i, 8 * n + i % 2, r) for n, regs in enumerate(four) for i, r in enumerate(regs))

    # --- who sees whom ------------------------------------------------------------------------------------------------
    def _limits(self, first: str) -> None:
        """For a tile: how many of the thread's columns exist, and between which columns each of its rows sees, or is seen."""
        g, v, w = self.kernel, self.k.value, self.w
        start = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        self.room = v("i32", f"sub.s32 {{}}, {self.end}, {start};")
        self.inside = [v("i1", f"setp.lt.s32 {{}}, {row}, {self.own_end};") for row in self.rows]
        self.low: list[list[str]] = [[], []]  # columns from here on, up to there
        self.high: list[list[str]] = [[], []]
        for h, row in enumerate(self.rows):
            level = v("i32", f"{'sub' if self.of_keys else 'add'}.s32 {{}}, {row}, {w.offset};")
            level = v("i32", f"sub.s32 {{}}, {level}, {start};")  # the diagonal
            if g.causal:
                (self.low if self.of_keys else self.high)[h].append(level)
            if g.windowed and self.of_keys:
                self.high[h].append(v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {level}, {w.window};')}, 1;"))
            elif g.windowed:
                self.low[h].append(v("i32", f"add.s32 {{}}, {v('i32', f'sub.s32 {{}}, {level}, {w.window};')}, 1;"))

    def _seen(self, h: int, column: int) -> str:
        v = self.k.value
        tests = [f"setp.gt.s32 {{}}, {self.room}, {column};", *(f"setp.le.s32 {{}}, {x}, {column};" for x in self.low[h])]
        seen = self.inside[h]
        for test in (*tests, *(f"setp.ge.s32 {{}}, {x}, {column};" for x in self.high[h])):
            seen = v("i1", f"and.pred {{}}, {seen}, {v('i1', test)};")
        return seen

    def _whole(self, first: str) -> str:
        """Whether all own rows and all rows of the tile exist and see one another."""
        g, v, w = self.kernel, self.k.value, self.w
        ends = [v("i32", f"add.s32 {{}}, {x}, {n};") for x, n in ((self.first, OWN), (first, g.tile))]
        whole = v("i1", f"setp.le.s32 {{}}, {ends[0]}, {self.own_end};")
        whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.le.s32 {{}}, {ends[1]}, {self.end};')};")
        own, tile = (self.first, ends[0]), (first, ends[1])
        (keys, past_keys), (queries, past) = (own, tile) if self.of_keys else (tile, own)
        if g.causal:  # the first query sees the last key
            sees = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {queries}, {w.offset};')}, 1;")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.le.s32 {{}}, {past_keys}, {sees};')};")
        if g.windowed:  # the last query still sees the first key
            least = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {past}, {w.offset};')}, {w.window};")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.ge.s32 {{}}, {keys}, {least};')};")
        return whole

    # --- scores -------------------------------------------------------------------------------------------------------
    def _spots(self, var: Var, head: str) -> tuple[list[str], str]:
        """Addresses of the thread's two rows in a view [batch, head, query, key] at its first column, and the bytes between columns."""
        v, view = self.k.value, self._view(var)
        item, own, other = view.dtype.itemsize, *((3, 2) if self.of_keys else (2, 3))
        at = self._head(view, head, item)
        start = v("i64", f"mul.lo.s64 {{}}, {self._wide(self.start_column)}, {view.strides[other]};")
        at = v("i64", f"mad.lo.s64 {{}}, {start}, {item}, {at};")
        hops = [v("i64", f"mul.lo.s64 {{}}, {self._wide(row)}, {view.strides[own]};") for row in self.rows]
        step = view.strides[other]
        step = v("i64", f"mul.lo.s64 {{}}, {step}, {item};") if step.startswith("%") else str(int(step) * item)
        return [v("i64", f"mad.lo.s64 {{}}, {hop}, {item}, {at};") for hop in hops], step

    def _spot(self, spots: tuple[list[str], str], h: int, column: int) -> str:
        bases, step = spots
        if not step.startswith("%"):
            return f"{bases[h]}+{column * int(step)}"
        return self.k.value("i64", f"mad.lo.s64 {{}}, {step}, {column}, {bases[h]};")

    def _weights(self, s: list[list[str]], first: str, head: str) -> list[str]:
        """Scores become weights, in place; gives the slopes of a soft cap."""
        k, g, v = self.k, self.kernel, self.k.value
        self._limits(first)
        self.start_column = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        query_head = head if self.of_keys else self.head
        views = {var: self._spots(var, query_head) for var in (g.mask, g.bias, g.scores) if var is not None}
        self.score_spots = views[g.scores] if g.scores is not None else None
        slopes = []
        for _n, i, column, r in self._each(s):
            if g.softcap is not None:  # cap · tanh(x / cap) = cap − 2·cap·y with y = 1 / (exp(2x / cap) + 1); its slope is 4·y·(1 − y)
                power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
                power = v("float", f"add.rn.f32 {{}}, {v('float', f'ex2.approx.ftz.f32 {{}}, {power};')}, {ONE};")
                y, cap = v("float", f"rcp.approx.ftz.f32 {{}}, {power};"), g.softcap * LOG2E
                k.emit(f"fma.rn.f32 {r}, {y}, {literal('float', -2 * cap)}, {literal('float', cap)};")
                rest = v("float", f"sub.rn.f32 {{}}, {ONE}, {y};")
                slopes.append(v("float", f"mul.rn.f32 {{}}, {v('float', f'mul.rn.f32 {{}}, {y}, {FOUR};')}, {rest};"))
            else:
                k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
            if g.mask is None and g.bias is None:
                continue
            seen = self._seen(i // 2, column)
            if g.bias is not None:
                k.emit(f"fma.rn.f32 {r}, {self._bias(self._spot(views[g.bias], i // 2, column), seen)}, {literal('float', LOG2E)}, {r};")
            if g.mask is not None:
                told = k.reg("i32")
                k.emit(f"mov.b32 {told}, 0;")
                k.emit(f"@{seen} ld.global.u8 {told}, [{self._spot(views[g.mask], i // 2, column)}];")
                seen = v("i1", f"setp.ne.u32 {{}}, {told}, 0;")
            k.emit(f"selp.f32 {r}, {r}, {NEVER}, {seen};")
        if g.mask is None and g.bias is None:
            skip = k.label("unmasked")
            k.emit(f"@{self._whole(first)} bra {skip};")
            for _n, i, column, r in self._each(s):
                k.emit(f"selp.f32 {r}, {r}, {NEVER}, {self._seen(i // 2, column)};")
            k.place(skip)
        held: dict[int, list[str]] = {}
        start = self._statistics_of(g.lse, first, head)
        for n, i, _column, r in self._each(s):
            k.emit(f"sub.rn.f32 {r}, {r}, {self._statistic(0, start, n, i, held)};")
            k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
        return slopes

    def _bias(self, at: str, seen: str) -> str:
        k, v, half = self.k, self.k.value, self.k.reg("half")
        k.emit(f"mov.b16 {half}, 0;")
        k.emit(f"@{seen} ld.global.b16 {half}, [{at}];")
        if self.kernel.dtype == "f16":
            return v("float", f"cvt.f32.f16 {{}}, {half};")
        return v("float", f"mov.b32 {{}}, {v('i32', f'mov.b32 {{}}, {{0, {half}}};')};")

    def _cotangents(self, p: list[list[str]], dp: list[list[str]], first: str, head: str) -> None:
        """dS = P·(dP − δ), in the registers of dP."""
        held: dict[int, list[str]] = {}
        start = self._statistics_of(self.kernel.delta, first, head)
        weights = [r for four in p for r in four]
        for weight, (n, i, _column, r) in zip(weights, self._each(dp), strict=True):
            self.k.emit(f"sub.rn.f32 {r}, {r}, {self._statistic(1, start, n, i, held)};")
            self.k.emit(f"mul.rn.f32 {r}, {r}, {weight};")

    def _store_scores(self, ds: list[list[str]]) -> None:
        """The scores' cotangent; what nobody sees is zero."""
        k, v, spots = self.k, self.k.value, self.score_spots
        assert spots is not None and self.kernel.scores is not None
        for _n, i, column, r in self._each(ds):
            half = v("half", f"cvt.rn.{self.kernel.dtype}.f32 {{}}, {r};")
            there = v("i1", f"and.pred {{}}, {self.inside[i // 2]}, {v('i1', f'setp.gt.s32 {{}}, {self.room}, {column};')};")
            k.emit(f"@{there} st.global.b16 [{self._spot(spots, i // 2, column)}], {half};")
