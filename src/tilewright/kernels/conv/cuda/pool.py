"""Pooling on a GPU. Values that lie channels last are pooled without a padded copy (`by_channel.py`): a tap outside reads what never wins
(or adds nothing). Others take the shared kernel, one row of results a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.target_spec import TargetSpec
from ....ops.rows.pooling import AvgPool as AvgPoolOp
from ....ops.rows.pooling import MaxPool as MaxPoolOp
from ....tile.builder import Ix, Tile
from ....tile.ir import identity
from ...cuda.groups import shared_launch
from ...launch import Launch
from ...region import Region, narrow
from ..pool import PoolTemplate
from .by_channel import Windows

TAPS = 64  # of the innermost axis, which are unrolled


class CudaPool(PoolTemplate):
    rows = 1

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        x, y = region.operands[0], region.results[0]
        n = len(op.kernel)
        last = len(x.type.shape) == n + 2 and x.layout.strides[1] == 1 and y.layout.strides[1] == 1
        if last and isinstance(op, (MaxPoolOp, AvgPoolOp)) and op.kernel[-1] <= TAPS:
            return [channels_last_pool(region)]
        return [shared_launch(launch) for launch in super().build(region, target)]


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
