"""Rows of matrices mapped by an elementwise graph: a program takes `ROWS` rows, a register of them at a time, one lane a row.

Matrices of up to four columns are read and written column by column, wider ones in squares that are transposed in registers. Rows
past the last are masked. No rows: no program.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dims import ceildiv
from ...core.dtypes import i32
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ops.row_map import ROWS
from ...ops.row_map import RowMap as RowMapOp
from ...ops.structure import Constant
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops

FEW = 4  # columns that are read one by one


class RowMapTemplate(Template):
    key = "row_map"
    serves = (RowMapOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, RowMapOp)
        op = region.anchor.op
        operands = [o for v in region.anchor.operands if (o := region.operand(v)) is not None]
        stacks, rows = op.lead([o.type for o in operands])
        blocks = ceildiv(rows, ROWS)
        call = Call("row_map", region.name)
        b, lanes = call.b, max(4, min(16, target.vector_bits // 32))
        views = [call.view(f"x{i}", o.type.dtype, o.buffer, o.layout) for i, o in enumerate(operands)]
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        total, per_stack = call.word("rows", rows), call.word("blocks", blocks)
        stack, block = b.pid // per_stack, b.pid % per_stack
        start = block * ROWS
        stop = b.minimum(start + ROWS, total)
        # one row for all: read once
        single = [v.type.shape[1] == 1 and rows != 1 for v in operands]
        at: list[Ix | int] = [0 if v.type.shape[0] == 1 else stack for v in operands]
        fixed: dict[Value, Tile] = {}
        columns = columns_of(op.body.inputs, [int(o.type.shape[2]) for o in operands])
        for own, view, one, lead in zip(columns, views, single, at, strict=True):
            if one:
                fixed |= {v: b.load(view, (lead, 0, i), ()) for i, v in enumerate(own)}
        used, groups = used_by(op.body.outputs), columns_of(op.body.outputs, op.groups)
        sums = {i: b.scratch(r.type.dtype, (op.groups[i], lanes)) for i, r in enumerate(region.results) if op.summed[i]}
        for i, view in sums.items():
            with b.loop(0, op.groups[i]) as clear:
                b.store(view, (clear.index, 0), b.full((lanes,), 0, region.results[i].type.dtype))
        with b.loop(start, stop, lanes) as loop:
            row, left = loop.index, stop - loop.index
            known = dict(fixed)
            for own, view, one, lead in zip(columns, views, single, at, strict=True):
                if not one:
                    known |= _read(b, lanes, view, lead, row, left, own, used)
            seen = b.cmp("lt", b.iota((lanes,), 0, i32), b.from_index(left, i32)) if sums else None
            for i, group in enumerate(groups):
                tiles = [b.broadcast(value_of(b, v, known), (lanes,)) for v in group]
                if i in sums:
                    for k, t in enumerate(tiles):
                        assert seen is not None
                        old = b.load(sums[i], (k, 0), (lanes,))
                        b.store(sums[i], (k, 0), old + b.select(seen, t, 0))
                else:
                    _write(b, outs[i], stack, row, left, tiles)
        for i, view in sums.items():
            with b.loop(0, op.groups[i]) as each:
                b.store(outs[i], (stack, block, each.index), b.reshape(b.reduce("sum", b.load(view, (each.index, 0), (lanes,))), ()))
        return [call.finish(stacks * blocks, flops=region_flops(region), bytes_=region_bytes(region))]


def columns_of(values: Sequence[Value], counts: Sequence[int]) -> list[list[Value]]:
    """Values in runs of so many."""
    rest = iter(values)
    return [[next(rest) for _ in range(n)] for n in counts]


def used_by(outputs: list[Value]) -> set[Value]:
    """Every value that an output needs."""
    found, todo = set[Value](), list(outputs)
    while todo:
        v = todo.pop()
        if v not in found:
            found.add(v)
            todo += v.node.operands
    return found


def value_of(b: KernelBuilder, value: Value, known: dict[Value, Tile]) -> Tile:
    """A body's value on tiles, and every value on the way to it once, operands first."""
    todo = [value]
    while todo:
        v = todo[-1]
        missing = [x for x in v.node.operands if x not in known] if v not in known else []
        if missing:
            todo += missing
            continue
        todo.pop()
        if v not in known:
            op = v.node.op
            if isinstance(op, Constant):
                known[v] = b.full((), op.data.array.reshape(-1)[0].item(), v.dtype)
            elif op.traits.view:
                known[v] = known[v.node.operands[0]]
            else:
                known[v] = b.cast(op.lower(b, *(known[x] for x in v.node.operands)), v.dtype)
    return known[value]


def _read(b: KernelBuilder, lanes: int, view: View, lead: Ix | int, row: Ix, left: Ix | int, own: list[Value],
          used: set[Value]) -> dict[Value, Tile]:
    if len(own) <= FEW:
        return {v: b.load(view, (lead, row, i), (lanes,), limit=(left,), axes=(1,)) for i, v in enumerate(own) if v in used}
    out = {}
    for k in range(0, len(own), lanes):
        inside = len(own) - k
        square = b.load(view, (lead, row, k), (lanes, lanes), limit=(left, None if inside >= lanes else inside), axes=(1, 2))
        transposed = b.transpose(square)
        for i, v in enumerate(own[k : k + lanes]):
            if v in used:
                out[v] = b.reshape(b.extract(transposed, (i, 0), (1, lanes)), (lanes,))
    return out


def _write(b: KernelBuilder, view: View, stack: Ix | int, row: Ix, left: Ix | int, tiles: list[Tile]) -> None:
    if len(tiles) <= FEW:
        for i, t in enumerate(tiles):
            b.store(view, (stack, row, i), t, limit=(left,), axes=(1,))
        return
    lanes = tiles[0].shape[0]
    local = b.scratch(view.type.dtype, (lanes, lanes))
    for k in range(0, len(tiles), lanes):
        part = tiles[k : k + lanes]
        for i, t in enumerate(part):
            b.store(local, (i, 0), t)
        limit = (left, None if len(part) == lanes else len(part))
        b.store(view, (stack, row, k), b.transpose(b.load(local, (0, 0), (lanes, lanes))), limit=limit, axes=(1, 2))
