"""The backward pass of layer norm and RMS norm over rows as one op."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import product
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register
from ..families import Composite, N, bf16, f32, f64, i32, require_kind, require_one_dtype, show_shape
from .reductions import uneven, wide


@register
class NormBackward(Composite):
    """Cotangents of x[R,N] and of its weight and bias [N], as far as `affine` ("none", "weight", "both") has them, given that of the
    result, the last operand. Operands: x, [weight], g. `centred`: layer norm; else RMS norm."""

    eps: float = 1e-5
    affine: str = "none"
    centred: bool = True
    work = 12
    whole = True
    samples = [S(f32(3, 5), f32(3, 5), fit=uneven), S(f32(7, 37), f32(37), f32(7, 37), affine="weight"),
               S(f32(70, 67), f32(67), f32(70, 67), affine="both", eps=1e-6), S(f64(2, 12), f64(12), f64(2, 12), affine="both"),
               S(f32(5, 33), f32(33), f32(5, 33), affine="weight", centred=False), S(f64(3, 8), f64(3, 8), centred=False),
               S(f32(N, 4), f32(4), f32(N, 4), affine="both", fit=uneven), S(f32(0, 4), f32(4), f32(0, 4), affine="both"),
               S(bf16(5, 33), bf16(33), bf16(5, 33), affine="both")]
    errors = [E(f32(3, 5), f32(3, 4), match="x and the cotangent must be one type"), E(f32(3), f32(3), match=r"needs x\[R,N\]"),
              E(f32(3, 5), f32(4), f32(3, 5), affine="weight", match=r"weight must have shape \[5\]"),
              E(f32(3, 5), f32(3, 5), affine="both", match="affine=both takes 3 operands, got operands=2"),
              E(f32(3, 5), f32(3, 5), affine="bias", match="affine must be one of none weight both"),
              E(i32(3, 5), i32(3, 5), match="needs float operands")]

    def infer(self, x: TensorType, *rest: TensorType) -> tuple[TensorType, ...] | TensorType:
        require_kind((x, *rest), "f")
        require_one_dtype((x, *rest))
        require(self.affine in ("none", "weight", "both"), "affine must be one of none weight both", affine=self.affine)
        count = 2 if self.affine == "none" else 3
        require(len(rest) + 1 == count, "affine={affine} takes {count} operands", affine=self.affine, count=count, operands=len(rest) + 1)
        require(x.ndim == 2, "needs x[R,N]", x=x)
        require(rest[-1] == x, "x and the cotangent must be one type", x=x, g=rest[-1])
        row = x.with_shape(x.shape[1:])
        for w in rest[:-1]:
            require(w == row, "weight must have shape {shape}", shape=show_shape(row.shape), weight=w)
        more = {"none": 0, "weight": 1, "both": 2}[self.affine]
        return (x, *(row,) * more) if more else x

    def ref(self, x: Any, *rest: Any) -> Any:
        *weight, g = (wide(a) for a in rest)
        y = wide(x)
        d = y - np.mean(y, -1, keepdims=True) if self.centred else y
        inverse = 1 / np.sqrt(np.mean(d * d, -1, keepdims=True) + self.eps)
        hat, gw = d * inverse, g * weight[0] if weight else g
        mean = np.mean(gw, -1, keepdims=True) if self.centred else 0
        dx = inverse * (gw - mean - hat * np.mean(gw * hat, -1, keepdims=True))
        out = (dx, np.sum(g * hat, 0), np.sum(g, 0))[: 1 + {"none": 0, "weight": 1, "both": 2}[self.affine]]
        return tuple(a.astype(x.dtype) for a in out) if len(out) > 1 else dx.astype(x.dtype)

    def decompose(self, x: Value, *rest: Value) -> Any:
        dtype = x.dtype
        x, *weight, g = (F.widened(v) for v in (x, *rest))  # terms cancel in the sums over rows: 16 bits would keep none of the rest
        d = F.sub(x, F.mean(x, (1,), keepdims=True)) if self.centred else x
        inverse = F.rsqrt(F.add(F.mean(F.square(d), (1,), keepdims=True), self.eps))
        hat, gw = F.mul(d, inverse), F.mul(g, weight[0]) if weight else g
        inner = F.sub(gw, F.mean(gw, (1,), keepdims=True)) if self.centred else gw
        dx = F.cast(F.mul(inverse, F.sub(inner, F.mul(hat, F.mean(F.mul(gw, hat), (1,), keepdims=True)))), dtype)
        if self.affine == "none":
            return dx
        dw = F.cast(F.sum_(F.mul(g, hat), (0,)), dtype)
        return (dx, dw) if self.affine == "weight" else (dx, dw, F.cast(F.sum_(g, (0,)), dtype))


def pull_back(inputs: Values, g: Value, *, eps: float, naxes: int, affine: str, centred: bool) -> MaybeValues:
    """The rule of a norm over the last naxes axes: one op over rows."""
    x, *rest = inputs
    lead, tail = x.shape[: len(x.shape) - naxes], x.shape[len(x.shape) - naxes :]
    rows, width = product(lead), product(tail)
    flat, cotangent = (F.reshape(v, (rows, width)) for v in (x, g))
    op = NormBackward(eps=eps, affine=affine, centred=centred)
    operands = (flat, *(F.reshape(w, (width,)) for w in rest[:1]), cotangent)
    made = op(*operands)  # in 16 bits only some targets have a kernel: see passes/decompose.py
    found = made if isinstance(made, tuple) else (made,)
    return tuple(F.reshape(v, like.shape) for v, like in zip(found, inputs, strict=True))
