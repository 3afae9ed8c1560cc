"""Pooling on a GPU. Values that lie channels last are pooled without a padded copy (`by_channel.py`): a tap outside reads what never wins
(or adds nothing). Others are pooled as they lie (`planes.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.dims import bounds, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ops.rows.pooling import AvgPool as AvgPoolOp
from ....ops.rows.pooling import MaxPool as MaxPoolOp
from ....ops.rows.pooling import MaxPoolIndices as MaxPoolIndicesOp
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...launch import Launch
from ...region import Region, narrow
from ..pool import PoolTemplate, larger
from .by_channel import Windows
from .planes import plane_pool
from .tiled import LARGEST

TAPS = 64  # the most taps of the innermost axis, which are unrolled


class CudaPool(PoolTemplate):
    rows = 1

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        x = region.operands[0]
        n = len(op.kernel)
        last = len(x.type.shape) == n + 2 and x.layout.strides[1] == 1 and all(r.layout.strides[1] == 1 for r in region.results)
        if last and isinstance(op, MaxPoolIndicesOp) and op.kernel[-1] <= TAPS and bounds(product(x.type.shape[2:]))[1] < LARGEST:
            return [largest_and_where(region)]
        if last and isinstance(op, (MaxPoolOp, AvgPoolOp)) and op.kernel[-1] <= TAPS:
            return [channels_last_pool(region)]
        return [plane_pool(region)]


def channels_last_pool(region: Region) -> Launch:
    op: Any = region.node.op
    x, y = region.operands[0], region.results[0]
    mean = isinstance(op, AvgPoolOp)
    dilation = getattr(op, "dilation", (1,) * len(op.kernel))
    fill = 0.0 if mean else identity("max", x.type.dtype)
    at = Windows(op.name, region, x, [y], op.kernel, op.stride, op.padding, dilation, fill=fill)
    b, join = at.b, "add" if mean else "max"

    def row(taps: tuple[Ix | int, ...], pixel: Callable[[int], Tile], states: list[Tile]) -> list[Tile]:
        for i, pairs in at.reads.items():
            x = pixel(i)
            for o, _ in pairs:
                states[o] = b.binary(join, states[o], x)
        return states

    for total, (spot, limit) in zip(at.fold(row), at.places(), strict=True):
        if mean:
            count: Ix | int = 1
            for axis, (p, k, size, (lo, hi)) in enumerate(zip(spot, op.kernel, at.sizes, op.padding, strict=True)):
                low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
                first = at.begin(axis, p)
                count = count * (b.minimum(first + k, high) - b.maximum(first, low))
            total = total / b.cast(b.from_index(count), at.dtype)
        b.store(at.results[0], (at.image, *spot, at.start), narrow(b, total, y.type.dtype), limit=limit)
    return at.launch()


def largest_and_where(region: Region) -> Launch:
    """The largest element of every window and its flat place: of windows of nothing but the lowest value, that of their first element."""
    op = region.op(MaxPoolIndicesOp)
    x, (y, indices) = region.operands[0], region.results
    low = identity("max", x.type.dtype)
    at = Windows(op.name, region, x, [y, indices], op.kernel, op.stride, op.padding, op.dilation, fill=low)
    b, n = at.b, at.per

    def flat(places: Sequence[Ix | int]) -> Tile:
        total: Ix | int = 0
        for place, size in zip(places, at.sizes, strict=True):
            total = total * size + place
        return b.broadcast(b.from_index(total, i32), (at.tile,))

    def first(spot: Sequence[Ix | int]) -> Tile:
        begins = [at.begin(axis, p) for axis, p in enumerate(spot)]
        return flat([q + b.ceildiv(b.maximum(0 - q, 0), d) * d for q, d in zip(begins, op.dilation, strict=True)])

    def row(taps: tuple[Ix | int, ...], pixel: Callable[[int], Tile], states: list[Tile]) -> list[Tile]:
        outer = [at.begin(a, p) + t * d for a, (p, t, d) in enumerate(zip(at.rows, taps, op.dilation, strict=False))]
        for i, pairs in at.reads.items():
            value, place = pixel(i), flat([*outer, at.spots[i]])
            for o, _ in pairs:
                wins = larger(b, value, states[o])
                states[o], states[n + o] = b.select(wins, value, states[o]), b.select(wins, place, states[n + o])
        return states

    spots = list(at.places())
    states = at.fold(row, [first(spot) for spot, _ in spots])
    for o, (spot, limit) in enumerate(spots):
        where = (at.image, *spot, at.start)
        b.store(at.results[0], where, narrow(b, states[o], y.type.dtype), limit=limit)
        b.store(at.results[1], where, b.cast(states[n + o], indices.type.dtype), limit=limit)
    return at.launch()
