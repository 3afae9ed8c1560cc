"""Integer products with packed matrices: activations are rounded to int8 in blocks of 32, weights keep their quantized values.

`QuantizeRows` makes the quantized values, scales and sums of the activations once; every `QDot` that reads them shares them.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.types import TensorType
from .. import quant
from ..base import E, NotSupported, S, register
from ..families import Contraction, General, N, f32, i8, i32, require_kind, u8
from ..index.indexing import check_indices, require_ids

BLOCK = 32  # activations that share a scale
HALF = 16  # activations that share a sum: the smallest group of weights with a scale of its own
FORMATS = tuple(f.name for f in quant.FORMATS.values() if f.exact)  # with a kernel on every target
GROUPED = tuple(f.name for f in quant.FORMATS.values() if f.grouped)  # with a kernel on CPUs, for products that allow rounding
GPU_FORMATS = (*FORMATS, "MXFP4", "NVFP4", "F8_E4M3", "F8_E5M2")


ROUNDED = NotSupported("activations are rounded to values, which have no derivative; differentiate the product with dequantized weights")
LEADING = NotSupported("it takes leading axes already; reshape the operand")


def in_eight_bits(x: Any) -> tuple[Any, Any]:
    """Blocks of floats as quantized values (round half to even) and f32 scales."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    peak = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak != 0)
    return np.rint(blocks * inverse).astype(np.int8).reshape(x.shape), (peak * np.float32(1 / 127))[..., 0]


@register
class QuantizeRows(General):
    """x[..., K] as values i8[..., K] (round half to even), scales f32[..., K/32] and sums of values i32[..., K/16]: x ≈ scale * code."""

    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    work = 5
    samples = [S(f32(3, 64)), S(f32(2, 1, 32)), S(f32(N, 96)), S(f32(0, 32))]
    errors = [E(f32(3, 33), match="the last dim must be a known multiple of 32"), E(i32(3, 32), match="needs float operands")]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        require_kind((x,), "f")
        k = x.shape[-1] if x.ndim else 0
        require(isinstance(k, int) and k > 0 and k % BLOCK == 0, "the last dim must be a known multiple of 32", x=x)
        lead = x.shape[:-1]
        return TensorType(dt.i8, x.shape), TensorType(dt.f32, (*lead, k // BLOCK)), TensorType(dt.i32, (*lead, k // HALF))

    def ref(self, x: Any) -> Any:
        quantized, scales = in_eight_bits(x)
        sums = quantized.reshape(*x.shape[:-1], x.shape[-1] // HALF, HALF).sum(-1, dtype=np.int32)
        return quantized, scales, sums


@register
class QDot(Contraction):
    """quantized values, scales and sums of activations times the transpose of a packed matrix u8[n, row bytes]: f32[..., n]."""

    fusion = "contraction"
    format: str
    n: int
    k: int
    # Sums must be those of the quantized values, so random samples are all zero; tests/kernels/test_qdot.py multiplies real ones.
    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    samples = [S(i8(3, 64), f32(3, 2), i32(3, 4), u8(5, 68), format="Q8_0", n=5, k=64, low=(0, 0.01, 0, 0), high=(0, 0.1, 0, 60)),
               S(i8(0, 64), f32(0, 2), i32(0, 4), u8(5, 68), format="Q8_0", n=5, k=64, low=(0, 0.01, 0, 0), high=(0, 0.1, 0, 60))]
    errors = [E(i8(3, 64), f32(3, 2), i32(3, 4), u8(5, 68), format="IQ1_S", n=5, k=64, match="format must be one of"),
              E(i8(3, 64), f32(3, 3), i32(3, 4), u8(5, 68), format="Q8_0", n=5, k=64, match="scales and sums must be those"),
              E(i8(3, 64), f32(3, 2), i32(3, 4), u8(5, 60), format="Q8_0", n=5, k=64, match="the matrix must be")]

    def infer(self, quantized: TensorType, scales: TensorType, sums: TensorType, w: TensorType) -> TensorType:
        known = (*GPU_FORMATS, *GROUPED)
        require(self.format in known, "format must be one of {known}", known=" ".join(known), format=self.format)
        lead = quantized.shape[:-1]
        shapes = (quantized.shape[-1:], scales.shape, sums.shape)
        ok = quantized.dtype is dt.i8 and shapes == ((self.k,), (*lead, self.k // BLOCK), (*lead, self.k // HALF))
        require(ok, "quantized values, scales and sums must be those of quantize_rows", quantized=quantized, scales=scales, sums=sums)
        row = quant.by_name(self.format).row_bytes(self.k)
        require(w.dtype is dt.u8 and w.shape == (self.n, row), "the matrix must be u8[{n},{row}]", n=self.n, row=row, w=w)
        return TensorType(dt.f32, (*lead, self.n))

    def ref(self, quantized: Any, scales: Any, sums: Any, w: Any) -> Any:
        x = quantized.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)
        return np.matmul(x, quant.by_name(self.format).dequantize(w).T.astype(np.float64)).astype(np.float32)

    def flops(self, quantized: TensorType, scales: TensorType, sums: TensorType, w: TensorType) -> Dim:
        return 2 * quantized.numel * self.n


@register
class QExpertsDot(Contraction):
    """Row (s, t) of rounded activations times the transpose of matrix ids[s, t] of a stack of packed matrices: f32[S, T, n]. The
    activations have shape [S, T, k], or [S, 1, k] when all T products of a token read the same row."""

    faults = True
    format: str
    n: int
    k: int
    experts: int
    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    samples = [S(i8(3, 1, 32), f32(3, 1, 1), i32(3, 1, 2), u8(32, 34), i32(3, 2), format="Q8_0", n=16, k=32, experts=2,
                 low=(0, 0.01, 0, 0, 0), high=(0, 0.1, 0, 60, 1))]  # all zero, as those of qdot
    errors = [E(i8(3, 1, 32), f32(3, 1, 1), i32(3, 1, 2), u8(32, 34), i32(3, 2), format="IQ1_S", n=16, k=32, experts=2,
                match="format must be one of"),
              E(i8(3, 3, 32), f32(3, 3, 1), i32(3, 3, 2), u8(32, 34), i32(3, 2), format="Q8_0", n=16, k=32, experts=2,
                match=r"quantized values must be i8\[S,T,32\] or i8\[S,1,32\]"),
              E(i8(3, 1, 32), f32(3, 1, 1), i32(3, 1, 2), u8(31, 34), i32(3, 2), format="Q8_0", n=16, k=32, experts=2,
                match="the matrix must be"),
              E(i8(3, 1, 32), f32(3, 1, 1), i32(3, 1, 2), u8(32, 34), f32(3, 2), format="Q8_0", n=16, k=32, experts=2,
                match="indices must be integers")]

    def infer(self, quantized: TensorType, scales: TensorType, sums: TensorType, w: TensorType, ids: TensorType) -> TensorType:
        require_ids(ids)
        shape = quantized.shape
        ok = quantized.ndim == 3 and ids.ndim == 2 and shape[0] == ids.shape[0] and shape[1] in (1, ids.shape[1]) and shape[2] == self.k
        require(ok, "quantized values must be i8[S,T,{k}] or i8[S,1,{k}] for ids [S,T]", k=self.k, quantized=quantized, ids=ids)
        QDot(self.format, self.n * self.experts, self.k).infer(quantized, scales, sums, w)
        return TensorType(dt.f32, (*ids.shape, self.n))

    def ref(self, quantized: Any, scales: Any, sums: Any, w: Any, ids: Any) -> Any:
        check_indices(self.name, ids, self.experts, 0)
        x = quantized.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)
        stack = quant.by_name(self.format).dequantize(w).reshape(self.experts, self.n, self.k).astype(np.float64)
        return np.einsum("stk,stnk->stn", np.broadcast_to(x, (*ids.shape, self.k)), stack[ids]).astype(np.float32)

    def flops(self, quantized: TensorType, scales: TensorType, sums: TensorType, w: TensorType, ids: TensorType) -> Dim:
        return 2 * ids.numel * self.n * self.k
