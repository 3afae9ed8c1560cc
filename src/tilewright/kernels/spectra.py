"""What kernels for eigenvalues and singular values share: the order of values, and the sign of a vector."""

from __future__ import annotations

from ..core.dtypes import i64
from ..tile.builder import Ix, KernelBuilder, Tile
from .matrices import Columns


def in_order(b: KernelBuilder, x: Tile, y: Tile) -> tuple[Tile, Tile]:
    """(x comes before y, they are equal) in an order of all numbers, NaN last: else some places would be taken twice, others never."""
    nan, other = b.unary("isnan", x), b.unary("isnan", y)
    before = b.binary("or", b.cmp("lt", x, y), b.binary("and", other, b.unary("not", nan)))
    return before, b.binary("or", b.cmp("eq", x, y), b.binary("and", nan, other))


def rank_of(b: KernelBuilder, d: Columns, i: Ix | int, size: Ix, *, descending: bool = False) -> Ix:
    """The place of number i in order; equal ones keep theirs, and NaN comes last."""
    own = d.one(0, i)
    none = b.unary("isnan", own)
    with b.loop(0, size, d.width, [b.full((d.width,), 0, i64)]) as loop:
        x, places = d.get(0, loop.index), b.iota((d.width,), 0) + b.from_index(loop.index)
        bad = b.unary("isnan", x)
        same = b.binary("or", b.cmp("eq", x, own), b.binary("and", bad, none))
        before = b.binary("or", b.cmp("gt" if descending else "lt", x, own), b.binary("and", none, b.unary("not", bad)))
        before = b.binary("or", before, b.binary("and", same, b.cmp("lt", places, b.from_index(i))))
        inside = b.binary("and", before, b.cmp("lt", places, b.from_index(size)))
        loop.next(loop.carried[0] + b.cast(inside, i64))
    return b.to_index(b.reduce("sum", loop.results[0]))


def sign_of(b: KernelBuilder, z: Columns, i: Ix | int, size: Ix | int) -> Tile:
    """-1 where the element of largest magnitude is negative, else 1 (the vector is followed by zeros)."""
    zero = b.full((z.width,), 0.0, z.dtype)
    with b.loop(0, size, z.width, [zero, zero]) as loop:
        x = z.get(i, loop.index)
        loop.next(b.binary("max", loop.carried[0], x), b.binary("min", loop.carried[1], x))
    most, least = (b.reshape(b.reduce(fn, x), ()) for fn, x in zip(("max", "min"), loop.results, strict=True))
    return b.select(b.cmp("gt", -least, most), b.full((), -1.0, z.dtype), b.full((), 1.0, z.dtype))
