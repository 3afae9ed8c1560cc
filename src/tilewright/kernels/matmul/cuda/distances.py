"""Sums over the differences of all pairs of rows on a GPU: a block has `SIDE` x `SIDE` pairs, a thread 4 x 4 of them in registers. Panels
of `DEPTH` columns of both matrices come to shared memory, rows beyond the last as the last one, columns beyond the last as zeros in both;
pairs beyond the last are not stored. Sums run in the order of columns."""

from __future__ import annotations

from ....core.dims import ceildiv, product
from ....core.dtypes import compute_dtype, i32
from ....core.target_spec import TargetSpec
from ....ops.matmul.contractions import PairSums
from ....tile.builder import Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.spots import Spots
from ...launch import Launch
from ...pointwise.pointwise import unravel
from ...region import Region, narrow, widen
from ...template import Template, region_bytes, region_flops

SIDE, DEPTH, EACH = 64, 16, 4  # rows of a block, columns of a panel, rows of a thread in both matrices
THREADS = (SIDE // EACH) ** 2


class CudaPairSums(Template):
    key = "cuda_pair_sums"
    serves = (PairSums,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        power, (left, right), y = region.op(PairSums).power, (region.given(v) for v in region.node.operands), region.results[0]
        call = Call("pair_sums", region.name)
        b, dtype, lead = call.b, compute_dtype(left.type.dtype), y.type.shape[:-2]
        sources = [Spots(call, n, o.type.dtype, o.buffer, o.layout, 2) for n, o in (("a", left), ("b", right))]
        goal = Spots(call, "y", y.type.dtype, y.buffer, y.layout, 2, write=True)
        m, n, depth = (call.word(w, d) for w, d in zip("mnk", (*y.type.shape[-2:], left.type.shape[-1]), strict=True))
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        across, down = b.ceildiv(n, SIDE), b.ceildiv(m, SIDE)
        starts = (b.pid // across % down * SIDE, b.pid % across * SIDE)
        at = unravel(b, b.pid // (across * down), dims) if dims else []
        panels = [b.scratch(dtype, (SIDE * (DEPTH + 1),), space="shared") for _ in sources]
        place = b.iota((THREADS,), 0, i32)
        mine = [b.binary("shr", place, 4), b.binary("and", place, SIDE // EACH - 1)]  # places of 16 threads down and 16 across
        left_over = [b.from_index(size - start, i32) for size, start in zip((m, n), starts, strict=True)]

        def join(acc: Tile, gap: Tile) -> Tile:
            if power == 2.0:
                return b.fma(gap, gap, acc)
            return b.binary("add" if power == 1.0 else "max", acc, b.unary("abs", gap))

        row, column = b.binary("shr", place, 4), b.binary("and", place, DEPTH - 1)
        with b.loop(0, depth, DEPTH, [b.full((THREADS,), 0.0, dtype)] * EACH**2) as loop:
            inside = b.cmp("lt", column, b.from_index(depth - loop.index, i32))
            for source, start, rest, panel in zip(sources, starts, left_over, panels, strict=True):
                for i in range(SIDE * DEPTH // THREADS):
                    near = b.binary("min", row + i * (THREADS // DEPTH), rest - 1)
                    x = widen(b, source.get((*at, start, loop.index), near, column, inside=inside))
                    b.scatter(panel, (0,), 0, (row + i * (THREADS // DEPTH)) * (DEPTH + 1) + column, x)
            sums = list(loop.carried)
            for k in range(DEPTH):
                numbers = [[b.gather(panel, (k + i * (SIDE // EACH) * (DEPTH + 1),), 0, own * (DEPTH + 1)) for i in range(EACH)]
                           for panel, own in zip(panels, mine, strict=True)]
                for i, p in enumerate(numbers[0]):
                    for j, q in enumerate(numbers[1]):
                        sums[i * EACH + j] = join(sums[i * EACH + j], p - q)
            loop.next(*sums)
        for i in range(EACH):
            for j in range(EACH):
                place_of = [own + k * (SIDE // EACH) for own, k in zip(mine, (i, j), strict=True)]
                here = b.binary("and", *(b.cmp("lt", p, rest) for p, rest in zip(place_of, left_over, strict=True)))
                goal.put((*at, *starts), narrow(b, loop.results[i * EACH + j], y.type.dtype), *place_of, inside=here)
        grid = product(lead) * ceildiv(y.type.shape[-2], SIDE) * ceildiv(y.type.shape[-1], SIDE)
        launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{SIDE} x {SIDE} pairs a block")
        launch.kernel = on_threads(launch.kernel, THREADS, 1)
        return [launch]
