"""Products of a few rows with a matrix whose rows lie along K: the matrix is read once, at the speed of memory.

A program owns `rows` rows of the matrix (columns of the result) and runs on a warp or on a block; each thread takes 16 bytes of every
row at a time, several pieces in flight, sums in f32, and the group adds up its threads' sums at the end. Elementwise consumers are the
epilogue. An element's sum has one order for a matrix of that size, whatever the other rows are. K is known when compiled and a multiple
of 16 bytes; K = 0 goes to the shared template.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....core.dims import ceildiv
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP, identified
from ...launch import Launch
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..matmul import MatmulTemplate
from ..product import Problem
from .places import Places, suitable

MOST_ROWS = 1  # the most rows of the left operand: more go to the tensor cores
MOST_ROWS_F32 = 8  # ... which take no f32, and ...
LARGE, FEW_F32 = 1 << 24, 4  # ... of a matrix of so many bytes: tiles read rows from shared memory (8x4096x4096: 25 us against 44)
BLOCK = 256  # threads at most
FEW, TOGETHER = 128, 8  # threads where all programs are there at once then, so many an SM (a decode step: 693 us against 708)
LONG = 1 << 16  # rows of a matrix from which on four at a time are faster (a vocabulary: 124 us against 141)
WARPS = 4  # programs of a warp in a block


@dataclass(frozen=True)
class Plan:
    """Threads of a program, rows of the matrix it reads, pieces of 16 bytes per thread and row in flight."""

    threads: int
    rows: int
    unroll: int

    @property
    def programs(self) -> int:
        return WARPS if self.threads == WARP else 1


def plan(m: int, n: int, k: int, vector: int, cores: int) -> Plan:
    """Enough warps to keep memory busy, eight or so pieces in flight per thread, and few rounds of the loop."""
    threads = widest(k, vector)
    rows = 2 if n % 2 == 0 and n // 2 * threads >= 1536 * cores else 1
    if m == 1 and n >= LONG and n % 4 == 0:
        rows = 4
    return settled(n, k, vector, cores, rows, 8 // rows)


def widest(k: int, vector: int) -> int:
    return next(t for t in (WARP, FEW, BLOCK) if t * vector >= k or t == BLOCK)


def settled(n: int, k: int, vector: int, cores: int, rows: int, pieces: int) -> Plan:
    """Smaller blocks where all programs are there at once then, and no more pieces than K has."""
    threads = widest(k, vector)
    if threads == BLOCK and n // rows <= TOGETHER * cores:
        threads = FEW
    while pieces > 1 and threads * vector * (pieces // 2) >= k:
        pieces //= 2
    return Plan(threads, rows, pieces)


class Gemv(Template):
    key = "gemv"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if any(v.dtype not in (bf16, f16, f32) for v in node.operands) or node.operands[0].dtype is not node.operands[1].dtype:
            return Reason("needs bf16, f16 or f32 operands of one dtype")
        if MatmulTemplate().matches(region, target) is not None:
            return MatmulTemplate().matches(region, target)
        if fitting(region) is None:
            return Reason(f"one row ({MOST_ROWS_F32} of f32) and a matrix with rows along K of known length")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        places = fitting(region)
        assert places is not None
        p = Problem.of(region)
        assert isinstance(places.m, int) and isinstance(p.n, int) and isinstance(p.k, int)
        vector = 16 // p.b.type.dtype.itemsize
        return [gemv_launch(region, p, places, plan(places.m, p.n, p.k, vector, target.cores))]


def fitting(region: Region) -> Places | None:
    p = Problem.of(region)
    if not (isinstance(p.n, int) and isinstance(p.k, int) and p.k % 8 == 0 and p.n % 2 == 0):
        return None
    at, most = suitable(region), MOST_ROWS
    if p.a.type.dtype is f32:
        most = MOST_ROWS_F32 if 4 * p.n * p.k < LARGE else FEW_F32
    if at is None or not isinstance(at.m, int) or not 1 <= at.m <= most or at.batch != 1:
        return None
    return at if at.a[2] == 1 and at.b[1] == 1 else None


def gemv_launch(region: Region, p: Problem, at: Places, how: Plan) -> Launch:
    assert isinstance(at.m, int) and isinstance(p.k, int)
    out_value = region.node.values[0]
    m, n, k, rows = at.m, p.n, p.k, how.rows
    call = Call("gemv", region.name)
    b = call.b
    outs, ins = at.matrices(call, region, n)
    x = call.view("a", p.a.type.dtype, p.a.buffer, Layout((m, k), (at.a[1], 1), p.a_view.offset))
    w = call.view("b", p.b.type.dtype, p.b.buffer, Layout((n, k), (at.b[2], 1), p.b_view.offset))
    vector = 16 // p.b.type.dtype.itemsize
    step = how.threads * vector
    column = b.pid * rows

    leaves: dict[tuple[Value, int], Tile] = {}  # what the epilogue reads in each row

    def add(start: Ix | int, pieces: int, sums: list[Tile], left: int | None) -> list[Tile]:
        """Pieces of K from `start` on; all loads come first."""
        limits = [None if left is None or left >= (u + 1) * step else (None, left - u * step) for u in range(pieces)]
        right = [b.load(w, (column, start + u * step), (rows, step), limit=limits[u]) for u in range(pieces)]
        left_ = [[b.load(x, (i, start + u * step), (1, step), limit=limits[u]) for i in range(m)] for u in range(pieces)]
        if not leaves:  # one trip to memory with the first pieces of the row, not another one behind the sums
            for v, view in ins.items():
                size = (1 if view.type.strides[1] == 0 else rows, 1)
                leaves.update({(v, i): b.load(view, (i, column), size, axes=(1, 0)) for i in range(m)})
        for u in range(pieces):
            wide = widen(b, right[u])
            sums = [b.fma(widen(b, left_[u][i]), wide, s) for i, s in enumerate(sums)]
        return sums

    sums = [b.full((rows, step), 0.0, f32) for _ in range(m)]
    block = step * how.unroll
    whole = k // block * block
    if whole:  # outside the loop: its loads of the matrix need not wait for the previous kernel
        sums = add(0, how.unroll, sums, None)
    if whole > block:
        with b.loop(block, whole, block, sums) as loop:
            loop.next(*add(loop.index, how.unroll, loop.carried, None))
        sums = loop.results
    if k > whole:
        sums = add(whole, -(-(k - whole) // step), sums, k - whole)
    for i in range(m):
        total = b.reduce("sum", sums[i], 1)
        total = total * p.alpha if p.alpha != 1.0 else total

        def leaf(v: Value, o: Operand, i: int = i) -> Tile:
            return leaves[v, i]

        evaluate = evaluator(region)(b, region, leaf, {out_value: total})
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (i, column), narrow(b, b.broadcast(evaluate(v), (rows, 1)), result.type.dtype), axes=(1, 0))
    note = f"gemv, {how.threads} threads, {rows} rows"
    launch = call.finish(ceildiv(n, rows), flops=region_flops(region), bytes_=region_bytes(region), note=note)
    placed = on_threads(launch.kernel, how.threads, how.programs, vector)
    early = p.b.buffer.kind in ("const", "input")  # nothing in the program writes it
    launch.kernel = identified(replace(placed, streamed=frozenset(("b",)), early=early))
    return launch
