"""What the ring of `ring.py` feeds: a warp's share of one stage, multiplied by `mma.sync` or by multiply-adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....core.dtypes import dtype
from ....kernels.cuda.kernel import RingKernel
from ..ptx.text import KernelText, literal
from ..threads.layout import Key, Spots

LINE = 128
UNITS = {"f32": "tf32", "f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8"}


@dataclass
class Side:
    """One operand: its tile in shared memory, and this thread's pieces of it on their way there."""

    base: str  # of the first stage
    rows: int
    outer: bool  # K is the outer axis
    at: str
    left: str
    room: str
    place: str
    hop: int
    skip: str
    jump: str
    pitch: int  # bytes of a line in shared memory


class Core:
    spots: Spots

    def __init__(self, k: KernelText, kernel: RingKernel) -> None:
        self.k, self.kernel = k, kernel
        self.item = dtype(kernel.dtype).itemsize

    def moved(self, line: str, outer: bool) -> str:
        """Which number a line's pieces are exchanged by."""
        raise NotImplementedError

    def place(self, tid: str, sides: list[Side]) -> None:
        """Positions of this thread, and sums of zero."""
        raise NotImplementedError

    def multiply(self, slot: str) -> None:
        raise NotImplementedError

    def corner(self) -> tuple[str, str]:
        raise NotImplementedError

    def slices(self) -> Iterator[tuple[int, dict[Key, str]]]:
        """Runs of the epilogue: the first row, and the sums from there on."""
        raise NotImplementedError

    def _warps(self, tid: str, height: int, width: int) -> tuple[str, str]:
        """First row and column of this warp inside the block."""
        v, g = self.k.value, self.kernel
        warp = v("i32", f"shr.u32 {{}}, {tid}, 5;")
        down = v("i32", f"rem.u32 {{}}, {warp}, {g.bm // height};")
        right = v("i32", f"div.u32 {{}}, {warp}, {g.bm // height};")
        return v("i32", f"mul.lo.u32 {{}}, {down}, {height};"), v("i32", f"mul.lo.u32 {{}}, {right}, {width};")

    def _wide(self, x: str) -> str:
        return self.k.value("i64", f"cvt.u64.u32 {{}}, {x};")


def runs(columns: Sequence[tuple[int, ...]], run: int) -> tuple[tuple[int, ...], ...]:
    """Neighbouring columns, at most `run` together."""
    return tuple(c[i : i + run] for c in columns for i in range(0, len(c), run))


class FmaCore(Core):
    """f32 and f64 on the ordinary units: a thread has tm × tn elements, lanes 4 × 8 of them are a warp. Rows and columns of a thread come
    in runs of 16 bytes, so that an operand with K outside is read 16 bytes at a time too."""

    def __init__(self, k: KernelText, kernel: RingKernel) -> None:
        super().__init__(k, kernel)
        self.per = 16 // self.item
        self.number = "double" if self.item == 8 else "float"
        columns = [tuple(8 * self.per * j + c for c in range(self.per)) for j in range(kernel.tn // self.per)]
        self.spots = Spots(tuple(range(self.per)), runs(columns, kernel.run), kernel.block)

    def moved(self, line: str, outer: bool) -> str:
        return "0" if outer else self.k.value("i32", f"bfe.u32 {{}}, {line}, {self.per.bit_length() - 1}, 3;")

    def place(self, tid: str, sides: list[Side]) -> None:
        v, k, g = self.k.value, self.k, self.kernel
        down, right = self._warps(tid, 4 * g.tm, 8 * g.tn)
        self.row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {tid}, 3, 2;')}, {self.per}, {down};")
        self.column = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {tid}, 7;')}, {self.per}, {right};")
        self.readers = []
        for side, first, count, far in zip(sides, (self.row, self.column), (g.tm, g.tn), (4 * self.per, 8 * self.per), strict=True):
            at = v("i32", f"mad.lo.u32 {{}}, {first}, {self.item if side.outer else LINE}, {side.base};")
            swap = "0" if side.outer else v("i32", f"shl.b32 {{}}, {self.moved(first, False)}, 4;")
            self.readers.append((side, at, swap, count, far))
        self.sums = [[k.reg(self.number) for _ in range(g.tn)] for _ in range(g.tm)]
        for r in (r for line in self.sums for r in line):
            k.emit(f"mov.{'f64' if self.item == 8 else 'f32'} {r}, {literal(self.number, 0.0)};")

    def _load(self, which: int, piece: int, here: str) -> list[list[str]]:
        """[row of this thread][k] for one piece of 16 bytes of K."""
        k, v, per = self.k, self.k.value, self.per
        side, _, swap, count, far = self.readers[which]
        out = [["" for _ in range(per)] for _ in range(count)]
        kind = f".v{per}.f{8 * self.item}"
        if side.outer:
            for j in range(count // per):
                for x in range(per):
                    regs = [k.reg(self.number) for _ in range(per)]
                    k.emit(f"ld.shared{kind} {{{', '.join(regs)}}}, [{here}+{(piece * per + x) * side.pitch + far * j * self.item}];")
                    for c, r in enumerate(regs):
                        out[j * per + c][x] = r
            return out
        near = v("i32", f"add.u32 {{}}, {here}, {v('i32', f'xor.b32 {{}}, {swap}, {16 * piece};')};")
        other = v("i32", f"add.u32 {{}}, {here}, {v('i32', f'xor.b32 {{}}, {swap}, {16 * (piece ^ 4)};')};") if far == 4 * per else near
        for j in range(count // per):
            for c in range(per):
                out[j * per + c] = [k.reg(self.number) for _ in range(per)]
                at = other if j % 2 else near
                k.emit(f"ld.shared{kind} {{{', '.join(out[j * per + c])}}}, [{at}+{(far * j + c) * LINE}];")
        return out

    def multiply(self, slot: str) -> None:
        k, v = self.k, self.k.value
        here = [v("i32", f"add.u32 {{}}, {at}, {slot};") for _, at, *_ in self.readers]
        pieces = LINE // 16
        ahead = [self._load(w, 0, here[w]) for w in (0, 1)]
        for p in range(pieces):
            a, b = ahead
            if p + 1 < pieces:  # the next piece is on its way while this one is multiplied
                ahead = [self._load(w, p + 1, here[w]) for w in (0, 1)]
            for x in range(self.per):
                for i, line in enumerate(self.sums):
                    for j, s in enumerate(line):
                        k.emit(f"fma.rn.f{8 * self.item} {s}, {a[i][x]}, {b[j][x]}, {s};")

    def corner(self) -> tuple[str, str]:
        return self._wide(self.row), self._wide(self.column)

    def slices(self) -> Iterator[tuple[int, dict[Key, str]]]:
        per = self.per
        spots = [c for run in self.spots.columns for c in run]
        for j in range(self.kernel.tm // per):
            yield 4 * per * j, {(i, c): self.sums[j * per + i][n] for i in range(per) for n, c in enumerate(spots)}


class MmaCore(Core):
    """The matrix units of every chip: a warp has blocks of 16 × 8 in f32 (or i32), 32 bytes of K at a time."""

    def __init__(self, k: KernelText, kernel: RingKernel) -> None:
        super().__init__(k, kernel)
        self.number = "i32" if kernel.dtype in ("i8", "u8") else "float"
        self.spots = Spots((0, 8), runs([(8 * j, 8 * j + 1) for j in range(kernel.tn // 8)], kernel.run), kernel.block)
        left, right = (UNITS.get(d, d) for d in (kernel.dtype, kernel.dtype_b))
        sums = "s32" if self.number == "i32" else "f32"
        self.name = f"mma.sync.aligned.m16n8k{32 // self.item}.row.col.{sums}.{left}.{right}.{sums}"

    def moved(self, line: str, outer: bool) -> str:
        return self.k.value("i32", f"and.b32 {{}}, {line}, 7;")

    def place(self, tid: str, sides: list[Side]) -> None:
        v, k, g = self.k.value, self.k, self.kernel
        down, right = self._warps(tid, g.tm, g.tn)
        self.row = v("i32", f"add.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {tid}, 2, 3;')}, {down};")
        self.column = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {tid}, 3;')}, 2, {right};")
        # ldmatrix: lane l gives the address of line l%8 of matrix l/8. The four are (rows, k) of 16 × 32 bytes of A, rows first, and
        # of 16 × 32 bytes of B, k first
        inside = v("i32", f"and.b32 {{}}, {tid}, 7;")
        second, third = v("i32", f"bfe.u32 {{}}, {tid}, 3, 1;"), v("i32", f"bfe.u32 {{}}, {tid}, 4, 1;")
        self.readers = []
        for side, first, (rows, deep) in zip(sides, (down, right), ((second, third), (third, second)), strict=True):
            if side.outer:  # lines are k, pieces are 8 rows
                line = v("i32", f"mad.lo.u32 {{}}, {deep}, 8, {inside};")
                at = v("i32", f"mad.lo.u32 {{}}, {line}, {side.pitch}, {side.base};")
                piece = v("i32", f"add.u32 {{}}, {v('i32', f'shr.u32 {{}}, {first}, 3;')}, {rows};")
            else:
                line = v("i32", f"mad.lo.u32 {{}}, {rows}, 8, {v('i32', f'add.u32 {{}}, {inside}, {first};')};")
                at = v("i32", f"mad.lo.u32 {{}}, {line}, {side.pitch}, {side.base};")
                piece = deep
            self.readers.append((side, at, piece))
        self.inside = inside
        self.sums = [[[k.reg(self.number) for _ in range(4)] for _ in range(g.tn // 8)] for _ in range(g.tm // 16)]
        for r in (r for line in self.sums for four in line for r in four):
            k.emit(f"mov.b32 {r}, 0;" if self.number == "i32" else f"mov.f32 {r}, {literal('float', 0.0)};")

    def _load(self, which: int, slice_: int, here: str) -> list[list[str]]:
        """Four registers for every 16 rows, of 32 bytes of K."""
        k, v, g = self.k, self.k.value, self.kernel
        side, _, piece = self.readers[which]
        out = []
        for i in range((g.tm, g.tn)[which] // 16):
            regs = [k.reg("i32") for _ in range(4)]
            if side.outer:
                chunk = v("i32", f"xor.b32 {{}}, {v('i32', f'add.u32 {{}}, {piece}, {2 * i};')}, {self.inside};")
                at = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {here};")
                k.emit(f"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{', '.join(regs)}}}, [{at}+{16 * slice_ * side.pitch}];")
            else:
                chunk = v("i32", f"xor.b32 {{}}, {v('i32', f'add.u32 {{}}, {piece}, {2 * slice_};')}, {self.inside};")
                at = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {here};")
                k.emit(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{', '.join(regs)}}}, [{at}+{16 * i * side.pitch}];")
            if g.dtype == "f32":  # rounded, not cut off
                for r in regs:
                    k.emit(f"cvt.rna.tf32.f32 {r}, {r};")
            out.append(regs)
        return out

    def multiply(self, slot: str) -> None:
        k, v = self.k, self.k.value
        here = [v("i32", f"add.u32 {{}}, {at}, {slot};") for _, at, _ in self.readers]
        slices = LINE // 32
        ahead = [self._load(w, 0, here[w]) for w in (0, 1)]
        for s in range(slices):
            a, b = ahead
            if s + 1 < slices:
                ahead = [self._load(w, s + 1, here[w]) for w in (0, 1)]
            for i, line in enumerate(self.sums):
                for j, four in enumerate(line):
                    two = b[j // 2][2 * (j % 2) : 2 * (j % 2) + 2]
                    c = ", ".join(four)
                    k.emit(f"{self.name} {{{c}}}, {{{', '.join(a[i])}}}, {{{', '.join(two)}}}, {{{c}}};")

    def corner(self) -> tuple[str, str]:
        return self._wide(self.row), self._wide(self.column)

    def slices(self) -> Iterator[tuple[int, dict[Key, str]]]:
        for i, line in enumerate(self.sums):
            yield 16 * i, {(8 * (x // 2), 8 * j + x % 2): r for j, four in enumerate(line) for x, r in enumerate(four)}
