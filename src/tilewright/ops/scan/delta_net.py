"""The gated delta rule (Yang, Kautz, Hatamizadeh, arXiv:2412.06464): a matrix of memory that decays, is corrected and is read at each step.

    S_t = exp(g_t) S_(t-1) + k_t (beta_t (v_t - k_t · exp(g_t) S_(t-1)))^T        o_t = scale q_t · S_t

Without the correction (`delta=False`) it is the state space of Mamba-2 (Dao & Gu, arXiv:2405.21060), with C, B, x, dt for q, k, v, beta:

    S_t = exp(g_t) S_(t-1) + k_t (beta_t v_t)^T

Shapes: q, k [B,G,L,K] · v [B,H,L,V] · g, beta [B,H,L] · first state [B,H,K,V]  →  o [B,H,L,V], last state [B,H,K,V].
H is a multiple of G: heads h * H/G … share the queries and keys of group h.
Operands may be stored in 16 bits: the memory and all arithmetic are f32. The backward pass is one op (delta_net_backward.py); forward
mode goes through the scan that the op is made of.

The backward pass of the gated delta rule as one op: the cotangents of all six operands in one sweep over time.

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
from ..base import E, MaybeValues, S, Values, register, single
from ..families import Composite, N, bf16, f16, f32, f64, i32, require_one_dtype


def shapes(length: Dim = 5, *, batch: Dim = 2, heads: int = 2, k: int = 3, v: int = 4, dtype: str = "f32",
           groups: int | None = None) -> list[TensorType]:
    t = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}[dtype]
    lead, few = (batch, heads, length), (batch, groups or heads, length)
    return [t(*few, k), t(*few, k), t(*lead, v), t(*lead), t(*lead), t(batch, heads, k, v)]


def checked(q: TensorType, k: TensorType, v: TensorType, g: TensorType, beta: TensorType, state: TensorType) -> None:
    """The rule of types that both passes share. (The backward pass is given queries and keys for every head.)"""
    dtype = require_one_dtype((q, k, v, g, beta, state))
    require(dtype.name in ("f16", "bf16", "f32", "f64"), "needs f16, bf16, f32 or f64 operands; cast first", dtype=dtype)
    require(q.ndim == 4 and v.ndim == 4, "needs q[B,H,L,K] and v[B,H,L,V]", q=q, v=v)
    depth, lead, (batch, groups, length, _) = q.shape[-1], v.shape[:3], q.shape
    same = groups == lead[1]
    shared = isinstance(groups, int) and isinstance(lead[1], int) and groups > 0 and lead[1] % groups == 0
    require(same or shared, "the heads of v must be a multiple of those of q", q=q, v=v)
    require((batch, length) == (lead[0], lead[2]), "q[B,G,L,K] and v[B,H,L,V] must have one batch and one length", q=q, v=v)
    require(isinstance(depth, int) and isinstance(v.shape[-1], int), "sizes of keys and values must be known", q=q, v=v)
    want = {"k": (k, q.shape), "v": (v, (*lead, v.shape[-1])), "g": (g, lead), "beta": (beta, lead),
            "state": (state, (*lead[:2], depth, v.shape[-1]))}
    for name, (got, shape) in want.items():
        require(got.shape == shape, "{name} must be [{shape}]", name=name, shape=",".join(map(str, shape)), type=got)


LOW, HIGH = (-1, -0.6, -1, -1.5, 0.05, -1), (1, 0.6, 1, -0.05, 0.95, 1)


@register
class GatedDeltaRule(Composite):
    """o and the last state. Operands: q, k, v, g (logarithms of decays), beta, first state."""

    scale: float = 1.0
    delta: bool = True
    work = 8
    whole = True
    samples = [S(*shapes(), low=LOW, high=HIGH), S(*shapes(4, k=17, v=19, heads=1), scale=0.25, low=LOW, high=HIGH),
               S(*shapes(3, dtype="f64"), scale=0.5, low=LOW, high=HIGH), S(*shapes(N, batch=1), low=LOW, high=HIGH),
               S(*shapes(0), low=LOW, high=HIGH), S(*shapes(dtype="bf16"), low=LOW, high=HIGH),
               S(*shapes(4, dtype="f16"), scale=0.5, low=LOW, high=HIGH), S(*shapes(4, heads=6, groups=2), low=LOW, high=HIGH),
               S(*shapes(5, heads=4, groups=1, v=17), delta=False, low=LOW, high=HIGH),
               S(*shapes(N, dtype="f64"), delta=False, scale=0.5, low=LOW, high=HIGH)]
    errors = [E(*shapes()[:5], f32(2, 2, 4, 3), match=r"state must be \[2,2,3,4\]"),
              E(*shapes()[:3], f32(2, 2, 4), *shapes()[4:], match=r"g must be \[2,2,5\]"),
              E(*shapes(heads=3)[:2], *shapes()[2:], match="the heads of v must be a multiple of those of q"),
              E(*shapes(4)[:2], *shapes()[2:], match="must have one batch and one length"),
              E(f32(2, 5, 3), *shapes()[1:], match=r"needs q\[B,H,L,K\] and v\[B,H,L,V\]"),
              E(*(t.with_dtype(i32().dtype) for t in shapes()), match="needs f16, bf16, f32 or f64 operands"),
              E(f32(2, 2, 5, N), f32(2, 2, 5, N), *shapes()[2:], match="sizes of keys and values must be known")]

    def infer(self, q: TensorType, k: TensorType, v: TensorType, g: TensorType, beta: TensorType,
              state: TensorType) -> tuple[TensorType, TensorType]:
        checked(q, k, v, g, beta, state)
        return v, state

    def ref(self, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> Any:
        dtype = q.dtype
        q, k, v, g, beta, s = (x.astype(np.float64) for x in (q, k, v, g, beta, state))
        q, k = (np.repeat(x, v.shape[1] // x.shape[1], 1) for x in (q, k))
        out = np.zeros(v.shape)
        for t in range(q.shape[2]):
            s = s * np.exp(g[:, :, t])[..., None, None]
            known = np.einsum("bhk,bhkv->bhv", k[:, :, t], s) if self.delta else 0.0
            correction = beta[:, :, t, None] * (v[:, :, t] - known)
            s = s + k[:, :, t, :, None] * correction[:, :, None]
            out[:, :, t] = self.scale * np.einsum("bhk,bhkv->bhv", q[:, :, t], s)
        return out.astype(dtype), s.astype(dtype)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        dtype = values[0].dtype
        q, k, v, g, beta, state = (F.widened(x) for x in values)
        q, k = every_head(q, v), every_head(k, v)
        batch, heads, length, depth = q.shape
        wide = v.shape[-1]

        def step(_: Graph, values: Values) -> Values:
            s, q, k, v, decay, beta = values
            s = F.mul(s, F.reshape(decay, (batch, heads, 1, 1)))
            column = F.reshape(k, (batch, heads, depth, 1))
            new = F.sub(v, F.sum_(F.mul(s, column), (2,))) if self.delta else v
            correction = F.mul(F.reshape(beta, (batch, heads, 1)), new)
            s = F.add(s, F.mul(column, F.reshape(correction, (batch, heads, 1, wide))))
            return s, F.sum_(F.mul(s, F.reshape(q, (batch, heads, depth, 1))), (2,))

        scaled = q if self.scale == 1 else F.mul(q, self.scale)
        xs = [F.transpose(x, (2, 0, 1, *range(3, len(x.shape)))) for x in (scaled, k, v, F.exp(g), beta)]
        body = single(step, state.type, *(x.type.with_shape(x.shape[1:]) for x in xs))
        last, out = F.apply("scan", state, *xs, body=body, carries=1, xs=5, length=length)
        return F.cast(F.transpose(out, (1, 2, 0, 3)), dtype), F.cast(last, dtype)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        """Memories are computed again in the backward pass, from marks every few steps."""
        given = [F.zeros(v) if g is None else g for v, g in zip(outputs, cotangents, strict=True)]
        q, k, v, *rest = inputs
        dq, dk, *made = F.apply("gated_delta_rule_backward", every_head(q, v), every_head(k, v), v, *rest, *given, scale=self.scale)
        return (summed(dq, q), summed(dk, k), *made)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "jvp" or (rule == "vjp" and not self.delta)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """The new axis and the batch axis are one."""
        whole = [F.broadcast_batch(v, bat, size) for v, bat in zip(inputs, batched, strict=True)]
        own = whole[0].shape[1]
        made = self(*(F.reshape(v, (size * own, *v.shape[2:])) for v in whole))
        return tuple(F.reshape(v, (size, own, *v.shape[1:])) for v in made)

    def flops(self, q: TensorType, k: TensorType, v: TensorType, g: TensorType, beta: TensorType, state: TensorType) -> Dim:
        return (7 if self.delta else 5) * v.numel * q.shape[-1]


def every_head(x: Value, v: Value) -> Value:
    """Queries or keys [B,G,L,K] for every head of v."""
    (batch, groups, length, depth), heads = x.shape, v.shape[1]
    if groups == heads:
        return x
    assert isinstance(groups, int) and isinstance(heads, int)
    one = F.reshape(x, (batch, groups, 1, length, depth))
    return F.reshape(F.expand(one, (batch, groups, heads // groups, length, depth)), (batch, heads, length, depth))


def summed(g: Value, x: Value) -> Value:
    """The transpose of `every_head`."""
    (batch, groups, length, depth), heads = x.shape, g.shape[1]
    if groups == heads:
        return g
    assert isinstance(groups, int) and isinstance(heads, int)
    return F.sum_(F.reshape(g, (batch, groups, heads // groups, length, depth)), (2,))


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
