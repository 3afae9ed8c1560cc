"""Attention's softmax without the maximum in its way: exponentials relative to what the tiles before have shown.

A tile's weights are 2^(score − base), where the base is the largest score of an earlier tile. They may be above 1: nothing is lost as long
as they stay far from overflow, which their sum, wanted anyway, tells. Only where the sum of a thread's part of a row passes `LIMIT` is the
row's maximum looked for, its base raised, its weights computed again, and what was summed before rescaled. Whether a row is done again
depends on that row alone; its bits do not depend on the others of its warp.

Some exponentials are polynomials on the multiply-add units, which the special-function unit leaves idle: x is clamped to −127, split into
the nearest whole number and a rest in [−1/2, 1/2] by adding 1.5·2^23, and the whole number is added to the exponent of the polynomial of
the rest. At −127 (and so below, at −inf too) the result is exactly 0. Relative errors, of all floats in that range: 1.02e-4 with degree 3
(a twentieth of bf16's rounding, 2^-9), 3e-6 with degree 4 (for f16, whose rounding is 2^-12 and more).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .flash_scores import INF, FlashScores
from .ptx_text import literal

LIMIT = 8192.0  # of the sum of 32 weights: f16 holds a single one, too
POSITIVE_INF = "0f7F800000"
MAGIC = literal("float", 1.5 * 2**23)
COEFFICIENTS = {  # of x, x², … in 2^x = 1 + …, the least relative error in [−1/2, 1/2]
    "bf16": (0.6932829022407532, 0.2422109693288803, 0.05500893294811249),
    "f16": (0.6931241750717163, 0.24024038016796112, 0.05590662732720375, 0.009585382416844368),
}


class FlashEager(FlashScores):
    """Weights go to registers of their own: scores stay until the sum is known to be small."""

    meanwhile: Callable[[], None] | None = None  # other work for the first softmax

    def _power(self, x: str, whole: bool) -> str:
        """2^x by a polynomial; `whole`: NaN stays NaN (without, it becomes the largest number there is)."""
        v = self.k.value
        low = v("float", f"max.NaN.f32 {{}}, {x}, {literal('float', -127.0)};")
        shifted = v("float", f"add.rn.f32 {{}}, {low}, {MAGIC};")
        near = v("float", f"sub.rn.f32 {{}}, {shifted}, {MAGIC};")
        rest = v("float", f"sub.rn.f32 {{}}, {low}, {near};")
        *others, value = (literal("float", c) for c in COEFFICIENTS[self.kernel.dtype])
        for c in (*reversed(others), "0f3F800000"):
            value = v("float", f"fma.rn.f32 {{}}, {value}, {rest}, {c};")
        bits = v("i32", f"shl.b32 {{}}, {v('i32', f'mov.b32 {{}}, {shifted};')}, 23;")
        raised = v("i32", f"add.s32 {{}}, {bits}, {v('i32', f'mov.b32 {{}}, {value};')};")
        value = v("float", f"mov.b32 {{}}, {raised};")
        if whole:
            value = v("float", f"selp.f32 {{}}, {value}, {x}, {v('i1', f'setp.num.f32 {{}}, {x}, {x};')};")
        return value

    def _powers(self, keys: int, base: Sequence[str], weights: Sequence[str], whole: bool) -> list[str]:
        """Weights of the tile's first keys relative to `base`, in pairs; gives the sums of the thread's parts of its rows."""
        k, g, v = self.k, self.kernel, self.k.value
        scale = literal("float", self.factor)
        sums: list[list[str]] = [[], []]
        for i, w in enumerate(weights[: keys // 4]):
            h, turn = i % 2, i // 2
            pair = []
            for c in range(2):
                x = v("float", f"fma.rn.f32 {{}}, {self.scores[2 * i + c]}, {scale}, {base[h]};")
                if g.plan.poly and turn % g.plan.poly == g.plan.poly - 1:
                    pair.append(self._power(x, whole))
                else:
                    pair.append(v("float", f"ex2.approx.ftz.f32 {{}}, {x};"))
            k.emit(f"cvt.rn.{g.dtype}x2.f32 {w}, {pair[1]}, {pair[0]};")
            both = v("float", f"add.rn.f32 {{}}, {pair[0]}, {pair[1]};")
            if len(sums[h]) < 2:
                sums[h].append(both)
            else:
                sums[h][turn % 2] = v("float", f"add.rn.f32 {{}}, {sums[h][turn % 2]}, {both};")
        return [v("float", f"add.rn.f32 {{}}, {a}, {b};") for a, b in sums]

    def _raise(self, h: int, keys: int, small: str = "") -> str:
        """Look for a row's maximum, unless its sum is `small`; gives the base of this tile's weights (0 for a row that sees nothing)."""
        k, v = self.k, self.k.value
        mine = [self.scores[i + c] for i in range(h * 2, keys // 2, 4) for c in range(2)]
        level = v("float", f"mul.rn.f32 {{}}, {self._largest(mine)}, {literal('float', self.factor)};")
        if small:
            before = v("float", f"neg.f32 {{}}, {self.shift[h]};")
            level = v("float", f"max.f32 {{}}, {level}, {before};")
            level = v("float", f"selp.f32 {{}}, {before}, {level}, {small};")
        nothing = v("i1", f"setp.eq.f32 {{}}, {level}, {INF};")
        base = v("float", f"selp.f32 {{}}, 0f00000000, {v('float', f'neg.f32 {{}}, {level};')}, {nothing};")
        if small:
            k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'sub.rn.f32 {{}}, {base}, {self.shift[h]};')};")
        k.emit(f"selp.f32 {self.shift[h]}, {POSITIVE_INF}, {base}, {nothing};")
        return base

    def _first_weights(self, keys: int, weights: Sequence[str]) -> None:
        """Of the first tile, whose maximum is looked for."""
        self._masked(keys)
        if self.meanwhile is not None:
            self.meanwhile()
        base = [self._raise(h, keys) for h in range(2)]
        for h, total in enumerate(self._powers(keys, base, weights, whole=True)):
            self.k.emit(f"mov.f32 {self.total[h]}, {total};")
        for w in weights[keys // 4 :]:
            self.k.emit(f"mov.b32 {w}, 0;")

    def _eager_weights(self, weights: Sequence[str]) -> tuple[list[str], str]:
        """Of a later tile: the sums of the thread's parts of its rows, and whether those of the whole warp are small."""
        k, g, v = self.k, self.kernel, self.k.value
        self._masked(g.keys)
        found = [k.reg("float") for _ in range(2)]
        for r, x in zip(found, self._powers(g.keys, self.shift, weights, whole=False), strict=True):
            k.emit(f"mov.f32 {r}, {x};")
        small = [v("i1", f"setp.le.f32 {{}}, {x}, {literal('float', LIMIT)};") for x in found]
        both = v("i1", f"and.pred {{}}, {small[0]}, {small[1]};")
        return found, v("i1", f"vote.sync.all.pred {{}}, {both}, -1;")

    def _again(self, weights: Sequence[str], sums: list[str]) -> None:
        """Raise the bases of rows whose sums are not small, and compute the tile's weights again. `fade` is 1 for the other rows."""
        k, g, v = self.k, self.kernel, self.k.value
        base = []
        for h in range(2):
            most = sums[h]
            for reach in (1, 2):
                other = v("float", f"shfl.sync.bfly.b32 {{}}, {most}, {reach}, 31, -1;")
                most = v("float", f"max.NaN.f32 {{}}, {most}, {other};")
            base.append(self._raise(h, g.keys, v("i1", f"setp.le.f32 {{}}, {most}, {literal('float', LIMIT)};")))
        for r, x in zip(sums, self._powers(g.keys, base, weights, whole=True), strict=True):
            k.emit(f"mov.f32 {r}, {x};")
