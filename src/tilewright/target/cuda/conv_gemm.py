"""Convolution as an implicit product on Hopper: the kernel of `gemm.py`, whose left matrix is windows of an image.

Rows of the product are result pixels (batch, height, width), K runs over taps and, inside a tap, over channels in steps of 64. The copy
engine walks the pixels by itself (`im2col`): it is told the first one and the tap, goes on at the next line and the next image, and fills
what is outside the image with zeros. Weights are [O, taps, C], so channels past the end are zeros on both sides.
"""

from __future__ import annotations

from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import ConvKernel
from .gemm import Gemm

BK = 64  # channels of a step


def emit_conv(kernel: ConvKernel, target: TargetSpec) -> str:
    return ConvGemm(kernel).module(target)


class ConvGemm(Gemm):
    """The producer's part that differs: where a stage comes from."""

    kernel: ConvKernel

    def __init__(self, kernel: ConvKernel) -> None:
        super().__init__(kernel)
        self.windows = kernel

    def _first_step(self, row: str) -> None:
        """The first pixel's place in the image, and the first tap."""
        k, g, v = self.k, self.windows, self.k.value
        height, width = g.image
        image = v("i32", f"div.u32 {{}}, {row}, {height * width};")
        inside = v("i32", f"rem.u32 {{}}, {row}, {height * width};")
        line = v("i32", f"div.u32 {{}}, {inside}, {width};")
        column = v("i32", f"rem.u32 {{}}, {inside}, {width};")
        y = v("i32", f"mad.lo.s32 {{}}, {line}, {g.stride[0]}, {-g.before[0]};")
        x = v("i32", f"mad.lo.s32 {{}}, {column}, {g.stride[1]}, {-g.before[1]};")
        self.pixel = f"{x}, {y}, {image}"
        self.channel, self.tap = k.reg("i32"), k.reg("i32")
        self.right, self.down = k.reg("half"), k.reg("half")
        for r in (self.channel, self.tap):
            k.emit(f"mov.u32 {r}, 0;")
        for r in (self.right, self.down):
            k.emit(f"mov.b16 {r}, 0;")

    def _load_a(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        windows = load.replace(".3d.", ".4d.").replace(".global.", ".global.im2col.")
        at = f"{{{self.channel}, {self.pixel}}}"
        self.k.emit(f"{windows} [{spot}], [{self.maps[0]}, {at}], [{full}], {{{self.right}, {self.down}}};")

    def _kept_place(self, step: int) -> str:
        per_tap = -(-self.windows.channels // BK)
        return f"{step % per_tap * BK}, 0, {step // per_tap}"

    def _b_place(self, at: str, column: str, batch: str) -> str:
        return f"{self.channel}, {column}, {self.tap}"

    def _next_step(self) -> None:
        """The next channels of a tap, then the next tap of a line, then the next line."""
        k, g, v = self.k, self.windows, self.k.value
        k.emit(f"add.u32 {self.channel}, {self.channel}, {BK};")
        turn = v("i1", f"setp.ge.u32 {{}}, {self.channel}, {g.channels};")
        k.emit(f"@{turn} mov.u32 {self.channel}, 0;")
        k.emit(f"@{turn} add.u32 {self.tap}, {self.tap}, 1;")
        if g.taps[1] == 1:
            k.emit(f"@{turn} add.u16 {self.down}, {self.down}, {g.dilation[0]};")
            return
        k.emit(f"@{turn} add.u16 {self.right}, {self.right}, {g.dilation[1]};")
        end = v("i1", f"setp.eq.u16 {{}}, {self.right}, {g.taps[1] * g.dilation[1]};")
        k.emit(f"@{end} mov.b16 {self.right}, 0;")
        k.emit(f"@{end} add.u16 {self.down}, {self.down}, {g.dilation[0]};")
