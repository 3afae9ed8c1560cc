"""Distances between all rows of two matrices, from the differences: products would cancel where rows are near each other."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, register
from ..families import Composite, N, bf16, f32, f64, i32, require_kind, require_one_dtype


@register
class PairSums(Composite):
    """out[…, i, j] = sum over k of |a[…, i, k] - b[…, j, k]| ** power (1 or 2), or the largest (power inf)."""

    whole = True
    power: float
    samples = [*(S(f32(2, 5, 7), f32(2, 9, 7), power=p) for p in (1.0, 2.0, math.inf)), S(f64(3, 70), f64(19, 70), power=2.0),
               S(bf16(2, 3), bf16(4, 3), power=1.0), S(f32(0, 3), f32(4, 3), power=2.0), S(f32(3, 0), f32(4, 0), power=2.0),
               S(f32(N, 4), f32(5, 4), power=2.0)]
    errors = [E(f32(3, 4), f32(3, 5), power=2.0, match="needs rows of one length"),
              E(f32(3, 4), f32(3, 4), power=3.0, match="power must be 1, 2 or inf"),
              E(i32(3, 4), i32(3, 4), power=2.0, match="needs float operands"), E(f32(2, 3, 4), f32(3, 4), power=2.0, match="needs rows")]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_kind((a, b), "f")
        require_one_dtype((a, b))
        require(self.power in (1.0, 2.0, math.inf), "power must be 1, 2 or inf", power=self.power)
        require(a.ndim == b.ndim >= 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-1],
                "needs rows of one length, in batches of one shape", a=a, b=b)
        return a.with_shape((*a.shape[:-1], b.shape[-2]))

    def ref(self, a: Any, b: Any) -> Any:
        gap = np.abs(a.astype(np.float64)[..., :, None, :] - b.astype(np.float64)[..., None, :, :])
        if self.power == math.inf:
            return np.max(gap, -1, initial=0.0).astype(a.dtype)
        return np.sum(gap**self.power, -1).astype(a.dtype)

    def decompose(self, a: Value, b: Value) -> Value:
        left, right = F.reshape(a, (*a.shape[:-1], 1, a.shape[-1])), F.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
        gap, last = F.sub(left, right), (len(a.shape),)
        if self.power == math.inf:
            return F.max_(F.abs_(gap), last)
        return F.sum_(F.square(gap) if self.power == 2 else F.abs_(gap), last)

    def flops(self, *types: TensorType) -> Dim:
        return 3 * types[0].numel * types[1].shape[-2]
