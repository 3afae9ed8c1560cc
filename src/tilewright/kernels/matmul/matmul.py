"""Matrix products: C[..., M, N] = epilogue(alpha · A[..., M, K] · B[..., K, N]).

B is read as panels [ceil(N/width), K, width]: a constant is packed once when the program is built. A run-time B is read where it lies
(`right.py`), or packed by a launch before. A is read in place, element by element, through any strides. Where the CPU multiplies pairs of
bf16 numbers, K is counted in words of two (`quant/words.py`), whichever way B comes.
One program computes one block of rows × one panel: the block is cut into tiles of at most `rows` rows of nearly equal height, and
each tile keeps its accumulators in registers. An element is the sum, in order, of FMA chains over CHAIN steps of K: neither M,
N, batch nor threads change a bit, and the error grows with K/CHAIN + CHAIN instead of K. Columns past N are masked when
stored; K = 0 gives epilogue(0); zero-sized results run no program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...core.dims import Dim, at_least, at_most, ceildiv, divisible, maximum, product
from ...core.dtypes import DType, compute_dtype, i32, u16
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.matmul.contractions import Matmul as MatmulOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Buffer, Launch, Packed, Variant
from ..pointwise.copies import transpose_launch, wants_transpose
from ..pointwise.pointwise import unravel
from ..quant.tiles import tiles_fit, tiles_launch
from ..quant.word_copies import filled_copy
from ..quant.words import PAIRS, in_words, word_operand, words_of
from ..region import Operand, Region
from ..template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .chains import CHAIN, accumulate_chains, accumulate_words
from .panels import pack_panels
from .prefetch import NextBlock, Stream
from .product import Config, Frame, Problem, even_blocks
from .right import Right
from .tiling import for_each_tile, tile_heights, write_tile

LEAST_ROWS = 64  # the fewest rows of a program that pay for a widened copy of a panel of B that is read in place
IN_PLACE_ROWS = 256  # up to which a transposed B is read in place: each block of rows transposes it again
FEWEST_PAIRS = 8  # steps of K that are worth pairs
MAX_BLOCK = 22  # tiles of rows in one program: more rows cost L2, fewer cost another pass over B


def default_config(dtype: DType, n: Dim, target: TargetSpec) -> Config:
    """6×4 registers with 32 registers, 6×2 with 16. Columns are cut into panels of equal width, in halves of registers, so that few
    lanes are multiplied for nothing."""
    lanes = target.vector_bits // 32
    registers = (4 if target.registers >= 32 else 2) // max(1, compute_dtype(dtype).itemsize // 4)
    most = lanes * max(registers, 1)
    if not isinstance(n, int) or n == 0:
        return Config(6, most)
    half = lanes // 2
    fewest = -(-n // most)
    widths = [-(-n // (count * half)) * half for count in (fewest, fewest + 1)]
    # a fifth of a register is what a panel costs beside its columns
    return Config(6, min(widths, key=lambda width: -(-n // width) * (width + lanes / 5)))


def panel_form(op: MatmulOp, dtypes: Sequence[DType], result: TensorType, target: TargetSpec) -> Packed:
    """How the constant right operand of a product of these dtypes is packed."""
    width, words = default_config(result.dtype, result.shape[-1], target).width, words_of(dtypes[0], dtypes[1], target)
    return Packed("panels", width, not op.transpose_b) if words is None else Packed("words", width, not op.transpose_b, words=words.per)


class MatmulTemplate(Template):
    key = "matmul"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return from_memory(region) or shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        p = Problem.of(region)
        if not p.constant_matrix:
            return {}
        index = next(i for i, o in enumerate(region.operands) if o.data is p.b.data)
        form = panel_form(region.op(MatmulOp), (p.a.type.dtype, p.b.type.dtype), region.node.types[0], target)
        if form.form == "words" and not (isinstance(p.k, int) and (p.a.type.dtype.is_int or p.k % form.words == 0)):
            form = Packed("panels", form.width, form.transposed)
        return {index: form}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        p = Problem.of(region)
        if p.b.packed.form == "words":
            launches, p, panels = _in_words(p, region.name, target)
            config = replace(default_config(p.dtype, p.n, target), width=p.b.packed.width)
            return [*launches, product_launch(region, p, config, p.b.buffer, panels, target)]
        if p.b.packed.form != "panels" and _pairs_fit(p, target):
            launches, p = _in_pairs(p, region.name, target)
            return [*launches, _read_in_place(region, p, default_config(p.dtype, p.n, target), target)]
        if wants_transpose(p):
            transpose, p = transpose_launch(p, region.name, target)
            return [transpose, *self._product(region, p, target)]
        return self._product(region, p, target)

    def _product(self, region: Region, p: Problem, target: TargetSpec) -> list[Launch]:
        config = default_config(p.dtype, p.n, target)
        packed = p.b.packed.form == "panels"
        if packed:
            config = replace(config, width=p.b.packed.width)
            panels = Layout((ceildiv(p.n, config.width), p.k, config.width), (p.k * config.width, config.width, 1))
            return [product_launch(region, p, config, p.b.buffer, panels, target)]
        if p.b_view.strides[-1] == 1 and not _collides(p):
            return [_read_in_place(region, replace(p, b_way="rows"), config, target)]
        if target.kind == "cpu" and p.b_view.strides[-2] == 1 and at_most(p.m, IN_PLACE_ROWS):
            return [_read_in_place(region, replace(p, b_way="columns"), config, target)]
        note = "run-time right operand packed into panels"
        pack, buffer, panels = pack_panels(region.name, p.b, p.b_view, p.n, config.width, target, note)
        return [pack, product_launch(region, p, config, buffer, panels, target)]


def _read_in_place(region: Region, p: Problem, config: Config, target: TargetSpec) -> Launch:
    """A product that reads its right operand where it lies."""
    *lead, k, _ = p.b_view.shape
    *steps, row, column = p.b_view.strides
    panels = Layout((*lead, ceildiv(p.n, config.width), k, config.width), (*steps, config.width * column, row, column), p.b_view.offset)
    return product_launch(region, p, config, p.b.buffer, panels, target)


def _pairs_fit(p: Problem, target: TargetSpec) -> bool:
    """Whether a run-time product counts K in pairs: known from dtypes and K alone, so that a row has the same bits in any batch."""
    pairs = words_of(p.a.type.dtype, p.b.type.dtype, target, tiles=False) is PAIRS
    return pairs and at_least(p.k, FEWEST_PAIRS) and (isinstance(p.k, int) or divisible(p.k, PAIRS.per))


def _in_pairs(p: Problem, name: str, target: TargetSpec) -> tuple[list[Launch], Problem]:
    """A product with K counted in pairs. Operands that cannot be read so are copied, with a zero behind an odd K."""
    launches: list[Launch] = []

    def whole(o: Operand, view: Layout, axis: int, label: str) -> Operand:
        if not in_words(view, axis, PAIRS.per):
            order = (*(i for i in range(len(view.shape)) if i != axis), axis)
            copies, o = filled_copy(f"{name}.{label}", o, view, axis, PAIRS.per, target, order)
            launches.extend(copies)
            view = o.layout
        return word_operand(o, view, axis, PAIRS.per)

    rank = len(p.b_view.shape)
    a = whole(p.a, p.a_view, len(p.a_view.shape) - 1, "a")
    p = replace(p, a=a, a_view=a.layout, k=a.layout.shape[-1], words=PAIRS)
    if p.b_view.strides[-1] == 1 and not (p.n == 1 and p.b_view.strides[-2] == 1):
        return launches, replace(p, b=replace(p.b, type=TensorType(u16, p.b.type.shape)), b_way="rows")
    b = whole(p.b, p.b_view, rank - 2, "b")
    return launches, replace(p, b=b, b_view=b.layout, b_way="columns")


def _in_words(p: Problem, name: str, target: TargetSpec) -> tuple[list[Launch], Problem, Layout]:
    """A product with K counted in words, by panels of words. A left operand that does not lie so is copied."""
    words = words_of(p.a.type.dtype, p.b.type.dtype, target)
    assert words is not None
    launches: list[Launch] = []
    a, view, last = p.a, p.a_view, len(p.a_view.shape) - 1
    if not in_words(view, last, words.per):
        launches, a = filled_copy(name, a, view, last, words.per, target, range(len(view.shape)))
        view = a.layout
    a, width = word_operand(a, view, last, words.per), p.b.packed.width
    k = a.layout.shape[-1]
    b = replace(p.b, type=TensorType(i32, (p.n, k)))
    panels = Layout((ceildiv(p.n, width), k, width), (k * width, width, 1))
    return launches, replace(p, a=a, b=b, a_view=a.layout, k=k, words=words), panels


def _collides(p: Problem) -> bool:
    """Rows of B a multiple of the page size apart fall into the same few cache sets: a copy in panels costs less than reading in place."""
    step = p.b_view.strides[-2]
    return isinstance(step, int) and step * p.b.type.dtype.itemsize % 4096 == 0 and at_least(p.k, 128) and at_least(p.m, 64)


def product_launch(region: Region, p: Problem, config: Config, b_buffer: Buffer, panels: Layout, target: TargetSpec) -> Launch:
    """The product for any number of rows and, where that number is known at run time only, a variant for few."""
    if p.b_way == "packed" and tiles_fit(p, config, target):
        return tiles_launch(region, p, config, b_buffer, panels)
    launch, rows = _way(region, p, config, b_buffer, panels, target, few=False)
    fixed = isinstance(rows, int) or at_most(rows, config.rows) or at_least(rows, config.rows + 1)
    if p.batched or fixed or (p.b_way != "packed" and p.words is None):
        return launch
    few, _ = _way(region, p, config, b_buffer, panels, target, few=True)
    return replace(launch, variants=(Variant(rows, 1, config.rows, few.kernel, few.arguments, few.grid, few.scratch),))


def _way(region: Region, p: Problem, config: Config, b_buffer: Buffer, panels: Layout, target: TargetSpec, *,
         few: bool) -> tuple[Launch, Dim]:
    """One way to run it, and the number of rows of one program's matrix. `few`: at most one register tile of rows."""
    out_value = region.node.values[0]
    in_place = p.b_way != "packed"
    frame = Frame.of(region, p, b_buffer, panels)
    call, m = frame.call, frame.rows
    b, a_view, b_view = call.b, frame.a, frame.b
    batch = frame.words()
    few = few or at_most(m, config.rows)
    most = (2 * MAX_BLOCK if in_place else MAX_BLOCK) * config.rows  # rows of B that lie apart are worth more rows of A
    block = maximum(m, 1) if few else row_block(m, frame.lead, p, config, target, most)
    sizes_used = tile_heights(m, block, config.rows)
    nw = call.word("n", p.n) if not divisible(p.n, config.width) else None
    mw, kw = call.word("m", m), call.word("k", p.k)
    blockw, panelw, blocksw = call.word("block", block), call.word("panels", panels.shape[-3]), call.word("blocks", ceildiv(m, block))
    rest, panel = b.pid // panelw, b.pid % panelw
    at = unravel(b, rest // blocksw, batch)
    first = rest % blocksw * blockw
    height = b.minimum(blockw, mw - first)

    limit = None if nw is None else nw - panel * config.width
    wide = compute_dtype(p.dtype) if p.words is None else p.words.sums
    zero = 0 if wide.is_int else 0.0

    ahead: NextBlock | Stream | None = None
    if not (in_place or p.batched):
        ahead = (Stream(call, p, config, b_buffer, panels, panel, kw) if few
                 else NextBlock(call, p, config, b_buffer, panels, panel, kw, block))

    narrow = p.words is None and p.b.type.dtype is not wide and (not in_place or at_least(block, LEAST_ROWS))
    copies = not few and (narrow or (in_place and p.words is not None))
    right = Right(b, p, config, b_view, (*at, panel), limit, wide, target.vector_bits // 32, copies=copies)

    def accumulate(left: Callable[[Ix | int], Tile], row: Ix | int, start: Ix | int, stop: Ix | int, total: Tile) -> Tile:
        at_step = partial(right.step, start=start)
        fetch = None if ahead is None else ahead.during(row - first, start)
        if p.words is None:
            return accumulate_chains(b, left, at_step, start, stop, total, divisible(p.k, CHAIN), fetch, config.unroll)
        if wide.is_int:
            return accumulate_words(b, p.words, left, at_step, start, stop, total, fetch, config.unroll)
        return accumulate_chains(b, left, at_step, start, stop, total, divisible(p.k, CHAIN), fetch, config.unroll,
                                 step=partial(p.words.dot, b))

    def in_memory(row: Ix | int, rows_: int) -> Callable[[Ix | int], Tile]:
        return lambda i: right.widened(b.load(a_view, (*at, row, i), (rows_, 1)))

    def finish(row: Ix | int, acc: Tile) -> None:
        acc = acc * p.alpha if p.alpha != 1.0 else acc
        write_tile(b, region, out_value, acc, frame.ins, frame.outs, (*at, row), panel * config.width, limit)

    def tile(row: Ix | int, rows_: int) -> None:
        finish(row, accumulate(in_memory(row, rows_), row, 0, kw, b.full((rows_, config.width), zero, wide)))

    if at_most(p.k, config.depth) or (few and right.own is None):
        right.copy(0, kw)
        for_each_tile(b, first, height, config.rows, sizes_used, tile)
    else:
        sums = b.scratch(wide, (block if isinstance(block, int) else most, config.width))

        stage = b.scratch(wide, (config.rows, config.depth + config.width)) if p.words is None and p.a.type.dtype is not wide else None

        def clear(row: Ix | int, rows_: int) -> None:
            b.store(sums, (row - first, 0), b.full((rows_, config.width), zero, wide))

        for_each_tile(b, first, height, config.rows, sizes_used, clear)
        with b.loop(0, kw, config.depth) as blocks:
            start, stop = blocks.index, b.minimum(blocks.index + config.depth, kw)
            right.copy(start, stop)

            def part(row: Ix | int, rows_: int) -> None:
                left = in_memory(row, rows_)
                if stage is not None:
                    _copy_rows(b, a_view, at, row, rows_, start, stop, stage, config)
                    left = lambda i: b.load(stage, (0, i - start), (rows_, 1))
                total = accumulate(left, row, start, stop, b.load(sums, (row - first, 0), (rows_, config.width)))
                with b.if_(b.compare("lt", stop, kw)):
                    b.store(sums, (row - first, 0), total)
                with b.if_(b.compare("eq", stop, kw)):
                    finish(row, total)

            for_each_tile(b, first, height, config.rows, sizes_used, part)
    launch = call.finish(
        product(frame.lead) * ceildiv(m, block) * panels.shape[-3],
        flops=region_flops(region),
        bytes_=region_bytes(region),
        inplace=frame.pairs,
        note=f"{config.rows}x{config.width} tiles",
        streams=True,  # B is read once: in a loop the next walk finds what the last one left
        shared=True,
    )
    return launch, m


def row_block(m: Dim, lead: list[Dim], p: Problem, config: Config, target: TargetSpec, most: int) -> Dim:
    """Rows of one program: a K block of A's block stays in half of L2, blocks are of nearly equal height, several programs per core where
    M allows."""
    depth = min(p.k, config.depth) if isinstance(p.k, int) else config.depth
    fit = max(config.rows, target.l2 // 2 // max(depth * p.dtype.itemsize, 1))
    fit = min(fit, most)
    programs = m * ceildiv(p.n, config.width) * product(lead)
    if isinstance(programs, int):
        fit = min(fit, max(4 * config.rows, -(-programs // (4 * target.cores))))
    return even_blocks(m, fit)


def _copy_rows(
    b: KernelBuilder, a: View, at: list[Ix | int], row: Ix | int, rows: int, start: Ix | int, stop: Ix | int, stage: View, config: Config
) -> None:
    """Columns start … stop-1 of `rows` rows of A into local memory: small numbers are widened once, not once per panel."""
    width = config.width
    whole = start + (stop - start) // width * width
    with b.loop(start, whole, width) as loop:
        b.store(stage, (0, loop.index - start), b.cast(b.load(a, (*at, row, loop.index), (rows, width)), stage.type.dtype))
    with b.if_(b.compare("lt", whole, stop)):
        last = b.load(a, (*at, row, whole), (rows, width), limit=(None, stop - whole))
        b.store(stage, (0, whole - start), b.cast(last, stage.type.dtype))
