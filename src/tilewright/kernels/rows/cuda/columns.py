"""Sums and means whose results lie side by side in memory, on a GPU: gradients of biases and of norms' weights, means of pixels that lie
channels last. What is read is seen as [cases, rows, columns].

A group of threads owns a strip of columns, 16 bytes a thread, and walks a chunk of rows, many rows in flight; a second launch adds the
chunks' sums in order, where there are several. How many follows from the shape alone, so every sum has one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....core.dims import Dim, bounds, ceildiv, divisible
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.reductions import Mean, Sum
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
PROGRAMS = 2048  # groups of threads that keep a large chip busy
ALONE = 64  # rows that are one chunk, where there are many cases
FEWEST = {True: 64, False: 32}  # rows that are worth it; with one case, or several

# (case, row, first column, columns that are left, what to do when all rows in flight are loaded) -> one tile a sum
Terms = Callable[[Ix | int, Ix | int, Ix | int, Ix | int | None, list[Callable[[], None]]], list[Tile]]
Write = Callable[[Ix | int, Ix | int, Ix | int | None, list[Tile]], None]  # (case, first column, columns that are left, sums)


class Columns:
    """`count` sums over rows of terms that a call's views give; the sums of chunks lie in `parts`."""

    def __init__(self, name: str, rows: Dim, width: Dim, count: int, vector: int, cases: Dim = 1) -> None:
        self.name, self.rows, self.width, self.count, self.vector, self.cases = name, rows, width, count, vector, cases
        self.lanes = min(WARP, 1 << (-(-bounds(width)[1] // vector) - 1).bit_length())
        self.strip = self.lanes * vector
        most = int(min(bounds(rows)[1], 1 << 24))
        wanted = CHUNKS if cases == 1 else 1 if most <= ALONE else -(-PROGRAMS // max(1, bounds(cases * ceildiv(width, self.strip))[0]))
        per = -(-most // max(1, min(CHUNKS, wanted)))
        self.per = max(IN_FLIGHT, -(-per // IN_FLIGHT) * IN_FLIGHT)
        self.chunks = ceildiv(rows, self.per) if self.per < most else 1
        self.parts = Buffer(f"{name}.parts", "temp", cases * self.chunks * count * width * 4)

    def _line(self, call: Call, *, write: bool = False) -> View:
        layout = Layout.contiguous((self.cases, self.chunks, self.count, self.width))
        return call.view("parts", f32, self.parts, layout, write=write)

    def launches(self, first: Call, terms: Terms, last: Call, write: Callable[[Call], Write], flops: Dim, nbytes: Dim,
                 note: str) -> list[Launch]:
        """The sums of chunks, and those of the rows; one launch of `first` where that is one chunk. `write` makes what stores the sums."""
        b = first.b
        store = write(first) if self.chunks == 1 else None
        out = None if self.chunks == 1 else self._line(first, write=True)
        m, n, chunks = first.word("rows", self.rows), first.word("n", self.width), first.word("chunks", self.chunks)
        strips = b.ceildiv(n, self.strip)
        program, column = b.pid // strips, b.pid % strips * self.strip
        case, chunk = (0, program) if self.cases == 1 else (program // chunks, program % chunks)
        low = chunk * self.per
        high = b.minimum(low + self.per, m)
        left = None if divisible(self.width, self.strip) else n - column
        whole = low + (high - low) // IN_FLIGHT * IN_FLIGHT
        with b.loop(low, whole, IN_FLIGHT, [b.full((self.strip,), 0.0, f32)] * self.count) as loop:
            later: list[Callable[[], None]] = []  # no load passes a store
            found = [terms(case, loop.index + u, column, left, later) for u in range(IN_FLIGHT)]
            for put in later:
                put()
            while len(found) > 1:
                found = [[x + y for x, y in zip(found[i], found[i + 1], strict=True)] for i in range(0, len(found), 2)]
            loop.next(*(a + t for a, t in zip(loop.carried, found[0], strict=True)))
        with b.loop(whole, high, 1, loop.results) as tail:
            later = []
            found = [terms(case, tail.index, column, left, later)]
            for put in later:
                put()
            tail.next(*(a + t for a, t in zip(tail.carried, found[0], strict=True)))
        if store is not None:
            store(case, column, left, list(tail.results))
        else:
            assert out is not None
            for i, t in enumerate(tail.results):
                b.store(out, (case, chunk, i, column), t, limit=None if left is None else (left,))
        launch = first.finish(self.cases * self.chunks * ceildiv(self.width, self.strip), flops=flops, bytes_=nbytes, note=note)
        launch.kernel = on_threads(launch.kernel, self.lanes, 1 if self.cases == 1 else 4 * WARP // self.lanes, self.vector)
        return [launch] if store is not None else [launch, self._second(last, write(last))]

    def _second(self, call: Call, write: Write) -> Launch:
        """Sums of chunks, for strips of 32 columns."""
        b, parts = call.b, self._line(call)
        n, chunks = call.word("n", self.width), call.word("chunks", self.chunks)
        strips = b.ceildiv(n, WARP)
        case, column = (0, b.pid * WARP) if self.cases == 1 else (b.pid // strips, b.pid % strips * WARP)
        left = n - column
        whole = chunks // IN_FLIGHT * IN_FLIGHT

        def at(chunk: Ix | int) -> list[Tile]:
            return [b.load(parts, (case, chunk, i, column), (WARP,), limit=(left,)) for i in range(self.count)]

        with b.loop(0, whole, IN_FLIGHT, [b.full((WARP,), 0.0, f32)] * self.count) as loop:
            total = list(loop.carried)
            for x in [at(loop.index + u) for u in range(IN_FLIGHT)]:
                total = [a + t for a, t in zip(total, x, strict=True)]
            loop.next(*total)
        with b.loop(whole, chunks, 1, loop.results) as tail:
            tail.next(*(a + t for a, t in zip(tail.carried, at(tail.index), strict=True)))
        write(case, column, left, list(tail.results))
        launch = call.finish(self.cases * ceildiv(self.width, WARP), note="sums of chunks")
        launch.kernel = on_threads(launch.kernel, WARP, 1, 1)
        return launch


class CudaColumns(Template):
    """A sum or mean of floats over axes that are one in memory, with the elementwise work before and after it."""

    key = "columns"
    serves = (Sum, Mean)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        dtype = region.node.values[0].dtype
        if not dtype.is_float or dtype.itemsize > 4:
            return Reason("not a sum of floats of 32 bits or fewer")
        found = matrices(region)
        if found is None:
            return Reason("not matrices of columns in memory")
        fewest = FEWEST[found.cases == 1]
        return None if bounds(found.rows)[0] >= fewest else Reason(f"fewer than {fewest} rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        m, node = matrices(region), region.node
        assert m is not None
        outputs = list(zip(region.body.outputs, region.results, strict=True))
        before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
        after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
        sizes = [o.type.dtype.itemsize for o in (*(region.given(v) for v in m.full), *(r for _, r in before))]
        lays = [*m.wide, *m.late.values(), *m.outs]
        sums = Columns(region.name, m.rows, m.width, 1, vector_width(sizes, m.width, lays), m.cases)
        call = Call("columns", region.name if sums.chunks == 1 else f"{region.name}.chunks")
        b = call.b
        views = {v: _view(call, f"x{i}", region.given(v), lay) for i, (v, lay) in enumerate(zip(m.full, m.wide, strict=False))}
        beside = zip(before, m.wide[len(m.full) :], strict=True)
        stored = [_view(call, f"z{i}", r, lay, write=True) for i, ((_, r), lay) in enumerate(beside)]

        def terms(case: Ix | int, row: Ix | int, column: Ix | int, left: Ix | int | None, later: list[Callable[[], None]]) -> list[Tile]:
            limit = None if left is None else (left,)

            def leaf(v: Value, o: Operand) -> Tile:
                narrow_ = views[v].type.strides[2] == 0
                return b.load(views[v], (case, row, column), (1,) if narrow_ else (sums.strip,), limit=None if narrow_ else limit)

            evaluate = Evaluator(b, region, leaf)
            for (v, r), view in zip(before, stored, strict=True):
                x = narrow(b, b.broadcast(evaluate(v), (sums.strip,)), r.type.dtype)
                later.append(lambda view=view, x=x: b.store(view, (case, row, column), x, limit=limit))  # type: ignore[misc]
            return [b.broadcast(evaluate(node.operands[0]), (sums.strip,))]

        def write(call: Call) -> Write:
            c = call.b
            thin = {v: _view(call, f"e{i}", region.given(v), lay) for i, (v, lay) in enumerate(m.late.items())}
            outs = [_view(call, f"y{i}", r, lay, write=True) for i, ((_, r), lay) in enumerate(zip(after, m.outs, strict=True))]
            count = call.word("count", m.rows) if isinstance(node.op, Mean) else None

            def put(case: Ix | int, column: Ix | int, left: Ix | int | None, totals: list[Tile]) -> None:
                (total,), limit = totals, None if left is None else (left,)
                if count is not None:
                    total = total / c.cast(c.from_index(count), f32)

                def leaf(v: Value, o: Operand) -> Tile:
                    one = thin[v].type.strides[1] == 0
                    return c.load(thin[v], (case, column), (1,) if one else total.shape, limit=None if one else limit)

                evaluate = Evaluator(c, region, leaf, {node.values[0]: total})
                for (v, r), view in zip(after, outs, strict=True):
                    c.store(view, (case, column), narrow(c, c.broadcast(evaluate(v), total.shape), r.type.dtype), limit=limit)

            return put

        last = Call("columns_sum", region.name)
        return sums.launches(call, terms, last, write, region_flops(region), region_bytes(region), "columns, in chunks")


def _view(call: Call, name: str, o: Operand, lay: Layout, *, write: bool = False) -> View:
    return call.view(name, o.type.dtype, o.buffer, lay, write=write)


@dataclass
class Matrices:
    cases: Dim
    rows: Dim
    width: Dim
    full: list[Value]  # what is read of the operand's shape
    wide: list[Layout]  # where that lies, then what is stored beside the sum: [cases, rows, columns]
    late: dict[Value, Layout]  # what is read of the result's shape: [cases, columns]
    outs: list[Layout]  # the results


def matrices(region: Region) -> Matrices | None:
    """A sum as sums down the columns of matrices, or None."""
    node = region.node
    op, shape = region.op(Sum, Mean), node.operands[0].shape
    outputs = list(zip(region.body.outputs, region.results, strict=True))
    before = [(v, r) for v, r in outputs if not region.depends_on_anchor(v)]
    after = [(v, r) for v, r in outputs if region.depends_on_anchor(v)]
    full = _leaves(region, [node.operands[0], *(v for v, _ in before)], None)
    late = _leaves(region, [v for v, _ in after], node)
    if not full or any(region.operand(v) is None for v in (*full, *late)) or any(r.type.shape != shape for _, r in before):
        return None
    small = node.values[0].shape
    if any(r.type.shape != small for _, r in after):
        return None
    wide = [region.given(v).layout.expand(shape) for v in full] + [r.layout for _, r in before]
    thin = [region.given(v).layout.expand(small) for v in late] + [r.layout for _, r in after]
    kept = [a for a in range(len(shape)) if a not in op.axes]
    whole = next((lay for lay in wide if all(s != 0 or d == 1 for s, d in zip(lay.strides, shape, strict=True))), wide[0])
    last = next((a for a in kept if whole.strides[a] == 1 and shape[a] != 1), None)
    if last is None:
        return None
    reduced = sorted(op.axes, key=lambda a: -bounds(whole.strides[a])[1])
    cases = [a for a in kept if a != last]
    place = {a: a if op.keepdims else i for i, a in enumerate(kept)}

    def merged(axes: Sequence[int], layouts: list[tuple[Layout, Sequence[int]]]) -> tuple[Dim, list[Dim]] | None:
        dims = tuple(shape[a] for a in axes)
        sizes, strides = collapse(dims, [Layout(dims, tuple(x.strides[p] for p in at)) for x, at in layouts])
        return None if len(sizes) > 1 else (sizes[0], [s[0] for s in strides]) if sizes else (1, [0 for _ in strides])

    rows = merged(reduced, [(x, reduced) for x in wide])
    many = merged(cases, [*((x, cases) for x in wide), *((x, [place[a] for a in cases]) for x in thin)])
    steps = [x.strides[last] for x in wide] + [x.strides[place[last]] for x in thin]
    if rows is None or many is None or any(s not in (0, 1) for s in steps[: len(wide)]):
        return None
    n, sizes = len(wide), (many[0], rows[0], shape[last])
    lays = [Layout(sizes, (c, r, s), x.offset) for x, c, r, s in zip(wide, many[1], rows[1], steps, strict=False)]
    lines = [Layout(sizes[::2], (c, s), x.offset) for x, c, s in zip(thin, many[1][n:], steps[n:], strict=True)]
    return Matrices(many[0], rows[0], shape[last], full, lays, dict(zip(late, lines, strict=False)), lines[len(late) :])
