"""Pooling. An operand that lies channels last is pooled with channels along registers (`ChannelPool`). Any other, padded, is seen as
[lead…, taps…, out…] through strides alone; results of the innermost axis run along registers.

Padding is one copy into a buffer filled with what never wins (or adds nothing). Tails are masked; a result of no elements is a grid of
no programs. Flat indices count within the spatial axes of the operand, as PyTorch's do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from ...core.dims import Dim, ceildiv, maximum, product
from ...core.dtypes import compute_dtype, i32, i64
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops import functions as F
from ...ops.rows.pooling import AvgPool as AvgPoolOp
from ...ops.rows.pooling import MaxPool as MaxPoolOp
from ...ops.rows.pooling import MaxPoolBackward
from ...ops.rows.pooling import MaxPoolIndices as MaxPoolIndicesOp
from ...ops.rows.pooling import Pool as PoolOp
from ...ops.sources import Positions
from ...tile.builder import Ix, KernelBuilder, Tile
from ...tile.ir import identity
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.copies import copy_launch, fill_launch
from ..pointwise.pointwise import Pointwise, unravel
from ..region import Operand, Region, narrow, widen
from ..template import Template, region_bytes, region_flops
from .channels_last import channels_last
from .lines import Limit, Lines, State
from .parts import int_of, spread

APART = 4  # steps of windows along rows from which on single elements are read one by one
JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}  # elements of a window


def kind_of(op: Any) -> str:
    """How a pool joins the elements of a window."""
    return op.kind if isinstance(op, PoolOp) else "sum" if isinstance(op, AvgPoolOp) else "max"


class PoolTemplate(Template):
    key = "pool"
    serves = (MaxPoolOp, AvgPoolOp, MaxPoolIndicesOp, PoolOp)
    rows: ClassVar[int] = 64  # the most rows of results a program computes at most

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        x, n = region.operands[0], len(op.kernel)
        out = region.results[0].type.shape[-n:]
        dilation = getattr(op, "dilation", (1,) * n)
        ends = [(o - 1) * s + d * (k - 1) + 1 - lo - size
                for o, s, d, k, (lo, _), size in zip(out, op.stride, dilation, op.kernel, op.padding, x.type.shape[-n:], strict=True)]
        lo, hi = tuple(p for p, _ in op.padding), tuple(maximum(e, 0) for e in ends)
        if target.kind == "cpu" and channels_inside(x, n):
            return [ChannelPool(region, x, dilation, target).launch()]
        launches: list[Launch] = []
        source = x
        if any(d != 0 for d in (*lo, *hi)):
            fill = float(identity(kind_of(op), x.type.dtype)) if x.type.dtype.is_float else identity(kind_of(op), x.type.dtype)
            launches, source = padded(region.name, x, lo, hi, fill, target)
        if target.kind == "cpu" and op.stride[-1] >= APART and parted(op, ends, x.type):
            return [*launches, *self._by_axes(region, source, target)]
        return [*launches, PoolKernel(region, source, dilation, target).launch(self.rows)]

    def _by_axes(self, region: Region, x: Operand, target: TargetSpec) -> list[Launch]:
        """Windows far apart along the rows of memory: the other axes first, whose results lie side by side, then what is left of rows."""
        op: Any = region.node.op
        op = replace(op, padding=((0, 0),) * len(op.kernel), ceil_mode=False)
        ones = (1,) * (len(op.kernel) - 1)
        first = replace(op, kernel=(*op.kernel[:-1], 1), stride=(*op.stride[:-1], 1))
        last = replace(op, kernel=(*ones, op.kernel[-1]), stride=(*ones, op.stride[-1]))
        others, rows, name = Graph("others"), Graph("rows"), f"{region.name}.others"
        others.outputs = [first(others.input(x.type, "x"))]
        between = others.outputs[0].type
        rows.outputs = [last(rows.input(between, "x"))]
        temp = Operand(between, Buffer(name, "temp", between.nbytes), Layout.contiguous(between.shape))
        return [*self.build(Region(name, others, [x], [temp], region.place), target),
                *self.build(Region(region.name, rows, [temp], region.results, region.place), target)]


def parted(op: Any, ends: list[Any], x: TensorType) -> bool:
    """Windows of several axes that are pooled an axis at a time: nothing is rounded in between, and means count no padding."""
    if not all(isinstance(e, int) for e in ends) or prod(op.kernel[:-1]) == 1:
        return False
    plain = not any(map(any, op.padding)) and max(ends) <= 0
    return isinstance(op, MaxPoolOp) or (isinstance(op, AvgPoolOp) and plain and x.dtype.itemsize >= 4)


def channels_inside(x: Operand, n: int) -> bool:
    """Pixels lie channels last."""
    return x.type.ndim > n and x.layout.strides[-n - 1] == 1 and isinstance(x.type.shape[-n - 1], int) and x.layout.strides[-1] != 1


class ChannelPool(Lines):
    """Channels along registers (`lines.py`): taps outside are left out, so nothing is padded."""

    def __init__(self, region: Region, x: Operand, dilation: tuple[int, ...], target: TargetSpec) -> None:
        op: Any = region.node.op
        self.op = op
        out = region.results[0].type.shape[-len(dilation) :]
        before, pixels = [lo for lo, _ in op.padding], product(x.type.shape[-len(dilation) :])
        self.index = i32 if isinstance(pixels, int) and pixels < 1 << 31 else i64  # as wide as most elements, where places fit
        super().__init__(op.name, region, x, out, op.kernel, op.stride, dilation, before, target)
        self.outs = [self.call.view(f"y{i}", r.type.dtype, r.buffer, r.layout.permute(self.order), write=True)
                     for i, r in enumerate(region.results)]

    def start(self, n: int) -> State:
        first = self.b.full((n,), identity(kind_of(self.op), self.dtype), self.dtype)
        return [first, self.b.full((n,), -1, self.index)] if isinstance(self.op, MaxPoolIndicesOp) else [first]

    def tap(self, states: list[State], pixels: list[Tile], taps: list[Ix | int], places: list[list[Ix | int]], c: Ix | int, n: int,
            limit: Limit) -> list[State]:
        b = self.b
        if not isinstance(self.op, MaxPoolIndicesOp):
            return [[b.binary(JOIN[kind_of(self.op)], so_far, x)] for (so_far,), x in zip(states, pixels, strict=True)]
        found = []
        for (best, where), x, place in zip(states, pixels, places, strict=True):
            better = larger(b, x, best)
            found.append([b.select(better, x, best), b.select(better, b.from_index(self._flat(place), self.index), where)])
        return found

    def _flat(self, place: list[Ix | int]) -> Ix | int:
        index: Ix | int = 0
        for p, size in zip(place, self.sizes, strict=True):
            index = index * size + p
        return index

    def finish(self, states: list[State], at: list[list[Ix | int]], c: Ix | int, n: int, limit: Limit) -> None:
        b = self.b
        for place, state in zip(at, states, strict=True):
            if isinstance(self.op, AvgPoolOp):
                state = [state[0] / b.from_index(self._count(place[-self.n :]), self.dtype)]
            if isinstance(self.op, MaxPoolIndicesOp):  # where nothing was larger than the lowest value: the first element
                state = [state[0], b.binary("max", state[1], b.from_index(self._flat(self._first(place[-self.n :])), self.index))]
            for view, y, r in zip(self.outs, state, self.region.results, strict=True):
                kept = b.cast(y, r.type.dtype) if y.dtype is i32 and r.type.dtype is i64 else narrow(b, y, r.type.dtype)
                b.store(view, (*place, c), kept, limit=limit)

    def _first(self, place: list[Ix | int]) -> list[Ix | int]:
        """Where the first element of a window lies that is inside."""
        starts = [o * s - lo for o, s, (lo, _) in zip(place, self.op.stride, self.op.padding, strict=True)]
        return [p + self.b.ceildiv(self.b.maximum(0, 0 - p), d) * d for p, d in zip(starts, self.op.dilation, strict=True)]

    def _count(self, place: list[Ix | int]) -> Ix | int:
        b, op = self.b, self.op
        count: Ix | int = 1
        for o, k, s, (lo, hi), size in zip(place, op.kernel, op.stride, op.padding, self.sizes, strict=True):
            low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
            count = count * (b.minimum(o * s - lo + k, high) - b.maximum(o * s - lo, low))
        return count


def padded(name: str, x: Operand, lo: tuple[Dim, ...], hi: tuple[Dim, ...], fill: float,
           target: TargetSpec) -> tuple[list[Launch], Operand]:
    """x inside a buffer filled with `fill`."""
    lead = x.type.ndim - len(lo)
    sizes = [d + a + b for d, a, b in zip(x.type.shape[lead:], lo, hi, strict=True)]
    type_ = TensorType(x.type.dtype, (*x.type.shape[:lead], *sizes))
    whole = Operand(type_, Buffer(f"{name}.padded", "temp", type_.nbytes), Layout.contiguous(type_.shape))
    inner = whole.layout
    for i, (d, a) in enumerate(zip(x.type.shape[lead:], lo, strict=True)):
        inner = inner.slice(lead + i, a, d)
    part = Operand(x.type, whole.buffer, inner)
    return [fill_launch(f"{name}.fill", fill, whole, target), copy_launch(f"{name}.pad", x, part, target, "padding of a pool")], whole


def larger(b: KernelBuilder, x: Tile, best: Tile) -> Tile:
    """x replaces the largest so far; the first NaN stays."""
    if not x.dtype.is_float:
        return b.cmp("gt", x, best)
    return b.binary("and", b.unary("not", b.cmp("le", x, best)), b.unary("not", b.unary("isnan", best)))


class PoolKernel:
    """One kernel under construction: a program computes a few rows of the innermost axis."""

    def __init__(self, region: Region, x: Operand, dilation: tuple[int, ...], target: TargetSpec) -> None:
        op: Any = region.node.op
        self.region, self.op, self.n = region, op, len(op.kernel)
        self.dilation, self.sizes = dilation, region.operands[0].type.shape[-self.n :]
        call = self.call = Call(op.name, region.name)
        self.b = call.b
        result = region.results[0]
        shape = result.type.shape
        lead = len(shape) - self.n
        strides = x.layout.strides
        window = Layout((*shape[:lead], *op.kernel, *shape[lead:]),
                        (*strides[:lead], *(s * d for s, d in zip(strides[lead:], dilation, strict=True)),
                         *(s * t for s, t in zip(strides[lead:], op.stride, strict=True))), x.layout.offset)
        self.x = call.view("x", x.type.dtype, x.buffer, window)
        self.outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        self.dtype = compute_dtype(x.type.dtype)
        self.dims = [call.word(f"d{i}", d) for i, d in enumerate(shape[:-1])]
        self.last = call.word("n", shape[-1])
        self.full = [call.word(f"s{i}", d) for i, d in enumerate(self.sizes)]
        self.shape, self.lead = shape, lead
        lanes = target.vector_bits // 32
        self.tile = lanes * 2 if not isinstance(shape[-1], int) or shape[-1] > lanes else lanes

    def launch(self, per: int) -> Launch:
        b = self.b
        rows: Dim = product(self.shape[:-1])
        count = self.call.word("rows", rows)
        start = b.pid * per
        with b.loop(start, b.minimum(start + per, count)) as row:
            at = unravel(b, row.index, self.dims)
            whole = self.last // self.tile * self.tile
            with b.loop(0, whole, self.tile) as loop:
                self._tile(at, loop.index, None)
            with b.if_(b.compare("lt", whole, self.last)):
                self._tile(at, whole, self.last - whole)
        return self.call.finish(ceildiv(rows, per), flops=region_flops(self.region), bytes_=region_bytes(self.region), streams=True)

    def _tile(self, at: list[Ix | int], first: Ix | int, left: Ix | int | None) -> None:
        b, limit = self.b, None if left is None else (left,)
        if isinstance(self.op, MaxPoolIndicesOp):
            results = self._with_index(at, first, limit)
        else:
            kind = kind_of(self.op)
            results = self._taps(at, first, limit, [b.full((self.tile,), identity(kind, self.dtype), self.dtype)],
                                 lambda x, taps, state: [b.binary(JOIN[kind], state[0], x)])
        if isinstance(self.op, AvgPoolOp):
            results = [self._mean(results[0], at, first)]
        for view, y, r in zip(self.outs, results, self.region.results, strict=True):
            b.store(view, (*at, first), narrow(b, y, r.type.dtype), limit=limit)

    def _taps(self, at: list[Ix | int], first: Ix | int, limit: Any, start: list[Tile],
              step: Callable[[Tile, list[Ix | int], list[Tile]], list[Tile]]) -> list[Tile]:
        """Fold over the taps of a window: loops outside, the innermost axis unrolled."""
        b = self.b

        def nest(taps: list[Ix | int], state: list[Tile]) -> list[Tile]:
            axis = len(taps)
            if axis < self.n - 1:
                with b.loop(0, self.op.kernel[axis], 1, state) as loop:
                    loop.next(*nest([*taps, loop.index], list(loop.carried)))
                return list(loop.results)
            for k in range(self.op.kernel[-1]):
                place = (*at[: self.lead], *taps, k, *at[self.lead :], first)
                state = step(widen(b, b.load(self.x, place, (self.tile,), limit=limit)), [*taps, k], state)
            return state

        return nest([], start)

    def _mean(self, total: Tile, at: list[Ix | int], first: Ix | int) -> Tile:
        b, op = self.b, self.op
        count: Ix | int = 1
        for i, (k, s, (lo, hi)) in enumerate(zip(op.kernel, op.stride, op.padding, strict=True)):
            low, high = (-lo, self.full[i] + hi) if op.count_include_pad else (0, self.full[i])
            if i < self.n - 1:
                begin = at[self.lead + i] * s - lo
                count = count * (b.minimum(begin + k, high) - b.maximum(begin, low))
                continue
            lane = (b.iota((self.tile,), 0, i64) + b.from_index(first)) * s - lo
            inner = b.binary("min", lane + k, b.from_index(high)) - b.binary("max", lane, b.from_index(low))
        return total / b.cast(inner * b.from_index(count), self.dtype)

    def _with_index(self, at: list[Ix | int], first: Ix | int, limit: Any) -> list[Tile]:
        """The first of equals; the first NaN stays. A window of nothing larger than the lowest value names its first element."""
        b, op = self.b, self.op
        lane = (b.iota((self.tile,), 0, i64) + b.from_index(first)) * op.stride[-1] - op.padding[-1][0]

        def flat(taps: list[Ix | int], *, inside: bool) -> Tile:
            index: Ix | int = 0
            for i in range(self.n - 1):
                place = at[self.lead + i] * op.stride[i] - op.padding[i][0] + taps[i] * self.dilation[i]
                index = index * self.full[i] + (b.maximum(place, 0) if inside else place)
            column = lane + b.from_index(taps[-1] * self.dilation[-1])
            column = b.binary("max", column, 0) if inside else column
            return column + b.from_index(index * self.full[-1])

        def step(x: Tile, taps: list[Ix | int], state: list[Tile]) -> list[Tile]:
            best, where = state
            better = larger(b, x, best)
            return [b.select(better, x, best), b.select(better, flat(taps, inside=False), where)]

        start = [b.full((self.tile,), identity("max", self.dtype), self.dtype), flat([0] * self.n, inside=True)]
        return self._taps(at, first, limit, start, step)


def _named_elements(region: Region, given: list[Operand], y: Operand, kernel: tuple[int, ...], target: TargetSpec) -> list[Launch]:
    """The backward pass of max pooling whose windows tile the plane: each element's cotangent is its window's, if that names its place."""
    n = len(kernel)
    lead, out = given[0].type.shape[:-n], given[0].type.shape[-n:]
    wide = (*lead, *(d for o, k in zip(out, kernel, strict=True) for d in (o, k)))

    def apart(layout: Layout) -> Layout:
        steps = [(s, 0) for s in layout.strides[-n:]]
        return Layout(wide, (*layout.strides[:-n], *(s for pair in steps for s in pair)), layout.offset)

    body = Graph("named")
    g, named = (body.input(x.type.with_shape(wide), name) for x, name in zip(given, "gi", strict=True))
    places = body.add(Positions(shape=wide[len(lead) :], dtype=named.dtype)).value
    mine = F.equal(named, F.expand(places, wide))
    body.outputs = [F.where(mine, g, F.full(body, wide, 0, g.dtype))]
    steps = [(s * k, s) for s, k in zip(y.layout.strides[-n:], kernel, strict=True)]
    there = Layout(wide, (*y.layout.strides[:-n], *(s for pair in steps for s in pair)), y.layout.offset)
    operands = [Operand(x.type.with_shape(wide), x.buffer, apart(x.layout)) for x in given]
    return Pointwise().build(Region(region.name, body, operands, [Operand(y.type.with_shape(wide), y.buffer, there)], region.place), target)


class MaxPoolBackwardTemplate(Template):
    """The backward pass of max pooling, channels along registers: every element looks which of the windows around it name its place, and
    adds their cotangents in order. A program computes a line of elements; zero-sized results run none."""

    key = "max_pool_backward"
    serves = (MaxPoolBackward,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, y = region.op(MaxPoolBackward), region.results[0]
        n, launches, both = len(op.kernel), list[Launch](), []
        given = [region.given(v) for v in region.node.operands]
        tiled = op.kernel == op.stride and set(op.dilation) == {1} and not any(map(any, op.padding))
        if tiled and op.sizes == tuple(o * k for o, k in zip(given[0].type.shape[-n:], op.kernel, strict=True)) \
                and target.kind == "cpu" and not any(channels_inside(x, n) for x in given):
            return _named_elements(region, given, y, op.kernel, target)
        for i, v in enumerate(region.node.operands):
            x = region.given(v)
            if x.layout.strides[1] != 1 and x.type.shape[1] != 1:
                place = lambda x, shape: (x.type.dtype, channels_last(shape))
                copies, x = spread(f"{region.name}.{i}", x, (1,) * n, ((0, 0),) * n, target, "", place)
                launches += copies
            both.append(x)
        call = Call("max_pool_backward", region.name)
        b, order, channels = call.b, (0, *range(2, 2 + n), 1), int_of(y.type.shape[1])
        g, named = (call.view(name, x.type.dtype, x.buffer, x.layout.permute(order)) for name, x in zip("gi", both, strict=True))
        out = call.view("y", y.type.dtype, y.buffer, y.layout.permute(order), write=True)
        sizes = [call.word(f"s{a}", d) for a, d in enumerate(op.sizes)]
        windows = [call.word(f"o{a}", d) for a, d in enumerate(both[0].type.shape[2:])]
        image, *outer = unravel(b, b.pid, [0, *sizes[:-1]])
        lanes, dtype = target.lanes(4), compute_dtype(y.type.dtype)

        def element(at: list[Ix | int], c: Ix | int, count: int) -> None:
            place: Ix | int = 0
            for p, size in zip(at, sizes, strict=True):
                place = place * size + p
            mine, total = b.from_index(place), b.full((lanes,), identity("sum", dtype), dtype)
            last = [(p + lo) // s for p, (lo, _), s in zip(at, op.padding, op.stride, strict=True)]
            for back in itertools.product(*(range(r - 1, -1, -1) for r in op.reach)):
                window = [first - j for first, j in zip(last, back, strict=True)]
                there: Ix | int = 1
                for w, count_of in zip(window, windows, strict=True):
                    there = b.maximum(0, b.minimum(there, b.minimum(w + 1, count_of - w)))
                limit = (b.minimum(there, 1) * count,)
                own = b.cmp("eq", b.cast(b.load(named, (image, *window, c), (lanes,), limit=limit), i64), mine)
                share = widen(b, b.load(g, (image, *window, c), (lanes,), limit=limit))
                total = total + b.select(own, share, b.full((lanes,), identity("sum", dtype), dtype))
            b.store(out, (image, *at, c), narrow(b, total, y.type.dtype), limit=None if count == lanes else (count,))

        whole = channels // lanes * lanes
        with b.loop(0, sizes[-1]) as line:
            with b.loop(0, whole, lanes) as loop:
                element([*outer, line.index], loop.index, lanes)
            if whole < channels:
                element([*outer, line.index], whole, channels - whole)
        grid = product((y.type.shape[0], *op.sizes[:-1]))
        return [*launches, call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note="channels along registers")]
