"""Attention that also gives the logsumexps of its rows, from which its backward pass finds the weights again without a sweep of its own."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, bf16, boolean, f16, f32, f64
from .backward import fits
from .forward import Attention


@register
class AttentionSaved(Composite):
    """`Attention`; its second result is log Σ exp of each row's scores [B,H,Sq] in f32 or wider (−inf where a row sees nothing)."""

    scale: float
    causal: bool = False
    offset: Dim = 0
    window: int | None = None
    softcap: float | None = None
    has_mask: bool = False
    has_bias: bool = False
    empty: str = "zeros"
    whole, by_heads = True, True
    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), scale=0.4),
               S(f32(1, 4, 5, 8), f32(1, 2, 5, 8), f32(1, 2, 5, 8), scale=0.35, causal=True),
               S(bf16(1, 2, 3, 4), bf16(1, 1, 7, 4), bf16(1, 1, 7, 4), scale=0.5, causal=True, offset=4, window=3),
               S(f16(1, 1, 3, 4), f16(1, 1, 3, 4), f16(1, 1, 3, 4), scale=0.5, causal=True),
               S(f32(1, 2, 5, 4), f32(1, 2, 6, 4), f32(1, 2, 6, 4), f32(2, 1, 6), scale=0.5, softcap=2.0, has_bias=True),
               S(f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4), scale=0.5, causal=True, offset=-1, empty="nan"),
               S(f64(2, 2, 3, 4), f64(2, 1, 5, 4), f64(2, 1, 5, 4), boolean(2, 1, 3, 5), f64(5), scale=0.5, has_mask=True, has_bias=True)]
    errors = [E(f32(2, 3, 4, 5), f32(2, 3, 6, 4), f32(2, 3, 6, 5), scale=1.0, match="q and k must have one head size, got q=5, k=4")]

    @property
    def plain(self) -> Attention:
        return Attention(**self.attrs())

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> tuple[TensorType, TensorType]:
        return self.plain.infer(q, k, v, *rest), TensorType(compute_dtype(q.dtype), q.shape[:3])

    def ref(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        mask, bias = self.plain._extras(rest)
        shared = q.shape[1] // k.shape[1]
        s = np.matmul(q.astype(np.float64), np.swapaxes(np.repeat(k, shared, axis=1), -1, -2).astype(np.float64)) * self.scale
        s = s if self.softcap is None else self.softcap * np.tanh(s / self.softcap)
        s = s if bias is None else s + bias
        seen = self.plain._seen(s.shape[-2], s.shape[-1])
        s = np.where(seen if mask is None else seen & mask, s, -np.inf)
        top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
        with np.errstate(divide="ignore"):
            sums = np.log(np.sum(np.exp(s - np.where(top == -np.inf, 0, top)), axis=-1)) + top[..., 0]
        return self.plain.ref(q, k, v, *rest), sums.astype(np.float64 if q.dtype == np.float64 else np.float32)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return not fits(operands, target)

    def decompose(self, q: Value, k: Value, v: Value, *rest: Value) -> Any:
        op = self.plain
        mask, bias = op._extras(rest)
        dtype = compute_dtype(q.dtype)
        s = F.matmul(F.cast(q, dtype), F.cast(op.repeated(k, q), dtype), transpose_b=True, alpha=self.scale)
        s = s if self.softcap is None else F.mul(F.tanh(F.div(s, self.softcap)), self.softcap)
        s = s if bias is None else F.add(s, F.cast(bias, dtype))
        for seen in (op._position_mask(q.node.graph, q.shape[2], k.shape[2]), mask):
            s = s if seen is None else F.where(seen, s, -np.inf)
        top = F.max_(s, (3,), keepdims=True)
        e = F.exp(F.sub(s, F.where(F.equal(top, -np.inf), 0.0, top)))
        total = F.sum_(e, (3,))  # of a row that sees nothing it is 0: the −inf comes from the maximum, and the derivative is 0, not 0/0
        return op.decompose(q, k, v, *rest), F.add(F.log(F.where(F.equal(total, 0.0), 1.0, total)), F.max_(s, (3,)))

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Dim:
        return self.plain.flops(q, k, v)
