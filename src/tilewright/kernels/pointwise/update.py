"""Writing new elements into a window of a buffer: only the window where the result lives in the buffer's own memory, else a copy first."""

from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ops.pointwise.casts import Cast
from ...ops.state import UpdateSlice as UpdateSliceOp
from ..launch import Launch
from ..region import Operand, Region
from ..template import Template
from .copies import copy_launch, pointwise_of


class UpdateSliceTemplate(Template):
    """A window of no elements runs no program; the window's start is a run-time word."""

    key = "update_slice"
    serves = (UpdateSliceOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, result = region.op(UpdateSliceOp), region.results[0]
        cache, new = region.places
        launches: list[Launch] = []
        if result.buffer is not cache.buffer:
            note = "copy: the old value of a state is still needed, or is not donated"
            launches.append(copy_launch(f"{region.name}.copy", cache, result, target, note))
        window = result.layout.slice(op.axis, op.start, new.type.shape[op.axis], op.step)
        part = Operand(new.type.with_dtype(cache.type.dtype), result.buffer, window)
        body = Graph("update")
        x = body.input(new.type, "new")
        body.outputs = [x if new.type.dtype is cache.type.dtype else Cast(dtype=cache.type.dtype)(x)]
        launches += pointwise_of(target).build(Region(region.name, body, [new], [part]), target)
        return launches
