"""Products of up to 64 rows with a matrix whose rows lie along K: bound by reading the matrix, done with `mma.sync` on every chip from
sm_80 on.

Serves f16 and bf16, K a multiple of 32, any N; the region's elementwise consumers are the epilogue. An element is the sum over the
block's warps, each of every
eighth piece of K, in one order whatever M and N are.
"""

from __future__ import annotations

from ....core.dims import ceildiv, divisible
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....tile.builder import Ix, Tile
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import ThinKernel, identified
from ...launch import Launch, Word
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..matmul import MatmulTemplate
from ..product import Problem
from .places import Places, suitable

MOST_ROWS = 64
HOPPER_ROWS = 1  # more rows are faster through TMA there (measured)
WARPS = 8
STRIP = 16  # rows of the matrix in a block


class ThinMatmul(Template):
    key = "thin_matmul"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if any(v.dtype not in (bf16, f16) for v in node.operands) or node.operands[0].dtype is not node.operands[1].dtype:
            return Reason("needs bf16 or f16 operands")
        if MatmulTemplate().matches(region, target) is not None:
            return MatmulTemplate().matches(region, target)
        at = fitting(region)
        if at is not None and target.cpu == "sm_90a" and (not isinstance(at.m, int) or at.m > HOPPER_ROWS):
            return Reason(f"more than {HOPPER_ROWS} rows go through TMA")
        return None if at is not None else Reason(f"up to {MOST_ROWS} rows, and a matrix with rows along K, a multiple of 32")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        places = fitting(region)
        assert places is not None
        return [thin_launch(region, Problem.of(region), places, STRIP)]


def fitting(region: Region) -> Places | None:
    at, p = suitable(region), Problem.of(region)
    if at is None or not isinstance(at.m, int) or not 1 <= at.m <= MOST_ROWS or at.batch != 1 or not divisible(p.k, 32):
        return None
    return at if at.a[2] == 1 and at.b[1] == 1 else None


def thin_launch(region: Region, p: Problem, at: Places, width: int) -> Launch:
    assert isinstance(at.m, int)
    out_value, m, n = region.node.values[0], at.m, p.n
    rows = -(-m // 8) * 8
    call = Call("thin", region.name)
    b = call.b
    outs, ins = at.matrices(call, region, n)
    left = call.view("a", p.a.type.dtype, p.a.buffer, Layout((m, p.k), (at.a[1], 1), p.a_view.offset))
    right = call.view("b", p.b.type.dtype, p.b.buffer, Layout((n, p.k), (at.b[2], 1), p.b_view.offset))
    rows_left, columns_left = call.word("rows", m), call.word("columns", n)
    acc, row, column = Var(TileType((1, width), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column")
    r, c = Ix(b, row), Ix(b, column)
    limit: tuple[Ix | int | None, Ix | int | None] = (rows_left - r, None if divisible(n, width) else columns_left - c)
    total = Tile(b, acc)
    if p.alpha != 1.0:
        total = total * p.alpha

    def leaf(v: Value, o: Operand) -> Tile:
        sm, sn = ins[v].type.strides
        bound = (limit[0] if sm != 0 else None, limit[1] if sn != 0 else None)
        return b.load(ins[v], (r, c), (1, 1 if sn == 0 else width), limit=bound if any(x is not None for x in bound) else None)

    evaluate = evaluator(region)(b, region, leaf, {out_value: total})
    for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
        b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (1, width)), result.type.dtype), limit=limit)
    call._arguments += [Word(m), Word(n), Word(ceildiv(p.k, 32))]
    launch = call.finish(ceildiv(n, width), flops=region_flops(region), bytes_=region_bytes(region), note=f"mma.sync {rows}x{width}")
    k, dtype = launch.kernel, p.a.type.dtype.name
    launch.kernel = identified(ThinKernel(
        k.name, k.params, k.pid, k.body, acc=acc, row=row, column=column, a=left.var, b=right.var, rows=rows,
        panel=width, warps=WARPS, unroll=4 if rows <= 16 else 2, dtype=dtype))  # fmt: skip
    return launch
