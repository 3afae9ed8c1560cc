"""Walks of rows through decision trees. A step is a short chain of loads that waits for memory and nothing else, so a program keeps
several walks in flight: eight rows of one tree, or, where fewer rows are left, eight trees of one row. Their places are scalars: a level
takes four loads a walk. Walks look every few levels whether all have come to a leaf.
A program takes a part of the trees, and many rows through one before the next, whose nodes then lie in the cache.

Sums run over the trees of a part in their order whichever way is taken. Every place is clamped before it is used."""
from __future__ import annotations

from collections.abc import Sequence

from ...core.dims import ceildiv
from ...core.dtypes import i64
from ...core.target_spec import TargetSpec
from ...ops.index.forest import Forest
from ...tile.builder import Ix
from ..call import Call
from ..launch import Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops

WALKS = 8
LEVELS = 4  # that are walked between two looks at the places
COLUMNS = 8  # columns of sums in a register
ROWS, SUMS = 64, 2048  # rows of a program, and sums that it keeps, at most
SPAN = 64  # targets of a program: the walks are made again for further ones


class ForestTemplate(Template):
    key = "forest"
    serves = (Forest,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.op(Forest)
        x, limits, links, weights, roots = region.places
        (result,) = region.results
        call = Call("forest", region.name)
        b = call.b
        xs, ts, rs = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("x", x), ("limits", limits), ("roots", roots)))
        ls, ws = (call.view(n, o.type.dtype, o.buffer, o.layout, bake=(0,)) for n, o in (("links", links), ("weights", weights)))
        out = call.view("y", result.type.dtype, result.buffer, result.layout, write=True)
        rows, width = call.word("rows", x.type.shape[0]), call.word("features", x.type.shape[1])
        nodes, leaves, trees = (call.word(n, o.type.shape[0]) for n, o in (("nodes", limits), ("leaves", weights), ("trees", roots)))
        targets = weights.type.shape[1]
        assert isinstance(targets, int)
        sums = result.type.dtype
        tile = 1 if targets == 1 else min(COLUMNS, 1 << (targets - 1).bit_length())
        spans, room = -(-targets // SPAN), min(SPAN, -(-targets // tile) * tile)
        block = max(WALKS, min(ROWS, SUMS // room // WALKS * WALKS))
        acc = b.scratch(sums, (block, room))
        places = b.scratch(i64, (WALKS + 1,))  # and the least of them

        def step(row: Ix | int, at: Ix | int) -> Ix | int:
            node = b.minimum(at, nodes - 1)
            feature = b.minimum(b.to_index(b.load(ls, (node, 0), ())), width - 1)
            value = b.load(xs, (row, feature), ())
            below = b.to_index(b.cast(b.cmp("le", value, b.load(ts, (node,), ())), i64))
            found = b.cast(b.load(ls, (node, below + 1), ()), i64)
            return b.to_index(b.select(b.compare("lt", at, nodes), found, b.from_index(at)))

        def levels(count: int, own: Sequence[Ix | int], at: list[Ix | int]) -> list[Ix | int]:
            for _ in range(count):
                at = [step(r, p) for r, p in zip(own, at, strict=True)]
            return at

        def walk(own: Sequence[Ix | int], at: list[Ix | int]) -> list[Ix | int]:
            """The leaves that walks of these rows from these nodes end in, counted from the first leaf."""
            at = levels(min(op.depth, LEVELS), own, at)
            if op.depth > LEVELS:
                def keep(at: list[Ix | int]) -> None:
                    least = at[0]
                    for k, p in enumerate(at):
                        b.store(places, (k,), b.from_index(p))
                        least = b.minimum(least, p)
                    b.store(places, (WALKS,), b.from_index(least))

                keep(at)
                with b.loop(0, -(-op.depth // LEVELS) - 1), b.if_(b.compare("lt", b.to_index(b.load(places, (WALKS,), ())), nodes)):
                    keep(levels(LEVELS, own, [b.to_index(b.load(places, (k,), ())) for k in range(WALKS)]))
                at = [b.to_index(b.load(places, (k,), ())) for k in range(WALKS)]
            return [b.minimum(b.maximum(p - nodes, 0), leaves - 1) for p in at]

        begin, part, left = b.pid // (op.parts * spans) * block, b.pid // spans % op.parts, b.pid % spans * SPAN if spans > 1 else 0

        def columns() -> list[tuple[int, tuple[Ix | int] | None]]:
            """Tiles of the program's targets, and how many of each there are where it is not whole."""
            if spans > 1:
                return [(c, (b.maximum(targets - left - c, 0),)) for c in range(0, room, tile)]
            return [(c, None if c + tile <= targets else (targets - c,)) for c in range(0, room, tile)]

        def add(k: Ix | int, leaf: Ix | int) -> None:
            """The weights of a leaf to the sums of a row of the block."""
            for c, limit in columns():
                more, old = b.cast(b.load(ws, (leaf, left + c), (tile,), limit=limit), sums), b.load(acc, (k, c), (tile,))
                b.store(acc, (k, c), old + more if op.how == "sum" else b.binary(op.how, old, more))

        def root(tree: Ix | int) -> Ix | int:
            return b.to_index(b.load(rs, (tree,), ()))

        first, last = trees * part // op.parts, trees * (part + 1) // op.parts
        count = b.minimum(rows - begin, block)
        whole = count // WALKS * WALKS
        with b.loop(0, count) as row:
            for c, _ in columns():
                b.store(acc, (row.index, c), b.full((tile,), {"max": float("-inf"), "min": float("inf")}.get(op.how, 0.0), sums))
        with b.loop(first, last) as tree:
            start = root(tree.index)
            with b.loop(0, whole, WALKS) as some:
                for k, leaf in enumerate(walk([begin + some.index + k for k in range(WALKS)], [start] * WALKS)):
                    add(some.index + k, leaf)
        with b.loop(whole, count) as row, b.loop(first, last, WALKS) as group:
            starts = [root(b.minimum(group.index + k, last - 1)) for k in range(WALKS)]
            for k, leaf in enumerate(walk([begin + row.index] * WALKS, starts)):
                with b.if_(b.compare("lt", group.index + k, last)):
                    add(row.index, leaf)
        with b.loop(0, count) as row:
            for c, limit in columns():
                b.store(out, (part, begin + row.index, left + c), b.load(acc, (row.index, c), (tile,)), limit=limit)
        grid = ceildiv(x.type.shape[0], block) * op.parts * spans
        return [call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region))]
