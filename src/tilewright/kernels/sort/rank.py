"""The element at a rank of a row, by the bits of its key: the highest key with no more than `rank` smaller ones, one bit after the other,
and among equal elements the index in the same way. A bit is one sweep that compares and counts whole registers, without a branch.

A program takes several rows, whose counts do not wait for each other. Rows are filled up with keys that are last.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import ceildiv, product
from ...core.dtypes import DType, i32, i64, u32
from ...core.target_spec import TargetSpec
from ...ops.index.sorting import ArgRank as ArgRankOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Template
from .keys import digits, is_wide, sort_key
from .sorting import axis_last

ROWS = 4  # rows of a program
TILE = 64
UNROLLED = 4  # tiles of a row up to which a sweep has no loop


class ArgRankTemplate(Template):
    key = "arg_rank"
    serves = (ArgRankOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (x, rank), dtype = region.op(ArgRankOp), region.operands, region.operands[0].type.dtype
        source = axis_last(x, op.axis)
        n = source.shape[-1]
        assert isinstance(n, int), "other lengths are sorted"
        call = Call("arg_rank", region.name)
        b = call.b
        xv, rv = call.view("x", dtype, x.buffer, source), call.view("r", rank.type.dtype, rank.buffer, axis_last(rank, op.axis))
        out = call.view("i", op.dtype, region.results[0].buffer, axis_last(region.results[0], op.axis), write=True)
        rows = product(source.shape[:-1])
        dims = [call.word(f"d{i}", d) for i, d in enumerate(source.shape[:-1])]
        last = call.word("rows", rows) - 1
        at = [unravel(b, b.minimum(b.pid * ROWS + j, last), dims) for j in range(ROWS)]

        shifts = digits(dtype)
        low, bits = shifts[0], 64 if is_wide(dtype) else shifts[-1] + 8 - shifts[0]  # lower bits of a key say nothing

        def key(value: Tile) -> Tile:
            found = sort_key(b, value, dtype, descending=False)
            return b.binary("shr", found, low) if low else found

        kind = key(b.load(xv, (*at[0], 0), ())).dtype
        tiles = -(-n // TILE)
        keys = b.scratch(kind, (ROWS, tiles * TILE))
        for j in range(ROWS):
            with b.loop(0, n // TILE * TILE, TILE) as loop:
                b.store(keys, (j, loop.index), key(b.load(xv, (*at[j], loop.index), (TILE,))))
            if n % TILE:
                whole = n // TILE * TILE
                b.store(keys, (j, whole), b.full((TILE,), (1 << bits) - 1, kind))
                b.store(keys, (j, whole), key(b.load(xv, (*at[j], whole), (TILE,), limit=(n % TILE,))), limit=(n % TILE,))

        def counts(test: Callable[[int, Tile, Ix | int], Tile]) -> list[Tile]:
            """How many elements of every row pass a test of the row, a tile of keys and the place of the tile."""
            def add(sums: list[Tile], i: Ix | int) -> list[Tile]:
                return [s + b.cast(test(j, b.load(keys, (j, i), (TILE,)), i), i32) for j, s in enumerate(sums)]

            sums = [b.full((TILE,), 0, i32) for _ in range(ROWS)]
            if tiles <= UNROLLED:
                for t in range(tiles):
                    sums = add(sums, t * TILE)
            else:
                with b.loop(0, tiles * TILE, TILE, sums) as loop:
                    loop.next(*add(list(loop.carried), loop.index))
                sums = list(loop.results)
            return [b.reshape(b.reduce("sum", s), ()) for s in sums]

        def search(bits: int, of: list[Tile], test: Callable[[int, Tile, Tile, Ix | int], Tile], word: DType) -> list[Tile]:
            """For every row the highest number of so many bits that has at most `of` elements below it; then how many these are."""
            with b.loop(0, bits, 1, [*[b.full((), 0, word)] * ROWS, *[b.full((), 0, i32)] * ROWS]) as loop:
                found, below = loop.carried[:ROWS], loop.carried[ROWS:]
                bit = b.binary("shl", b.full((), 1, word), b.from_index(bits - 1 - loop.index, word))
                tried = [b.binary("or", f, bit) for f in found]
                count = counts(lambda j, k, i: test(j, tried[j], k, i))
                fits = [b.cmp("le", c, r) for c, r in zip(count, of, strict=True)]
                loop.next(*(b.select(*z) for z in zip(fits, tried, found, strict=True)),
                          *(b.select(*z) for z in zip(fits, count, below, strict=True)))
            return list(loop.results)

        ranks = [b.cast(b.binary("max", b.binary("min", b.cast(b.load(rv, (*a, 0), ()), i64), n - 1), 0), i32) for a in at]
        found = search(bits, ranks, lambda j, t, k, i: b.cmp("lt", k, t), kind)
        chosen, ties = found[:ROWS], [r - c for r, c in zip(ranks, found[ROWS:], strict=True)]

        def before(j: int, t: Tile, k: Tile, i: Ix | int) -> Tile:
            place = b.iota((TILE,), 0, u32) + (b.full((), i, u32) if isinstance(i, int) else b.from_index(i, u32))
            return b.binary("and", b.cmp("eq", k, chosen[j]), b.cmp("lt", place, t))

        index = search(max(n - 1, 1).bit_length(), ties, before, u32)
        for j in range(ROWS):
            b.store(out, (*at[j], 0), b.cast(index[j], op.dtype))
        work = n * (bits + n.bit_length())
        return [call.finish(ceildiv(rows, ROWS), flops=rows * work, bytes_=x.type.nbytes, note="by bits")]
