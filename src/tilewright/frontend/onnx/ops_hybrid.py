"""com.microsoft: linear attention, causal convolutions with a state and gates, as builders of hybrid language models write them."""
from __future__ import annotations

from typing import Any

from ... import ops as O
from ...core import dtypes as dt
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.scan.delta_net import every_head
from .ops_attention import heads, merged
from .registry import Context
from .tables import MICROSOFT, op, rows

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}  # decays, corrects


def _recurrence(c: Context, q: Value, k: Value, v: Value, state: Value | None, decay: Value | None, beta: Value | None, rule: str,
                scale: float) -> tuple[Value, Value]:
    """The memory of every head of v over the steps, in f32; of [B, N, T, D], decay and beta [B, N, T]. Heads of q and k may be fewer."""
    gated, corrects = RULES[rule]
    dtype, (b, n, t, wide), depth = v.dtype, v.shape, q.shape[-1]
    if q.shape[1] != k.shape[1]:
        q, k = every_head(q, v), every_head(k, v)
    if (gated and decay is None) or (corrects and beta is None):
        raise UnsupportedError(f"the update rule {rule!r} without its decay or its beta")
    g = F.cast(decay, dt.f32) if gated and decay is not None else c.full((b, n, t), 0.0, dt.f32)
    rate = F.expand(F.cast(beta, dt.f32), (b, n, t)) if corrects and beta is not None else c.full((b, n, t), 1.0, dt.f32)
    first = c.full((b, n, depth, wide), 0.0, dt.f32) if state is None else F.cast(state, dt.f32)
    out, last = O.GatedDeltaRule(scale=scale or float(int(depth)) ** -0.5, delta=corrects)(*(F.cast(x, dt.f32) for x in (q, k, v)), g, rate,
                                                                                             first)
    return F.cast(out, dtype), last


@op("LinearAttention", domain=MICROSOFT)
def linear_attention(c: Context, query: Value, key: Value, value: Value, past: Value | None = None, decay: Value | None = None,
                     beta: Value | None = None, *, q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
                     scale: float = 0.0, chunk_size: int = 64, state_window: int = 0) -> Any:
    if state_window or q_num_heads > kv_num_heads or (decay is not None and decay.shape[-1] != kv_num_heads):
        raise UnsupportedError("LinearAttention with several queries a state, a decay for each element of a key, or a window of states "
                               "(state_window)")
    q, v = heads(query, q_num_heads), heads(value, kv_num_heads)
    decay, beta = (None if x is None else F.transpose(x, (0, 2, 1)) for x in (decay, beta))
    out, last = _recurrence(c, q, heads(key, key.shape[-1] // q.shape[-1]), v, past, decay, beta, update_rule, scale)
    return merged(out), F.cast(last, query.dtype if past is None else past.dtype)


@op("GatedDeltaNet", domain=MICROSOFT)
def gated_delta_net(c: Context, query: Value, key: Value | None = None, value: Value | None = None, starts: Value | None = None,
                    decay: Value | None = None, beta: Value | None = None, state: Value | None = None, a_log: Value | None = None,
                    dt_bias: Value | None = None, *unused: Value | None, update_rule: str = "gated_delta", scale: float = 0.0,
                    gate_activation: str = "none", beta_activation: str = "none", qk_l2_norm: int = 0, chunk_size: int = 64,
                    state_update_capacity: int = 0) -> Any:
    """[B, T, N, D], with the state [B, N, V, K]; gates [B, T, N]."""
    if key is None or value is None or starts is not None or len(query.shape) != 4 or state_update_capacity:
        raise UnsupportedError("GatedDeltaNet of packed rows (cu_seqlens, packed QKV) or with state updates")
    q, k, v = (F.cast(F.transpose(x, (0, 2, 1, 3)), dt.f32) for x in (query, key, value))
    if qk_l2_norm:
        q, k = (F.mul(x, F.rsqrt(F.add(F.sum_(F.square(x), (3,), keepdims=True), 1e-6))) for x in (q, k))
    if decay is not None and gate_activation == "qwen":
        assert a_log is not None and dt_bias is not None
        decay = F.neg(F.mul(F.exp(F.cast(a_log, dt.f32)), F.softplus(F.add(F.cast(decay, dt.f32), F.cast(dt_bias, dt.f32)))))
    if beta is not None and beta_activation == "sigmoid":
        beta = F.sigmoid(F.cast(beta, dt.f32))
    decay, beta = (None if x is None else F.transpose(x, (0, 2, 1)) for x in (decay, beta))
    first = None if state is None else F.transpose(state, (0, 1, 3, 2))
    out, last = _recurrence(c, q, k, v, first, decay, beta, update_rule, scale)
    return F.cast(F.transpose(out, (0, 2, 1, 3)), query.dtype), F.transpose(last, (0, 1, 3, 2))


@op("CausalConvWithState", domain=MICROSOFT)
def causal_conv(c: Context, x: Value, w: Value, bias: Value | None = None, past: Value | None = None, *, activation: str = "none",
                ndim: int = 1, dilation: int = 1, channels_last: int = 0, state_window: int = 0) -> Any:
    """Each channel by itself over [B, C, T], behind the last elements of the call before."""
    if ndim != 1 or state_window or (channels_last and len(x.shape) != 3):
        raise UnsupportedError("CausalConvWithState of two or three axes, or with a window of states (state_window)")
    if channels_last:
        x, past = F.transpose(x, (0, 2, 1)), None if past is None else F.transpose(past, (0, 2, 1))
    _, n, t = x.shape
    held = (w.shape[2] - 1) * dilation
    wide = F.pad(x, (0, 0, held), (0, 0, 0)) if past is None else F.concat([past, x], 2)
    out = O.Conv(stride=(1,), padding=((0, 0),), dilation=(dilation,), groups=int(n))(wide, w)
    out = out if bias is None else F.add(out, F.reshape(bias, (n, 1)))
    out = F.silu(out) if activation in ("silu", "swish") else out
    made = out, F.slice_(wide, 2, t, held)
    return tuple(F.transpose(v, (0, 2, 1)) for v in made) if channels_last else made


@op("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(c: Context, x: Value, scale: Value, gate: Value, *, activation: str = "silu", epsilon: float = 1e-5) -> Value:
    """Rows of the length of `scale`, in f32."""
    few = (*x.shape[:-1], x.shape[-1] // scale.shape[0], scale.shape[0])
    y = O.RmsNorm(eps=epsilon, naxes=1, affine="weight")(F.reshape(F.cast(x, dt.f32), few), F.cast(scale, dt.f32))
    z = F.cast(gate, dt.f32)
    return F.cast(F.mul(F.reshape(y, x.shape), F.sigmoid(z) if activation == "sigmoid" else F.silu(z)), x.dtype)


rows({
    "LinearAttentionGate": lambda c, a, bias, scale, b=None:
        (F.cast(F.mul(F.softplus(F.add(F.cast(a, dt.f32), bias)), scale), a.dtype), None if b is None else F.sigmoid(b)),
    "GatedAdd": lambda c, x, y, gate: F.add(x, F.mul(y, gate)),
}, domain=MICROSOFT)
