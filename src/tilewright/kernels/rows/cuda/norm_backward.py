"""The backward pass of norms on a GPU: a row lives in the registers of a group of threads, is read once and written once; then the sums of
the weight and the bias, down the columns."""

from __future__ import annotations

from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.rows.norm_backward import NormBackward as NormBackwardOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import on_threads, shared_launch, vector_width
from ...cuda.tiled import aligned
from ...launch import Buffer, Launch
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..norm_backward import NormBackwardTemplate
from .columns import Columns, Spot, Write

MOST_THREADS = 1024
PER_THREAD = 32  # elements of a row in a thread's registers
BLOCK = 256


class CudaNormBackward(Template):
    key = "norm_backward"
    serves = (NormBackwardOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        x = region.operands[0].type
        if x.dtype.itemsize > 4 or not isinstance(x.shape[1], int) or not 0 < x.shape[1] <= MOST_THREADS * PER_THREAD:
            return Reason(f"rows of 1 to {MOST_THREADS * PER_THREAD} elements of at most 32 bits")
        return None if all(o.layout.strides[-1] == 1 for o in region.operands) else Reason("rows must lie side by side")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if any(o.layout.strides[-1] != 1 for o in (*region.operands, *region.results)):
            return [shared_launch(launch) for launch in NormBackwardTemplate().build(region, target)]
        return _Norm(region).launches()


class _Norm:
    def __init__(self, region: Region) -> None:
        self.region, self.op = region, region.op(NormBackwardOp)
        operands = [o for v in region.node.operands if (o := region.operand(v)) is not None]
        self.x, self.g = operands[0], operands[-1]
        self.weight = operands[1] if self.op.affine != "none" else None
        self.rows, width = self.x.type.shape
        assert isinstance(width, int)
        self.width = width
        self.means, self.scales = (Buffer(f"{region.name}.{n}", "temp", self.rows * 4) for n in ("mean", "scale"))
        wide = [o for o in (self.x, self.g, self.weight, region.results[0]) if o is not None]
        self.vector = vector_width([o.type.dtype.itemsize for o in wide], width, [o.layout for o in wide])

    def launches(self) -> list[Launch]:
        return [self._rows(), *(self._columns() if self.op.affine != "none" else [])]

    def _rows(self) -> Launch:
        """dx of one row a program, and the row's mean and scale."""
        op, n, region = self.op, self.width, self.region
        threads = 1
        while threads < MOST_THREADS and threads * (PER_THREAD if threads >= 32 else self.vector) < n:
            threads *= 2
        tile = -(-n // (threads * self.vector)) * threads * self.vector
        call = Call("norm_backward", region.name)
        b = call.b
        x, g = (call.view(name, o.type.dtype, o.buffer, o.layout) for name, o in (("x", self.x), ("g", self.g)))
        w = None if self.weight is None else call.view("w", self.weight.type.dtype, self.weight.buffer, self.weight.layout)
        result = region.results[0]
        out = call.view("dx", result.type.dtype, result.buffer, result.layout, write=True)
        line = Layout.contiguous((self.rows,))
        means, scales = (call.view(name, f32, o, line, write=True) for name, o in (("mean", self.means), ("scale", self.scales)))
        row, limit = b.pid, None if tile == n else (n,)
        inside = None if tile == n else b.cmp("lt", b.iota((tile,), 0), n)

        def masked(t: Tile) -> Tile:
            return t if inside is None else b.select(inside, t, 0.0)

        def total(t: Tile) -> Tile:
            return b.reduce("sum", t) * (1.0 / n)

        y = b.cast(b.load(x, (row, 0), (tile,), limit=limit), f32)
        c = b.cast(b.load(g, (row, 0), (tile,), limit=limit), f32)
        if w is not None:
            c = c * b.cast(b.load(w, (0,), (tile,), limit=limit), f32)
        if op.centred:
            mean = total(y)
            b.store(means, (row,), b.reshape(mean, (1,)))
            y = masked(y - mean)
        scale = 1.0 / b.unary("sqrt", total(y * y) + op.eps)
        b.store(scales, (row,), b.reshape(scale, (1,)))
        hat = y * scale
        along = total(c * hat)
        inner = c - total(c) if op.centred else c
        b.store(out, (row, 0), narrow(b, (inner - hat * along) * scale, result.type.dtype), limit=limit)
        launch = call.finish(self.rows, flops=region_flops(region), bytes_=region_bytes(region))
        launch.kernel = on_threads(launch.kernel, threads, max(1, BLOCK // threads) if threads <= 32 else 1, self.vector)
        return launch

    def _columns(self) -> list[Launch]:
        """The sums over rows of g · x̂ and of g."""
        results: list[Operand] = list(self.region.results[1:])
        sums = Columns(f"{self.region.name}.sums", self.rows, self.width, len(results), self.vector)
        call = Call("norm_columns", f"{self.region.name}.chunks")
        b, shape = call.b, (1, self.rows, self.width)
        views, vectors = dict[str, View](), dict[str, int]()
        for name, o in (("x", self.x), ("g", self.g)):
            lay = Layout(shape, (0, *o.layout.strides), o.layout.offset)
            views[name], vectors[name] = call.view(name, o.type.dtype, o.buffer, lay), aligned(lay, self.width, 8)
        for name, buffer in (("mean", self.means), ("scale", self.scales)):
            views[name] = call.view(name, f32, buffer, Layout(shape, (0, 1, 0)))

        def terms(spot: Spot) -> list[Tile]:
            y, c = (b.cast(spot.load(views[name]), f32) for name in ("x", "g"))
            if self.op.centred:
                y = y - spot.load(views["mean"])
            return [c * (y * spot.load(views["scale"])), c][: len(results)]

        def write(call: Call) -> Write:
            c = call.b
            outs = [call.view(f"d{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(results)]

            def put(case: Ix | int, column: Ix | int, left: Ix | int | None, totals: list[Tile]) -> None:
                for view, r, t in zip(outs, results, totals, strict=True):
                    c.store(view, (column,), narrow(c, t, r.type.dtype), limit=None if left is None else (left,))

            return put

        last, note = Call("norm_sums", f"{self.region.name}.sums"), "sums of the weight and the bias, in chunks"
        return sums.launches(call, terms, last, write, 4 * self.x.type.numel, 2 * self.x.type.nbytes, note, vectors)
