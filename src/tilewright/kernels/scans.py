"""Row programs that carry state along an axis: running sums. One program per row, element by element."""

from __future__ import annotations

from ..core.dims import product
from ..core.dtypes import compute_dtype
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..ops.reductions import CumSum as CumSumOp
from .call import Call
from .launch import Launch
from .pointwise import unravel
from .region import Operand, Region, narrow, widen
from .template import Reason, Template, alone, region_bytes, region_flops


def _axis_last(o: Operand, axis: int) -> Layout:
    order = (*(i for i in range(o.type.ndim) if i != axis), axis)
    return o.layout.permute(order)


class CumSum(Template):
    key = "cumsum"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, CumSumOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, CumSumOp)
        axis, x, y = region.anchor.op.axis, region.operands[0], region.results[0]
        call = Call("cumsum", region.name)
        b = call.b
        source, target_ = _axis_last(x, axis), _axis_last(y, axis)
        xv, yv = call.view("x", x.type.dtype, x.buffer, source), call.view("y", y.type.dtype, y.buffer, target_, write=True)
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(source.shape[:-1])])
        with b.loop(0, call.word("n", source.shape[-1]), 1, [b.full((), 0, compute_dtype(x.type.dtype))]) as loop:
            total = loop.carried[0] + widen(b, b.load(xv, (*at, loop.index), ()))
            b.store(yv, (*at, loop.index), narrow(b, total, y.type.dtype))
            loop.next(total)
        return [call.finish(product(source.shape[:-1]), flops=region_flops(region), bytes_=region_bytes(region))]
