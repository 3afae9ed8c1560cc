"""Products of bytes: words of four values of x against words of four values of sixteen rows of weights, summed exactly in i32.

Windows of a convolution are strides: x[..., *spatial, c] is read as rows [*out] by taps by words of c, so a matrix product is the case
without taps. x must lie with its last axis contiguous and all strides whole words; otherwise it is copied first. Signed values are made
unsigned by flipping their top bit (+128), and the accumulators start at -128 times the sums of the rows. Columns past n are masked when
stored; panels past the last one are computed as the last one and not stored. No rows, columns or taps: no programs, or zeros.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv, divisible, maximum, minimum, product
from ...core.dtypes import i8, i32
from ...core.target_spec import TargetSpec
from ...core.words import LANES
from ...ir.layout import Layout
from ...ops.matmul.int_products import IntDot as IntDotOp
from ...ops.matmul.int_products import PackWords as PackWordsOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Buffer, Launch
from ..matmul.tiling import Rows, for_each_tile, tile_heights, write_tile
from ..pointwise.copies import copy_launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result

MAX_ROWS = 192  # rows of x in one program
FLIP = -2139062144  # 0x80808080: the top bit of each byte


class PackWordsTemplate(Template):
    """One program per panel of sixteen rows. Rows and columns outside are read as zeros."""

    key = "pack_words"
    serves = (PackWordsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        w, (words, sums) = region.operands[0], region.results
        n, k = w.type.shape
        call = Call("pack_words", region.name)
        b = call.b
        source = call.view("w", i8, w.buffer, w.layout)
        out = call.view("words", i32, words.buffer, words.layout, write=True)
        total = call.view("sums", i32, sums.buffer, sums.layout, write=True)
        nw, kw, count = call.word("n", n), call.word("k", k), call.word("count", ceildiv(k, 4))
        first = b.pid * LANES
        inside = nw - first
        with b.loop(0, count, 1, [b.full((LANES,), 0, i32)]) as loop:
            wide = []
            for j in range(4):
                column = loop.index * 4 + j
                rows = b.minimum(inside, b.maximum(kw - column, 0) * LANES)  # none of a column that is not there
                wide.append(b.cast(b.load(source, (first, column), (LANES,), limit=(rows,), axes=(0,)), i32))
            word: Tile | None = None
            for j, c in enumerate(wide):
                part = b.binary("shl", b.binary("and", c, 255), 8 * j)
                word = part if word is None else b.binary("or", word, part)
            assert word is not None
            b.store(out, (b.pid, loop.index, 0), word)
            loop.next(loop.carried[0] + ((wide[0] + wide[1]) + (wide[2] + wide[3])))
        b.store(total, (first,), loop.results[0], limit=(inside,))
        return [call.finish(ceildiv(n, LANES), flops=region_flops(region), bytes_=region_bytes(region), note="weights packed at run time")]


class IntDotTemplate(Template):
    key = "int_dot"
    serves = (IntDotOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return from_memory(region) or shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, words, sums = (o for v in region.node.operands if (o := region.operand(v)) is not None)
        launches: list[Launch] = []
        if not _in_words(x.layout):
            launches, x = _copied(region, x, "x", target)
        if not words.layout.is_contiguous:
            more, words = _copied(region, words, "words", target)
            launches += more
        return [*launches, _Kernel(region, x, words, sums, target).launch()]


def _in_words(layout: Layout) -> bool:
    return layout.strides[-1] == 1 and all(divisible(s, 4) for s in (*layout.strides[:-1], layout.offset))


def _copied(region: Region, operand: Operand, name: str, target: TargetSpec) -> tuple[list[Launch], Operand]:
    whole = Operand(operand.type, Buffer(f"{region.name}.{name}", "temp", operand.type.nbytes), Layout.contiguous(operand.type.shape))
    return [copy_launch(f"{region.name}.{name}", operand, whole, target, "laid out in words")], whole


class _Kernel:
    def __init__(self, region: Region, x: Operand, words: Operand, sums: Operand, target: TargetSpec) -> None:
        self.region, self.op, self.value = region, region.op(IntDotOp), region.node.values[0]
        self.x, self.words, self.sums = x, words, sums
        self.call = Call("int_dot", region.name)
        self.rows, self.panels = (6, 4) if target.registers >= 32 else (4, 1)

    def launch(self) -> Launch:
        region, call, b, op = self.region, self.call, self.call.b, self.op
        *shape, n = self.value.shape
        taps, channels = op.kernel, self.x.type.shape[-1]
        assert isinstance(channels, int)
        xs, lead = self.x.layout.strides, len(shape) - len(taps)
        window = (*xs[:lead], *(s * step for s, step in zip(xs[lead:-1], op.stride, strict=True)))
        rows = Rows(region)
        sizes, strides = rows.merged(Layout(tuple(shape), window))
        m = sizes[-1]
        steps = [s * d // 4 for s, d in zip(xs[lead:-1], op.dilation, strict=True)]
        layout = Layout((*sizes, *taps, channels // 4), (*(s // 4 for s in strides[0]), *steps, 1), self.x.layout.offset // 4)
        self.xv = call.view("x", i32, self.x.buffer, layout)
        count = ceildiv(n, LANES)
        self.wv = call.view("w", i32, self.words.buffer, Layout.contiguous((count, *taps, channels // 4, LANES)))
        self.sv = call.view("sums", i32, self.sums.buffer, self.sums.layout)
        outs, ins = rows.views(call, sizes, strides[1:])
        batch = [call.word(f"d{i}", d) for i, d in enumerate(sizes[:-1])]
        block = maximum(1, minimum(m, MAX_ROWS))
        groups = ceildiv(count, self.panels)
        mw, nw = call.word("m", m), call.word("n", n)
        blockw, blocksw, groupsw = call.word("block", block), call.word("blocks", ceildiv(m, block)), call.word("groups", groups)
        rest, group = b.pid // groupsw, b.pid % groupsw
        self.at = unravel(b, rest // blocksw, batch)
        first = rest % blocksw * blockw
        last = call.word("last", count - 1)
        self.nw = nw

        def tile(row: Ix | int, height: int) -> None:
            chosen = [b.minimum(group * self.panels + i, last) for i in range(self.panels)]
            for i, acc in enumerate(self.accumulate(row, height, chosen, channels // 4)):
                column = (group * self.panels + i) * LANES
                write_tile(b, region, self.value, acc, ins, outs, (*self.at, row), column, nw - column)

        for_each_tile(b, first, b.minimum(blockw, mw - first), self.rows, tile_heights(m, block, self.rows), tile)
        grid: Dim = product(sizes[:-1]) * ceildiv(m, block) * groups
        note = f"bytes in integers, {self.rows} rows x {self.panels * LANES} columns"
        return call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=note)

    def accumulate(self, row: Ix | int, rows: int, panels: list[Ix | int], words: int) -> list[Tile]:
        return self._taps([], row, rows, panels, words, [self._start(rows, s) for s in panels])

    def _start(self, rows: int, panel: Ix | int) -> Tile:
        b = self.call.b
        if self.x.type.dtype is not i8:
            return b.full((rows, LANES), 0, i32)
        sums = b.load(self.sv, (panel * LANES,), (LANES,), limit=(self.nw - panel * LANES,))
        return b.broadcast(b.reshape(sums * -128, (1, LANES)), (rows, LANES))

    def _taps(self, tap: list[Ix | int], row: Ix | int, rows: int, panels: list[Ix | int], words: int, accs: list[Tile]) -> list[Tile]:
        """A loop per axis of the window, then one over the words of the channels."""
        b, depth = self.call.b, len(tap)
        if depth < len(self.op.kernel):
            with b.loop(0, self.op.kernel[depth], 1, accs) as loop:
                loop.next(*self._taps([*tap, loop.index], row, rows, panels, words, list(loop.carried)))
            return list(loop.results)
        with b.loop(0, words, 1, accs, unroll=4 if words >= 8 else None) as loop:
            left = b.load(self.xv, (*self.at, row, *tap, loop.index), (rows, 1), axes=(len(self.at), len(self.at) + 1 + depth))
            if self.x.type.dtype is i8:
                left = b.binary("xor", left, FLIP)
            out = []
            for s, acc in zip(panels, loop.carried, strict=True):
                right = b.load(self.wv, (s, *tap, loop.index, 0), (1, LANES))
                out.append(b.dot4(left, right, acc))
            loop.next(*out)
        return list(loop.results)


