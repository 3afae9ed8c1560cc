"""Row programs that carry state along an axis: running sums, top-k. One program per row, element by element."""

from __future__ import annotations

from ..core.dims import product
from ..core.dtypes import bool_, compute_dtype
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..ops.indexing import TopK as TopKOp
from ..ops.reductions import CumSum as CumSumOp
from ..tile.builder import Tile
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


class TopK(Template):
    """k sweeps, each finds the best element after the one found before; ties take the smaller index, NaN counts as largest."""

    key = "top_k"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, TopKOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, TopKOp)
        op, x = region.anchor.op, region.operands[0]
        call = Call("top_k", region.name)
        b = call.b
        source = _axis_last(x, op.axis)
        xv = call.view("x", x.type.dtype, x.buffer, source)
        values, indices = (
            call.view(n, r.type.dtype, r.buffer, _axis_last(r, op.axis), write=True)
            for n, r in zip(("v", "i"), region.results, strict=True)
        )
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(source.shape[:-1])])
        size = call.word("n", source.shape[-1])
        wide = compute_dtype(x.type.dtype)

        def before(xa: Tile, ia: Tile, xb: Tile, ib: Tile) -> Tile:
            """Whether element a comes before element b in the result."""
            ahead, same = b.cmp("gt" if op.largest else "lt", xa, xb), b.cmp("eq", xa, xb)
            if wide.is_float:
                na, nb = b.unary("isnan", xa), b.unary("isnan", xb)
                first, second = (na, nb) if op.largest else (nb, na)
                ahead = b.binary("or", ahead, b.binary("and", first, b.unary("not", second)))
                same = b.binary("or", same, b.binary("and", na, nb))
            return b.binary("or", ahead, b.binary("and", same, b.cmp("lt", ia, ib)))

        nothing = [b.full((), 0, wide), b.from_index(-1), b.full((), False, bool_)]
        with b.loop(0, op.k, 1, nothing) as outer:
            last, last_index, any_last = outer.carried
            with b.loop(0, size, 1, nothing) as inner:
                best, where, found = inner.carried
                value, index = widen(b, b.load(xv, (*at, inner.index), ())), b.from_index(inner.index)
                allowed = b.binary("or", b.unary("not", any_last), before(last, last_index, value, index))
                better = b.binary("and", allowed, b.binary("or", b.unary("not", found), before(value, index, best, where)))
                inner.next(b.select(better, value, best), b.select(better, index, where), b.binary("or", found, better))
            best, where, _ = inner.results
            b.store(values, (*at, outer.index), narrow(b, best, x.type.dtype))
            b.store(indices, (*at, outer.index), where)
            outer.next(best, where, b.full((), True, bool_))
        return [call.finish(product(source.shape[:-1]), flops=region_flops(region), bytes_=region_bytes(region), note="k sweeps")]
