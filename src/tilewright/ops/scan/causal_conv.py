"""The short causal convolution in front of a recurrence, with the inputs before the first as its state.

For every channel:   y_t = silu(bias + sum over k of weight_k x_(t - taps + 1 + k))

Shapes: x [B,L,D] · weight [taps,D] · bias [D] · state [B,taps-1,D], the last inputs before x  →  y [B,L,D], last state [B,taps-1,D].
Operands may be stored in 16 bits: arithmetic is f32.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, register
from ..families import Composite, M, N, bf16, f16, f32, f64, i32, require_one_dtype


def _shapes(length: Dim = 6, *, batch: Dim = 2, d: Dim = 5, taps: int = 4, dtype: str = "f32") -> list[TensorType]:
    t = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}[dtype]
    return [t(batch, length, d), t(taps, d), t(d), t(batch, taps - 1, d)]


@register
class CausalConv(Composite):
    """y and the last state. Operands: x, weight, bias, first state."""

    whole = True
    samples = [S(*_shapes()), S(*_shapes(1, taps=2)), S(*_shapes(2)), S(*_shapes(0)), S(*_shapes(70, d=67, batch=1, taps=3)),
               S(*_shapes(N, d=17)), S(*_shapes(9, d=M, batch=N)), S(*_shapes(3, dtype="f64")), S(*_shapes(5, dtype="bf16")),
               S(*_shapes(40, d=19, dtype="f16")), S(*_shapes(40, taps=20))]
    errors = [E(*_shapes()[:3], f32(2, 4, 5), match=r"state must be \[2,3,5\]"),
              E(*_shapes()[:1], f32(4, 6), *_shapes()[2:], match=r"weight must be \[4,5\]"),
              E(f32(6, 5), *_shapes()[1:], match=r"needs x\[B,L,D\] and weight\[taps,D\] with two taps at least"),
              E(f32(2, 6, 5), f32(1, 5), f32(5), f32(2, 0, 5), match="with two taps at least"),
              E(*(t.with_dtype(i32().dtype) for t in _shapes()), match="needs f16, bf16, f32 or f64 operands")]

    def infer(self, x: TensorType, weight: TensorType, bias: TensorType, state: TensorType) -> tuple[TensorType, TensorType]:
        dtype = require_one_dtype((x, weight, bias, state))
        require(dtype.name in ("f16", "bf16", "f32", "f64"), "needs f16, bf16, f32 or f64 operands; cast first", dtype=dtype)
        taps = weight.shape[0] if weight.ndim == 2 else 0
        require(x.ndim == 3 and isinstance(taps, int) and taps > 1, "needs x[B,L,D] and weight[taps,D] with two taps at least", x=x,
                weight=weight)
        batch, _, d = x.shape
        want = {"weight": (weight, (taps, d)), "bias": (bias, (d,)), "state": (state, (batch, taps - 1, d))}
        for name, (got, shape) in want.items():
            require(got.shape == shape, "{name} must be [{shape}]", name=name, shape=",".join(map(str, shape)), type=got)
        return x, state

    def ref(self, x: Any, weight: Any, bias: Any, state: Any) -> Any:
        dtype, length = x.dtype, x.shape[1]
        x, weight, bias, state = (v.astype(np.float64) for v in (x, weight, bias, state))
        whole = np.concatenate([state, x], 1)
        y = bias + sum(whole[:, k : k + length] * weight[k] for k in range(len(weight)))
        return (y / (1 + np.exp(-y))).astype(dtype), whole[:, length:].astype(dtype)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        dtype = values[0].dtype
        x, weight, bias, state = (F.widened(v) for v in values)
        length, taps = x.shape[1], weight.shape[0]
        assert isinstance(taps, int)
        whole, y = F.concat([state, x], 1), bias
        for k in range(taps):
            y = F.add(y, F.mul(F.slice_(whole, 1, k, length), F.slice_(weight, 0, k, 1)))
        return F.cast(F.silu(y), dtype), F.cast(F.slice_(whole, 1, length, taps - 1), dtype)

    def flops(self, x: TensorType, weight: TensorType, *_: TensorType) -> Dim:
        return x.numel * (2 * weight.shape[0] + 4)
