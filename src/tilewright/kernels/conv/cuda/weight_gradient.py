"""Gradients of convolution weights as block programs: products over all pixels, whose K is cut into parts that fill the chip.

Such a gradient is a convolution of the input with the cotangent (`Conv.vjp`): its windows are as large as the image, its channels are the
batch, and its few results are the taps. For every tap it is a product of two matrices that lie [pixels, channels]; the rows of one of them
are gathered from where the tap sees them, and are zeros outside the image. Both are copied channels last where they are not. Images of
few channels take all taps as rows of one product. Zero-sized results run no program.
Hopper's tensor cores have a kernel of their own for most of them (`window_gradient.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....core.dims import Dim, bounds, product
from ....core.dtypes import bf16, compute_dtype, f16, f32, f64, i32, i64
from ....core.dtypes import bool_ as boolean
from ....core.target_spec import TargetSpec
from ....ir.graph import Node
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile
from ...cuda.kernel import forward
from ...cuda.tiled import aligned, fitting, flat
from ...launch import Buffer, Launch
from ...matmul.cuda.tiled import Config, Edges, Product
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch
from ...region import Operand, Region
from ...template import Reason, Template, from_memory, shaped_as_result
from .tiled import FEW, LARGEST

LEAST = 16  # pixels of a window, and four times as many as there are taps
STEP = 0.25  # microseconds that a step of K takes at least
RATE = {2: 450e6, 4: 150e6, 8: 30e6}  # operations a microsecond of an H200 by bytes of an element
SUMS = 3e6  # bytes a microsecond of sums that are written and read again
USUAL = 8  # images of a batch of unknown size


def is_weight_gradient(node: Node) -> bool:
    """Whether a convolution has windows much larger than its result."""
    op = node.op
    if not isinstance(op, ConvOp) or op.transposed:
        return False
    (many, _, *pixels), out = node.operands[1].shape, node.values[0].shape
    if not all(isinstance(d, int) and d > 0 for d in (many, *pixels, *out)):
        return False
    window, taps = (prod(d for d in v.shape[2:] if isinstance(d, int)) for v in (node.operands[1], node.values[0]))
    return window >= max(LEAST, 4 * taps)


class ConvWeightGradient(Template):
    key = "conv_weight_gradient"
    serves = (ConvOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if (why := from_memory(region)) is not None:
            return why
        x = region.node.operands[0]
        if not is_weight_gradient(region.node):
            return Reason("windows are not much larger than the result")
        if x.dtype not in (bf16, f16, f32, f64) or not 3 <= len(x.shape) <= 5:
            return Reason(f"needs floats over one to three axes, got {x.type}")
        if not all(isinstance(p, int) for pair in region.op(ConvOp).padding for p in pair):
            return Reason("padding must have known sizes")
        return shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        data, cotangent = (region.given(v) for v in region.node.operands)
        copied: list[Launch] = []
        if not few_channels(region.node) or not forward(*data.layout.strides):
            data, copied = innermost(f"{region.name}.pixels", data, target)
        cotangent, more = innermost(f"{region.name}.cotangent", cotangent, target, merged=True)
        return [*copied, *more, *GradientProduct(region, data, cotangent, target).launches()]


def few_channels(node: Node) -> bool:
    """Whether all taps of the input's channels are rows of one product, gathered element by element."""
    rows = node.values[0].shape[0]
    return isinstance(node.op, ConvOp) and node.op.groups == 1 and isinstance(rows, int) and rows < FEW


def innermost(name: str, o: Operand, target: TargetSpec, *, merged: bool = False) -> tuple[Operand, list[Launch]]:
    """The operand with its first axis, which are the channels, innermost in memory; `merged`: and all others as one axis."""
    shape, strides = o.layout.shape, o.layout.strides
    dense = all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(1, len(shape) - 1))
    if strides[0] == 1 and (dense or not merged) and forward(*strides):
        return o, []
    layout = Layout.contiguous((*shape[1:], shape[0])).permute((len(shape) - 1, *range(len(shape) - 1)))
    there = Operand(o.type, Buffer(name, "temp", o.type.nbytes), layout)
    return there, [copy_launch(name, o, there, target, "channels last for a gradient of weights")]


class GradientProduct(Product):
    """One kernel under construction: rows are channels of the input, columns those of the cotangent, K walks images and their pixels."""

    def __init__(self, region: Region, data: Operand, cotangent: Operand, target: TargetSpec) -> None:
        node = region.node
        assert isinstance(node.op, ConvOp)
        self.region, self.node, self.op, self.data, self.cotangent = region, node, node.op, data, cotangent
        op, out, pixels = node.op, node.values[0].shape, node.operands[1].shape[2:]
        known = [d for d in (*out, *pixels) if isinstance(d, int)]
        rows, self.each = known[0], known[1] // op.groups
        self.taps, self.pixels = known[2 : len(out)], known[len(out) :]
        self.few = few_channels(node)
        self.dtype, self.wide = data.type.dtype, compute_dtype(data.type.dtype)
        self.precision = "tf32" if self.dtype is f32 and target.has("tf32-conv") else None
        exact = "multiply-adds" if self.dtype in (f32, f64) else "tensor cores"
        self.unit = f"{'tf32' if self.precision else exact}, gathered pixels"
        self.items = node.operands[1].shape[1]
        self.rows, self.n, self.k = rows, self.each, self.items * prod(self.pixels)
        self.m = rows * (prod(self.taps) if self.few else 1)
        self.lead = [] if self.few else [op.groups, *self.taps]
        self.leaves = leaves_of_epilogue(region, node.values[0])
        self.ends = [self._matrix(o.layout.expand(out)) for o in (*region.results, *map(region.given, self.leaves))]
        largest = bounds(data.type.numel)[1] + max(1, prod(d for d in data.type.shape[2:] if isinstance(d, int)))
        self.offsets = i64 if largest >= LARGEST else i32
        self.config = self._choose(target)
        self._begin("conv_weight_gradient", region.name)

    def _matrix(self, lay: Layout) -> Layout:
        """A value [rows, groups * columns, *taps] as [groups, *taps, rows, columns]."""
        (rows, columns, *taps), spatial = lay.strides, lay.shape[2:]
        return Layout((self.op.groups, *spatial, lay.shape[0], self.each), (columns * self.each, *taps, rows, columns), lay.offset)

    def launches(self) -> list[Launch]:
        if not self.few:
            return super().launches()
        parts, rows = self.config.parts, prod(self.taps) * self.rows
        sums = Buffer(f"{self.region.name}.sums", "temp", parts * rows * self.each * self.wide.itemsize)
        first = self._product((sums, Layout.contiguous((parts, rows, self.each))))
        self.lead, self.m = [1, *self.taps], self.rows  # one result has no strides for taps and channels as one axis
        return [first, self._added(sums, Layout.contiguous((parts, 1, *self.taps, self.rows, self.each)))]

    def _choose(self, target: TargetSpec) -> Config:
        """Tiles as large as the matrices, K in as many parts as make the whole fastest by estimate."""
        item = self.dtype.itemsize
        assert isinstance(self.m, int) and isinstance(self.n, int)
        rows, columns = (max(16, min(128, 1 << (d - 1).bit_length())) for d in (self.m, self.n))
        if self.unit.startswith("multiply-adds"):
            rows, columns = min(rows, 64), min(columns, 64)
        depth = 128 // item if rows * columns >= 4096 else 64 // item
        warps = 8 if rows * columns > 8192 else max(1, min(4, rows * columns // 256))
        hopper = target.cpu == "sm_90a" and item == 2 and rows * columns >= 4096
        config = Config(rows, columns, depth, warps, 4, 4 if hopper else 0, 1 if warps == 8 else 2 if hopper else 4)
        config = replace(config, stages=fitting(4, (rows + columns) * depth * item * config.per_sm, target))
        tiles = -(-self.m // rows) * -(-self.n // columns) * product(self.lead)
        assert isinstance(tiles, int)
        images = self.items if isinstance(self.items, int) else USUAL
        steps, places, area = -(-images * prod(self.pixels) // depth), target.cores * config.per_sm, tiles * rows * columns
        step = max(STEP * (4 if self.few else 1), 2 * rows * columns * depth * places / RATE[item])  # elements one by one take longer

        def time(parts: int) -> float:
            return -(-tiles * parts // places) * (-(-steps // parts) + 3) * step + (3.0 + 8 * area * parts / SUMS if parts > 1 else 0.0)

        return replace(config, parts=min((p for p in (*range(1, 65), 96, 128, 192, 256, 384, 512) if p == 1 or steps >= 4 * p), key=time))

    def open(self) -> None:
        data, lay, b = self.data, self.cotangent.layout, self.call.b
        line = flat(data.layout)
        line = Layout((*line.shape, 1), (1, 1), line.offset)
        self.pixel_view = self.call.view("x", self.dtype, data.buffer, line)
        along = Layout(data.type.shape[1:], data.layout.strides[1:], data.layout.offset)
        self.vectors["x"] = 1 if self.few else aligned(along, self.rows)
        self.right = Layout((self.op.groups, self.k, self.each), (self.each, lay.strides[-1], 1), lay.offset)
        self.right_view = self.view("g", self.dtype, self.cotangent.buffer, self.right, None)
        self.extents = {"x": line, "g": self.right}
        self.steps = [self._step(f"xs{i}", s) for i, s in enumerate(data.layout.strides)]
        self.sizes = [d if isinstance(d, int) else b.from_index(self.call.word(f"size{i}", d), i32) for i, d in enumerate(data.type.shape)]
        self.count = self.items if isinstance(self.items, int) else self.call.word("items", self.items)

    def _step(self, name: str, stride: Dim) -> Tile | int:
        return stride if isinstance(stride, int) else self.call.b.from_index(self.call.word(name, stride), self.offsets)

    def tiles(self, z: list[Ix | int], row: Ix | int, column: Ix | int, k: Ix, edges: Edges, deep: Ix | int | None) -> tuple[Tile, Tile]:
        b, c = self.call.b, self.config
        group, taps = (0, []) if self.few else (z[0], z[1:])
        right = b.load(self.right_view, (group, k, column), (c.depth, c.columns), limit=(deep, edges[1]))
        return b.transpose(self._gathered(group, taps, row, k, edges[0], deep)), right

    def _gathered(self, group: Ix | int, taps: list[Ix | int], row: Ix | int, k: Ix, edge: Ix | int | None, deep: Ix | int | None) -> Tile:
        """Rows of channels [depth, rows] where a tap sees them at the pixels of a step; of few channels every row has a tap of its own."""
        b, c, op = self.call.b, self.config, self.op
        column = b.iota((c.depth, 1), 0, i32)
        item, *places = self._split(column + b.from_index(k, i32), self.pixels)
        inside = b.full((), 1, boolean) if deep is None else b.cmp("lt", column, b.from_index(deep, i32) if isinstance(deep, Ix) else deep)
        numbers: list[Tile]
        if self.few:
            own = b.iota((1, c.rows), 1, i32) + (b.from_index(row, i32) if isinstance(row, Ix) else row)
            inside = b.binary("and", inside, b.cmp("lt", own, prod(self.taps) * self.rows))
            tap, channel = self._split(own, [self.rows])
            _, *numbers = self._split(tap, self.taps)
        else:
            numbers = [b.from_index(t, i32) if isinstance(t, Ix) else b.full((), t, i32) for t in taps]
        item = item + b.from_index(group * self.count, i32) if isinstance(group, Ix) else item
        offset = b.cast(item, self.offsets) * self.steps[1]
        for a, (p, t) in enumerate(zip(places, numbers, strict=True)):
            low = op.padding[a][0]
            assert isinstance(low, int)
            place = p * op.dilation[a] + (t * op.stride[a] - low)
            inside = b.binary("and", inside, b.binary("and", b.cmp("ge", place, 0), b.cmp("lt", place, self.sizes[2 + a])))
            offset = offset + b.cast(place, self.offsets) * self.steps[2 + a]
        if self.few:
            offset = offset + b.cast(channel, self.offsets) * self.steps[0]
            return b.gather(self.pixel_view, (0, 0), 0, b.select(inside, offset, -1), masked=True)
        return b.gather(self.pixel_view, (0, row), 0, b.select(inside, offset, -1), run=c.rows, limit=edge, masked=True)

    def _split(self, x: Tile, sizes: list[int]) -> list[Tile]:
        """Numbers as coordinates, slowest first; the first is not bounded."""
        out = []
        for size in reversed(sizes):
            rest = self.call.b.binary("floordiv", x, size)
            out.append(x - rest * size)
            x = rest
        return [x, *reversed(out)]
