"""Attention's softmax without the maximum in its way: exponentials relative to what the tiles before have shown.

A tile's weights are 2^(score − level), where the level is the largest score of an earlier tile. They may be above 1: nothing is lost as
long as they stay far from overflow, which their sum, wanted anyway, tells. Only where the sum of a thread's part of a row passes `LIMIT` is
the row's maximum looked for, its level raised, its weights computed again, and what was summed before rescaled. The level is then put above
the maximum by `ROOM`, so that scores that grow from tile to tile raise it seldom. Whether a row is done again depends on that row alone:
its bits do not depend on the others of its warp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .flash_scores import INF, FlashScores
from .ptx_text import literal

# powers of two; f16 must hold a single weight, and lose none that counts. With bf16, f32 holds sums of values up to 2^90.
LIMIT, ROOM = {"bf16": 32, "f16": 13}, {"bf16": 32, "f16": 6}
UNSEEN = literal("float", float.fromhex("0x1.fffffep127"))  # −level of a row that has seen nothing: a score gives inf, −inf gives 0


class FlashWeights(FlashScores):
    """Weights go to registers of their own: scores stay until the sum is known to be small."""

    base: list[str]  # −level of the thread's rows
    total: list[str]  # their sums
    fade: list[str]  # what was summed before is multiplied by this

    @property
    def limit(self) -> str:
        return literal("float", 2.0 ** LIMIT[self.kernel.dtype])

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
        """Of a later tile: the sums of the thread's parts of its rows, and whether those of the whole warp are small."""
        k, v = self.k, self.k.value
        self._masked()
        found = [k.reg("float") for _ in range(2)]
        for r, x in zip(found, self._powers(weights), strict=True):
            k.emit(f"mov.f32 {r}, {x};")
        small = [v("i1", f"setp.le.f32 {{}}, {x}, {self.limit};") for x in found]
        both = v("i1", f"and.pred {{}}, {small[0]}, {small[1]};")
        return found, v("i1", f"vote.sync.all.pred {{}}, {both}, -1;")

    def _again(self, weights: Sequence[str], sums: list[str]) -> None:
        """Raise the levels of rows whose sums are not small, and compute the tile's weights again. `fade` is 1 for the other rows."""
        k, v = self.k, self.k.value
        scale, room = literal("float", -self.factor), literal("float", -float(ROOM[self.kernel.dtype]))
        for h in range(2):
            small = v("i1", f"setp.le.f32 {{}}, {self._of_row('max.NaN.f32', sums[h])}, {self.limit};")
            base = v("float", f"fma.rn.f32 {{}}, {self._largest(h)}, {scale}, {room};")
            base = v("float", f"min.f32 {{}}, {base}, {self.base[h]};")
            base = v("float", f"selp.f32 {{}}, {self.base[h]}, {base}, {small};")
            k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'sub.rn.f32 {{}}, {base}, {self.base[h]};')};")
            k.emit(f"mov.f32 {self.base[h]}, {base};")
            k.emit(f"mul.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]};")
        for r, x in zip(sums, self._powers(weights), strict=True):
            k.emit(f"mov.f32 {r}, {x};")

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
        assert g.log_sums is not None
        address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self.e.env[g.log_sums].pointer};")
        k.emit(f"@{inside} st.global.f32 [{address}], {sums};")
