"""Products inside loops and branches that one block of threads can go through by itself (`whole.py`): a warp has 32 columns of a row.

An element is one chain of multiply-adds over K, as everywhere; elementwise consumers are the epilogue. Any layout of the operands, one
batch axis; sizes are known when compiled, K may be 0. Beyond the sizes of a small launch the kernels for large products are faster.
"""

from __future__ import annotations

from ....core.dtypes import bf16, compute_dtype, f16, f32, f64
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda import whole
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...launch import Launch
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..matmul import MatmulTemplate
from ..product import Problem
from .places import Places, places_of
from .tiled import TiledMatmul

UNROLL = 8  # loads of the matrix in flight
PROGRAMS = 4  # warps of a block, where it is a launch after all


class SmallMatmul(Template):
    key = "small_matmul"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if node.operands[0].dtype is not node.operands[1].dtype or node.operands[0].dtype not in (bf16, f16, f32, f64):
            return Reason("needs float operands of one dtype")
        if MatmulTemplate().matches(region, target) is not None:
            return MatmulTemplate().matches(region, target)
        sizes = (region_flops(region), whole.FLOPS), (region_bytes(region), whole.BYTES)
        if any(not isinstance(d, int) or d > most for d, most in sizes):
            return Reason("larger than a small launch")
        return None if _plain(places_of(region)) else Reason("one batch axis at most")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        at = places_of(region)
        if at is None or not _plain(at):  # the operand's place was not known when the template was chosen
            return TiledMatmul().build(region, target)
        return [_launch(region, Problem.of(region), at)]


def _plain(at: Places | None) -> bool:
    return at is not None and len(at.lead) == 1 and at.copy_a is None and at.copy_b is None


def _launch(region: Region, p: Problem, at: Places) -> Launch:
    assert isinstance(at.m, int) and isinstance(p.n, int) and isinstance(p.k, int)
    assert isinstance(at.batch, int)
    call = Call("small_matmul", region.name)
    b, out_value = call.b, region.node.values[0]
    outs, ins = at.views(call, region, p.n)
    left = call.view("a", p.a.type.dtype, p.a.buffer, Layout((at.batch, at.m, p.k), at.a, p.a_view.offset))
    right = call.view("b", p.b.type.dtype, p.b.buffer, Layout((at.batch, p.k, p.n), at.b, p.b_view.offset))
    strips = -(-p.n // WARP)
    column, rest = b.pid % strips * WARP, b.pid // strips
    row, batch = rest % at.m, rest // at.m
    limit = None if p.n % WARP == 0 else (None, p.n - column)

    def add(start: Ix | int, steps: int, total: Tile) -> Tile:
        xs = [b.load(left, (batch, row, start + i), (1, 1), axes=(1, 2)) for i in range(steps)]
        ws = [b.load(right, (batch, start + i, column), (1, WARP), limit=limit, axes=(1, 2)) for i in range(steps)]
        for x, w in zip(xs, ws, strict=True):
            total = b.fma(b.broadcast(widen(b, x), (1, WARP)), widen(b, w), total)
        return total

    total = b.full((1, WARP), 0.0, compute_dtype(p.a.type.dtype))
    most = p.k // UNROLL * UNROLL
    if most:
        with b.loop(0, most, UNROLL, [total]) as loop:
            loop.next(add(loop.index, UNROLL, loop.carried[0]))
        (total,) = loop.results
    total = add(most, p.k - most, total)
    total = total * p.alpha if p.alpha != 1.0 else total

    def leaf(v: Value, o: Operand) -> Tile:
        if ins[v].type.strides[-1] == 0:
            return b.load(ins[v], (batch, row, 0), (1, 1), axes=(1, 2))
        return b.load(ins[v], (batch, row, column), (1, WARP), limit=limit, axes=(1, 2))

    evaluate = evaluator(region)(b, region, leaf, {out_value: total})
    for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
        tile = narrow(b, b.broadcast(evaluate(v), (1, WARP)), result.type.dtype)
        b.store(view, (batch, row, column), tile, limit=limit, axes=(1, 2))
    note = f"multiply-adds, a warp for {WARP} columns of a row"
    launch = call.finish(strips * at.m * at.batch, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    launch.kernel = on_threads(launch.kernel, WARP, PROGRAMS)
    return launch
