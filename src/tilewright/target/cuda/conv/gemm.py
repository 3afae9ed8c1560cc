"""Convolution as an implicit product on Hopper: the kernel of `gemm.py`, whose left matrix is windows of an image.

Rows of the product are result pixels (batch, [depth,] height, width), K runs over taps and, inside a tap, over channels in steps of 128
bytes. TMA walks the pixels by itself (`im2col`): it is told the first one and the tap, goes on at the next line and the next image, and
fills what is outside the image with zeros. Weights are [O, taps, C], so channels past the end are zeros on both sides. With groups a tile's
columns are of one group, and its channels begin at that group's first.
"""

from __future__ import annotations

from math import prod

from ....core.target_spec import TargetSpec
from ....kernels.conv.cuda.kernels import ConvKernel, WindowGradientKernel
from ..matmul.gemm import BK, Gemm


def emit_conv(kernel: ConvKernel, target: TargetSpec) -> str:
    return ConvGemm(kernel).module(target)


def emit_window_gradient(kernel: WindowGradientKernel, target: TargetSpec) -> str:
    return WindowGradient(kernel).module(target)


class ConvGemm(Gemm):
    """The producer's part that differs: where a stage comes from."""

    kernel: ConvKernel

    def __init__(self, kernel: ConvKernel) -> None:
        super().__init__(kernel)
        self.windows, self.deep = kernel, BK // self.item  # channels of a step

    def _first_step(self, row: str, column: str) -> None:
        """The first pixel's place in the image, the first tap, and the group's first channel."""
        k, g, v = self.k, self.windows, self.k.value
        self.pixel = self._pixel(row)
        self.channel, self.tap = k.reg("i32"), k.reg("i32")
        self.reach = [k.reg("half") for _ in g.taps]  # the reach of the tap, innermost axis first
        for r in (self.channel, self.tap):
            k.emit(f"mov.u32 {r}, 0;")
        for r in self.reach:
            k.emit(f"mov.b16 {r}, 0;")
        self.origin = ""
        if g.each:
            self.origin = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {column}, {g.each};')}, {g.channels};")

    def _pixel(self, number: str) -> str:
        """The place of a pixel's first tap, as a tensor map takes it."""
        g, v = self.windows, self.k.value
        rest, size, places = number, prod(g.image), []
        for extent in g.image:
            places.append(v("i32", f"div.u32 {{}}, {rest}, {size};"))
            rest = v("i32", f"rem.u32 {{}}, {rest}, {size};")
            size //= extent
        image, *lines = (*places, rest)
        first = [v("i32", f"mad.lo.s32 {{}}, {n}, {s}, {-b};") for n, s, b in zip(lines, g.stride, g.before, strict=True)]
        return ", ".join([*first[::-1], image])

    def _load_a(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        windows = load.replace(".3d.", f".{len(self.reach) + 2}d.").replace(".global.", ".global.im2col.")
        channel = self.k.value("i32", f"add.u32 {{}}, {self.channel}, {self.origin};") if self.origin else self.channel
        at = f"{{{channel}, {self.pixel}}}"
        self.k.emit(f"{windows} [{spot}], [{self.maps[0]}, {at}], [{full}], {{{', '.join(self.reach)}}};")

    def _kept_place(self, step: int) -> str:
        per_tap = -(-self.windows.channels // self.deep)
        return f"{step % per_tap * self.deep}, 0, {step // per_tap}"

    def _b_place(self, at: str, column: str, batch: str) -> str:
        return f"{self.channel}, {column}, {self.tap}"

    def _next_step(self) -> None:
        """The next channels of a tap, then the next tap of a line, then the next line."""
        k, g, v = self.k, self.windows, self.k.value
        k.emit(f"add.u32 {self.channel}, {self.channel}, {self.deep};")
        turn = v("i1", f"setp.ge.u32 {{}}, {self.channel}, {g.channels};")
        k.emit(f"@{turn} mov.u32 {self.channel}, 0;")
        k.emit(f"@{turn} add.u32 {self.tap}, {self.tap}, 1;")
        last = len(g.taps) - 1
        for place, taps, hop in zip(self.reach, g.taps[::-1], g.dilation[::-1], strict=True):
            outermost = place is self.reach[last]
            if taps == 1 and not outermost:
                continue
            k.emit(f"@{turn} add.u16 {place}, {place}, {hop};")
            if not outermost:
                turn = v("i1", f"setp.eq.u16 {{}}, {place}, {taps * hop};")
                k.emit(f"@{turn} mov.b16 {place}, 0;")


class WindowGradient(ConvGemm):
    """K are pixels, in parts; the right matrix is windows, whose columns are taps and their channels in blocks of 64."""

    windows: WindowGradientKernel

    def _position(self, tile: str) -> tuple[str, str, str]:
        v, parts = self.k.value, self.windows.parts
        row, column, batch = super()._position(tile)
        part, blocks = batch, self.windows.blocks
        if blocks > 1:
            part, self.block = (v("i32", f"{op}.u32 {{}}, {batch}, {blocks};") for op in ("div", "rem"))
        each = v("i32", f"div.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.steps}, {parts - 1};')}, {parts};")
        self.start = v("i32", f"mul.lo.u32 {{}}, {part}, {each};")  # past the end where a part has no steps: windows there are zeros
        self.count = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {self.steps}, {self.start};')}, {each};")
        return row, column, batch

    def _first_step(self, row: str, column: str) -> None:
        """Channel and tap of every 64 columns; past the last tap they are read again, and not stored."""
        g, v = self.windows, self.k.value
        per, self.blocks = -(-g.channels // 64), list[tuple[str, str]]()
        first = v("i32", f"shr.u32 {{}}, {column}, 6;")
        for c in range(g.bn // 64):
            block = v("i32", f"add.u32 {{}}, {first}, {c};")
            tap = v("i32", f"min.u32 {{}}, {v('i32', f'div.u32 {{}}, {block}, {per};')}, {prod(g.taps) - 1};")
            channel = v("i32", f"shl.b32 {{}}, {v('i32', f'rem.u32 {{}}, {block}, {per};')}, 6;")
            if g.blocks > 1:
                channel = v("i32", f"mad.lo.u32 {{}}, {self.block}, {g.channels}, {channel};")
            reach = []
            for taps, hop in zip(g.taps[::-1], g.dilation[::-1], strict=True):
                place = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {tap}, {taps};')}, {hop};")
                reach.append(v("half", f"cvt.u16.u32 {{}}, {place};"))
                tap = v("i32", f"div.u32 {{}}, {tap}, {taps};")
            self.blocks.append((channel, ", ".join(reach)))

    def _load_a(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        row, at, half = place
        if (one := self.windows.apart) > 0:  # the first halves, the first and the second, the second and the first
            each = -(-one // 64) * 64
            term = self.k.value("i32", f"div.u32 {{}}, {at}, {each};")
            half = self.k.value("i32", f"shr.u32 {{}}, {term}, 1;")
            at = self.k.value("i32", f"rem.u32 {{}}, {at}, {each};")
            self.pixel_number = self.k.value("i32", f"mad.lo.u32 {{}}, {self.k.value('i32', f'and.b32 {{}}, {term}, 1;')}, {one}, {at};")
        else:
            self.pixel_number = at
        if self.windows.blocks > 1:
            row = self.k.value("i32", f"mad.lo.u32 {{}}, {self.block}, {self.windows.each}, {row};")
        Gemm._load_a(self, load, spot, (row, at, half), full)

    def _load_b(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        pixel = self._pixel(self.pixel_number)
        windows = load.replace(".3d.", f".{len(self.windows.taps) + 2}d.").replace(".global.", ".global.im2col.")
        for c, (channel, reach) in enumerate(self.blocks):
            at = f"[{spot}+{self.a_bytes + 8192 * c}], [{self.maps[1]}, {{{channel}, {pixel}}}]"
            self.k.emit(f"{windows} {at}, [{full}], {{{reach}}};")

    def _next_step(self) -> None:
        """Pixels are counted from the step."""
