"""Products of 2 to 16 rows with packed matrices (see the target's `qfew`): who has which panels and columns."""

from __future__ import annotations

from dataclasses import dataclass

from ....core.dims import Dim, ceildiv, product
from ....core.dtypes import bf16, f32, u8
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.packed.quant_product import QProduct
from ....tile.builder import Ix, Tile
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import QFewKernel, identified
from ...launch import Launch, Word
from ...region import Evaluator, Operand, Region, narrow
from ...template import region_bytes, region_flops
from .fragments import ROWS, Fragments
from .qdot import matrices

FEW = 16  # rows
WARPS = 16  # warps of a block, at most
ALONG, GROUPS = 8, 4  # lanes that share a panel's columns; groups that take panels side by side
PAD = 16  # bytes between rows of activations: eight rows fall on different banks
PITCH = 80  # bytes from one row of a warp's sums to the next: its stores fall on different banks
MOST = 8  # panels of a block


@dataclass(frozen=True)
class Plan:
    cluster: int
    per: int  # panels of a block (of a cluster)
    warps: int  # along the columns
    groups: int


def shared_bytes(k: int, tiles: int, per: int, warps: int, cluster: int) -> int:
    """Rows, the warps' sums, and what they come to where other blocks read it."""
    return 8 * tiles * (2 * k // cluster + PAD + per * (warps + (cluster > 1)) * PITCH)


def plan(f: Fragments, n: int, tiles: int, target: TargetSpec) -> Plan | None:
    """What keeps the busiest SM shortest, with as many warps as there may be. None: a row's columns do not fit."""
    panels, found = -(-n // ROWS), list[tuple[int, int, int, Plan]]()
    for cluster in (1, 2) if target.cpu == "sm_90a" else (1,):  # clusters of four are not all there at once: 16 us where two take 11
        if f.units % cluster:
            continue
        units, at_once = f.units // cluster, max(1, target.cores // cluster)
        per = min(MOST, -(-panels // at_once))
        groups = min(per, GROUPS)
        warps = min(units, ALONG, WARPS // groups)
        if shared_bytes(f.k, tiles, per, warps, cluster) <= target.l1d - 1024:
            blocks = -(-panels // per)
            rounds = -(-blocks // at_once)
            found.append((rounds * per * units, -warps * groups, cluster, Plan(cluster, per, warps, groups)))
    return min(found)[-1] if found else None


def few_launch(region: Region, p: Plan, tiles: int) -> Launch:
    node = region.anchor
    assert node is not None and isinstance(node.op, QProduct)
    op, value = node.op, node.values[0]
    f, panels = Fragments(op.format, op.k), -(-op.n // ROWS)
    rows: Dim = product(value.shape[:-1])
    call = Call(f"qfew_{op.format.lower()}", region.name)
    b = call.b
    acc, row, column = Var(TileType((1, ROWS), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column")
    r, c = Ix(b, row), Ix(b, column)
    outs, ins = matrices(call, region, value.shape)
    limit = (call.word("rows", rows) - r, None if op.n % ROWS == 0 else op.n - c)

    def leaf(v: Value, o: Operand) -> Tile:
        sm, sn = ins[v].type.strides
        bound = (limit[0] if sm != 0 else None, limit[1] if sn != 0 else None)
        return b.load(ins[v], (r, c), (1, 1 if sn == 0 else ROWS), limit=bound if any(x is not None for x in bound) else None)

    evaluate = Evaluator(b, region, leaf, {value: Tile(b, acc)})
    for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
        b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (1, ROWS)), result.type.dtype), limit=limit)
    x, w = (region.operand(v) for v in node.operands)
    assert x is not None and w is not None and x.layout.is_contiguous
    xs = call.view("x", bf16, x.buffer, Layout((rows, op.k), (op.k, 1), x.layout.offset))
    matrix = call.view("b", u8, w.buffer, Layout((panels * f.units * f.bytes,), (1,)))
    call._arguments += [Word(panels), Word(rows)]
    launch = call.finish(
        -(-panels // p.per) * p.cluster * ceildiv(rows, 8 * tiles), flops=region_flops(region), bytes_=region_bytes(region),
        note=f"product, {op.format} by mma.bf16, {8 * tiles} rows, {p.per} panels of {p.cluster} blocks")  # fmt: skip
    k = launch.kernel
    launch.kernel = identified(QFewKernel(
        k.name, k.params, k.pid, k.body, acc=acc, row=row, column=column,
        weights=matrix.var, x=xs.var, format=op.format, k=op.k, tiles=tiles, per=p.per, warps=p.warps, groups=p.groups,
        cluster=p.cluster, sets=2 if f.low == 4 and p.cluster > 1 else 1))  # fmt: skip
    return launch
