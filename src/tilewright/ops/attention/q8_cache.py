"""A key/value cache in eight bits: quantized values and one f16 scale for every block of 32 elements of a row (ggml's Q8_0 in two arrays).

`Q8Blocks` makes the quantized values and scales of new rows; `Q8Attention` reads a cache of them, unpacking in registers.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, register
from ..families import General, M, N, f16, f32, i8, i32, require_kind
from ..packed.quant_dot import in_eight_bits
from .forward import Attention

BLOCK = 32
ROUNDED = NotSupported("the cache is rounded to quantized values, which have no derivative; use a cache of floats")
LEADING = NotSupported("a cache belongs to one sequence; reshape or loop over sequences")


@register
class Q8Blocks(General):
    """x[..., K] as quantized values i8[..., K] (round half to even) and scales f16[..., K/32]: x ≈ scale * code."""

    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    work = 4
    samples = [S(f32(3, 64)), S(f32(2, 1, 5, 32)), S(f32(N, 96)), S(f32(0, 32))]
    errors = [E(f32(3, 33), match="the last dim must be a known multiple of 32"), E(i32(3, 32), match="needs float operands")]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require_kind((x,), "f")
        k = x.shape[-1] if x.ndim else 0
        require(isinstance(k, int) and k > 0 and k % BLOCK == 0, "the last dim must be a known multiple of 32", x=x)
        return TensorType(dt.i8, x.shape), TensorType(dt.f16, (*x.shape[:-1], k // BLOCK))

    def ref(self, x: Any) -> Any:
        quantized, scales = in_eight_bits(x)
        return quantized, scales.astype(np.float16)


@register
class Q8Attention(Attention):
    """`Attention` over a cache in eight bits. Operands: q f32[B,H,Sq,D], quantized values of k and v i8[B,Hkv,Sk,D], their scales
    f16[B,Hkv,Sk,D/32]."""

    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    samples = [S(f32(1, 4, 3, 32), i8(1, 2, 5, 32), i8(1, 2, 5, 32), f16(1, 2, 5, 1), f16(1, 2, 5, 1), scale=0.2, causal=True, offset=2,
                 low=(-1, -20, -20, 0.01, 0.01), high=(1, 20, 20, 0.1, 0.1)),
               S(f32(1, 2, M, 64), i8(1, 1, M + N, 64), i8(1, 1, M + N, 64), f16(1, 1, M + N, 2), f16(1, 1, M + N, 2), scale=0.1,
                 causal=True, offset=N, low=(-1, -20, -20, 0.01, 0.01), high=(1, 20, 20, 0.1, 0.1)),
               S(f32(1, 1, 4, 96), i8(1, 1, 9, 96), i8(1, 1, 9, 96), f16(1, 1, 9, 3), f16(1, 1, 9, 3), scale=0.1, causal=True, offset=5,
                 window=3, softcap=2.0, low=(-1, -20, -20, 0.01, 0.01), high=(1, 20, 20, 0.1, 0.1))]
    errors = [E(f32(1, 1, 2, 32), i8(1, 1, 3, 32), i8(1, 1, 3, 32), f16(1, 1, 3, 2), f16(1, 1, 3, 1), scale=1.0,
                match="scales must be f16 with one for every block of 32"),
              E(f32(1, 1, 2, 32), f16(1, 1, 3, 32), f16(1, 1, 3, 32), f16(1, 1, 3, 1), f16(1, 1, 3, 1), scale=1.0,
                match="quantized values must be i8"),
              E(f32(1, 1, 2, 32), i8(1, 1, 3, 32), i8(1, 1, 3, 32), f16(1, 1, 3, 1), f16(1, 1, 3, 1), scale=1.0, has_mask=True,
                match="takes neither mask nor bias")]

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> TensorType:
        require(not self.has_mask and not self.has_bias, "a cache in eight bits takes neither mask nor bias")
        require(k.dtype is dt.i8 and v.dtype is dt.i8, "quantized values must be i8", k=k, v=v)
        out = Attention(self.scale, self.causal, self.offset, self.window, self.softcap).infer(
            q, k.with_dtype(q.dtype), v.with_dtype(q.dtype))
        want = [TensorType(dt.f16, (*x.shape[:-1], _blocks(x))) for x in (k, v)]
        require(list(rest) == want, "scales must be f16 with one for every block of 32", k=k, v=v, scales=", ".join(map(str, rest)))
        return out

    def ref(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        wide = [quantized.astype(np.float32) * np.repeat(scales.astype(np.float32), BLOCK, axis=-1)
                for quantized, scales in zip((k, v), rest, strict=True)]
        return super().ref(q, *wide)

    def decompose(self, q: Value, k: Value, v: Value, *rest: Value) -> Value:
        wide = []
        for quantized, scales in zip((k, v), rest, strict=True):
            *lead, width = quantized.shape
            blocks = F.cast(F.reshape(quantized, (*lead, _blocks(quantized.type), BLOCK)), dt.f32)
            factor = F.cast(F.reshape(scales, (*scales.shape, 1)), dt.f32)
            wide.append(F.reshape(F.mul(blocks, factor), (*lead, width)))
        return Attention(self.scale, self.causal, self.offset, self.window, self.softcap).decompose(q, *wide)

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Dim:
        return super().flops(q, k, v)


def _blocks(x: TensorType) -> int:
    width = x.shape[-1]
    require(isinstance(width, int) and width > 0 and width % BLOCK == 0, "the head size must be a multiple of 32", x=x)
    assert isinstance(width, int)
    return width // BLOCK
