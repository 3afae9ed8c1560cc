"""Convolution on Hopper's tensor cores: an implicit product over windows that TMA gathers (`target/cuda/conv/gemm.py`).

Serves f16, bf16 and (as tf32, where that is asked for) f32 convolutions over one to three spatial axes of known size, without groups or
with groups of whole steps of channels (128 bytes) and whole tiles of results (64), with the region's elementwise consumers as epilogue.
Activations lie channels last (`channels_last.py`); an operand that does not is copied first, and channels are padded to whole 16-byte
pieces; images of few channels have a way of their own (below). Constant weights are laid out [O, taps, channels] before the first
run. A convolution of one tap and step one is the plain product. Tiles past an edge read zeros and store nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ....core.dims import Dim, ceildiv, divisible, minimum, product
from ....core.dtypes import DType, bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import GemmKernel, TensorMap, Windows, forward, identified
from ...launch import Buffer, Launch, Packed, Word
from ...matmul.cuda.product_epilogue import Matrix, add_epilogue
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch, fill_launch
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, collapse
from ...template import Reason, Template, region_bytes, region_flops
from ..channels_last import channels_last_memory
from ..conv import ConvTemplate
from .kernels import ConvKernel
from .windows import Windowed

# Images of few channels for the tensor cores: the first convolution of a network.
# A packed pixel has the channels of `fold` neighbouring lines of all planes of a window, filled up with zeros to a power of two of 16 bytes
# at least, with the padding around the image. Neighbouring pixels are then 128 bytes in a row, one step of K, and windows that overlap are
# a stride. So a kernel of R lines of up to 8 taps becomes one of ⌈R/fold⌉ taps over 128 bytes of channels, whatever its planes are. Longer
# lines are several such steps, where the next begins at a window.
STEP = 128  # bytes of channels of a step of K
LONG = 4  # steps of a line of taps, at most
PROGRAMS = 256


@dataclass(frozen=True)
class First:
    """A convolution over packed pixels."""

    whole: Windowed
    channels: int
    fold: int
    pixel: int  # elements of a pixel
    dtype: DType

    @staticmethod
    def of(whole: Windowed, channels: Dim, dtype: DType, *, steps: int = 1) -> First | None:
        """The packing with the fewest steps of K; `steps`: those that a line of taps may take. Over two axes pixels have 16 bytes: those
        of more channels are copied by TMA as they are."""
        planes, small = whole.planes, piece(dtype)
        if not isinstance(channels, int) or channels < 1 or {*whole.dilation[-2:]} != {1} or whole.taps[-1] == 1:
            return None
        found = []
        for fold in (1, 2) if whole.stride[-2] % 2 == 0 else (1,):
            held = fold * (1 << (channels * planes - 1).bit_length())
            first = First(whole, channels, fold, max(small, held), dtype)
            if first.pixel > (small if len(whole.taps) == 2 else STEP // dtype.itemsize) or first.steps > steps:
                continue
            if first.steps == 1 or first.near % whole.stride[-1] == 0:
                found.append(first)
        return min(found, key=lambda f: (f.lines * f.steps, f.pixel), default=None)

    @property
    def at(self) -> Windowed:
        """Over lines and their pixels."""
        return self.whole.inner(2)

    @property
    def near(self) -> int:
        """Pixels of a step."""
        return STEP // self.dtype.itemsize // self.pixel

    @property
    def steps(self) -> int:
        """Steps of K of a line of taps."""
        return -(-self.at.taps[1] // self.near)

    @property
    def apart(self) -> int:
        """Windows from one step to the next."""
        return self.near // self.at.stride[1] if self.steps > 1 else 1

    @property
    def across(self) -> int:
        """Windows of a line."""
        return self.at.out[1] + (self.steps - 1) * self.apart

    @property
    def lines(self) -> int:
        """Lines of taps."""
        return -(-self.at.taps[0] // self.fold)

    @property
    def step(self) -> int:
        """Lines of packed pixels between windows."""
        return self.at.stride[0] // self.fold

    @property
    def size(self) -> tuple[int, int]:
        """Lines of packed pixels, and pixels of a line."""
        return (self.at.out[0] - 1) * self.step + self.lines, (self.across - 1) * self.at.stride[1] + self.near

    @property
    def windows(self) -> Windowed:
        """Windows of images that each have the planes of one window."""
        taps, dilation = (self.lines, self.steps), (1, self.apart)
        return Windowed((self.size[0], self.across), self.at.out, taps, (self.step, 1), (0, 0), (0, 0), dilation)

    @property
    def packed(self) -> Packed:
        return Packed("folded", self.fold, words=self.pixel, groups=self.near)

    def image(self, name: str, x: Operand) -> tuple[list[Launch], Operand]:
        """The launch that packs the pixels, and what it makes as [images, lines, windows, 128 bytes]."""
        images = x.type.shape[0] * prod(self.whole.out[:-2])
        height, width = self.size
        type_ = TensorType(x.type.dtype, (images, height, width, self.pixel))
        whole = Operand(type_, Buffer(f"{name}.image", "temp", type_.nbytes), Layout.contiguous(type_.shape))
        across = self.at.stride[1] * self.pixel
        seen = Layout((images, height, self.across, self.near * self.pixel), (height * width * self.pixel, width * self.pixel, across, 1))
        return [self._pack(name, x, whole)], Operand(TensorType(x.type.dtype, seen.shape), whole.buffer, seen)

    def _pack(self, name: str, x: Operand, whole: Operand) -> Launch:
        call = Call("pack_pixels", f"{name}.pixels")
        b = call.b
        small, (depth, height, width) = piece(self.dtype), (1, *self.whole.image)[-3:]
        source = call.view("x", x.type.dtype, x.buffer, _with_planes(x.layout))
        target = call.view("y", x.type.dtype, whole.buffer, whole.layout, write=True)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(whole.type.shape[:-1])]
        image, line, column = unravel(b, b.pid, dims)
        n: Ix | int = image
        z: Ix | int = 0
        if self.whole.planes > 1 or depth > 1:
            out, stride, before = self.whole.out[0], self.whole.stride[0], self.whole.before[0]
            n, z = image // out, image % out * stride - before

        def seen(at: Ix | int, size: int) -> Ix | int:
            return b.minimum(b.maximum(at + 1, 0), 1) * b.minimum(b.maximum(size - at, 0), 1) if isinstance(at, Ix) else 1

        px = column - self.at.before[1]
        across, places, each = seen(px, width), b.iota((small,), 0), self.pixel // self.fold
        pieces = [b.full((small,), 0.0, x.type.dtype) for _ in range(self.pixel // small)]
        for f in range(self.fold):
            y = line * self.fold + (f - self.at.before[0])
            inside = seen(y, height) * across
            for d in range(self.whole.planes):
                plane = z + d * self.whole.dilation[0] if isinstance(z, Ix) else z
                limit = seen(plane, depth) * inside
                for c in range(self.channels):
                    value = b.load(source, (n, c, plane, y, px), (1,), limit=(limit,))
                    which, spot = divmod(f * each + c * self.whole.planes + d, small)
                    pieces[which] = b.select(b.cmp("eq", places, spot), b.broadcast(value, (small,)), pieces[which])
        for i, part in enumerate(pieces):
            b.store(target, (image, line, column, i * small), part)
        note = f"pixels of {self.pixel * self.dtype.itemsize} bytes"
        launch = call.finish(product(whole.type.shape[:-1]), bytes_=x.type.nbytes + whole.type.nbytes, note=note)
        launch.kernel = on_threads(launch.kernel, 1, PROGRAMS, small)
        return launch

    def weights(self, name: str, w: Operand, target: TargetSpec) -> tuple[list[Launch], Operand]:
        """Weights as [O, lines and their steps, 128 bytes]."""
        type_ = TensorType(w.type.dtype, (w.type.shape[0], self.lines * self.steps, self.near * self.pixel))
        lay = Layout.contiguous(type_.shape)
        if w.packed.form == "folded":
            return [], Operand(type_, w.buffer, lay)
        whole = Operand(type_, Buffer(f"{name}.weights", "temp", type_.nbytes), lay)
        launches = [fill_launch(f"{name}.zero_weights", 0.0, whole, target)]
        source = _with_planes(w.layout)
        out, channels, planes, rows, across = source.shape
        assert isinstance(rows, int)
        for f in range(min(self.fold, rows)):
            lines = -(-(rows - f) // self.fold)
            shape = (out, channels, planes, lines, across)
            strides = (lay.strides[0], self.whole.planes, 1, self.steps * lay.strides[1], self.pixel)
            part = Layout(shape, strides, f * (self.pixel // self.fold))
            type_ = TensorType(w.type.dtype, shape)
            seen = Operand(type_, w.buffer, source.slice(3, f, lines, self.fold))
            launches.append(copy_launch(f"{name}.taps{f}", seen, Operand(type_, whole.buffer, part), target, "weights over packed pixels"))
        return launches, whole


def _with_planes(lay: Layout) -> Layout:
    """[N, C, W] or [N, C, H, W] as [N, C, 1, H, W]."""
    more = 5 - len(lay.shape)
    return Layout((*lay.shape[:2], *(1,) * more, *lay.shape[2:]), (*lay.strides[:2], *(0,) * more, *lay.strides[2:]), lay.offset)


BK = 64  # ... of 16 bits, and results of a tile with groups
PIECE = 8  # elements of 16 bytes, of 16 bits
TAPS = Packed("taps", PIECE)
SHARED = 224 << 10  # bytes of shared memory for a block
KEPT_BYTES = 80 << 10  # bytes of weights that stay there


@dataclass(frozen=True)
class Config:
    bm: int = 128
    bn: int = 128
    stages: int = 4
    group: int = 16
    per_sm: int = 1


# (configuration, time of one tile relative to 128×256: measured on an H200 over the shapes of ResNet-50)
CONFIGS: tuple[tuple[Config, float], ...] = (
    (Config(128, 256, 4), 1.0),
    (Config(128, 192, 4), 0.78),
    (Config(64, 256, 4), 0.57),
    (Config(128, 128, 5), 0.56),
    (Config(128, 64, 6), 0.45),
    (Config(64, 128, 6), 0.35),
    (Config(64, 64, 8), 0.28),
    (Config(128, 32, 8), 0.38),  # not measured
)


def choose(m: Dim, n: int, sms: int, groups: int = 1, *, narrow: bool = False) -> Config:
    """The configuration with the shortest estimated time: whole waves of tiles over the SMs. Tiles do not reach over groups; `narrow`: they
    may have fewer columns than a swizzled row of 16 bits."""
    each = n // groups
    fitting = [item for item in CONFIGS if (groups == 1 or each % item[0].bn == 0) and (narrow or item[0].bn >= BK)]
    if not isinstance(m, int):
        wide = (256, 128, 64) if groups == 1 else [bn for bn in (256, 128, 64) if each % bn == 0]
        return Config(128, 32 if narrow else next((bn for bn in wide if each >= bn), 64), 4)

    def cost(item: tuple[Config, float]) -> float:
        c, t = item
        return -(-(-(-m // c.bm) * -(-n // c.bn)) // sms) * t

    return min(fitting, key=cost)[0]


def piece(dtype: DType) -> int:
    """Elements of 16 bytes."""
    return 16 // dtype.itemsize


def windows_of(region: Region) -> Windowed | None:
    """The windows of a convolution; a transposed one with steps of one is a plain one, whose taps are reversed."""
    node, op = region.node, region.op(ConvOp)
    x, w = (v.type for v in node.operands)
    if op.transposed:
        w = w.with_shape((w.shape[1], w.shape[0], *w.shape[2:]))
        more = op.output_padding or (0,) * len(op.stride)
        reach = [d * (k - 1) for d, k in zip(op.dilation, w.shape[2:], strict=True) if isinstance(k, int)]
        pads = tuple((r - lo, r - hi + e) for r, (lo, hi), e in zip(reach, op.padding, more, strict=True))
        op = replace(op, transposed=False, padding=pads, output_padding=())
    return Windowed.of(op, x, w, node.values[0].type)


def plain_weights(region: Region) -> Operand:
    """The weights as [O, C, taps…] of a plain convolution."""
    w = region.given(region.node.operands[1])
    if not region.op(ConvOp).transposed:
        return w
    lay = w.layout.permute((1, 0, *range(2, len(w.layout.shape))))
    for axis in range(2, len(lay.shape)):
        lay = lay.flip(axis)
    return replace(w, type=TensorType(w.type.dtype, lay.shape), layout=lay)


def first_of(region: Region) -> First | None:
    at = windows_of(region)
    if at is None or region.op(ConvOp).groups > 1:
        return None
    x = region.node.operands[0]
    return First.of(at, x.shape[1], x.dtype, steps=LONG)


def packed_weights(region: Region, packed: Packed) -> dict[int, Packed]:
    """Constant weights, whole and as they are stored, laid out so before the first run; others are laid out by a launch."""
    value = region.node.operands[1]
    o = region.operand(value)
    if o is None or o.data is None or value not in region.body.inputs:
        return {}
    whole = o.type.shape == o.data.type.shape and o.layout.is_contiguous
    return {region.body.inputs.index(value): packed} if whole else {}


class HopperConv(Template):
    key = "hopper_conv"
    serves = (ConvOp,)
    fuses = True
    least = 40  # channels of 16 bits, of three axes: fewer leave more of a step empty than threads that gather lose
    dtypes: tuple[DType, ...] = (bf16, f16, f32)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        if any(v.dtype not in self.dtypes for v in node.operands) or (node.operands[0].dtype is f32 and not target.has("tf32-conv")):
            return Reason("needs bf16 or f16 operands, or f32 and precision tf32")
        if (other := ConvTemplate().matches(region, target)) is not None:
            return other
        op = region.op(ConvOp)
        if op.transposed and (op.groups > 1 or {*op.stride} != {1} or region.given(node.operands[1]).data is not None):
            return Reason("of transposed ones, those with steps of one, one group and weights of the call")
        if not divisible(node.values[0].shape[1], 2):
            return Reason("an even number of result channels")
        found = windows_of(region)
        if found is None or not found.fits:
            return Reason("up to three spatial axes of known size, windows of up to 128 (of three axes: 16)")
        groups, (channels, results) = region.op(ConvOp).groups, (node.operands[0].shape[1], node.values[0].shape[1])
        assert isinstance(channels, int) and isinstance(results, int)
        item = node.operands[0].dtype.itemsize
        if len(found.image) == 3 and not found.plain and channels * item < 2 * self.least and first_of(region) is None:
            return Reason(f"three spatial axes with {2 * self.least} bytes of channels: a step of K is {STEP} of one tap")
        if item == 4 and channels < piece(f32) and found.stride == found.taps:
            return Reason("patches of few channels, whose products PyTorch keeps exact")
        whole = channels // groups * item % STEP == 0 and results // groups % BK == 0
        return None if groups == 1 or whole else Reason(f"groups of multiples of {STEP} bytes of channels and {BK} results")

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        first = first_of(region)
        return {} if region.op(ConvOp).transposed else packed_weights(region, TAPS if first is None else first.packed)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, at = region.anchor, windows_of(region)
        assert node is not None and isinstance(node.op, ConvOp) and at is not None
        m = node.values[0].shape[0] * prod(at.out)
        x, w = region.given(node.operands[0]), plain_weights(region)
        before, results, leaves, after = matrices(region, node.values[0], target)
        first, along = first_of(region), False
        if first is not None:
            pixels, x = first.image(region.name, x)
            weights, w = first.weights(region.name, w, target)
            at = first.windows
        else:
            pixels, x = image_operand(region.name, x, target)
            along = at.plain and node.op.groups == 1 and pixels_of(x) is not None and along_results(w)
            weights, w = ([], w) if along else weight_operand(region.name, w, target)
        n = node.values[0].shape[1]
        assert isinstance(n, int)
        few = n <= BK // 2 and not along and not any(matrix.row != 0 for matrix in leaves.values())  # what is added comes in whole rows
        config = choose(m, n, target.cores, node.op.groups, narrow=few)
        launch = conv_launch(region, at, x, w, (m, n), results, leaves, config, target, along=along)
        return [*before, *pixels, *weights, launch, *after]


def pixels_of(x: Operand) -> Dim | None:
    """The stride of all pixels of an image [batch, lines…, channels] as one axis, or None."""
    batch, *sizes, _ = x.layout.shape
    strides = x.layout.strides
    lines = all(strides[i] == strides[i + 1] * sizes[i] for i in range(1, len(sizes)))
    return strides[-2] if lines and (strides[0] == strides[1] * sizes[0] or batch == 1) else None


def along_results(w: Operand) -> bool:
    """Whether weights of one tap, [O, C, 1…], lie along their results, as a product of 16-bit floats takes them, too."""
    lay = w.layout
    even = w.type.dtype.itemsize == 2 and all(divisible(s, PIECE) for s in (lay.offset, lay.strides[1])) and divisible(lay.shape[0], PIECE)
    return w.packed.form == "plain" and lay.strides[0] == 1 and lay.strides[1] != 1 and even and forward(*lay.strides[:2])


def matrix_of(o: Operand, layout: Layout) -> Matrix | None:
    """Something shaped like the result as a matrix [pixels, channels], or None where strides do not say that."""
    shape = layout.shape
    outer = (0, *range(2, len(shape)))
    pixels = tuple(shape[a] for a in outer)
    sizes, (strides,) = collapse(pixels, [Layout(pixels, tuple(layout.strides[a] for a in outer))])
    found = Matrix(o, strides[0] if strides else shape[1], layout.strides[1], layout.offset)
    return found if len(sizes) <= 1 and found.in_pairs else None


def matrices(region: Region, value: Value, target: TargetSpec) -> tuple[list[Launch], list[Matrix], dict[Value, Matrix], list[Launch]]:
    """Results and what the epilogue reads as matrices, with copies before and after for those that lie otherwise."""
    before: list[Launch] = []
    after: list[Launch] = []

    def elsewhere(o: Operand, name: str) -> Operand:
        return channels_last_memory(f"{region.name}.{name}", TensorType(o.type.dtype, value.shape))

    def sure(o: Operand) -> Matrix:
        found = matrix_of(o, o.layout)
        assert found is not None
        return found

    results: list[Matrix] = []
    for i, r in enumerate(region.results):
        found = matrix_of(r, r.layout)
        if found is None:
            there = elsewhere(r, f"result{i}")
            found = sure(there)
            after.append(copy_launch(f"{region.name}.out{i}", there, r, target, "a result that does not lie channels last"))
        results.append(found)
    leaves: dict[Value, Matrix] = {}
    for i, v in enumerate(leaves_of_epilogue(region, value)):
        o = region.given(v)
        lay = o.layout.expand(value.shape)
        found = matrix_of(o, lay)
        if found is None:
            there = elsewhere(o, f"leaf{i}")
            found = sure(there)
            seen = replace(o, type=there.type, layout=lay)
            before.append(copy_launch(f"{region.name}.in{i}", seen, there, target, "channels last for an epilogue"))
        leaves[v] = found
    return before, results, leaves, after


def image_operand(name: str, x: Operand, target: TargetSpec, *, dense: bool = False) -> tuple[list[Launch], Operand]:
    """x as [batch, (depth,) height, width, channels] in memory that TMA can read, copied there where it must be; `dense`: pixels are one
    axis."""
    spatial = zip(x.layout.shape[2:], x.layout.strides[2:], strict=True)  # what an axis of one steps over is nowhere
    lay = replace(x.layout, strides=(*x.layout.strides[:2], *(x.layout.strides[0] if d == 1 else s for d, s in spatial)))
    x = replace(x, layout=lay)
    outer = Layout((lay.shape[0], *lay.shape[2:]), (lay.strides[0], *lay.strides[2:]))
    gaps = dense and len(collapse(outer.shape, [outer])[0]) > 1
    whole_pieces = piece(x.type.dtype)
    even = all(divisible(s, whole_pieces) for s in (lay.offset, x.type.shape[1], lay.strides[0], *lay.strides[2:]))
    if lay.strides[1] == 1 and even and not gaps and 0 not in lay.strides and forward(*lay.strides):
        return [], _as_image(x)
    channels = x.type.shape[1]
    padded = ceildiv(channels, whole_pieces) * whole_pieces
    if not dense and isinstance(padded, int) and STEP < 2 * padded * x.type.dtype.itemsize < 2 * STEP:
        padded = STEP // x.type.dtype.itemsize  # a whole step: pixels of 80 bytes took three times what is predicted (measured)
    type_ = TensorType(x.type.dtype, (x.type.shape[0], padded, *x.type.shape[2:]))
    whole = channels_last_memory(f"{name}.image", type_)
    part = Operand(x.type, whole.buffer, whole.layout.slice(1, 0, channels))
    launches = [] if padded == channels else [fill_launch(f"{name}.zero", 0.0, whole, target)]
    return [*launches, copy_launch(f"{name}.pixels", x, part, target, "channels last for a convolution")], _as_image(whole)


def _as_image(x: Operand) -> Operand:
    """[N, C, W], [N, C, H, W] or [N, C, D, H, W] as [N, (D,) H, W, C]."""
    lay = x.layout
    if len(lay.shape) == 3:
        (n, c, w), (sn, sc, sw) = lay.shape, lay.strides
        lay = Layout((n, c, 1, w), (sn, sc, sn, sw), lay.offset)
    lay = lay.permute((0, *range(2, len(lay.shape)), 1))
    return replace(x, type=TensorType(x.type.dtype, lay.shape), layout=lay)


def weight_operand(name: str, w: Operand, target: TargetSpec, *, dense: bool = False) -> tuple[list[Launch], Operand]:
    """Weights as [O, taps, channels], channels padded to whole pieces; as they lie where that is so (and, with `dense`, without gaps)."""
    out, channels, *kernel = w.type.shape
    taps: Dim = 1
    for d in kernel:
        taps = taps * d
    padded = ceildiv(channels, PIECE) * PIECE
    type_ = TensorType(w.type.dtype, (out, taps, padded))
    if w.packed.form == "taps":
        return [], Operand(type_, w.buffer, Layout.contiguous(type_.shape))
    lay = w.layout
    sizes, (steps,) = collapse(tuple(kernel), [Layout(tuple(kernel), lay.strides[2:])])
    seen = Layout(type_.shape, (lay.strides[0], steps[0] if steps else padded, 1), lay.offset)
    even = all(divisible(s, piece(w.type.dtype)) for s in (lay.offset, *seen.strides[:2])) and forward(*seen.strides)
    if padded == channels and lay.strides[1] == 1 and len(sizes) <= 1 and even and (seen.is_contiguous or not dense):
        return [], Operand(type_, w.buffer, seen)
    whole = Operand(type_, Buffer(f"{name}.weights", "temp", type_.nbytes), Layout.contiguous(type_.shape))
    spread = Layout.contiguous((out, *kernel, padded)).permute((0, len(kernel) + 1, *range(1, len(kernel) + 1))).slice(1, 0, channels)
    launches = [] if padded == channels else [fill_launch(f"{name}.zero_weights", 0.0, whole, target)]
    copy = copy_launch(f"{name}.taps", w, Operand(w.type, whole.buffer, spread), target, "weights in the order of a convolution's taps")
    return [*launches, copy], whole


def kept_steps(depth: Dim, n: int, config: Config) -> tuple[int, int]:
    """Steps of weights that stay in shared memory, and stages of the ring: all or none, and what room there is for windows."""
    if not isinstance(depth, int) or n > config.bn or config.per_sm > 1:
        return 0, config.stages
    room = SHARED - depth * config.bn * STEP - config.bm * 256
    stages = min(12, room // (config.bm * STEP))
    return (depth, stages) if depth * config.bn * STEP <= KEPT_BYTES and stages >= 4 else (0, config.stages)


def conv_launch(region: Region, at: Windowed, x: Operand, w: Operand, size: tuple[Dim, int], results: list[Matrix],
                leaves: dict[Value, Matrix], config: Config, target: TargetSpec, *, along: bool = False) -> Launch:
    """`along`: weights lie along their results."""
    node = region.node
    assert isinstance(node.op, ConvOp)
    groups = node.op.groups
    call = Call("conv_gemm", region.name)
    m, n = size
    epilogue = add_epilogue(call, region, node.values[0], size, results, leaves, config.bm, config.bn)
    batch, *sizes, channels = x.layout.shape
    assert isinstance(channels, int)
    strides, item, rounded = x.layout.strides, x.type.dtype.itemsize, x.type.dtype is f32
    step = STEP // item
    word = len(call._arguments)
    call.view("a", x.type.dtype, x.buffer, x.layout)
    flat = at.plain and groups == 1 and pixels_of(x) is not None
    if flat:
        pixel = strides[-2] * item
        a_map = TensorMap(word, x.type.dtype, (channels, m, 1), (pixel, pixel * m), (step, config.bm, 1), 128, rounded)
    else:
        seen = Windows(tuple(-p for p in at.before[::-1]), at.upper[::-1], at.stride[::-1])
        hops = tuple(s * item for s in strides[-2::-1])
        a_map = TensorMap(word, x.type.dtype, (channels, *sizes[::-1], batch), hops, (step, config.bm), 128, rounded, windows=seen)
    word = len(call._arguments)
    call.view("b", w.type.dtype, w.buffer, w.layout)
    taps, own = prod(at.taps), channels // groups
    if along:
        deep, hop = w.layout.shape[1], w.layout.strides[1] * 2  # fewer than `own` where the image is padded: no memory lies behind them
        b_map = TensorMap(word, w.type.dtype, (n, deep, 1), (hop, hop * deep), (BK, BK, 1), 128)
    else:
        steps = (w.layout.strides[0] * item, w.layout.strides[1] * item)
        b_map = TensorMap(word, w.type.dtype, (minimum(own, w.layout.shape[2]), n, taps), steps, (step, config.bn, 1), 128, rounded)
    rows, columns = ceildiv(m, config.bm), ceildiv(n, config.bn)
    depth = taps * ceildiv(own, step)
    call._arguments += [Word(rows), Word(columns), Word(depth), Word(rows * columns)]
    kept, stages = kept_steps(depth, n, config) if not along else (0, config.stages)
    way = "a product of pixels" if flat else "windows by TMA"
    way += f", {groups} groups" if groups > 1 else ""
    note = f"wgmma {config.bm}x{config.bn}{' tf32' if rounded else ''}, {stages} stages, {way}{', weights kept' if kept else ''}"
    grid = minimum(rows * columns, target.cores * config.per_sm)
    launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    k = launch.kernel
    kind: type[GemmKernel] = GemmKernel
    more: dict[str, Any] = {}
    if not flat:
        kind = ConvKernel
        more = {"image": at.out, "channels": own, "taps": at.taps, "stride": at.stride, "before": at.before, "dilation": at.dilation,
                "each": n // groups if groups > 1 else 0}  # fmt: skip
    dtype = x.type.dtype.name
    launch.kernel = identified(kind(
        k.name, k.params, k.pid, k.body, acc=epilogue.acc, row=epilogue.row, column=epilogue.column, batch=epilogue.batch, bm=config.bm,
        bn=config.bn, slice=epilogue.width, stages=stages, consumers=config.bm // 64, dtype=dtype, dtype_b=dtype, group=config.group,
        maps=(a_map, b_map, *epilogue.maps), stored=epilogue.stored, added=epilogue.added, per_sm=config.per_sm,
        kept=kept, transposed_b=not along, **more))  # fmt: skip
    return launch
