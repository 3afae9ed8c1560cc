"""Products with a stack of packed matrices in integers: every row is multiplied by the matrix it chose, and no other is read.

One program per matrix and group of its panels; it looks through the choices and multiplies the rows that want its matrix, one at a time,
so a matrix that nobody chose is not touched. An element has the bits of `qdot`. The first program checks all choices.
"""

from __future__ import annotations

from ...core.dims import ceildiv
from ...core.dtypes import f32, i32
from ...core.target_spec import TargetSpec
from ...ops.packed.quant_dot import BLOCK
from ...ops.packed.quant_dot import QExpertsDot as QExpertsDotOp
from ...tile.builder import Ix
from ..call import Call
from ..index.gather import report_outside
from ..launch import Launch, Packed
from ..region import Region
from ..template import Reason, Template, region_bytes, region_flops
from .panel_dot import PanelKernel
from .panels import LANES, PANELS
from .qdot import PANELS_AT_ONCE


class QExpertsDotTemplate(Template):
    """No tokens: the programs find no choice to serve."""

    key = "qexperts_dot"
    serves = (QExpertsDotOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if region.operands[3].data is None:
            return Reason("the packed matrices must be a constant")
        whole = region.op(QExpertsDotOp).n % LANES == 0
        return None if whole else Reason(f"a matrix of the stack must have a multiple of {LANES} rows")

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return {3: Packed("quantized panels", LANES, False, region.op(QExpertsDotOp).format)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [_Kernel(region, target).launch()]


class _Kernel(PanelKernel):
    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.op = region, region.op(QExpertsDotOp)
        super().__init__(Call(f"qexperts_{self.op.format.lower()}", region.name), PANELS[self.op.format], target)

    def launch(self) -> Launch:
        region, call, b, op = self.region, self.call, self.call.b, self.op
        quantized, scales, sums, w, ids = region.operands
        y, (tokens, used) = region.results[0], ids.type.shape
        wide = [o.layout.expand((tokens, used, o.type.shape[-1])) for o in (quantized, scales, sums)]
        self.aq = call.view("aq", i32, quantized.buffer, self.words(wide[0]))
        self.ad = call.view("ad", f32, scales.buffer, wide[1])
        self.asum = call.view("as", i32, sums.buffer, wide[2])
        panels = op.n // LANES
        self.bind_panels(w.buffer, panels * op.experts, op.k)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        error = call.error()
        count, slots, blocks = call.word("count", tokens * used), call.word("used", used), call.word("k", op.k // BLOCK)
        groups = ceildiv(panels, PANELS_AT_ONCE)
        groupsw, own = call.word("groups", groups), call.word("panels", panels)
        expertsw, nw = call.word("experts", op.experts), call.word("n", op.n)
        expert, group = b.pid // groupsw, b.pid % groupsw

        def wanted(i: Ix | int) -> Ix:
            return b.to_index(b.load(index, (i // slots, i % slots), ()))

        with b.if_(b.compare("eq", b.pid, 0)), b.loop(0, count) as each:
            report_outside(b, error, each.index, wanted(each.index), expertsw)
        chosen = [expert * own + b.minimum(group * PANELS_AT_ONCE + i, own - 1) for i in range(PANELS_AT_ONCE)]
        with b.loop(0, count) as each, b.if_(b.compare("eq", wanted(each.index), expert)):
            token, slot = each.index // slots, each.index % slots
            self.at = [token]
            for i, acc in enumerate(self.accumulate(slot, 1, chosen, blocks)):
                column = (group * PANELS_AT_ONCE + i) * LANES
                b.store(out, (token, slot, column), acc, limit=(None, nw - column))
        moved = region_bytes(region) - w.type.nbytes + w.type.nbytes // op.experts * used
        return call.finish(op.experts * groups, flops=region_flops(region), bytes_=moved, note=f"{op.format} in integers, chosen matrices")
