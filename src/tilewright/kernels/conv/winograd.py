"""Winograd's convolution (`ops/matmul/winograd.py`) over pixels that lie channels last.

A program transforms the pixels of a block of tiles into local memory [position, tile, K], multiplies them position by position with a panel
of weights [position · K, width], and transforms and finishes the results of a tile at a time. K is the channels of a group, at every tap of
the outer axes. A product is a sum of chains as in `matmul.py`. Weights in bf16 lie in pairs of channels where the CPU multiplies such:
pixels are read in pairs then, transformed in f32, and rounded. Tiles at the border read zeros outside; results outside are computed and
not stored. Zero-sized results run no program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import compute_dtype, i32
from ...core.target_spec import TargetSpec
from ...core.winograd import PAIRS as POINTS
from ...core.winograd import TAPS
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.matmul.winograd import WinogradConv, WinogradTiles
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch, Packed
from ..matmul.chains import CHAIN, accumulate_chains
from ..matmul.matmul import default_config
from ..matmul.product import even_blocks
from ..matmul.tiling import for_each_tile, leaves_of_epilogue, tile_heights
from ..pointwise.pointwise import unravel
from ..quant.words import PAIRS, halves_of_pairs, in_words, pair_words, word_operand, words_of
from ..region import Evaluator, Operand, Region, narrow_sum, widen
from ..template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .channels_last import channels_last
from .parts import int_of, spread

ROWS = 6  # tiles that are multiplied at once
MOST = 48  # tiles of a program
TILES = 8  # tiles of a program that transforms them alone
LINE, STEPS = 64, 4  # bytes of a cache line, unrolled steps of a chain
MOST_LINES = 8  # that a step may ask for
FEW = 8  # programs of a core that another core does not even out
CHAINS = {2: CHAIN, 4: 16}  # steps of a chain of products: short where the transform of results enlarges their error


class Winograd(Template):
    key = "winograd"
    serves = (WinogradConv,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return from_memory(region) or shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        value = region.node.operands[1]
        o = region.operand(value)
        if o is None or o.data is None or value not in region.body.inputs or not o.layout.is_contiguous:
            return {}
        if not _panels_fit(region, target):
            return {}
        pairs = words_of(region.node.operands[0].dtype, o.type.dtype, target, tiles=False) is PAIRS
        words = PAIRS.per if pairs and _channels(region) % PAIRS.per == 0 else 1
        return {region.body.inputs.index(value): Packed("panels" if words == 1 else "words", _width(region, target), True, words=words)}

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, u = region.places
        words = u.packed.form == "words"
        copies, x = _channels_last(region.name, x, target, again=words and not in_words(x.layout, 1, PAIRS.per))
        return [*copies, Tiles(region, word_operand(x, x.layout, 1, PAIRS.per) if words else x, target, words=words).launch()]


def _channels(region: Region) -> int:
    """Channels of a group."""
    return int_of(region.node.operands[0].shape[1]) // region.op(WinogradConv).groups


def _width(region: Region, target: TargetSpec) -> int:
    """Results of a panel of weights."""
    out = region.node.types[0]
    return default_config(out.dtype, int_of(out.shape[1]) // region.op(WinogradConv).groups, target).width


def _panels_fit(region: Region, target: TargetSpec) -> bool:
    """Panels of all results are panels of every group."""
    groups = region.op(WinogradConv).groups
    return groups == 1 or int_of(region.node.types[0].shape[1]) // groups % _width(region, target) == 0


def _combine(b: KernelBuilder, terms: Sequence[tuple[float, Tile]]) -> Tile:
    """Σ factor · x in order; a factor of 1 costs no multiplication."""
    ordered = [t for t in terms if abs(t[0]) == 1] + [t for t in terms if abs(t[0]) != 1]
    factor, total = ordered[0]
    if factor != 1:
        total = b.binary("mul", total, factor)
    for factor, x in ordered[1:]:
        if abs(factor) == 1:
            total = total + x if factor > 0 else total - x
        else:
            total = b.fma(x, b.full((1,), factor, x.dtype), total)
    return total


def _even(pairs: Sequence[float]) -> list[float]:
    """Coefficients of Π (y - p²), lowest first."""
    found = [1.0]
    for p in pairs:
        found = [low - p * p * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found


def transform_pixels(b: KernelBuilder, tile: int, d: Sequence[Tile]) -> list[Tile]:
    """One line of tile + 2 pixels: rows of B, which share what is even and what is odd."""
    pairs = POINTS[tile]
    whole = _even(pairs)
    found = [_combine(b, [(f, d[2 * i]) for i, f in enumerate(whole)])]
    for p in pairs:
        rest = _even([q for q in pairs if q != p])
        even = _combine(b, [(f, d[2 * i + 2]) for i, f in enumerate(rest)])
        odd = _combine(b, [(f, d[2 * i + 1]) for i, f in enumerate(rest)])
        found += [_combine(b, [(1.0, even), (p, odd)]), _combine(b, [(1.0, even), (-p, odd)])]
    return [*found, _combine(b, [(f, d[2 * i + 1]) for i, f in enumerate(whole)])]


def transform_results(b: KernelBuilder, tile: int, m: Sequence[Tile]) -> list[Tile]:
    """tile + 2 products as `tile` results: columns of A."""
    pairs = POINTS[tile]
    both = [(p, m[2 * i + 1] + m[2 * i + 2], m[2 * i + 1] - m[2 * i + 2]) for i, p in enumerate(pairs)]
    found = []
    for j in range(tile):
        terms = [(p**j, odd if j % 2 else even) for p, even, odd in both]
        terms += [(1.0, m[0])] if j == 0 else [(1.0, m[-1])] if j == tile - 1 else []
        found.append(_combine(b, terms))
    return found


def transform_gradients(b: KernelBuilder, tile: int, d: Sequence[Tile]) -> list[Tile]:
    """One line of `tile` cotangents of results as those of tile + 2 products: rows of A."""
    found = [d[0]]
    for p in POINTS[tile]:
        even, odd = (_combine(b, [(p**j, d[j]) for j in range(first, tile, 2)]) for first in (0, 1))
        found += [even + odd, even - odd]
    return [*found, d[-1]]


def transform_window(b: KernelBuilder, x: View, at: Sequence[Ix | int], sizes: Sequence[Ix], first: Ix | int, channels: int, lanes: int,
                     length: int, line: Callable[[list[Tile]], list[Tile]], store: Callable[[int, Ix | int, list[Tile], int | None], None],
                     parts: Callable[[Tile], list[Tile]] | None = None) -> None:
    """The square window of `length` at image, outer axes, top and side of x[N, spatial…, C], zeros outside, with both axes transformed by
    `line`: `store` gets the position of an element, the channel behind `first`, the elements of a register, and how many there are.
    `parts`: the registers of f32 that are transformed for one of x."""
    image, *outer, top, side = at
    # how far the window reaches beyond the input, on any side
    outside: Ix | int = 0
    for axis, (s, size) in enumerate(zip(at[1:], sizes, strict=True)):
        outside = b.maximum(outside, b.maximum(0 - s, s + (1 if axis < len(outer) else length) - size))

    def flag(axis: int, p: Ix | int) -> Ix | int:
        return b.maximum(0, b.minimum(1, b.minimum(p + 1, sizes[axis] - p)))

    def some(c: Ix | int, left: int | None, inside: bool) -> None:
        there: Ix | int = 1
        down: list[Ix | int] = [1] * length
        across: list[Ix | int] = [1] * length
        if not inside:
            for axis, p in enumerate(outer):
                there = there * flag(axis, p)
            down = [flag(len(outer), top + i) * there for i in range(length)]
            across = [flag(len(outer) + 1, side + i) for i in range(length)]

        def pixel(i: int, j: int) -> list[Tile]:
            limit = None if inside and left is None else (down[i] * across[j] * (lanes if left is None else left),)
            read = b.load(x, (image, *outer, top + i, side + j, first + c), (lanes,), limit=limit)
            return [widen(b, read)] if parts is None else parts(read)

        columns = [[line(list(d)) for d in zip(*(pixel(i, j) for i in range(length)), strict=True)] for j in range(length)]
        for i in range(len(columns[0][0])):
            lines = [line([column[part][i] for column in columns]) for part in range(len(columns[0]))]
            for j, v in enumerate(zip(*lines, strict=True)):
                store(i * len(columns[0][0]) + j, c, list(v), left)

    def each(inside: bool) -> None:
        whole = channels // lanes * lanes
        with b.loop(0, whole, lanes) as loop:
            some(loop.index, None, inside)
        if whole < channels:
            some(whole, channels - whole, inside)

    with b.if_(b.compare("le", outside, 0)):
        each(inside=True)
    with b.if_(b.compare("gt", outside, 0)):
        each(inside=False)


class WinogradTilesTemplate(Template):
    """A program transforms TILES tiles. Those at the border read zeros outside; without tiles no program runs."""

    key = "winograd_tiles"
    serves = (WinogradTiles,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, y = region.op(WinogradTiles), region.given(region.node.operands[0]), region.results[0]
        copies, x = _channels_last(region.name, x, target)
        call = Call("winograd_tiles", region.name)
        b, pixels = call.b, (0, 2, 3, 1)
        data = call.view("x", x.type.dtype, x.buffer, x.layout.permute(pixels))
        out = call.view("y", y.type.dtype, y.buffer, y.layout, write=True)
        sizes = [call.word(f"i{i}", d) for i, d in enumerate(x.type.shape[2:])]
        grid = [call.word(f"g{i}", d) for i, d in enumerate(op.grid(x.type))]
        tiles, line = call.word("tiles", y.type.shape[1]), transform_gradients if op.gradients else transform_pixels
        first = b.pid * TILES
        with b.loop(first, b.minimum(first + TILES, tiles)) as loop:
            image, down, across = unravel(b, loop.index, [0, *grid])
            place = [p * op.tile - lo for p, (lo, _) in zip((down, across), op.padding, strict=True)]

            def store(position: int, c: Ix | int, v: list[Tile], left: int | None) -> None:
                b.store(out, (position, loop.index, c), v[0], limit=None if left is None else (left,))

            transform_window(b, data, (image, *place), sizes, 0, int_of(x.type.shape[1]), target.lanes(4), op.window,
                             lambda values: line(b, op.tile, values), store)
        return [*copies, call.finish(ceildiv(y.type.shape[1], TILES), flops=region_flops(region), bytes_=region_bytes(region))]


def _channels_last(name: str, x: Operand, target: TargetSpec, *, again: bool = False) -> tuple[list[Launch], Operand]:
    if x.layout.strides[1] == 1 and not again:
        return [], x
    axes = x.type.ndim - 2
    return spread(name, x, (1,) * axes, ((0, 0),) * axes, target, "", lambda x, shape: (x.type.dtype, channels_last(shape)))


class Tiles:
    """One kernel under construction over an x that lies channels last. `words`: x and the weights are pairs of channels."""

    def __init__(self, region: Region, x: Operand, target: TargetSpec, *, words: bool = False) -> None:
        self.region, self.op, self.value, self.target = region, region.op(WinogradConv), region.node.values[0], target
        u = region.given(region.node.operands[1])
        call = self.call = Call("winograd", region.name)
        self.b = call.b
        self.m, self.n = self.op.tile, self.op.tile + TAPS - 1
        self.positions = self.n * self.n
        self.groups, self.outer = self.op.groups, len(self.op.outer)
        self.channels, self.results = int_of(x.type.shape[1]) // self.groups, int_of(self.value.shape[1]) // self.groups
        self.k = self.channels * prod(self.op.outer)
        self.dtype = compute_dtype(self.value.dtype)
        self.words, self.kept = words, i32 if words else self.dtype  # `kept`: of transformed pixels
        self.lanes = target.lanes(4)
        self.rows, self.width = ROWS, _width(region, target)
        self.panels = -(-self.results // self.width)
        pixels = (0, *range(2, x.type.ndim), 1)
        self.x = call.view("x", x.type.dtype, x.buffer, x.layout.permute(pixels))
        rows, columns = self.positions * self.k, self.results * self.groups
        self.in_place = u.packed.form == "plain"
        if self.in_place:  # the last panel of a group may end before its width
            weights = Layout((columns, rows, self.width), (u.layout.strides[1], *u.layout.strides), u.layout.offset)
            self.u = call.view("u", u.type.dtype, u.buffer, weights, sizes=(1, rows, columns))
        else:
            weights = Layout.contiguous((self.panels * self.groups, rows, self.width))
            self.u = call.view("u", i32 if words else u.type.dtype, u.buffer, weights, bake=(-2,))
        self.outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout.permute(pixels), write=True) for i, r in enumerate(region.results)]
        operands = [(v, o) for v in leaves_of_epilogue(region, self.value) if (o := region.operand(v)) is not None]
        self.ins = {v: call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(self.value.shape).permute(pixels))
                    for i, (v, o) in enumerate(operands)}
        self.pairs = [(o.buffer, r.buffer) for _, o in operands for r in region.results
                      if len(region.results) == 1 and o.layout == r.layout and o.type.dtype is r.type.dtype and o.buffer is not x.buffer]
        self.sizes = [call.word(f"i{i}", d) for i, d in enumerate(x.type.shape[2:])]
        self.out = [call.word(f"o{i}", d) for i, d in enumerate(self.value.shape[2:])]

    def launch(self) -> Launch:
        b, call = self.b, self.call
        *before, last, side = self.value.shape[2:]
        down, across = ceildiv(last, self.m), ceildiv(side, self.m)
        tiles: Dim = self.value.shape[0] * product(before) * down * across
        most, groups = self._programs(tiles)
        block = even_blocks(tiles, most)
        self.grid = [*self.out[:-2], call.word("down", down), call.word("across", across)]
        count, blockw = call.word("tiles", tiles), call.word("block", block)
        shared = b.pid // groups
        self.group, first = shared % self.groups, shared // self.groups * blockw
        here = b.minimum(blockw, count - first)
        self.v = b.scratch(self.kept, (self.positions, most, self.k))
        self.products = b.scratch(self.dtype, (self.positions, most, self.width))
        self.y = b.scratch(self.dtype, (self.m * self.m, self.width))
        with b.loop(0, here) as loop:
            self._pixels(first + loop.index, loop.index)
        per = -(-self.panels // groups)
        start = b.pid % groups * per
        heights = tile_heights(tiles, block, self.rows)
        self._ahead(block, here)
        with b.loop(start, b.minimum(start + per, self.panels)) as panels:
            panel = panels.index
            with b.loop(0, self.positions) as position:
                for_each_tile(b, 0, here, self.rows, heights, lambda row, height: self._product(panel, position.index, row, height))
            with b.loop(0, here) as loop:
                self._results(first + loop.index, loop.index, panel)
        note = f"{self.m}x{self.m} results a tile, {self.rows}x{self.width} products"
        return call.finish(ceildiv(tiles, block) * self.groups * groups, flops=region_flops(self.region), bytes_=region_bytes(self.region),
                           inplace=self.pairs, note=note, shared=True)

    def _programs(self, tiles: Dim) -> tuple[int, int]:
        """Tiles of a program at most, so that what it keeps stays in L2, and how many programs share a block's panels of weights."""
        each = self.positions * (self.k + self.width) * self.dtype.itemsize
        fit = self.target.l2 * 3 // 4 // each
        most = max(self.rows, min(MOST, fit // self.rows * self.rows))
        if not isinstance(tiles, int) or tiles == 0:
            return most, 1
        most = min(max(most, min(MOST, fit) if tiles <= fit else 0), tiles)  # weights are read once where all tiles fit
        wanted = 2 * self.target.cores
        groups = 1
        while -(-tiles // most) * self.groups * groups < wanted and groups < self.panels:
            groups += 1
        blocks, cores = -(-tiles // most), self.target.cores
        if blocks * self.groups * groups < FEW * cores:  # few programs: as many for every core
            while blocks * self.groups * groups % cores and blocks < tiles:
                blocks += 1
        return -(-tiles // blocks), groups

    # --- pixels -------------------------------------------------------------------------------------------------------
    def _place(self, tile: Ix | int) -> tuple[Ix | int, list[Ix | int]]:
        """Image and first result of a tile."""
        n, *outer, down, across = unravel(self.b, tile, [0, *self.grid])
        return n, [*outer, down * self.m, across * self.m]

    def _pixels(self, tile: Ix | int, to: Ix | int) -> None:
        b = self.b
        image, place = self._place(tile)
        start = [p - lo for p, (lo, _) in zip(place, self.op.padding, strict=True)]

        def taps(axis: int, at: list[Ix | int], tap: Ix | int) -> None:
            """One tap of the outer axes after the other."""
            if axis == self.outer:
                self._slice(image, [*at, *start[axis:]], to, tap * self.channels)
                return
            with b.loop(0, self.op.outer[axis]) as loop:
                taps(axis + 1, [*at, start[axis] + loop.index], tap * self.op.outer[axis] + loop.index)

        taps(0, [], 0)

    def _slice(self, image: Ix | int, start: list[Ix | int], to: Ix | int, k: Ix | int) -> None:
        """The transformed pixels of one tap of the outer axes, from `k` on."""
        b = self.b

        def store(position: int, c: Ix | int, v: list[Tile], left: int | None) -> None:
            b.store(self.v, (position, to, k + c), pair_words(b, *v) if self.words else v[0], limit=None if left is None else (left,))

        transform_window(b, self.x, (image, *start), self.sizes, self.group * self.channels, self.channels, self.lanes, self.n,
                         lambda line: transform_pixels(b, self.m, line), store, partial(halves_of_pairs, b) if self.words else None)

    # --- products -----------------------------------------------------------------------------------------------------
    def _product(self, panel: Ix | int, position: Ix | int, row: Ix | int, height: int) -> None:
        b, depth = self.b, self.k
        base = position * depth
        limit = (None, self.results - panel * self.width) if self.in_place and self.results % self.width else None
        which = self.group * self.results + panel * self.width if self.in_place else self.group * self.panels + panel

        def left(k: Ix | int) -> Tile:
            return b.load(self.v, (position, row, k), (height, 1))

        def right(k: Ix | int) -> Tile:
            read = b.load(self.u, (which, base + k, 0), (1, self.width), limit=limit)
            return read if self.words else widen(b, read)

        chain = CHAINS[self.m]
        total = accumulate_chains(b, left, right, 0, depth, b.full((height, self.width), 0.0, self.dtype), depth % chain == 0,
                                  self._fetch(which, base, row), length=chain, step=partial(PAIRS.dot, b) if self.words else None)
        b.store(self.products, (position, row, 0), total)

    def _ahead(self, block: Dim, here: Ix | int) -> None:
        """How many cache lines of the next position's weights a step of a product asks for, so that its tiles ask for all of them."""
        lines, steps = self.k * self.width * self.u.type.dtype.itemsize // LINE, max(1, self.k // STEPS)
        tiles = -(-block // self.rows) if isinstance(block, int) else 4
        self.lines = 0 if self.in_place else min(MOST_LINES, -(-lines // (steps * tiles)))
        self.height = here // self.b.ceildiv(here, self.rows)

    def _fetch(self, panel: Ix | int, base: Ix | int, row: Ix | int) -> Callable[[Ix], None] | None:
        if not self.lines:
            return None
        b, line = self.b, LINE // self.u.type.dtype.itemsize
        flat = self.k // STEPS * STEPS * self.lines * line // STEPS
        first = (base + self.k) * self.width + row // self.height * flat

        def fetch(k: Ix) -> None:
            for i in range(self.lines):
                b.prefetch(self.u, (panel, 0, first + k * (self.lines * line // STEPS) + i * line), locality=2)

        return fetch

    # --- results ------------------------------------------------------------------------------------------------------
    def _results(self, tile: Ix | int, row: Ix | int, panel: Ix | int) -> None:
        b, n, m = self.b, self.n, self.m
        image, place = self._place(tile)

        def transform(at: Ix | int, wide: int) -> None:
            columns = []
            for j in range(n):
                column = [b.load(self.products, (i * n + j, row, at), (wide,)) for i in range(n)]
                columns.append(transform_results(b, m, column))
            for i in range(m):
                for j, y in enumerate(transform_results(b, m, [columns[k][i] for k in range(n)])):
                    b.store(self.y, (i * m + j, at), y)

        whole = self.width // self.lanes * self.lanes
        with b.loop(0, whole, self.lanes) as loop:
            transform(loop.index, self.lanes)
        if whole < self.width:
            transform(whole, self.width - whole)
        limit = None if self.results % self.width == 0 else (self.results - panel * self.width,)
        down, across = (b.minimum(m, size - p) for p, size in zip(place[-2:], self.out[-2:], strict=True))
        with b.loop(0, down) as i, b.loop(0, across) as j:
            at = (image, *place[:-2], place[-2] + i.index, place[-1] + j.index, self.group * self.results + panel * self.width)

            def leaf(v: Value, o: Operand) -> Tile:
                wide = self.ins[v].type.strides[-1] != 0
                return b.load(self.ins[v], at, (self.width,) if wide else (1,), limit=limit if wide else None)

            evaluate = Evaluator(b, self.region, leaf, {self.value: b.load(self.y, (i.index * m + j.index, 0), (self.width,))})
            tiles = [b.broadcast(evaluate(v), (self.width,)) for v in self.region.body.outputs]
            for view, y, r in zip(self.outs, tiles, self.region.results, strict=True):
                b.store(view, at, narrow_sum(b, y, r.type.dtype), limit=limit)
