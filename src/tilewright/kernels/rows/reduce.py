"""Reductions where the elements of a row do not lie side by side, or where rows are long.

`rows.py` serves short rows of neighbours. Here *columns* run along registers when the innermost axis in memory is kept; a reduction of
more than `CHUNK` elements is cut in chunks, reduced by a program each, and their results are reduced by a second launch, so that long sums
use all threads and their error hardly grows with the length. The order of a sum is that of rows.py in every form: element i of a chunk
goes to partial sum i mod tile, then a halving tree; it depends on the reduced length alone.

The columns of one large matrix are *spread*: a program makes one partial result of some columns, and a second launch walks the tree.
Threads that took columns each would go down them in jumps of a row, which fall into few sets of a core's cache: nothing of the matrix
stayed there from one call to the next, while programs that take rows share them evenly and meet half of it again.

Tails are masked. A result of no elements is a grid of no programs.

Indices of extremes: best value and place lane by lane, along rows or across columns. Ties take the smaller index; the first NaN wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.dims import Dim, at_least, bounds, ceildiv, product
from ...core.dtypes import DType, compute_dtype, i32, i64
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Node, Value
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops import functions as F
from ...ops.pointwise.casts import Cast
from ...ops.rows import reductions as red
from ...tile.builder import Ix, Tile, View
from ...tile.ir import identity
from ..call import Call
from ..launch import Buffer, Launch
from ..loops import in_tiles
from ..pointwise.pointwise import unravel
from ..region import Evaluator, Operand, Region, collapse, narrow
from ..template import Foreign, Reason, Template, region_bytes, region_flops
from .rows import COMBINE, FEW, REDUCTIONS, Rows, halved


def over_parts(region: Region, kernel: ReduceKernel) -> Region:
    """The reduction of the parts, with everything that follows the anchor."""
    node = kernel.node
    axes, shape = kernel.axes, node.operands[0].shape
    first = axes[0]
    cut = tuple(kernel.chunks if a == first else 1 if a in axes else d for a, d in enumerate(shape))
    # in memory: [outer kept…, chunk, the kept axes that were merged into the last] for columns, [kept…, chunk] for rows
    split = len(kernel.kept)
    merged: Dim = 1
    while kernel.columns and merged != kernel.outer[-1]:
        split -= 1
        merged = shape[kernel.kept[split]] * merged
    order = [*kernel.kept[:split], first, *kernel.kept[split:]]
    packed = Layout.contiguous(tuple(cut[a] for a in order))
    strides = tuple(packed.strides[order.index(a)] if a in order else 0 for a in range(len(shape)))
    parts = Operand(TensorType(kernel.dtype, cut), kernel.temp, Layout(cut, strides))
    body = Graph(region.body.name)
    given = dict(zip(region.body.inputs, region.operands, strict=True))
    env: dict[Value, Value] = {}
    operands = [parts]
    op: Any = node.op
    again = red.Sum if isinstance(op, red.Mean) else type(op)
    made = again(axes=axes, keepdims=op.keepdims)(body.input(parts.type, "parts"))
    if kernel.spread and isinstance(op, red.Mean):  # in chunks it divides, to stay in range; here as a row does, after the last sum
        count = product([shape[a] for a in axes])
        assert isinstance(count, int)
        made = F.div(made, F.scalar(body, count, made.dtype))
    env[node.values[0]] = made if made.dtype is node.values[0].dtype else Cast(dtype=node.values[0].dtype)(made)
    wanted = [v for v in region.body.outputs if region.depends_on_anchor(v)]

    def copy(v: Value) -> Value:
        if v in given and v not in env:
            env[v] = body.input(v.type, v.name)
            operands.append(given[v])
        elif v not in env:
            n = v.node
            made = body.add(n.op, *(copy(x) for x in n.operands), name=n.name, place=n.place)
            env.update(zip(n.values, made.values, strict=True))
        return env[v]

    body.outputs = [copy(v) for v in wanted]
    results = [r for v, r in zip(region.body.outputs, region.results, strict=True) if v in wanted]
    return Region(region.name, body, operands, results, region.place)


TILE = 64  # partial sums of a long row, whatever the target
CHUNK = 256 * TILE
WIDTH = 64  # columns of a program, at least
FLAT = 32  # columns, at most, that are added up as they lie
AHEAD = 32  # rows that columns ask for before they are read
SPREAD = 1 << 20  # bytes of a matrix whose columns are spread
PIECE = 16 << 10  # bytes of a row that a program reads in one go
SPREAD_ROWS = 16  # times the partial results it has at least: they take a sixteenth of its memory at most


def spread_sizes(target: TargetSpec, itemsize: int) -> tuple[int, int]:
    """The partial results of a column, and the columns of a program that makes one: few rows far apart, so it reads long pieces, and keeps
    what it has in the first cache."""
    return target.vector_bits // 32 * 4, PIECE // max(itemsize, 4)


class Reduce(Template):
    key = "reduce"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in REDUCTIONS:
            return Foreign("no reduction")
        if _vector_axis(region) not in _axes(node) or _is_long(node):
            return None
        return Reason("rows of neighbours")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.anchor
        assert node is not None
        kernel = ReduceKernel(region, target, chunked=_is_long(node), may_spread=target.kind == "cpu")
        launches = [kernel.launch()]
        if not kernel.chunked and not kernel.spread:
            return launches
        rest = over_parts(region, kernel)
        again: Template = Reduce() if Reduce().matches(rest, target) is None else Rows()
        return [*launches, *again.build(rest, target)]


def _axes(node: Node) -> tuple[int, ...]:
    op: Any = node.op
    return (op.axis,) if hasattr(op, "axis") else tuple(op.axes)


def reduced_length(node: Node) -> Dim:
    return product([node.operands[0].shape[a] for a in _axes(node)])


def _is_long(node: Node) -> bool:
    return bounds(reduced_length(node))[1] > CHUNK


def _leaves(region: Region, roots: list[Value], stop: Node | None) -> list[Value]:
    """Values read from memory on the way to `roots`, not looking past `stop`."""
    found: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if v.node is stop:
            return
        if region.operand(v) is not None:
            found[v] = None
            return
        for o in v.node.operands:
            visit(o)

    for v in roots:
        visit(v)
    return list(found)


def _vector_axis(region: Region) -> int:
    """The axis of the anchor's operand along which most of what is read lies side by side; what is repeated along an axis counts less."""
    node = region.anchor
    assert node is not None
    shape = node.operands[0].shape
    layouts = [o.layout.expand(shape) for v in _leaves(region, [node.operands[0]], None) if (o := region.operand(v)) is not None]

    whole = [lay for lay in layouts if all(s != 0 or d == 1 for s, d in zip(lay.strides, shape, strict=True))]

    def score(axis: int) -> tuple[int, int, int]:
        return sum(lay.strides[axis] == 1 for lay in whole), sum(lay.strides[axis] == 1 for lay in layouts), axis

    return max((a for a, d in enumerate(shape) if d != 1), key=score, default=_axes(node)[0] if _axes(node) else 0)


class ReduceKernel:
    """One kernel under construction. Views are [kept axes merged…, reduced axes merged…]; the last kept axis (columns) or the last
    reduced one (rows) runs along registers."""

    def __init__(self, region: Region, target: TargetSpec, *, chunked: bool = False, may_spread: bool = False) -> None:
        self.region, self.node = region, region.node
        self.op: Any = self.node.op
        self.call = Call(self.op.name, f"{region.name}.chunks" if chunked else region.name)
        self.b = self.call.b
        self.dtype = compute_dtype(self.node.operands[0].dtype)
        self.shape, self.axes = self.node.operands[0].shape, _axes(self.node)
        vector = _vector_axis(region)
        self.columns = vector not in self.axes and len(self.axes) < len(self.shape)
        kept = [a for a in range(len(self.shape)) if a not in self.axes]
        if self.columns:
            kept = [*(a for a in kept if a != vector), vector]
        inner = [*(a for a in self.axes if a != vector), *(a for a in self.axes if a == vector)]
        self.kept, self.inner_axes = kept, inner
        length = reduced_length(self.node)
        lanes = target.vector_bits // 32
        parts, pieces = spread_sizes(target, self.dtype.itemsize)
        self.tile = TILE if chunked else parts if not isinstance(length, int) or length >= parts else lanes
        self.chunked, self.spread = chunked, may_spread and not chunked and self._spreads(length)
        columns = self.shape[kept[-1]] if kept else 1
        self.width = lanes if isinstance(columns, int) and columns <= lanes and not self.spread else WIDTH  # columns of a tile
        self.block = pieces if self.spread else self.width  # and of a program
        self._bind()

    def _spreads(self, length: Dim) -> bool:
        """One matrix, large, of many rows: its leading axes are reduced, or all but one."""
        size = product(self.shape)
        leading = self.axes == tuple(range(len(self.axes))) or all(self.shape[a] == 1 for a in self.kept[:-1])
        if not self.columns or not leading or (isinstance(self.op, red.Mean) and not isinstance(length, int)):
            return False
        return at_least(size * self.dtype.itemsize, SPREAD) and at_least(length, SPREAD_ROWS * self.tile)

    def _bind(self) -> None:
        region, call, b = self.region, self.call, self.b
        outputs = list(zip(region.body.outputs, region.results, strict=True))
        self.before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
        self.after = [] if self.chunked or self.spread else [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
        full = _leaves(region, [self.node.operands[0], *(v for v, _ in self.before)], None)
        late = _leaves(region, [v for v, _ in self.after], self.node)
        wide = [self._wide(self.region.given(v)) for v in full] + [self._wide(r) for _, r in self.before]
        thin = [self._thin(self.region.given(v)) for v in late] + [self._thin(r) for _, r in self.after]
        n = len(self.kept)
        kept_shape = tuple(self.shape[a] for a in self.kept)
        row_shape = tuple(self.shape[a] for a in self.inner_axes)
        outer, outer_strides = collapse(kept_shape, [Layout(kept_shape, lay.strides[:n]) for lay in [*wide, *thin]])
        inner, inner_strides = collapse(row_shape, [Layout(row_shape, lay.strides[n:]) for lay in wide])
        if not outer:
            outer, outer_strides = [1], [[0] for _ in outer_strides]
        if not inner:
            inner, inner_strides = [1], [[1] for _ in inner_strides]
        whole = [Layout((*outer, *inner), (*a, *c), lay.offset) for lay, a, c in zip(wide, outer_strides, inner_strides, strict=False)]
        short = [Layout(tuple(outer), tuple(a), lay.offset) for lay, a in zip(thin, outer_strides[len(wide) :], strict=True)]
        wide_by, deep = outer[-1], inner[0]
        self.few = len(inner) == 1 and isinstance(deep, int) and 0 < deep <= FEW <= self.tile and not self.chunked
        self.flat = self.columns and not (self.spread or self.before or self.few) and isinstance(wide_by, int) and 0 < wide_by <= FLAT
        self.flat = self.flat and type(self.op) in REDUCTIONS
        self.flat = self.flat and all(a[-1] == 1 and c == [wide_by] for a, c in zip(outer_strides, inner_strides, strict=False))
        if self.flat:  # the rows of a few columns lie behind one another
            whole = [Layout((*outer[:-1], deep * wide_by), (*lay.strides[: len(outer) - 1], 1), lay.offset) for lay in whole]
        self.full = {v: self._view(f"x{i}", self.region.given(v), whole[i]) for i, v in enumerate(full)}
        self.stored = [self._view(f"z{i}", r, whole[len(full) + i], write=True) for i, (_, r) in enumerate(self.before)]
        self.late = {v: self._view(f"e{i}", self.region.given(v), short[i]) for i, v in enumerate(late)}
        self.outs = [self._view(f"y{i}", r, short[len(late) + i], write=True) for i, (_, r) in enumerate(self.after)]
        self.outer, self.inner = outer, inner
        self.sizes = [call.word(f"n{i}", d) for i, d in enumerate(inner)]
        dims = [call.word(f"d{i}", d) for i, d in enumerate(outer)]
        self.low: Ix | int = 0
        self.high: Ix | int = self.sizes[0]
        where: Ix | int = b.pid
        self.grid = product(outer)
        if self.columns:
            self.grid = product(outer[:-1]) * ceildiv(outer[-1], self.block)
        if self.spread:
            self.chunks: Dim = self.tile
            count = b.ceildiv(dims[-1], self.block)
            for d in dims[:-1]:
                count = count * d
            self.chunk = where // count
            where = where % count
        elif self.chunked:
            rest = product(inner[1:])
            per = CHUNK if len(inner) == 1 else max(1, CHUNK // max(rest, 1)) if isinstance(rest, int) else 1
            self.chunks = ceildiv(inner[0], per)
            count = call.word("chunks", self.chunks)
            self.chunk = where % count
            where = where // count
            self.low = self.chunk * per
            self.high = b.minimum(self.low + per, self.sizes[0])
        if self.chunked or self.spread:
            self.grid = self.grid * self.chunks
            self.temp = Buffer(f"{self.region.name}.parts", "temp", product(outer) * self.chunks * self.dtype.itemsize)
        self.limit: Ix | int | None = None
        if self.columns:
            blocks = b.ceildiv(dims[-1], self.block)
            first = where % blocks * self.block
            self.at: list[Ix | int] = [*unravel(b, where // blocks, dims[:-1]), first] if len(dims) > 1 else [first]
            self.limit = b.minimum(dims[-1] - first, self.block)
        else:
            self.at = unravel(b, where, dims)
        self.row = where

    def _view(self, name: str, o: Operand, layout: Layout, *, write: bool = False) -> View:
        return self.call.view(name, o.type.dtype, o.buffer, layout, write=write)

    def _wide(self, o: Operand) -> Layout:
        return o.layout.expand(self.shape).permute((*self.kept, *self.inner_axes))

    def _thin(self, o: Operand) -> Layout:
        """The layout of something of the result's shape over the kept axes."""
        shape = self.node.values[0].shape
        lay = o.layout.expand(shape) if o.layout.shape != shape else o.layout
        if len(shape) == len(self.shape):
            strides = tuple(lay.strides[a] for a in self.kept)
        else:
            order = sorted(self.kept)
            strides = tuple(lay.strides[order.index(a)] for a in self.kept)
        return Layout(tuple(self.shape[a] for a in self.kept), strides, lay.offset)

    # --- walking ------------------------------------------------------------------------------------------------------
    def values(self, place: list[Ix | int], left: Ix | int | None) -> Tile:
        """The anchor's operand at a place of the reduced axes: a tile of the row, or some columns. Stores what stands before it."""
        b = self.b
        n = self.tile if not self.columns else self.width
        limit = left if not self.columns else self.limit
        axis = len(self.outer) - 1 if self.columns else len(self.outer) + len(self.inner) - 1

        def leaf(v: Value, o: Operand) -> Tile:
            view = self.full[v]
            if view.type.strides[axis] == 0:
                return b.load(view, (*self.at, *place), (1,), axes=(axis,))
            return b.load(view, (*self.at, *place), (n,), axes=(axis,), limit=None if limit is None else (limit,))

        evaluate = Evaluator(b, self.region, leaf)
        for (v, r), view in zip(self.before, self.stored, strict=True):
            x = narrow(b, b.broadcast(evaluate(v), (n,)), r.type.dtype)
            b.store(view, (*self.at, *place), x, axes=(axis,), limit=None if limit is None else (limit,))
        return b.broadcast(evaluate(self.node.operands[0]), (n,))

    def over_rows(self, carried: list[Tile], body: Callable[[list[Ix | int], Ix | int | None, list[Tile]], list[Tile]]) -> list[Tile]:
        """Tiles of the row, then a masked tail, for each position of the outer reduced axes."""
        b = self.b

        def nest(prefix: list[Ix | int], state: list[Tile]) -> list[Tile]:
            level = len(prefix)
            low, high = (self.low, self.high) if level == 0 else (0, self.sizes[level])
            if level < len(self.inner) - 1:
                with b.loop(low, high, 1, state) as loop:
                    loop.next(*nest([*prefix, loop.index], list(loop.carried)))
                return list(loop.results)
            return in_tiles(b, low, high, self.tile, lambda i, left, carried: body([*prefix, i], left, carried), state)

        return nest([], carried)

    # --- the kernels --------------------------------------------------------------------------------------------------
    def launch(self) -> Launch:
        b = self.b
        if self.spread:
            self._spread_columns(REDUCTIONS[type(self.op)])
            return self._finished()
        value = self.value()
        limit = None if self.limit is None else (self.limit,)
        if self.chunked:
            out, row = self._parts()
            b.store(out, (row, self.chunk, self.at[-1] if self.columns else 0), value, limit=limit)
        axis = len(self.outer) - 1

        def leaf(v: Value, o: Operand) -> Tile:
            view = self.late[v]
            if not self.columns or view.type.strides[axis] == 0:
                return b.load(view, self.at, (1,), axes=(axis,))
            return b.load(view, self.at, (self.width,), axes=(axis,), limit=limit)

        evaluate = Evaluator(b, self.region, leaf, {self.node.values[0]: value})
        for (v, r), view in zip(self.after, self.outs, strict=True):
            x = b.broadcast(evaluate(v), (self.width,) if self.columns else (1,))
            b.store(view, self.at, narrow(b, x, r.type.dtype), axes=(axis,), limit=limit)
        return self._finished()

    def _parts(self) -> tuple[View, Ix | int]:
        """Where partial results go, and the row of the result that they are of."""
        last: Dim = self.outer[-1] if self.columns else 1
        rows = product(self.outer[:-1]) if self.columns else product(self.outer)
        layout = Layout((rows, self.chunks, last), (self.chunks * last, last, 1))
        return self.call.view("p", self.dtype, self.temp, layout, write=True), self._outer_row() if self.columns else self.row

    def _finished(self) -> Launch:
        note = f"{'columns' if self.columns else 'rows'}{', in chunks' if self.chunked else ', spread' if self.spread else ''}"
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note, streams=True)

    def value(self) -> Tile:
        """The result of one row, or of some columns."""
        fn = REDUCTIONS[type(self.op)]
        value = self._fold_columns(fn) if self.columns else self._fold_row(fn)
        if not isinstance(self.op, red.Mean):
            return value
        count: Ix | int = 1
        for n in self.sizes:
            count = count * n
        return value / self.b.from_index(count, self.dtype)

    def _outer_row(self) -> Ix | int:
        row: Ix | int = 0
        for i, x in enumerate(self.at[:-1]):
            row = row * self.call.word(f"o{i}", self.outer[i]) + x
        return row

    def _fold_row(self, fn: str) -> Tile:
        b, other = self.b, identity(fn, self.dtype)

        def body(place: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            x = self.values(place, left)
            if left is not None:
                x = b.select(b.cmp("lt", b.iota((self.tile,), 0), b.from_index(left)), x, other)
            return [b.binary(COMBINE[fn], x, carried[0])]

        return b.reduce(fn, self.over_rows([b.full((self.tile,), other, self.dtype)], body)[0])

    def _fold_columns(self, fn: str) -> Tile:
        """`tile` partial results of some columns, one after another, then a tree; element i of a column goes to partial i mod tile,
        as along a row."""
        b, other = self.b, identity(fn, self.dtype)
        if self.flat:
            return self._fold_flat(fn)

        def nest(prefix: list[Ix | int], first: Ix | int, state: Tile) -> Tile:
            level = len(prefix)
            low, high = (self.low, self.high) if level == 0 else (0, self.sizes[level])
            last = level == len(self.inner) - 1
            with b.loop(low + first if last else low, high, self.tile if last else 1, [state]) as loop:
                here = [*prefix, loop.index]
                state = loop.carried[0]
                loop.next(b.binary(COMBINE[fn], self.values(here, None), state) if last else nest(here, first, state))
            found: Tile = loop.results[0]
            return found

        if self.few:
            assert isinstance(self.inner[0], int)
            start = b.full((self.width,), other, self.dtype)
            return halved([b.binary(COMBINE[fn], self.values([i], None), start) for i in range(self.inner[0])], self.tile,
                          lambda x, y: b.binary(COMBINE[fn], x, y))
        if fn not in ("sum", "prod"):  # the order does not matter: one register block is enough
            def best(place: list[Ix | int], state: Tile) -> Tile:
                self._foresee(place, AHEAD)
                return b.binary(COMBINE[fn], self.values(place, None), state)

            return self._each_place(b.full((self.width,), other, self.dtype), best)
        parts = b.scratch(self.dtype, (self.tile, self.width))
        with b.loop(0, self.tile) as one:
            b.store(parts, (one.index, 0), nest([], one.index, b.full((self.width,), other, self.dtype)))
        half = self.tile // 2
        while half:
            with b.loop(0, half) as loop:
                pair = b.binary(COMBINE[fn], *(b.load(parts, (loop.index + k, 0), (self.width,)) for k in (0, half)))
                b.store(parts, (loop.index, 0), pair)
            half //= 2
        return b.load(parts, (0, 0), (self.width,))

    def _fold_flat(self, fn: str) -> Tile:
        """Partial results of a few columns whose rows lie behind one another: `tile` rows at a time are one piece of memory."""
        b, other, columns = self.b, identity(fn, self.dtype), self.outer[-1]
        assert isinstance(columns, int)
        piece = self.tile * columns
        parts = b.scratch(self.dtype, (piece + WIDTH,))

        def value(i: Ix, left: Ix | int | None) -> Tile:
            limit = None if left is None else (left,)

            def leaf(v: Value, o: Operand) -> Tile:
                return b.load(self.full[v], (*self.at[:-1], i), (WIDTH,), limit=limit)

            return b.broadcast(Evaluator(b, self.region, leaf)(self.node.operands[0]), (WIDTH,))

        def join(at: Ix | int, x: Tile, limit: Any) -> None:
            b.store(parts, (at,), b.binary(COMBINE[fn], x, b.load(parts, (at,), (WIDTH,), limit=limit)), limit=limit)

        def rows(first: Ix, stop: Ix | int) -> None:
            def add(i: Ix, left: Ix | int | None, _: list[Tile]) -> list[Tile]:
                join(i - first, value(i, left), None if left is None else (left,))
                return []

            in_tiles(b, first, stop, WIDTH, add)

        with b.loop(0, piece, WIDTH) as one:
            b.store(parts, (one.index,), b.full((WIDTH,), other, self.dtype))
        low, high = self.low * columns, self.high * columns
        with b.loop(low, high, piece) as loop:
            rows(loop.index, b.minimum(high, loop.index + piece))
        while (piece := piece // 2) >= columns:
            def half(i: Ix, left: Ix | int | None, _: list[Tile], piece: int = piece) -> list[Tile]:
                limit = None if left is None else (left,)
                join(i, b.load(parts, (i + piece,), (WIDTH,), limit=limit), limit)
                return []

            in_tiles(b, 0, piece, WIDTH, half)
        return b.load(parts, (0,), (self.width,), limit=(columns,))

    def _spread_columns(self, fn: str) -> None:
        """One partial result of many columns: rows are added up whole, one after another, in memory that the first cache holds."""
        b, other, width = self.b, identity(fn, self.dtype), self.width
        sums = b.scratch(self.dtype, (self.block // width, width))
        first, left = self.at[-1], self.limit
        assert left is not None

        def pieces(body: Callable[[Ix | int], None]) -> None:
            whole = left // width
            with b.loop(0, whole) as piece:
                self.at[-1], self.limit = first + piece.index * width, None
                body(piece.index)
            with b.loop(whole, b.ceildiv(left, width)) as tail:
                self.at[-1], self.limit = first + tail.index * width, left - tail.index * width
                body(tail.index)

        def add(here: list[Ix | int], k: Ix | int) -> None:
            self._foresee(here, self.tile, near=3)
            b.store(sums, (k, 0), b.binary(COMBINE[fn], self.values(here, None), b.load(sums, (k, 0), (width,))))

        def rows(prefix: list[Ix | int]) -> None:
            level = len(prefix)
            low, high = (self.low, self.high) if level == 0 else (0, self.sizes[level])
            last = level == len(self.inner) - 1
            with b.loop(low + self.chunk if last else low, high, self.tile if last else 1) as loop:
                here = [*prefix, loop.index]
                pieces(lambda k: add(here, k)) if last else rows(here)

        out, row = self._parts()
        pieces(lambda k: b.store(sums, (k, 0), b.full((width,), other, self.dtype)))
        rows([])
        pieces(lambda k: b.store(out, (row, self.chunk, self.at[-1]), b.load(sums, (k, 0), (width,)),
                                 limit=None if self.limit is None else (self.limit,)))

    def _foresee(self, place: list[Ix | int], ahead: int, *, near: int = 2) -> None:
        """Ask for what lies some rows ahead: a few columns are too short for the hardware to foresee the next."""
        for v in self.full.values():
            for k in range(0, self.width if v.type.strides[len(self.outer) - 1] == 1 else 0, 64 // v.type.dtype.itemsize):
                self.b.prefetch(v, (*self.at[:-1], self.at[-1] + k, *place[:-1], place[-1] + ahead), locality=near)

    def _each_place(self, start: Tile, step: Callable[[list[Ix | int], Tile], Tile]) -> Tile:
        b = self.b

        def nest(prefix: list[Ix | int], state: Tile) -> Tile:
            level = len(prefix)
            low, high = (self.low, self.high) if level == 0 else (0, self.sizes[level])
            with b.loop(low, high, 1, [state]) as loop:
                here = [*prefix, loop.index]
                last = level == len(self.inner) - 1
                loop.next(step(here, loop.carried[0]) if last else nest(here, loop.carried[0]))
            found: Tile = loop.results[0]
            return found

        return nest([], start)


class ArgReduce(Template):
    """Lanes past the end of a row never win; a result of no elements is a grid of no programs."""

    key = "arg_reduce"
    serves = (red.ArgMax, red.ArgMin)
    fuses = True

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [ArgKernel(region, target).launch()]


class ArgKernel(ReduceKernel):
    """One kernel under construction."""

    def value(self) -> Tile:
        return self._arg_columns() if self.columns else self._arg_row()

    def _better(self, x: Tile, best: Tile) -> Tile:
        """Strictly, so that the first of equals stays; the first NaN wins and stays."""
        b = self.b
        better = b.cmp("gt" if isinstance(self.op, red.ArgMax) else "lt", x, best)
        if not self.dtype.is_float:
            return better
        return b.binary("or", better, b.binary("and", b.unary("isnan", x), b.unary("not", b.unary("isnan", best))))

    def _counter(self) -> DType:
        return i32 if bounds(reduced_length(self.node))[1] < 1 << 31 else i64

    def _arg_row(self) -> Tile:
        """Best and place lane by lane. A lane that met nothing better than the worst of all numbers has no place: where no lane has one,
        all elements are that number, and the first is as good as any."""
        b, kind = self.b, self._counter()
        fn, nowhere = "max" if isinstance(self.op, red.ArgMax) else "min", (1 << (8 * self._counter().itemsize - 1)) - 1
        lane = b.iota((self.tile,), 0, kind)

        def body(place: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            best, where = carried
            x = self.values(place, left)
            better = self._better(x, best)
            if left is not None:
                better = b.binary("and", better, b.cmp("lt", lane, b.from_index(left, kind)))
            return [b.select(better, x, best), b.select(better, lane + b.from_index(place[-1], kind), where)]

        worst = b.full((self.tile,), identity(fn, self.dtype), self.dtype)
        best, where = self.over_rows([worst, b.full((self.tile,), nowhere, kind)], body)
        same = b.cmp("eq", best, b.reduce(fn, best))
        if self.dtype.is_float:
            same = b.binary("or", same, b.unary("isnan", best))
        found = b.reduce("min", b.select(same, where, b.full((), nowhere, kind)))
        return b.cast(b.select(b.cmp("eq", found, nowhere), 0, found), self.op.dtype)

    def _arg_columns(self) -> Tile:
        b, kind = self.b, self._counter()
        with b.loop(0, self.sizes[0], 1, [self.values([0] * len(self.inner), None), b.full((self.width,), 0, kind)]) as loop:
            x = self.values([loop.index], None)
            better = self._better(x, loop.carried[0])
            loop.next(b.select(better, x, loop.carried[0]), b.select(better, b.from_index(loop.index, kind), loop.carried[1]))
        where: Tile = loop.results[1]
        return b.cast(where, self.op.dtype)
