"""One row of a packed matrix in strips as f32: for lookups in a table that a product reads in strips too (a tied embedding).

The same operations in the same order as the decoders of `unpack`, so the same bits; only the places of quantized values and scales differ.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import Dim
from ...core.dtypes import DType, f16, f32, i8, i32, u8
from ...ir.layout import Layout
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..region import Operand
from .strips import COLUMNS, LANES, STRIPS


class StripRows:
    """Views of the strips; `row_to` decodes a row in pieces of 32 columns (16 where those have scales of their own)."""

    def __init__(self, call: Call, operand: Operand, format_: str, k: int) -> None:
        self.call, self.b, self.operand = call, call.b, operand
        self.format, self.f, self.k = format_, STRIPS[format_], k
        self.strips: Dim = (operand.type.shape[0] + LANES - 1) // LANES
        f = self.f
        # [strip, block, group of four columns or word, lane, byte]
        self.quantized = self._view("q", u8, 0, (f.plane_at // (4 * LANES), LANES, 4))
        self.planes = self._view("plane", u8, f.plane_at, (f.groups * f.planes, LANES, 4)) if f.planes else None
        real, groups = f16 if f.real == 2 else f32, 1 if f.shared else f.groups
        small = real if not f.super_scales else u8 if f.scales == 1 else i8
        self.scales = self._view("scale", small, f.scale_at, (groups * f.scales, LANES))
        self.minimums = self._view("min", small, f.minimum_at, (groups, LANES)) if f.minimums else None
        self.d = self._view("d", f16, f.d_at, (1, LANES)) if f.super_scales else None
        self.dmin = self._view("dmin", f16, f.dmin_at, (1, LANES)) if f.super_scales and f.minimums else None

    def _view(self, name: str, dtype: DType, at: int, inner: tuple[int, ...]) -> View:
        item, block, blocks = dtype.itemsize, self.f.bytes, self.k // self.f.elements
        strides = [1]
        for d in reversed(inner[1:]):
            strides.insert(0, strides[0] * d)
        layout = Layout((self.strips, blocks, *inner), (blocks * block // item, block // item, *strides), at // item)
        return self.call.view(f"w_{name}", dtype, self.operand.buffer, layout, bake=range(1, 2 + len(inner)))

    def row_to(self, row: Ix | int, store: Callable[[Ix | int, Tile], None]) -> None:
        """Decode one row: `store(number of the first group of four columns, f32[groups, 4])`."""
        b, f = self.b, self.f
        strip, lane = row // LANES, row % LANES
        with b.loop(0, self.k // f.elements) as loop:
            block = loop.index
            with b.loop(0, f.groups) as inner:
                sub = inner.index
                quantized = self._quantized(strip, block, sub, lane)
                for i in range(f.scales):
                    size = 8 // f.scales
                    part = quantized if f.scales == 1 else b.extract(quantized, (size * i, 0), (size, 4))
                    at = block * (f.elements // 4) + sub * (COLUMNS // 4) + size * i
                    store(at, self._numbers(part, strip, block, sub, i, lane))

    def _quantized(self, strip: Ix | int, block: Ix | int, sub: Ix | int, lane: Ix | int) -> Tile:
        """Quantized values of 32 columns, i32[8, 4], bias included."""
        b, f = self.b, self.f
        if f.low == 8:
            return b.cast(b.load(self.quantized, (strip, block, sub * 8, lane, 0), (8, 4), axes=(2, 4)), i32) + f.bias
        words = b.cast(b.load(self.quantized, (strip, block, sub * 4, lane, 0), (4, 4), axes=(2, 4)), i32)
        doubled = b.reshape(b.broadcast(b.reshape(words, (4, 1, 4)), (4, 2, 4)), (8, 4))  # group g is a nibble of word g // 2
        group = b.iota((8, 4), 0, i32)
        quantized = b.binary("and", b.binary("shr", doubled, b.binary("shl", b.binary("and", group, 1), 2)), 15)
        for p in range(f.planes):
            assert self.planes is not None
            plane = b.cast(b.load(self.planes, (strip, block, sub * f.planes + p, lane, 0), (1, 4), axes=(2, 4)), i32)
            bit = b.binary("and", b.binary("shr", b.broadcast(plane, (8, 4)), group), 1)
            quantized = b.binary("or", quantized, b.binary("shl", bit, 4 + p))
        return quantized + f.bias if f.bias else quantized

    def _numbers(self, quantized: Tile, strip: Ix | int, block: Ix | int, sub: Ix | int, i: int, lane: Ix | int) -> Tile:
        b, f = self.b, self.f
        sub = 0 if f.shared else sub

        def one(view: View, at: Ix | int) -> Tile:
            return b.cast(b.load(view, (strip, block, at, lane), (1, 1), axes=(2, 3)), f32)

        numbers, scale = b.cast(quantized, f32), one(self.scales, sub * f.scales + i)
        if self.d is None:
            scaled = numbers * scale
            return scaled if self.minimums is None else scaled + one(self.minimums, sub)
        scaled = (one(self.d, 0) * scale) * numbers
        if self.minimums is None or self.dmin is None:
            return scaled
        return scaled - one(self.dmin, 0) * one(self.minimums, sub)
