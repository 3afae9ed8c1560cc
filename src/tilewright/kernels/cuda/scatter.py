"""Rows added at indices on a GPU: the gradient of an embedding.

Three launches: the indices as checked 32-bit numbers; for each of them the place of the next equal one, and for the first of its kind how
many there are; then a group of threads for each first one adds the rows of its kind in order. So every row of the result has one
writer and one order of sums, and different rows are summed all over the chip.
"""

from __future__ import annotations

from ...core.dims import Dim, bounds, ceildiv, product
from ...core.dtypes import i32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.scatter import ScatterAdd as ScatterAddOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..copies import copy_launch
from ..gather import report_index
from ..launch import Buffer, Launch
from ..region import Operand, Region, narrow, widen
from ..scatter import ScatterAdd
from ..template import Reason, Template, alone
from .groups import on_threads, shared_launch, vector_width

MOST = 1 << 16  # indices: looking for equal ones takes their square
STEP = 128  # indices that a warp compares at a time, four a thread
NOBODY = (1 << 31) - 1


class CudaScatterAdd(Template):
    key = "scatter_add"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        why = alone(region, ScatterAddOp)
        if why is not None:
            return why
        assert region.anchor is not None
        op, (x, ids, _) = region.anchor.op, region.anchor.operands
        rows = type(op) is ScatterAddOp and op.axis == 0 and len(x.shape) == 2 and isinstance(x.shape[1], int) and x.shape[1] > 0
        if not rows or x.dtype.itemsize > 4 or not x.dtype.is_float:
            return Reason("not rows of floats added along the first axis")
        low, high = bounds(product(ids.shape))
        return None if low > 0 and high <= MOST and bounds(x.shape[0])[0] > 0 else Reason(f"serves 1 to {MOST} indices")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None
        x, ids, updates = (region.operand(v) for v in region.anchor.operands)
        assert x is not None and ids is not None and updates is not None
        if not (ids.layout.is_contiguous and updates.layout.is_contiguous and region.results[0].layout.strides[-1] == 1):
            return [shared_launch(launch) for launch in ScatterAdd().build(region, target)]
        result = region.results[0]
        copies = [] if x.buffer is result.buffer else [copy_launch(f"{region.name}.copy", x, result, target)]
        return [*copies, *_Adds(region.name, ids, updates, result).launches()]


class _Adds:
    def __init__(self, name: str, ids: Operand, updates: Operand, result: Operand) -> None:
        self.name, self.ids, self.updates, self.result = name, ids, updates, result
        self.count: Dim = product(ids.type.shape)
        self.padded = ceildiv(self.count, STEP) * STEP
        self.index, self.next, self.many = (Buffer(f"{name}.{n}", "temp", self.padded * 4) for n in ("index", "next", "many"))
        self.line = Layout.contiguous((self.padded,))

    def launches(self) -> list[Launch]:
        return [self._checked(), self._linked(), self._added()]

    def _checked(self) -> Launch:
        """Indices in 32 bits, clamped and reported where they are outside; −1 behind the last."""
        call = Call("scatter_index", f"{self.name}.index")
        b = call.b
        ids = call.view("ids", self.ids.type.dtype, self.ids.buffer, Layout.contiguous((self.count,)))
        out = call.view("index", i32, self.index, self.line, write=True)
        error = call.error()
        count, size = call.word("count", self.count), call.word("size", self.result.type.shape[0])
        b.store(out, (b.pid,), b.full((), -1, i32))
        with b.if_(b.compare("lt", b.pid, count)):
            wanted = b.to_index(b.load(ids, (b.pid,), ()))
            for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
                with b.if_(bad):
                    report_index(b, error, b.pid, wanted)
            b.store(out, (b.pid,), b.from_index(b.minimum(b.maximum(wanted, 0), size - 1), i32))
        launch = call.finish(self.padded, note="indices")
        launch.kernel = on_threads(launch.kernel, 1, 128)
        return launch

    def _linked(self) -> Launch:
        """For each index the place of the next equal one; for the first of its kind how many there are, else 0."""
        call = Call("scatter_links", f"{self.name}.links")
        b = call.b
        index = call.view("index", i32, self.index, self.line)
        after = call.view("next", i32, self.next, self.line, write=True)
        many = call.view("many", i32, self.many, self.line, write=True)
        padded = call.word("padded", self.padded)
        mine, here = b.load(index, (b.pid,), (1,)), b.reshape(b.from_index(b.pid, i32), (1,))
        none, zero = b.full((STEP,), NOBODY, i32), b.full((STEP,), 0, i32)
        one = b.full((STEP,), 1, i32)
        with b.loop(0, padded, STEP, [none, zero, zero]) as loop:
            nearest, later, earlier = loop.carried
            same = b.cmp("eq", b.load(index, (loop.index,), (STEP,)), b.broadcast(mine, (STEP,)))
            place = b.iota((STEP,), 0, i32) + b.broadcast(b.reshape(b.from_index(loop.index, i32), (1,)), (STEP,))
            behind, before = b.cmp("gt", place, b.broadcast(here, (STEP,))), b.cmp("lt", place, b.broadcast(here, (STEP,)))
            found = b.select(same, b.select(behind, place, none), none)
            loop.next(b.binary("min", nearest, found), later + b.select(same, b.select(behind, one, zero), zero),
                      earlier + b.select(same, b.select(before, one, zero), zero))  # fmt: skip
        nearest, later, earlier = loop.results
        b.store(after, (b.pid,), b.reduce("min", nearest))
        lone = b.cmp("eq", b.reduce("sum", earlier), b.full((1,), 0, i32))
        b.store(many, (b.pid,), b.select(lone, b.reduce("sum", later) + b.full((1,), 1, i32), b.full((1,), 0, i32)))
        launch = call.finish(self.count, note="equal indices")
        launch.kernel = on_threads(launch.kernel, 32, 8, 4)
        return launch

    def _added(self) -> Launch:
        """One group for each index; those that are not the first of their kind have nothing to do."""
        width = self.result.type.shape[1]
        assert isinstance(width, int)
        call = Call("scatter_rows", self.name)
        b = call.b
        flat = Layout.contiguous((self.count, width))
        old = call.view("old", self.result.type.dtype, self.result.buffer, self.result.layout)
        new = call.view("new", self.result.type.dtype, self.result.buffer, self.result.layout, write=True)
        rows = call.view("updates", self.updates.type.dtype, self.updates.buffer, flat)
        index, after, many = (call.view(n, i32, x, self.line) for n, x in (("index", self.index), ("next", self.next), ("many", self.many)))
        sizes = [o.type.dtype.itemsize for o in (self.result, self.updates)]
        vector = vector_width(sizes, width, [self.result.layout, flat])
        strip = 32 * vector
        strips = -(-width // strip)
        which, column = b.pid // strips, b.pid % strips * strip
        limit = None if width % strip == 0 else (b.minimum(width - column, strip),)
        count = b.to_index(b.load(many, (which,), ()))
        with b.if_(b.compare("gt", count, 0)):
            row = b.to_index(b.load(index, (which,), ()))

            def at(place: Ix | int) -> Tile:
                return widen(b, b.load(rows, (place, column), (strip,), limit=limit))

            start = widen(b, b.load(old, (row, column), (strip,), limit=limit))
            with b.loop(0, count, 1, [start, b.from_index(which, i32)]) as loop:
                total, place = loop.carried
                now = b.to_index(place)
                loop.next(total + at(now), b.load(after, (now,), ()))
            b.store(new, (row, column), narrow(b, loop.results[0], self.result.type.dtype), limit=limit)
        moved = 3 * self.updates.type.nbytes
        launch = call.finish(self.count * strips, flops=self.updates.type.numel, bytes_=moved, note="rows of equal indices, in order")
        launch.kernel = on_threads(launch.kernel, 32, 8, vector)
        return launch
