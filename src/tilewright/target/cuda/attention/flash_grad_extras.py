"""Soft cap, bias and mask of a tile of scores in attention's backward pass, and the scores' cotangent on its way to memory.

Rows are keys, columns are queries, so a thread has two keys, eight apart, of two of every eight queries. A soft cap's slope is needed
later, with no registers to keep it in: it waits, rounded, in the place that the warp's dS takes afterwards.
"""

from __future__ import annotations

from ....tile.ir import Var
from ..ptx.text import literal
from .flash_grad_scores import Scores
from .flash_stats import LOG2E, NEVER

ONE = literal("float", 1.0)
AT_ONCE = 8  # scores whose mask and bias are under way together
LINE = 512  # bytes of 16 for every thread of a warp


class Extras(Scores):
    ds_warp: str  # where the rows of dS of this thread's warp lie, and of them this thread's 16 bytes
    ds_bytes: int
    ds_half: int  # bytes from the first 64 queries of dS to the next

    def _here(self, first: str, head: str, views: tuple[Var | None, ...]) -> None:
        """For a tile of queries: where the thread's keys are in these views, and which of its queries exist."""
        v, w = self.k.value, self.word
        start = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        self.room = v("i32", f"sub.s32 {{}}, {w.sq}, {start};")
        keys = [self.row, v("i32", f"add.s32 {{}}, {self.row}, 8;")]
        self.inside = [v("i1", f"setp.lt.s32 {{}}, {key}, {w.sk};") for key in keys]
        self.spots: dict[Var, list[str]] = {}
        for var in (x for x in views if x is not None):
            address = self.e.env[var]
            at = "0"
            for place, stride in zip((self.batch, head, start), address.strides[:3], strict=True):
                at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {place};')}, {stride}, {at};")
            here = [v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {key};')}, {address.strides[3]}, {at};") for key in keys]
            self.spots[var] = [v("i64", f"mad.lo.s64 {{}}, {x}, {address.dtype.itemsize}, {address.pointer};") for x in here]

    def _spot(self, var: Var, i: int) -> tuple[str, str]:
        """Address of the score of a register in a view, and whether it is there."""
        v, h, column = self.k.value, i % 4 // 2, 8 * (i // 4) + i % 2
        address = self.e.env[var]
        there = v("i1", f"setp.gt.s32 {{}}, {self.room}, {column};")
        there = v("i1", f"and.pred {{}}, {there}, {self.inside[h]};")
        at, stride, size = self.spots[var][h], str(address.strides[2]), address.dtype.itemsize
        if not stride.startswith("%"):
            return f"{at}+{column * size * int(stride)}", there
        return v("i64", f"mad.lo.s64 {{}}, {stride}, {column * size}, {at};"), there

    def _change(self, s: list[str], step: str, first: str, head: str) -> None:
        """Scores become exponents of two, or −inf where the mask says so."""
        k, g, v = self.k, self.kernel, self.k.value
        self._here(first, head, (g.mask, g.bias))
        if g.softcap is not None:
            odd = v("i32", f"and.b32 {{}}, {step}, 1;")
            self.slopes = v("i32", f"mad.lo.u32 {{}}, {odd}, {self.ds_bytes}, {self.ds_warp};")
        held: list[str] = []
        for i, r in enumerate(s):
            self._pause(i)
            if g.softcap is not None:  # cap · tanh(x / cap) = cap − 2·cap·y with y = 1 / (exp(2x / cap) + 1); its slope is 4·y·(1 − y)
                power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
                power = v("float", f"add.rn.f32 {{}}, {v('float', f'ex2.approx.ftz.f32 {{}}, {power};')}, {ONE};")
                y = v("float", f"rcp.approx.ftz.f32 {{}}, {power};")
                cap = g.softcap * LOG2E
                k.emit(f"fma.rn.f32 {r}, {y}, {literal('float', -2 * cap)}, {literal('float', cap)};")
                rest = v("float", f"sub.rn.f32 {{}}, {ONE}, {y};")
                slope = v("float", f"mul.rn.f32 {{}}, {y}, {literal('float', 4.0)};")
                held.append(v("float", f"mul.rn.f32 {{}}, {slope}, {rest};"))
                if len(held) == 8:
                    words = [v("i32", f"cvt.rn.{g.dtype}x2.f32 {{}}, {held[2 * n + 1]}, {held[2 * n]};") for n in range(4)]
                    k.emit(f"st.shared.v4.b32 [{self.slopes}+{self._slope(i // 8)}], {{{', '.join(words)}}};")
                    held = []
            else:
                k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
            if g.bias is not None:
                k.emit(f"fma.rn.f32 {r}, {self._bias(g.bias, i)}, {literal('float', LOG2E)}, {r};")
            if g.mask is not None:
                at, there = self._spot(g.mask, i)
                seen = k.reg("i32")
                k.emit(f"mov.b32 {seen}, 1;")
                k.emit(f"@{there} ld.global.u8 {seen}, [{at}];")
                k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {seen}, 0;')} mov.f32 {r}, {NEVER};")

    def _pause(self, i: int) -> None:
        """Loads and stores of later scores stay behind: there are no registers for all of them."""
        if i and i % AT_ONCE == 0 and self.spots:
            self.k.emit("bar.warp.sync -1;")

    def _bias(self, var: Var, i: int) -> str:
        k, v, half = self.k, self.k.value, self.k.reg("half")
        at, there = self._spot(var, i)
        k.emit(f"mov.b16 {half}, 0;")
        k.emit(f"@{there} ld.global.b16 {half}, [{at}];")
        if self.kernel.dtype == "f16":
            return v("float", f"cvt.f32.f16 {{}}, {half};")
        return v("float", f"mov.b32 {{}}, {v('i32', f'mov.b32 {{}}, {{0, {half}}};')};")

    def _slope(self, n: int) -> int:
        """Where the n-th 16 bytes of a thread's slopes lie."""
        return n % 4 * LINE + n // 4 * self.ds_half

    def _bend(self, dp: list[str]) -> None:
        """The scores' cotangent becomes that of the products."""
        k = self.k
        for n in range(len(dp) // 8):
            words = [k.reg("i32") for _ in range(4)]
            k.emit(f"ld.shared.v4.b32 {{{', '.join(words)}}}, [{self.slopes}+{self._slope(n)}];")
            for i in range(8):
                r = dp[8 * n + i]
                k.emit(f"mul.rn.f32 {r}, {r}, {self._rounded(words[i // 2], i % 2)};")
        k.emit("bar.warp.sync -1;")  # dS takes the slopes' place

    def _store_scores(self, dp: list[str], first: str, head: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        assert g.scores is not None
        self._here(first, head, (g.scores,))
        for i in range(0, len(dp), 2):
            self._pause(i)
            pair = v("i32", f"cvt.rn.{g.dtype}x2.f32 {{}}, {dp[i + 1]}, {dp[i]};")
            halves = [k.reg("half"), k.reg("half")]
            k.emit(f"mov.b32 {{{', '.join(halves)}}}, {pair};")
            for c in range(2):
                at, there = self._spot(g.scores, i + c)
                k.emit(f"@{there} st.global.b16 [{at}], {halves[c]};")
