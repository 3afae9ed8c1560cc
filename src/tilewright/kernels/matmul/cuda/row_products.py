"""One or two products of one row with the row's RMS norm in one launch: see `passes/row_products.py` for what comes here.

As in `gemv.py`, with the weights of the norm multiplied in on the way and the sum of squares taken along: the factor 1/rms is the same
for all
elements of the row, so it multiplies the finished sums. The norm's result is never rounded.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import divisible
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul
from ....ops.rows.norms import RmsNorm
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import identified
from ...launch import Launch
from ...region import Evaluator, Operand, Region, narrow, widen
from ...template import Foreign, Reason, Template, region_bytes, region_flops
from .gemv import Plan, plan, settled, widest


class CudaRowProducts(Template):
    key = "row_products"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        norm, products = parts(region)
        if norm is None or not products:
            return Foreign("no product of a norm")
        places = [region.operand(v) for n in (norm, *products) for v in n.operands if v.node is not norm]
        if any(o is None or not o.layout.strides or o.layout.strides[-1] != 1 or not divisible(o.layout.offset, 8) for o in places):
            return Reason("rows of a multiple of 16 bytes")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [launch_of(region, target)]


def parts(region: Region) -> tuple[Node | None, list[Node]]:
    products = [n for n in region.body.nodes if isinstance(n.op, Matmul)]
    norm = products[0].operands[0].node if products else None
    if norm is None or not isinstance(norm.op, RmsNorm) or any(n.operands[0].node is not norm for n in products):
        return None, products
    return norm, products


def launch_of(region: Region, target: TargetSpec) -> Launch:
    norm, products = parts(region)
    assert norm is not None and isinstance(norm.op, RmsNorm)
    k, n = norm.operands[0].shape[-1], products[-1].values[0].shape[-1]
    assert isinstance(k, int) and isinstance(n, int)
    call = Call("row_products", region.name)
    b = call.b

    def row(name: str, o: Operand, size: int, *, write: bool = False) -> View:
        return call.view(name, o.type.dtype, o.buffer, Layout((1, size), (0, o.layout.strides[-1]), o.layout.offset), write=write)

    def place(v: Value) -> Operand:
        found = region.operand(v)
        assert found is not None
        return found

    outs = [row(f"c{i}", r, n, write=True) for i, r in enumerate(region.results)]
    matrices = [place(x.operands[1]) for x in products]
    inputs = set(norm.operands) | {v for x in products for v in x.operands}
    leaves = [v for v in region.body.inputs if v not in inputs]
    shape = products[-1].values[0].shape
    ins: dict[Value, View] = {}
    for i, v in enumerate(leaves):
        o = place(v)
        ins[v] = row(f"e{i}", Operand(o.type, o.buffer, o.layout.expand(shape)), n)
    x, w = row("a", place(norm.operands[0]), k), row("w", place(norm.operands[1]), k)
    layouts = [Layout((n, k), (o.layout.strides[-2], 1), o.layout.offset) for o in matrices]
    right = [call.view(f"b{i}", o.type.dtype, o.buffer, lay) for i, (o, lay) in enumerate(zip(matrices, layouts, strict=True))]
    vector = 16 // x.type.dtype.itemsize
    how = arrange(n, k, vector, len(products), target.cores)
    step, rows = how.threads * vector, how.rows
    column = b.pid * rows

    def add(start: Ix | int, pieces: int, sums: list[Tile], left: int | None) -> list[Tile]:
        limits = [None if left is None or left >= (u + 1) * step else (None, left - u * step) for u in range(pieces)]
        big = [[b.load(m, (column, start + u * step), (rows, step), limit=limits[u]) for m in right] for u in range(pieces)]
        scales = [b.load(w, (0, start + u * step), (1, step), limit=limits[u]) for u in range(pieces)]  # before the row, for which it waits
        rows_ = [b.load(x, (0, start + u * step), (1, step), limit=limits[u]) for u in range(pieces)]
        *totals, squares = sums
        for u in range(pieces):
            value = widen(b, rows_[u])
            squares = b.fma(value, value, squares)
            scaled = value * widen(b, scales[u])
            totals = [b.fma(scaled, widen(b, m), t) for m, t in zip(big[u], totals, strict=True)]
        return [*totals, squares]

    sums = [*(b.full((rows, step), 0.0, f32) for _ in right), b.full((1, step), 0.0, f32)]
    block = step * how.unroll
    whole = k // block * block
    if whole:
        sums = add(0, how.unroll, sums, None)
    if whole > block:
        with b.loop(block, whole, block, sums) as loop:
            loop.next(*add(loop.index, how.unroll, loop.carried, None))
        sums = loop.results
    if k > whole:
        sums = add(whole, -(-(k - whole) // step), sums, k - whole)
    *totals, squares = [b.reduce("sum", x, 1) for x in sums]  # one after another: one barrier
    factor = 1.0 / b.unary("sqrt", squares * (1.0 / k) + norm.op.eps)
    known: dict[Value, Tile] = {}
    for node, total in zip(products, totals, strict=True):
        assert isinstance(node.op, Matmul)
        known[node.values[0]] = total * factor * node.op.alpha

    def leaf(v: Value, o: Operand) -> Tile:
        return b.load(ins[v], (0, column), (1 if ins[v].type.strides[1] == 0 else rows, 1), axes=(1, 0))

    evaluate = Evaluator(b, region, leaf, known)
    for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
        b.store(view, (0, column), narrow(b, b.broadcast(evaluate(v), (rows, 1)), result.type.dtype), axes=(1, 0))
    note = f"norm and {len(products)} products, {how.threads} threads, {rows} rows"
    launch = call.finish(n // rows, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    placed = on_threads(launch.kernel, how.threads, how.programs, vector)
    fixed = ("const", "input")  # nothing in the program writes them
    early = all(o.buffer.kind in fixed for o in matrices)
    names = frozenset(f"b{i}" for i in range(len(right)))
    ready = frozenset(("w",)) if place(norm.operands[1]).buffer.kind in fixed else frozenset()
    launch.kernel = identified(replace(placed, streamed=names, early=early, ready=ready))
    return launch


def arrange(n: int, k: int, vector: int, products: int, cores: int) -> Plan:
    """As for one product, but with four rows at a time where enough warps are left (a decode step: 706 us, 727 with two)."""
    four = n % 4 == 0 and n // 4 * widest(k, vector) >= 1280 * cores
    rows = 4 if four else min(plan(1, n, k, vector, cores).rows, 4 // products)
    return settled(n, k, vector, cores, rows, max(1, 8 // (rows * products)))
