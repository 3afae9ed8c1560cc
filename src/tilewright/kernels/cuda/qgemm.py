"""Products of many rows with packed matrices (see the target's `qgemm`): every format of `fragments.py`, any number of rows and columns.

Tiles of 16, 32, 64 and 128 rows; a program whose number of rows is not known takes its tile at every call, with the same bits. Blocks have
eight strips of the matrix, or four where that leaves multiprocessors without work.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import bf16, f32, u8
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.quant_dot import GPU_FORMATS
from ...ops.quant_product import QProduct
from ...tile.builder import Ix, Tile
from ...tile.ir import INDEX, TileType, Var
from ..call import Call
from ..launch import Launch, Packed, Variant, Word
from ..region import Evaluator, Operand, Region, narrow
from ..template import Reason, Template, region_bytes, region_flops
from .fragments import COLUMNS, ROWS, Fragments
from .kernel import QGemmKernel
from .qdot import matrices, row_strides

# (strips of a block, rows) -> strips of a warp, and eights of rows
SHAPES = {
    (8, 16): (1, 2), (8, 32): (1, 4), (8, 64): (2, 4), (8, 128): (2, 8),
    (4, 16): (1, 1), (4, 32): (1, 2), (4, 64): (2, 2), (4, 128): (2, 4),
}  # fmt: skip
STAGES, PAD = 3, 32  # of the target's `qgemm`
UNPACK = 26  # instructions of a warp for 16 × 16 codes and their scales
PRODUCT = 6  # instructions that pass while the matrix unit multiplies 16 × 16 by 8
MANY = 512  # rows of a prompt, where nothing is known


def shared_bytes(f: Fragments, strips: int, rows: int) -> int:
    """What a block takes of shared memory; the target counts the same."""
    units = 2 if f.blocks > 2 else STAGES
    return units * strips * f.bytes + STAGES * rows * (2 * COLUMNS * min(2, f.blocks) + PAD)


class CudaQGemm(Template):
    key = "cuda_qgemm"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, QProduct):
            return Reason("no product of bf16 with a packed matrix")
        x, w = (region.operand(v) for v in node.operands)
        if x is None or w is None or w.data is None:
            return Reason("x must come from memory, and the packed matrix must be a constant")
        if node.op.format not in GPU_FORMATS:
            return Reason(f"{node.op.format} has no fragments")
        if row_strides(region, node.types[0].shape) is None:
            return Reason("rows must lie along one axis")
        bad = [r for r in region.results if r.type.shape != node.types[0].shape]
        return Reason(f"outputs must have the shape of the product, got {bad[0].type}") if bad else None

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        assert region.anchor is not None and isinstance(region.anchor.op, QProduct)
        w = region.operand(region.anchor.operands[1])
        assert w is not None
        index = next(i for i, o in enumerate(region.operands) if o.data is w.data)
        return {index: Packed("fragments", ROWS, False, region.anchor.op.format)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, QProduct)
        op = region.anchor.op
        f = Fragments(op.format, op.k)
        fits = [s for s in SHAPES if shared_bytes(f, *s) <= target.l1d - 1024]
        rows = product(region.anchor.types[0].shape[:-1])
        if isinstance(rows, int):
            return [_launch(region, *chosen(fits, rows, op.n, target.cores))]
        sizes = sorted({t for _, t in fits})
        ways = [_launch(region, *chosen([s for s in fits if s[1] == t], t if t < sizes[-1] else MANY, op.n, target.cores)) for t in sizes]
        whole = ways[-1]
        whole.variants = tuple(Variant(rows, 0, t, w.kernel, w.arguments, w.grid) for w, t in zip(ways[:-1], sizes, strict=False))
        return [whole]


def chosen(shapes: list[tuple[int, int]], rows: int, n: int, cores: int) -> tuple[int, int]:
    """The (strips, rows) of a block that keep the busiest multiprocessor shortest, by a count of instructions for 16 columns of K."""

    def time(shape: tuple[int, int]) -> int:
        (strips, tile), (tall, wide) = shape, SHAPES[shape]
        blocks = -(-n // (ROWS * strips)) * -(-rows // tile)
        rounds = -(-blocks // cores)
        return rounds * max(tall * (UNPACK + wide) + wide, PRODUCT * tall * wide)

    return min(shapes, key=time)


def _launch(region: Region, per: int, tile: int) -> Launch:
    node = region.anchor
    assert node is not None and isinstance(node.op, QProduct)
    op, value = node.op, node.values[0]
    f, strips = Fragments(op.format, op.k), -(-op.n // ROWS)
    rows: Dim = product(value.shape[:-1])
    call = Call(f"qgemm_{op.format.lower()}", region.name)
    b = call.b
    width = ROWS * per
    acc, row, column = Var(TileType((tile, width), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column")
    r, c = Ix(b, row), Ix(b, column)
    outs, ins = matrices(call, region, value.shape)
    m = call.word("rows", rows)

    def write(limit: tuple[Ix | int, Ix | int] | None) -> None:
        def leaf(v: Value, o: Operand) -> Tile:
            size = tuple(1 if s == 0 else n for s, n in zip(ins[v].type.strides, (tile, width), strict=True))
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, size, strict=True))
            return b.load(ins[v], (r, c), size, limit=bound)

        evaluate = Evaluator(b, region, leaf, {value: Tile(b, acc)})
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (tile, width)), result.type.dtype), limit=limit)

    inside = b.binary("and", b.compare("le", r + tile, m), b.compare("le", c + width, op.n))
    with b.if_(inside):
        write(None)
    with b.if_(b.unary("not", inside)):
        write((m - r, op.n - c))
    x, w = (region.operand(v) for v in node.operands)
    assert x is not None and w is not None and x.layout.is_contiguous
    xs = call.view("x", bf16, x.buffer, Layout((rows, op.k), (op.k, 1), x.layout.offset))
    matrix = call.view("b", u8, w.buffer, Layout((strips * f.units * f.bytes,), (1,)))
    groups = ceildiv(rows, tile)
    call._arguments += [Word(strips), Word(rows), Word(groups)]
    launch = call.finish(
        groups * -(-strips // per), flops=region_flops(region), bytes_=region_bytes(region),
        note=f"product, {op.format} by mma.bf16, tiles of {tile} rows and {width} columns")  # fmt: skip
    k, (tall, wide) = launch.kernel, SHAPES[per, tile]
    launch.kernel = QGemmKernel(
        f"{k.name}_{op.k}_{per}x{tile}", k.params, k.pid, k.body, acc=acc, row=row, column=column, weights=matrix.var, x=xs.var,
        format=op.format, k=op.k, strips=per, rows=tile, tall=tall, wide=wide)  # fmt: skip
    return launch
