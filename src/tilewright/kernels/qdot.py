"""Products with packed matrices in integers: codes are unpacked in registers inside the dot product.

`QuantiseRows`: one program per row. `QDot`: one program per block of rows × group of strips; for every 32 columns the dot products are
exact integers (bias included), then scaled by weight scale × activation scale into one f32 chain per element: the bits of a row
do not depend on the rows around it. Rows past n are masked when stored.
"""

from __future__ import annotations

from ..core.dims import Dim, ceildiv, maximum, minimum, product
from ..core.dtypes import DType, f16, f32, i8, i32, u8
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..ops.quant_dot import BLOCK, HALF
from ..ops.quant_dot import QDot as QDotOp
from ..ops.quant_dot import QuantiseRows as QuantiseRowsOp
from ..tile.builder import Ix, Tile, View
from .call import Call
from .launch import Buffer, Launch, Packed
from .pointwise import unravel
from .quantise import quantised_block
from .region import Region, collapse, widen
from .strips import LANES, STRIPS
from .template import Reason, Template, alone, region_bytes, region_flops
from .tiling import for_each_tile, leaves_of_epilogue, tile_heights, write_tile

ROWS = 6  # activation rows of a register tile
STRIPS_AT_ONCE = 2
MAX_ROWS = 512  # activation rows of one program
NIBBLES = 0x0F0F0F0F


class QuantiseRows(Template):
    key = "quantise_rows"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, QuantiseRowsOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x = region.operands[0]
        *lead, k = x.type.shape
        call = Call("quantise_rows", region.name)
        b = call.b
        xv = call.view("x", x.type.dtype, x.buffer, x.layout)
        codes, scales, sums = (
            call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(("q", "d", "s"), region.results, strict=True)
        )
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        with b.loop(0, call.word("blocks", k // BLOCK)) as loop:
            block = loop.index
            tile = widen(b, b.load(xv, (*at, block * BLOCK), (BLOCK,)))
            rounded, scale = quantised_block(b, tile)
            b.store(codes, (*at, block * BLOCK), b.cast(rounded, i8))
            b.store(scales, (*at, block), scale)
            for half in range(2):
                part = b.load(codes, (*at, block * BLOCK + half * HALF), (HALF,))
                b.store(sums, (*at, block * 2 + half), b.reduce("sum", b.cast(part, i32)))
        return [call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


class QDot(Template):
    key = "qdot"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, QDotOp):
            return Reason("no product with a packed matrix")
        operands = [region.operand(v) for v in node.operands]
        if any(o is None for o in operands):
            return Reason("operands must come from memory")
        if operands[3] is None or operands[3].data is None:
            return Reason("the packed matrix must be a constant")
        bad = [r for r in region.results if r.type.shape != node.values[0].shape]
        return Reason(f"outputs must have the shape of the product, got {bad[0].type}") if bad else None

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        assert region.anchor is not None and isinstance(region.anchor.op, QDotOp)
        data = region.operand(region.anchor.operands[3])
        assert data is not None
        index = next(i for i, o in enumerate(region.operands) if o.data is data.data)
        return {index: Packed("strips", LANES, False, region.anchor.op.format)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [_Kernel(region, target).launch()]


class _Kernel:
    def __init__(self, region: Region, target: TargetSpec) -> None:
        assert region.anchor is not None and isinstance(region.anchor.op, QDotOp)
        self.region, self.op, self.value = region, region.anchor.op, region.anchor.values[0]
        self.f = STRIPS[self.op.format]
        self.target = target
        self.call = Call(f"qdot_{self.op.format.lower()}", region.name)

    def launch(self) -> Launch:
        region, call, b, f = self.region, self.call, self.call.b, self.f
        assert region.anchor is not None
        codes, scales, sums, w = (o for v in region.anchor.operands if (o := region.operand(v)) is not None)
        out_shape = self.value.shape
        leaves = leaves_of_epilogue(region, self.value)
        operands = [o for v in leaves if (o := region.operand(v)) is not None]
        others = [o.layout.expand(out_shape) for o in operands]
        rows = [
            Layout(out_shape[:-1], lay.strides[:-1])
            for lay in (codes.layout, scales.layout, sums.layout, *(r.layout for r in region.results), *others)
        ]
        sizes, strides = collapse(out_shape[:-1], rows)
        m: Dim = sizes[-1] if sizes else 1
        lead = sizes[:-1]
        strides = strides if sizes else [[0] for _ in rows]
        shape = (*lead, m)

        step = tuple(s // 4 for s in strides[0])
        self.aq = call.view("aq", i32, codes.buffer, Layout((*shape, self.op.k // 4), (*step, 1), codes.layout.offset // 4))
        self.ad = call.view("ad", f32, scales.buffer, Layout((*shape, self.op.k // BLOCK), (*strides[1], 1), scales.layout.offset))
        self.asum = call.view("as", i32, sums.buffer, Layout((*shape, self.op.k // HALF), (*strides[2], 1), sums.layout.offset))
        strips, blocks = ceildiv(self.op.n, LANES), self.op.k // f.elements
        self.views = {name: self._field(w.buffer, name, dtype, at, size, strips, blocks) for name, dtype, at, size in self._fields()}
        n_out = len(region.results)
        outs = [
            call.view(
                f"c{i}",
                r.type.dtype,
                r.buffer,
                Layout((*shape, self.op.n), (*strides[3 + i], r.layout.strides[-1]), r.layout.offset),
                write=True,
            )
            for i, r in enumerate(region.results)
        ]
        ins = {
            v: call.view(
                f"e{i}",
                o.type.dtype,
                o.buffer,
                Layout((*shape, self.op.n), (*strides[3 + n_out + i], others[i].strides[-1]), o.layout.offset),
            )
            for i, (v, o) in enumerate(zip(leaves, operands, strict=True))
        }
        batch = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        block = self._row_block(m)
        mw, nw, kw = call.word("m", m), call.word("n", self.op.n), call.word("k", self.op.k // BLOCK)
        blockw, blocksw, groups = call.word("block", block), call.word("blocks", ceildiv(m, block)), ceildiv(strips, STRIPS_AT_ONCE)
        groupsw = call.word("groups", groups)
        rest, group = b.pid // groupsw, b.pid % groupsw
        self.at = unravel(b, rest // blocksw, batch)
        first = rest % blocksw * blockw
        last = call.word("last", strips - 1)

        def tile(row: Ix | int, rows_: int) -> None:
            chosen = [b.minimum(group * STRIPS_AT_ONCE + i, last) for i in range(STRIPS_AT_ONCE)]
            for i, acc in enumerate(self._accumulate(row, rows_, chosen, kw)):
                column = (group * STRIPS_AT_ONCE + i) * LANES
                write_tile(b, region, self.value, acc, ins, outs, (*self.at, row), column, nw - column)

        for_each_tile(b, first, b.minimum(blockw, mw - first), ROWS, tile_heights(m, block, ROWS), tile)
        grid = product(lead) * ceildiv(m, block) * groups
        return call.finish(
            grid,
            flops=region_flops(region),
            bytes_=region_bytes(region),
            note=f"{self.op.format} in integers, {ROWS} rows x {STRIPS_AT_ONCE} strips",
        )

    def _row_block(self, m: Dim) -> Dim:
        return maximum(1, minimum(m, MAX_ROWS))

    def _fields(self) -> list[tuple[str, DType, int, int]]:
        """Name, dtype, byte offset and element count of what a block of a strip holds."""
        f = self.f
        small = (u8, 1) if f.super_scales and f.scales == 1 else (i8, 1) if f.super_scales else (f16, 2)
        found: list[tuple[str, DType, int, int]] = [
            ("q", i32, 0, f.plane_at // 4),
            ("scale", small[0], f.scale_at, f.groups * f.scales * LANES),
        ]
        if f.planes:
            found.append(("plane", i32, f.plane_at, (f.scale_at - f.plane_at) // 4))
        if f.minimums:
            found.append(("min", small[0], f.minimum_at, f.groups * LANES))
        if f.super_scales:
            found.append(("d", f16, f.d_at, LANES))
        if f.super_scales and f.minimums:
            found.append(("dmin", f16, f.dmin_at, LANES))
        return found

    def _field(self, buffer: Buffer, name: str, dtype: DType, at: int, size: int, strips: Dim, blocks: int) -> View:
        item, block = dtype.itemsize, self.f.bytes
        return self.call.view(
            name, dtype, buffer, Layout((strips, blocks, size), (blocks * block // item, block // item, 1), at // item), bake=(1,)
        )

    def _accumulate(self, row: Ix | int, rows: int, strips: list[Ix | int], blocks: Ix) -> list[Tile]:
        b, f = self.call.b, self.f
        zero = b.full((rows, LANES), 0.0, f32)
        with b.loop(0, blocks, 1, [zero for _ in strips]) as loop:
            column = loop.index
            block, sub = (column, 0) if f.groups == 1 else (column // f.groups, column % f.groups)
            scale_a = b.load(self.ad, (*self.at, row, column), (rows, 1))
            halves = [b.load(self.asum, (*self.at, row, column * 2 + h), (rows, 1)) for h in range(2)]
            totals = self._dots(row, rows, strips, column, block, sub, halves)
            out = []
            for s, strip in enumerate(strips):
                acc = loop.carried[s]
                for i, total in enumerate(totals[s]):
                    scale = self._scale(strip, block, sub * f.scales + i)
                    acc = b.fma(b.cast(total, f32), scale * scale_a, acc)
                if f.minimums:
                    weighted = b.cast(b.binary("add", halves[0], halves[1]), f32) * scale_a
                    acc = b.fma(self._minimum(strip, block, sub), weighted, acc)
                out.append(acc)
            loop.next(*out)
        return list(loop.results)

    def _dots(
        self, row: Ix | int, rows: int, strips: list[Ix | int], column: Ix, block: Ix | int, sub: Ix | int, halves: list[Tile]
    ) -> list[list[Tile]]:
        """Integer dot products of 32 columns, per strip and scale; the bias is in their start."""
        b, f = self.call.b, self.f
        sums = halves if f.scales == 2 else [b.binary("add", halves[0], halves[1])]
        zero = b.full((rows, LANES), 0, i32)
        start = [zero if f.bias == 0 else b.broadcast(s * f.bias, (rows, LANES)) for s in sums]
        accs = [list(start) for _ in strips]
        words = 8 * f.low // 8
        planes = [
            [b.load(self.views["plane"], (s, block, sub * (f.planes * LANES) + p * LANES), (1, LANES)) for p in range(f.planes)]
            for s in strips
        ]
        for t in range(words):
            for si, s in enumerate(strips):
                word = b.load(self.views["q"], (s, block, sub * (words * LANES) + t * LANES), (1, LANES))
                pieces = [word] if f.low == 8 else [b.binary("and", word, NIBBLES), b.binary("and", b.binary("shr", word, 4), NIBBLES)]
                for i, piece in enumerate(pieces):
                    g = t * len(pieces) + i
                    for p, plane in enumerate(planes[si]):
                        piece = b.binary("or", piece, self._bit(plane, g, 4 + p))
                    left = b.load(self.aq, (*self.at, row, column * 8 + g), (rows, 1))
                    which = g * f.scales // 8
                    accs[si][which] = b.dot4(piece, left, accs[si][which])
        return accs

    def _bit(self, plane: Tile, g: int, to: int) -> Tile:
        """Bits g, g+8, … of a plane moved to bit `to` of every byte."""
        b = self.call.b
        moved = b.binary("shl", plane, to - g) if to >= g else b.binary("shr", plane, g - to)
        return b.binary("and", moved, 0x01010101 << to)

    def _scale(self, strip: Ix | int, block: Ix | int, i: Ix | int) -> Tile:
        b = self.call.b
        own = b.cast(b.load(self.views["scale"], (strip, block, i * LANES), (1, LANES)), f32)
        return own * b.cast(b.load(self.views["d"], (strip, block, 0), (1, LANES)), f32) if self.f.super_scales else own

    def _minimum(self, strip: Ix | int, block: Ix | int, i: Ix | int) -> Tile:
        b = self.call.b
        own = b.cast(b.load(self.views["min"], (strip, block, i * LANES), (1, LANES)), f32)
        return -(own * b.cast(b.load(self.views["dmin"], (strip, block, 0), (1, LANES)), f32)) if self.f.super_scales else own
