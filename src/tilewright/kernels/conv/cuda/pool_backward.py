"""The backward pass of max pooling on a GPU: every element looks which of the windows around it name its place, and adds their cotangents
in order. Results are computed in the order of their memory; zero-sized results run no program."""

from __future__ import annotations

import itertools

from ....core.dims import Dim, bounds, ceildiv
from ....core.dtypes import compute_dtype, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.rows.pooling import MaxPoolBackward
from ....tile.builder import Tile
from ...call import Call
from ...cuda.tiled import flat, tiled
from ...launch import Buffer, Launch
from ...pointwise.copies import copy_launch, forwards
from ...region import Operand, Region, narrow, widen
from ...template import Template, region_bytes, region_flops
from .tiled import LARGEST

ELEMENTS = 512  # of a block


class CudaMaxPoolBackward(Template):
    key = "max_pool_backward"
    serves = (MaxPoolBackward,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        before, region = forwards(region, target)
        y = region.results[0]
        order = dense_order(y.layout)
        if order is not None:
            return [*before, self._gathered(region, y, order)]
        there = Operand(y.type, Buffer(f"{region.name}.whole", "temp", y.type.nbytes), Layout.contiguous(y.type.shape))
        first = self._gathered(region, there, tuple(range(len(y.type.shape))))
        return [*before, first, copy_launch(f"{region.name}.copy", there, y, target)]

    def _gathered(self, region: Region, y: Operand, order: tuple[int, ...]) -> Launch:
        op, (g, indices) = region.op(MaxPoolBackward), (region.given(v) for v in region.node.operands)
        n, rank, shape = len(op.kernel), len(y.type.shape), y.type.shape
        wide = i64 if bounds(y.type.numel)[1] >= LARGEST else i32
        call = Call("max_pool_backward", region.name)
        b = call.b
        both = {"g": g, "i": indices}
        gv, iv = (call.view(name, o.type.dtype, o.buffer, flat(o.layout)) for name, o in both.items())
        out = call.view("y", y.type.dtype, y.buffer, Layout((y.type.numel,), (1,), y.layout.offset), write=True)

        def tile(name: str, x: Dim) -> Tile | int:
            return x if isinstance(x, int) else b.from_index(call.word(name, x), wide)

        start, count = b.pid * ELEMENTS, call.word("count", y.type.numel)
        number = b.iota((ELEMENTS,), 0, wide) + b.from_index(start, wide)
        inside = b.cmp("lt", number, b.from_index(count, wide))
        at: dict[int, Tile] = {}
        for axis in reversed(order):
            size = tile(f"s{axis}", shape[axis])
            over = b.binary("floordiv", number, size)
            at[axis] = number - over * size
            number = over
        place, base = b.full((), 0, wide), {}
        for axis in range(rank - n, rank):
            place = place * tile(f"p{axis}", shape[axis]) + at[axis]
        for name, o in both.items():
            base[name] = b.full((), 0, wide)
            for axis in range(rank - n):
                base[name] = base[name] + at[axis] * tile(f"{name}{axis}", o.layout.strides[axis])
        total = b.full((ELEMENTS,), 0.0 if y.type.dtype.is_float else 0, compute_dtype(y.type.dtype))
        firsts = [b.binary("floordiv", at[rank - n + a] + op.padding[a][0], op.stride[a]) for a in range(n)]
        limits = [tile(f"o{a}", g.type.shape[rank - n + a]) for a in range(n)]
        steps = {name: [tile(f"{name}s{a}", o.layout.strides[rank - n + a]) for a in range(n)] for name, o in both.items()}
        for back in itertools.product(*(range(r) for r in op.reach)):
            seen, offsets = inside, dict(base)
            for a, (first, j, limit) in enumerate(zip(firsts, back, limits, strict=True)):
                window = first - j
                seen = b.binary("and", seen, b.binary("and", b.cmp("ge", window, 0), b.cmp("lt", window, limit)))
                offsets = {name: x + window * steps[name][a] for name, x in offsets.items()}
            named = b.cast(b.gather(iv, (0,), 0, b.select(seen, offsets["i"], -1), masked=True), wide)
            own = b.binary("and", seen, b.cmp("eq", named, place))
            total = total + widen(b, b.gather(gv, (0,), 0, b.select(own, offsets["g"], -1), masked=True))
        b.store(out, (start,), narrow(b, total, y.type.dtype), limit=(count - start,))
        launch = call.finish(ceildiv(y.type.numel, ELEMENTS), flops=region_flops(region), bytes_=region_bytes(region))
        return tiled(launch, warps=4, vectors={"y": 1})


def dense_order(layout: Layout) -> tuple[int, ...] | None:
    """Axes from the slowest to the fastest, where elements in that order fill memory without gaps."""
    known = [s for s in layout.strides if isinstance(s, int)]
    order = tuple(range(len(layout.shape)))
    if len(known) == len(order):
        order = tuple(sorted(order, key=lambda a: (-known[a], a)))
    return order if layout.permute(order).is_contiguous else None
