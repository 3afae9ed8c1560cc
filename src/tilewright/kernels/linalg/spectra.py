"""What kernels for eigenvalues share: sizes near 1, the order of values, the sign of a vector, and vectors written in that order."""

from __future__ import annotations

from ...core.dims import Shape, product
from ...core.dtypes import f32, i32, i64
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Launch
from ..region import Operand
from .matrices import Columns, Matrices


def power_of(b: KernelBuilder, most: Tile) -> Tile:
    """The power of two in a magnitude (rank 0); 1 where it has none: zero, infinity, NaN."""
    dtype = most.dtype
    bits, mask = (i32, 0x7F800000) if dtype is f32 else (i64, 0x7FF0000000000000)
    power = b.bitcast(b.binary("and", b.bitcast(most, bits), b.full((), mask, bits)), dtype)
    whole = b.binary("and", b.cmp("gt", power, 0.0), b.cmp("lt", power, float("inf")))
    return b.select(whole, power, b.full((), 1.0, dtype))


def matrix_of(view: View, at: list[Ix | int], rank: int = 2) -> View:
    """One matrix's part of a view (or its vector, with rank 1)."""
    return view.b.subview(view, [*at, *([0] * rank)], range(len(at), len(at) + rank))


def in_order(b: KernelBuilder, x: Tile, y: Tile) -> tuple[Tile, Tile]:
    """(x comes before y, they are equal) in an order of all numbers, NaN last: else some places would be taken twice, others never."""
    nan, other = b.unary("isnan", x), b.unary("isnan", y)
    before = b.binary("or", b.cmp("lt", x, y), b.binary("and", other, b.unary("not", nan)))
    return before, b.binary("or", b.cmp("eq", x, y), b.binary("and", nan, other))


def rank_of(b: KernelBuilder, d: Columns, i: Ix | int, size: Ix) -> Ix:
    """The place of number i in order; equal ones keep theirs, and NaN comes last."""
    own = d.one(0, i)
    none = b.unary("isnan", own)
    with b.loop(0, size, d.width, [b.full((d.width,), 0, i64)]) as loop:
        x, places = d.get(0, loop.index), b.iota((d.width,), 0) + b.from_index(loop.index)
        bad = b.unary("isnan", x)
        same = b.binary("or", b.cmp("eq", x, own), b.binary("and", bad, none))
        before = b.binary("or", b.cmp("lt", x, own), b.binary("and", none, b.unary("not", bad)))
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


def columns_launch(name: str, lead: Shape, z: Operand, order: Operand, signs: Operand, out: Operand, side: int) -> Launch:
    """Rows of z, in `order` and with their signs, become columns: square tiles of them, one program per so many components."""
    length, count = out.type.shape[-2:]
    assert isinstance(length, int) and isinstance(count, int)
    w = Matrices("vector_columns", name, lead)
    b = w.b
    zv, ov, sv, to = w.read("z", z), w.read("order", order), w.read("signs", signs), w.write("v", out)
    size, many, blocks = w.call.word("length", length), w.call.word("count", count), w.call.word("blocks", -(-length // side))
    start = b.pid % blocks * side
    at = w.at(b.pid // blocks)
    tile = b.scratch(z.type.dtype, (side, side))
    with b.loop(0, many, side) as loop:
        with b.loop(0, b.minimum(side, many - loop.index)) as row:
            place = loop.index + row.index
            source = b.to_index(b.load(ov, (*at, place), ()))
            b.store(tile, (row.index, 0), b.load(zv, (*at, source, start), (side,)) * b.load(sv, (*at, place), ()))
        transposed = b.transpose(b.load(tile, (0, 0), (side, side)))
        b.store(to, (*at, start, loop.index), transposed, limit=(size - start, many - loop.index))
    return w.call.finish(product(lead) * -(-length // side), bytes_=2 * out.type.nbytes)
