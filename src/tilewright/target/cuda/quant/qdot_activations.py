"""The activations of a product with a packed matrix: made from one row of f32 in shared memory, or read as another kernel left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....kernels.quant.cuda.fragments import COLUMNS, ROWS
from ..ptx.text import literal

if TYPE_CHECKING:
    from ....tile.ir import Var
    from .qdot import QDot

EACH = 8  # neighbours that a thread rounds
ONES = str(0x01010101)


class Activations:
    """`kept` says which of the four sums of a product are used: (number, upper row?, column)."""

    kept: tuple[tuple[int, int, int], ...] = ()

    @property
    def width(self) -> int:
        return len(self.kept)

    def rewind(self) -> None:
        """Back to this warp's first unit."""
        raise NotImplementedError

    def advance(self) -> None:
        """To this warp's next unit."""
        raise NotImplementedError

    def bring(self) -> None:
        """Make the activations of this warp's unit ready."""

    def block(self, tile: int, block: int, sums: bool) -> tuple[str, str, list[str], list[str]]:
        """Quantized values of both halves of a block of 32 columns; for each column kept the scale, and the scale times their sum."""
        raise NotImplementedError

    def store(self, out: str, at: int, sums: list[list[str]]) -> None:
        """This warp's sums into shared memory."""
        raise NotImplementedError

    def factor(self) -> str:
        """What the finished sums are multiplied by, if anything."""
        raise NotImplementedError


def starts_of(q: QDot) -> list[tuple[str, str | None]]:
    """This thread's first elements of the row, eight neighbours each, and whether they are inside."""
    g, v, found = q.kernel, q.k.value, list[tuple[str, str | None]]()
    for start in range(0, g.k, EACH * g.block):
        first = v("i32", f"mad.lo.u32 {{}}, {q.tid}, {EACH}, {start};")
        found.append((first, None if start + EACH * g.block <= g.k else v("i1", f"setp.lt.u32 {{}}, {first}, {g.k};")))
    return found


def row_of(q: QDot, view: Var | None, first: str, inside: str | None) -> list[str]:
    """Eight neighbours of a row of f32; zeros past the end."""
    k, v, address = q.k, q.k.value, q.view(view)
    stride = address.strides[-1]
    regs = [k.reg("float") for _ in range(EACH)]
    if inside is not None:
        for r in regs:
            k.emit(f"mov.f32 {r}, {literal('float', 0.0)};")
    guard = f"@{inside} " if inside is not None else ""
    wide = v("i64", f"mul.wide.u32 {{}}, {first}, 4;")
    if stride == "1":
        at = v("i64", f"add.s64 {{}}, {address.pointer}, {wide};")
        for i in (0, 4):
            k.emit(f"{guard}ld.global.v4.f32 {{{', '.join(regs[i : i + 4])}}}, [{at}+{4 * i}];")
        return regs
    at = v("i64", f"mad.lo.s64 {{}}, {wide}, {stride}, {address.pointer};")
    step = v("i64", f"shl.b64 {{}}, {stride}, 2;") if stride.startswith("%") else str(4 * int(stride))
    for r in regs:
        k.emit(f"{guard}ld.global.f32 {r}, [{at}];")
        at = v("i64", f"add.s64 {{}}, {at}, {step};")
    return regs


class RowActivations(Activations):
    """Values of one row, made by all threads: eight neighbours each, four threads a block of 32. All columns of the product are this
    row."""

    kept = ((0, 0, 0), (2, 1, 0))

    def __init__(self, q: QDot) -> None:
        self.q, self.k = q, q.k
        g, k, v = q.kernel, q.k, q.k.value
        self.quantized, self.meta = k.alloc_shared(g.k), k.alloc_shared(g.k // COLUMNS * 8)
        self.squares = k.alloc_shared(4 * g.warps) if g.norm is not None else 0
        total = ""
        rows = [(first, inside, self._row(g.x, first, inside)) for first, inside in q.starts]
        for i, (first, inside, values) in enumerate(rows):
            total = self._round(first, inside, values, q.norms[i] if q.norms else [], total)
        if g.norm is not None:
            for reach in (16, 8, 4, 2, 1):
                total = v("float", f"add.rn.f32 {{}}, {total}, {v('float', f'shfl.sync.bfly.b32 {{}}, {total}, {reach}, 31, -1;')};")
            here = v("i32", f"mad.lo.u32 {{}}, {q.warp}, 4, {q.base};")
            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {q.lane}, 0;')} st.shared.f32 [{here}+{self.squares}], {total};")
        k.emit("bar.sync 0;")
        step = COLUMNS * q.f.blocks
        start_ = v("i32", f"mad.lo.u32 {{}}, {q.warp}, {step}, {q.base};")
        self.first = v("i32", f"mad.lo.u32 {{}}, {q.quad}, 8, {start_};")
        self.first_meta = v("i32", f"mad.lo.u32 {{}}, {q.warp}, {8 * q.f.blocks}, {q.base};")
        if q.spread:
            self.first = v("i32", f"mad.lo.u32 {{}}, {q.line}, {COLUMNS}, {self.first};")
            self.first_meta = v("i32", f"mad.lo.u32 {{}}, {q.quad}, 16, {self.first_meta};")
        self.at, self.at_meta = k.reg("i32"), k.reg("i32")

    def _round(self, first: str, inside: str | None, values: list[str], norm: list[str], total: str) -> str:
        """Quantized values of eight elements; gives the running sum of squares."""
        k, v, tid = self.k, self.k.value, self.q.tid
        if norm:
            for x in values:
                total = v("float", f"fma.rn.f32 {{}}, {x}, {x}, {total or literal('float', 0.0)};")
            values = [v("float", f"mul.rn.f32 {{}}, {x}, {w};") for x, w in zip(values, norm, strict=True)]
        peak = v("float", f"abs.f32 {{}}, {values[0]};")
        for x in values[1:]:
            peak = v("float", f"max.f32 {{}}, {peak}, {v('float', f'abs.f32 {{}}, {x};')};")
        for reach in (1, 2):
            peak = v("float", f"max.f32 {{}}, {peak}, {v('float', f'shfl.sync.bfly.b32 {{}}, {peak}, {reach}, 31, -1;')};")
        zero = v("i1", f"setp.eq.f32 {{}}, {peak}, {literal('float', 0.0)};")
        inverse = v("float", f"div.rn.f32 {{}}, {literal('float', 127.0)}, {peak};")
        inverse = v("float", f"selp.f32 {{}}, {literal('float', 0.0)}, {inverse}, {zero};")
        quantized = []
        for x in values:
            scaled = v("float", f"mul.rn.f32 {{}}, {x}, {inverse};")
            quantized.append(v("i32", f"cvt.rni.s32.f32 {{}}, {scaled};"))
        pairs = [v("i32", f"prmt.b32 {{}}, {quantized[i]}, {quantized[i + 1]}, 0x0040;") for i in range(0, EACH, 2)]
        words = [v("i32", f"prmt.b32 {{}}, {pairs[i]}, {pairs[i + 1]}, 0x5410;") for i in (0, 2)]
        count = v("i32", f"dp4a.u32.s32 {{}}, {ONES}, {words[0]}, 0;")
        count = v("i32", f"dp4a.u32.s32 {{}}, {ONES}, {words[1]}, {count};")
        for reach in (1, 2):
            count = v("i32", f"add.s32 {{}}, {count}, {v('i32', f'shfl.sync.bfly.b32 {{}}, {count}, {reach}, 31, -1;')};")
        scale = v("float", f"mul.rn.f32 {{}}, {peak}, {literal('float', 1 / 127)};")
        weight = v("float", f"mul.rn.f32 {{}}, {scale}, {v('float', f'cvt.rn.f32.s32 {{}}, {count};')};")
        # a quad's words of both halves stand side by side: word 2·quad + half of the block; this thread has one pair of four of them
        part = v("i32", f"and.b32 {{}}, {tid}, 3;")
        block = v("i32", f"shr.u32 {{}}, {first}, 5;")
        place = v("i32", f"mad.lo.u32 {{}}, {block}, {COLUMNS}, {self.q.base};")
        place = v("i32", f"mad.lo.u32 {{}}, {part}, 2, {place};")
        guard = f"@{inside} " if inside is not None else ""
        for i, pair in enumerate(pairs):
            k.emit(f"{guard}st.shared.u16 [{place}+{self.quantized + 8 * i}], {pair};")
        leader = v("i1", f"setp.eq.u32 {{}}, {part}, 0;")
        leader = leader if inside is None else v("i1", f"and.pred {{}}, {leader}, {inside};")
        about = v("i32", f"mad.lo.u32 {{}}, {block}, 8, {self.q.base};")
        k.emit(f"@{leader} st.shared.v2.f32 [{about}+{self.meta}], {{{scale}, {weight}}};")
        return total

    def _row(self, view: Var | None, first: str, inside: str | None) -> list[str]:
        return row_of(self.q, view, first, inside)

    def rewind(self) -> None:
        self.k.emit(f"mov.u32 {self.at}, {self.first};")
        self.k.emit(f"mov.u32 {self.at_meta}, {self.first_meta};")

    def advance(self) -> None:
        g, f = self.q.kernel, self.q.f
        self.k.emit(f"add.u32 {self.at}, {self.at}, {g.warps * f.blocks * COLUMNS};")
        self.k.emit(f"add.u32 {self.at_meta}, {self.at_meta}, {g.warps * f.blocks * 8};")

    def block(self, tile: int, block: int, sums: bool) -> tuple[str, str, list[str], list[str]]:
        k = self.k
        low, high, scale, weight = k.reg("i32"), k.reg("i32"), k.reg("float"), k.reg("float")
        k.emit(f"ld.shared.v2.b32 {{{low}, {high}}}, [{self.at}+{self.quantized + block * COLUMNS}];")
        k.emit(f"ld.shared.v2.f32 {{{scale}, {weight}}}, [{self.at_meta}+{self.meta + block * 8}];")
        return low, high, [scale], [weight]

    def own_block(self) -> tuple[list[str], list[str]]:
        """Values of the unit's block `line`, both halves; of the blocks 2·quad and 2·quad + 1 the scale, and the scale times the sum."""
        k = self.k
        quantized, about = [k.reg("i32") for _ in range(2)], [k.reg("float") for _ in range(4)]
        k.emit(f"ld.shared.v2.b32 {{{', '.join(quantized)}}}, [{self.at}+{self.quantized}];")
        k.emit(f"ld.shared.v4.f32 {{{', '.join(about)}}}, [{self.at_meta}+{self.meta}];")
        return quantized, about

    def store(self, out: str, at: int, sums: list[list[str]]) -> None:
        v = self.k.value
        if self.q.spread:
            for reach in (1, 2):
                others = [v("float", f"shfl.sync.bfly.b32 {{}}, {r}, {reach}, 31, -1;") for r in sums[0]]
                sums = [[v("float", f"add.rn.f32 {{}}, {r}, {x};") for r, x in zip(sums[0], others, strict=True)]]
        only = self.k.value("i1", f"setp.eq.u32 {{}}, {self.q.quad}, 0;")
        for i, r in enumerate(sums[0]):
            self.k.emit(f"@{only} st.shared.f32 [{out}+{at + 32 * i}], {r};")

    def factor(self) -> str:
        g, v = self.q.kernel, self.k.value
        smaller = 2.0**-self.q.f.shift
        if g.norm is None:
            return literal("float", smaller) if self.q.f.shift else ""
        total = ""
        for w in range(g.warps):
            part = v("float", f"ld.shared.f32 {{}}, [{self.q.base}+{self.squares + 4 * w}];")
            total = v("float", f"add.rn.f32 {{}}, {total}, {part};") if w else part
        mean = v("float", f"fma.rn.f32 {{}}, {total}, {literal('float', 1.0 / g.k)}, {literal('float', g.eps)};")
        return v("float", f"div.rn.f32 {{}}, {literal('float', smaller)}, {v('float', f'sqrt.rn.f32 {{}}, {mean};')};")


class StoredActivations(Activations):
    """Rows of values, scales and sums as `quantize_rows` writes them. A warp brings those of its next unit into shared memory of its own;
    rows past the end read the last one and are not stored."""

    kept = ((0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1))

    def __init__(self, q: QDot, first_row: str) -> None:
        self.q, self.k = q, q.k
        g, k, v, blocks = q.kernel, q.k, q.k.value, q.f.blocks
        self.pitch = blocks * COLUMNS + COLUMNS  # the pitch of a row's quantized values: four rows fall on different banks
        self.tile_size, self.tile_meta = 8 * self.pitch, 8 * blocks * 8
        own = g.tiles * self.tile_bytes(blocks)
        self.mine = v("i32", f"mad.lo.u32 {{}}, {q.warp}, {own}, {v('i32', f'add.u32 {{}}, {q.base}, {q.sums_at};')};")
        self.quantized = v("i32", f"mad.lo.u32 {{}}, {q.line}, {self.pitch}, {v('i32', f'mad.lo.u32 {{}}, {q.quad}, 8, {self.mine};')};")
        self.meta = v("i32", f"mad.lo.u32 {{}}, {q.quad}, {2 * blocks * 8}, {self.mine};")
        last = v("i32", f"sub.u32 {{}}, {v('i32', f'cvt.u32.u64 {{}}, {q.e.word(1)};')}, 1;")
        # one lane's share of a row: line = row, quad = which quarter of the unit's half blocks and blocks
        self.rows = []
        for t in range(g.tiles):
            row = v("i32", f"add.u32 {{}}, {v('i32', f'add.u32 {{}}, {q.line}, {8 * t};')}, {first_row};")
            row = v("i32", f"min.u32 {{}}, {row}, {last};")
            starts = [v("i64", f"mad.wide.u32 {{}}, {row}, {size}, {q.view(x).pointer};")
                      for x, size in ((g.quantized, g.k), (g.scales, g.k // 8), (g.sums, g.k // 4))]  # fmt: skip
            self.rows.append(starts)
        self.unit = k.reg("i32")  # number of this warp's unit

    @staticmethod
    def tile_bytes(blocks: int) -> int:
        """Shared memory of a warp for eight rows."""
        return 8 * (blocks * COLUMNS + COLUMNS) + 8 * blocks * 8

    def rewind(self) -> None:
        self.k.emit(f"mov.u32 {self.unit}, {self.q.warp};")

    def advance(self) -> None:
        self.k.emit(f"add.u32 {self.unit}, {self.unit}, {self.q.kernel.warps};")

    def bring(self) -> None:
        """The quantized values, scales and scaled sums of this warp's unit into its shared memory."""
        k, v, q, blocks = self.k, self.k.value, self.q, self.q.f.blocks
        k.emit("bar.warp.sync -1;")
        for t, (quantized, scales, sums) in enumerate(self.rows):
            here = v("i64", f"mad.wide.u32 {{}}, {self.unit}, {blocks * COLUMNS}, {quantized};")
            here = v("i64", f"mad.wide.u32 {{}}, {q.quad}, 16, {here};")
            place = v("i32", f"mad.lo.u32 {{}}, {q.line}, {self.pitch}, {v('i32', f'add.u32 {{}}, {self.mine}, {t * self.tile_size};')};")
            place = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'shr.u32 {{}}, {q.quad}, 1;')}, {COLUMNS}, {place};")
            place = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {q.quad}, 1;')}, 4, {place};")
            for i in range(0, 2 * blocks, 4):  # half blocks i + quad
                inside = None if i + 4 <= 2 * blocks else v("i1", f"setp.lt.u32 {{}}, {q.quad}, {2 * blocks - i};")
                guard = "" if inside is None else f"@{inside} "
                words = [k.reg("i32") for _ in range(4)]
                k.emit(f"{guard}ld.global.v4.b32 {{{', '.join(words)}}}, [{here}+{16 * i}];")
                for n in range(4):  # as the matrix has them: `fragments.in_order`
                    pairs = f"{words[n // 2]}, {words[2 + n // 2]}, {'0x7632' if n % 2 else '0x5410'}"
                    k.emit(f"{guard}st.shared.b32 [{place}+{COLUMNS * i // 2 + 8 * n}], {v('i32', f'prmt.b32 {{}}, {pairs};')};")
            for i in range(0, blocks, 4):  # blocks i + quad
                inside = None if i + 4 <= blocks else v("i1", f"setp.lt.u32 {{}}, {q.quad}, {blocks - i};")
                guard = "" if inside is None else f"@{inside} "
                block = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {self.unit}, {blocks}, {i};')}, {q.quad};")
                scale, a, b = k.reg("float"), k.reg("i32"), k.reg("i32")
                k.emit(f"{guard}ld.global.f32 {scale}, [{v('i64', f'mad.wide.u32 {{}}, {block}, 4, {scales};')}];")
                k.emit(f"{guard}ld.global.v2.b32 {{{a}, {b}}}, [{v('i64', f'mad.wide.u32 {{}}, {block}, 8, {sums};')}];")
                whole = v("float", f"cvt.rn.f32.s32 {{}}, {v('i32', f'add.s32 {{}}, {a}, {b};')};")
                about = self.q.kernel.tiles * self.tile_size + t * self.tile_meta + 8 * i
                at = v("i32", f"mad.lo.u32 {{}}, {q.quad}, 8, {v('i32', f'mad.lo.u32 {{}}, {q.line}, {blocks * 8}, {self.mine};')};")
                k.emit(f"{guard}st.shared.v2.f32 [{at}+{about}], {{{scale}, {v('float', f'mul.rn.f32 {{}}, {whole}, {scale};')}}};")
        k.emit("bar.warp.sync -1;")

    def block(self, tile: int, block: int, sums: bool) -> tuple[str, str, list[str], list[str]]:
        k = self.k
        low, high = k.reg("i32"), k.reg("i32")
        k.emit(f"ld.shared.v2.b32 {{{low}, {high}}}, [{self.quantized}+{tile * self.tile_size + block * COLUMNS}];")
        scales, weights = [], []
        for c in range(2):
            scale, weight = k.reg("float"), k.reg("float")
            at = self.q.kernel.tiles * self.tile_size + tile * self.tile_meta + (c * self.q.f.blocks + block) * 8
            k.emit(f"ld.shared.v2.f32 {{{scale}, {weight}}}, [{self.meta}+{at}];")
            scales.append(scale)
            weights.append(weight)
        return low, high, scales, weights

    def store(self, out: str, at: int, sums: list[list[str]]) -> None:
        g, v = self.q.kernel, self.k.value
        here = v("i32", f"mad.lo.u32 {{}}, {self.q.quad}, {2 * g.warps * ROWS * 4}, {out};")
        for t, own in enumerate(sums):
            for r, (_, upper, column) in zip(own, self.kept, strict=True):
                self.k.emit(f"st.shared.f32 [{here}+{at + (8 * t + column) * g.warps * ROWS * 4 + 32 * upper}], {r};")

    def factor(self) -> str:
        return literal("float", 2.0**-self.q.f.shift) if self.q.f.shift else ""
