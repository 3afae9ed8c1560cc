"""Products of words by AMX tiles: blocks of 32 rows × 32 columns, whose sums stay in tiles while K passes and then go through memory of the
program's own to the epilogue. K is whole tiles (16 words), panels are whole tiles wide; other products use vector instructions. An
element is summed in the order of K whatever the block, so rows have the same bits alone and in a batch."""

from __future__ import annotations

from ...core.dims import at_least, ceildiv, divisible, product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.builder import Ix
from ..launch import Buffer, Launch
from ..matmul.product import Config, Frame, Problem, even_blocks
from ..matmul.tiling import for_each_tile, tile_heights, write_tile
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import region_bytes, region_flops

ROWS, COLUMNS, SIDE = 32, 32, 16
BLOCKS = 4  # blocks of rows in one program
AT_ONCE = 4  # rows of the epilogue


def tiles_fit(p: Problem, config: Config, target: TargetSpec) -> bool:
    """Whether the product is one of words that tiles can hold. What decides is the same for any number of rows."""
    whole = isinstance(p.k, int) and p.k > 0 and divisible(p.k, SIDE) and config.width % SIDE == 0
    return p.words is not None and whole and target.has("amx-tile", p.words.feature) and not target.checks and not p.batched


def tiles_launch(region: Region, p: Problem, config: Config, b_buffer: Buffer, panels: Layout) -> Launch:
    assert p.words is not None
    value = region.node.values[0]
    frame = Frame.of(region, p, b_buffer, panels)
    call, m = frame.call, frame.rows
    b, a_view, b_view = call.b, frame.a, frame.b
    batch = frame.words()
    block = even_blocks(m, BLOCKS * ROWS)
    nw = call.word("n", p.n) if not divisible(p.n, config.width) else None
    mw, kw = call.word("m", m), call.word("k", p.k)
    blockw, panelw, blocksw = call.word("block", block), call.word("panels", panels.shape[-3]), call.word("blocks", ceildiv(m, block))
    rest, panel = b.pid // panelw, b.pid % panelw
    at = unravel(b, rest // blocksw, batch)
    first = rest % blocksw * blockw
    limit = None if nw is None else nw - panel * config.width
    sums = b.scratch(p.words.sums, (ROWS, config.width))
    rank = len(at)

    heights = tile_heights(m, block, ROWS)
    most = max(heights) if at_least(m, max(heights)) else 0

    def tile(row: Ix | int, height: int) -> None:
        """Every product has the most rows, lower tiles some of those before them: tiles of a second shape would not stay in registers."""
        every = max(most, height)
        start = row if every == height else b.maximum(row - (every - height), 0)
        skipped = 0 if every == height else row - start
        left = b.subview(a_view, (*at, start, 0), (rank, rank + 1))
        for column in range(0, config.width, COLUMNS):
            right = b.subview(b_view, (*at, panel, 0, column), (rank + 1, rank + 2))
            b.tile_dot(b.subview(sums, (0, column), (0, 1)), left, right, kw, rows=every, cols=min(COLUMNS, config.width - column))
        for r in range(0, height, AT_ONCE):
            acc = b.load(sums, (skipped + r, 0), (min(AT_ONCE, height - r), config.width))
            acc = acc * p.alpha if p.alpha != 1.0 else acc
            write_tile(b, region, value, acc, frame.ins, frame.outs, (*at, row + r), panel * config.width, limit)

    for_each_tile(b, first, b.minimum(blockw, mw - first), ROWS, heights, tile)
    return call.finish(product(frame.lead) * ceildiv(m, block) * panels.shape[-3], flops=region_flops(region), bytes_=region_bytes(region),
                       inplace=frame.pairs, note=f"AMX, {ROWS}x{COLUMNS} tiles", shared=True)
