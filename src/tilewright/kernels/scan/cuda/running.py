"""Running sums and products along rows on a GPU. A warp takes `AT_ONCE` tiles of 32 elements in a step, so that their loads are in flight
together. A row longer than `CHUNK` is cut: warps find the totals of chunks, one warp a row adds them up, and chunks run again with what
stands before them. Floats are added in f64, in an order that depends on the length of a row alone. Tails are masked; exclusive results are
stored one place later, reversed ones through flipped views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import DType, f64, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.rows.cumulative import CumProd, CumSum
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops

AT_ONCE = 8  # tiles of a warp in a step
CHUNK = 2048
PROGRAMS = 4  # warps of a block

Place = tuple[Ix | int, tuple[Ix | int]]  # where a tile starts, and how many of its elements are inside


def scanned(b: KernelBuilder, start: Ix | int, stop: Ix | int, total: Tile, load: Callable[[Place], Tile],
            store: Callable[[Place, Tile, Tile], None] | None = None, *, fn: str = "sum", most: Dim = CHUNK) -> Tile:
    """Walks the elements start..stop-1 (`most` at most) of a row by a warp. `load` gives a tile of them, `store` takes its place, its
    elements and `total` with all elements up to each; gives the total of all."""
    at_once = max(1, min(AT_ONCE, -(-min(bounds(most)[1], CHUNK) // WARP)))
    join = {"sum": "add", "prod": "mul"}[fn]
    with b.loop(start, stop, WARP * at_once, [total]) as loop:
        places: list[Place] = [(loop.index + i * WARP, (stop - loop.index - i * WARP,)) for i in range(at_once)]
        tiles = [load(p) for p in places]
        before = loop.carried[0]
        for place, own in zip(places, tiles, strict=True):
            if store is not None:
                store(place, own, b.binary(join, b.scan(fn, own), before))
            before = b.binary(join, before, b.reshape(b.reduce(fn, own), ()))
        loop.next(before)
    found: Tile = loop.results[0]
    return found


def sums_before(b: KernelBuilder, source: View, goal: View, lead: tuple[Ix | int, ...], stop: Ix | int, start: Ix | int = 0,
                total: Tile | None = None, most: Dim = CHUNK) -> Tile:
    """For each of the i32 numbers start..stop-1 of a row `total` and the sum of those before it, by a warp; gives the sum of all."""
    return scanned(b, start, stop, b.full((), 0, i32) if total is None else total,
                   lambda p: b.load(source, (*lead, p[0]), (WARP,), limit=p[1]),
                   lambda p, own, upto: b.store(goal, (*lead, p[0]), upto - own, limit=p[1]), most=most)


class CudaRunning(Template):
    key = "running"
    serves = (CumSum, CumProd)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        dtype = region.operands[0].type.dtype
        return None if dtype.is_float or dtype.itemsize >= 4 else Reason(f"no running sums of {dtype} by warps")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        length = region.operands[0].type.shape[op.axis]
        if bounds(length)[1] <= CHUNK:
            return [_Rows(region).launch("")]
        rows = _Rows(region, CHUNK)
        return [rows.launch("totals"), rows.before(), rows.launch("chunks")]


class _Rows:
    def __init__(self, region: Region, each: int | None = None) -> None:
        """Rows that are cut into chunks of `each`, or whole ones."""
        self.region = region
        op: Any = region.node.op
        self.op = op
        self.x = region.operands[0]
        self.fn = "sum" if isinstance(self.op, CumSum) else "prod"
        self.kind: DType = f64 if self.x.type.dtype.is_float else self.x.type.dtype
        self.n = self.x.type.shape[self.op.axis]
        self.lead = [d for i, d in enumerate(self.x.type.shape) if i != self.op.axis]
        self.rows: Dim = product(self.lead)
        self.chunks: Dim = 1 if each is None else ceildiv(self.n, each)
        self.each: Dim = self.n if each is None else each
        self.layout = Layout((self.rows, self.chunks), (self.chunks, 1))
        self.totals, self.earlier = (Buffer(f"{region.name}.{n}", "temp", self.rows * self.chunks * self.kind.itemsize)
                                     for n in ("totals", "before"))

    def _view(self, call: Call, name: str, o: Operand, *, write: bool = False) -> View:
        axis = self.op.axis
        layout = (o.layout.flip(axis) if self.op.reverse else o.layout).permute((*(i for i in range(o.type.ndim) if i != axis), axis))
        return call.view(name, o.type.dtype, o.buffer, layout, write=write)

    def _one(self, b: KernelBuilder) -> Tile:
        return b.full((), int(self.fn == "prod"), self.kind)

    def _finish(self, call: Call, grid: Dim, flops: Dim, bytes_: Dim, note: str) -> Launch:
        launch = call.finish(grid, flops=flops, bytes_=bytes_, note=note)
        launch.kernel = on_threads(launch.kernel, WARP, PROGRAMS)
        return launch

    def launch(self, part: str) -> Launch:
        """Whole rows (""), the totals of chunks, or chunks with what stands before them."""
        call = Call(self.op.name, f"{self.region.name}.{part}" if part else self.region.name)
        b = call.b
        x = self._view(call, "x", self.x)
        n, dims = call.word("n", self.n), [call.word(f"d{i}", d) for i, d in enumerate(self.lead)]
        per_row = call.word("chunks", self.chunks)
        row, chunk = b.pid // per_row, b.pid % per_row
        start = chunk * CHUNK if part else 0
        stop = b.minimum(start + CHUNK, n) if part else n
        at = unravel(b, row, dims)

        def load(p: Place) -> Tile:
            return b.cast(b.load(x, (*at, p[0]), (WARP,), limit=p[1], other=int(self.fn == "prod")), self.kind)

        if part == "totals":
            out = call.view("totals", self.kind, self.totals, self.layout, write=True)
            b.store(out, (row, chunk), scanned(b, start, stop, self._one(b), load, fn=self.fn, most=self.each))
            return self._finish(call, self.rows * self.chunks, region_flops(self.region), self.x.type.nbytes, "totals of chunks, by warps")
        before = self._one(b)
        if part:
            before = b.load(call.view("before", self.kind, self.earlier, self.layout), (row, chunk), ())
        y = self._view(call, "y", self.region.results[0], write=True)
        dtype, later = self.region.results[0].type.dtype, int(self.op.exclusive)

        def store(p: Place, own: Tile, upto: Tile) -> None:
            limit = (b.minimum(p[1][0], n - p[0] - later),)
            b.store(y, (*at, p[0] + later), narrow(b, upto, dtype), limit=limit)

        if later:
            with b.if_(b.binary("and", b.compare("eq", start, 0), b.compare("gt", n, 0))):
                b.store(y, (*at, 0), b.full((), int(self.fn == "prod"), dtype))
        scanned(b, start, stop, before, load, store, fn=self.fn, most=self.each)
        return self._finish(call, self.rows * self.chunks, region_flops(self.region), region_bytes(self.region), "rows by warps")

    def before(self) -> Launch:
        """What stands before each chunk."""
        call = Call(self.op.name, f"{self.region.name}.before")
        b = call.b
        totals = call.view("totals", self.kind, self.totals, self.layout)
        out = call.view("before", self.kind, self.earlier, self.layout, write=True)
        count, one = call.word("chunks", self.chunks), self._one(b)
        b.store(out, (b.pid, 0), one)
        scanned(b, 0, count, one, lambda p: b.load(totals, (b.pid, p[0]), (WARP,), limit=p[1], other=int(self.fn == "prod")),
                lambda p, own, upto: b.store(out, (b.pid, p[0] + 1), upto, limit=(p[1][0] - 1,)), fn=self.fn, most=self.chunks)
        return self._finish(call, self.rows, 0, self.rows * self.chunks * (2 * self.kind.itemsize), "totals added up")
