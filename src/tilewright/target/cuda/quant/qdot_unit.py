"""One unit of a packed matrix in registers: loads, quantized values unpacked to bytes, integer products scaled into sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....kernels.quant.cuda.fragments import COLUMNS, Fragments
from ..ptx.text import KernelText, literal

if TYPE_CHECKING:
    from .qdot_activations import Activations, RowActivations

MAGIC = 0x4B400000  # 1.5·2^23 as an integer: integers of 22 bits added to it are floats of that size and a fraction of nothing


def vector(part: list[str]) -> str:
    """The end of a load or store of these registers."""
    return f".v{len(part)}.b32 {{{', '.join(part)}}}" if len(part) > 1 else f".b32 {part[0]}"


def bytes_of(pattern: int) -> str:
    """The same byte four times, as a number."""
    return str((pattern & 0xFF) * 0x01010101)


class Unit:
    """Registers of this thread's share of a unit (see `kernels/quant/cuda/fragments.py`). `spread`: of the scales, only those of the blocks
    2·quad and 2·quad + 1 (see `multiply_row`)."""

    def __init__(self, k: KernelText, f: Fragments, lane: str, line: str, spread: bool = False) -> None:
        self.k, self.f, self.line, self.spread = k, f, line, spread
        self.wide = 16 if f.low == 8 or f.blocks > 1 else 8  # bytes of a load of quantized values
        self.quantized = [k.reg("i32") for _ in range(f.blocks * f.low // 2)]
        self.planes = [[k.reg("i32") for _ in range(f.pairs)] for _ in range(f.planes)]
        self.scales = [[k.reg("i32") for _ in range(f.row_scales // (4 * 4 if spread else 4))] for _ in range(2)]
        self.tops = [k.reg("i32") for _ in range(2)] if f.super_scales else []
        v = k.value
        self.at_quantized = v("i64", f"mul.wide.u32 {{}}, {lane}, {self.wide};")
        self.at_planes = v("i64", f"mul.wide.u32 {{}}, {lane}, {4 * f.pairs};") if f.planes else ""
        self.at_scales = v("i64", f"mul.wide.u32 {{}}, {line}, {f.row_scales};")
        if spread:
            quad = v("i32", f"and.b32 {{}}, {lane}, 3;")
            self.at_scales = v("i64", f"mad.wide.u32 {{}}, {quad}, {f.row_scales // 4}, {self.at_scales};")
        self.at_tops = v("i64", f"mul.wide.u32 {{}}, {line}, 4;") if f.super_scales else ""
        self.zero = [v("i32", f"mov.b32 {{}}, {MAGIC};") for _ in range(4)]

    def load(self, unit: str, guard: str, hint: str) -> None:
        def one(part: list[str], base: str, at: int) -> None:
            self.k.emit(f"@{guard} ld.global{hint}{vector(part)}, [{base}+{at}];")

        self.each(unit, one)

    def each(self, unit: str, one: Callable[[list[str], str, int], None]) -> None:
        """`one(registers, address, offset)` for every access that brings a unit at this address."""
        f, v = self.f, self.k.value

        def words(regs: list[str], base: str, at: int) -> None:
            for i in range(0, len(regs), 4):
                one(regs[i : i + 4], base, at + 4 * i)

        here = v("i64", f"add.s64 {{}}, {unit}, {self.at_quantized};")
        per = self.wide // 4
        for i in range(0, len(self.quantized), per):
            words(self.quantized[i : i + per], here, i // per * 32 * self.wide)
        for p, regs in enumerate(self.planes):
            words(regs, v("i64", f"add.s64 {{}}, {unit}, {self.at_planes};"), f.plane_at + p * f.plane_bytes)
        rows = v("i64", f"add.s64 {{}}, {unit}, {self.at_scales};")
        for upper in range(2):
            words(self.scales[upper], rows, f.scale_at + 8 * upper * f.row_scales)
        if f.super_scales:
            tops = v("i64", f"add.s64 {{}}, {unit}, {self.at_tops};")
            for upper in range(2):
                words([self.tops[upper]], tops, f.d_at + 32 * upper)

    def multiply(self, made: Activations, sums: list[list[str]]) -> None:
        """Add the products with all activations to the sums; `sums[tile]` as the activations keep them."""
        tops = [self._halves(t) for t in self.tops]
        for block in range(self.f.blocks):
            registers = self._unpack(block)
            scales = [self._scales(upper, block, tops) for upper in range(2)]
            for tile, own in enumerate(sums):
                low, high, factor, weight = made.block(tile, block, self.f.minimums)
                if self.f.scales == 1:
                    found = self._mma("m16n8k32", registers, [low, high], self.zero)
                    self._add(own, made, found, [s[0] for s in scales], factor)
                else:
                    for half, operand in enumerate((low, high)):
                        found = self._mma("m16n8k16", registers[2 * half : 2 * half + 2], [operand], self.zero)
                        self._add(own, made, found, [s[half] for s in scales], factor)
                if self.f.minimums:
                    self._minimums(own, made, [s[-1] for s in scales], weight)

    def multiply_row(self, made: RowActivations, own: list[str]) -> None:
        """Add the products with one row to the sums of rows line and line + 8. Column b of the second operand is the row's block b of 32
        where the first one is the matrix's block b, and nothing elsewhere: after eight products a lane has the sums of two blocks apart,
        and scales them alone."""
        k, v, f = self.k, self.k.value, self.f
        quantized, about = made.own_block()
        found = [self.zero] * f.scales
        for block in range(f.blocks):
            registers = self._unpack(block)
            here = v("i1", f"setp.eq.u32 {{}}, {self.line}, {block};")
            halves = [v("i32", f"selp.b32 {{}}, {x}, 0, {here};") for x in quantized]
            if f.scales == 1:
                found[0] = self._mma("m16n8k32", registers, halves, found[0])
            else:
                found = [self._mma("m16n8k16", registers[2 * i : 2 * i + 2], halves[i : i + 1], found[i]) for i in range(2)]
        tops = [self._halves(t) for t in self.tops]
        for upper in range(2):
            for column in range(2):
                scales = self._scales(upper, column, tops)
                factor, weight = about[2 * column : 2 * column + 2]
                for part, scale in zip(found, scales, strict=False):
                    whole = v("float", f"mov.b32 {{}}, {part[2 * upper + column]};")
                    exact = v("float", f"add.rn.f32 {{}}, {whole}, {literal('float', -12582912.0)};")
                    k.emit(f"fma.rn.f32 {own[upper]}, {v('float', f'mul.rn.f32 {{}}, {exact}, {factor};')}, {scale}, {own[upper]};")
                if f.minimums:
                    k.emit(f"fma.rn.f32 {own[upper]}, {scales[-1]}, {weight}, {own[upper]};")

    def _mma(self, shape: str, a: list[str], b: list[str], c: list[str]) -> list[str]:
        out = [self.k.reg("i32") for _ in range(4)]
        self.k.emit(
            f"mma.sync.aligned.{shape}.row.col.s32.s8.s8.s32 {{{', '.join(out)}}}, {{{', '.join(a)}}}, {{{', '.join(b)}}}, "
            f"{{{', '.join(c)}}};"
        )
        return out

    def _add(self, own: list[str], made: Activations, found: list[str], scales: list[str], factor: list[str]) -> None:
        v = self.k.value
        for i, (which, upper, column) in enumerate(made.kept):
            exact = v("float", f"add.rn.f32 {{}}, {v('float', f'mov.b32 {{}}, {found[which]};')}, {literal('float', -12582912.0)};")
            scaled = v("float", f"mul.rn.f32 {{}}, {exact}, {factor[column]};")
            self.k.emit(f"fma.rn.f32 {own[i]}, {scaled}, {scales[upper]}, {own[i]};")

    def _minimums(self, own: list[str], made: Activations, minimums: list[str], weight: list[str]) -> None:
        for i, (_, upper, column) in enumerate(made.kept):
            self.k.emit(f"fma.rn.f32 {own[i]}, {minimums[upper]}, {weight[column]}, {own[i]};")

    def _halves(self, word: str) -> list[str]:
        """Two f16 as f32."""
        low, high = self.k.reg("half"), self.k.reg("half")
        self.k.emit(f"mov.b32 {{{low}, {high}}}, {word};")
        return [self.k.value("float", f"cvt.f32.f16 {{}}, {x};") for x in (low, high)]

    def _scales(self, upper: int, block: int, tops: list[list[str]]) -> list[str]:
        """Scale (two of them in Q6_K), and minimum, of a row's block."""
        f, v, words = self.f, self.k.value, self.scales[upper]
        if not f.super_scales:
            if f.minimums:
                return self._halves(words[block])
            return [self._halves(words[block // 2])[block % 2]]
        d, dmin = tops[upper]

        def byte(at: int, signed: bool) -> str:
            kind = "s32" if signed else "u32"
            whole = v("i32", f"bfe.{kind} {{}}, {words[at // 4]}, {8 * (at % 4)}, 8;")
            return v("float", f"cvt.rn.f32.{kind} {{}}, {whole};")

        if f.scales == 2:
            return [v("float", f"mul.rn.f32 {{}}, {byte(2 * block + i, True)}, {d};") for i in range(2)]
        at = block + block // 2 * 2
        least = v("float", f"mul.rn.f32 {{}}, {byte(at + 2, False)}, {v('float', f'neg.f32 {{}}, {dmin};')};")
        return [v("float", f"mul.rn.f32 {{}}, {byte(at, False)}, {d};"), least]

    def _unpack(self, block: int) -> list[str]:
        """Four registers of four signed bytes: rows line and line + 8 of the first half, then of the second."""
        f, v = self.f, self.k.value
        if f.low == 8:
            return self.quantized[4 * block : 4 * block + 4]
        words = self.quantized[2 * block : 2 * block + 2]
        out = []
        for half in range(2):
            for upper in range(2):
                value = self._moved(words[upper], f.shift - 4 * half, bytes_of(0x0F << f.shift))
                for p, regs in enumerate(self.planes):
                    bit = 4 + p + f.shift
                    more = self._moved(regs[block // 2], bit - (4 * (block % 2) + upper + 2 * half), bytes_of(1 << bit))
                    value = v("i32", f"or.b32 {{}}, {value}, {more};")
                out.append(value)
        return out

    def _moved(self, word: str, by: int, mask: str) -> str:
        v = self.k.value
        if by:
            word = v("i32", f"{'shl' if by > 0 else 'shr'}.b32 {{}}, {word}, {abs(by)};".replace("shr.b32", "shr.u32"))
        return v("i32", f"and.b32 {{}}, {word}, {mask};")


__all__ = ["COLUMNS", "Unit"]
