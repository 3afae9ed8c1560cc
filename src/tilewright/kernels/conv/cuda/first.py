"""Images of few channels for the tensor cores: the first convolution of a network.

Pixels are packed eight elements (16 bytes) each: the channels of `fold` neighbouring lines, filled up with zeros, with the padding around
the image. Eight neighbouring pixels are then 64 elements in a row, one step of K, and windows that overlap are a stride. So a kernel of R
lines of up to 8 taps becomes one of ⌈R/fold⌉ taps over 64 channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....core.dims import Dim, product
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ...call import Call
from ...cuda.groups import on_threads
from ...launch import Buffer, Launch, Packed
from ...pointwise.copies import copy_launch, fill_launch
from ...pointwise.pointwise import unravel
from ...region import Operand
from .windows import Windowed

ACROSS = 8  # pixels of a step
PIXEL = 8  # elements of a pixel
PROGRAMS = 256


@dataclass(frozen=True)
class First:
    """A convolution over packed pixels."""

    at: Windowed
    channels: int
    fold: int

    @staticmethod
    def of(at: Windowed, channels: Dim) -> First | None:
        if not isinstance(channels, int) or not 1 <= channels <= PIXEL or at.dilation != (1, 1) or not 1 < at.taps[1] <= ACROSS:
            return None
        return First(at, channels, 2 if at.stride[0] == 2 and 2 * channels <= PIXEL else 1)

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
        return (self.at.out[0] - 1) * self.step + self.lines, (self.at.out[1] - 1) * self.at.stride[1] + ACROSS

    @property
    def windows(self) -> Windowed:
        height, width = self.size[0], self.at.out[1]
        return Windowed((height, width), self.at.out, (self.lines, 1), (self.step, 1), (0, 0), (0, 0), (1, 1))

    @property
    def packed(self) -> Packed:
        return Packed("folded", self.fold)

    def image(self, name: str, x: Operand) -> tuple[list[Launch], Operand]:
        """The launch that packs the pixels, and what it makes as [batch, lines, windows, 64]."""
        batch = x.type.shape[0]
        height, width = self.size
        type_ = TensorType(x.type.dtype, (batch, height, width, PIXEL))
        whole = Operand(type_, Buffer(f"{name}.image", "temp", type_.nbytes), Layout.contiguous(type_.shape))
        across = self.at.stride[1] * PIXEL
        seen = Layout((batch, height, self.at.out[1], ACROSS * PIXEL), (height * width * PIXEL, width * PIXEL, across, 1))
        return [self._pack(name, x, whole)], Operand(TensorType(x.type.dtype, seen.shape), whole.buffer, seen)

    def _pack(self, name: str, x: Operand, whole: Operand) -> Launch:
        call = Call("pack_pixels", f"{name}.pixels")
        b = call.b
        lay = x.layout
        if len(lay.shape) == 3:
            lay = Layout((*lay.shape[:2], 1, lay.shape[2]), (*lay.strides[:2], 0, lay.strides[2]), lay.offset)
        source = call.view("x", x.type.dtype, x.buffer, lay)
        target = call.view("y", x.type.dtype, whole.buffer, whole.layout, write=True)
        dims = [call.word(f"d{i}", d) for i, d in enumerate(whole.type.shape[:-1])]
        n, line, column = unravel(b, b.pid, dims)
        height, width = self.at.image
        px = column - self.at.before[1]
        across = b.minimum(b.maximum(px + 1, 0), 1) * b.minimum(b.maximum(width - px, 0), 1)
        places = b.iota((PIXEL,), 0)
        pixel = b.full((PIXEL,), 0.0, x.type.dtype)
        for f in range(self.fold):
            y = line * self.fold + (f - self.at.before[0])
            inside = b.minimum(b.maximum(y + 1, 0), 1) * b.minimum(b.maximum(height - y, 0), 1) * across
            for c in range(self.channels):
                value = b.load(source, (n, c, y, px), (1,), limit=(inside,))
                pixel = b.select(b.cmp("eq", places, f * (PIXEL // self.fold) + c), b.broadcast(value, (PIXEL,)), pixel)
        b.store(target, (n, line, column, 0), pixel)
        launch = call.finish(product(whole.type.shape[:-1]), bytes_=x.type.nbytes + whole.type.nbytes, note="pixels of 16 bytes")
        launch.kernel = on_threads(launch.kernel, 1, PROGRAMS, PIXEL)
        return launch

    def weights(self, name: str, w: Operand, target: TargetSpec) -> tuple[list[Launch], Operand]:
        """Weights as [O, lines, 64]."""
        out, channels, *kernel = w.type.shape
        type_ = TensorType(w.type.dtype, (out, self.lines, ACROSS * PIXEL))
        lay = Layout.contiguous(type_.shape)
        if w.packed.form == "folded":
            return [], Operand(type_, w.buffer, lay)
        whole = Operand(type_, Buffer(f"{name}.weights", "temp", type_.nbytes), lay)
        launches = [fill_launch(f"{name}.zero_weights", 0.0, whole, target)]
        source = w.layout
        if len(kernel) == 1:
            source = Layout((out, channels, 1, kernel[0]), (*source.strides[:2], 0, source.strides[2]), source.offset)
        rows, across = self.at.taps
        each = PIXEL // self.fold
        for f in range(min(self.fold, rows)):
            lines = -(-(rows - f) // self.fold)
            shape = (out, channels, lines, across)
            part = Layout(shape, (lay.strides[0], 1, lay.strides[1], PIXEL), f * each)
            type_ = TensorType(w.type.dtype, shape)
            seen = Operand(type_, w.buffer, source.slice(2, f, lines, self.fold))
            launches.append(copy_launch(f"{name}.taps{f}", seen, Operand(type_, whole.buffer, part), target, "weights over packed pixels"))
        return launches, whole
