"""Values of a packed matrix as bf16: 16 rows × 16 columns in the four registers of `mma.m16n8k16`.

An integer q below 128 in the low byte of 0x4300 is the bf16 128 + q; taking 128 and the middle of the values away is exact. What is
left is multiplied by the scale and gets the number that the middle stands for, one rounding: `(q - middle) · s + (middle · s + minimum)`.
Scales and those numbers are rounded to bf16 first. Bytes with a sign are two numbers, their seven lower bits and 128 where the top bit is
not set (256 where it is). Four-bit floats have their bits where bf16 has them, 2**-126 of the value; eight-bit floats go through f16 and
f32.
"""

from __future__ import annotations

import numpy as np

from ....kernels.quant.cuda.fragments import FORMS, Fragments
from ....kernels.quant.cuda.small_floats import PER_SCALE, is_small
from ..ptx.text import KernelText, literal
from .qdot_small import Bytes, Nibbles, unit_of
from .qdot_unit import Unit, bytes_of

FOUR = 0x1C1F  # lanes of a `shfl` are those of a quad
LOW, HIGH = 0x4140, 0x4342  # bytes 0 and 1, and 2 and 3, under the upper byte of 128


def numbers_of(k: KernelText, f: Fragments, lane: str, line: str) -> Numbers:
    kind = Floats if f.name.startswith("F8") else FourBits if is_small(f.name) else Signed if f.low == 8 else Numbers
    return kind(k, f, lane, line)


class Numbers:
    """Quantized values of four to six bits. Registers of a panel are filled from shared memory for a few blocks at a time."""

    def __init__(self, k: KernelText, f: Fragments, lane: str, line: str) -> None:
        self.k, self.f, self.lane, self.line = k, f, lane, line
        self.panels: dict[int, Unit] = {}
        self.tops: dict[int, list[list[str]]] = {}
        self.made: dict[tuple[int, int], list[list[str]]] = {}
        v = k.value
        self.bias = -FORMS[f.name].bias
        self.middle = self.bias or (8 << f.planes)
        self.one, self.less, self.nothing = (v("i32", f"mov.b32 {{}}, {x};") for x in (_both(1.0), _both(-128.0 - self.middle), 0x80008000))
        self.upper = v("i32", f"mov.b32 {{}}, {bytes_of(0x43)};")

    def load(self, panel: int, unit: str, at: int, first: int, count: int) -> None:
        """Blocks first … of a panel whose unit begins `at` bytes after `unit` in shared memory; with their scales."""
        f, k, v = self.f, self.k, self.k.value
        regs = self.panels[panel] = unit_of(KernelText("", []), f, self.lane, self.line)  # only its lists and rules are used
        regs.k = k
        wide = 16 if f.low == 8 or f.blocks > 1 else 8
        here = v("i32", f"mad.lo.u32 {{}}, {self.lane}, {wide}, {unit};")
        loads = range(first, first + count) if f.low == 8 else (first,)  # four-bit quantized values of both blocks are 16 bytes
        for block in loads:
            which = 4 * block if f.low == 8 else 2 * block
            self._words(regs.quantized, which, wide // 4, here, at + (block if f.low == 8 else block // 2) * 32 * wide)
        for p, plane in enumerate(regs.planes):
            where = v("i32", f"mad.lo.u32 {{}}, {self.lane}, {4 * f.pairs}, {unit};")
            self._words(plane, first // 2, 1, where, at + f.plane_at + p * f.plane_bytes + 4 * (first // 2))
        rows = v("i32", f"mad.lo.u32 {{}}, {self.line}, {f.row_scales}, {unit};")
        wanted = sorted({w for b in range(first, first + count) for w in self._scale_words(b)})
        for upper in range(2):
            for w in wanted:
                self._words(regs.scales[upper], w, 1, rows, at + f.scale_at + 8 * upper * f.row_scales + 4 * w)
        if f.super_scales:
            tops = v("i32", f"mad.lo.u32 {{}}, {self.line}, 4, {unit};")
            for upper in range(2):
                self._words(regs.tops, upper, 1, tops, at + f.d_at + 32 * upper)
        self.tops[panel] = [regs._halves(t) for t in regs.tops]
        self.made = {key: x for key, x in self.made.items() if key[0] != panel}

    def hold(self, panel: int, unit: Unit) -> None:
        """A unit that is in registers, of a panel. Where it is `spread`, a lane makes the scales of two blocks, and others take them."""
        self.panels[panel] = unit
        self.tops[panel] = [unit._halves(t) for t in unit.tops]
        self.made = {key: x for key, x in self.made.items() if key[0] != panel}
        if unit.spread:
            self.own = [[self._both_of(unit._scales(upper, c, self.tops[panel])) for c in range(2)] for upper in range(2)]

    def _both_of(self, found: list[str]) -> str:
        """Scale and what is added (or both scales) of a block as one word."""
        f, v, second = self.f, self.k.value, found[-1]
        if f.minimums:
            second = v("float", f"fma.rn.f32 {{}}, {found[0]}, {literal('float', float(self.middle))}, {found[-1]};")
        return v("i32", f"cvt.rn.bf16x2.f32 {{}}, {second}, {found[0]};")

    def _taken(self, block: int) -> list[list[str]]:
        v, out = self.k.value, []
        for upper in range(2):
            word = v("i32", f"shfl.sync.idx.b32 {{}}, {self.own[upper][block % 2]}, {block // 2}, {FOUR}, -1;")
            low, high = (v("i32", f"prmt.b32 {{}}, {word}, {word}, {s};") if self.f.scales == 2 or self.f.minimums or not i else ""
                         for i, s in enumerate((0x1010, 0x3232)))  # fmt: skip
            out.append([low, self.nothing, high, self.nothing] if self.f.scales == 2 else [low, high or self.nothing] * 2)
        return out

    def _words(self, regs: list[str], first: int, count: int, base: str, at: int) -> None:
        for i in range(count):
            regs[first + i] = self.k.reg("i32")
        names = regs[first] if count == 1 else f"{{{', '.join(regs[first : first + count])}}}"
        self.k.emit(f"ld.shared{f'.v{count}' if count > 1 else ''}.b32 {names}, [{base}+{at}];")

    def _scale_words(self, block: int) -> list[int]:
        """Which words of a row's scales a block reads."""
        f = self.f
        if f.name.startswith("F8"):
            return [block // PER_SCALE]
        return [block] if f.minimums and not f.super_scales else [block // 2]

    def scales(self, panel: int, block: int) -> list[list[str]]:
        """[upper][half]: scale and what is added, as pairs of bf16, for both halves."""
        if (panel, block) in self.made:
            return self.made[panel, block]
        f, v, regs = self.f, self.k.value, self.panels[panel]
        if regs.spread:
            self.made[panel, block] = self._taken(block)
            return self.made[panel, block]
        out: list[list[str]] = []
        for upper in range(2):
            found = regs._scales(upper, block, self.tops[panel])
            own = []
            for s in found[: f.scales]:
                own += [self._pair(s), self.nothing]
            if f.minimums:
                moved = v("float", f"fma.rn.f32 {{}}, {found[0]}, {literal('float', float(self.middle))}, {found[-1]};")
                own[1] = self._pair(moved)
            out.append(own if f.scales == 2 else own * 2)
        self.made[panel, block] = out
        return out

    def _pair(self, x: str) -> str:
        return self.k.value("i32", f"cvt.rn.bf16x2.f32 {{}}, {x}, {x};")

    def registers(self, panel: int, block: int, half: int) -> list[str]:
        """Rows line and line + 8 of the first two columns of a lane, then of its other two."""
        both = []
        for upper in range(2):
            scale, added = self.scales(panel, block)[upper][2 * half : 2 * half + 2]
            both.append([self._scaled(q, scale, added) for q in self.whole(panel, block, half, upper)])
        return [both[0][0], both[1][0], both[0][1], both[1][1]]

    def _scaled(self, q: str, scale: str, added: str) -> str:
        return self.k.value("i32", f"fma.rn.bf16x2 {{}}, {q}, {scale}, {added};")

    def whole(self, panel: int, block: int, half: int, upper: int) -> list[str]:
        """The four quantized values of a lane, without their scale, as two pairs of bf16."""
        v, regs = self.k.value, self.panels[panel]
        value = regs._moved(regs.quantized[2 * block + upper], -4 * half, bytes_of(0x0F))
        for p, plane in enumerate(regs.planes):
            bit = 4 + p
            more = regs._moved(plane[block // 2], bit - (4 * (block % 2) + upper + 2 * half), bytes_of(1 << bit))
            value = v("i32", f"or.b32 {{}}, {value}, {more};")
        if self.bias:
            value = v("i32", f"xor.b32 {{}}, {value}, {bytes_of(self.bias)};")
        large = [v("i32", f"prmt.b32 {{}}, {value}, {self.upper}, {sel};") for sel in (LOW, HIGH)]
        return [v("i32", f"fma.rn.bf16x2 {{}}, {x}, {self.one}, {self.less};") for x in large]


class Signed(Numbers):
    """Quantized values of eight bits with a sign."""

    def __init__(self, k: KernelText, f: Fragments, lane: str, line: str) -> None:
        super().__init__(k, f, lane, line)
        self.minus = k.value("i32", f"mov.b32 {{}}, {_both(-1.0)};")

    def whole(self, panel: int, block: int, half: int, upper: int) -> list[str]:
        v, code = self.k.value, self.panels[panel].quantized[4 * block + 2 * half + upper]
        out = []
        for sel in (LOW, HIGH):
            bits = v("i32", f"prmt.b32 {{}}, {code}, {self.upper}, {sel};")
            low = v("i32", f"and.b32 {{}}, {bits}, {0xFF7FFF7F};")
            base = v("i32", f"and.b32 {{}}, {bits}, {0xFF80FF80};")
            out.append(v("i32", f"fma.rn.bf16x2 {{}}, {base}, {self.minus}, {low};"))
        return out


class FourBits(Numbers):
    """e2m1, twice its value, as in `Nibbles`."""

    def __init__(self, k: KernelText, f: Fragments, lane: str, line: str) -> None:
        super().__init__(k, f, lane, line)
        self.large = k.value("i32", f"mov.b32 {{}}, {_both(2.0**127)};")

    def whole(self, panel: int, block: int, half: int, upper: int) -> list[str]:
        v, regs = self.k.value, self.panels[panel]
        assert isinstance(regs, Nibbles)
        word, out = regs.quantized[2 * block + upper], []
        for pair in range(2):
            first = 16 * half + 8 * pair
            low = v("i32", f"shr.u32 {{}}, {word}, {first};") if first else word
            by = 12 - first  # the other nibble goes to the upper half
            high = v("i32", f"{'shl.b32' if by > 0 else 'shr.u32'} {{}}, {word}, {abs(by)};")
            low, high = v("i32", f"and.b32 {{}}, {low}, 15;"), v("i32", f"and.b32 {{}}, {high}, {0x000F0000};")
            both = v("i32", f"or.b32 {{}}, {low}, {high};")
            size = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {both}, {0x00070007};')}, 6;")
            sign = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {both}, {0x00080008};')}, 12;")
            bits = v("i32", f"or.b32 {{}}, {size}, {sign};")
            out.append(v("i32", f"fma.rn.bf16x2 {{}}, {bits}, {self.large}, {self.nothing};"))
        return out


class Floats(Numbers):
    """e4m3 and e5m2: f16 is exact, one rounding after the scale."""

    def registers(self, panel: int, block: int, half: int) -> list[str]:
        v, regs = self.k.value, self.panels[panel]
        assert isinstance(regs, Bytes)
        both = []
        for upper in range(2):
            scale = v("float", f"mov.b32 {{}}, {regs.scales[upper][block // PER_SCALE]};")
            if self.f.shift:
                scale = v("float", f"mul.rn.f32 {{}}, {scale}, {literal('float', 2.0**-self.f.shift)};")
            even, odd = regs._widened(regs.quantized[4 * block + 2 * half + upper])
            numbers = [[v("float", f"mul.rn.f32 {{}}, {x}, {scale};") for x in regs._halves(pair)] for pair in (even, odd)]
            both.append([v("i32", f"cvt.rn.bf16x2.f32 {{}}, {numbers[1][i]}, {numbers[0][i]};") for i in range(2)])
        return [both[0][0], both[1][0], both[0][1], both[1][1]]


def _both(x: float) -> int:
    """A bf16 twice, as a number."""
    return int(np.float32(x).view(np.uint32) >> 16) * 0x00010001
