"""Scores of attention forward in registers: soft cap, bias, masks, and the online softmax."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ...kernels.cuda.kernel import FlashKernel
from .emit import Emitter
from .ptx_text import KernelText, literal

LOG2E = 1.0 / math.log(2.0)
INF = literal("float", -math.inf)


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
    weights: list[str]
    top: list[str]
    total: list[str]
    fade: list[str]
    grew: list[str]  # with a lazy maximum: whether a row's grew
    shift: list[str]  # with eager exponentials: minus the exponent of two that a row's weights are relative to; inf where nothing was seen

    @property
    def changed(self) -> bool:
        """Scores are more than a multiple of the products: they are brought to powers of two before their maximum is taken."""
        g = self.kernel
        return g.softcap is not None or g.bias is not None or g.mask is not None

    @property
    def factor(self) -> float:
        """What turns a score into an exponent of two."""
        return 1.0 if self.changed else self.kernel.scale * LOG2E

    def _rows_of(self, view: object) -> list[str]:
        """Addresses of the thread's rows in a view [batch, head, row, key] at its first column."""
        v = self.k.value
        address = self.e.env[view]  # type: ignore[index]
        lane, warp = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        row = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {lane};')}, {self.row0};")
        column = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 1;")
        at = "0"
        for place, stride in zip((self.batch, self.head, column), (*address.strides[:2], address.strides[3]), strict=True):
            at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {place};')}, {stride}, {at};")
        found = []
        for h in range(2):
            mine = v("i32", f"add.u32 {{}}, {row}, {8 * h};")
            mine = v("i32", f"min.u32 {{}}, {mine}, {v('i32', f'sub.u32 {{}}, {self.word.sq}, 1;')};")  # rows past the end are not stored
            here = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {mine};')}, {address.strides[2]}, {at};")
            found.append(v("i64", f"mad.lo.s64 {{}}, {here}, {address.dtype.itemsize}, {address.pointer};"))
        return found

    def _extras(self) -> None:
        """For each piece of work: where the thread's rows of bias and mask are."""
        g = self.kernel
        self.bias_rows = self._rows_of(g.bias) if g.bias is not None else []
        self.mask_rows = self._rows_of(g.mask) if g.mask is not None else []

    def _change(self, start: str, keys: int) -> None:
        """Soft cap, bias and mask: scores become exponents of two, or −inf."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        room = v("i32", f"sub.s32 {{}}, {w.sk}, {start};")
        quad = v("i32", f"and.b32 {{}}, {self.tid}, 3;")
        room = v("i32", f"sub.s32 {{}}, {room}, {v('i32', f'shl.b32 {{}}, {quad}, 1;')};")
        wide = v("i64", f"cvt.s64.s32 {{}}, {start};")
        for h in range(2):
            at: dict[str, str] = {}
            for name, view, rows in (("bias", g.bias, self.bias_rows), ("mask", g.mask, self.mask_rows)):
                if view is not None:
                    address = self.e.env[view]
                    hop = v("i64", f"mul.lo.s64 {{}}, {wide}, {address.strides[3]};")
                    at[name] = v("i64", f"mad.lo.s64 {{}}, {hop}, {address.dtype.itemsize}, {rows[h]};")
            for i in range(h * 2, keys // 2, 4):
                for c in range(2):
                    r, column = self.scores[i + c], 2 * i - 4 * h + c
                    if g.softcap is not None:  # cap · tanh(x / cap) = cap − 2·cap / (exp(2x / cap) + 1)
                        power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
                        power = v("float", f"ex2.approx.ftz.f32 {{}}, {power};")
                        power = v("float", f"rcp.approx.ftz.f32 {{}}, {v('float', f'add.rn.f32 {{}}, {power}, 0f3F800000;')};")
                        cap = g.softcap * LOG2E
                        k.emit(f"fma.rn.f32 {r}, {power}, {literal('float', -2 * cap)}, {literal('float', cap)};")
                    else:
                        k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
                    inside = v("i1", f"setp.gt.s32 {{}}, {room}, {column};") if at else ""
                    if "bias" in at:
                        x = self._bias_at(at["bias"], column, inside)
                        k.emit(f"fma.rn.f32 {r}, {x}, {literal('float', LOG2E)}, {r};")
                    if "mask" in at:
                        assert g.mask is not None
                        seen = k.reg("i32")
                        k.emit(f"mov.b32 {seen}, 1;")
                        k.emit(f"@{inside} ld.global.u8 {seen}, [{self._moved(at['mask'], g.mask, column)}];")
                        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {seen}, 0;')} mov.f32 {r}, {INF};")

    def _moved(self, at: str, view: object, column: int) -> str:
        """The address of a column relative to the thread's first."""
        address = self.e.env[view]  # type: ignore[index]
        stride, size = str(address.strides[3]), address.dtype.itemsize
        if stride in ("0", "1"):
            return f"{at}+{column * size * int(stride)}"
        return self.k.value("i64", f"mad.lo.s64 {{}}, {stride}, {column * size}, {at};")

    def _bias_at(self, at: str, column: int, inside: str) -> str:
        k, v, half = self.k, self.k.value, self.k.reg("half")
        k.emit(f"mov.b16 {half}, 0;")
        k.emit(f"@{inside} ld.global.b16 {half}, [{self._moved(at, self.kernel.bias, column)}];")
        if self.kernel.dtype == "f16":
            return v("float", f"cvt.f32.f16 {{}}, {half};")
        bits = k.reg("i32")
        k.emit(f"mov.b32 {bits}, {{0, {half}}};")
        return v("float", f"mov.b32 {{}}, {bits};")

    def _limits(self) -> None:
        """First column that each of the thread's two rows does not see any more, and the first it sees, relative to its own columns."""
        _k, g, v, w = self.k, self.kernel, self.k.value, self.word
        lane = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;")
        warp = v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        row = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {lane};')}, {self.row0};")
        column = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 1;")
        self.high, self.low = [], []
        for h in range(2):
            mine = v("i32", f"add.u32 {{}}, {row}, {8 * h};")
            seen = v("i32", f"add.s32 {{}}, {mine}, {w.offset};")
            high = w.sk
            if g.causal:
                high = v("i32", f"min.s32 {{}}, {high}, {v('i32', f'add.s32 {{}}, {seen}, 1;')};")
            self.high.append(v("i32", f"sub.s32 {{}}, {high}, {column};"))
            if g.windowed:
                low = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {seen}, 1;')}, {w.window};")
                self.low.append(v("i32", f"sub.s32 {{}}, {low}, {column};"))
        # tiles that end before this column need no mask; with a window, tiles that start from that column on
        self.plain = w.sk
        if g.causal:
            first = v("i32", f"add.s32 {{}}, {self.row0}, {w.offset};")
            self.plain = v("i32", f"min.s32 {{}}, {self.plain}, {v('i32', f'add.s32 {{}}, {first}, 1;')};")
        if g.windowed:
            past = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.row0}, {w.offset};')}, 64;")
            self.from_here = v("i32", f"sub.s32 {{}}, {past}, {w.window};")

    def _masked(self, keys: int) -> None:
        """Soft cap, bias and masks on the first keys of the tile: scores that are not seen become −inf."""
        k, g, v = self.k, self.kernel, self.k.value
        start = v("i32", f"mul.lo.u32 {{}}, {self.tile}, {g.keys};")
        if self.changed:
            self._change(start, keys)
        part = min(keys, g.keys // 2) if g.plan.halves else keys
        for first in range(0, keys, part):
            skip = k.label("unmasked")
            clear = v("i1", f"setp.le.s32 {{}}, {v('i32', f'add.s32 {{}}, {start}, {first + part};')}, {self.plain};")
            if g.windowed:
                here = v("i32", f"add.s32 {{}}, {start}, {first};") if first else start
                clear = v("i1", f"and.pred {{}}, {clear}, {v('i1', f'setp.ge.s32 {{}}, {here}, {self.from_here};')};")
            k.emit(f"@{clear} bra {skip};")
            for h in range(2):
                room = v("i32", f"sub.s32 {{}}, {self.high[h]}, {start};")
                floor = v("i32", f"sub.s32 {{}}, {self.low[h]}, {start};") if g.windowed else ""
                for i in range(first // 2 + h * 2, (first + part) // 2, 4):
                    for c in range(2):
                        r, column = self.scores[i + c], 2 * i - 4 * h + c
                        k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {room}, {column};')} mov.f32 {r}, {INF};")
                        if g.windowed:
                            k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {floor}, {column};')} mov.f32 {r}, {INF};")
            k.place(skip)

    def _softmax(self, keys: int) -> None:
        """Mask, running maximum and sum of the tile's first keys; scores become probabilities; `fade` is the factor for what was summed
        before."""
        k, g, v = self.k, self.kernel, self.k.value
        self._masked(keys)
        scale = literal("float", self.factor)
        for h in range(2):
            mine = [self.scores[i + c] for i in range(h * 2, keys // 2, 4) for c in range(2)]
            top = self._largest(mine)
            top = v("float", f"max.f32 {{}}, {top}, {self.top[h]};")
            if g.plan.lazy is not None:
                top = self._unless_grown(h, top, g.plan.lazy)
            known = v("float", f"selp.f32 {{}}, 0f00000000, {top}, {v('i1', f'setp.eq.f32 {{}}, {top}, {INF};')};")
            base = v("float", f"mul.rn.f32 {{}}, {known}, {literal('float', -self.factor)};")
            old = v("float", f"fma.rn.f32 {{}}, {self.top[h]}, {scale}, {base};")
            k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {old};")
            if g.plan.lazy is not None:  # exactly 1, whatever the other rows of the warp do
                k.emit(f"selp.f32 {self.fade[h]}, {self.fade[h]}, 0f3F800000, {self.grew[h]};")
            k.emit(f"mov.f32 {self.top[h]}, {top};")
            for r in mine:
                k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {base};")
                k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
            parts = list(mine)
            while len(parts) > 1:
                parts = [v("float", f"add.rn.f32 {{}}, {parts[i]}, {parts[i + 1]};") for i in range(0, len(parts), 2)]
            k.emit(f"fma.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]}, {parts[0]};")

    def _largest(self, mine: list[str]) -> str:
        """The maximum of a row, of which four threads have parts."""
        v, best = self.k.value, list(mine)
        while len(best) > 1:
            best = [v("float", f"max.f32 {{}}, {best[i]}, {best[i + 1]};") for i in range(0, len(best), 2)]
        top = best[0]
        for reach in (1, 2):
            top = v("float", f"max.f32 {{}}, {top}, {v('float', f'shfl.sync.bfly.b32 {{}}, {top}, {reach}, 31, -1;')};")
        return top

    def _unless_grown(self, h: int, top: str, limit: float) -> str:
        """The row's new maximum, or the old one where it grew by no more than so many powers of two: weights are then a little above 1."""
        v = self.k.value
        grew = v("float", f"sub.rn.f32 {{}}, {top}, {self.top[h]};")
        self.grew[h : h + 1] = [v("i1", f"setp.gt.f32 {{}}, {grew}, {literal('float', limit / self.factor)};")]
        return v("float", f"selp.f32 {{}}, {top}, {self.top[h]}, {self.grew[h]};")

    def _pack(self) -> None:
        """Probabilities as the left operand of the second product."""
        for i, w in enumerate(self.weights):
            low, high = self.scores[2 * i], self.scores[2 * i + 1]
            self.k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {high}, {low};")

    def _store_log_sum(self, h: int, total: str, nothing: str) -> None:
        """log Σ exp of one of the thread's rows: one thread of four stores it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        log = v("float", f"lg2.approx.f32 {{}}, {total};")
        if g.plan.eager:
            sums = v("float", f"sub.rn.f32 {{}}, {log}, {self.shift[h]};")
        else:
            sums = v("float", f"fma.rn.f32 {{}}, {self.top[h]}, {literal('float', self.factor)}, {log};")
        sums = v("float", f"mul.rn.f32 {{}}, {sums}, {literal('float', math.log(2.0))};")
        sums = v("float", f"selp.f32 {{}}, {INF}, {sums}, {nothing};")
        lane, warp = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        row = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {lane};')}, {self.row0};")
        row = v("i32", f"add.u32 {{}}, {row}, {8 * h};") if h else row
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.sq}, {row};")
        first = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 0;")
        inside = v("i1", f"and.pred {{}}, {first}, {v('i1', f'setp.lt.s32 {{}}, {row}, {w.sq};')};")
        assert g.log_sums is not None
        address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self.e.env[g.log_sums].pointer};")
        k.emit(f"@{inside} st.global.f32 [{address}], {sums};")
