"""Reductions on a GPU as block programs: sums of columns (gradients of biases and of norms' weights, batch statistics channels last), of
runs of memory that repeat (batch statistics channels first), of few long rows and of whole arrays. Several sums, or mean and variance, over
all axes but one are one sweep.

A tile of a block is two axes of what is reduced, the last one along memory; where memory runs along a kept axis, it is one of each. Blocks
walk steps, add them element by element in registers, and reduce what is left through shared memory. Where there are fewer blocks than
keep a chip busy, several share the steps, and a second launch reduces what they leave. All sizes follow from the shape alone, so every sum
has one order. Tails are masked; a reduction of no elements is its identity. A variance is summed around an element of each block, and
blocks are joined by their means (Chan), so nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, divisible, product
from ....core.dtypes import DType, bool_, compute_dtype, f32, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.reductions import All, Any_, ChannelSums, Max, Mean, Min, Moments, OverOthers, Prod, Sum
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...call import Call
from ...cuda.tiled import aligned, tiled
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..reduce import _leaves, _vector_axis

WARP = 32
WARPS = 8
BYTES = 128  # that a thread has in flight in a step, about
ACROSS = 256  # columns of a tile, at most: narrower tiles are more blocks
STRIP = 8  # ... where one block adds what others leave: more blocks
WIDEST = 1024  # ... where blocks take a number of steps that is given
SMALL = 2048  # elements of a tile that cost as much as fewer
BLOCKS = 512  # that keep a large chip busy
LEAST = 4  # steps of a block that are worth a second launch
KNOWN = 1 << 18  # rows, where their number is not known
RESIDENT = 1 << 15  # elements of a row that the kernels of rows keep in registers
FEWEST = {True: 64, False: 32}  # reduced elements of columns; with one matrix, or several
KINDS = {Sum: "sum", Mean: "sum", Prod: "prod", Max: "max", Min: "min", Any_: "any", All: "all", ChannelSums: "sum", Moments: "sum"}
JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
Index = Ix | int


@dataclass(frozen=True)
class Place:
    """Where a tile lies: views have the axes (lead, loops, down, across)."""

    lead: list[Index]
    loops: list[Index]
    at: tuple[Index, Index]
    limit: tuple[Index | None, Index | None]
    tile: tuple[int, int]

    def part(self, strides: Sequence[Dim | None]) -> tuple[tuple[int, int], tuple[Index | None, Index | None]]:
        """The part of the tile that differs where the last two strides are these, and its limits."""
        same = [s == 0 for s in strides[-2:]]
        tile = tuple(1 if one else d for one, d in zip(same, self.tile, strict=True))
        down, across = (None if one else d for one, d in zip(same, self.limit, strict=True))
        return (tile[0], tile[1]), (down, across)


Terms = Callable[[Place, list[Callable[[], None]]], list[Tile]]  # the second: what to do when all of a step is loaded
Write = Callable[[Place, list[Tile]], None]  # results: a tile of one row, or of one element


class Walk:
    """The steps of a block, in a kernel under construction."""

    def __init__(self, blocks: Blocks, call: Call) -> None:
        b, self.b, self.blocks = call.b, call.b, blocks
        words = {name: call.word(name, d) for name, d in (("down", blocks.down), ("across", blocks.across), ("chunks", blocks.chunks),
                                                         ("strips", blocks.strips), ("steps", blocks.steps))}  # fmt: skip
        lead = [call.word(f"k{i}", d) for i, d in enumerate(blocks.lead)]
        self.walked = [call.word(f"l{i}", d) for i, d in enumerate(blocks.walked)]
        *self.case, self.chunk, self.strip = unravel(b, b.pid, [*lead, words["chunks"], words["strips"]])
        self.low = self.chunk * blocks.per
        self.high = b.minimum(self.low + blocks.per, words["steps"])
        self.whole = [divisible(d, t) for d, t in zip((blocks.down, blocks.across), blocks.tile, strict=True)]
        self.down, self.across = words["down"], words["across"]

    def place(self, step: Index) -> Place:
        *loops, down = unravel(self.b, step, self.walked)
        across = self.strip
        if not self.blocks.columns:
            *loops, down, across = *loops, down
        at = (down * self.blocks.tile[0], across * self.blocks.tile[1])
        left = [None if w else d - a for w, d, a in zip(self.whole, (self.down, self.across), at, strict=True)]
        return Place(self.case, loops, at, (left[0], left[1]), self.blocks.tile)

    def inside(self, p: Place) -> Tile | None:
        """Elements of the tile that count: those behind the end of a kept axis are not stored."""
        b, (tall, wide) = self.b, self.blocks.tile
        row = None if p.limit[0] is None else b.cmp("lt", b.iota((tall, 1), 0, i32), b.from_index(p.limit[0], i32))
        last = None if self.blocks.columns else p.limit[1]
        column = None if last is None else b.cmp("lt", b.iota((1, wide), 1, i32), b.from_index(last, i32))
        return row if column is None else column if row is None else b.binary("and", row, column)

    def reduced(self, terms: Terms, count: int) -> list[Tile]:
        """`count` terms, reduced over all steps."""
        b, fn, dtype, tile = self.b, self.blocks.fn, self.blocks.dtype, self.blocks.tile
        nothing = identity(fn, dtype)
        with b.loop(self.low, self.high, 1, [b.full(tile, nothing, dtype)] * count) as loop:
            p, later = self.place(loop.index), list[Callable[[], None]]()
            found, mask = [b.broadcast(b.cast(t, dtype), tile) for t in terms(p, later)], self.inside(p)
            for put in later:
                put()
            if mask is not None:
                found = [b.select(b.broadcast(mask, tile), t, b.full(tile, nothing, dtype)) for t in found]
            loop.next(*(b.binary(JOIN[fn], a, t) for a, t in zip(loop.carried, found, strict=True)))
        totals = [t if self.blocks.columns else b.reduce(fn, t, 1) for t in loop.results]
        return [b.reduce(fn, t, 0) for t in totals]

    def _before(self, step: Index) -> Index:
        """Elements of the steps before one, for each result."""
        b, (tall, wide), columns = self.b, self.blocks.tile, self.blocks.columns
        beside, across = (1, 1) if columns else (self.walked[-1], self.across)
        row, column = step // beside, step % beside * (1 if columns else wide)
        high = self.walked[-1 if columns else -2]
        top = b.minimum(row % high * tall, self.down)
        return row // high * self.down * across + top * across + b.minimum(self.down - top, tall) * b.minimum(column, across)

    def moments(self, terms: Terms) -> list[Tile]:
        """Mean of a term over all steps, sum of the squared distances from it, and the number of elements."""
        b, first = self.b, self.place(self.low)
        one = replace(first, tile=(1, 1), limit=(None, None))
        (pivot,) = terms(replace(first, tile=(1, first.tile[1]), limit=(None, first.limit[1])) if self.blocks.columns else one, [])
        pivot = b.cast(pivot, f32)
        pivot = b.select(b.cmp("lt", b.unary("abs", pivot), float("inf")), pivot, 0.0)

        def around(p: Place, later: list[Callable[[], None]]) -> list[Tile]:
            d = terms(p, later)[0] - pivot
            return [d, d * d]

        total, squares = self.reduced(around, 2)
        many = b.reshape(b.cast(b.from_index(self._before(self.high) - self._before(self.low)), f32), (1, 1))
        shift = total / many  # squares of a constant may be rounded below its total's
        return [pivot + shift, b.binary("max", squares - total * shift, 0.0 * total), b.broadcast(many, total.shape)]


class Blocks:
    """`count` reductions over the `reduced` axes for every place of the `kept` ones, or (with `moments`) mean and variance of one term.
    With `columns` memory runs along the last kept axis, otherwise along the last reduced one. `item` is the bytes that an element of the
    terms is made of."""

    def __init__(self, name: str, kept: Sequence[Dim], reduced: Sequence[Dim], *, columns: bool, fn: str, dtype: DType, item: int,
                 count: int = 1, moments: bool = False, alone: bool = False, per: int = 0) -> None:
        """`alone`: one block a strip takes all steps; `per`: so many steps are a block's, whatever the shape."""
        self.name, self.columns, self.fn, self.dtype, self.count, self.moments = name, columns, fn, dtype, count, moments
        kept, reduced = list(kept), [1, *reduced] if not columns and len(reduced) == 1 else list(reduced)
        self.lead, self.loops = (kept[:-1], reduced[:-1]) if columns else (kept, reduced[:-2])
        self.down, self.across = (reduced[-1], kept[-1]) if columns else reduced[-2:]
        size = WARP * WARPS << max(4, min(32, BYTES // (item * count))).bit_length() - 1
        most = STRIP if alone else ACROSS
        if per and not alone:  # as wide as leaves a block all rows, if they are few
            most = max(WARP, min(WIDEST, per * size // max(1, bounds(self.down)[1])))
        self.most = most if columns else 1 << 30
        self.tile = self._tile(size)
        self.warps = max(1, min(WARPS, self.tile[0] * self.tile[1] // (WARP * 8)))
        walked = [*self.loops, ceildiv(self.down, self.tile[0])]
        self.strips: Dim = ceildiv(self.across, self.tile[1])
        self.walked, beside = (walked, self.strips) if columns else ([*walked, self.strips], 1)
        self.strips = beside
        self.steps = product(self.walked)
        most = int(min(bounds(self.steps)[1], 1 << 40))
        known = most if alone or isinstance(self.steps, int) else min(most, max(1, KNOWN // self.tile[0]))
        wanted = 1 if alone else -(-BLOCKS // max(1, bounds(product(self.lead) * beside)[0]))
        self.per = per or max(LEAST, -(-known // max(1, wanted)))
        self.chunks = ceildiv(self.steps, self.per) if self.per < most else 1
        self.left = 3 if moments else count  # what a block leaves of a result
        width = self.across if columns else 1
        self.parts = Buffer(f"{name}.parts", "temp", product(self.lead) * self.chunks * self.left * width * dtype.itemsize)

    def _tile(self, size: int) -> tuple[int, int]:
        """Powers of two that waste little of their tiles; rather long pieces of memory."""
        down, across = (max(1, int(min(bounds(d)[1], 1 << 30))) for d in (self.down, self.across))
        found: list[tuple[int, int, tuple[int, int]]] = []
        for log in range(size.bit_length()):
            wide = 1 << log
            if log and (wide >= 2 * across or wide > self.most):
                break
            tall = min(size // wide, 1 << (down - 1).bit_length())
            found.append((-(-down // tall) * -(-across // wide) * max(tall * wide, SMALL), -wide, (tall, wide)))
        long = [f for f in found if -f[1] >= min(32, across)]
        return min(long or found)[2]

    def _line(self, call: Call, *, write: bool = False) -> tuple[Any, Layout]:
        """What blocks leave, with the axes (lead, which, chunk, across), or (lead, which, one, chunk)."""
        if self.columns:
            lay = Layout.contiguous((*self.lead, self.left, self.chunks, self.across))
        else:
            lay = Layout.contiguous((*self.lead, self.left, 1, self.chunks))
        return call.view("parts", self.dtype, self.parts, lay, write=write), lay

    def launches(self, first: Call, terms: Terms, vectors: dict[str, int], last: Call, write: Callable[[Call, dict[str, int]], Write],
                 flops: Dim, nbytes: Dim) -> list[Launch]:
        """The launch of `first`, or two; `write` makes what stores the results."""
        if self.chunks == 1:
            def whole(walk: Walk) -> list[Tile]:
                if not self.moments:
                    return walk.reduced(terms, self.count)
                mean, squares, many = walk.moments(terms)
                return [mean, squares / many]

            return [self._launch(first, whole, vectors, write(first, vectors), flops, nbytes, "tiles of a block")]
        out, lay = self._line(first, write=True)
        vectors["parts"] = aligned(lay, self.across) if self.columns else 1

        def leave(p: Place, totals: list[Tile]) -> None:
            chunk = p.loops[0]
            for i, t in enumerate(totals):
                where = (chunk, p.at[1]) if self.columns else (0, chunk)
                first.b.store(out, (*p.lead, i, *where), t, limit=(None, p.limit[1]))

        shared = self._launch(first, lambda walk: walk.moments(terms) if self.moments else walk.reduced(terms, self.count), vectors, leave,
                              flops, nbytes, "tiles that several blocks share")
        again = Blocks(self.name, [*self.lead, self.across] if self.columns else self.lead, [self.chunks], columns=self.columns, fn=self.fn,
                       dtype=self.dtype, item=self.dtype.itemsize, count=self.count, alone=True)
        view, lay = self._line(last)
        found = {"parts": aligned(lay, lay.shape[-1])}

        def part(p: Place, i: int) -> Tile:
            return last.b.load(view, (*p.lead, i, *p.at), p.tile, limit=p.limit)

        def joined(walk: Walk) -> list[Tile]:
            if not self.moments:
                return walk.reduced(lambda p, _: [part(p, i) for i in range(self.count)], self.count)
            total, many = walk.reduced(lambda p, _: [part(p, 0) * part(p, 2), part(p, 2)], 2)
            mean = total / many

            def spread(p: Place, _: list[Callable[[], None]]) -> list[Tile]:
                d = part(p, 0) - mean
                return [part(p, 1) + d * d * part(p, 2)]

            return [mean, walk.reduced(spread, 1)[0] / many]

        moved = product(self.lead) * self.chunks * self.left * (self.across if self.columns else 1) * self.dtype.itemsize
        return [shared, again._launch(last, joined, found, write(last, found), 0, moved, "what the blocks leave")]

    def _launch(self, call: Call, found: Callable[[Walk], list[Tile]], vectors: dict[str, int], write: Write, flops: Dim, nbytes: Dim,
                note: str) -> Launch:
        walk, wide = Walk(self, call), self.tile[1]
        totals, start = found(walk), walk.strip * wide
        left = None if walk.whole[1] or not self.columns else walk.across - start
        at = (0, start if self.columns else 0)
        write(Place(walk.case, [walk.chunk], at, (None, left), (1, wide if self.columns else 1)), totals)
        launch = call.finish(product(self.lead) * self.chunks * self.strips, flops=flops, bytes_=nbytes, note=note)
        return tiled(launch, warps=self.warps, per_sm=2, vectors=vectors)


class CudaReduce(Template):
    """A reduction of floats with the elementwise work before and after it. `per`: steps of a block, else what the shape asks for; `vector`:
    the axis along which memory runs, else the one that the layouts show."""

    key = "reduce"
    serves = tuple(KINDS)
    fuses = True

    def __init__(self, per: int = 0, vector: int | None = None) -> None:
        self.per, self.vector = per, vector

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if isinstance(region.node.op, OverOthers):
            return None  # nobody else computes them
        dtype = region.node.values[0].dtype
        source = region.node.operands[0].dtype
        whole = source is dtype and dtype in (i32, i64, bool_)
        if not whole and not (dtype.is_float and source.is_float):
            return Reason("neither floats, bools nor integers of 32 or 64 bits")
        found = problem(region)
        if found is None:
            return Reason("operands or results of other shapes")
        length, many = product(found.reduced), product(found.kept)
        if found.columns:
            fewest = FEWEST[product(found.kept[:-1]) == 1]
            return None if bounds(length)[0] >= fewest else Reason(f"fewer than {fewest} rows")
        if len(found.reduced) > 1:
            return None if bounds(length)[0] >= FEWEST[True] else Reason("short rows")
        few = bounds(many)[1] < target.cores
        return None if few and bounds(length)[0] > RESIDENT else Reason("rows enough for all blocks, or short ones")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        found, node = problem(region, self.vector), region.node
        assert found is not None
        fn = next(f for k, f in KINDS.items() if isinstance(node.op, k))
        read = [o.type.dtype.itemsize for o, lay in zip(found.operands, found.wide, strict=False) if 0 not in lay.strides[-2:]]
        moments = isinstance(node.op, Moments)
        blocks = Blocks(region.name, found.kept, found.reduced, columns=found.columns, fn=fn, dtype=compute_dtype(node.operands[0].dtype),
                        item=sum(read) + 2, count=2 if moments else len(node.operands), moments=moments, per=self.per)
        call = Call(f"{node.op.name}_tiles", region.name if blocks.chunks == 1 else f"{region.name}.chunks")
        b, vectors = call.b, dict[str, int]()

        def view(call: Call, name: str, o: Operand, lay: Layout, vectors: dict[str, int], *, write: bool = False) -> Any:
            vectors[name] = aligned(lay, lay.shape[-1])
            return call.view(name, o.type.dtype, o.buffer, lay, write=write)

        wide = iter(found.wide)
        views = {v: view(call, f"x{i}", region.given(v), next(wide), vectors) for i, v in enumerate(found.full)}
        stored = [view(call, f"z{i}", r, next(wide), vectors, write=True) for i, (_, r) in enumerate(found.before)]

        def terms(p: Place, later: list[Callable[[], None]]) -> list[Tile]:
            def leaf(v: Value, o: Operand) -> Tile:
                shape, limit = p.part(views[v].type.strides)
                return b.load(views[v], (*p.lead, *p.loops, *p.at), shape, limit=limit)

            evaluate = Evaluator(b, region, leaf)
            for (v, r), z in zip(found.before, stored, strict=True):
                x = narrow(b, b.broadcast(evaluate(v), p.tile), r.type.dtype)
                later.append(lambda z=z, x=x: b.store(z, (*p.lead, *p.loops, *p.at), x, limit=p.limit))  # type: ignore[misc]
            return [evaluate(v) for v in node.operands]

        def write(call: Call, vectors: dict[str, int]) -> Write:
            c, thin = call.b, iter(found.thin)
            late = {v: view(call, f"e{i}", region.given(v), next(thin), vectors) for i, v in enumerate(found.late)}
            outs = [view(call, f"y{i}", r, next(thin), vectors, write=True) for i, (_, r) in enumerate(found.after)]
            count = call.word("count", product(found.reduced)) if isinstance(node.op, Mean) else None

            def put(p: Place, totals: list[Tile]) -> None:
                if count is not None:
                    totals = [totals[0] / c.cast(c.from_index(count), blocks.dtype)]

                def leaf(v: Value, o: Operand) -> Tile:
                    shape, limit = p.part((None, late[v].type.strides[-1]))
                    return c.load(late[v], (*p.lead, *p.at), shape, limit=limit)

                evaluate = Evaluator(c, region, leaf, dict(zip(node.values, totals, strict=True)))
                made = [narrow(c, c.broadcast(evaluate(v), p.tile), r.type.dtype) for v, r in found.after]  # no load passes a store
                for x, y in zip(made, outs, strict=True):
                    c.store(y, (*p.lead, *p.at), x, limit=p.limit)

            return put

        last = Call(f"{node.op.name}_parts", region.name)
        return blocks.launches(call, terms, vectors, last, write, region_flops(region), region_bytes(region))


@dataclass
class Problem:
    columns: bool
    kept: list[Dim]
    reduced: list[Dim]
    full: list[Value]  # what is read of the operand's shape
    operands: list[Operand]  # those, and what is stored beside the reduction
    wide: list[Layout]  # where they lie: (lead, loops, down, across)
    late: list[Value]  # what is read of the result's shape
    thin: list[Layout]  # where that and the results lie: (lead, one, across)
    before: list[tuple[Value, Operand]]
    after: list[tuple[Value, Operand]]


def problem(region: Region, vector: int | None = None) -> Problem | None:
    """The axes of a reduction as few as they are in memory, which runs along `vector`."""
    node = region.node
    op: Any = node.op
    shape, small = node.operands[0].shape, node.values[0].shape
    outputs = list(zip(region.body.outputs, region.results, strict=True))
    before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
    after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
    full = _leaves(region, [*node.operands, *(v for v, _ in before)], None)
    axes = op.axes(len(shape)) if isinstance(op, OverOthers) else op.axes
    late = _leaves(region, [v for v, _ in after], node)
    other = any(r.type.shape != shape for _, r in before) or any(r.type.shape != small for _, r in after)
    if not full or not axes or other:
        return None
    operands = [*map(region.given, full), *(r for _, r in before)]
    wide = [o.layout.expand(shape) for o in operands]
    thin = [o.layout.expand(small) for o in (*map(region.given, late), *(r for _, r in after))]
    kept = [a for a in range(len(shape)) if a not in axes]
    place = {a: a if getattr(op, "keepdims", False) else i for i, a in enumerate(kept)}
    vector = _vector_axis(region) if vector is None else vector
    columns = vector in kept
    whole = next((x for x in wide if all(s != 0 or d == 1 for s, d in zip(x.strides, shape, strict=True))), wide[0])
    kept.sort(key=lambda a: a == vector)
    reduced = sorted(axes, key=lambda a: (a == vector, -bounds(whole.strides[a])[1]))

    def merged(axes: list[int], strides: list[list[Dim]]) -> tuple[list[Dim], list[list[Dim]]]:
        dims = tuple(shape[a] for a in axes)
        return collapse(dims, [Layout(dims, tuple(s)) for s in strides])

    ks, outer = merged(kept, [[x.strides[a] for a in kept] for x in wide] + [[x.strides[place[a]] for a in kept] for x in thin])
    ls, inner = merged(reduced, [[x.strides[a] for a in reduced] for x in wide])
    if not ls:
        ls, inner = [1], [[0] for _ in inner]
    if columns and not ks:
        return None
    if not columns and len(ls) == 1:
        ls, inner = [1, *ls], [[0, *s] for s in inner]
    if columns:
        lays = [Layout((*ks[:-1], *ls, ks[-1]), (*k[:-1], *s, k[-1]), x.offset) for x, k, s in zip(wide, outer, inner, strict=False)]
        lines = [Layout((*ks[:-1], 1, ks[-1]), (*k[:-1], 0, k[-1]), x.offset) for x, k in zip(thin, outer[len(wide) :], strict=True)]
    else:
        lays = [Layout((*ks, *ls), (*k, *s), x.offset) for x, k, s in zip(wide, outer, inner, strict=False)]
        lines = [Layout((*ks, 1, 1), (*k, 0, 0), x.offset) for x, k in zip(thin, outer[len(wide) :], strict=True)]
    reduced_dims = ls if columns or ls[0] != 1 else ls[1:]
    return Problem(columns, ks, reduced_dims, full, operands, lays, late, lines, before, after)
