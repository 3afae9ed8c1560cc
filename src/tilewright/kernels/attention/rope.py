"""Rotary embedding: one program per row; pairs are loaded, rotated and stored in registers, the rest of the row is copied."""

from __future__ import annotations

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.attention.forward import Rope as RopeOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Operand, Region, narrow, widen
from ..template import Template, region_bytes, region_flops


class RopeTemplate(Template):
    key = "rope"
    serves = (RopeOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.op(RopeOp)
        x, cos, sin = region.operands
        y = region.results[0]
        *lead, width = x.type.shape
        assert isinstance(width, int)
        n = width if op.n_rot is None else op.n_rot
        half = n // 2
        call = Call("rope", region.name)
        b = call.b

        def halves(name: str, o: Operand, *, write: bool = False) -> tuple[View, View]:
            step = 2 if op.interleaved else 1
            lay = o.layout
            strides = (*lay.strides[:-1], lay.strides[-1] * step)
            second = lay.offset + lay.strides[-1] * (1 if op.interleaved else half)
            return (
                call.view(f"{name}1", o.type.dtype, o.buffer, Layout((*lead, half), strides, lay.offset), write=write),
                call.view(f"{name}2", o.type.dtype, o.buffer, Layout((*lead, half), strides, second), write=write),
            )

        x1, x2 = halves("x", x)
        table = (*lead, half)
        c = call.view("cos", cos.type.dtype, cos.buffer, cos.layout.expand(table))
        s = call.view("sin", sin.type.dtype, sin.buffer, sin.layout.expand(table))
        y1, y2 = halves("y", y, write=True)
        xr, yr = (
            (call.view(f"{m}r", o.type.dtype, o.buffer, o.layout, write=o is y) for m, o in (("x", x), ("y", y)))
            if n < width
            else (None, None)
        )
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        tile = target.vector_bits // 32

        def get(view: View, i: Ix | int, left: int) -> Tile:
            return widen(b, b.load(view, (*at, i), (tile,), limit=(left,) if left < tile else None))

        for i in range(0, half, tile):
            left = half - i
            a, z, co, si = (get(v, i, left) for v in (x1, x2, c, s))
            limit = (left,) if left < tile else None
            b.store(y1, (*at, i), narrow(b, a * co - z * si, y.type.dtype), limit=limit)
            b.store(y2, (*at, i), narrow(b, z * co + a * si, y.type.dtype), limit=limit)
        if xr is not None and yr is not None:
            for i in range(n, width, tile):
                left = width - i
                b.store(
                    yr,
                    (*at, i),
                    b.load(xr, (*at, i), (tile,), limit=(left,) if left < tile else None),
                    limit=(left,) if left < tile else None,
                )
        pairs = [(x.buffer, y.buffer)] if x.layout == y.layout else []
        return [call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region), inplace=pairs, streams=True)]
