"""The backward pass of norms on a GPU: a row lives in the registers of a group of threads, is read once and written once; then the sums of
the weight and the bias, down the columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.rows.norms import NormBackward as NormBackwardOp
from ....tile.builder import Tile, View
from ...call import Call
from ...cuda.groups import on_threads, shared_launch, vector_width
from ...cuda.tiled import aligned
from ...launch import Buffer, Launch
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..norm_backward import NormBackwardTemplate
from .reduce import Blocks, Place, Write

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
        item = self.x.type.dtype.itemsize + self.g.type.dtype.itemsize
        sums = Blocks(f"{self.region.name}.sums", [self.width], [self.rows], columns=True, fn="sum", dtype=f32, item=item,
                      count=len(results))  # fmt: skip
        call, vectors = Call("norm_columns", f"{self.region.name}.chunks"), dict[str, int]()
        b = call.b

        def view(call: Call, name: str, o: Operand, lay: Layout, vectors: dict[str, int], *, write: bool = False) -> View:
            vectors[name] = aligned(lay, lay.shape[-1])
            return call.view(name, o.type.dtype, o.buffer, lay, write=write)

        x, g = (view(call, name, o, o.layout, vectors) for name, o in (("x", self.x), ("g", self.g)))
        column = Layout.contiguous((self.rows, 1))
        means, scales = (call.view(name, f32, o, column) for name, o in (("mean", self.means), ("scale", self.scales)))

        def terms(p: Place, later: list[Callable[[], None]]) -> list[Tile]:
            y, c = (b.cast(b.load(v, p.at, p.tile, limit=p.limit), f32) for v in (x, g))
            if self.op.centred:
                y = y - b.load(means, (p.at[0], 0), (p.tile[0], 1), limit=(p.limit[0], None))
            return [c * (y * b.load(scales, (p.at[0], 0), (p.tile[0], 1), limit=(p.limit[0], None))), c][: len(results)]

        def write(call: Call, vectors: dict[str, int]) -> Write:
            rows = [replace(r.layout, shape=(1, self.width), strides=(0, *r.layout.strides)) for r in results]
            outs = [view(call, f"d{i}", r, lay, vectors, write=True) for i, (r, lay) in enumerate(zip(results, rows, strict=True))]

            def put(p: Place, totals: list[Tile]) -> None:
                for out, r, t in zip(outs, results, totals, strict=True):
                    call.b.store(out, p.at, narrow(call.b, t, r.type.dtype), limit=p.limit)

            return put

        last = Call("norm_sums", f"{self.region.name}.sums")
        return sums.launches(call, terms, vectors, last, write, 4 * self.x.type.numel, 2 * self.x.type.nbytes)
