"""Sums down the columns of a matrix on a GPU: the gradients of biases and of norms' weights.

A warp owns a strip of columns, 16 bytes a thread, and walks a chunk of rows, many rows in flight; a second launch adds the chunks' sums in
order. The number of chunks follows from the number of rows alone, so every sum has one order.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dims import Dim, bounds, ceildiv, divisible, product
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.reductions import Sum
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...launch import Buffer, Launch
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..reduce import _leaves

WARP = 32
CHUNKS = 128  # of the rows, at most
IN_FLIGHT = 16  # rows
FEWEST = 64  # rows that are worth it

# (row, first column, columns that are left, what to do when all rows in flight are loaded) -> one tile a sum
Terms = Callable[[Ix | int, Ix | int, Ix | int | None, list[Callable[[], None]]], list[Tile]]


class Columns:
    """`count` sums over rows of terms that a call's views give; the sums of chunks lie in `parts`."""

    def __init__(self, name: str, rows: Dim, width: Dim, count: int, vector: int) -> None:
        self.name, self.rows, self.width, self.count, self.vector = name, rows, width, count, vector
        self.strip = WARP * vector
        most = bounds(rows)[1]
        per = -(-int(min(most, 1 << 24)) // CHUNKS)
        self.per = max(IN_FLIGHT, -(-per // IN_FLIGHT) * IN_FLIGHT)
        self.chunks = ceildiv(rows, self.per)
        self.parts = Buffer(f"{name}.parts", "temp", self.chunks * count * width * 4)

    def first(self, call: Call, terms: Terms, flops: Dim, nbytes: Dim, note: str) -> Launch:
        """The sums of chunks."""
        b = call.b
        out = call.view("parts", f32, self.parts, Layout.contiguous((self.chunks, self.count, self.width)), write=True)
        m, n = call.word("rows", self.rows), call.word("n", self.width)
        strips = b.ceildiv(n, self.strip)
        chunk, column = b.pid // strips, b.pid % strips * self.strip
        low = chunk * self.per
        high = b.minimum(low + self.per, m)
        left = None if divisible(self.width, self.strip) else n - column
        whole = low + (high - low) // IN_FLIGHT * IN_FLIGHT
        with b.loop(low, whole, IN_FLIGHT, [b.full((self.strip,), 0.0, f32)] * self.count) as loop:
            later: list[Callable[[], None]] = []  # no load passes a store
            found = [terms(loop.index + u, column, left, later) for u in range(IN_FLIGHT)]
            for store in later:
                store()
            while len(found) > 1:
                found = [[x + y for x, y in zip(found[i], found[i + 1], strict=True)] for i in range(0, len(found), 2)]
            loop.next(*(a + t for a, t in zip(loop.carried, found[0], strict=True)))
        with b.loop(whole, high, 1, loop.results) as tail:
            later = []
            found = [terms(tail.index, column, left, later)]
            for store in later:
                store()
            tail.next(*(a + t for a, t in zip(tail.carried, found[0], strict=True)))
        for i, t in enumerate(tail.results):
            b.store(out, (chunk, i, column), t, limit=None if left is None else (left,))
        launch = call.finish(self.chunks * ceildiv(self.width, self.strip), flops=flops, bytes_=nbytes, note=note)
        launch.kernel = on_threads(launch.kernel, WARP, 1, self.vector)
        return launch

    def second(self, call: Call, write: Callable[[Ix | int, Ix | int, list[Tile]], None]) -> Launch:
        """`write(first column, columns that are left, sums)` for strips of 32 columns."""
        b = call.b
        parts = call.view("parts", f32, self.parts, Layout.contiguous((self.chunks, self.count, self.width)))
        n, chunks = call.word("n", self.width), call.word("chunks", self.chunks)
        column = b.pid * WARP
        left = n - column
        whole = chunks // IN_FLIGHT * IN_FLIGHT

        def at(chunk: Ix | int) -> list[Tile]:
            return [b.load(parts, (chunk, i, column), (WARP,), limit=(left,)) for i in range(self.count)]

        with b.loop(0, whole, IN_FLIGHT, [b.full((WARP,), 0.0, f32)] * self.count) as loop:
            total = list(loop.carried)
            for x in [at(loop.index + u) for u in range(IN_FLIGHT)]:
                total = [a + t for a, t in zip(total, x, strict=True)]
            loop.next(*total)
        with b.loop(whole, chunks, 1, loop.results) as tail:
            tail.next(*(a + t for a, t in zip(tail.carried, at(tail.index), strict=True)))
        write(column, left, list(tail.results))
        launch = call.finish(ceildiv(self.width, WARP), note="sums of chunks")
        launch.kernel = on_threads(launch.kernel, WARP, 1, 1)
        return launch


class CudaColumns(Template):
    """A sum over all axes but the last, with the elementwise work before and after it."""

    key = "columns"
    serves = (Sum,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        shape, dtype = region.node.operands[0].shape, region.node.values[0].dtype
        if tuple(region.op(Sum).axes) != tuple(range(len(shape) - 1)) or not dtype.is_float or dtype.itemsize > 4:
            return Reason("not a sum of floats over all axes but the last")
        rows = bounds(product(shape[:-1]))[0]
        if rows < FEWEST:
            return Reason(f"fewer than {FEWEST} rows")
        return None if _matrix(region) is not None else Reason("not a matrix of rows in memory")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        made = _matrix(region)
        node = region.anchor
        if made is None:
            from ...cuda.groups import Shared
            from ..reduce import Reduce

            return Shared(Reduce()).build(region, target)
        assert node is not None
        rows, width, full, wide = made
        outputs = list(zip(region.body.outputs, region.results, strict=True))
        before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
        after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
        places = [o for v in full if (o := region.operand(v)) is not None]
        sizes = [o.type.dtype.itemsize for o in (*places, *(r for _, r in before))]
        vector = vector_width(sizes, width, wide)
        sums = Columns(region.name, rows, width, 1, vector)
        call = Call("columns", f"{region.name}.chunks")
        b = call.b
        views = {v: _view(call, f"x{i}", o, lay) for i, (v, o, lay) in enumerate(zip(full, places, wide, strict=False))}
        stored = [_view(call, f"z{i}", r, lay, write=True) for i, ((_, r), lay) in enumerate(zip(before, wide[len(full) :], strict=True))]

        def terms(row: Ix | int, column: Ix | int, left: Ix | int | None, later: list[Callable[[], None]]) -> list[Tile]:
            limit = None if left is None else (left,)

            def leaf(v: Value, o: Operand) -> Tile:
                narrow_ = views[v].type.strides[1] == 0
                return b.load(views[v], (row, column), (1,) if narrow_ else (sums.strip,), limit=None if narrow_ else limit)

            evaluate = Evaluator(b, region, leaf)
            for (v, r), view in zip(before, stored, strict=True):
                x = narrow(b, b.broadcast(evaluate(v), (sums.strip,)), r.type.dtype)
                later.append(lambda view=view, x=x: b.store(view, (row, column), x, limit=limit))  # type: ignore[misc]
            return [b.broadcast(evaluate(node.operands[0]), (sums.strip,))]

        first = sums.first(call, terms, region_flops(region), region_bytes(region), "columns, in chunks")
        last = Call("columns_sum", region.name)
        c = last.b
        shape = node.values[0].shape
        late = _leaves(region, [v for v, _ in after], node)
        thin = {v: _view(last, f"e{i}", o, _line(o, shape)) for i, v in enumerate(late) if (o := region.operand(v)) is not None}
        outs = [_view(last, f"y{i}", r, _line(r, shape), write=True) for i, (_, r) in enumerate(after)]

        def write(column: Ix | int, left: Ix | int, totals: list[Tile]) -> None:
            def leaf(v: Value, o: Operand) -> Tile:
                one = thin[v].type.strides[0] == 0
                return c.load(thin[v], (column,), (1,) if one else (WARP,), limit=None if one else (left,))

            evaluate = Evaluator(c, region, leaf, {node.values[0]: totals[0]})
            for (v, r), view in zip(after, outs, strict=True):
                c.store(view, (column,), narrow(c, c.broadcast(evaluate(v), (WARP,)), r.type.dtype), limit=(left,))

        return [first, sums.second(last, write)]


def _view(call: Call, name: str, o: Operand, lay: Layout, *, write: bool = False) -> View:
    return call.view(name, o.type.dtype, o.buffer, lay, write=write)


def _line(o: Operand, shape: tuple[Dim, ...]) -> Layout:
    """The last axis of something of the sum's shape."""
    lay = o.layout.expand(shape) if o.layout.shape != shape else o.layout
    return Layout(lay.shape[-1:], lay.strides[-1:], lay.offset)


def _matrix(region: Region) -> tuple[Dim, Dim, list[Value], list[Layout]] | None:
    """(rows, width, values read, their layouts and those of what is stored beside the sum), where all of them are matrices."""
    node = region.node
    shape = node.operands[0].shape
    before = [(v, r) for v, r in zip(region.body.outputs, region.results, strict=True) if not region.depends_on_anchor(v)]
    full = _leaves(region, [node.operands[0], *(v for v, _ in before)], None)
    places = [region.operand(v) for v in full]
    if not full or any(o is None for o in places):
        return None
    layouts = [o.layout.expand(shape) for o in places if o is not None] + [r.layout for _, r in before]
    sizes, strides = collapse(shape[:-1], [Layout(lay.shape[:-1], lay.strides[:-1], lay.offset) for lay in layouts])
    if len(sizes) != 1 or any(lay.strides[-1] not in (0, 1) for lay in layouts):
        return None
    both = (sizes[0], shape[-1])
    return *both, full, [Layout(both, (s[0], lay.strides[-1]), lay.offset) for s, lay in zip(strides, layouts, strict=True)]
