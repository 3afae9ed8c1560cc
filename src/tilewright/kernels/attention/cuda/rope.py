"""Rotary embedding on a GPU: the shared mathematics over whole halves of a row, 16 bytes per thread and access."""

from __future__ import annotations

from dataclasses import replace

from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.attention.forward import Rope as RopeOp
from ...cuda.groups import Shared, on_threads, vector_width
from ...launch import Launch
from ...region import Region
from ..rope import RopeTemplate

BLOCK = 128  # threads


class CudaRope(RopeTemplate):
    """Rows whose halves are powers of two and rotate whole; others go one thread at a time."""

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (x, cos, sin), y = region.op(RopeOp), region.operands, region.results[0]
        width = x.type.shape[-1]
        assert isinstance(width, int)
        half = width // 2
        if op.interleaved or op.n_rot not in (None, width) or width % 2 or half & (half - 1):
            return Shared(RopeTemplate()).build(region, target)
        tables = [t.layout.expand((*x.type.shape[:-1], half)) for t in (cos, sin)]
        seen = [x.layout, y.layout, *tables]
        vector = vector_width([o.type.dtype.itemsize for o in (x, y)], half, [Layout(s.shape, s.strides, s.offset) for s in seen])
        threads = half // vector
        if threads > 32:
            return Shared(RopeTemplate()).build(region, target)
        (launch,) = RopeTemplate().build(region, replace(target, vector_bits=32 * half))  # one tile is half a row
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, vector)
        return [launch]
