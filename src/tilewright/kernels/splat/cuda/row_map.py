"""An elementwise function of rows on a GPU: a thread for each row, all columns in registers. Where sums over rows are wanted, a block walks
the `ROWS` rows of a sum and adds its threads' sums in one order. Rows past the end are neither read nor written.
"""

from __future__ import annotations

from ....core.dims import ceildiv, divisible
from ....core.dtypes import i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ops.row_map import ROWS
from ....ops.row_map import RowMap as RowMapOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, stacked
from ...launch import Launch
from ...region import Operand, Region
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
        given = columns_of(op.body.inputs, [int(o.type.shape[2]) for o in operands])
        sums = [(i, k) for i, summed in enumerate(op.summed) if summed for k in range(op.groups[i])]

        def rows_at(row: Ix | int, before: list[Tile]) -> list[Tile]:
            """Writes the results of a row a thread; gives the sums with them."""
            known: dict[Value, Tile] = {}
            for o, view, own in zip(operands, views, given, strict=True):
                lead: Ix | int = 0 if o.type.shape[0] == 1 else stack
                one = o.type.shape[1] == 1 and rows != 1
                if one:
                    known |= {v: b.load(view, (lead, 0, i), ()) for i, v in enumerate(own) if v in used}
                elif _in_fours(o):
                    for k in range(0, len(own), 4):
                        four = b.load(view, (lead, row, k), (4, THREADS), limit=(None, stop - row), axes=(2, 1))
                        known |= {v: b.reshape(b.extract(four, (i, 0), (1, THREADS)), (THREADS,)) for i, v in enumerate(own[k : k + 4])}
                else:
                    known |= {v: b.load(view, (lead, row, i), (THREADS,), limit=(stop - row,), axes=(1,))
                              for i, v in enumerate(own) if v in used}
            found: dict[tuple[int, int], Tile] = {}
            for i, group in enumerate(groups):
                columns = [b.broadcast(value_of(b, v, known), (THREADS,)) for v in group]
                if op.summed[i]:
                    found |= {(i, k): x for k, x in enumerate(columns)}
                elif _in_fours(region.results[i]):
                    for k in range(0, len(columns), 4):
                        b.store(outs[i], (stack, row, k), stacked(b, columns[k : k + 4]), limit=(None, stop - row), axes=(2, 1))
                else:
                    for k, x in enumerate(columns):
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
        fours = frozenset(v.var.name for v, o in zip((*views, *outs), (*operands, *region.results), strict=True) if _in_fours(o))
        launch.kernel = on_threads(launch.kernel, THREADS, 1, runs=fours)
        return [launch]


def _in_fours(o: Operand) -> bool:
    """Whether columns move four at a time: 16 bytes of a row."""
    stack, row, column = o.layout.strides
    whole = all(divisible(x, 4) for x in (o.layout.offset, o.type.shape[2], row, stack))
    return o.type.dtype.itemsize == 4 and column == 1 and o.type.shape[1] != 1 and whole

