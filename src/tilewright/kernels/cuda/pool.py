"""Pooling on a GPU. Values that lie channels last are pooled a stretch of channels at a time, 16 bytes a thread, without a padded copy: a
tap outside reads what never wins (or adds nothing). Others take the shared kernel, one row of results a program."""

from __future__ import annotations

import math
from typing import Any

from ...core.dims import ceildiv, product
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ops.pooling import AvgPool as AvgPoolOp
from ...ops.pooling import MaxPool as MaxPoolOp
from ...tile.builder import Ix, KernelBuilder
from ...tile.ir import identity
from ..call import Call
from ..launch import Launch
from ..pointwise import unravel
from ..pool import Pool
from ..region import Region, narrow, widen
from ..template import region_bytes, region_flops
from .groups import on_threads, shared_launch, vector_width
from .pointwise import BLOCK, group

TAPS = 64  # unrolled at most


class CudaPool(Pool):
    rows = 1

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None
        op: Any = region.anchor.op
        x, y = region.operands[0], region.results[0]
        n = len(op.kernel)
        last = len(x.type.shape) == n + 2 and x.layout.strides[1] == 1 and y.layout.strides[1] == 1
        if last and isinstance(op, (MaxPoolOp, AvgPoolOp)) and math.prod(op.kernel) <= TAPS:
            return [channels_last_pool(region)]
        return [shared_launch(launch) for launch in super().build(region, target)]


def channels_last_pool(region: Region) -> Launch:
    assert region.anchor is not None
    op: Any = region.anchor.op
    x, y = region.operands[0], region.results[0]
    n, channels = len(op.kernel), y.type.shape[1]
    order = (0, *range(2, n + 2), 1)
    source, result = x.layout.permute(order), y.layout.permute(order)
    vector = vector_width([x.type.dtype.itemsize], channels, [source, result])
    threads, pieces = group(channels, vector)
    tile = threads * vector * pieces
    call = Call(op.name, region.name)
    b = call.b
    xv, yv = call.view("x", x.type.dtype, x.buffer, source), call.view("y", y.type.dtype, y.buffer, result, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(result.shape[:-1])]
    sizes = [call.word(f"s{i}", d) for i, d in enumerate(source.shape[1:-1])]
    every = call.word("channels", channels)
    stretches = b.ceildiv(every, tile)
    at = unravel(b, b.pid // stretches, dims)
    start = b.pid % stretches * tile
    left = every - start
    dtype = compute_dtype(x.type.dtype)
    mean = isinstance(op, AvgPoolOp)
    fill = 0.0 if mean else identity("max", x.type.dtype)
    dilation = getattr(op, "dilation", (1,) * n)
    first = [p * s - lo for p, s, (lo, _) in zip(at[1:], op.stride, op.padding, strict=True)]
    total = b.full((tile,), fill, dtype)
    for taps in _every(op.kernel):
        place = [f + t * d for f, t, d in zip(first, taps, dilation, strict=True)]
        inside: Ix | int = left
        for p, size in zip(place, sizes, strict=True):
            inside = inside * _flag(b, p + 1) * _flag(b, size - p)
        value = widen(b, b.load(xv, (at[0], *place, start), (tile,), limit=(inside,), other=fill))
        total = total + value if mean else b.binary("max", total, value)
    if mean:
        count: Ix | int = 1
        for f, k, size, (lo, hi) in zip(first, op.kernel, sizes, op.padding, strict=True):
            low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
            count = count * (b.minimum(f + k, high) - b.maximum(f, low))
        total = total / b.cast(b.from_index(count), dtype)
    b.store(yv, (*at, start), narrow(b, total, y.type.dtype), limit=(left,))
    launch = call.finish(product(result.shape[:-1]) * ceildiv(channels, tile), flops=region_flops(region), bytes_=region_bytes(region))
    launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads if threads <= 32 else 1, vector)
    return launch


def _flag(b: KernelBuilder, x: Ix | int) -> Ix | int:
    """1 where x is positive, else 0."""
    return b.minimum(b.maximum(x, 0), 1)


def _every(kernel: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for k in kernel:
        found = [(*f, t) for f in found for t in range(k)]
    return found
