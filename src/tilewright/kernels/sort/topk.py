"""The first k of a row. Few of a long row: one sweep that compares whole registers with the k-th best so far and only stops where
something beats it (about k log(n / k) times in random data); many: a sort that stores the first k places.

The best so far lie in the program's own memory, in order; an element goes behind those that are not worse, so ties take the smaller
index. The tail of a row is looked at element by element.
"""

from __future__ import annotations

from ...core.dims import product
from ...core.dtypes import i64
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
TILE = 64


class TopKTemplate(Template):
    key = "top_k"
    serves = (TopKOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x = region.op(TopKOp), region.operands[0]
        if op.k == 0:
            return []
        length = x.type.shape[op.axis]
        if op.k > FEW or (isinstance(length, int) and length <= RANKED):
            return sort_launches(Job(region.name, x, op.axis, op.largest, region.results[0], region.results[1], op.k))
        return [_sweep(region, op)]


def _sweep(region: Region, op: TopKOp) -> Launch:
    x, dtype = region.operands[0], region.operands[0].type.dtype
    call = Call("top_k", region.name)
    b = call.b
    source = axis_last(x, op.axis)
    xv = call.view("x", dtype, x.buffer, source)
    values, indices = (
        call.view(n, r.type.dtype, r.buffer, axis_last(r, op.axis), write=True) for n, r in zip(("v", "i"), region.results, strict=True)
    )
    n = call.word("n", source.shape[-1])
    at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(source.shape[:-1])])

    def key(value: Tile) -> Tile:
        return sort_key(b, value, dtype, descending=op.largest)

    # what stands in `keys` before it is filled is never compared with: `filled` says how far it goes
    kind = key(b.load(xv, (*at, 0), ())).dtype
    keys, found, filled = b.scratch(kind, (op.k + 1,)), b.scratch(i64, (op.k + 1,)), b.scratch(i64, (1,))
    b.store(filled, (0,), b.full((), 0, i64))

    def insert(own: Tile, index: Ix) -> None:
        """Behind those that are not worse; what falls off the end is overwritten later."""
        count = b.to_index(b.load(filled, (0,), ()))
        with b.loop(0, count, 1, [b.full((), 0, i64)]) as before:
            before.next(before.carried[0] + b.cast(b.cmp("le", b.load(keys, (before.index,), ()), own), i64))
        place = b.to_index(before.results[0])
        with b.loop(0, count - place) as move:
            last = count - move.index
            b.store(keys, (last,), b.load(keys, (last - 1,), ()))
            b.store(found, (last,), b.load(found, (last - 1,), ()))
        b.store(keys, (place,), own)
        b.store(found, (place,), b.from_index(index))
        b.store(filled, (0,), b.from_index(b.minimum(count + 1, op.k)))

    def each(start: Ix | int, stop: Ix | int) -> None:
        with b.loop(start, stop) as one:
            own = key(b.load(xv, (*at, one.index), ()))
            full = b.compare("eq", b.to_index(b.load(filled, (0,), ())), op.k)
            worse = b.cmp("ge", own, b.load(keys, (op.k - 1,), ()))
            with b.if_(b.unary("not", b.binary("and", full, worse))):
                insert(own, one.index)

    first = b.minimum(n, op.k)
    each(0, first)
    whole = first + (n - first) // TILE * TILE
    with b.loop(first, whole, TILE) as loop:
        better = b.cmp("lt", key(b.load(xv, (*at, loop.index), (TILE,))), b.load(keys, (op.k - 1,), (1,)))
        with b.if_(b.reshape(b.reduce("any", better), ())):
            each(loop.index, loop.index + TILE)
    each(whole, n)
    with b.loop(0, op.k) as out:
        index = b.to_index(b.load(found, (out.index,), ()))
        b.store(values, (*at, out.index), b.load(xv, (*at, index), ()))
        b.store(indices, (*at, out.index), b.from_index(index, op.dtype))
    return call.finish(product(source.shape[:-1]), flops=region_flops(region), bytes_=region_bytes(region), note="one sweep")
