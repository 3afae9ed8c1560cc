"""Windows over planes on a GPU, whatever their strides: pools, and convolutions whose results read few channels each (by channel, with a
multiplier, transposed; so also the backward passes of pools and of those).

A thread has one result; neighbouring threads have neighbours along the axis that the results lie along. Taps are written out where they are
few, else loops; one outside the operand is not read. No padded copy, nothing is transposed: a tap's elements come from L1 again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import compute_dtype, i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv
from ....ops.rows.pool_indices import MaxPoolIndices
from ....ops.rows.pooling import AvgPool
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.cuda.pointwise import evaluator
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..conv import ConvTemplate
from ..pool import JOIN, kind_of, larger

BLOCK = 128  # threads
WRITTEN = 32  # taps that are written out
FEW = 4  # channels of a group, and results

Place = Ix | int | Tile  # a coordinate: of a program, or of each of its threads
States = list[Tile]


class Planes:
    """One kernel under construction, over results [lead…, *out]."""

    def __init__(self, name: str, region: Region, shape: Sequence[Dim], layout: Layout, n: int) -> None:
        self.region, self.call, self.n = region, Call(name, region.name), n
        b, call = self.call.b, self.call
        self.b, rank = b, len(shape)
        beside = [a for a in range(rank) if layout.strides[a] == 1 and shape[a] != 1]
        self.lane = beside[-1] if beside else rank - 1
        self.order = (*(a for a in range(rank) if a != self.lane), self.lane)
        size = shape[self.lane]
        self.threads = WARP if not isinstance(size, int) or size > WARP // 2 else max(4, 1 << (size - 1).bit_length())
        count, strips = call.word("count", size), call.word("strips", ceildiv(size, self.threads))
        words = [call.word(f"d{a}", shape[a]) for a in self.order[:-1]]
        others = unravel(b, b.pid // strips, words) if words else []
        lanes = b.iota((self.threads,), 0, i32) + b.from_index(b.pid % strips * self.threads, i32)
        self.here = b.cmp("lt", lanes, b.from_index(count, i32))
        self.at: dict[int, Place] = dict(zip(self.order, [*others, lanes], strict=True))
        self.grid = product([shape[a] for a in self.order[:-1]]) * ceildiv(size, self.threads)

    def view(self, name: str, o: Operand, layout: Layout, *, write: bool = False) -> Spots:
        """An operand whose axes are the results'."""
        return Spots(self.call, name, o.type.dtype, o.buffer, layout.permute(self.order), write=write)

    def spots(self, at: dict[int, Place]) -> tuple[list[Ix | int], Tile]:
        """What a view wants: the coordinates of the program and of its threads."""
        mine = at[self.lane]
        lanes = mine if isinstance(mine, Tile) else self.b.broadcast(self.b.from_index(mine, i32), (self.threads,))
        return [*(x for a in self.order[:-1] if not isinstance(x := at[a], Tile)), 0], lanes

    def get(self, view: Spots, at: dict[int, Place], inside: Tile | None) -> Tile:
        lead, lanes = self.spots(at)
        return view.get(lead, lanes, inside=self.here if inside is None else self.b.binary("and", self.here, inside))

    def put(self, view: Spots, x: Tile) -> None:
        lead, lanes = self.spots(self.at)
        view.put(lead, x, lanes, inside=self.here)

    def both(self, *conditions: Tile | None) -> Tile | None:
        found: Tile | None = None
        for c in conditions:
            found = c if found is None or c is None else self.b.binary("and", found, c)
        return found

    def tap(self, place: Place, step: int, offset: Ix | int, size: Ix | int, *, back: bool = False) -> tuple[Place, Tile]:
        """Where a tap reads along an axis, and whether that is inside: place * step + offset, or (`back`) (place + offset) / step."""
        b = self.b
        if isinstance(place, Tile):
            shift, last = b.from_index(offset, i32), b.from_index(size - 1, i32)
            q: Tile = place + shift if back else place * step + shift
            low = b.binary("max", q, 0)
            inside = b.cmp("ge", q, 0)
            if back and step > 1:
                low = b.binary("floordiv", low, step)
                inside = b.binary("and", inside, b.cmp("eq", low * step, q))
            return b.binary("min", low, last), b.binary("and", inside, b.cmp("le", low, last))
        at = place + offset if back else place * step + offset
        near: Ix | int = b.maximum(at, 0)
        ok = b.compare("ge", at, 0)
        if back and step > 1:
            near = near // step
            ok = b.binary("and", ok, b.compare("eq", near * step, at))
        return b.minimum(near, size - 1), b.binary("and", ok, b.compare("lt", near, size))

    def taps(self, sizes: Sequence[int], states: States, visit: Callable[[list[Ix | int], States], States],
             at: tuple[Ix | int, ...] = ()) -> States:
        """`visit` at every tap, in order."""
        if not sizes:
            return visit(list(at), states)
        if prod(sizes) <= WRITTEN:
            for t in range(sizes[0]):
                states = self.taps(sizes[1:], states, visit, (*at, t))
            return states
        with self.b.loop(0, sizes[0], 1, states) as loop:
            loop.next(*self.taps(sizes[1:], list(loop.carried), visit, (*at, loop.index)))
        return list(loop.results)

    def launch(self, note: str = "") -> Launch:
        launch = self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note)
        launch.kernel = on_threads(launch.kernel, self.threads, BLOCK // self.threads)
        return launch


def plane_pool(region: Region) -> Launch:
    op: Any = region.node.op
    x, n = region.operands[0], len(op.kernel)
    y = region.results[0]
    dilation = getattr(op, "dilation", (1,) * n)
    planes = Planes(op.name, region, y.type.shape, y.layout, n)
    b, lead = planes.b, y.type.ndim - n
    source = planes.view("x", x, x.layout)
    goals = [planes.view(f"y{i}", r, r.layout, write=True) for i, r in enumerate(region.results)]
    sizes = [planes.call.word(f"s{i}", d) for i, d in enumerate(x.type.shape[lead:])]
    dtype = compute_dtype(x.type.dtype)
    kind, where = kind_of(op), isinstance(op, MaxPoolIndices)
    neutral = b.full((planes.threads,), identity(kind, dtype), dtype)

    def flat(places: Sequence[Place]) -> Tile:
        total: Tile | None = None
        for p, size in zip(places, sizes, strict=True):
            own = p if isinstance(p, Tile) else b.from_index(p, i32)
            total = own if total is None else total * b.from_index(size, i32) + own
        assert total is not None
        return b.broadcast(total, (planes.threads,))

    def visit(taps: list[Ix | int], states: States) -> States:
        at = dict(planes.at)
        inside: Tile | None = None
        for i, t in enumerate(taps):
            at[lead + i], ok = planes.tap(planes.at[lead + i], op.stride[i], t * dilation[i] - op.padding[i][0], sizes[i])
            inside = planes.both(inside, ok)
        found = b.select(inside, widen(b, planes.get(source, at, inside)), neutral) if inside is not None else neutral
        if not where:
            return [b.binary(JOIN[kind], states[0], found)]
        wins = larger(b, found, states[0])
        return [b.select(wins, found, states[0]), b.select(wins, flat([at[lead + i] for i in range(n)]), states[1])]

    def first() -> Tile:
        """The place of the first element of a window that is inside."""
        found: list[Place] = []
        for i, (s, (lo, _), d) in enumerate(zip(op.stride, op.padding, dilation, strict=True)):
            p = planes.at[lead + i]
            if isinstance(p, Tile):
                begin = p * s - lo
                short = b.binary("max", b.full((), 0, i32) - begin, 0)
                found.append(begin + b.binary("floordiv", short + (d - 1), d) * d)
            else:
                start = p * s - lo
                found.append(start + b.ceildiv(b.maximum(0 - start, 0), d) * d)
        return flat(found)

    states = planes.taps(op.kernel, [neutral, *([first()] if where else [])], visit)
    if isinstance(op, AvgPool):
        count: Tile = b.full((), 1, i32)
        for i, (k, (lo, hi), size) in enumerate(zip(op.kernel, op.padding, sizes, strict=True)):
            p = planes.at[lead + i]
            begin = (p if isinstance(p, Tile) else b.from_index(p, i32)) * op.stride[i] - lo
            low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
            count = count * (b.binary("min", begin + k, b.from_index(high, i32)) - b.binary("max", begin, low))
        states = [states[0] / b.cast(count, dtype)]
    for goal, s, r in zip(goals, states, region.results, strict=True):
        planes.put(goal, b.cast(s, r.type.dtype) if s.dtype is i32 and r.type.dtype.is_int else narrow(b, s, r.type.dtype))
    return planes.launch("a result a thread")


class PlaneConv(Template):
    key = "plane_conv"
    serves = (Conv,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if (other := ConvTemplate().matches(region, target)) is not None:
            return other
        op, (x, w), out = region.op(Conv), region.node.operands, region.node.values[0]
        channels, results = x.shape[1], out.shape[1]
        known = isinstance(channels, int) and isinstance(results, int)
        known = known and all(isinstance(d, int) and d > 0 for d in (*w.shape, *x.shape[1:]))
        if not known or bounds(product(out.shape))[1] >= 1 << 40 or any(p < 0 for pair in op.padding for p in pair):
            return Reason("sizes must be known")
        few = channels // op.groups <= FEW and results // op.groups <= FEW
        return None if few else Reason(f"groups of at most {FEW} channels and results")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, op = region.node, region.op(Conv)
        x, w, value = region.given(node.operands[0]), region.given(node.operands[1]), node.values[0]
        n, result = len(op.stride), region.results[0]
        planes = Planes("conv_planes", region, value.shape, result.layout, n)
        b, dtype = planes.b, compute_dtype(x.type.dtype)
        cin, per = (int(d) // op.groups for d in (x.type.shape[1], value.shape[1]))
        kernel = [int(d) for d in w.type.shape[2:]]
        source = planes.view("x", x, x.layout)
        taps_first = tuple(range(2, n + 2))
        factors = Spots(planes.call, "w", w.type.dtype, w.buffer, w.layout.permute((*taps_first, *((0, 1) if op.transposed else (1, 0)))),
                        2 if op.transposed else 1)
        read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
        ins = {v: planes.view(f"e{i}", o, o.layout.expand(value.shape)) for i, (v, o) in enumerate(read.items())}
        goals = [planes.view(f"y{i}", r, r.layout, write=True) for i, r in enumerate(region.results)]
        sizes = [planes.call.word(f"s{i}", d) for i, d in enumerate(x.type.shape[2:])]
        own = planes.at[1]
        lanes = own if isinstance(own, Tile) else b.broadcast(b.from_index(own, i32), (planes.threads,))
        lanes = b.binary("min", lanes, int(value.shape[1]) - 1)
        of_group = b.binary("floordiv", lanes, per) if per > 1 else lanes

        def visit(taps: list[Ix | int], states: States) -> States:
            c, *rest = taps
            at = dict(planes.at)
            at[1] = of_group * cin + b.from_index(c, i32) if isinstance(own, Tile) else own // per * cin + c
            inside: Tile | None = None
            for i, t in enumerate(rest):
                lo, d = op.padding[i][0], op.dilation[i]
                offset = lo - t * d if op.transposed else t * d - lo
                at[2 + i], ok = planes.tap(planes.at[2 + i], op.stride[i], offset, sizes[i], back=op.transposed)
                inside = planes.both(inside, ok)
            found = widen(b, planes.get(source, at, inside))
            if op.transposed:
                weight = factors.get((*rest, 0, 0), of_group * cin + b.from_index(c, i32), lanes - of_group * per)
            else:
                weight = factors.get((*rest, c, 0), lanes)
            return [b.fma(found, widen(b, weight), states[0])]

        total = planes.taps((cin, *kernel), [b.full((planes.threads,), 0.0, dtype)], visit)[0]

        def leaf(v: Value, _: Operand) -> Tile:
            return planes.get(ins[v], planes.at, None)

        evaluate = evaluator(region)(b, region, leaf, {value: total})
        for goal, v, r in zip(goals, region.body.outputs, region.results, strict=True):
            planes.put(goal, narrow(b, b.broadcast(evaluate(v), (planes.threads,)), r.type.dtype))
        return [planes.launch("a result a thread")]
