"""A gather along the innermost axis: indices run along registers, every row is read with them. Tails are masked; indices are checked."""

from __future__ import annotations

from ..core.dims import ceildiv, product
from ..core.target_spec import TargetSpec
from ..ops.indexing import Gather as GatherOp
from ..tile.builder import Ix
from .call import Call
from .gather import report_index
from .launch import Launch
from .pointwise import unravel
from .region import Region
from .template import Reason, Template, alone, region_bytes

ROWS = 16  # rows a program reads with one set of indices


class GatherLast(Template):
    key = "gather_last"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        why = alone(region, GatherOp)
        if why is not None:
            return why
        assert region.anchor is not None and isinstance(region.anchor.op, GatherOp)
        x, ids = region.anchor.operands
        last = region.anchor.op.axis == len(x.shape) - 1 and len(x.shape) > 1 and len(ids.shape) >= 1
        return None if last else Reason("not along the last of several axes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids, y = region.operands[0], region.operands[1], region.results[0]
        call = Call("gather_last", region.name)
        b = call.b
        count = product(ids.type.shape)
        lead = x.type.shape[:-1]
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        flat = ids.layout.reshape((count,))
        out = y.layout.reshape((*lead, count))
        assert flat is not None and out is not None
        index = call.view("ids", ids.type.dtype, ids.buffer, flat)
        goal = call.view("y", y.type.dtype, y.buffer, out, write=True)
        error = call.error()
        size, n = call.word("size", x.type.shape[-1]), call.word("n", count)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        rows = call.word("rows", product(lead))
        tile = target.vector_bits // 32
        blocks = b.ceildiv(n, tile)
        first, start = b.pid % blocks * tile, b.pid // blocks * ROWS
        left = b.minimum(n - first, tile)
        wanted = b.load(index, (first,), (tile,), limit=(left,))
        bad = b.binary("or", b.cmp("lt", wanted, 0), b.cmp("ge", wanted, b.from_index(size, wanted.dtype)))
        with b.if_(b.reshape(b.reduce("any", bad), ())), b.loop(0, left) as each:
            value = b.to_index(b.load(index, (first + each.index,), ()))
            for wrong in (b.compare("lt", value, 0), b.compare("ge", value, size)):
                with b.if_(wrong):
                    report_index(b, error, b.pid, value)
        safe = b.binary("max", b.binary("min", wanted, b.from_index(size - 1, wanted.dtype)), 0)
        with b.loop(start, b.minimum(start + ROWS, rows)) as row:
            at: list[Ix | int] = unravel(b, row.index, dims)
            b.store(goal, (*at, first), b.gather(source, (*at, 0), len(at), safe), limit=(left,))
        grid = ceildiv(count, tile) * ceildiv(product(lead), ROWS)
        return [call.finish(grid, bytes_=region_bytes(region))]


