"""The kernels of convolutions on a GPU's tensor cores, as products over windows of an image."""

from __future__ import annotations

from dataclasses import dataclass

from ....tile.ir import Kernel, Var
from ...cuda.kernel import GemmKernel

PATCH, PLANES = 8, 4  # pixels of a patch in each direction, and planes of a tile


@dataclass(eq=False)
class ConvKernel(GemmKernel):
    """A convolution as a product: A is windows of an image [batch, height, width, channels], B the weights [O, taps, channels]; see the
    target's `conv_gemm`. Sizes are (height, width), or (depth, height, width)."""

    image: tuple[int, ...] = (1, 1)  # the image of the result
    channels: int = 64  # channels of a group
    taps: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    before: tuple[int, ...] = (0, 0)  # padding
    dilation: tuple[int, ...] = (1, 1)
    each: int = 0  # results of a group, where there are several; whole tiles


@dataclass(eq=False)
class PatchKernel(ConvKernel):
    """A convolution with steps of one whose pixels are read once (see the target's `conv_patch`); `stages` are of weights, and `box` the
    pixels of a tile (depth, height, width). Over two axes (`stacked`) the planes of a tile are patches below one another."""

    box: tuple[int, int, int] = (1, 1, 1)
    stacked: bool = False

    @property
    def tile(self) -> tuple[int, int, int]:
        """Results of a tile (depth, height, width)."""
        return (1, PLANES * PATCH, PATCH) if self.stacked else (PLANES, PATCH, PATCH)


@dataclass(eq=False)
class WindowGradientKernel(ConvKernel):
    """The gradient of a convolution's weights as a product over pixels: A is the cotangent [pixels, results], B windows [pixels, taps and,
    inside a tap, channels in blocks of 64]; the batch are `parts` of the pixels, whose sums are stored apart, and in each of them
    `blocks` of `each` results and as many channels. `apart`: pixels of a half, where both operands are two, large parts first; K are then
    three products of halves."""

    parts: int = 1
    blocks: int = 1
    apart: int = 0


@dataclass(eq=False)
class HaloKernel(Kernel):
    """A convolution with groups of few channels (see the target's `conv_halo`): `params` and `body` are the epilogue in tile IR, over 16
    pixels × `results`, which sees `end`, one past a block's last pixel. `a` is the image [batch, height, width, channels], `b` the weights
    [O, taps · channels]. Pairs are (height, width)."""

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    batch: Var | None = None
    end: Var | None = None
    a: Var | None = None
    b: Var | None = None
    image: tuple[int, ...] = (1, 1)
    out: tuple[int, ...] = (1, 1)
    taps: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    before: tuple[int, ...] = (0, 0)  # padding
    dilation: tuple[int, ...] = (1, 1)
    reach: tuple[int, int] = (1, 1)  # lines and columns of pixels that a block reads
    lines: int = 1  # lines of results of a block
    channels: int = 8  # channels of a group
    each: int = 8  # results of a group
    held: int = 8  # channels of a block
    pitch: int = 16  # bytes from pixel to pixel in shared memory
    results: int = 8  # results of a block
    parts: int = 1  # blocks that share the groups
    wide: int = 8  # results of a warp
    paired: bool = False  # a group is two of four channels and four results each, whose weights lie behind one another
    stored: tuple[Var, ...] = ()  # results that go out through shared memory
    dtype: str = "bf16"
    per_sm: int = 1
    block: int = 256
