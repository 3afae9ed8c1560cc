"""Products of many rows with packed matrices (see the target's `qgemm`): every format of `fragments.py`, any number of rows and columns.

Tiles of 16 to 256 rows; a program whose number of rows is not known takes its tile at every call, with the same bits (on an H200 those of
`mma.sync` and `wgmma` are the same, too). Blocks have eight panels of the matrix, or four where that leaves SMs without work.
On Hopper, blocks of a cluster share K where there are too few tiles otherwise, and add their sums in order. 2 to 16 rows, where no more can
come: `qfew.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import bf16, f32, u8
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.packed.quant_dot import GPU_FORMATS
from ....ops.packed.quant_product import QProduct
from ....tile.builder import Ix, Tile
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import QGemmKernel, identified
from ...launch import Launch, Packed, Variant, Word
from ...region import Evaluator, Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops, shaped_as_result
from .fragments import COLUMNS, ROWS, Fragments
from .qdot import matrices, row_strides
from .qfew import FEW, few_launch, plan


class Shape(NamedTuple):
    panels: int  # panels of a block
    rows: int
    wgmma: bool = False
    splits: int = 1  # blocks that share K


# (panels of a block, rows) -> panels of a warp, and eights of rows
SHAPES = {
    (8, 16): (1, 2), (8, 32): (1, 4), (8, 64): (2, 4), (8, 128): (2, 8),
    (4, 16): (1, 1), (4, 32): (1, 2), (4, 64): (2, 2), (4, 128): (2, 4),
}  # fmt: skip
HOPPER = ((4, 64), (4, 128), (8, 256))  # the same by `wgmma`: a warp for every panel, with all rows
# Nanoseconds of 64 columns of K, measured on an H200 in Q4_K: of a block alone, and for every block of an SM
COST = {
    (8, 16, False): (330, 220), (8, 32, False): (375, 300), (8, 64, False): (580, 560), (8, 128, False): (950, 900),
    (4, 16, False): (300, 190), (4, 32, False): (310, 220), (4, 64, False): (470, 430), (4, 128, False): (630, 600),
    (4, 64, True): (300, 190), (4, 128, True): (340, 290), (8, 256, True): (700, 800),
}  # fmt: skip
# (rows, blocks that share K, four panels each) -> nanoseconds for their sums. Clusters of four blocks or more find no place for all of the
# chip's SMs at once where a block has one alone: not tried by default
JOIN = {(64, 2): 1500, (64, 4): 5500, (64, 8): 6500, (128, 2): 3500}
AT_ONCE = {64: 4, 128: 2}  # such blocks of an SM: all of them are there at once
PIECE = 32  # rows that the epilogue has in hand at a time, beside the sums of `wgmma`
STAGES, HOPPER_STAGES = 3, 4  # stages of activations, by `mma.sync` and by `wgmma`
PAD = 16  # bytes between rows of activations: eight rows fall on different banks
STEP, NEVER = 64, 1 << 62  # columns; no time
MANY = 256  # rows of a prompt's part, where nothing is known


def shared_bytes(f: Fragments, panels: int, rows: int, wgmma: bool = False) -> int:
    """What a block takes of shared memory; the target counts the same."""
    units = 2 if f.blocks > 2 else STAGES
    if wgmma:
        return units * panels * f.bytes + HOPPER_STAGES * rows * 4 * COLUMNS
    return units * panels * f.bytes + STAGES * rows * (2 * COLUMNS * min(2, f.blocks) + PAD)


class CudaQGemm(Template):
    key = "cuda_qgemm"
    serves = (QProduct,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        x, w = (region.operand(v) for v in node.operands)
        if x is None or w is None or w.data is None:
            return Reason("x must come from memory, and the packed matrix must be a constant")
        if (form := region.op(QProduct).format) not in GPU_FORMATS:
            return Reason(f"{form} has no fragments")
        if row_strides(region, node.types[0].shape) is None:
            return Reason("rows must lie along one axis")
        return shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        w = region.operand(region.node.operands[1])
        assert w is not None
        index = next(i for i, o in enumerate(region.operands) if o.data is w.data)
        return {index: Packed("fragments", ROWS, False, region.op(QProduct).format)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op = region.op(QProduct)
        fits = shapes(Fragments(op.format, op.k), target)
        rows = product(region.node.types[0].shape[:-1])
        most = bounds(rows)[1]
        tiles = 1 if most <= 8 else 2
        few = plan(Fragments(op.format, op.k), op.n, tiles, target) if most <= FEW else None
        if few is not None:
            launch = few_launch(region, few, tiles)
            if tiles > 1 and not isinstance(rows, int):
                one = few_launch(region, few, 1)
                launch.variants = (Variant(rows, 0, 8, one.kernel, one.arguments, one.grid),)
            return [launch]
        if isinstance(rows, int):
            return [_launch(region, chosen(fits, rows, op.n, op.k, target.cores))]
        # all numbers of rows have the same parts of K, those of a part of a prompt
        splits = chosen(fits, MANY, op.n, op.k, target.cores).splits if bounds(rows)[1] <= 2 * MANY else 1
        fits = [s for s in fits if s.splits == splits]
        sizes = sorted({s.rows for s in fits})
        wanted = [chosen(fits, size, op.n, op.k, target.cores) for size in (*sizes[:-1], MANY)]
        ways = [(_launch(region, shape), size) for shape, size in zip(wanted, sizes, strict=True)]
        whole, _ = ways[-1]
        whole.variants = tuple(Variant(rows, 0, size, w.kernel, w.arguments, w.grid) for w, size in ways[:-1])
        return [whole]


def shapes(f: Fragments, target: TargetSpec) -> list[Shape]:
    """What a block may have. Hopper's tensor cores want units of 256 columns, whose registers two steps do not share."""
    hopper = target.cpu == "sm_90a" and f.blocks == 8
    found = [Shape(*s, hopper) for s in (HOPPER if hopper else SHAPES)]
    found += [Shape(4, m, True, n) for m, n in JOIN if hopper and f.units % n == 0]
    return [s for s in found if shared_bytes(f, *s[:3]) <= target.l1d - 1024]


def chosen(shapes: Sequence[Shape], rows: int, n: int, k: int, cores: int) -> Shape:
    """The shape of a block that keeps the busiest SM shortest."""

    def time(s: Shape) -> int:
        alone, more = COST[s[:3]]
        blocks = -(-n // (ROWS * s.panels)) * -(-rows // s.rows) * s.splits
        if s.splits > 1 and blocks > cores * AT_ONCE[s.rows]:
            return NEVER
        return k // STEP // s.splits * max(alone, more * -(-blocks // cores)) + (JOIN[s.rows, s.splits] if s.splits > 1 else 0)

    return min(shapes, key=time)


def _launch(region: Region, shape: Shape) -> Launch:
    node, (per, tile, wgmma, splits) = region.anchor, shape
    assert node is not None and isinstance(node.op, QProduct)
    op, value = node.op, node.values[0]
    f, panels = Fragments(op.format, op.k), -(-op.n // ROWS)
    rows: Dim = product(value.shape[:-1])
    call = Call(f"qgemm_{op.format.lower()}", region.name)
    b = call.b
    width = ROWS * per
    piece = min(PIECE, tile // splits) if wgmma else tile
    acc, row, column = Var(TileType((piece, width), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column")
    r, c = Ix(b, row), Ix(b, column)
    outs, ins = matrices(call, region, value.shape)
    m = call.word("rows", rows)

    def write(limit: tuple[Ix | int, Ix | int] | None) -> None:
        def leaf(v: Value, o: Operand) -> Tile:
            size = tuple(1 if s == 0 else n for s, n in zip(ins[v].type.strides, (piece, width), strict=True))
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, size, strict=True))
            return b.load(ins[v], (r, c), size, limit=bound)

        evaluate = Evaluator(b, region, leaf, {value: Tile(b, acc)})
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (piece, width)), result.type.dtype), limit=limit)

    if wgmma:  # the assembler would keep the addresses of both ways in registers, beside all sums
        write((m - r, op.n - c))
    else:
        inside = b.binary("and", b.compare("le", r + tile, m), b.compare("le", c + width, op.n))
        with b.if_(inside):
            write(None)
        with b.if_(b.unary("not", inside)):
            write((m - r, op.n - c))
    x, w = (region.operand(v) for v in node.operands)
    assert x is not None and w is not None and x.layout.is_contiguous
    xs = call.view("x", bf16, x.buffer, Layout((rows, op.k), (op.k, 1), x.layout.offset))
    matrix = call.view("b", u8, w.buffer, Layout((panels * f.units * f.bytes,), (1,)))
    groups = ceildiv(rows, tile)
    call._arguments += [Word(panels), Word(rows), Word(groups)]
    launch = call.finish(
        groups * -(-panels // per) * splits, flops=region_flops(region), bytes_=region_bytes(region),
        note=f"product, {op.format} by {'wgmma' if wgmma else 'mma'}.bf16, tiles of {tile} rows and {width} columns")  # fmt: skip
    k, (tall, wide) = launch.kernel, (1, tile // 8) if wgmma else SHAPES[per, tile]
    launch.kernel = identified(QGemmKernel(
        k.name, k.params, k.pid, k.body,
        acc=acc, row=row, column=column, weights=matrix.var, x=xs.var, format=op.format, k=op.k, panels=per, rows=tile,
        tall=tall, wide=wide, wgmma=wgmma, warps=per if wgmma else 8, splits=splits))  # fmt: skip
    return launch
