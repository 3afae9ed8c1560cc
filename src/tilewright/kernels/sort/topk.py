"""The first k of a row. The best so far lie in registers, in order; an element goes behind those that are not worse, so ties take the
smaller index: it moves those behind it by one lane, without a branch.

Short rows are several in a program, whose insertions do not wait for each other: every element is inserted. Of a long row a sweep compares
whole registers with the k-th best so far and only stops where something beats it (about k log(n / k) times in random data). Many elements
are a sort that stores the first k places.
"""

from __future__ import annotations

from ...core.dims import bounds, ceildiv, product
from ...core.dtypes import i32, i64
from ...core.target_spec import TargetSpec
from ...ops.index.indexing import TopK as TopKOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .keys import sort_key
from .sorting import RANKED, Job, axis_last, sort_launches

FEW = 64  # most elements that are kept in order by insertion
SHORT = 256  # longest rows all of whose elements are inserted
REGISTERS = 4  # registers of keys that a program of a CPU keeps for its short rows; threads of a GPU are many
TILES = 4  # registers that are compared before one of them is looked at


class TopKTemplate(Template):
    key = "top_k"
    serves = (TopKOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x = region.op(TopKOp), region.operands[0]
        if op.k == 0:
            return []
        length, lanes = x.type.shape[op.axis], target.vector_bits // 32
        if op.k > FEW or (op.k > lanes and isinstance(length, int) and length <= RANKED):
            return sort_launches(Job(region.name, x, op.axis, op.largest, region.results[0], region.results[1], op.k))
        return [_inserted(region, op, lanes, REGISTERS if target.kind == "cpu" else 0)]


def _inserted(region: Region, op: TopKOp, lanes: int, registers: int) -> Launch:
    x, dtype = region.operands[0], region.operands[0].type.dtype
    call = Call("top_k", region.name)
    b = call.b
    source = axis_last(x, op.axis)
    xv = call.view("x", dtype, x.buffer, source)
    values, indices = (
        call.view(n, r.type.dtype, r.buffer, axis_last(r, op.axis), write=True) for n, r in zip(("v", "i"), region.results, strict=True)
    )
    longest = bounds(source.shape[-1])[1]
    short = longest <= SHORT
    place = i32 if longest < 1 << 31 else i64
    width = -(-op.k // lanes) * lanes
    together = max(1, registers * lanes // width) if short else 1
    n, rows = call.word("n", source.shape[-1]), product(source.shape[:-1])
    dims = [call.word(f"d{i}", d) for i, d in enumerate(source.shape[:-1])]
    last = call.word("rows", rows) - 1
    at = [unravel(b, b.minimum(b.pid * together + r, last), dims) for r in range(together)]

    def key(value: Tile) -> Tile:
        return sort_key(b, value, dtype, descending=op.largest)

    kind = key(b.load(xv, (*at[0], 0), ())).dtype
    first, moved = b.full((1,), 0, kind), [0, *range(width, 2 * width - 1)]  # every lane from the one in front of it

    def insert(state: list[Tile], own: Tile, index: Tile, before: Tile | None = None) -> list[Tile]:
        """Behind those that are not worse. `before`: the lanes that are filled."""
        best, found = state
        stays, pushed = b.cmp("le", best, own), b.shuffle(b.broadcast(first, (width,)), best, moved)
        behind = b.shuffle(found, found, [0, *range(width - 1)])
        if before is not None:
            stays = b.binary("and", stays, before)
        here = b.select(b.cmp("le", pushed, own), index, behind)
        return [b.select(stays, best, b.binary("max", own, pushed)), b.select(stays, found, here)]

    empty = [b.full((width,), 0, kind), b.full((width,), 0, place)]
    size = -(-int(longest) // lanes) * lanes if short else TILES * lanes
    keys = b.scratch(kind, (together, size))

    def each(start: Ix | int, stop: Ix | int, offset: Ix | int, states: list[Tile], *, filled: bool) -> list[Tile]:
        """Inserts the elements `offset + i` whose keys lie at i of `keys`."""
        with b.loop(start, stop, 1, states) as one:
            index = b.reshape(b.from_index(one.index + offset, place), (1,))
            before = None if filled else b.cmp("lt", b.iota((width,), 0, place), index)
            parts = [insert(list(one.carried[2 * r : 2 * r + 2]), b.load(keys, (r, one.index), (1,)), index, before)
                     for r in range(together)]
            one.next(*(t for part in parts for t in part))
        return list(one.results)

    def put(r: int, found: Tile) -> None:
        for view, tile in ((values, b.gather(xv, (*at[r], 0), len(dims), found)), (indices, b.cast(found, op.dtype))):
            b.store(view, (*at[r], 0), tile, limit=(op.k,))

    def read(r: int, start: Ix | int, to: Ix | int, tile: int) -> Tile:
        own = key(b.load(xv, (*at[r], start), (tile,), limit=(n - start,)))
        b.store(keys, (r, to), own)
        return own

    if short:
        with b.loop(0, n, lanes) as part:
            for r in range(together):
                read(r, part.index, part.index, lanes)
        states = each(0, op.k, 0, empty * together, filled=False)
        states = each(op.k, n, 0, states, filled=True)
        for r in range(together):
            put(r, states[2 * r + 1])
    else:
        best, found = b.scratch(kind, (width,)), b.scratch(place, (width,))

        def several(start: Ix | int, stop: Ix | int, offset: Ix | int, *, filled: bool) -> None:
            states = each(start, stop, offset, [b.load(best, (0,), (width,)), b.load(found, (0,), (width,))], filled=filled)
            b.store(best, (0,), states[0])
            b.store(found, (0,), states[1])

        b.store(best, (0,), empty[0])
        b.store(found, (0,), empty[1])
        with b.loop(0, op.k, TILES * lanes) as part:  # the first k, whatever they are
            read(0, part.index, 0, TILES * lanes)
            several(0, b.minimum(op.k - part.index, TILES * lanes), part.index, filled=False)

        def beaten(keys_: Tile) -> Tile:
            return b.reshape(b.reduce("any", b.cmp("lt", keys_, b.load(best, (op.k - 1,), (1,)))), ())

        with b.loop(op.k, n, TILES * lanes) as loop:
            own = read(0, loop.index, 0, TILES * lanes)
            left = b.minimum(n - loop.index, TILES * lanes)
            with b.if_(beaten(own)), b.loop(0, left, lanes) as part, b.if_(beaten(b.load(keys, (0, part.index), (lanes,)))):
                several(part.index, b.minimum(part.index + lanes, left), loop.index, filled=True)
        put(0, b.load(found, (0,), (width,)))
    return call.finish(ceildiv(rows, together), flops=region_flops(region), bytes_=region_bytes(region),
                       note="every element" if short else "one sweep")
