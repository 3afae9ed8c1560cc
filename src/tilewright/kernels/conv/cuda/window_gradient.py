"""Gradients of convolution weights on Hopper's tensor cores: a product over pixels, of the cotangent with windows that TMA gathers.

Serves f16 and bf16, one to three spatial axes of known size, any steps, dilation and groups. Rows are results, columns are taps and, inside
a tap, channels in blocks of 64, so that a tile has one or several taps and the cotangent is read once for them; K are the pixels of all
images, cut into parts that fill the chip. A second launch adds the sums of the parts in order. Of small groups a tile has several, of whose
products those of two groups are not read again. f32 (where tf32 is asked for) is two bf16, what it is rounded to and the rest: three
products, more exact than tf32, whose operands the tensor cores do not take in this order. Images of few channels are packed first, as for
the convolution itself (`hopper.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....core.dims import Dim, ceildiv
from ....core.dtypes import bf16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Graph
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops import functions as F
from ....ops.matmul.weight_gradient import WeightGradient
from ....tile.builder import Ix, Tile
from ....tile.ir import TileType
from ...call import Call
from ...cuda.kernel import TensorMap, Windows, identified
from ...launch import Buffer, Launch, Word
from ...matmul.cuda.epilogue import Sums
from ...matmul.cuda.tiled import Config, Summed
from ...pointwise.copies import copy_launch, fill_launch, pointwise_of
from ...region import Operand, Region, collapse
from ...template import Template, region_flops
from ..channels_last import channels_last, channels_last_memory
from .hopper import First, image_operand
from .kernels import WindowGradientKernel
from .weight_gradient import USUAL
from .windows import Windowed

BLOCK = 64  # channels, and pixels of a step
SHARED = 224 << 10
# tiles: rows and columns
TILES = ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256), (64, 192), (64, 128), (64, 64))
RATE = 5e6  # operations a microsecond of an SM
COPIES = 100e3  # bytes a microsecond that TMA brings an SM from L2
SUMS = 3e6  # bytes a microsecond of sums that are written and read again
MOST_PARTS = 132
TERMS = 3  # products of two halves: those of the smaller halves are less than is rounded off
MOST_ROWS = 128  # the most rows of several groups


class WindowGradient(Template):
    key = "window_gradient"
    serves = (WeightGradient,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        data, cotangent, at = *region.operands, windows_of(region)
        halves, dtype = list[Launch](), data.type.dtype if data.type.dtype.itemsize == 2 else bf16
        plain = region.op(WeightGradient).groups == 1 and len(at.taps) == 2
        first = First.of(at, data.type.shape[1], dtype) if plain else None
        if data.type.dtype is f32:
            made, data = in_halves(f"{region.name}.halves", data, target, packed=first is not None)
            more, cotangent = in_halves(f"{region.name}.cotangent_halves", cotangent, target)
            halves = [*made, *more]
        before, x = image_operand(region.name, data, target) if first is None else first.image(region.name, data)
        more, g = image_operand(f"{region.name}.cotangent", cotangent, target, dense=True)
        return [*halves, *before, *more, *Gradient(region, at, first, x, g, target).launches()]


def in_halves(name: str, x: Operand, target: TargetSpec, *, packed: bool = False) -> tuple[list[Launch], Operand]:
    """f32 [N, C, …] as bf16 [2 N, C, …]: what is left of the first N images after rounding are the others. `packed`: pixels are packed
    later, so they lie as they are."""
    launches: list[Launch] = []
    if x.layout.strides[1] != 1 and not packed:
        there = channels_last_memory(f"{name}.image", x.type)
        launches.append(copy_launch(f"{name}.pixels", x, there, target, "channels last for a gradient of weights"))
        x = there
    n, c, *sizes = x.type.shape
    wide = c if packed else ceildiv(c, 8) * 8
    type_ = TensorType(bf16, (2 * n, wide, *sizes))
    layout = Layout.contiguous(type_.shape) if packed else channels_last(type_.shape)
    whole = Operand(type_, Buffer(name, "temp", type_.nbytes), layout)
    if wide != c:
        launches.append(fill_launch(f"{name}.zero", 0.0, whole, target))
    order = (0, *range(2, len(sizes) + 2), 1)  # channels innermost, as they lie
    seen = x.layout.permute(order)
    source = replace(x, type=TensorType(f32, seen.shape), layout=seen)
    outs = [Operand(TensorType(bf16, seen.shape), whole.buffer, layout.slice(0, i * n, n).slice(1, 0, c).permute(order)) for i in (0, 1)]
    body = Graph("halves")
    value = body.input(source.type, "x")
    high = F.cast(value, bf16)
    near = F.cast(high, f32)
    rest = F.where(F.less(F.one("abs", near), float("inf")), F.sub(value, near), 0.0)
    body.outputs = [high, F.cast(rest, bf16)]
    (launch,) = pointwise_of(target).build(Region(name, body, [source], outs), target)
    return [*launches, launch], whole


def windows_of(region: Region) -> Windowed:
    """The windows of the convolution whose weights these are, over the part of the image that they see."""
    op, (x, g) = region.op(WeightGradient), region.node.operands
    more = 2 - len(op.kernel)

    def pair(values: Sequence[Dim], fill: int) -> tuple[int, ...]:
        return (fill,) * more + tuple(v for v in values if isinstance(v, int))

    taps, stride, dilation, before = pair(op.kernel, 1), pair(op.stride, 1), pair(op.dilation, 1), pair([lo for lo, _ in op.padding], 0)
    out, whole = pair(g.shape[2:], 1), pair(x.shape[2:], 1)
    each = zip(out, stride, dilation, taps, before, strict=True)
    ends = [(o - 1) * s + 1 + d * (t - 1) - lo for o, s, d, t, lo in each]  # the ends of what is seen
    image = tuple(max(1, min(size, end)) for size, end in zip(whole, ends, strict=True))
    after = tuple(end - size for end, size in zip(ends, image, strict=True))
    return Windowed(image, out, taps, stride, before, after, dilation)


class Gradient(Summed):
    """Two launches under construction: x is [batch, lines…, channels], g the cotangent [batch, lines…, results]."""

    def __init__(self, region: Region, at: Windowed, first: First | None, x: Operand, g: Operand, target: TargetSpec) -> None:
        self.region, self.node, self.first, self.x, self.g, self.target = region, region.node, first, x, g, target
        self.at = at if first is None else first.windows
        self.dtype, self.wide = x.type.dtype, f32
        self.op, (out, own, *_), self.batch = region.op(WeightGradient), region.node.values[0].shape, region.operands[0].type.shape[0]
        self.terms = TERMS if region.operands[0].type.dtype is f32 else 1
        groups, wide = self.op.groups, x.layout.shape[-1]
        assert isinstance(out, int) and isinstance(own, int) and isinstance(wide, int)
        self.each, self.own = out // groups, own  # results and channels of a group
        fits = (p for p in range(groups, 0, -1) if groups % p == 0 and p * own <= BLOCK and p * self.each <= MOST_ROWS)
        self.together = next(fits, 1)  # groups of a tile
        self.blocks, self.rows = groups // self.together, self.together * self.each
        self.held = wide if groups == 1 else self.together * own  # channels of a tile's tap
        self.inner = -(-self.held // BLOCK) * BLOCK  # columns of a tap
        self.across = prod(self.at.taps) * self.inner
        self.steps = ceildiv(self.batch * prod(self.at.out), BLOCK) * self.terms
        self.leaves = []
        self.tile, self.parts = self._choose(target.cores)
        self.config = Config(*self.tile, BLOCK, 4, 4, parts=self.parts)

    def _choose(self, cores: int) -> tuple[tuple[int, int], int]:
        """The tile and the number of parts with the shortest estimated time."""
        rows, steps = self.rows, -(-(self.batch if isinstance(self.batch, int) else USUAL) * prod(self.at.out) // BLOCK) * self.terms

        def time(item: tuple[tuple[int, int], int]) -> float:
            (bm, bn), parts = item
            tiles = -(-rows // bm) * -(-self.across // bn) * parts * self.blocks
            step = max(2 * bm * bn * BLOCK / RATE, (bm + bn) * 2 * BLOCK / COPIES)
            return -(-tiles // cores) * (-(-steps // parts) + 4) * step + 8 * rows * self.across * parts * self.blocks / SUMS

        parts = [p for p in range(1, MOST_PARTS + 1) if p == 1 or (steps >= 2 * p and -(-steps // -(-steps // p)) == p)]
        return min(((tile, p) for tile in TILES for p in parts), key=time)

    def launches(self) -> list[Launch]:
        sums = Buffer(f"{self.region.name}.sums", "temp", self.parts * self.blocks * self.rows * self.across * 4)
        return [self._windows(sums), *self._finished(sums)]

    def _windows(self, sums: Buffer) -> Launch:
        region, at, x, g, (bm, bn), parts, rows = self.region, self.at, self.x, self.g, self.tile, self.parts, self.rows
        call, item, pixels = Call("conv_window_gradient", f"{region.name}.windows"), self.dtype.itemsize, self.batch * prod(at.out)
        made, b, many = Sums.of(TileType((64, 32), f32)), call.b, parts * self.blocks
        places = [len(call._arguments)]
        out = call.view("sums", f32, sums, Layout.contiguous((many, rows, self.across)), write=True)
        store = TensorMap(places[0], f32, (self.across, rows, many), (self.across * 4, rows * self.across * 4), (32, 64, 1), 128)
        b.store(out, (Ix(b, made.batch), Ix(b, made.row), Ix(b, made.column)), Tile(b, made.acc))
        places.append(len(call._arguments))
        call.view("a", self.dtype, g.buffer, g.layout)
        pixel = g.layout.strides[-2] * item
        given = (g.layout.shape[-1], pixels, 2 if self.terms > 1 else 1)
        a_map = TensorMap(places[1], self.dtype, given, (pixel, pixel * pixels), (BLOCK, BLOCK, 1), 128)
        places.append(len(call._arguments))
        call.view("b", self.dtype, x.buffer, x.layout)
        seen = Windows(tuple(-p for p in at.before[::-1]), at.upper[::-1], at.stride[::-1])
        hops = tuple(s * item for s in x.layout.strides[-2::-1])
        sizes = (x.layout.shape[-1], *at.image[::-1], x.layout.shape[0])
        b_map = TensorMap(places[2], self.dtype, sizes, hops, (BLOCK, BLOCK), 128, windows=seen)
        down, beside = -(-rows // bm), -(-self.across // bn)
        call._arguments += [Word(down), Word(beside), Word(self.steps), Word(down * beside * many)]
        stages = min(8, (SHARED - 16384 * (bm // 64)) // ((bm + bn) * 128))
        note = f"wgmma {bm}x{bn}, {stages} stages, windows by TMA, pixels in {parts}"
        note += ", f32 as two bf16" if self.terms > 1 else ""
        note += f", {self.together} of {self.together * self.blocks} groups a tile" if self.op.groups > 1 else ""
        nbytes = x.type.nbytes + g.type.nbytes + many * rows * self.across * 4
        launch = call.finish(min(down * beside * many, self.target.cores), flops=region_flops(region), bytes_=nbytes, note=note)
        k, name = launch.kernel, self.dtype.name
        launch.kernel = identified(WindowGradientKernel(
            k.name, k.params, k.pid, k.body, acc=made.acc, row=made.row, column=made.column, batch=made.batch, bm=bm, bn=bn, slice=32,
            stages=stages, consumers=bm // 64, transposed_a=True, transposed_b=False, dtype=name, dtype_b=name, group=16,
            matrices=(1, 1),
            maps=(a_map, b_map, store), stored=(out.var,), image=at.out, channels=self.held, taps=at.taps, stride=at.stride,
            before=at.before, dilation=at.dilation, parts=parts, blocks=self.blocks, each=rows,
            apart=pixels if self.terms > 1 and isinstance(pixels, int) else 0))  # fmt: skip
        return launch

    def _finished(self, sums: Buffer) -> list[Launch]:
        """The launches that add the parts; of packed pixels, the lines of taps of each fold apart."""
        if self.first is None:
            return [self._added_taps(sums)]
        f = self.first
        return [self._added_taps(sums, i, f.fold, i * (f.pixel // f.fold)) for i in range(min(f.fold, f.at.taps[0]))]

    def _added_taps(self, buffer: Buffer, low: int = 0, fold: int = 1, offset: int = 0) -> Launch:
        """Taps of the first axis from `low` on, every `fold`-th: taps innermost where the result has them there, else channels."""
        result, taps, n = self.region.results[0], self.op.kernel, len(self.op.kernel)
        if self.first is None:
            steps = [prod(self.at.taps[i + 1 :]) * self.inner for i in range(len(self.at.taps))][-n:]
        else:
            steps = [self.inner, self.first.pixel][-n:]
        count = tuple(-(-(t - low) // fold) if i == 0 else t for i, t in enumerate(taps)) if n > 1 else taps
        one = self.rows * self.across
        read = (one, self.each * self.across + self.own, self.across, 1, *steps)
        o, c, *spots = (result.layout.slice(2, low, count[0], fold) if fold > 1 else result.layout).strides
        start = result.layout.offset + (low * result.layout.strides[2] if fold > 1 else 0)
        shape = (self.blocks, self.together, self.each, self.own, *count)
        write = (o * (self.each * self.together), o * self.each, o, c, *spots)
        sizes, (inner, outer) = collapse(count, [Layout(count, s[4:]) for s in (read, write)])
        apart, (far, near) = collapse(shape[:3], [Layout(shape[:3], s[:3]) for s in (read, write)])
        if not apart:
            apart, far, near = [*apart, 1], [*far, 0], [*near, 0]
        last = bool(outer) and outer[-1] == 1
        axes, ins, outs = [*sizes, *apart, self.own], [*inner, *far, 1], [*outer, *near, c]
        if last:  # the last tap innermost
            at = len(sizes) - 1
            axes, ins, outs = ([*v[:at], *v[at + 1 :], v[at]] for v in (axes, ins, outs))
        self.ends = [Layout(tuple(axes), tuple(outs), start)]
        *self.lead, self.m, self.n = axes
        columns = max(8, min(128, 1 << (int(axes[-1]) - 1).bit_length()))
        area = 512 if prod(int(d) for d in axes) >= 512 * 2 * self.target.cores else 128  # elements of a program
        layout = Layout((self.parts, *axes), (self.blocks * one, *ins), offset)
        return self._added(buffer, layout, f"{self.region.name}{f'.fold{low}' if low else ''}", (area // columns, columns))

    @property
    def nbytes(self) -> Dim:
        return self.x.type.nbytes + self.g.type.nbytes
