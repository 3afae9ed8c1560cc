"""Convolution as a block program: an implicit product over windows that asynchronous copies gather.

One to three spatial axes of any size, stride, dilation, groups, transposed; 16-bit floats and (as tf32, where that is asked for) f32 on
the tensor cores, other f32 and f64 by multiply-adds; values in any layout, channels last is the fast one. Rows of the product are output
pixels, columns the output channels of a group, K walks the taps and, inside a tap, the channels. A transposed convolution computes each
phase of its stride from the taps that reach it. Pixels outside the image and channels past the last are zeros; zero-sized results run no
program.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import bf16, compute_dtype, f16, f32, f64, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.tiled import aligned, fitting, tiled
from ...launch import Launch, Packed
from ...matmul.cuda.tiled import Config
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow
from ...template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .hopper import TAPS, packed_weights, weight_operand

FEW = 8  # channels
LARGEST = 1 << 31  # elements that 32-bit offsets reach


class TiledConv(Template):
    key = "tiled_conv"
    serves = (ConvOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if (why := from_memory(region)) is not None:
            return why
        x, w = node.operands
        if x.dtype not in (bf16, f16, f32, f64) or not 3 <= len(x.shape) <= 5:
            return Reason(f"needs floats over one to three axes, got {x.type}")
        padding = [p for pair in region.op(ConvOp).padding for p in pair]
        if not all(isinstance(d, int) and d > 0 for d in w.shape) or not all(isinstance(p, int) for p in padding):
            return Reason("weights and padding must have known sizes")
        return shaped_as_result(region)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return {} if few_channels(region) else packed_weights(region, TAPS)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        w = region.given(region.node.operands[1])
        if few_channels(region):
            return [ConvKernel(region, w, target).launch()]
        weights, w = weight_operand(region.name, w, target)
        return [*weights, ConvKernel(region, w, target).launch()]


def few_channels(region: Region) -> bool:
    """Whether K walks channels and taps as one, element by element: a step of whole channels would be mostly empty."""
    op, w = region.op(ConvOp), region.operand(region.node.operands[1])
    channels = region.node.operands[1].shape[1]
    plain = w is not None and w.layout.is_contiguous and w.packed.form == "plain"
    return plain and not op.transposed and op.groups == 1 and isinstance(channels, int) and channels < FEW


def choose(m: Dim, n: int, channels: int, others: int, item: int, target: TargetSpec, *, units: bool, taps: int = 1) -> Config:
    """The largest tile of which there are enough for the chip; K steps as deep as the channels allow. `units`: on the tensor cores."""
    cores = target.cores
    widest = max(16, min(128, 1 << (n - 1).bit_length()))
    depth = max(16, min(128 // item, 1 << (channels - 1).bit_length()))
    steps = -(-channels // depth) * taps
    if units and target.cpu == "sm_90a" and widest >= 64:
        if item == 2 and steps < 16:  # blocks that share an SM hide each other's start and end (measured)
            return Config(128, widest, depth, 4, 3, per_sm=2)
        for config in (Config(256, 64, depth, 8, 4, 4), Config(128, 128, depth, 8, 4, 4), Config(64, widest, depth, 4, 3, 4, 2)):
            tiles = ceildiv(m, config.rows) * -(-n // config.columns) * others
            if config.columns <= widest and (widest == 64 or config.rows < 256) and (not isinstance(tiles, int) or 4 * tiles >= 3 * cores):
                return config
        return config
    for rows, columns, warps in ((128, widest, 8), (128, min(widest, 64), 4), (64, min(widest, 64), 4), (64, min(widest, 32), 4)):
        tiles = ceildiv(m, rows) * -(-n // columns) * others
        if columns < widest // 2 or (warps == 8 and columns < 64):
            continue
        if not isinstance(tiles, int) or tiles >= cores or (rows, columns) == (64, min(widest, 32)):
            break
    return Config(rows, columns, depth, warps, 4 if item <= 2 else 3, per_sm=2 if warps == 4 else 1)


class ConvKernel:
    """One kernel under construction."""

    def __init__(self, region: Region, w: Operand, target: TargetSpec) -> None:
        node = region.node
        assert isinstance(node.op, ConvOp)
        self.region, self.node, self.op, self.w = region, node, node.op, w
        op = node.op
        found = region.given(node.operands[0])
        self.x = found
        self.batch, channels, *image = self.x.type.shape
        _, results, *out = node.values[0].shape
        assert isinstance(channels, int) and isinstance(results, int)
        taps = [d for d in node.operands[1].shape[2:] if isinstance(d, int)]
        self.image, self.out, self.taps = image, out, taps
        self.channels, self.n = channels // op.groups, results // op.groups
        self.few = few_channels(region)
        self.phased = op.transposed and all(d == 1 for d in op.dilation)
        self.steps = op.stride if self.phased else (1,) * len(out)  # output pixels of a program are so far apart
        self.pixels = [ceildiv(d, s) for d, s in zip(out, self.steps, strict=True)]  # pixels of a phase
        self.reach = [-(-t // s) for t, s in zip(taps, self.steps, strict=True)]  # taps of a phase
        self.dtype, self.wide = self.x.type.dtype, compute_dtype(self.x.type.dtype)
        self.m = self.batch * product(self.pixels)
        self.others = op.groups * prod(self.steps)
        deep = self.channels * prod(taps) if self.few else self.channels
        patches = self.few and tuple(op.stride) == tuple(taps)  # windows that do not overlap: PyTorch keeps their products exact
        self.precision = "tf32" if self.dtype is f32 and target.has("tf32-conv") and not patches else None
        units = self.dtype in (bf16, f16) or self.precision is not None
        count = 1 if self.few else prod(self.reach)
        self.config = choose(self.m, self.n, deep, self.others, self.dtype.itemsize, target, units=units, taps=count)
        c = self.config
        self.config = replace(c, stages=fitting(c.stages, (c.rows + c.columns) * max(16, c.depth * self.dtype.itemsize), target))
        largest = max(bounds(o.type.numel)[1] for o in (self.x, *region.results))
        self.offsets = i64 if largest >= LARGEST else i32
        self.call = Call("conv", region.name)
        self.vectors: dict[str, int] = {}

    # --- positions ----------------------------------------------------------------------------------------------------
    def _split(self, x: Tile, sizes: list[Ix | int]) -> list[Tile]:
        """A column of numbers as coordinates, slowest first; the first is not bounded."""
        b, out = self.call.b, []
        for size in reversed(sizes):
            size_tile = b.from_index(size, x.dtype) if isinstance(size, Ix) else b.full((), size, x.dtype)
            rest = b.binary("floordiv", x, size_tile)
            out.append(x - rest * size_tile)
            x = rest
        return [x, *reversed(out)]

    def _sizes(self, name: str, dims: list[Dim]) -> list[Ix | int]:
        return [1 if d == 1 else self.call.word(f"{name}{i}", d) for i, d in enumerate(dims)]

    def _flat(self, layout: Layout, item: Tile, places: list[Tile], name: str) -> Tile:
        """The offsets of pixels in a layout [N, C, spatial…], without the channel's part."""
        b = self.call.b
        total = b.full((), 0, self.offsets)
        for i, (stride, at) in enumerate(zip((layout.strides[0], *layout.strides[2:]), (item, *places), strict=True)):
            if stride == 0:
                continue
            step = stride if isinstance(stride, int) else b.from_index(self.call.word(f"{name}{i}", stride), self.offsets)
            total = total + b.cast(at, self.offsets) * step
        return total

    def _view(self, name: str, o: Operand, layout: Layout, inner: int, *, write: bool = False) -> View:
        """A view [offset, channel] of a value [N, C, spatial…]; `inner` is what rows of channels are a multiple of."""
        step = layout.strides[1]
        along = Layout((layout.shape[0], *layout.shape[2:]), (layout.strides[0], *layout.strides[2:]), layout.offset)
        self.vectors[name] = aligned(along, inner) if step == 1 else 1
        extent: Dim = 1
        for d, s in zip(layout.shape, layout.strides, strict=True):
            extent = extent + (d - 1) * s if not (isinstance(s, int) and s < 0) else extent
        flat = Layout((extent, 1), (1, step), layout.offset)
        return self.call.view(name, o.type.dtype, o.buffer, flat, write=write)

    # --- the kernel ---------------------------------------------------------------------------------------------------
    def launch(self) -> Launch:
        call, b, c, op = self.call, self.call.b, self.config, self.op
        groups, n = op.groups, self.n
        x = self._view("x", self.x, self.x.layout, self.channels if groups > 1 else 16)
        w_lay = Layout.contiguous((n, self.channels * prod(self.taps))) if self.few else self.w.layout
        w_lay = replace(w_lay, offset=self.w.layout.offset)
        w = call.view("w", self.w.type.dtype, self.w.buffer, w_lay)
        self.vectors["w"] = aligned(w_lay, None)
        mw = call.word("m", self.m)
        tiles_m, tiles_n = call.word("tiles_m", ceildiv(self.m, c.rows)), -(-n // c.columns)
        image, pixels = self._sizes("image", self.image), self._sizes("pixels", self.pixels)
        out_sizes = pixels if not self.phased else self._sizes("out", self.out)
        rest, tile_m = b.pid // tiles_m, b.pid % tiles_m
        rest, tile_n = rest // tiles_n, rest % tiles_n
        phase, group = rest // groups, rest % groups
        first, column = tile_m * c.rows, tile_n * c.columns
        row = b.iota((c.rows, 1), 0, i32) + b.from_index(first, i32)
        item, *at = self._split(row, pixels)
        inside = b.cmp("lt", row, b.from_index(mw, i32))
        phases: list[Ix | int] = []
        for s in reversed(self.steps):
            phases.insert(0, phase % s)
            phase = phase // s
        if self.phased:
            at = [q * s + b.from_index(r, i32) if isinstance(r, Ix) else q * s for q, s, r in zip(at, self.steps, phases, strict=True)]
            for p, size in zip(at, out_sizes, strict=True):
                inside = b.binary("and", inside, b.cmp("lt", p, b.from_index(size, i32) if isinstance(size, Ix) else size))
        make = self._few_channels if self.few else self._channels
        total = make(x, w, item, at, phases, image, inside, group, column)
        self._write(total, item, at, inside, group, column)
        grid = ceildiv(self.m, c.rows) * tiles_n * self.others
        if c.producers and min(self.vectors["x"], self.vectors["w"]) * self.dtype.itemsize < 16:
            c = replace(c, producers=0)  # elements one by one: all threads copy
        unit = "tensor cores" if self.dtype in (bf16, f16) else "tf32" if self.precision else "multiply-adds"
        note = f"{unit} {c.rows}x{c.columns}x{c.depth}, {c.stages} stages{' of producer warps' if c.producers else ''}, gathered windows"
        launch = call.finish(grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note)
        return tiled(
            launch, warps=c.warps, stages=c.stages, per_sm=c.per_sm, vectors=self.vectors, producers=c.producers, extents={"w": w_lay}
        )

    def _channels(self, x: View, w: View, item: Tile, at: list[Tile], phases: list[Ix | int], image: list[Ix | int], inside: Tile,
                  group: Ix | int, column: Ix | int) -> Tile:
        """The sums, K in steps of channels of one tap."""
        b, c, op, n = self.call.b, self.config, self.op, self.n
        blocks = -(-self.channels // c.depth)
        edge = self.channels % c.depth != 0
        affine = (self.phased or not op.transposed) and sum(self.reach) < 32
        rows = self._rows(item, at, phases, image, inside) if affine else None
        with b.loop(0, prod(self.reach) * blocks, 1, [b.full((c.rows, c.columns), 0.0, self.wide)]) as loop:
            tap, block = loop.index // blocks, loop.index % blocks
            moved: Ix | int = 0
            if rows is not None:
                offsets, moved, taps = self._tap(tap, phases, *rows)
            else:
                places, taps, seen = self._window(tap, at, phases, image, inside)
                offsets = b.select(seen, self._flat(self.x.layout, item, places, "xs"), -1)
            channel = block * c.depth
            left = self.channels - channel if edge else None
            pixel = b.gather(x, (moved, group * self.channels + channel), 0, offsets, run=c.depth, limit=left, masked=True)
            across = n - column if n % c.columns else None
            if op.transposed:
                limit = (left, across) if left is not None or across is not None else None
                weights = b.load(w, (group * self.channels + channel, taps, column), (c.depth, c.columns), limit=limit, axes=(0, 2))
            else:
                limit = (across, left) if left is not None or across is not None else None
                weights = b.transpose(b.load(w, (group * n + column, taps, channel), (c.columns, c.depth), limit=limit, axes=(0, 2)))
            loop.next(b.mma(pixel, weights, loop.carried[0], precision=self.precision))
        out: Tile = loop.results[0]
        return out

    def _few_channels(self, x: View, w: View, item: Tile, at: list[Tile], phases: list[Ix | int], image: list[Ix | int], inside: Tile,
                      group: Ix | int, column: Ix | int) -> Tile:
        """The sums, K over channels and their taps, an element at a time."""
        b, c, op, n = self.call.b, self.config, self.op, self.n
        deep, taps = self.channels * prod(self.taps), prod(self.taps)
        strides, lay = self.x.layout.strides, self.x.layout

        def step(name: str, stride: Dim) -> Tile | int:
            return stride if isinstance(stride, int) else b.from_index(self.call.word(name, stride), self.offsets)

        lows = [low for low, _ in op.padding if isinstance(low, int)]
        firsts = [p * s - low for p, s, low in zip(at, op.stride, lows, strict=True)]  # the first place of each row's window
        start = self._flat(lay, item, firsts, "xs")
        steps = [step(f"xt{a}", s) for a, s in enumerate(strides[2:])]
        plane = step("xc", strides[1])
        limits = [b.from_index(s, i32) if isinstance(s, Ix) else s for s in image]
        across = n - column if n % c.columns else None
        with b.loop(0, deep, c.depth, [b.full((c.rows, c.columns), 0.0, self.wide)]) as loop:
            k = b.iota((1, c.depth), 1, i32) + b.from_index(loop.index, i32)
            channel = b.binary("floordiv", k, taps)
            _, *numbers = self._split(k - channel * taps, list(self.taps))
            seen = b.binary("and", inside, b.cmp("lt", k, deep))
            offset = b.cast(channel, self.offsets) * plane
            for t, first, s, limit, dilation in zip(numbers, firsts, steps, limits, op.dilation, strict=True):
                place = first + t * dilation
                seen = b.binary("and", seen, b.binary("and", b.cmp("ge", place, 0), b.cmp("lt", place, limit)))
                offset = offset + b.cast(t * dilation, self.offsets) * s
            pixel = b.gather(x, (0, 0), 0, b.select(seen, start + offset, -1), masked=True)
            weights = b.load(w, (column, loop.index), (c.columns, c.depth), limit=(across, deep - loop.index))
            loop.next(b.mma(pixel, b.transpose(weights), loop.carried[0], precision=self.precision))
        out: Tile = loop.results[0]
        return out

    def _rows(self, item: Tile, at: list[Tile], phases: list[Ix | int], image: list[Ix | int], inside: Tile) -> tuple[Tile, Tile]:
        """What every row knows before the walk over its taps: the offset of its first tap (counted so that none is
        negative), and one bit for each tap of each axis that is inside the image."""
        b, op = self.call.b, self.op
        firsts: list[Tile] = []
        bits, place = b.full((self.config.rows, 1), 0, i32), 0
        for a, p in enumerate(at):
            low, size = op.padding[a][0], image[a]
            assert isinstance(low, int)
            limit = b.from_index(size, i32) if isinstance(size, Ix) else size
            if self.phased:
                first = b.binary("floordiv", p + b.from_index(low - self._rest(phases, a), i32), op.stride[a])
            else:
                first = p * op.stride[a]
            for t in range(self.reach[a]):
                here = first - t if self.phased else first + (t * op.dilation[a] - low)
                there = b.binary("and", inside, b.binary("and", b.cmp("ge", here, 0), b.cmp("lt", here, limit)))
                bits = b.binary("or", bits, b.select(there, b.full((), 1 << place + t, i32), 0))
            firsts.append(first)
            place += self.reach[a]
        return self._flat(self.x.layout, item, firsts, "xs"), bits

    def _rest(self, phases: list[Ix | int], axis: int) -> Ix | int:
        """The first tap of an axis that reaches the pixels of a phase."""
        low, stride = self.op.padding[axis][0], self.op.stride[axis]
        assert isinstance(low, int)
        return (phases[axis] + low % stride) % stride

    def _tap(self, tap: Ix | int, phases: list[Ix | int], first: Tile, bits: Tile) -> tuple[Tile, Ix | int, Ix | int]:
        """What one tap reads: the rows' offsets (negative outside), how far it is from the first tap, and its number among all weights."""
        b, op, layout = self.call.b, self.op, self.x.layout
        numbers: list[Ix | int] = []
        for r in reversed(self.reach):
            numbers.insert(0, tap % r)
            tap = tap // r
        moved: Ix | int = 0
        mask: Ix | int = 0
        flat: Ix | int = 0
        place = 0
        for a, t in enumerate(numbers):
            stride, low = layout.strides[2 + a], op.padding[a][0]
            assert isinstance(low, int)
            step = stride if isinstance(stride, int) else self.call.word(f"xt{a}", stride)
            bit = b.index_op("shl", 1 << place, t) if isinstance(t, Ix) else 1 << place + t
            if self.phased:
                number = t * op.stride[a] + self._rest(phases, a)
                moved = moved - t * step
                there = b.index_op("min", b.index_op("max", self.taps[a] - number, 0), 1)  # a phase may have fewer taps than others
                mask = mask + bit * there + (1 - there) * (1 << 30)
                number = b.minimum(number, self.taps[a] - 1)
            else:
                number = t
                moved = moved + (t * op.dilation[a] - low) * step
                mask = mask + bit
            flat = flat * self.taps[a] + number
            place += self.reach[a]
        wanted = b.from_index(mask, i32) if isinstance(mask, Ix) else b.full((), mask, i32)
        return b.select(b.cmp("eq", b.binary("and", bits, wanted), wanted), first, -1), moved, flat

    def _window(self, tap: Ix | int, at: list[Tile], phases: list[Ix | int], image: list[Ix | int],
                inside: Tile) -> tuple[list[Tile], Ix | int, Tile]:
        """Where a tap of each row lies in the image, the tap's number among all weights, and whether it is inside."""
        b, op = self.call.b, self.op
        numbers: list[Ix | int] = []
        for r in reversed(self.reach):
            numbers.insert(0, tap % r)
            tap = tap // r
        places: list[Tile] = []
        flat: Ix | int = 0
        for a, (t, p) in enumerate(zip(numbers, at, strict=True)):
            low = op.padding[a][0]
            assert isinstance(low, int)
            stride, dilation, size = op.stride[a], op.dilation[a], image[a]
            if self.phased:  # t counts the taps of the phase: those that leave no rest
                t = t * stride + (phases[a] + low % stride) % stride
                moved = low - t
                place = b.binary("floordiv", p + (b.from_index(moved, i32) if isinstance(moved, Ix) else moved), stride)
                inside = b.binary("and", inside, b.compare("lt", t, self.taps[a]))
                t = b.minimum(t, self.taps[a] - 1)
            elif op.transposed:
                moved = low - t * dilation
                place = p + (b.from_index(moved, i32) if isinstance(moved, Ix) else moved)
                whole = b.binary("floordiv", place, stride)
                inside = b.binary("and", inside, b.cmp("eq", whole * stride, place))
                place = whole
            else:
                moved = t * dilation - low
                place = p * stride + (b.from_index(moved, i32) if isinstance(moved, Ix) else moved)
            limit = b.from_index(size, i32) if isinstance(size, Ix) else size
            inside = b.binary("and", inside, b.binary("and", b.cmp("ge", place, 0), b.cmp("lt", place, limit)))
            places.append(place)
            flat = flat * self.taps[a] + t
        return places, flat, inside

    def _write(self, total: Tile, item: Tile, at: list[Tile], inside: Tile, group: Ix | int, column: Ix | int) -> None:
        b, c, n = self.call.b, self.config, self.n
        value = self.node.values[0]
        first = group * n + column
        limit = n - column if n % c.columns else None
        rows: dict[tuple[Dim, ...], Tile] = {}

        def offsets(layout: Layout, name: str) -> Tile:
            key = (layout.strides[0], *layout.strides[2:])
            if key not in rows:
                rows[key] = b.select(inside, self._flat(layout, item, at, name), -1)
            return rows[key]

        views: dict[Value, tuple[View, Layout]] = {}
        for i, v in enumerate(leaves_of_epilogue(self.region, value)):
            o = self.region.given(v)
            lay = o.layout.expand(value.shape)
            views[v] = self._view(f"e{i}", replace(o, layout=lay), lay, n), lay
        outs = [self._view(f"y{i}", r, r.layout, n, write=True) for i, r in enumerate(self.region.results)]

        def leaf(v: Value, o: Operand) -> Tile:
            view, lay = views[v]
            if all(s == 0 for i, s in enumerate(lay.strides) if i != 1):
                if lay.strides[1] == 0:
                    return b.load(view, (0, 0), (1, 1))
                return b.load(view, (0, first), (1, c.columns), limit=None if limit is None else (None, limit))
            where = offsets(lay, f"{view.var.name}s")
            if lay.strides[1] == 0:
                return b.gather(view, (0, 0), 0, where, run=1, masked=True)
            return b.gather(view, (0, first), 0, where, run=c.columns, limit=limit, masked=True)

        evaluate = evaluator(self.region)(b, self.region, leaf, {value: total})
        for v, view, r in zip(self.region.body.outputs, outs, self.region.results, strict=True):
            tile = narrow(b, b.broadcast(evaluate(v), (c.rows, c.columns)), r.type.dtype)
            b.scatter(view, (0, first), 0, offsets(r.layout, f"{view.var.name}s"), tile, limit=limit)

