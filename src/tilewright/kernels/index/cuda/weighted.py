"""Samples between pixels on a GPU: channels lie last, 16 bytes of them a thread; a program has one place and adds its taps in order. An
image that lies otherwise is copied first, a result that does is copied behind. An index outside of the image reads 0.
"""

from __future__ import annotations

from ....core.dims import ceildiv, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ops.index.weighted import WeightedGather as WeightedGatherOp
from ...call import Call
from ...conv.channels_last import channels_last_memory
from ...conv.cuda.by_channel import inside_flag
from ...cuda.groups import on_threads, vector_width
from ...cuda.kernel import WARP
from ...launch import Launch
from ...pointwise.copies import copy_launch
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops

BLOCK = 128  # threads
TAPS = 64  # that are unrolled, at most


class CudaWeightedGather(Template):
    key = "weighted_gather"
    serves = (WeightedGatherOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        (_, channels, _), (_, taps, _) = (v.shape for v in region.node.operands[:2])
        known = isinstance(channels, int) and isinstance(taps, int) and channels > 1 and 0 < taps <= TAPS
        return None if known else Reason(f"several channels and up to {TAPS} taps, both known")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, shares = (region.given(v) for v in region.node.operands)
        y = region.results[0]
        before: list[Launch] = []
        after: list[Launch] = []

        if x.layout.strides[1] != 1:
            image = channels_last_memory(f"{region.name}.image", x.type)
            before.append(copy_launch(f"{region.name}.pixels", x, image, target, "channels last for samples"))
            x = image
        if y.layout.strides[1] != 1:
            result = channels_last_memory(f"{region.name}.result", y.type)
            after.append(copy_launch(f"{region.name}.out", result, y, target, "a result that does not lie channels last"))
            y = result
        return [*before, samples(region, x, ids, shares, y), *after]


def samples(region: Region, x: Operand, ids: Operand, shares: Operand, y: Operand) -> Launch:
    (batch, channels, size), (_, taps, places) = x.type.shape, ids.type.shape
    assert isinstance(channels, int) and isinstance(taps, int)
    source, result = x.layout.permute((0, 2, 1)), y.layout.permute((0, 2, 1))
    vector = vector_width([o.type.dtype.itemsize for o in (x, y)], channels, [source, result])
    lanes = min(WARP, 1 << (-(-channels // vector) - 1).bit_length())
    tile = lanes * vector
    call = Call("weighted_gather", region.name)
    b = call.b
    pixels, goal = call.view("x", x.type.dtype, x.buffer, source), call.view("y", y.type.dtype, y.buffer, result, write=True)
    index, weight = (call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in (("ids", ids), ("w", shares)))
    every, width, count = call.word("channels", channels), call.word("size", size), call.word("places", places)
    strips = -(-channels // tile)
    item, start = b.pid // strips, b.pid % strips * tile
    image, place = item // count, item % count
    left = every - start
    found = [b.to_index(b.load(index, (image, t, place), ())) for t in range(taps)]
    parts = [b.load(weight, (image, t, place), (1,), axes=(2,)) for t in range(taps)]
    total = b.full((tile,), 0.0, compute_dtype(x.type.dtype))
    rows = [b.load(pixels, (image, b.minimum(b.maximum(p, 0), width - 1), start), (tile,),
                   limit=(left * (inside_flag(b, p + 1) * inside_flag(b, width - p)),)) for p in found]  # fmt: skip
    for row, share in zip(rows, parts, strict=True):
        total = b.fma(widen(b, row), b.broadcast(share, (tile,)), total)
    limit = None if channels % tile == 0 else (left,)
    b.store(goal, (image, place, start), narrow(b, total, y.type.dtype), limit=limit)
    launch = call.finish(product((batch, places)) * ceildiv(channels, tile), flops=region_flops(region), bytes_=region_bytes(region))
    launch.kernel = on_threads(launch.kernel, lanes, BLOCK // lanes, vector)
    return launch
