"""Attention's softmax without the maximum in its way: exponentials relative to what the tiles before have shown.

A tile's weights are 2^(score − level), where the level is the largest score of an earlier tile. They may be above 1: nothing is lost as
long as they stay far from overflow, which their sum, wanted anyway, tells. Where the sum of a thread's part of a row passes 2^`LIMIT`, the
warp becomes careful: in this tile, whose weights are computed again, and in the others of this piece of work it looks for the rows' maxima
first. A level that a maximum passes by more than `LIMIT` is raised to `ROOM` above it, and what was summed before is rescaled. Whether a
level is raised depends on that row alone: its bits do not depend on the others of its warp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ptx.text import literal
from .flash_scores import INF, FlashScores

# powers of two; f16 must hold a single weight, and lose none that counts. With bf16, f32 holds sums of values up to 2^90.
LIMIT, ROOM = {"bf16": 32, "f16": 13}, {"bf16": 32, "f16": 6}
UNSEEN = literal("float", float.fromhex("0x1.fffffep127"))  # −level of a row that has seen nothing: a score gives inf, −inf gives 0


class FlashWeights(FlashScores):
    """Weights go to registers of their own: scores stay until the sum is known to be small."""

    base: list[str]  # −level of the thread's rows
    total: list[str]  # their sums
    fade: list[str]  # what was summed before is multiplied by this
    careful: str  # whether this warp looks for maxima first

    def _powers(self, weights: Sequence[str]) -> list[str]:
        """The tile's weights, in pairs; gives the sums of the thread's parts of its rows."""
        k, v = self.k, self.k.value
        scale = literal("float", self.factor)
        sums: list[list[str]] = [[], []]
        for i, w in enumerate(weights):
            h, turn = i % 2, i // 2
            powers = [v("float", f"fma.rn.f32 {{}}, {x}, {scale}, {self.base[h]};") for x in self.scores[2 * i : 2 * i + 2]]
            low, high = (v("float", f"ex2.approx.ftz.f32 {{}}, {x};") for x in powers)
            k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {high}, {low};")
            both = v("float", f"add.rn.f32 {{}}, {low}, {high};")
            if turn < 2:
                sums[h].append(both)
            else:
                sums[h][turn % 2] = v("float", f"add.rn.f32 {{}}, {sums[h][turn % 2]}, {both};")
        return [v("float", f"add.rn.f32 {{}}, {a}, {b};") for a, b in sums]

    def _largest(self, h: int) -> str:
        """The maximum of a row, of which four threads have parts."""
        v, best = self.k.value, [r for r, _ in self._columns(h)]
        while len(best) > 1:
            best = [v("float", f"max.f32 {{}}, {best[i]}, {best[i + 1]};") for i in range(0, len(best), 2)]
        return self._of_row("max.f32", best[0])

    def _of_row(self, op: str, x: str) -> str:
        """What the four threads of a row make of their parts."""
        for reach in (1, 2):
            x = self.k.value("float", f"{op} {{}}, {x}, {self.k.value('float', f'shfl.sync.bfly.b32 {{}}, {x}, {reach}, 31, -1;')};")
        return x

    def _first_weights(self, weights: Sequence[str]) -> None:
        """Of the first tile, whose maximum is looked for."""
        k, v = self.k, self.k.value
        self._masked()
        for h in range(2):
            base = v("float", f"mul.rn.f32 {{}}, {self._largest(h)}, {literal('float', -self.factor)};")
            k.emit(f"min.f32 {self.base[h]}, {base}, {UNSEEN};")
        for h, total in enumerate(self._powers(weights)):
            k.emit(f"mov.f32 {self.total[h]}, {total};")

    def _next_weights(self, weights: Sequence[str]) -> tuple[list[str], str]:
        """Of a later tile: the sums of the thread's parts of its rows, and whether what was summed before must be multiplied by `fade`."""
        k, v = self.k, self.k.value
        self._masked()
        grew, again, quick, done = k.reg("i1"), k.label("again"), k.label("quick"), k.label("weights_done")
        k.emit(f"mov.pred {grew}, {k.truth(False)};")
        k.place(again)
        k.emit(f"@!{self.careful} bra {quick};")
        raised = [self._raise(h) for h in range(2)]
        k.emit(f"vote.sync.any.pred {grew}, {v('i1', f'or.pred {{}}, {raised[0]}, {raised[1]};')}, -1;")
        k.place(quick)
        found = self._powers(weights)
        small = [v("i1", f"setp.le.f32 {{}}, {x}, {literal('float', 2.0 ** LIMIT[self.kernel.dtype])};") for x in found]
        fine = v("i1", f"vote.sync.all.pred {{}}, {v('i1', f'and.pred {{}}, {small[0]}, {small[1]};')}, -1;")
        k.emit(f"@{v('i1', f'or.pred {{}}, {fine}, {self.careful};')} bra {done};")
        k.emit(f"mov.pred {self.careful}, {k.truth(True)};")
        k.emit(f"bra {again};")
        k.place(done)
        return found, grew

    def _raise(self, h: int) -> str:
        """Raise a row's level if its maximum is far above; gives whether it was. (Weights of such a maximum make the warp careful anyway,
        whatever `ex2` rounds.)"""
        k, v, dtype = self.k, self.k.value, self.kernel.dtype
        largest = self._largest(h)
        above = v("float", f"fma.rn.f32 {{}}, {largest}, {literal('float', self.factor)}, {self.base[h]};")
        raised = v("i1", f"setp.gt.f32 {{}}, {above}, {literal('float', LIMIT[dtype] + 0.0625)};")
        base = v("float", f"fma.rn.f32 {{}}, {largest}, {literal('float', -self.factor)}, {literal('float', -float(ROOM[dtype]))};")
        base = v("float", f"selp.f32 {{}}, {base}, {self.base[h]}, {raised};")
        k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'sub.rn.f32 {{}}, {base}, {self.base[h]};')};")
        k.emit(f"mov.f32 {self.base[h]}, {base};")
        k.emit(f"mul.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]};")
        return raised

    def _store_log_sum(self, h: int, total: str, nothing: str) -> None:
        """log Σ exp of one of the thread's rows: one thread of four stores it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        sums = v("float", f"sub.rn.f32 {{}}, {v('float', f'lg2.approx.f32 {{}}, {total};')}, {self.base[h]};")
        sums = v("float", f"mul.rn.f32 {{}}, {sums}, {literal('float', math.log(2.0))};")
        sums = v("float", f"selp.f32 {{}}, {INF}, {sums}, {nothing};")
        row, column = self._place()
        row = v("i32", f"add.u32 {{}}, {row}, {8 * h};") if h else row
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.sq}, {row};")
        first = v("i1", f"setp.eq.u32 {{}}, {column}, 0;")
        inside = v("i1", f"and.pred {{}}, {first}, {v('i1', f'setp.lt.s32 {{}}, {row}, {w.sq};')};")
        assert g.logsumexps is not None
        address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self.e.env[g.logsumexps].pointer};")
        k.emit(f"@{inside} st.global.f32 [{address}], {sums};")
