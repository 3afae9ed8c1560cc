"""An elementwise function of rows on a GPU: a thread for each row, all columns in registers. Where sums over rows are wanted, a block walks
the `ROWS` rows of a sum and adds its threads' sums in one order. Rows past the end are neither read nor written.
"""

from __future__ import annotations

from ....core.dims import ceildiv
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ops.row_map import ROWS
from ....ops.row_map import RowMap as RowMapOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Launch
from ...region import Region
from ...template import Template, region_bytes, region_flops
from ..row_map import columns_of, used_by, value_of

THREADS = 128


class CudaRowMap(Template):
    key = "row_map"
    serves = (RowMapOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.node.op
        assert isinstance(op, RowMapOp)
        operands = [region.given(v) for v in region.node.operands]
        stacks, rows = op.lead([o.type for o in operands])
        each = ROWS if any(op.summed) else THREADS
        blocks = ceildiv(rows, each)
        call = Call("row_map", region.name)
        b = call.b
        views = [call.view(f"x{i}", o.type.dtype, o.buffer, o.layout, bake=(1,)) for i, o in enumerate(operands)]
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True, bake=(1,)) for i, r in enumerate(region.results)]
        total, per_stack = call.word("rows", rows), call.word("blocks", blocks)
        stack, block = b.pid // per_stack, b.pid % per_stack
        start = block * each
        stop = b.minimum(start + each, total)
        used, groups = used_by(op.body.outputs), columns_of(op.body.outputs, op.groups)
        columns = columns_of(op.body.inputs, [int(o.type.shape[2]) for o in operands])
        sums = [(i, k) for i, summed in enumerate(op.summed) if summed for k in range(op.groups[i])]

        def rows_at(row: Ix | int, before: list[Tile]) -> list[Tile]:
            """Writes the results of a row a thread; gives the sums with them."""
            known: dict[Value, Tile] = {}
            for o, view, own in zip(operands, views, columns, strict=True):
                lead: Ix | int = 0 if o.type.shape[0] == 1 else stack
                one = o.type.shape[1] == 1 and rows != 1
                for i, v in enumerate(own):
                    if v in used:
                        known[v] = (b.load(view, (lead, 0, i), ()) if one else
                                    b.load(view, (lead, row, i), (THREADS,), limit=(stop - row,), axes=(1,)))
            found = {}
            for i, group in enumerate(groups):
                for k, v in enumerate(group):
                    x = b.broadcast(value_of(b, v, known), (THREADS,))
                    if op.summed[i]:
                        found[i, k] = x
                    else:
                        b.store(outs[i], (stack, row, k), x, limit=(stop - row,), axes=(1,))
            if not sums:
                return []
            seen = b.cmp("lt", b.iota((THREADS,), 0, i32), b.from_index(stop - row, i32))
            return [x + b.select(seen, found[at], 0) for x, at in zip(before, sums, strict=True)]

        if not sums:
            rows_at(start, [])
        else:
            zeros = [b.full((THREADS,), 0, region.results[i].type.dtype) for i, _ in sums]
            with b.loop(start, stop, THREADS, zeros) as loop:
                loop.next(*rows_at(loop.index, loop.carried))
            for (i, k), x in zip(sums, loop.results, strict=True):
                b.store(outs[i], (stack, block, k), b.reshape(b.reduce("sum", x), ()))
        launch = call.finish(stacks * blocks, flops=region_flops(region), bytes_=region_bytes(region), note="a thread a row")
        launch.kernel = on_threads(launch.kernel, THREADS, 1)
        return [launch]
