"""Products with packed matrices in integers: quantized values are unpacked in registers inside the dot product.

`QuantizeRows`: one program per row. `QDot`: one program per block of rows × group of panels (see `panel_dot`). Rows past n are masked
when stored.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv, maximum, minimum, product
from ...core.dtypes import f32, i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.packed.quant_dot import BLOCK, HALF
from ...ops.packed.quant_dot import QDot as QDotOp
from ...ops.packed.quant_dot import QuantizeRows as QuantizeRowsOp
from ...tile.builder import Ix
from ..call import Call
from ..launch import Launch, Packed
from ..matmul.tiling import Rows, for_each_tile, tile_heights, write_tile
from ..pointwise.pointwise import unravel
from ..region import Region, widen
from ..template import Reason, Template, region_bytes, region_flops
from .panel_dot import PanelKernel
from .panels import LANES, PANELS
from .quantize import QuantizedViews, quantize_row, store_block

ROWS = 6  # activation rows of a register tile
PANELS_AT_ONCE, MORE_PANELS = 2, 4  # the latter for one row: what is done with activations serves more weights
PROGRAMS = 8  # programs of a thread, at least, for that
MAX_ROWS = 512  # activation rows of one program


class QuantizeRowsTemplate(Template):
    key = "quantize_rows"
    serves = (QuantizeRowsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x = region.operands[0]
        *lead, k = x.type.shape
        call = Call("quantize_rows", region.name)
        b = call.b
        xv = call.view("x", x.type.dtype, x.buffer, x.layout)
        out = QuantizedViews(
            *(call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(("q", "d", "s"), region.results, strict=True))
        )
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        quantize_row(b, out, at, call.word("blocks", k // BLOCK), lambda column: widen(b, b.load(xv, (*at, column), (HALF,))))
        return [call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


class QDotTemplate(Template):
    key = "qdot"
    serves = (QDotOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node, op = region.node, region.op(QDotOp)
        if op.format not in PANELS:
            return Reason(f"{op.format} has no panels; a product that is not rounded serves it")
        operands = [region.operand(v) for v in node.operands]
        if any(o is None for o in operands):
            return Reason("operands must come from memory")
        if operands[3] is None or operands[3].data is None:
            return Reason("the packed matrix must be a constant")
        if region.tail is not None and op.n % BLOCK:
            return Reason("quantized values are made of whole blocks of columns")
        plain = [r for v, r in zip(region.body.outputs, region.results, strict=True) if v.node is not region.tail]
        bad = [r for r in plain if r.type.shape != node.values[0].shape]
        return Reason(f"outputs must have the shape of the product, got {bad[0].type}") if bad else None

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        data = region.given(region.node.operands[3])
        index = next(i for i, o in enumerate(region.operands) if o.data is data.data)
        return {index: Packed("quantized panels", LANES, False, region.op(QDotOp).format)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [_Kernel(region, target).launch()]


class _Kernel(PanelKernel):
    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.op, self.value = region, region.op(QDotOp), region.node.values[0]
        super().__init__(Call(f"qdot_{self.op.format.lower()}", region.name), PANELS[self.op.format], target)
        panels = -(-self.op.n // LANES)
        fits = self.wide and (region.tail is None or panels % MORE_PANELS == 0)  # a tail writes all blocks of a program's columns
        self.panels = MORE_PANELS if fits and panels >= PROGRAMS * MORE_PANELS * target.cores else PANELS_AT_ONCE

    def launch(self) -> Launch:
        region, call, b = self.region, self.call, self.call.b
        quantized, scales, sums, w = (o for v in region.node.operands if (o := region.operand(v)) is not None)
        out_shape = self.value.shape
        rows = Rows(region)  # with the leaves of a tail, which reads the epilogue's result
        shape, strides = rows.merged(*(Layout(out_shape[:-1], o.layout.strides[:-1]) for o in (quantized, scales, sums)))
        *lead, m = shape
        quantized_rows = Layout((*shape, self.op.k), (*strides[0], 1), quantized.layout.offset)
        self.aq = call.view("aq", i32, quantized.buffer, self.words(quantized_rows))
        self.ad = call.view("ad", f32, scales.buffer, Layout((*shape, self.op.k // BLOCK), (*strides[1], 1), scales.layout.offset))
        self.asum = call.view("as", i32, sums.buffer, Layout((*shape, self.op.k // HALF), (*strides[2], 1), sums.layout.offset))
        panels = ceildiv(self.op.n, LANES)
        self.bind_panels(w.buffer, panels, self.op.k)
        outs, ins = rows.views(call, shape, strides[3:])
        batch = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        block = self._row_block(m)
        mw, nw, kw = call.word("m", m), call.word("n", self.op.n), call.word("k", self.op.k // BLOCK)
        blockw, blocksw, groups = call.word("block", block), call.word("blocks", ceildiv(m, block)), ceildiv(panels, self.panels)
        groupsw = call.word("groups", groups)
        rest, group = b.pid // groupsw, b.pid % groupsw
        self.at = unravel(b, rest // blocksw, batch)
        first = rest % blocksw * blockw
        last = call.word("last", panels - 1)

        def tile(row: Ix | int, rows_: int) -> None:
            if rows_ == 1 or self.panels == PANELS_AT_ONCE:
                some(row, rows_, group * self.panels, self.panels)
                return
            with b.loop(0, self.panels, PANELS_AT_ONCE) as loop:
                some(row, rows_, group * self.panels + loop.index, PANELS_AT_ONCE)

        def some(row: Ix | int, rows_: int, panel: Ix | int, count: int) -> None:
            """Panels panel, panel + 1 …"""
            chosen = [b.minimum(panel + i, last) for i in range(count)]
            for i, acc in enumerate(made := self.accumulate(row, rows_, chosen, kw)):
                column = (panel + i) * LANES
                made[i] = write_tile(b, region, self.value, acc, ins, outs, (*self.at, row), column, nw - column)
            if region.tail is not None:  # two panels of columns are a block
                for i in range(0, count, 2):
                    store_block(b, QuantizedViews(*outs[-3:]), (*self.at, row), (panel + i) // 2, made[i : i + 2])

        for_each_tile(b, first, b.minimum(blockw, mw - first), ROWS, tile_heights(m, block, ROWS), tile)
        grid = product(lead) * ceildiv(m, block) * groups
        return call.finish(
            grid,
            flops=region_flops(region),
            bytes_=region_bytes(region),
            note=f"{self.op.format} in integers, {ROWS} rows x {self.panels} panels",
        )

    def _row_block(self, m: Dim) -> Dim:
        return maximum(1, minimum(m, MAX_ROWS))
