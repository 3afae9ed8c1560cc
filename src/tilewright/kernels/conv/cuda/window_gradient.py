"""Gradients of convolution weights on Hopper's tensor cores: a product over pixels, of the cotangent with windows that TMA gathers.

Serves f16 and bf16, one to three spatial axes of known size, any steps and dilation, no groups. Rows are results, columns are taps and, inside
a tap, channels in blocks of 64, so that a tile has one or several taps and the cotangent is read once for them; K are the pixels of all images,
cut into parts that fill the chip. The sums of the parts are added in order by a second launch, which has the region's elementwise consumers.
Images of few channels are packed first, as for the convolution itself (`hopper.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....core.dims import Dim, ceildiv, minimum, product
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile
from ....tile.ir import TileType
from ...call import Call
from ...cuda.kernel import TensorMap, Windows, identified
from ...launch import Buffer, Launch, Word
from ...matmul.cuda.epilogue import Sums
from ...matmul.cuda.tiled import Config, Summed
from ...matmul.tiling import leaves_of_epilogue
from ...region import Operand, Region, collapse
from ...template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .hopper import First, image_operand
from .kernels import WindowGradientKernel
from .weight_gradient import USUAL, is_weight_gradient
from .windows import Windowed

BLOCK = 64  # channels, and pixels of a step
SHARED = 224 << 10
# tiles: rows and columns
TILES = ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256), (64, 192), (64, 128), (64, 64))
RATE = 5e6  # operations a microsecond of an SM
COPIES = 45e3  # bytes a microsecond that TMA brings an SM from L2
SUMS = 3e6  # bytes a microsecond of sums that are written and read again
MOST_PARTS = 132


class WindowGradient(Template):
    key = "window_gradient"
    serves = (ConvOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        if (why := from_memory(region)) is not None:
            return why
        node = region.node
        if not is_weight_gradient(node) or region.op(ConvOp).groups != 1:
            return Reason("gradients of weights without groups")
        if any(v.dtype not in (bf16, f16) for v in node.operands) or not 3 <= len(node.operands[0].shape) <= 5:
            return Reason("16-bit floats over one to three axes")
        at = windows_of(region)
        if at is None or not at.fits:
            return Reason("windows that a tensor map can say")
        return shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        data, cotangent = (channels_second(region.given(v)) for v in region.node.operands)
        at = windows_of(region)
        assert at is not None
        first = First.of(at, data.type.shape[1], data.type.dtype)
        before, x = image_operand(region.name, data, target) if first is None else first.image(region.name, data)
        more, g = image_operand(f"{region.name}.cotangent", cotangent, target, dense=True)
        return [*before, *more, *Gradient(region, at, first, x, g, target).launches()]


def windows_of(region: Region) -> Windowed | None:
    """The windows of the convolution whose weights these are."""
    op, (x, g) = region.op(ConvOp), (v.type for v in region.node.operands)
    plain = replace(op, stride=op.dilation, dilation=op.stride)
    found = Windowed.of(plain, x, region.node.values[0].type, g)
    if found is None:
        return None
    reach = [d * (t - 1) for d, t in zip(found.dilation, found.taps, strict=True)]
    ends = [(o - 1) * s + 1 + r for o, s, r in zip(found.out, found.stride, reach, strict=True)]  # of what is read, padding included
    after = tuple(e - d - b for e, d, b in zip(ends, found.image, found.before, strict=True))
    return replace(found, after=after)


def channels_second(o: Operand) -> Operand:
    """[channels, batch, …] as [batch, channels, …]."""
    lay = o.layout.permute((1, 0, *range(2, len(o.layout.shape))))
    return replace(o, type=TensorType(o.type.dtype, lay.shape), layout=lay)


class Gradient(Summed):
    """Two launches under construction: x is [batch, lines…, channels], g the cotangent [batch, lines…, results]."""

    def __init__(self, region: Region, at: Windowed, first: First | None, x: Operand, g: Operand, target: TargetSpec) -> None:
        self.region, self.node, self.first, self.x, self.g, self.target = region, region.node, first, x, g, target
        self.at = at if first is None else first.windows
        self.dtype, self.wide = x.type.dtype, f32
        (self.channels, self.results, *taps), (self.batch, *_) = region.node.values[0].shape, g.layout.shape
        self.taps = [t for t in taps if isinstance(t, int)]
        inner = x.layout.shape[-1]
        assert isinstance(inner, int) and isinstance(self.results, int)
        self.inner = -(-inner // BLOCK) * BLOCK  # columns of a tap
        self.across = prod(self.at.taps) * self.inner
        self.steps = ceildiv(self.batch * prod(self.at.out), BLOCK)
        self.leaves = leaves_of_epilogue(region, self.node.values[0])
        self.tile, self.parts = self._choose(target.cores)
        self.config = Config(*self.tile, BLOCK, 4, 4, parts=self.parts)

    def _choose(self, cores: int) -> tuple[tuple[int, int], int]:
        """The tile and the number of parts with the shortest estimated time."""
        rows = self.results
        assert isinstance(rows, int)
        steps = -(-(self.batch if isinstance(self.batch, int) else USUAL) * prod(self.at.out) // BLOCK)

        def time(item: tuple[tuple[int, int], int]) -> float:
            (bm, bn), parts = item
            tiles = -(-rows // bm) * -(-self.across // bn) * parts
            step = max(2 * bm * bn * BLOCK / RATE, (bm + bn) * 2 * BLOCK / COPIES)
            return -(-tiles // cores) * (-(-steps // parts) + 4) * step + 8 * rows * self.across * parts / SUMS

        found = [(tile, p) for tile in TILES for p in range(1, MOST_PARTS + 1) if p == 1 or (steps >= 2 * p and -(-steps // -(-steps // p)) == p)]
        return min(found, key=time)

    def launches(self) -> list[Launch]:
        shape = (self.parts, self.results, self.across)
        sums = Buffer(f"{self.region.name}.sums", "temp", product(shape) * 4)
        return [self._windows(sums), *self._finished(sums)]

    def _windows(self, sums: Buffer) -> Launch:
        region, at, x, g, (bm, bn), parts = self.region, self.at, self.x, self.g, self.tile, self.parts
        call = Call("window_gradient", f"{region.name}.windows")
        rows, item = self.results, self.dtype.itemsize
        made = Sums.of(TileType((64, 32), f32))
        pixels = self.batch * prod(at.out)
        places = [len(call._arguments)]
        out = call.view("sums", f32, sums, Layout.contiguous((parts, rows, self.across)), write=True)
        store = TensorMap(places[0], f32, (self.across, rows, parts), (self.across * 4, rows * self.across * 4), (32, 64, 1), 128)
        b = call.b
        b.store(out, (Ix(b, made.batch), Ix(b, made.row), Ix(b, made.column)), Tile(b, made.acc))
        places.append(len(call._arguments))
        call.view("a", self.dtype, g.buffer, g.layout)
        pixel = g.layout.strides[-2] * item
        a_map = TensorMap(places[1], self.dtype, (g.layout.shape[-1], pixels, 1), (pixel, pixel * pixels), (BLOCK, BLOCK, 1), 128)
        places.append(len(call._arguments))
        call.view("b", self.dtype, x.buffer, x.layout)
        batch, *sizes, inner = x.layout.shape
        seen = Windows(tuple(-p for p in at.before[::-1]), at.upper[::-1], at.stride[::-1])
        hops = tuple(s * item for s in x.layout.strides[-2::-1])
        b_map = TensorMap(places[2], self.dtype, (inner, *sizes[::-1], batch), hops, (BLOCK, BLOCK), 128, windows=seen)
        down, beside = ceildiv(rows, bm), -(-self.across // bn)
        call._arguments += [Word(down), Word(beside), Word(self.steps), Word(down * beside * parts)]
        stages = min(8, (SHARED - 16384 * (bm // 64)) // ((bm + bn) * 128))
        note = f"wgmma {bm}x{bn}, {stages} stages, windows by TMA, pixels in {parts}"
        nbytes = x.type.nbytes + g.type.nbytes + product((parts, rows, self.across)) * 4
        launch = call.finish(minimum(down * beside * parts, self.target.cores), flops=region_flops(region), bytes_=nbytes, note=note)
        k, name = launch.kernel, self.dtype.name
        launch.kernel = identified(WindowGradientKernel(
            k.name, k.params, k.pid, k.body, acc=made.acc, row=made.row, column=made.column, batch=made.batch, bm=bm, bn=bn, slice=32,
            stages=stages, consumers=bm // 64, transposed_a=True, transposed_b=False, dtype=name, dtype_b=name, group=16, alone=(True, True),
            maps=(a_map, b_map, store), stored=(out.var,), image=at.out, channels=inner, taps=at.taps, stride=at.stride,
            before=at.before, dilation=at.dilation, parts=parts))  # fmt: skip
        return launch

    def _finished(self, sums: Buffer) -> list[Launch]:
        """Of packed pixels, the lines of taps of each fold apart."""
        if self.first is None:
            return [self._added_taps(sums, 0, 1, 0, 1)]
        f = self.first
        return [self._added_taps(sums, i, f.fold, i * (f.pixel // f.fold), f.pixel) for i in range(min(f.fold, f.at.taps[0]))]

    def _added_taps(self, buffer: Buffer, low: int, fold: int, offset: int, pixel: int) -> Launch:
        """Taps of the first axis from `low` on, every `fold`-th: taps innermost where the results have them there, else channels."""
        value, rows, across = self.node.values[0], self.results, self.across
        taps = self.taps
        if self.first is None:
            steps = [prod(self.at.taps[i + 1 :]) * self.inner for i in range(len(self.at.taps))][-len(taps) :]
        else:
            steps = [self.inner, pixel][-len(taps) :]
        count = [-(-(t - (low if i == 0 and len(taps) > 1 else 0)) // (fold if i == 0 and len(taps) > 1 else 1)) for i, t in enumerate(taps)]
        parts = Layout((self.parts, rows, self.channels, *count), (rows * across, across, 1, *steps), offset)

        def seen(lay: Layout) -> Layout:
            """[C, O, taps…] as [O, C, those taps…]."""
            lay = lay.expand(value.shape).permute((1, 0, *range(2, len(lay.shape))))
            return lay.slice(2, low, count[0], fold) if fold > 1 and len(taps) > 1 else lay

        ends = [seen(o.layout) for o in (*self.region.results, *map(self.region.given, self.leaves))]
        whole = Layout(parts.shape[1:], parts.strides[1:], parts.offset)
        sizes, strides = collapse(tuple(count), [Layout(tuple(count), lay.strides[2:]) for lay in (whole, *ends)])
        if not sizes:
            sizes, strides = [1], [[0] for _ in (whole, *ends)]
        inside = all(s[-1] == 1 for s in strides[1 : 1 + len(self.region.results)])
        last = sizes[-1] if inside else self.channels
        assert isinstance(last, int)

        def turned(lay: Layout, own: list[Dim]) -> Layout:
            o, c = lay.strides[:2]
            if inside:
                return Layout((*sizes[:-1], rows, self.channels, sizes[-1]), (*own[:-1], o, c, own[-1]), lay.offset)
            return Layout((*sizes, rows, self.channels), (*own, o, c), lay.offset)

        self.ends = [turned(lay, own) for lay, own in zip(ends, strides[1:], strict=True)]
        first = turned(whole, strides[0])
        self.lead, self.m, self.n = [*first.shape[:-2]], first.shape[-2], first.shape[-1]
        columns = max(8, min(128, 1 << (last - 1).bit_length()))
        area = 512 if rows * self.channels * prod(taps) >= 512 * 2 * self.target.cores else 128  # elements of a program
        name = f"{self.region.name}{f'.fold{low}' if low else ''}"
        return self._added(buffer, Layout((self.parts, *first.shape), (rows * across, *first.strides), first.offset), name, (area // columns, columns))

    @property
    def nbytes(self) -> Dim:
        return region_bytes(self.region) - self.region.results[0].type.nbytes
