"""Products of activations in bf16 with packed matrices: what tensor cores of a GPU multiply once there are many rows."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from ..base import E, NotSupported, S, register
from ..families import Composite, N, bf16, f32, u8
from ..pointwise.casts import Cast
from .products import QMatmul, dequantize, require_matrix

ROUNDED = NotSupported("activations are rounded to bf16 for the tensor cores; differentiate `qmatmul`, from which this is made")
LEADING = NotSupported("it takes leading axes already; reshape the operand")


@register
class QProduct(Composite):
    """x[..., k] in bf16 times the transpose of a packed matrix of `n` rows: [..., n] in f32. Kernels may round the matrix's numbers to
    bf16."""

    fusion = "contraction"
    format: str
    n: int
    k: int
    unsupported = {"vjp": ROUNDED, "jvp": ROUNDED, "batch": LEADING}
    samples = [S(bf16(3, 32), u8(5, 34), format="Q8_0", n=5, k=32, low=(-2, 0), high=(2, 60)),
               S(bf16(N, 64), u8(4, 36), format="Q4_0", n=4, k=64, low=(-2, 0), high=(2, 60))]
    errors = [E(bf16(3, 32), u8(5, 34), format="Q9", n=5, k=32, match="format must be one of"),
              E(bf16(3, 64), u8(5, 34), format="Q8_0", n=5, k=32, match=r"x must be bf16\[..., 32\]"),
              E(f32(3, 32), u8(5, 34), format="Q8_0", n=5, k=32, match=r"x must be bf16\[..., 32\]"),
              E(bf16(3, 32), u8(5, 34), format="Q8_0", n=6, k=32, match="the matrix must have n rows")]

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        require_matrix(w, self.format, self.k)
        require(x.dtype is dt.bf16 and x.ndim >= 1 and x.shape[-1] == self.k, "x must be bf16[..., {k}]", k=self.k, x=x)
        require(w.shape[0] == self.n, "the matrix must have n rows", w=w, n=self.n)
        return TensorType(dt.f32, (*x.shape[:-1], self.n))

    def ref(self, x: Any, w: Any) -> Any:
        return np.matmul(x.astype(np.float64), dequantize(self.format, w).T.astype(np.float64)).astype(np.float32)

    def decompose(self, x: Value, w: Value) -> Value:
        out: Value = QMatmul(format=self.format, n=self.n, k=self.k)(Cast(dtype=dt.f32)(x), w)
        return out

    def flops(self, x: TensorType, w: TensorType) -> Dim:
        return 2 * x.numel * self.n
