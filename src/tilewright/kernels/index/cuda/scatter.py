"""Rows added at indices on a GPU: the gradient of an embedding, messages summed at the nodes of a graph.

Indices are sorted by counting: how often each row is named, a segment for every row that is, the places of its indices in the segment, and
those in order. Then a warp for each segment adds its rows in that order. Where a segment lies and how it was filled may differ from run to
run, the order of its sums does not: every row of the result has one writer.
"""

from __future__ import annotations

from ....core.dims import Dim, bounds, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.index.scatter import ScatterAdd as ScatterAddOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import on_threads, shared_launch, vector_width
from ...launch import Buffer, Launch
from ...pointwise.copies import copy_launch, fill_launch
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template
from ..gather import report_index
from ..scatter import ScatterAddTemplate

MOST = 1 << 30  # indices and rows that 32-bit numbers count
PROGRAMS = 128  # of one thread in a block


class CudaScatterAdd(Template):
    key = "scatter_add"
    serves = (ScatterAddOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        op, (x, ids, _) = region.node.op, region.node.operands
        rows = type(op) is ScatterAddOp and op.axis == 0 and len(x.shape) == 2 and isinstance(x.shape[1], int) and x.shape[1] > 0
        if not rows or x.dtype.itemsize > 4 or not x.dtype.is_float:
            return Reason("not rows of floats added along the first axis")
        low, high = bounds(product(ids.shape))
        least, most = bounds(x.shape[0])
        return None if low > 0 and least > 0 and max(high, most) <= MOST else Reason(f"serves 1 to {MOST} indices of as many rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, updates = (region.given(v) for v in region.node.operands)
        result = region.results[0]
        if result.layout.strides[-1] != 1:
            return [shared_launch(launch) for launch in ScatterAddTemplate().build(region, target)]
        copies = [] if x.buffer is result.buffer else [copy_launch(f"{region.name}.copy", x, result, target)]

        def contiguous(what: str, o: Operand) -> Operand:
            if o.layout.is_contiguous:
                return o
            made = Operand(o.type, Buffer(f"{region.name}.{what}", "temp", o.type.nbytes), Layout.contiguous(o.type.shape))
            copies.append(copy_launch(made.buffer.name, o, made, target, f"copy: {what} must be contiguous"))
            return made

        ids, updates = contiguous("indices", ids), contiguous("updates", updates)
        return [*copies, *_Adds(region.name, ids, updates, result, target).launches()]


class _Adds:
    def __init__(self, name: str, ids: Operand, updates: Operand, result: Operand, target: TargetSpec) -> None:
        self.name, self.ids, self.updates, self.result, self.target = name, ids, updates, result, target
        self.count: Dim = product(ids.type.shape)
        self.rows = result.type.shape[0]
        self.line, self.table = Layout.contiguous((self.count,)), Layout.contiguous((self.rows + 1,))
        self.index, self.member, self.order = (Buffer(f"{name}.{n}", "temp", self.count * 4) for n in ("index", "member", "order"))
        # how often a row is named (behind the last row: how many places are given away); one past the end of its segment so far
        self.many, self.end = (Buffer(f"{name}.{n}", "temp", (self.rows + 1) * 4) for n in ("many", "end"))

    def launches(self) -> list[Launch]:
        type_ = TensorType(i32, (self.rows + 1,))
        zero = fill_launch(f"{self.name}.zero", 0, Operand(type_, self.many, self.table), self.target)
        return [zero, self._counted(), self._placed(), self._filled(), self._ordered(), self._added()]

    def _finish(self, call: Call, grid: Dim, note: str) -> Launch:
        launch = call.finish(grid, note=note)
        launch.kernel = on_threads(launch.kernel, 1, PROGRAMS)
        return launch

    def _view(self, call: Call, name: str, *, write: bool = False) -> View:
        buffer: Buffer = getattr(self, name)
        return call.view(name, i32, buffer, self.table if name in ("many", "end") else self.line, write=write)

    def _counted(self) -> Launch:
        """Indices in 32 bits, clamped and reported where they are outside; how often each row is named."""
        call = Call("scatter_count", f"{self.name}.count")
        b = call.b
        ids = call.view("ids", self.ids.type.dtype, self.ids.buffer, Layout.contiguous((self.count,)))
        index, many = self._view(call, "index", write=True), self._view(call, "many", write=True)
        call.also_reads(self.many)
        error = call.error()
        size = call.word("size", self.rows)
        wanted = b.to_index(b.load(ids, (b.pid,), ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, b.pid, wanted)
        row = b.minimum(b.maximum(wanted, 0), size - 1)
        b.store(index, (b.pid,), b.from_index(row, i32))
        b.atomic("add", many, (row,), b.full((), 1, i32))
        return self._finish(call, self.count, "indices by row")

    def _placed(self) -> Launch:
        """A segment for every row that is named."""
        call = Call("scatter_place", f"{self.name}.place")
        b = call.b
        many, end = self._view(call, "many", write=True), self._view(call, "end", write=True)
        call.also_reads(self.many)
        size = call.word("size", self.rows)
        mine = b.load(many, (b.pid,), ())
        with b.if_(b.cmp("gt", mine, 0)):
            b.store(end, (b.pid,), b.atomic("add", many, (size,), mine))
        return self._finish(call, self.rows, "a segment for each row")

    def _filled(self) -> Launch:
        """The places of a row's indices in its segment, in any order."""
        call = Call("scatter_fill", f"{self.name}.fill")
        b = call.b
        index, end, member = self._view(call, "index"), self._view(call, "end", write=True), self._view(call, "member", write=True)
        call.also_reads(self.end)
        place = b.to_index(b.atomic("add", end, (b.to_index(b.load(index, (b.pid,), ())),), b.full((), 1, i32)))
        last = call.word("count", self.count) - 1  # a launch that is repeated by itself, to be measured, counts on
        b.store(member, (b.minimum(b.maximum(place, 0), last),), b.from_index(b.pid, i32))
        return self._finish(call, self.count, "indices in segments")

    def _segment(self, call: Call, place: Ix | int) -> tuple[Tile, Ix | int, Ix | int, Ix | int]:
        """The index at a place of the segments, its row, and where the row's segment starts and ends."""
        b = call.b
        index, many, end, member = (self._view(call, n) for n in ("index", "many", "end", "member"))
        # A launch that is measured by itself may find anything in these buffers: nothing in them may lead out of bounds.
        count, size = call.word("count", self.count), call.word("size", self.rows)
        mine = b.load(member, (place,), ())
        at = b.minimum(b.maximum(b.to_index(mine), 0), count - 1)
        row = b.minimum(b.maximum(b.to_index(b.load(index, (at,), ())), 0), size - 1)
        stop = b.minimum(b.to_index(b.load(end, (row,), ())), count)
        self.member_view = member
        return mine, row, b.maximum(stop - b.to_index(b.load(many, (row,), ())), 0), stop

    def _ordered(self) -> Launch:
        """Every index at its rank in its segment."""
        call = Call("scatter_order", f"{self.name}.order")
        b = call.b
        order = self._view(call, "order", write=True)
        mine, _, start, stop = self._segment(call, b.pid)
        one, zero = b.full((), 1, i32), b.full((), 0, i32)
        with b.loop(start, stop, 1, [zero]) as loop:
            before = b.cmp("lt", b.load(self.member_view, (loop.index,), ()), mine)
            loop.next(loop.carried[0] + b.select(before, one, zero))
        b.store(order, (b.minimum(start + b.to_index(loop.results[0]), call.word("last", self.count - 1)),), mine)
        return self._finish(call, self.count, "segments in order")

    def _added(self) -> Launch:
        """One group for each place; those that are not the first of their segment have nothing to do."""
        width = self.result.type.shape[1]
        assert isinstance(width, int)
        call = Call("scatter_rows", self.name)
        b = call.b
        flat = Layout.contiguous((self.count, width))
        old = call.view("old", self.result.type.dtype, self.result.buffer, self.result.layout)
        new = call.view("new", self.result.type.dtype, self.result.buffer, self.result.layout, write=True)
        rows = call.view("updates", self.updates.type.dtype, self.updates.buffer, flat)
        order = self._view(call, "order")
        sizes = [o.type.dtype.itemsize for o in (self.result, self.updates)]
        vector = vector_width(sizes, width, [self.result.layout, flat])
        strip = 32 * vector
        strips = -(-width // strip)
        which, column = b.pid // strips, b.pid % strips * strip
        limit = None if width % strip == 0 else (b.minimum(width - column, strip),)
        _, row, start, stop = self._segment(call, which)
        last = call.word("last", self.count - 1)
        with b.if_(b.compare("eq", which, start)):
            first = widen(b, b.load(old, (row, column), (strip,), limit=limit))
            with b.loop(start, stop, 1, [first], unroll=4) as loop:
                now = b.minimum(b.maximum(b.to_index(b.load(order, (loop.index,), ())), 0), last)
                loop.next(loop.carried[0] + widen(b, b.load(rows, (now, column), (strip,), limit=limit)))
            b.store(new, (row, column), narrow(b, loop.results[0], self.result.type.dtype), limit=limit)
        moved = 3 * self.updates.type.nbytes
        launch = call.finish(self.count * strips, flops=self.updates.type.numel, bytes_=moved, note="rows of a segment, in order")
        launch.kernel = on_threads(launch.kernel, 32, 8, vector)
        return launch
