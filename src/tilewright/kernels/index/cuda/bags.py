"""Sums (or maxima) over bags of an embedding's rows on a GPU: a group of threads for a bag and a strip of columns, in order, with the rows
of `AT_ONCE` indices in flight.

Every index is checked: one outside the table is reported in the error block and clamped. Bounds of bags are clamped to the indices, bags of
one size have none; the last strip is masked, a bag of nothing is zeros.
"""

from __future__ import annotations

from ....core.dims import bounds as range_of
from ....core.dims import ceildiv
from ....core.target_spec import TargetSpec
from ....ops.index.counting import BagSum
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...cuda.kernel import WARP
from ...launch import Launch
from ...region import Region, narrow, widen
from ...template import Reason, Template, region_flops
from ..gather import report_index

AT_ONCE = 8
BLOCK = 128  # threads


class CudaBagSum(Template):
    key = "bag_sum"
    serves = (BagSum,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        rows = region.node.operands[0].shape[0]
        return None if range_of(rows)[0] > 0 else Reason(f"no table of {rows} rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        table, ids, *bags = (region.given(v) for v in region.node.operands)
        result, op = region.results[0], region.op(BagSum)
        each, largest = 0 if bags else ids.type.shape[1], op.largest  # 0: bags have bounds
        assert isinstance(each, int)
        at_once = min(AT_ONCE, each) if each else AT_ONCE
        call = Call("bag_sum", region.name)
        b = call.b
        source, index, *edges = (call.view(n, o.type.dtype, o.buffer, o.layout)
                                 for n, o in zip(("table", "ids", "bounds"), (table, ids, *bags), strict=False))
        out = call.view("y", result.type.dtype, result.buffer, result.layout, write=True)
        error = call.error()
        width = result.type.shape[1]
        size, across = call.word("size", table.type.shape[0]), call.word("n", width)
        vector = vector_width([o.type.dtype.itemsize for o in (table, result)], width, [table.layout, result.layout])
        lanes = min(WARP, 1 << (-(-range_of(width)[1] // vector) - 1).bit_length()) if isinstance(width, int) and width else WARP
        tile = lanes * vector
        strips = b.ceildiv(across, tile)
        bag, column = b.pid // strips, b.pid % strips * tile
        limit = None if isinstance(width, int) and width % tile == 0 else (across - column,)
        start: Ix | int = 0
        stop: Ix | int = each
        for view in edges:
            count = call.word("count", ids.type.shape[0])
            start, stop = (b.minimum(b.maximum(b.to_index(b.load(view, (bag + k,), ())), 0), count) for k in range(2))
        lead = () if edges else (bag,)
        first = widen(b, b.full((tile,), float("-inf") if largest else 0.0, result.type.dtype))
        whole = each > 0 and each % at_once == 0  # steps of rows that are all the bag's
        with b.loop(start, stop, at_once, [first]) as loop:
            places = [loop.index + u if whole else b.minimum(loop.index + u, stop - 1) for u in range(at_once)]
            wanted = [b.to_index(b.load(index, (*lead, p), ())) for p in places]
            low: Ix | int = wanted[0]
            high: Ix | int = wanted[0]
            for w in wanted[1:]:
                low, high = b.minimum(low, w), b.maximum(high, w)
            with b.if_(b.binary("or", b.compare("lt", low, 0), b.compare("ge", high, size))):
                for p, w in zip(places, wanted, strict=True):
                    with b.if_(b.binary("or", b.compare("lt", w, 0), b.compare("ge", w, size))):
                        report_index(b, error, bag * each + p, w)
            rows = [b.load(source, (b.minimum(b.maximum(w, 0), size - 1), column), (tile,), limit=limit) for w in wanted]
            total: Tile = loop.carried[0]
            for u, row in enumerate(rows):  # maxima may take the last row again
                new = widen(b, row)
                joined = b.binary("max", total, new) if largest else total + new
                total = joined if largest or whole else b.select(b.compare("lt", loop.index + u, stop), joined, total)
            loop.next(total)
        found = loop.results[0]
        found = b.select(b.compare("lt", start, stop), found, 0.0) if largest and edges else found
        found = b.binary("div", found, float(each)) if op.mean else found
        b.store(out, (bag, column), narrow(b, found, result.type.dtype), limit=limit)
        moved = ids.type.nbytes + ids.type.numel * width * table.type.dtype.itemsize + result.type.nbytes
        launch = call.finish(result.type.shape[0] * ceildiv(width, tile), flops=region_flops(region), bytes_=moved)
        launch.kernel = on_threads(launch.kernel, lanes, BLOCK // lanes, vector)
        return [launch]
