"""The backward pass of the gated delta rule in two launches.

The first runs forward and leaves a mark (the memory) every CHUNK steps. In the second one program per head takes the chunks from the last
to the first. Columns of the memory do not depend on each other, so it takes COLUMNS of them at a time: it computes their part of a chunk's
memories again from the mark, which stays in the nearest cache, and walks the chunk backwards. Vectors run along the rows of the memory, so
that dq and dk, which are sums over columns, are sums of registers; their order is that of the columns whoever runs the program.
"""

from __future__ import annotations

from ...core.dims import ceildiv
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.scan.delta_net import GatedDeltaRuleBackward as GatedDeltaRuleBackwardOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .delta_net import NAMES, Walk, working

CHUNK, LANES, COLUMNS = 32, 16, 4
RESULTS = ("dq", "dk", "dv", "dg", "dbeta", "ds")


class GatedDeltaRuleBackwardTemplate(Template):
    key = "gated_delta_rule_backward"
    serves = (GatedDeltaRuleBackwardOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        q, v = (region.given(o) for o in (region.node.operands[0], region.node.operands[2]))
        batch, heads, length, depth = q.type.shape
        chunks, dtype = ceildiv(length, CHUNK), working(q.type.dtype)
        layout = Layout.contiguous((batch, heads, chunks, depth, v.type.shape[-1]))
        marks = Buffer(f"{region.name}.marks", "temp", batch * heads * chunks * depth * v.type.shape[-1] * dtype.itemsize)
        return [_marks(region, marks, layout, dtype), _Back(region, marks, layout, dtype).build()]


def _marks(region: Region, marks: Buffer, layout: Layout, dtype: DType) -> Launch:
    walk = Walk(region, "gated_delta_rule_marks", f"{region.name}.marks")
    b = walk.b
    out = walk.call.view("marks", dtype, marks, layout, write=True)
    walk.start()
    with b.loop(0, walk.steps, CHUNK) as chunk:
        with b.loop(0, walk.depth) as row:
            walk.put(out, (*walk.at, chunk.index // CHUNK, row.index, walk.column), walk.row(row.index))
        with b.loop(chunk.index, b.minimum(chunk.index + CHUNK, walk.steps)) as time:
            walk.step(time.index, None)
    return walk.finish(region_flops(region) // 5, region_bytes(region) // 3)


class _Back:
    """The second launch under construction."""

    def __init__(self, region: Region, marks: Buffer, layout: Layout, dtype: DType) -> None:
        operands = [o for v in region.node.operands if (o := region.operand(v)) is not None]
        batch, heads, length, depth = operands[0].type.shape
        wide = operands[2].type.shape[-1]
        assert isinstance(depth, int) and isinstance(wide, int)
        self.region, self.scale, self.dtype, self.depth, self.wide = region, region.op(GatedDeltaRuleBackwardOp).scale, dtype, depth, wide
        self.call = call = Call("gated_delta_rule_backward", region.name)
        self.b = b = call.b
        self.inputs = {n: call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip((*NAMES, "go", "gs"), operands, strict=True)}
        self.outputs = {n: call.view(n, o.type.dtype, o.buffer, o.layout, write=True) for n, o in zip(RESULTS, region.results, strict=True)}
        self.marks = call.view("marks", dtype, marks, layout)
        self.steps, head_count = call.word("length", length), call.word("heads", heads)
        self.at = (b.pid // head_count, b.pid % head_count)
        self.grid = batch * heads
        padded = -(-depth // LANES) * LANES
        self.keys, self.queries, self.dk, self.dq = (b.scratch(dtype, (CHUNK, padded)) for _ in range(4))
        self.decays, self.betas, self.dg, self.dbeta = (b.scratch(dtype, (CHUNK,)) for _ in range(4))
        self.decayed = b.scratch(dtype, (CHUNK, COLUMNS, padded))  # memories of a chunk after their decay
        self.errors = b.scratch(dtype, (CHUNK, COLUMNS))
        self.grad = b.scratch(dtype, (-(-wide // COLUMNS) * COLUMNS, padded))

    def build(self) -> Launch:
        b = self.b
        self._grad(write=False)
        chunks = b.ceildiv(self.steps, CHUNK)
        with b.loop(0, chunks) as back:
            number = chunks - 1 - back.index
            first = number * CHUNK
            size = b.minimum(self.steps - first, CHUNK)
            self._begin(first, size)
            with b.loop(0, self.wide, COLUMNS) as column:
                self._again(number, first, size, column.index)
                with b.loop(0, size) as time:
                    i = size - 1 - time.index
                    self._step(i, first + i, column.index)
            self._end(first, size)
        self._grad(write=True)
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region),
                                note=f"chunks of {CHUNK} steps, {COLUMNS} columns of the memory at a time")

    # --- reading and writing --------------------------------------------------------------------------------------------------------
    def _read(self, name: str, at: tuple[Ix | int, ...], size: int, limit: Ix | int | None) -> Tile:
        shape, limits = ((size,), (limit,)) if size else ((), None)
        return self.b.cast(self.b.load(self.inputs[name], (*self.at, *at), shape, limit=limits), self.dtype)

    def _write(self, name: str, at: tuple[Ix | int, ...], x: Tile, limit: Ix | int | None = None) -> None:
        view = self.outputs[name]
        self.b.store(view, (*self.at, *at), self.b.cast(x, view.type.dtype), limit=(limit,) if x.shape else None)

    def _grad(self, write: bool) -> None:
        """The cotangent of the last state into local memory, or that of the first state out of it; transposed, as vectors run along
        rows."""
        b, rank = self.b, len(self.at)
        with b.loop(0, self.wide, COLUMNS) as column, b.loop(0, self.depth, LANES) as row:
            at, axes = (*self.at, row.index, column.index), (rank + 1, rank)
            limit = (self.wide - column.index, self.depth - row.index)
            if write:
                view = self.outputs["ds"]
                found = b.load(self.grad, (column.index, row.index), (COLUMNS, LANES))
                b.store(view, at, b.cast(found, view.type.dtype), limit=limit, axes=axes)
            else:
                b.store(self.grad, (column.index, row.index),
                        b.cast(b.load(self.inputs["gs"], at, (COLUMNS, LANES), limit=limit, axes=axes), self.dtype))

    def _begin(self, first: Ix | int, size: Ix | int) -> None:
        """Keys, queries (scaled), decays and betas of a chunk; sums at zero."""
        b, none = self.b, self.b.full((), 0.0, self.dtype)
        with b.loop(0, size) as time:
            i, t = time.index, first + time.index
            with b.loop(0, self.depth, LANES) as row:
                left, at = self.depth - row.index, (i, row.index)
                b.store(self.keys, at, self._read("k", (t, row.index), LANES, left))
                b.store(self.queries, at, self._read("q", (t, row.index), LANES, left) * self.scale)
                for view in (self.dk, self.dq):
                    b.store(view, at, b.full((LANES,), 0.0, self.dtype))
            b.store(self.decays, (i,), b.unary("exp", self._read("g", (t,), 0, None)))
            b.store(self.betas, (i,), self._read("beta", (t,), 0, None))
            b.store(self.dg, (i,), none)
            b.store(self.dbeta, (i,), none)

    def _end(self, first: Ix | int, size: Ix | int) -> None:
        """What a chunk's sums have become."""
        b = self.b
        with b.loop(0, size) as time:
            i, t = time.index, first + time.index
            with b.loop(0, self.depth, LANES) as row:
                left, at = self.depth - row.index, (t, row.index)
                self._write("dk", at, b.load(self.dk, (i, row.index), (LANES,)), left)
                self._write("dq", at, b.load(self.dq, (i, row.index), (LANES,)) * self.scale, left)
            self._write("dg", (t,), b.load(self.dg, (i,), ()))
            self._write("dbeta", (t,), b.load(self.dbeta, (i,), ()))

    # --- one step of COLUMNS columns --------------------------------------------------------------------------------------------------
    def _values(self, name: str, t: Ix | int, column: Ix) -> Tile:
        """One number a column: (COLUMNS, 1)."""
        tile = self.b.load(self.inputs[name], (*self.at, t, column), (COLUMNS, 1), limit=(self.wide - column, None), axes=(3, 2))
        return self.b.cast(tile, self.dtype)

    def _row(self, view: View, i: Ix | int, row: Ix) -> Tile:
        return self.b.broadcast(self.b.load(view, (i, row), (1, LANES)), (COLUMNS, LANES))

    def _all(self, x: Tile) -> Tile:
        return self.b.broadcast(x, (COLUMNS, LANES))

    def _sums(self) -> Tile:
        return self.b.full((COLUMNS, LANES), 0.0, self.dtype)

    def _add(self, view: View, i: Ix | int, row: Ix, x: Tile) -> None:
        """Adds the sum over columns."""
        b = self.b
        b.store(view, (i, row), b.load(view, (i, row), (LANES,)) + b.reshape(b.reduce("sum", x, 0), (LANES,)))

    def _again(self, number: Ix | int, first: Ix | int, size: Ix | int, column: Ix) -> None:
        """The memories of a chunk after their decay, and what each step found wrong in them."""
        b, rank = self.b, len(self.at)
        decay = b.load(self.decays, (0,), ())
        with b.loop(0, self.depth, LANES) as row:
            mark = b.load(self.marks, (*self.at, number, row.index, column), (COLUMNS, LANES), axes=(rank + 2, rank + 1),
                          limit=(self.wide - column, self.depth - row.index))
            b.store(self.decayed, (0, 0, row.index), mark * decay)
        with b.loop(0, size) as time:
            i = time.index
            with b.loop(0, self.depth, LANES, [self._sums()]) as row:
                d = b.load(self.decayed, (i, 0, row.index), (COLUMNS, LANES))
                row.next(b.fma(self._row(self.keys, i, row.index), d, row.carried[0]))
            error = self._values("v", first + i, column) - b.reduce("sum", row.results[0])
            b.store(self.errors, (i, 0), error, axes=(1, 0))
            correction = self._all(error * b.load(self.betas, (i,), ()))
            with b.if_(b.compare("lt", i + 1, size)):
                decay = b.load(self.decays, (i + 1,), ())
                with b.loop(0, self.depth, LANES) as row:
                    s = b.fma(self._row(self.keys, i, row.index), correction, b.load(self.decayed, (i, 0, row.index), (COLUMNS, LANES)))
                    b.store(self.decayed, (i + 1, 0, row.index), s * decay)

    def _step(self, i: Ix | int, t: Ix | int, column: Ix) -> None:
        b = self.b
        go = self._all(self._values("go", t, column))
        error = b.load(self.errors, (i, 0), (COLUMNS, 1), axes=(1, 0))
        beta, decay = b.load(self.betas, (i,), ()), b.load(self.decays, (i,), ())
        correction = self._all(error * beta)
        with b.loop(0, self.depth, LANES, [self._sums()]) as row:
            key, d = self._row(self.keys, i, row.index), b.load(self.decayed, (i, 0, row.index), (COLUMNS, LANES))
            self._add(self.dq, i, row.index, b.fma(key, correction, d) * go)
            grad = b.fma(self._row(self.queries, i, row.index), go, b.load(self.grad, (column, row.index), (COLUMNS, LANES)))
            b.store(self.grad, (column, row.index), grad)
            row.next(b.fma(key, grad, row.carried[0]))
        dc = b.reduce("sum", row.results[0])
        self._count(self.dbeta, i, dc * error)
        dv = dc * beta
        out = self.outputs["dv"]
        b.store(out, (*self.at, t, column), b.cast(dv, out.type.dtype), limit=(self.wide - column, None), axes=(3, 2))
        back = self._all(dv * -1.0)
        with b.loop(0, self.depth, LANES, [self._sums()]) as row:
            key, d = self._row(self.keys, i, row.index), b.load(self.decayed, (i, 0, row.index), (COLUMNS, LANES))
            grad = b.load(self.grad, (column, row.index), (COLUMNS, LANES))
            self._add(self.dk, i, row.index, b.fma(d, back, grad * correction))
            grad = b.fma(key, back, grad)
            b.store(self.grad, (column, row.index), grad * decay)
            row.next(b.fma(grad, d, row.carried[0]))
        self._count(self.dg, i, b.reduce("sum", row.results[0]))

    def _count(self, view: View, i: Ix | int, x: Tile) -> None:
        """Adds the sum of (COLUMNS, 1)."""
        b = self.b
        b.store(view, (i,), b.load(view, (i,), ()) + b.reshape(b.reduce("sum", x, 0), ()))
