"""Sorted searches on a GPU: a thread looks for a value by halves; what it reads of the edges comes from caches."""

from __future__ import annotations

from ....core.dims import ceildiv, product
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ops.index.counting import SearchSorted
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Launch
from ...pointwise.pointwise import unravel
from ...region import Region, widen
from ...template import Template, region_bytes

EACH = 4  # values of a thread: their searches run side by side
BLOCK = 128  # threads


class CudaSearchSorted(Template):
    key = "search_sorted"
    serves = (SearchSorted,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (rows, values), out = region.op(SearchSorted), region.operands, region.results[0]
        *lead, m = values.type.shape
        n = rows.type.shape[-1]
        assert isinstance(n, int)
        call = Call("search_sorted", region.name)
        b, width = call.b, WARP * EACH
        edges = Spots(call, "rows", rows.type.dtype, rows.buffer, rows.layout.expand((*lead, n)))
        wanted = call.view("values", values.type.dtype, values.buffer, values.layout)
        goal = call.view("y", out.type.dtype, out.buffer, out.layout, write=True)
        count, strips = call.word("m", m), call.word("strips", ceildiv(m, width))
        at = unravel(b, b.pid // strips, [call.word(f"d{i}", d) for i, d in enumerate(lead)]) if lead else []
        start = b.pid % strips * width
        limit = (count - start,)
        value = widen(b, b.load(wanted, (*at, start), (width,), limit=limit))
        found, step = b.full((width,), 0, i32), 1 << n.bit_length()
        while step > 1:
            step //= 2
            there = found + step
            inside = b.cmp("le", there, n)
            edge = widen(b, edges.get([*at, 0], there - 1, inside=inside))
            early = b.binary("and", inside, b.cmp("le" if op.right else "lt", edge, value))
            found = b.select(early, there, found)
        if value.dtype.is_float:
            found = b.select(b.cmp("eq", value, value), found, n)
        b.store(goal, (*at, start), b.cast(found, out.type.dtype), limit=limit)
        launch = call.finish(product(lead) * ceildiv(m, width), bytes_=region_bytes(region), note=f"{EACH} values a thread")
        launch.kernel = on_threads(launch.kernel, WARP, BLOCK // WARP)
        return [launch]
