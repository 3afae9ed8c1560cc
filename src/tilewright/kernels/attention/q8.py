"""Attention over a cache in eight bits: quantized values and scales are read as they lie and become floats in registers.

Keys are scaled while a tile of them is transposed into local memory; the scales of the values of a tile are laid out beside it once, and
a row of quantized values is scaled when it is multiplied. All else, the order of sums included, is that of `attention`.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ops.attention.q8_cache import BLOCK
from ...ops.attention.q8_cache import Q8Blocks as Q8BlocksOp
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..quant.quantize import quantized_block
from ..region import Operand, Region, widen
from ..template import Template, region_bytes, region_flops
from .forward import AttentionKernel, Config


class Q8AttentionKernel(AttentionKernel):
    """One kernel under construction."""

    def _configure(self, target: TargetSpec) -> Config:
        config = super()._configure(target)
        return replace(config, width=min(config.width, BLOCK))  # a panel of values has one scale a row

    def _bind(self, q: Operand, k: Operand, v: Operand) -> None:
        super()._bind(q, k, v)
        scales = [self.region.given(x) for x in self.node.operands[3:]]
        self.k_scale, self.v_scale = (
            self.call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(("kd", "vd"), scales, strict=True)
        )
        self.tile_scale = self.call.b.scratch(self.dtype, (self.dv // BLOCK, self.config.keys))

    def _pack_block(self, key: Ix | int, column: Ix | int, left: Ix | int | None) -> None:
        b, n = self.call.b, self.lanes
        limit = None if left is None else (left, None)
        with b.loop(0, self.depth // BLOCK) as loop:
            scale = b.cast(b.load(self.k_scale, (self.bi, self.kvh, key, loop.index), (n, 1), limit=limit), self.dtype)
            for part in range(0, BLOCK, n):
                at = loop.index * BLOCK + part
                quantized = b.cast(b.load(self.k, (self.bi, self.kvh, key, at), (n, n), limit=limit), self.dtype)
                b.store(self.kt, (at, column), b.transpose(quantized * scale))
        for block in range(self.dv // BLOCK):
            scale = b.cast(b.load(self.v_scale, (self.bi, self.kvh, key, block), (n, 1), limit=limit), self.dtype)
            b.store(self.tile_scale, (block, column), b.transpose(scale))

    def _value_row(self, key: Ix | int, i: Ix | int, column: int, limit: tuple[None, int] | None) -> Tile:
        b = self.call.b
        quantized = b.load(self.v, (self.bi, self.kvh, key + i, column), (1, self.config.width), limit=limit)
        return b.cast(quantized, self.dtype) * b.load(self.tile_scale, (column // BLOCK, i), (1, 1))


class Q8BlocksTemplate(Template):
    """One program per row. Results may lie anywhere, such as in the window of a cache that they are meant for."""

    key = "q8_blocks"
    serves = (Q8BlocksOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, (quantized, scales) = region.operands[0], region.results
        *lead, k = x.type.shape
        call = Call("q8_blocks", region.name)
        b = call.b
        source = call.view("x", x.type.dtype, x.buffer, x.layout)
        q = call.view("q", quantized.type.dtype, quantized.buffer, quantized.layout, write=True)
        d = call.view("d", scales.type.dtype, scales.buffer, scales.layout, write=True)
        at = unravel(b, b.pid, [call.word(f"d{i}", s) for i, s in enumerate(lead)])
        with b.loop(0, call.word("blocks", k // BLOCK)) as loop:
            block = loop.index
            rounded, scale = quantized_block(b, widen(b, b.load(source, (*at, block * BLOCK), (BLOCK,))))
            b.store(q, (*at, block * BLOCK), b.cast(rounded, quantized.type.dtype))
            b.store(d, (*at, block), b.cast(scale, scales.type.dtype))
        return [call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]
