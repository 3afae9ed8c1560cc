"""Elements overwritten at indices along an axis on a GPU, a thread an update: in a first launch each claims its place by the largest number
along the axis, in a second the one that holds it writes. So the last update of an element stays, whatever the threads do; nothing is
sorted. Indices that are all different need no claims, and of a permutation nothing is copied. Every index is checked: one outside the axis
is reported in the error block and clamped.
"""

from __future__ import annotations

from contextlib import nullcontext

from ....core.dims import bounds, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.index.scatter import ScatterAlong
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Buffer, Launch
from ...pointwise.copies import copy_launch, fill_launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region
from ...template import Reason, Template
from ..gather import report_index

BLOCK = 128  # threads


class CudaScatterSet(Template):
    key = "scatter_set"
    serves = (ScatterAlong,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        op = region.op(ScatterAlong)
        x, ids = (v.type for v in region.node.operands[:2])
        if not op.claimed(x, ids):
            return Reason("sums are taken in order, and so are a few updates")
        low, high = bounds(x.numel), bounds(ids.numel)
        return None if low[0] > 0 and high[0] > 0 and max(low[1], high[1]) < 1 << 31 else Reason("numbers of 32 bits")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, result = region.op(ScatterAlong), region.given(region.node.operands[0]), region.results[0]
        ids = region.node.operands[1].shape
        kept = x.buffer is result.buffer or (op.alone and ids == x.type.shape)  # or nothing of x is left
        launches = [] if kept else [copy_launch(f"{region.name}.copy", x, result, target)]
        if op.alone or ids[op.axis] == 1:
            return [*launches, _each(region, None, write=True)]
        claims = Operand(TensorType(i32, x.type.shape), Buffer(f"{region.name}.claims", "temp", 4 * x.type.numel),
                         Layout.contiguous(x.type.shape))
        launches.append(fill_launch(f"{region.name}.none", -1, claims, target))
        return [*launches, _each(region, claims, write=False), _each(region, claims, write=True)]


def _each(region: Region, claims: Operand | None, *, write: bool) -> Launch:
    ids, updates = (region.given(v) for v in region.node.operands[1:])
    axis, result, shape = region.op(ScatterAlong).axis, region.results[0], ids.type.shape
    call = Call("scatter_set" if write else "scatter_claim", region.name if write else f"{region.name}.claim")
    b = call.b
    index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
    held = None if claims is None else call.view("claims", i32, claims.buffer, claims.layout, write=not write)
    at = unravel(b, b.pid, [d if isinstance(d, int) else call.word(f"d{i}", d) for i, d in enumerate(shape)])
    wanted, size = b.to_index(b.load(index, at, ())), call.word("size", result.type.shape[axis])
    row = b.minimum(b.maximum(wanted, 0), size - 1)
    goal, number = (*at[:axis], row, *at[axis + 1 :]), b.from_index(at[axis], i32)
    moved = product(shape) * (ids.type.dtype.itemsize + 4 + (2 * result.type.dtype.itemsize if write else 4))
    if claims is None or not write:  # the first launch of them
        error = call.error()
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, b.pid, wanted)
    if write:
        source = call.view("updates", updates.type.dtype, updates.buffer, updates.layout)
        out = call.view("y", result.type.dtype, result.buffer, result.layout, write=True)
        fresh = b.load(source, at, ())
        with nullcontext() if held is None else b.if_(b.cmp("eq", b.load(held, goal, ()), number)):
            b.store(out, goal, fresh)
    else:
        assert claims is not None and held is not None
        call.also_reads(claims.buffer)
        b.atomic("max", held, goal, number)
    launch = call.finish(product(shape), bytes_=moved, note="the last update of an element stays")
    launch.kernel = on_threads(launch.kernel, 1, BLOCK)
    return launch
