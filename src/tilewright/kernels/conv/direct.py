"""The direct convolution: register tiles of pixels × result channels over windows that are read where they lie.

Weights are panels [group, ceil(O/g / width), K…, width]; K is the axes of a window, channels innermost (`taps…, C`), or with few of them
the last axis of taps (`C, taps…`). A tile is `rows` pixels, wherever they lie, times one panel: a pixel's window begins at an offset of its
own, so that rows of a small image and images of a batch fill tiles together. An element is the sum, in order, of FMA chains: a chain
is the longest run of whole inner axes of K with at most CHAIN steps, or PIECE steps of the innermost one. Nothing but the op decides that.

With AMX the windows of 32 pixels are copied into rows, which tiles multiply with a panel; the order of sums is that of K then, too.
Few results of many channels (the last layer of a decoder) would fill a part of a register: registers run along the channels of windows
there, panels are one column wide, and the lanes are summed at the end.

Columns past O/g are masked when stored; a window without elements gives epilogue(0); zero-sized results run no program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import DType, compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.matmul.contractions import Conv as ConvOp
from ...ops.matmul.int_products import IntConv as IntConvOp
from ...tile.builder import Ix, KernelBuilder, Loop, Tile
from ..call import Call
from ..launch import FEW, Buffer, Launch, window_order
from ..matmul.product import even_blocks
from ..matmul.tiling import for_each_tile, leaves_of_epilogue, tile_heights
from ..pointwise.pointwise import unravel
from ..quant.tiles import COLUMNS, ROWS, SIDE
from ..quant.words import Words
from ..region import Evaluator, Operand, Region, collapse, narrow_sum, widen
from ..template import region_bytes, region_flops
from .parts import Plain, int_of

CHAIN = 128
PIECE = 64
SPELLED = 8  # steps of the innermost axis up to which all are spelled out
UNROLL = 4
MOST = 16  # tiles of a program
WINDOWS = 1 << 19  # bytes of windows that are copied for matrix tiles: half of L2
MOST_RESULTS = 10  # the most results of windows whose channels run along registers


def tile_rows(width: int, target: TargetSpec, dtype: DType) -> int:
    """Pixels of a register tile: as many as accumulators and general registers allow."""
    across = -(-width // target.lanes(compute_dtype(dtype).itemsize))
    return 6 if target.registers < 32 or across >= 4 else 8


def few_results(results: int, window: Sequence[int], target: TargetSpec) -> bool:
    """Whether registers run along the channels of windows [channels, taps…], which are innermost: sums of lanes must not cost more than
    they save."""
    lanes = target.lanes(4)
    return 0 < results <= MOST_RESULTS and window[0] >= max(lanes, FEW) and prod(window) >= 8 * lanes


class Places:
    """Offsets of neighbouring positions along some axes that do not merge: one division, then carries."""

    def __init__(self, call: Call, name: str, sizes: Sequence[Dim], steps: Sequence[Dim]) -> None:
        self.b = call.b
        self.sizes = [call.word(f"{name}{i}", d) for i, d in enumerate(sizes[1:], 1)]
        self.steps = [s if s == 1 else call.word(f"{name}s{i}", s) for i, s in enumerate(steps)]
        # from the last position along an axis to the first one of the next
        self.jumps = [call.word(f"{name}j{i}", steps[i - 1] - sizes[i] * steps[i]) for i in range(1, len(sizes))]

    def of(self, first: Ix | int, count: int) -> list[Ix | int]:
        b = self.b
        at = unravel(b, first, [0, *self.sizes])
        here: Ix | int = 0
        for i, s in zip(at, self.steps, strict=True):
            here = here + i * s
        found = [here]
        for _ in range(count - 1):
            here = here + self.steps[-1]
            at[-1] = at[-1] + 1
            for axis in range(len(at) - 1, 0, -1):
                size = self.sizes[axis - 1]
                carry = b.maximum(0, at[axis] + 1 - size)
                here = here + carry * self.jumps[axis - 1]
                at[axis] = at[axis] - carry * size
                at[axis - 1] = at[axis - 1] + carry
            found.append(here)
        return found


class Inside:
    """Which taps of a tile of neighbouring pixels are not padding alone: those of wide dilated windows often are."""

    FAR = 3  # padding from which whole tiles may lie outside

    def __init__(self, call: Call, op: ConvOp | IntConvOp, sizes: Sequence[Dim], out: Sequence[Dim], part: Plain) -> None:
        self.b, self.op, self.part = call.b, op, part
        self.sizes = [call.word(f"in{i}", d) for i, d in enumerate(sizes)]
        self.out = [call.word(f"out{i}", d) for i, d in enumerate(out)]

    @classmethod
    def pays(cls, op: ConvOp | IntConvOp, part: Plain) -> bool:
        far = [isinstance(lo, int) and isinstance(hi, int) and max(lo, hi) >= cls.FAR for lo, hi in op.padding]
        return any(f and d > 1 for f, d in zip(far, part.dilation, strict=True)) and not op.transposed

    def of(self, row: Ix | int, count: int) -> list[tuple[Ix | int, Ix | int] | None]:
        """First and behind the last tap along every axis."""
        b = self.b
        first, last = (unravel(b, r, [0, *self.out]) for r in (row, row + count - 1))
        found: list[tuple[Ix | int, Ix | int] | None] = []
        for axis, (size, out) in enumerate(zip(self.sizes, self.out, strict=True)):
            apart: Ix | int = 0  # the tile goes on in another line: it is everywhere along this axis
            for p, q in zip(first[: axis + 1], last[: axis + 1], strict=True):
                apart = b.maximum(apart, b.minimum(1, b.maximum(p - q, q - p)))
            low, high = first[axis + 1] * (1 - apart), b.maximum(last[axis + 1], (out - 1) * apart)
            (before, _), s, d = self.op.padding[axis], self.part.stride[axis], self.part.dilation[axis]
            begin = b.maximum(0, before - high * s + d - 1) // d
            end = b.minimum(self.part.kernel[axis], b.maximum(0, size - 1 + before - low * s + d) // d)
            found.append((begin, b.maximum(begin, end)))
        return found


def sum_of_chains(b: KernelBuilder, sizes: Sequence[int], step: Callable[[Sequence[Ix | int], list[Tile]], list[Tile]],
                  zeros: list[Tile], taps: Sequence[tuple[Ix | int, Ix | int] | None] = ()) -> list[Tile]:
    """All steps of K in order, in chains: `step(k, accumulators)` adds the products at one place of K. Integers, whose sums are exact, are
    one chain. `taps` bounds the outer axes where what lies outside is known to add nothing."""
    exact = zeros[0].dtype.is_int
    inner = next((i for i in range(len(sizes)) if prod(sizes[i:]) <= CHAIN), len(sizes) - 1)

    def walk(first: Ix | int, count: int, at: list[Ix | int], accs: list[Tile]) -> list[Tile]:
        """`count` steps of the innermost axis."""
        whole = 0 if count <= SPELLED else count // UNROLL * UNROLL
        if whole:
            with b.loop(first, first + whole, UNROLL, accs, nonempty=True) as loop:
                accs = list(loop.carried)
                for u in range(UNROLL):
                    accs = step([*at, loop.index + u], accs)
                loop.next(*accs)
            accs = list(loop.results)
        for i in range(whole, count):
            accs = step([*at, first + i], accs)
        return accs

    def outer(axis: int, carried: list[Tile]) -> AbstractContextManager[Loop]:
        found = taps[axis] if axis < len(taps) else None
        return b.loop(*(found or (0, sizes[axis])), 1, carried, nonempty=found is None)

    def chain(axis: int, at: list[Ix | int], accs: list[Tile]) -> list[Tile]:
        if axis == len(sizes) - 1:
            return walk(0, sizes[-1], at, accs)
        with outer(axis, accs) as loop:
            loop.next(*chain(axis + 1, [*at, loop.index], list(loop.carried)))
        return list(loop.results)

    def add(totals: list[Tile], more: list[Tile]) -> list[Tile]:
        return [x + y for x, y in zip(totals, more, strict=True)]

    def chains(axis: int, at: list[Ix | int], totals: list[Tile]) -> list[Tile]:
        if axis < inner:
            with outer(axis, totals) as loop:
                loop.next(*chains(axis + 1, [*at, loop.index], list(loop.carried)))
            return list(loop.results)
        if prod(sizes[inner:]) <= CHAIN:
            return add(totals, chain(inner, at, zeros))
        whole = sizes[-1] // PIECE * PIECE
        with b.loop(0, whole, PIECE, totals, nonempty=True) as loop:
            loop.next(*add(list(loop.carried), walk(loop.index, PIECE, at, zeros)))
        totals = list(loop.results)
        return totals if whole == sizes[-1] else add(totals, walk(whole, sizes[-1] - whole, at, zeros))

    if 0 in sizes:
        return zeros
    return chain(0, [], zeros) if exact or (inner == 0 and prod(sizes) <= CHAIN) else chains(0, [], zeros)


def windows_fit(words: int) -> bool:
    """Whether windows of so many words can be copied for matrix tiles."""
    return words * 4 * ROWS <= WINDOWS


def matrix_tiles(words: Words, kernel: Sequence[int], k_steps: Sequence[Dim], w_steps: Sequence[Dim], width: int,
                 target: TargetSpec) -> bool:
    """Whether windows can be copied, by registers of words, into rows that AMX multiplies with whole panels."""
    dense = all(s == prod(kernel[i + 1 :]) * width for i, s in enumerate(w_steps))
    whole = kernel[-1] % SIDE == 0 and width % SIDE == 0 and windows_fit(prod(kernel)) and 0 not in kernel
    return dense and whole and k_steps[-1] == 1 and target.has("amx-tile", words.feature) and not target.checks


def direct_launch(region: Region, part: Plain, weights: tuple[DType, Buffer, Layout], width: int, words: Words | None, target: TargetSpec,
                  *, in_place: bool = False) -> Launch:
    """`weights`: panels as [group, panel, channels, taps…, width] over their buffer. `in_place`: they may end before a panel does. With
    `words` the part's input and the weights are words of channels."""
    op, value, x = region.op(ConvOp, IntConvOp), region.node.values[0], part.x
    batch, channels, *out = value.shape
    g = op.groups
    per_group, c_in = int_of(channels) // g, int_of(x.type.shape[1]) // g
    if part.phase is not None:
        out = [p.count for p in part.phase]
    pixels = (batch, *out)
    call = Call("conv", region.name)
    b = call.b

    # K, and where windows begin
    order = window_order(c_in, len(part.kernel), 1 if words is None else words.per)
    kernel = tuple((c_in, *part.kernel)[i] for i in order)
    xs = x.layout.strides
    steps = (xs[1], *(s * d for s, d in zip(xs[2:], part.dilation, strict=True)))
    starts = Layout(pixels, (xs[0], *(s * t for s, t in zip(xs[2:], part.stride, strict=True))))
    sizes, (strides,) = collapse(pixels, [starts])
    if not sizes:
        sizes, strides = [1], [0]
    k_steps, w_steps = [steps[i] for i in order], [weights[2].strides[2 + i] for i in order]
    if words is not None:  # a line of taps and its words are one run where both sides walk them without a gap
        runs, (k_steps, w_steps) = collapse(kernel, [Layout(kernel, tuple(k_steps)), Layout(kernel, tuple(w_steps))])
        kernel = tuple(int_of(d) for d in runs) or (1,)
        k_steps, w_steps = k_steps or [1], w_steps or [1]
    reach = Layout((g, starts.extent, *kernel), (xs[1] * c_in, 1, *k_steps), x.layout.offset)
    xv = call.view("x", x.type.dtype, x.buffer, reach)
    dtype, buffer, panels = weights
    transposed = Layout((*panels.shape[:2], *kernel, width), (*panels.strides[:2], *w_steps, panels.strides[-1]), panels.offset)
    ends = (g, 1, *kernel, per_group) if in_place else None
    wv = call.view("w", dtype, buffer, transposed, sizes=ends, bake=() if in_place else (-2,))
    where = Places(call, "o", sizes, strides)

    # results, and what the epilogue reads, as [group, pixels…, channels]
    def as_pixels(lay: Layout) -> Layout:
        for i, p in enumerate(part.phase or ()):
            lay = lay.slice(2 + i, p.start, p.count, p.step)
        s = lay.strides
        return Layout((g, *pixels, per_group), (s[1] * per_group, s[0], *s[2:], s[1]), lay.offset)

    leaves = leaves_of_epilogue(region, value)
    operands = [o for v in leaves if (o := region.operand(v)) is not None]
    lays = [*(as_pixels(r.layout) for r in region.results), *(as_pixels(o.layout.expand(value.shape)) for o in operands)]
    shared, apart = collapse(pixels, [Layout(pixels, lay.strides[1:-1]) for lay in lays])
    if not shared:
        shared, apart = [1], [[0] for _ in lays]
    lays = [Layout((g, *shared, per_group), (lay.strides[0], *a, lay.strides[-1]), lay.offset) for lay, a in zip(lays, apart, strict=True)]
    made = list(zip(region.results, lays, strict=False))
    outs = [call.view(f"y{i}", r.type.dtype, r.buffer, lay, write=True) for i, (r, lay) in enumerate(made)]
    ins = {v: call.view(f"e{i}", o.type.dtype, o.buffer, lay)
           for i, (v, o, lay) in enumerate(zip(leaves, operands, lays[len(outs) :], strict=True))}
    inner_dims = [call.word(f"p{i}", d) for i, d in enumerate(shared[1:], 1)]

    # programs
    wide = compute_dtype(value.dtype) if words is None else words.sums
    matrix = words is not None and matrix_tiles(words, kernel, k_steps, w_steps, width, target)
    rows, count, lanes = ROWS if matrix else tile_rows(width, target, wide), -(-per_group // width), target.lanes(wide.itemsize)
    along = width == 1  # registers run along channels
    if along:
        width, count = 1 << (per_group - 1).bit_length(), 1
        rows = max(1, min(rows, (24 if target.registers >= 32 else 9) // per_group))
        kernel = (*kernel[:-1], -(-c_in // lanes))
        sums = b.scratch(wide, (rows, width))
    m = product(pixels)
    most = (1 if matrix else MOST) * rows
    if isinstance(m, int) and not matrix:
        most = min(most, max(2 * rows, -(-m * count * g // (4 * target.cores))))
    block = even_blocks(m, most)
    mw, blockw, blocks = call.word("m", m), call.word("block", block), call.word("blocks", ceildiv(m, block))
    if 4 * per_group > prod(d for d in pixels if isinstance(d, int)):  # more weights than pixels: a thread stays with its panel
        rest, which = b.pid // blocks, b.pid % blocks
        group, panel = rest // count, rest % count
    else:
        rest, panel = b.pid // count, b.pid % count
        which, group = rest // g, rest % g
    first = which * blockw
    column = panel * width
    left = None if per_group % width == 0 else per_group - column
    limit = None if left is None else (None, left)

    inside = None
    if part.phase is None and not wide.is_int and len(kernel) == len(out) + 1 and order[-1] == 0 and Inside.pays(op, part):
        inside = Inside(call, op, region.node.operands[0].shape[2:], out, part)
    update = b.mma if words is None else partial(words.dot, b)

    def own(x: Tile) -> Tile:
        return widen(b, x) if words is None else x

    def tile(row: Ix | int, height: int) -> None:
        offsets = where.of(row, height)

        def step(k: Sequence[Ix | int], accs: list[Tile]) -> list[Tile]:
            right = own(b.load(wv, (group, panel, *k, 0), (1, width), limit=limit if in_place else None))
            pixel = [own(b.load(xv, (group, at, *k), (1, 1), axes=(1, len(k) + 1))) for at in offsets]
            return [update(p, right, acc) for p, acc in zip(pixel, accs, strict=True)]

        def step_along(k: Sequence[Ix | int], accs: list[Tile]) -> list[Tile]:
            *taps, block = k
            left = (c_in - block * lanes,) if c_in % lanes else None
            right = [own(b.load(wv, (group, o, *taps, block * lanes, 0), (lanes,), limit=left, axes=(len(k) + 1,)))
                     for o in range(per_group)]
            pixel = [own(b.load(xv, (group, at, *taps, block * lanes), (lanes,), limit=left)) for at in offsets]
            return [b.fma(p, r, acc) for (p, r), acc in zip(((p, r) for p in pixel for r in right), accs, strict=True)]

        taps = inside.of(row, height) if inside is not None else ()
        if along:
            lines = sum_of_chains(b, kernel, step_along, [b.full((lanes,), 0.0, wide)] * (height * per_group), taps)
            for i, acc in enumerate(lines):
                b.store(sums, (i // per_group, i % per_group), b.reduce("sum", acc))
            finish(row, [b.load(sums, (i, 0), (1, width)) for i in range(height)])
        else:
            finish(row, sum_of_chains(b, kernel, step, [b.full((1, width), 0 if wide.is_int else 0.0, wide)] * height, taps))

    def finish(row: Ix | int, accs: Sequence[Tile]) -> None:
        """The epilogue of neighbouring pixels from `row` on."""
        finished: list[tuple[list[Ix | int], list[Tile]]] = []
        for i, acc in enumerate(accs):
            at = [group, *unravel(b, row + i, [0, *inner_dims]), column]

            def leaf(v: Value, o: Operand, at: list[Ix | int] = at) -> Tile:
                across = ins[v].type.strides[-1] != 0
                return b.load(ins[v], at, (1, width if across else 1), limit=limit if across else None, axes=(1, len(at) - 1))

            evaluate = Evaluator(b, region, leaf, {value: acc})
            finished.append((at, [b.broadcast(evaluate(v), (1, width)) for v in region.body.outputs]))
        for at, tiles in finished:
            for view, y, r in zip(outs, tiles, region.results, strict=True):
                b.store(view, at, narrow_sum(b, y, r.type.dtype), limit=limit, axes=(1, len(at) - 1))

    if matrix:
        assert words is not None
        steps_of_k = prod(kernel)
        flat = call.view("k", dtype, buffer, Layout((g, count, steps_of_k, width), (*panels.strides[:2], width, 1), panels.offset))
        windows, sums = b.scratch(dtype, (ROWS, steps_of_k + SIDE)), b.scratch(words.sums, (ROWS, width))
        most_rows = max(tile_heights(m, block, ROWS))  # every product has one height: tiles of a second shape would not stay in registers
        run = 2 * SIDE if kernel[-1] % (2 * SIDE) == 0 else SIDE

        def copy(to: Ix | int, at: Ix | int, axis: int, k: list[Ix | int], place: Ix | int) -> None:
            """A pixel's window, a register of words at a time, as a row of `windows`."""
            with b.loop(0, kernel[axis], run if axis == len(kernel) - 1 else 1) as loop:
                here = place + loop.index * prod(kernel[axis + 1 :])
                if axis < len(kernel) - 1:
                    copy(to, at, axis + 1, [*k, loop.index], here)
                else:
                    b.store(windows, (to, here), b.load(xv, (group, at, *k, loop.index), (run,)))

        def by_matrix_tiles(row: Ix | int, height: int) -> None:
            with b.loop(0, height) as pixel:
                copy(pixel.index, where.of(row + pixel.index, 1)[0], 0, [], 0)
            for start in range(0, width, COLUMNS):
                right = b.subview(flat, (group, panel, 0, start), (2, 3))
                b.tile_dot(b.subview(sums, (0, start), (0, 1)), b.subview(windows, (0, 0), (0, 1)), right, steps_of_k, rows=most_rows,
                           cols=min(COLUMNS, width - start))
            with b.loop(0, height) as pixel:
                finish(row + pixel.index, [b.load(sums, (pixel.index, 0), (1, width))])

        tile = by_matrix_tiles
    for_each_tile(b, first, b.minimum(blockw, mw - first), rows, tile_heights(m, block, rows), tile)
    flops, bytes_ = region_flops(region), region_bytes(region)
    if part.phase is not None:  # its share
        flops, bytes_ = 2 * m * channels * prod(kernel), bytes_ // prod(op.stride)
    pairs = [(o.buffer, r.buffer) for o, lay in zip(operands, lays[len(outs) :], strict=True)
             for r, to in made if lay == to and o.type.dtype is r.type.dtype and len(outs) == 1 and o.buffer is not x.buffer]
    note = f"{rows}x{per_group} sums of lanes" if along else f"{'AMX, ' if matrix else ''}{rows}x{width} tiles"
    return call.finish(ceildiv(m, block) * count * g, flops=flops, bytes_=bytes_, inplace=pairs, note=note, shared=True)
