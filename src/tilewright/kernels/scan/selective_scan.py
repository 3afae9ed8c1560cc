"""Selective scans: one program per batch element and sixteen channels walks time with the states of its channels in registers.

The backward pass is two launches. The first runs forward and leaves a mark (the state) every CHUNK steps; the second takes the chunks from
the last to the first, computes the states of a chunk again from its mark into local memory, and walks it backwards. Sums over channels
stay in parts, one a program, so that neither threads nor neighbours change a bit. Channels past the last are masked: they read zeros, which
leave every sum as it is. No steps: the first state is the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.dims import Dim, ceildiv
from ...core.dtypes import f32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.scan.selective_scan import LANES
from ...ops.scan.selective_scan import SelectiveScan as SelectiveScanOp
from ...ops.scan.selective_scan import SelectiveScanBackward as SelectiveScanBackwardOp
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .delta_net import working

CHUNK = 32  # steps between marks


class SelectiveScanTemplate(Template):
    key = "selective_scan"
    serves = (SelectiveScanOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        walk = _Walk(region, "selective_scan", region.name, target)
        b, y, last = walk.b, region.results[0], region.results[1]
        out = walk.call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        end = walk.call.view("last", last.type.dtype, last.buffer, last.layout, write=True)
        with b.loop(0, walk.length, 1, [walk.first_state()]) as loop:
            t = loop.index
            step = _Step(walk, t)
            h = step.advanced(loop.carried[0])
            walk.store_row(out, t, step.gated_output(h))
            loop.next(h)
        walk.store_state(end, loop.results[0])
        first = region.operand(region.anchor.operands[-1]) if region.anchor is not None else None
        pairs = [(first.buffer, last.buffer)] if first is not None and first.layout == last.layout else []
        return [walk.finish(region_flops(region), region_bytes(region), pairs)]


class SelectiveScanBackwardTemplate(Template):
    key = "selective_scan_backward"
    serves = (SelectiveScanBackwardOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, h = region.operands[0], region.operands[-3]
        batch, length, d = x.type.shape
        n = h.type.shape[2]
        assert isinstance(n, int)
        chunks = ceildiv(length, CHUNK)
        layout = Layout.contiguous((batch, chunks, d, n))
        marks = Buffer(f"{region.name}.marks", "temp", batch * chunks * d * n * working(x.type.dtype).itemsize)
        return [_marks(region, marks, layout), _backward(region, marks, layout)]


def _marks(region: Region, marks: Buffer, layout: Layout) -> Launch:
    walk = _Walk(region, "selective_scan_marks", f"{region.name}.marks")
    b = walk.b
    out = walk.call.view("marks", walk.dtype, marks, layout, write=True)
    with b.loop(0, walk.length, CHUNK, [walk.first_state()]) as chunk:
        walk.store_state(out, chunk.carried[0], (chunk.index // CHUNK,))
        with b.loop(chunk.index, b.minimum(chunk.index + CHUNK, walk.length), 1, [chunk.carried[0]]) as loop:
            loop.next(_Step(walk, loop.index).advanced(loop.carried[0]))
        chunk.next(loop.results[0])
    return walk.finish(region_flops(region) // 3, region_bytes(region) // 2)


def _backward(region: Region, marks: Buffer, layout: Layout) -> Launch:
    walk = _Walk(region, "selective_scan_backward", region.name)
    b, call, n, dtype = walk.b, walk.call, walk.n, walk.dtype
    gy, gh = (call.view(name, o.type.dtype, o.buffer, o.layout) for name, o in zip(("gy", "gh"), region.operands[-2:], strict=True))
    names = ["dx", "ddelta", "da", "db", "dc", "dskip", *(["dz"] if walk.z is not None else []), "dh"]
    out = {name: call.view(name, r.type.dtype, r.buffer, r.layout, write=True) for name, r in zip(names, region.results, strict=True)}
    saved = call.view("marks", dtype, marks, layout)
    local = b.scratch(dtype, (CHUNK, n, LANES))
    zero, none = b.full((n, LANES), 0.0, dtype), b.full((1, LANES), 0.0, dtype)
    chunks = b.ceildiv(walk.length, CHUNK)
    with b.loop(0, chunks, 1, [walk.load_state(gh), zero, none]) as chunk:
        number = chunks - 1 - chunk.index
        first = number * CHUNK
        size = b.minimum(walk.length - first, CHUNK)
        with b.loop(0, size, 1, [walk.load_state(saved, (number,))]) as again:
            b.store(local, (again.index, 0, 0), again.carried[0])
            again.next(_Step(walk, first + again.index).advanced(again.carried[0]))
        with b.loop(0, size, 1, list(chunk.carried)) as loop:
            i = size - 1 - loop.index
            t = first + i
            g, da, dskip = loop.carried
            step = _Step(walk, t)
            before = b.load(local, (i, 0, 0), (n, LANES))
            dy = walk.load_row(gy, t)
            after = step.advanced(before)
            if step.z is not None:
                s = step.gate()
                walk.store_row(out["dz"], t, dy * step.output(after) * (s * ((step.z * (s * -1.0 + 1.0)) + 1.0)))
                dy = dy * (step.z * s)
            g = g + step.c * dy
            walk.store_part(out["dc"], t, after * dy)
            walk.store_part(out["db"], t, g * step.u)
            slope = g * before * step.decay
            through = b.reduce("sum", g * step.b_, 0)
            walk.store_row(out["ddelta"], t, b.reduce("sum", slope * walk.a, 0) + through * step.x)
            walk.store_row(out["dx"], t, through * step.delta + dy * walk.skip)
            loop.next(g * step.decay, da + slope * step.delta, dskip + dy * step.x)
        chunk.next(*loop.results)
    dh, da, dskip = chunk.results
    walk.store_state(out["dh"], dh)
    walk.store_state(out["da"], da)
    walk.put(out["dskip"], (walk.batch, walk.channel), b.reshape(dskip, (LANES,)), limit=(walk.inside,))
    return walk.finish(region_flops(region), region_bytes(region))


class _Walk:
    """A kernel under construction: the views of the operands and where a program stands."""

    def __init__(self, region: Region, kernel: str, label: str, target: TargetSpec | None = None) -> None:
        """With a target, states of one register a channel are read and written by rows and transposed in registers."""
        gated = region.op(SelectiveScanOp, SelectiveScanBackwardOp).gated
        operands = [o for v in region.node.operands if (o := region.operand(v)) is not None][: 8 if gated else 7]
        self.call = call = Call(kernel, label)
        self.b = b = call.b
        x, a = operands[0], operands[2]
        batch, length, d = x.type.shape
        n = a.type.shape[1]
        assert isinstance(n, int)
        self.n, self.dtype = n, working(x.type.dtype)
        names = ["x", "delta", "a", "b", "c", "skip", *(["z"] if gated else []), "h"]
        self.views = {name: self._view(name, o) for name, o in zip(names, operands, strict=True)}
        self.z = self.views.get("z")
        self.length = call.word("length", length)
        width = call.word("d", d)
        blocks: Dim = ceildiv(d, LANES)
        count = call.word("blocks", blocks)
        self.batch, self.block = b.pid // count, b.pid % count
        self.channel = self.block * LANES
        whole = isinstance(d, int) and d % LANES == 0
        self.inside = None if whole else b.minimum(width - self.channel, LANES)
        self.grid: Dim = batch * blocks
        wide = target is not None and target.kind == "cpu" and target.vector_bits == 32 * LANES
        self.transposes = whole and wide and n == LANES and self.dtype == f32
        self.a = self.square(self.views["a"], (self.channel, 0))
        self.skip = b.reshape(self.get(self.views["skip"], (self.channel,), (LANES,), limit=(self.inside,)), (1, LANES))

    def _view(self, name: str, o: Operand) -> View:
        return self.call.view(name, o.type.dtype, o.buffer, o.layout)

    def get(self, view: View, at: Sequence[Ix | int], shape: tuple[int, ...], **where: Any) -> Tile:
        """Widened to the dtype of arithmetic."""
        return self.b.cast(self.b.load(view, at, shape, **where), self.dtype)

    def put(self, view: View, at: Sequence[Ix | int], x: Tile, **where: Any) -> None:
        self.b.store(view, at, self.b.cast(x, view.type.dtype), **where)

    def square(self, view: View, at: tuple[Ix | int, ...]) -> Tile:
        """(n, LANES) of the last two axes, which are channels and states."""
        if self.transposes:
            return self.b.transpose(self.get(view, at, (LANES, self.n)))
        return self.get(view, at, (self.n, LANES), limit=(None, self.inside), axes=(len(at) - 1, len(at) - 2))

    def first_state(self) -> Tile:
        return self.load_state(self.views["h"])

    def load_state(self, view: View, lead: tuple[Ix | int, ...] = ()) -> Tile:
        return self.square(view, (self.batch, *lead, self.channel, 0))

    def store_state(self, view: View, h: Tile, lead: tuple[Ix | int, ...] = ()) -> None:
        at = (self.batch, *lead, self.channel, 0)
        if self.transposes:
            self.put(view, at, self.b.transpose(h))
        else:
            self.put(view, at, h, limit=(None, self.inside), axes=(len(at) - 1, len(at) - 2))

    def load_row(self, view: View, t: Ix | int) -> Tile:
        """One number a channel: (1, LANES)."""
        return self.b.reshape(self.get(view, (self.batch, t, self.channel), (LANES,), limit=(self.inside,)), (1, LANES))

    def store_row(self, view: View, t: Ix | int, x: Tile) -> None:
        self.put(view, (self.batch, t, self.channel), self.b.reshape(x, (LANES,)), limit=(self.inside,))

    def load_column(self, view: View, t: Ix | int) -> Tile:
        """One number of the state's size, for all channels: (n, 1)."""
        return self.get(view, (self.batch, t, 0), (self.n, 1), axes=(2, 1))

    def store_part(self, view: View, t: Ix | int, x: Tile) -> None:
        """The sum over the channels of this program."""
        self.put(view, (self.batch, t, self.block, 0), self.b.reduce("sum", x), axes=(3, 2))

    def finish(self, flops: Dim, bytes_: Dim, inplace: Sequence[tuple[Buffer, Buffer]] = ()) -> Launch:
        return self.call.finish(self.grid, flops=flops, bytes_=bytes_, inplace=inplace, note=f"states of {LANES} channels in registers")


class _Step:
    """What one step reads, and what follows from it. Products and sums may be fused."""

    def __init__(self, walk: _Walk, t: Ix | int) -> None:
        self.walk, self.bld = walk, walk.b
        self.x, self.delta = walk.load_row(walk.views["x"], t), walk.load_row(walk.views["delta"], t)
        self.b_, self.c = walk.load_column(walk.views["b"], t), walk.load_column(walk.views["c"], t)
        self.z = None if walk.z is None else walk.load_row(walk.z, t)
        self.u = self.delta * self.x
        self.decay = self.bld.unary("exp", self.delta * walk.a)

    def advanced(self, h: Tile) -> Tile:
        return self.bld.fma(self.decay, h, self.u * self.b_)

    def output(self, h: Tile) -> Tile:
        return self.bld.reduce("sum", h * self.c, 0) + self.walk.skip * self.x

    def gate(self) -> Tile:
        assert self.z is not None
        return self.bld.binary("div", self.bld.full((), 1.0, self.walk.dtype), self.bld.unary("exp", self.z * -1.0) + 1.0)

    def gated_output(self, h: Tile) -> Tile:
        y = self.output(h)
        return y if self.z is None else y * (self.z * self.gate())
