"""The backward pass of the gated delta rule as one op: the cotangents of all six operands in one sweep over time.

With D = exp(g) S_(t-1), e = v - k · D, c = beta e, S = D + k c^T, o = scale q · S and the cotangent G of S, from the last step on:

    G += scale q go^T        dq = scale S go        dc = k · G        dbeta = dc · e        dv = beta dc
    dk = G c - D dv          G -= k dv^T            dg = sum(G D)     G = exp(g) G
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register, single
from ..families import Composite, N, f32
from .delta_net import HIGH, LOW, checked, shapes


def _given(length: Dim = 5, **sizes: Any) -> list[TensorType]:
    types = shapes(length, **sizes)
    return [*types, types[2], types[5]]


@register
class GatedDeltaRuleBackward(Composite):
    """dq, dk, dv, dg, dbeta, dstate of a gated delta rule, given its operands and the cotangents of o and of the last state."""

    scale: float = 1.0
    work = 30
    whole = True
    samples = [S(*_given(), low=(*LOW, -1, -1), high=(*HIGH, 1, 1)),
               S(*_given(37, k=17, v=19, heads=1, batch=1), scale=0.25, low=(*LOW, -1, -1), high=(*HIGH, 1, 1)),
               S(*_given(3, dtype="f64"), scale=0.5, low=(*LOW, -1, -1), high=(*HIGH, 1, 1)),
               S(*_given(N, batch=1), low=(*LOW, -1, -1), high=(*HIGH, 1, 1)), S(*_given(0), low=(*LOW, -1, -1), high=(*HIGH, 1, 1)),
               S(*_given(4, dtype="bf16"), low=(*LOW, -1, -1), high=(*HIGH, 1, 1)),
               S(*_given(4, dtype="f16"), low=(*LOW, -1, -1), high=(*HIGH, 1, 1))]
    errors = [E(*_given()[:7], f32(2, 2, 4, 3), match="cotangents must have the types of o and the state"),
              E(*_given()[:5], f32(2, 2, 4, 3), *_given()[6:], match=r"state must be \[2,2,3,4\]")]

    def infer(self, q: TensorType, k: TensorType, v: TensorType, g: TensorType, beta: TensorType, state: TensorType,
              go: TensorType, gs: TensorType) -> tuple[TensorType, ...]:
        checked(q, k, v, g, beta, state)
        require(q.shape[1] == v.shape[1], "needs queries and keys for every head", q=q, v=v)
        require((go, gs) == (v, state), "cotangents must have the types of o and the state", o=go, state=gs)
        return q, k, v, g, beta, state

    def ref(self, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        q, k, v, g, beta, state, go, grad = (x.astype(np.float64) for x in arrays)
        before, s = [], state
        for t in range(q.shape[2]):
            before.append(s)
            decayed = s * np.exp(g[:, :, t])[..., None, None]
            error = v[:, :, t] - np.einsum("bhk,bhkv->bhv", k[:, :, t], decayed)
            s = decayed + k[:, :, t, :, None] * (beta[:, :, t, None] * error)[:, :, None]
        dq, dk, dv, dg, dbeta = (np.zeros(x.shape) for x in (q, k, v, g, beta))
        for t in range(q.shape[2])[::-1]:
            key, decay = k[:, :, t], np.exp(g[:, :, t])[..., None, None]
            decayed = before[t] * decay
            error = v[:, :, t] - np.einsum("bhk,bhkv->bhv", key, decayed)
            c = beta[:, :, t, None] * error
            grad = grad + self.scale * q[:, :, t, :, None] * go[:, :, t, None]
            dq[:, :, t] = self.scale * np.einsum("bhkv,bhv->bhk", decayed + key[..., None] * c[:, :, None], go[:, :, t])
            dc = np.einsum("bhk,bhkv->bhv", key, grad)
            dbeta[:, :, t] = (dc * error).sum(-1)
            dv[:, :, t] = beta[:, :, t, None] * dc
            dk[:, :, t] = np.einsum("bhkv,bhv->bhk", grad, c) - np.einsum("bhkv,bhv->bhk", decayed, dv[:, :, t])
            grad = grad - key[..., None] * dv[:, :, t, None]
            dg[:, :, t] = (grad * decayed).sum((-2, -1))
            grad = grad * decay
        return tuple(x.astype(dtype) for x in (dq, dk, dv, dg, dbeta, grad))

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        dtype = values[0].dtype
        q, k, v, g, beta, state, go, grad = (F.widened(x) for x in values)
        batch, heads, length, depth = q.shape
        width = v.shape[-1]

        def column(x: Value) -> Value:
            return F.reshape(x, (batch, heads, depth, 1))

        def row(x: Value) -> Value:
            return F.reshape(x, (batch, heads, 1, width))

        def one(x: Value, rank: int) -> Value:
            return F.reshape(x, (batch, heads, *(1,) * rank))

        def decayed(s: Value, k: Value, v: Value, decay: Value, beta: Value) -> tuple[Value, Value, Value]:
            """D, e and c of a step."""
            s = F.mul(s, one(decay, 2))
            error = F.sub(v, F.sum_(F.mul(s, column(k)), (2,)))
            return s, error, F.mul(one(beta, 1), error)

        def forward(_: Graph, values: Values) -> Values:
            s, k, v, decay, beta = values
            d, _error, c = decayed(s, k, v, decay, beta)
            return F.add(d, F.mul(column(k), row(c))), s

        def backward(_: Graph, values: Values) -> Values:
            grad, s, q, k, v, decay, beta, go = values
            d, error, c = decayed(s, k, v, decay, beta)
            grad = F.add(grad, F.mul(column(q), row(go)))
            dq = F.sum_(F.mul(F.add(d, F.mul(column(k), row(c))), row(go)), (3,))
            dc = F.sum_(F.mul(grad, column(k)), (2,))
            dv = F.mul(one(beta, 1), dc)
            dk = F.sum_(F.sub(F.mul(grad, row(c)), F.mul(d, row(dv))), (3,))
            grad = F.sub(grad, F.mul(column(k), row(dv)))
            return F.mul(grad, one(decay, 2)), dq, dk, dv, F.sum_(F.mul(grad, d), (2, 3)), F.sum_(F.mul(dc, error), (2,))

        scaled = F.mul(q, self.scale)
        first, *rest = (F.transpose(x, (2, 0, 1, *range(3, len(x.shape)))) for x in (scaled, k, v, F.exp(g), beta))
        cotangent = F.transpose(go, (2, 0, 1, 3))
        body = single(forward, state.type, *(x.type.with_shape(x.shape[1:]) for x in rest))
        _, before = F.apply("scan", state, *rest, body=body, carries=1, xs=4, length=length)
        xs = [before, first, *rest, cotangent]
        back = single(backward, grad.type, *(x.type.with_shape(x.shape[1:]) for x in xs))
        last, dq, *others = F.apply("scan", grad, *xs, body=back, carries=1, xs=7, length=length, reverse=True)
        made = [F.transpose(x, (1, 2, 0, *range(3, len(x.shape)))) for x in (F.mul(dq, self.scale), *others)]
        return tuple(F.cast(x, dtype) for x in (*made, last))

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *_: TensorType) -> Dim:
        return 24 * q.numel * v.shape[-1]
