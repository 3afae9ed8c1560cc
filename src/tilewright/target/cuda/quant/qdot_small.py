"""Units of four- and eight-bit floats (`kernels/quant/cuda/small_floats.py`): values looked up as signed bytes, or widened to f16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....kernels.quant.cuda.fragments import Fragments
from ....kernels.quant.cuda.small_floats import NVFP4_SCALE, PER_SCALE, TABLE, is_small
from ..ptx.text import KernelText, literal
from .qdot_unit import Unit

if TYPE_CHECKING:
    from .qdot_activations import Activations


def unit_of(k: KernelText, f: Fragments, lane: str, line: str, spread: bool = False) -> Unit:
    if not is_small(f.name):
        return Unit(k, f, lane, line, spread)
    return Bytes(k, f, lane, line) if f.low == 8 else Nibbles(k, f, lane, line, spread)


def word(numbers: tuple[int, ...]) -> str:
    """Four signed bytes as a number."""
    return str(sum((x & 255) << (8 * i) for i, x in enumerate(numbers)))


class Nibbles(Unit):
    """e2m1: `prmt` looks four values up among the numbers and once more among their negatives, a third one takes what the signs say."""

    def _unpack(self, block: int) -> list[str]:
        v, out = self.k.value, []
        for half in range(2):
            for w in self.quantized[2 * block : 2 * block + 2]:
                part = v("i32", f"shr.u32 {{}}, {w}, 16;") if half else w
                which = v("i32", f"and.b32 {{}}, {part}, {0x7777};")
                plus, minus = (v("i32", f"prmt.b32 {{}}, {word(TABLE[i : i + 4])}, {word(TABLE[i + 4 : i + 8])}, {which};") for i in (0, 8))
                signs = v("i32", f"and.b32 {{}}, {v('i32', f'shr.u32 {{}}, {part}, 1;')}, {0x4444};")
                out.append(v("i32", f"prmt.b32 {{}}, {plus}, {minus}, {v('i32', f'or.b32 {{}}, {signs}, {0x3210};')};"))
        return out

    def _scales(self, upper: int, block: int, tops: list[list[str]]) -> list[str]:
        v, words = self.k.value, self.scales[upper]
        if self.f.scales == 1:  # bf16
            w = words[block // 2]
            bits = v("i32", f"and.b32 {{}}, {w}, {0xFFFF0000};") if block % 2 else v("i32", f"shl.b32 {{}}, {w}, 16;")
            return [v("float", f"mov.b32 {{}}, {bits};")]
        out = []
        for half in range(2):
            byte = 2 * block + half
            bits = v("i32", f"bfe.u32 {{}}, {words[byte // 4]}, {8 * (byte % 4)}, 8;")
            tiny = v("float", f"mov.b32 {{}}, {v('i32', f'shl.b32 {{}}, {bits}, 20;')};")
            out.append(v("float", f"mul.rn.f32 {{}}, {tiny}, {literal('float', NVFP4_SCALE)};"))
        return out


class Bytes(Unit):
    """e4m3 and e5m2 as f16: columns 0 and 2, and 1 and 3, of a word are pairs, on both sides of the product."""

    def multiply(self, made: Activations, sums: list[list[str]]) -> None:
        nothing = self.k.value("float", f"mov.f32 {{}}, {literal('float', 0.0)};")
        for block in range(self.f.blocks):
            quantized = self.quantized[4 * block : 4 * block + 4]
            halves = [[self._widened(w) for w in quantized[2 * h : 2 * h + 2]] for h in range(2)]
            scales = [self.scales[upper][block // PER_SCALE] for upper in range(2)]
            for tile, own in enumerate(sums):
                low, high, factor, _ = made.block(tile, block, False)
                found = [nothing] * 4
                for (line, lower), activations in zip(halves, (low, high), strict=True):
                    a, b = (line[0], lower[0], line[1], lower[1]), self._numbers(activations)
                    before, found = found, [self.k.reg("float") for _ in range(4)]
                    self.k.emit(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{', '.join(found)}}}, {{{', '.join(a)}}}, "
                                f"{{{', '.join(b)}}}, {{{', '.join(before)}}};")  # fmt: skip
                for i, (which, upper, column) in enumerate(made.kept):
                    scaled = self.k.value("float", f"mul.rn.f32 {{}}, {found[which]}, {factor[column]};")
                    weight = self.k.value("float", f"mov.b32 {{}}, {scales[upper]};")
                    self.k.emit(f"fma.rn.f32 {own[i]}, {scaled}, {weight}, {own[i]};")

    def _widened(self, quantized: str) -> tuple[str, str]:
        """Columns 0 and 2, and columns 1 and 3, as f16."""
        v = self.k.value
        out = []
        for w in (v("i32", f"shl.b32 {{}}, {quantized}, 8;"), quantized):
            if self.f.name == "F8_E5M2":
                out.append(v("i32", f"and.b32 {{}}, {w}, {0xFF00FF00};"))
                continue
            size = v("i32", f"and.b32 {{}}, {v('i32', f'shr.u32 {{}}, {w}, 1;')}, {0x3F803F80};")
            out.append(v("i32", f"or.b32 {{}}, {size}, {v('i32', f'and.b32 {{}}, {w}, {0x80008000};')};"))
        return out[0], out[1]

    def _numbers(self, quantized: str) -> tuple[str, str]:
        """Signed bytes as f16, exactly: 1024 + 128 + code, less 1152."""
        v = self.k.value
        plus = v("i32", f"xor.b32 {{}}, {quantized}, {0x80808080};")
        large = [v("i32", f"prmt.b32 {{}}, {plus}, {0x64646464}, {sel};") for sel in (0x4240, 0x4341)]
        first, second = (v("i32", f"add.rn.f16x2 {{}}, {x}, {self.less};") for x in large)
        return first, second

    def __init__(self, k: KernelText, f: Fragments, lane: str, line: str) -> None:
        super().__init__(k, f, lane, line)
        self.less = k.value("i32", f"mov.b32 {{}}, {0xE480E480};")
