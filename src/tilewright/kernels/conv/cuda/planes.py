"""Windows over planes on a GPU, whatever their strides: pools, and convolutions whose results read few channels each (by channel, with a
multiplier, transposed; so also the backward passes of pools and of those).

A thread has a few results; neighbouring threads have neighbours along the axis that the results lie along. Taps are written out where they
are few, else loops; one outside the operand is not read. No padded copy, nothing is transposed: a tap's elements come from L1 again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import compute_dtype, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv
from ....ops.rows.pooling import AvgPool, MaxPoolBackward, MaxPoolIndices
from ....ops.rows.resize import AdaptivePool
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..conv import ConvTemplate
from ..pool import JOIN, kind_of, larger
from .tiled import LARGEST

BLOCK = 128  # threads
WRITTEN = 32  # taps that are written out
FEW = 4  # channels of a group, and results
EACH = 4  # results of a thread: what the program computes once is for all of them

Offset = Ix | int  # the offset of a tap
States = list[Tile]


class Planes:
    """One kernel under construction, over results [lead…, *out]. Coordinates are i32 where they suffice: of all threads, or (of one axis)
    of each."""

    def __init__(self, name: str, region: Region, shape: Sequence[Dim], layout: Layout) -> None:
        self.region, self.call = region, Call(name, region.name)
        self.b, rank = self.call.b, len(shape)
        shapes = [shape, *(o.type.shape for o in region.operands)]
        self.kind = i32 if all(bounds(product(list(s)))[1] < LARGEST for s in shapes) else i64
        b, beside = self.b, [a for a in range(rank) if layout.strides[a] == 1 and shape[a] != 1]
        lane = beside[-1] if beside else rank - 1
        size = shape[lane]
        self.threads = WARP if not isinstance(size, int) or size > WARP // 2 else max(4, 1 << (size - 1).bit_length())
        self.width = self.threads * (min(EACH, -(-size // WARP)) if isinstance(size, int) and self.threads == WARP else 1)
        strips = ceildiv(size, self.width)
        rest = b.from_index(b.pid, self.kind)
        strip, rest = self.divided(rest, self.number("strips", strips))
        self.at = [rest] * rank
        self.at[lane] = b.iota((self.width,), 0, self.kind) + strip * self.width
        for a in reversed([a for a in range(rank) if a != lane]):
            self.at[a], rest = self.divided(rest, self.number(f"d{a}", shape[a]))
        self.here = b.cmp("lt", self.at[lane], self.number("count", size))
        self.grid = product([d for a, d in enumerate(shape) if a != lane]) * strips

    def number(self, name: str, d: Dim) -> Tile | int:
        return d if isinstance(d, int) else self.b.from_index(self.call.word(name, d), self.kind)

    def divided(self, x: Tile, by: Tile | int) -> tuple[Tile, Tile]:
        """x % by and x // by of numbers that are not negative."""
        b = self.b
        if isinstance(by, int) and by & (by - 1) == 0:
            return b.binary("and", x, max(by, 1) - 1), b.binary("shr", x, max(by, 1).bit_length() - 1)
        found = b.binary("div", x, by)
        return x - found * by, found

    def view(self, name: str, o: Operand, layout: Layout | None = None, *, write: bool = False) -> Spots:
        lay = o.layout if layout is None else layout
        return Spots(self.call, name, o.type.dtype, o.buffer, lay, len(lay.shape), write=write)

    def get(self, view: Spots, at: Sequence[Tile], inside: Tile | None = None) -> Tile:
        inside = self.here if inside is None else self.b.binary("and", self.here, inside)
        return view.get((0,) * len(at), *self._spread(at), inside=inside)

    def put(self, view: Spots, x: Tile) -> None:
        view.put((0,) * len(self.at), x, *self._spread(self.at), inside=self.here)

    def _spread(self, at: Sequence[Tile]) -> list[Tile]:
        """One of them, at least, for each thread."""
        return [self.b.broadcast(at[0], (self.width,)), *at[1:]]

    def index(self, t: Offset) -> Tile | int:
        return t if isinstance(t, int) else self.b.from_index(t, self.kind)

    def tap(self, place: Tile, step: int, tap: Offset, dilation: int, before: int, size: Tile | int) -> tuple[Tile, Tile]:
        """Where a tap reads along an axis, and whether that is inside."""
        q = place * step + (self.index(tap * dilation - before))
        return q, self.within(q, size)

    def within(self, q: Tile, size: Tile | int) -> Tile:
        b = self.b
        return b.binary("and", b.cmp("ge", q, 0), b.cmp("lt", q, size))

    def reached(self, place: Tile, step: int, tap: Offset, dilation: int, before: int, kernel: int,
                size: Tile | int) -> tuple[Tile, Tile, Tile]:
        """Where a transposed window reads: the place of tap number `tap` of those that reach a place, which tap of the kernel
        that is, and whether there is one. With steps and no dilation only every `step`th tap reaches a place."""
        b, shifted = self.b, place + before
        if dilation == 1:
            first, most = self.divided(shifted, step)
            t = first + self.index(tap * step)
            q = most - self.index(tap)
            return q, b.binary("min", t, kernel - 1), b.binary("and", b.cmp("lt", t, kernel), self.within(q, size))
        q = shifted - self.index(tap * dilation)
        down = b.binary("floordiv", b.binary("max", q, 0), step)
        inside = b.binary("and", b.binary("and", b.cmp("ge", q, 0), b.cmp("eq", down * step, q)), b.cmp("lt", down, size))
        return down, b.broadcast(b.full((), 0, self.kind) + self.index(tap), place.shape), inside

    def taps(self, sizes: Sequence[int], states: States, visit: Callable[[list[Offset], States], States],
             at: tuple[Offset, ...] = ()) -> States:
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

    def launch(self) -> Launch:
        note = f"{self.width // self.threads} results a thread"
        launch = self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note)
        launch.kernel = on_threads(launch.kernel, self.threads, BLOCK // self.threads)
        return launch


def plane_pool(region: Region) -> Launch:
    op: Any = region.node.op
    x, n, y = region.operands[0], len(op.kernel), region.results[0]
    dilation = getattr(op, "dilation", (1,) * n)
    planes = Planes(op.name, region, y.type.shape, y.layout)
    b, lead = planes.b, y.type.ndim - n
    source = planes.view("x", x)
    goals = [planes.view(f"y{i}", r, write=True) for i, r in enumerate(region.results)]
    sizes = [planes.number(f"s{i}", d) for i, d in enumerate(x.type.shape[lead:])]
    dtype = compute_dtype(x.type.dtype)
    kind, where = kind_of(op), isinstance(op, MaxPoolIndices)
    neutral = b.full((planes.width,), identity(kind, dtype), dtype)

    def flat(places: Sequence[Tile]) -> Tile:
        total = places[0]
        for p, size in zip(places[1:], sizes[1:], strict=True):
            total = total * size + p
        return b.broadcast(total, (planes.width,))

    def visit(taps: list[Offset], states: States) -> States:
        found = [planes.tap(p, op.stride[i], t, dilation[i], op.padding[i][0], sizes[i])
                 for i, (t, p) in enumerate(zip(taps, planes.at[lead:], strict=True))]
        inside = reduce(lambda a, c: b.binary("and", a, c), (ok for _, ok in found))
        at = [q for q, _ in found]
        value = b.select(inside, widen(b, planes.get(source, [*planes.at[:lead], *at], inside)), neutral)
        if not where:
            return [b.binary(JOIN[kind], states[0], value)]
        wins = larger(b, value, states[0])
        return [b.select(wins, value, states[0]), b.select(wins, flat(at), states[1])]

    def first() -> Tile:
        """The place of the first element of a window that is inside."""
        found = []
        for p, s, (lo, _), d in zip(planes.at[lead:], op.stride, op.padding, dilation, strict=True):
            begin = p * s - lo
            short = b.binary("max", b.full((), 0, planes.kind) - begin, 0)
            found.append(begin + (short if d == 1 else b.binary("floordiv", short + (d - 1), d) * d))
        return flat(found)

    states = planes.taps(op.kernel, [neutral, *([first()] if where else [])], visit)
    if isinstance(op, AvgPool):
        count: Tile = b.full((), 1, planes.kind)
        for p, s, k, (lo, hi), size in zip(planes.at[lead:], op.stride, op.kernel, op.padding, sizes, strict=True):
            begin = p * s - lo
            low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
            count = count * (b.binary("min", begin + k, high) - b.binary("max", begin, low))
        states = [states[0] / b.cast(count, dtype)]
    for goal, found, r in zip(goals, states, region.results, strict=True):
        whole = found.dtype is planes.kind and r.type.dtype.is_int
        planes.put(goal, b.cast(found, r.type.dtype) if whole else narrow(b, found, r.type.dtype))
    return planes.launch()


class CudaAdaptivePool(Template):
    """Windows of unequal length: each result knows where its own begins and ends."""

    key = "adaptive_pool"
    serves = (AdaptivePool,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, y = region.op(AdaptivePool), region.operands[0], region.results[0]
        planes = Planes("adaptive_pool", region, y.type.shape, y.layout)
        b, lead, dtype = planes.b, y.type.ndim - len(op.sizes), compute_dtype(x.type.dtype)
        source, goal = planes.view("x", x), planes.view("y", y, write=True)
        steps = [(p, int(d), out) for p, d, out in zip(planes.at[lead:], x.type.shape[lead:], op.sizes, strict=True)]
        begins = [planes.divided(p * d, out)[1] for p, d, out in steps]
        ends = [planes.divided(p * d + (d + out - 1), out)[1] for p, d, out in steps]
        join = "max" if op.kind == "max" else "sum"
        neutral = b.full((planes.width,), identity(join, dtype), dtype)

        def visit(taps: list[Offset], states: States) -> States:
            at = [p + planes.index(t) for p, t in zip(begins, taps, strict=True)]
            inside = reduce(lambda a, c: b.binary("and", a, c), (b.cmp("lt", q, end) for q, end in zip(at, ends, strict=True)))
            value = b.select(inside, widen(b, planes.get(source, [*planes.at[:lead], *at], inside)), neutral)
            return [b.binary(JOIN[join], states[0], value)]

        (found,) = planes.taps(op.spans(x.type.shape), [neutral], visit)
        if op.kind == "mean":
            found = found / b.cast(reduce(lambda a, c: a * c, (e - p for p, e in zip(begins, ends, strict=True))), dtype)
        planes.put(goal, narrow(b, found, y.type.dtype))
        return [planes.launch()]


class CudaMaxPoolBackward(Template):
    """Every element looks which of the windows around it name its place, and adds their cotangents in order."""

    key = "max_pool_backward"
    serves = (MaxPoolBackward,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (g, indices) = region.op(MaxPoolBackward), (region.given(v) for v in region.node.operands)
        y, n = region.results[0], len(op.kernel)
        planes = Planes("max_pool_backward", region, y.type.shape, y.layout)
        b, lead, dtype = planes.b, y.type.ndim - n, compute_dtype(y.type.dtype)
        sources, goal = [planes.view(name, o) for name, o in (("g", g), ("i", indices))], planes.view("y", y, write=True)
        limits = [planes.number(f"o{a}", d) for a, d in enumerate(g.type.shape[lead:])]
        place = planes.at[lead]
        for p, size in zip(planes.at[lead + 1 :], y.type.shape[lead + 1 :], strict=True):
            place = place * planes.number("size", size) + p
        firsts = [planes.divided(p + lo, s)[1] for p, (lo, _), s in zip(planes.at[lead:], op.padding, op.stride, strict=True)]

        def visit(back: list[Offset], states: States) -> States:
            at = [first - planes.index(j) for first, j in zip(firsts, back, strict=True)]
            inside = reduce(lambda a, c: b.binary("and", a, c), (planes.within(q, size) for q, size in zip(at, limits, strict=True)))
            g, named = (planes.get(s, [*planes.at[:lead], *at], inside) for s in sources)
            own = b.binary("and", inside, b.cmp("eq", b.cast(named, planes.kind), place))
            return [states[0] + b.select(own, widen(b, g), 0)]

        total = planes.taps(op.reach, [b.full((planes.width,), 0, dtype)], visit)[0]
        planes.put(goal, narrow(b, total, y.type.dtype))
        return [planes.launch()]


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
        if not known or any(p < 0 for pair in op.padding for p in pair):
            return Reason("sizes must be known")
        few = channels // op.groups <= FEW and results // op.groups <= FEW
        return None if few else Reason(f"groups of at most {FEW} channels and results")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, op = region.node, region.op(Conv)
        x, w, value = region.given(node.operands[0]), region.given(node.operands[1]), node.values[0]
        planes = Planes("conv_planes", region, value.shape, region.results[0].layout)
        b, dtype = planes.b, compute_dtype(x.type.dtype)
        cin, per = (int(d) // op.groups for d in (x.type.shape[1], value.shape[1]))
        kernel, sizes = ([int(d) for d in t.shape[2:]] for t in (w.type, x.type))
        source, factors = planes.view("x", x), planes.view("w", w)
        read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
        ins = {v: planes.view(f"e{i}", o, o.layout.expand(value.shape)) for i, (v, o) in enumerate(read.items())}
        goals = [planes.view(f"y{i}", r, write=True) for i, r in enumerate(region.results)]
        own, group = planes.divided(planes.at[1], per)

        def visit(taps: list[Offset], states: States) -> States:
            channel, *rest = taps
            found, turns, inside = [], list[Tile](), planes.here
            for i, (t, p) in enumerate(zip(rest, planes.at[2:], strict=True)):
                around = op.stride[i], t, op.dilation[i], op.padding[i][0]
                if op.transposed:
                    q, turn, ok = planes.reached(p, *around, kernel[i], sizes[i])
                else:
                    q, ok = planes.tap(p, *around, sizes[i])
                    turn = b.full((), 0, planes.kind) + planes.index(t)
                found.append(q)
                turns.append(turn)
                inside = b.binary("and", inside, ok)
            c = group * cin + planes.index(channel)
            number = widen(b, planes.get(source, [planes.at[0], c, *found], inside))
            place = [c, own] if op.transposed else [planes.at[1], b.full((), 0, planes.kind) + planes.index(channel)]
            weight = widen(b, planes.get(factors, [*place, *turns], inside))
            return [b.fma(number, weight, states[0])]

        reach = [-(-k // s) if op.transposed and d == 1 else k for k, s, d in zip(kernel, op.stride, op.dilation, strict=True)]
        total = planes.taps((cin, *reach), [b.full((planes.width,), 0.0, dtype)], visit)[0]

        def leaf(v: Value, _: Operand) -> Tile:
            return planes.get(ins[v], planes.at)

        evaluate = evaluator(region)(b, region, leaf, {value: total})
        for goal, v, r in zip(goals, region.body.outputs, region.results, strict=True):
            planes.put(goal, narrow(b, b.broadcast(evaluate(v), (planes.width,)), r.type.dtype))
        return [planes.launch()]
