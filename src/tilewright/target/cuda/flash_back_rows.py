"""What attention's reverse pass needs to know about a query row: log2 of the sum of its exponentials, and δ = Σ P·dP, kept while keys
stream by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

from ...kernels.cuda.kernel import FlashBackKernel
from ...tile.ir import Var
from .emit import Emitter
from .ptx_text import KernelText, literal

LOG2E = 1.0 / math.log(2.0)
NEVER, INF, ZERO = literal("float", -math.inf), literal("float", math.inf), literal("float", 0.0)
TILE = 64  # rows of a streamed tile


class RowStatistics:
    """The `stats` part of the kernels of `flash_back`."""

    kernel: FlashBackKernel
    k: KernelText
    e: Emitter
    word: SimpleNamespace
    row: str
    quad: str
    head: str
    batch: str
    top: list[str]
    total: list[str]
    moment: list[str]
    fade: list[str]

    def _pointer(self, var: Var | None) -> str:
        assert var is not None
        return str(self.e.env[var].pointer)

    @staticmethod
    def _columns(h: int) -> list[tuple[int, int]]:
        """(register, column relative to the thread's first) of row h of a thread."""
        return [(i + c, 8 * (i // 4) + c) for i in range(2 * h, TILE // 2, 4) for c in range(2)]

    def _maxima(self, s: list[str], _: str) -> None:
        """Scores become exp2(score − running maximum); what was summed before fades."""
        k, g, v = self.k, self.kernel, self.k.value
        scale = literal("float", g.scale * LOG2E)
        for h in range(2):
            mine = [s[i] for i, _c in self._columns(h)]
            top = self._tree("max.f32", mine)
            for reach in (1, 2):
                top = v("float", f"max.f32 {{}}, {top}, {v('float', f'shfl.sync.bfly.b32 {{}}, {top}, {reach}, 31, -1;')};")
            top = v("float", f"max.f32 {{}}, {top}, {self.top[h]};")
            known = v("float", f"selp.f32 {{}}, {ZERO}, {top}, {v('i1', f'setp.eq.f32 {{}}, {top}, {NEVER};')};")
            base = v("float", f"mul.rn.f32 {{}}, {known}, {literal('float', -g.scale * LOG2E)};")
            k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'fma.rn.f32 {{}}, {self.top[h]}, {scale}, {base};')};")
            k.emit(f"mov.f32 {self.top[h]}, {top};")
            for r in mine:
                k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {base};")
                k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
            k.emit(f"fma.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]}, {self._tree('add.rn.f32', mine)};")

    def _moments(self, s: list[str], dp: list[str]) -> None:
        """Σ P·dP of every row."""
        k, v = self.k, self.k.value
        for h in range(2):
            parts = [v("float", f"mul.rn.f32 {{}}, {s[i]}, {dp[i]};") for i, _c in self._columns(h)]
            k.emit(f"fma.rn.f32 {self.moment[h]}, {self.moment[h]}, {self.fade[h]}, {self._tree('add.rn.f32', parts)};")

    def _tree(self, op: str, parts: Sequence[str]) -> str:
        found = list(parts)
        while len(found) > 1:
            found = [self.k.value("float", f"{op} {{}}, {found[i]}, {found[i + 1]};") for i in range(0, len(found), 2)]
        return found[0]

    def _store_stats(self) -> None:
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.padded}, {self.row};")
        first = v("i1", f"setp.eq.u32 {{}}, {self.quad}, 0;")
        for h in range(2):
            total, moment = self.total[h], self.moment[h]
            for reach in (1, 2):
                total = v("float", f"add.rn.f32 {{}}, {total}, {v('float', f'shfl.sync.bfly.b32 {{}}, {total}, {reach}, 31, -1;')};")
                moment = v("float", f"add.rn.f32 {{}}, {moment}, {v('float', f'shfl.sync.bfly.b32 {{}}, {moment}, {reach}, 31, -1;')};")
            row = v("i32", f"add.u32 {{}}, {self.row}, {8 * h};")
            nothing = v("i1", f"setp.eq.f32 {{}}, {total}, {ZERO};")
            nothing = v("i1", f"or.pred {{}}, {nothing}, {v('i1', f'setp.ge.s32 {{}}, {row}, {w.sq};')};")
            log = v("float", f"lg2.approx.f32 {{}}, {total};")
            lse = v("float", f"fma.rn.f32 {{}}, {self.top[h]}, {literal('float', g.scale * LOG2E)}, {log};")
            delta = v("float", f"div.rn.f32 {{}}, {moment}, {total};")
            for var, value, none in ((g.lse, lse, INF), (g.delta, delta, ZERO)):
                value = v("float", f"selp.f32 {{}}, {none}, {value}, {nothing};")
                address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self._pointer(var)};")
                k.emit(f"@{first} st.global.f32 [{address}+{32 * h}], {value};")
