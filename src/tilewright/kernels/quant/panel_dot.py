"""Integer dot products of activation rows with panels of a packed matrix: quantized values are unpacked in registers inside the product.

For every 32 columns the dot products are exact integers (bias included), then scaled by weight scale × activation scale into one f32 chain
per element: the bits of a row do not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dims import Dim
from ...core.dtypes import DType, f16, f32, i8, i32, u8
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..launch import Buffer
from .panels import LANES, PanelFormat

NIBBLES = 0x0F0F0F0F
UPPER = -0x0F0F0F10  # 0xF0F0F0F0
DISTANCE = 8 << 10  # bytes that one row asks for ahead of use in long panels: beyond the page, well inside L2
LINE = 64


class PanelKernel:
    """What kernels over panels share. A subclass binds the views of the activations (`aq` values as words of four, `ad` scales, `asum`
    sums) and the panels, and sets `at`, the position of its rows."""

    aq: View
    ad: View
    asum: View
    at: Sequence[Ix | int]

    def __init__(self, call: Call, format_: PanelFormat, target: TargetSpec) -> None:
        self.call, self.f = call, format_
        self.wide = target.registers >= 32  # room for more sums at once

    @staticmethod
    def words(quantized: Layout) -> Layout:
        """Rows of quantized values as rows of words of four."""
        *lead, k = quantized.shape
        return Layout((*lead, k // 4), (*(s // 4 for s in quantized.strides[:-1]), 1), quantized.offset // 4)

    def bind_panels(self, buffer: Buffer, panels: Dim, k: int) -> None:
        blocks = k // self.f.elements
        self.panel_bytes = blocks * self.f.bytes
        self.views = {name: self._field(buffer, name, dtype, at, size, panels, blocks) for name, dtype, at, size in self._fields()}
        self.lines = self.call.view("lines", i32, buffer, Layout((panels, self.panel_bytes // 4), (self.panel_bytes // 4, 1)))

    def _fields(self) -> list[tuple[str, DType, int, int]]:
        """Name, dtype, byte offset and element count of what a block of a panel holds."""
        f = self.f
        real = f16 if f.real == 2 else f32
        small, groups = u8 if f.super_scales and f.scales == 1 else i8 if f.super_scales else real, 1 if f.shared else f.groups
        found: list[tuple[str, DType, int, int]] = [
            ("q", i32, 0, f.plane_at // 4),
            ("scale", small, f.scale_at, groups * f.scales * LANES),
        ]
        if f.planes:
            found.append(("plane", i32, f.plane_at, (f.scale_at - f.plane_at) // 4))
        if f.minimums:
            found.append(("min", small, f.minimum_at, groups * LANES))
        if f.super_scales:
            found.append(("d", f16, f.d_at, LANES))
        if f.super_scales and f.minimums:
            found.append(("dmin", f16, f.dmin_at, LANES))
        return found

    def _field(self, buffer: Buffer, name: str, dtype: DType, at: int, size: int, panels: Dim, blocks: int) -> View:
        item, block = dtype.itemsize, self.f.bytes
        return self.call.view(
            name, dtype, buffer, Layout((panels, blocks, size), (blocks * block // item, block // item, 1), at // item), bake=(1,)
        )

    def accumulate(self, row: Ix | int, rows: int, panels: list[Ix | int], blocks: Ix) -> list[Tile]:
        """Sums over `blocks` blocks of 32 columns. Those of a super-block are a loop of their own, which reads the block's scales once."""
        b, f = self.call.b, self.f
        accs = [b.full((rows, LANES), 0.0, f32) for _ in panels]
        if f.groups == 1:
            with b.loop(0, blocks, 1, accs) as loop:
                loop.next(*self._columns(row, rows, panels, loop.index, loop.index, 0, list(loop.carried), [()] * len(panels)))
            return list(loop.results)
        with b.loop(0, blocks // f.groups, 1, accs) as outer:
            tops = [[self._half(name, s, outer.index, 0) for name in ("d", "dmin") if name in self.views] for s in panels]
            with b.loop(0, f.groups, 1, list(outer.carried)) as loop:
                column = outer.index * f.groups + loop.index
                loop.next(*self._columns(row, rows, panels, column, outer.index, loop.index, list(loop.carried), tops))
            outer.next(*loop.results)
        return list(outer.results)

    def _columns(self, row: Ix | int, rows: int, panels: list[Ix | int], column: Ix | int, block: Ix, sub: Ix | int, accs: list[Tile],
                 tops: Sequence[Sequence[Tile]]) -> list[Tile]:
        """The sums with those of 32 columns added."""
        b, f = self.call.b, self.f
        scale_a = b.load(self.ad, (*self.at, row, column), (rows, 1))
        halves = [b.load(self.asum, (*self.at, row, column * 2 + h), (rows, 1)) for h in range(2)]
        totals = self._dots(row, rows, panels, column, block, sub, halves)
        if rows == 1 and self.f.low == 4:
            self._ask_ahead(panels, block, sub)
        for s, panel in enumerate(panels):
            for i, total in enumerate(totals[s]):
                scale = self._half("scale", panel, block, 0 if f.shared else sub * f.scales + i)
                scale = scale * tops[s][0] if f.super_scales else scale
                accs[s] = b.fma(b.cast(total, f32), scale * scale_a, accs[s])
            if f.minimums:
                weighted = b.cast(b.binary("add", halves[0], halves[1]), f32) * scale_a
                minimum = self._half("min", panel, block, 0 if f.shared else sub)
                accs[s] = b.fma(-(minimum * tops[s][1]) if f.super_scales else minimum, weighted, accs[s])
        return accs

    def _ask_ahead(self, panels: list[Ix | int], block: Ix | int, sub: Ix | int) -> None:
        """One row reads the panels once, as fast as memory gives them: every line is asked for ahead of its use, across pages, where the
        hardware's own prefetch stops. Short panels ask for those that come after the ones at hand, long ones for their own bytes. (Bytes
        that need no unpacking are read far enough ahead by a core that executes out of order.)"""
        short, size = self.panel_bytes < 2 * DISTANCE, self.f.bytes // self.f.groups
        for panel in panels:
            for line in range(0, size, LINE):
                at = block * (self.f.bytes // 4) + sub * (size // 4) + (line if short else line + DISTANCE) // 4
                self.call.b.prefetch(self.lines, (panel + len(panels) if short else panel, at), locality=2)

    def _dots(
        self, row: Ix | int, rows: int, panels: list[Ix | int], column: Ix | int, block: Ix | int, sub: Ix | int, halves: list[Tile]
    ) -> list[list[Tile]]:
        """Integer dot products of 32 columns, per panel and scale; the bias is in their start.

        The upper nibbles of a word are shifted down, or, for one row, multiplied where they stand: 16 times their sum, exactly."""
        b, f = self.call.b, self.f
        sums = halves if f.scales == 2 else [b.binary("add", halves[0], halves[1])]
        zero = b.full((rows, LANES), 0, i32)
        start = [zero if f.bias == 0 else b.broadcast(s * f.bias, (rows, LANES)) for s in sums]
        accs = [list(start) for _ in panels]
        apart = rows == 1 and self.wide and f.low == 4 and not f.planes
        uppers = [zero for _ in panels]
        words = 8 * f.low // 8
        planes = [
            [b.load(self.views["plane"], (s, block, sub * (f.planes * LANES) + p * LANES), (1, LANES)) for p in range(f.planes)]
            for s in panels
        ]
        for t in range(words):
            for si, s in enumerate(panels):
                word = b.load(self.views["q"], (s, block, sub * (words * LANES) + t * LANES), (1, LANES))
                pieces = [word]
                if f.low == 4:
                    upper = b.binary("and", word, UPPER) if apart else b.binary("and", b.binary("shr", word, 4), NIBBLES)
                    pieces = [b.binary("and", word, NIBBLES), upper]
                for i, piece in enumerate(pieces):
                    g = t * len(pieces) + i
                    for p, plane in enumerate(planes[si]):
                        piece = b.binary("or", piece, self._bit(plane, g, 4 + p))
                    left = b.load(self.aq, (*self.at, row, column * 8 + g), (rows, 1))
                    if apart and i:
                        uppers[si] = b.dot4(piece, left, uppers[si])
                        continue
                    which = g * f.scales // 8
                    accs[si][which] = b.dot4(piece, left, accs[si][which])
        if apart:
            return [[b.binary("add", own[0], b.binary("shr", upper, 4))] for own, upper in zip(accs, uppers, strict=True)]
        return accs

    def _bit(self, plane: Tile, g: int, to: int) -> Tile:
        """Bits g, g+8, … of a plane moved to bit `to` of every byte."""
        b = self.call.b
        moved = b.binary("shl", plane, to - g) if to >= g else b.binary("shr", plane, g - to)
        return b.binary("and", moved, 0x01010101 << to)

    def _half(self, name: str, panel: Ix | int, block: Ix | int, i: Ix | int) -> Tile:
        """A scale or minimum, floats or small integers, of 16 rows."""
        b = self.call.b
        return b.cast(b.load(self.views[name], (panel, block, i * LANES), (1, LANES)), f32)
