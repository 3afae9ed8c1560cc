"""Scores, weights and their cotangents of a tile in registers: rows are keys, columns are queries."""

from __future__ import annotations

from ..ptx.text import literal
from .flash_finish import Common
from .flash_stats import LOG2E, NEVER


class Scores(Common):
    """The part of `flash_grad` between its products."""

    my_row0: str
    row: str
    quad: str
    batch: str

    @property
    def changed(self) -> bool:
        """Scores are more than a multiple of the products: they are brought to powers of two before their logsumexp is taken away."""
        g = self.kernel
        return g.softcap is not None or g.bias is not None or g.mask is not None

    def _columns(self, h: int) -> list[tuple[int, int]]:
        """(register, query relative to the thread's first) of row h of a thread."""
        return [(i + c, 8 * (i // 4) + c) for i in range(2 * h, self.kernel.queries // 2, 4) for c in range(2)]

    def _mask(self, s: list[str], first: str) -> None:
        """−inf where a query does not see a key, or there is no key. Tiles that need no mask skip it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        skip, past = k.label("unmasked"), v("i32", f"add.s32 {{}}, {self.my_row0}, 64;")
        whole = v("i1", f"setp.le.s32 {{}}, {past}, {w.sk};")
        shifted = v("i32", f"sub.s32 {{}}, {self.my_row0}, {w.offset};")
        if g.causal:  # the first query sees the last key
            least = v("i32", f"add.s32 {{}}, {shifted}, 63;")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.ge.s32 {{}}, {first}, {least};')};")
        if g.windowed:  # the last query still sees the first key
            most = v("i32", f"add.s32 {{}}, {shifted}, {w.window};")
            end = v("i32", f"add.s32 {{}}, {first}, {g.queries};")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.le.s32 {{}}, {end}, {most};')};")
        k.emit(f"@{whole} bra {skip};")
        here = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        for h in range(2):
            key = v("i32", f"add.s32 {{}}, {self.row}, {8 * h};") if h else self.row
            missing = v("i1", f"setp.ge.s32 {{}}, {key}, {w.sk};")
            room = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {key}, {w.offset};')}, {here};")
            end = v("i32", f"add.s32 {{}}, {room}, {w.window};") if g.windowed else ""
            for i, c in self._columns(h):
                k.emit(f"@{missing} mov.f32 {s[i]}, {NEVER};")
                if g.causal:
                    k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {room}, {c};')} mov.f32 {s[i]}, {NEVER};")
                if g.windowed:
                    k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {end}, {c};')} mov.f32 {s[i]}, {NEVER};")
        k.place(skip)

    def _stat(self, stats: str, which: int, i: int, held: dict[int, tuple[str, str]]) -> str:
        """Log-sum (0) or δ (1) of the query of a register."""
        if i // 4 not in held:
            held[i // 4] = (self.k.reg("float"), self.k.reg("float"))
            at = 4 * self.kernel.queries * which + 32 * (i // 4)
            self.k.emit(f"ld.shared.v2.f32 {{{', '.join(held[i // 4])}}}, [{stats}+{at}];")
        return held[i // 4][i % 2]

    def _weights(self, s: list[str], stats: str) -> None:
        k, v, scale = self.k, self.k.value, literal("float", self.kernel.scale * LOG2E)
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(s):
            if self.changed:
                k.emit(f"sub.rn.f32 {r}, {r}, {self._stat(stats, 0, i, held)};")
                k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
                continue
            k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {v('float', f'neg.f32 {{}}, {self._stat(stats, 0, i, held)};')};")
            k.emit(f"ex2.approx.ftz.f32 {r}, {r};")

    def _cotangents(self, p: list[str], dp: list[str], stats: str) -> None:
        """dS = P·(dP − δ), in the registers of dP, with the rounded P: there are no registers for both."""
        k = self.k
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(dp):
            k.emit(f"sub.rn.f32 {r}, {r}, {self._stat(stats, 1, i, held)};")
            weight = self._rounded(p[i // 2], i % 2)
            k.emit(f"mul.rn.f32 {r}, {r}, {weight};")

    def _rounded(self, pair: str, which: int) -> str:
        k, v = self.k, self.k.value
        if self.kernel.dtype == "bf16":
            bits = v("i32", f"and.b32 {{}}, {pair}, -65536;" if which else f"shl.b32 {{}}, {pair}, 16;")
            return v("float", f"mov.b32 {{}}, {bits};")
        halves = [k.reg("half"), k.reg("half")]
        k.emit(f"mov.b32 {{{', '.join(halves)}}}, {pair};")
        return v("float", f"cvt.f32.f16 {{}}, {halves[which]};")

    def _pack(self, packed: list[str], values: list[str]) -> None:
        for i, w in enumerate(packed):
            self.k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {values[2 * i + 1]}, {values[2 * i]};")
