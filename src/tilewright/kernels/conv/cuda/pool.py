"""Pooling on a GPU. Values that lie channels last are pooled a stretch of channels at a time, 16 bytes a thread, without a padded copy: a
tap outside reads what never wins (or adds nothing). Others take the shared kernel, one row of results a program."""

from __future__ import annotations

import itertools
import math
from typing import Any

from ....core.dims import ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ops.rows.pooling import AvgPool as AvgPoolOp
from ....ops.rows.pooling import MaxPool as MaxPoolOp
from ....tile.builder import Ix, KernelBuilder
from ....tile.ir import identity
from ...call import Call
from ...cuda.groups import on_threads, shared_launch, vector_width
from ...launch import Launch
from ...pointwise.cuda.pointwise import BLOCK, group
from ...pointwise.pointwise import unravel
from ...region import Region, narrow, widen
from ...template import region_bytes, region_flops
from ..pool import PoolTemplate

TAPS = 64  # unrolled at most
ROWS = 64  # pixels that a block adds at a time, with 64 channels of each


class CudaPool(PoolTemplate):
    rows = 1

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op: Any = region.node.op
        x, y = region.operands[0], region.results[0]
        n = len(op.kernel)
        last = len(x.type.shape) == n + 2 and x.layout.strides[1] == 1 and y.layout.strides[1] == 1
        if last and isinstance(op, (MaxPoolOp, AvgPoolOp)) and math.prod(op.kernel) <= TAPS:
            return [channels_last_pool(region)]
        return [shared_launch(launch) for launch in super().build(region, target)]


def channels_last_pool(region: Region) -> Launch:
    op: Any = region.node.op
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
    whole = isinstance(channels, int) and channels % tile == 0
    total = b.full((tile,), fill, dtype)
    # a tap outside: the nearest inside, which is another of the window's (so it changes no maximum), or nothing
    near = not mean and all(d == 1 for d in dilation)
    places: list[list[tuple[Ix | int, Ix | int]]] = []
    for f, k, d, size in zip(first, op.kernel, dilation, sizes, strict=True):
        taps = [f + t * d for t in range(k)]
        flags = [1 if near else inside_flag(b, p + 1) * inside_flag(b, size - p) for p in taps]
        places.append([(b.minimum(b.maximum(p, 0), size - 1) if near else p, flag) for p, flag in zip(taps, flags, strict=True)])
    for taps_ in itertools.product(*places):
        inside: Ix | int = left
        for _, flag in taps_:
            inside = inside * flag
        limit = None if near and whole else (inside,)
        place = (at[0], *(p for p, _ in taps_), start)
        loaded = b.load(xv, place, (tile,)) if limit is None else b.load(xv, place, (tile,), limit=limit, other=fill)
        value = widen(b, loaded)
        total = total + value if mean else b.binary("max", total, value)
    if mean:
        count: Ix | int = 1
        for f, k, size, (lo, hi) in zip(first, op.kernel, sizes, op.padding, strict=True):
            low, high = (-lo, size + hi) if op.count_include_pad else (0, size)
            count = count * (b.minimum(f + k, high) - b.maximum(f, low))
        total = total / b.cast(b.from_index(count), dtype)
    b.store(yv, (*at, start), narrow(b, total, y.type.dtype), limit=None if whole else (left,))
    launch = call.finish(product(result.shape[:-1]) * ceildiv(channels, tile), flops=region_flops(region), bytes_=region_bytes(region))
    launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads if threads <= 32 else 1, vector)
    return launch


def inside_flag(b: KernelBuilder, x: Ix | int) -> Ix | int:
    """1 where x is positive, else 0."""
    return b.minimum(b.maximum(x, 0), 1)

