"""f64 on the matrix units of sm_80 and sm_90, fed by the ring of `ring.py`: `mma.sync` of 8 × 8 × 4, or of 16 × 8 × 8 where there is one.

Both want one element a lane of every 8 rows × 4 of K: lane l has row l / 4. Which four of K they are does not matter as long as both
operands agree, so a lane takes two neighbours in K (2·(l mod 4) and the next) for two steps: one 16-byte access where rows lie along K. An
element is still one sum, in the same order whatever M, N and the batch are.
"""

from __future__ import annotations

from ....kernels.cuda.kernel import RingKernel
from ..ptx.text import KernelText, literal
from ..threads.layout import Spots
from .ring_cores import LINE, MmaCore, Side, runs

DEEP = 8  # of K in two steps
NAMES = {"mma8": "m8n8k4", "mma16": "m16n8k8"}


class DoubleCore(MmaCore):
    """A warp has blocks of 16 × 8, as with the smaller dtypes: two sums each of rows r and r + 8."""

    def __init__(self, k: KernelText, kernel: RingKernel) -> None:
        super().__init__(k, kernel)
        self.number = "double"
        self.spots = Spots((0, 8), runs([(8 * j, 8 * j + 1) for j in range(kernel.tn // 8)], kernel.run), kernel.block)
        self.name = f"mma.sync.aligned.{NAMES[kernel.core]}.row.col.f64.f64.f64.f64"

    def moved(self, line: str, outer: bool) -> str:
        """Eight lanes of a 16-byte access meet two rows, sixteen of an 8-byte one four lines: they find different banks."""
        v = self.k.value
        if outer:
            return v("i32", f"shl.b32 {{}}, {v('i32', f'bfe.u32 {{}}, {line}, 1, 2;')}, 1;")
        return v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {line}, 1;')}, 2;")

    def place(self, tid: str, sides: list[Side]) -> None:
        v, k, g = self.k.value, self.k, self.kernel
        down, right = self._warps(tid, g.tm, g.tn)
        line, quad = v("i32", f"bfe.u32 {{}}, {tid}, 2, 3;"), v("i32", f"and.b32 {{}}, {tid}, 3;")
        self.row = v("i32", f"add.u32 {{}}, {line}, {down};")
        self.column = v("i32", f"mad.lo.u32 {{}}, {quad}, 2, {right};")
        self.pairs: list[tuple[Side, list[str]]] = []
        for side, first in zip(sides, (down, right), strict=True):
            mine = v("i32", f"add.u32 {{}}, {first}, {line};")
            if side.outer:  # lines are K, a piece is two rows; rows r and r + 8 lie in pieces four apart
                start = v("i32", f"mad.lo.u32 {{}}, {quad}, {2 * side.pitch}, {side.base};")
                start = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {mine}, 1;')}, 8, {start};")
                pieces = [v("i32", f"shr.u32 {{}}, {mine}, 1;")]
                pieces.append(v("i32", f"add.u32 {{}}, {pieces[0]}, 4;"))
                swap = v("i32", f"shl.b32 {{}}, {quad}, 1;")
            else:
                start = v("i32", f"mad.lo.u32 {{}}, {mine}, {LINE}, {side.base};")
                pieces = [quad, v("i32", f"add.u32 {{}}, {quad}, 4;")]
                swap = self.moved(mine, False)
            places = [v("i32", f"mad.lo.u32 {{}}, {v('i32', f'xor.b32 {{}}, {p}, {swap};')}, 16, {start};") for p in pieces]
            self.pairs.append((side, places))
        self.sums = [[[k.reg("double") for _ in range(4)] for _ in range(g.tn // 8)] for _ in range(g.tm // 16)]
        for r in (r for row in self.sums for four in row for r in four):
            k.emit(f"mov.f64 {r}, {literal('double', 0.0)};")

    def _two(self, which: int, step: int, here: list[str]) -> list[list[str]]:
        """For every eight rows, this lane's elements of two steps of K."""
        k, g = self.k, self.kernel
        side = self.pairs[which][0]
        out = []
        for i in range((g.tm, g.tn)[which] // 8):
            two = [k.reg("double") for _ in range(2)]
            if side.outer:
                for e, r in enumerate(two):
                    k.emit(f"ld.shared.f64 {r}, [{here[i % 2]}+{(DEEP * step + e) * side.pitch + 128 * (i // 2)}];")
            else:
                k.emit(f"ld.shared.v2.f64 {{{', '.join(two)}}}, [{here[step]}+{8 * i * LINE}];")
            out.append(two)
        return out

    def multiply(self, slot: str) -> None:
        v = self.k.value
        here = [[v("i32", f"add.u32 {{}}, {at}, {slot};") for at in places] for _, places in self.pairs]
        steps = LINE // 8 // DEEP
        ahead = [self._two(w, 0, here[w]) for w in (0, 1)]
        for s in range(steps):
            a, b = ahead
            if s + 1 < steps:
                ahead = [self._two(w, s + 1, here[w]) for w in (0, 1)]
            for i, row in enumerate(self.sums):
                for j, four in enumerate(row):
                    self._mma(four, a[2 * i], a[2 * i + 1], b[j])

    def _mma(self, c: list[str], top: list[str], low: list[str], b: list[str]) -> None:
        """Sums of 16 rows × 8 columns += 16 rows × 8 of K · as many × 8 columns."""
        k = self.k
        if self.kernel.core == "mma16":
            names = ", ".join(c)
            k.emit(f"{self.name} {{{names}}}, {{{top[0]}, {low[0]}, {top[1]}, {low[1]}}}, {{{', '.join(b)}}}, {{{names}}};")
            return
        for rows, sums in ((top, c[:2]), (low, c[2:])):
            names = ", ".join(sums)
            for x, y in zip(rows, b, strict=True):
                k.emit(f"{self.name} {{{names}}}, {{{x}}}, {{{y}}}, {{{names}}};")
