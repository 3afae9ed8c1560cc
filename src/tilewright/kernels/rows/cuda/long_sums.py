"""Sums, means, products and extremes of few long rows on a GPU (of all elements of an array, say), where a row for each block would leave
most of the chip idle. Warps reduce chunks of the rows, many accesses in flight, and one warp a row what the chunks leave. The chunks follow
from the shape alone, so every sum has one order. The region's elementwise work before and behind it is computed on the way. Tails are
masked. Operands may be repeated along parts of a row, or lie in any order: a row is then runs of its last axis in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.reductions import Max, Mean, Min, Prod, Sum
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...launch import Buffer, Launch
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..reduce import _leaves

WARP = 32
LONG = 1 << 15  # elements of a row; shorter ones are registers of a block
CHUNKS = 1024  # of a row, at most
AT_ONCE = 8  # accesses of a thread
KINDS = {Sum: "sum", Mean: "sum", Prod: "prod", Max: "max", Min: "min"}
JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass
class Rows:
    count: Dim
    outer: list[Dim]  # axes of a row around its runs
    run: Dim
    full: dict[Value, Layout]  # what is read of the operand's shape: [rows, outer axes, elements of a run]
    late: dict[Value, Layout]  # what is read of the result's shape: [rows]
    outs: list[Layout]

    @property
    def length(self) -> Dim:
        return product(self.outer) * self.run


class CudaLongSums(Template):
    key = "long_sums"
    serves = tuple(KINDS)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        dtype, found = region.node.operands[0].dtype, rows_of(region)
        if found is None or not dtype.is_float or dtype.itemsize > 8:
            return Reason("not rows of floats")
        few = bounds(found.count)[1] < target.cores and bounds(found.length)[0] > LONG
        return None if few and bounds(found.length)[1] < 1 << 40 else Reason("rows enough for all blocks, or short ones")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        rows, node = rows_of(region), region.node
        assert rows is not None
        fn = next(f for k, f in KINDS.items() if isinstance(node.op, k))
        dtype = compute_dtype(node.operands[0].dtype)
        nothing = identity(fn, dtype)
        whole = [lay for lay in rows.full.values() if lay.strides[-1] == 1]
        vector = vector_width([region.given(v).type.dtype.itemsize for v in rows.full], rows.run, whole)
        tile, runs, most = WARP * vector, product(rows.outer), bounds(rows.run)[1]
        at_once = max(1, min(AT_ONCE, -(-most // tile)))
        step, together = tile * at_once, max(1, -(-bounds(runs)[1] // CHUNKS))  # runs of a chunk
        per = step * max(1, -(-most // (max(1, CHUNKS // max(1, bounds(runs)[1])) * step)))  # elements of each
        parts_of_run = ceildiv(rows.run, per)
        chunks = ceildiv(runs, together) * parts_of_run
        parts = Buffer(f"{region.name}.parts", "temp", rows.count * chunks * dtype.itemsize)
        lay = Layout((rows.count, chunks), (chunks, 1))

        def folded(tiles: list[Tile], total: Tile) -> Tile:
            while len(tiles) > 1:
                odd = tiles[len(tiles) // 2 * 2 :]
                tiles = [x.b.binary(JOIN[fn], x, y) for x, y in zip(tiles[::2], tiles[1::2], strict=False)] + odd
            return total.b.binary(JOIN[fn], total, tiles[0])

        call = Call("long_sums", f"{region.name}.chunks")
        b = call.b
        views = {v: call.view(f"x{i}", region.given(v).type.dtype, region.given(v).buffer, x) for i, (v, x) in enumerate(rows.full.items())}
        out = call.view("parts", dtype, parts, lay, write=True)
        n, many, each = call.word("n", rows.run), call.word("chunks", chunks), call.word("per_run", parts_of_run)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(rows.outer)]
        row, chunk = b.pid // many, b.pid % many
        first_run, start = chunk // each * together, chunk % each * per
        stop = b.minimum(start + per, n)
        with b.loop(first_run, b.minimum(first_run + together, call.word("runs", runs)), 1, [b.full((tile,), nothing, dtype)]) as around:
            place = unravel(b, around.index, dims) if dims else []
            with b.loop(start, stop, step, around.carried) as loop:
                found = []
                for u in range(at_once):
                    at = loop.index + u * tile
                    limit = (b.minimum(b.maximum(stop - at, 0), tile),)

                    def leaf(v: Value, o: Operand, at: Ix | int = at, limit: tuple[Ix | int] = limit) -> Tile:
                        one = views[v].type.strides[-1] == 0
                        where = (row, *place, 0 if one else at)
                        return b.load(views[v], where, (1,) if one else (tile,), limit=None if one else limit)

                    x = b.broadcast(b.cast(Evaluator(b, region, leaf)(node.operands[0]), dtype), (tile,))
                    inside = b.cmp("lt", b.iota((tile,), 0), b.from_index(limit[0]))
                    found.append(b.select(inside, x, b.full((tile,), nothing, dtype)))
                loop.next(folded(found, loop.carried[0]))
            around.next(*loop.results)
        b.store(out, (row, chunk), b.reshape(b.reduce(fn, around.results[0]), ()))
        flops, nbytes = region_flops(region), region_bytes(region)
        first = call.finish(rows.count * chunks, flops=flops, bytes_=nbytes, note="chunks of long rows, by warps")
        first.kernel = on_threads(first.kernel, WARP, 4, vector)

        call = Call("long_sums_row", region.name)
        c = call.b
        source = call.view("parts", dtype, parts, lay)
        thin = {v: call.view(f"e{i}", region.given(v).type.dtype, region.given(v).buffer, x) for i, (v, x) in enumerate(rows.late.items())}
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, x, write=True)
                for i, (r, x) in enumerate(zip(region.results, rows.outs, strict=True))]  # fmt: skip
        many, count = call.word("chunks", chunks), call.word("count", rows.length)
        with c.loop(0, many, WARP * AT_ONCE, [c.full((WARP,), nothing, dtype)]) as loop:
            places = [loop.index + u * WARP for u in range(AT_ONCE)]
            tiles = [c.load(source, (c.pid, p), (WARP,), limit=(many - p,), other=nothing) for p in places]
            loop.next(folded(tiles, loop.carried[0]))
        total = c.reduce(fn, loop.results[0])
        if isinstance(node.op, Mean):
            total = total / c.cast(c.from_index(count), dtype)

        def late(v: Value, o: Operand) -> Tile:
            return c.load(thin[v], (c.pid,), (1,))

        evaluate = Evaluator(c, region, late, {node.values[0]: total})
        for v, view, r in zip(region.body.outputs, outs, region.results, strict=True):
            c.store(view, (c.pid,), narrow(c, c.broadcast(evaluate(v), (1,)), r.type.dtype))
        second = call.finish(rows.count, bytes_=rows.count * chunks * dtype.itemsize, note="what chunks leave")
        second.kernel = on_threads(second.kernel, WARP, 1)
        return [first, second]


def rows_of(region: Region) -> Rows | None:
    """A reduction as one of rows in memory, or None."""
    node = region.node
    op: Any = node.op
    shape, small, outs = node.operands[0].shape, node.values[0].shape, [r.layout for r in region.results]
    axes: list[int] = sorted(op.axes)
    if not axes or any(not region.depends_on_anchor(v) for v in region.body.outputs) or any(r.type.shape != small for r in region.results):
        return None
    full, late = _leaves(region, [node.operands[0]], None), _leaves(region, list(region.body.outputs), node)
    if not full or any(region.operand(v) is None for v in (*full, *late)):
        return None
    kept = [a for a in range(len(shape)) if a not in axes]
    places = kept if op.keepdims else list(range(len(kept)))
    wide = [region.given(v).layout.expand(shape) for v in full]
    thin = [region.given(v).layout.expand(small) for v in late] + outs

    def merged(sizes: list[Dim], strides: list[list[Dim]]) -> tuple[list[Dim], list[list[Dim]]]:
        dims, steps = collapse(tuple(sizes), [Layout(tuple(sizes), tuple(s)) for s in strides])
        return (dims, steps) if dims else ([1], [[0] for _ in steps])

    axes.sort(key=lambda a: (sum(x.strides[a] == 1 and shape[a] != 1 for x in wide), a))  # the run lies along memory
    long = merged([shape[a] for a in axes], [[x.strides[a] for a in axes] for x in wide])
    many = merged([shape[a] for a in kept], [[x.strides[a] for a in kept] for x in wide] + [[x.strides[p] for p in places] for x in thin])
    across = any(s[-1] == 1 for s in many[1][: len(wide)]) and not any(s[-1] == 1 for s in long[1])
    if len(many[0]) > 1 or across:  # rows that lie across memory are columns
        return None
    rows = [Layout((*many[0], *long[0]), (*c, *s), x.offset) for x, c, s in zip(wide, many[1], long[1], strict=False)]
    lines = [Layout((many[0][0],), (c[0],), x.offset) for x, c in zip(thin, many[1][len(wide) :], strict=True)]
    reads = dict(zip(full, rows, strict=True)), dict(zip(late, lines, strict=False))
    return Rows(many[0][0], long[0][:-1], long[0][-1], *reads, lines[len(late) :])
