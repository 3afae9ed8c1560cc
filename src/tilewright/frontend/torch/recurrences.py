"""The recurrences of transformers' state-space models (Mamba, Mamba-2, gated delta net and what is built of them) as single ops.

transformers writes each as a function of its model's module: a loop over time, or over chunks of it. While a module is exported, functions
of the same names and arguments take their places, so that neither the loop is unrolled nor the length fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

MODELS = "transformers.models."
PACKED = ("seq_idx", "cu_seqlens")  # several sequences in one row: transformers itself has no way without other packages


@contextmanager
def scans() -> Iterator[None]:
    """Inside, recurrences of models that are loaded are the ops of this package."""
    before: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith(MODELS):
            before += [(module, fn, vars(module)[fn]) for fn in SCANS if fn in vars(module)]
    try:
        for module, fn, old in before:
            setattr(module, fn, _instead(SCANS[fn], old))
        yield
    finally:
        for module, fn, old in before:
            setattr(module, fn, old)


def _instead(new: Callable[..., Any], old: Any) -> Any:
    @wraps(old)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = None if any(kwargs.get(key) is not None for key in PACKED) else new(*args, **kwargs)
        return old(*args, **kwargs) if made is None else made

    return call


@cache
def _ops() -> Any:
    """torch's side of the ops: their shapes."""
    import torch

    library = torch.library.Library("tilewright", "FRAGMENT")
    operands = "Tensor x, Tensor delta, Tensor a, Tensor b, Tensor c, Tensor skip, Tensor? z, Tensor state"
    library.define(f"selective_scan({operands}) -> (Tensor, Tensor)")
    library.impl("selective_scan", lambda x, *rest: (x.new_empty(x.shape), x.new_empty(rest[-1].shape)), "Meta")
    operands = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state, float scale, bool delta"
    library.define(f"gated_delta_rule({operands}) -> (Tensor, Tensor)")
    library.impl("gated_delta_rule", lambda q, k, v, g, beta, s, *_: (v.new_empty(v.shape), v.new_empty(s.shape)), "Meta")
    library.define("causal_conv(Tensor x, Tensor weight, Tensor bias, Tensor state) -> (Tensor, Tensor)")
    library.impl("causal_conv", lambda x, _, __, state: (x.new_empty(x.shape), state.new_empty(state.shape)), "Meta")
    return library, torch.ops.tilewright


def _wide(x: Any) -> Any:
    """The dtype of arithmetic beside an input x."""
    import torch

    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _conv(hidden_states: Any, weight: Any, bias: Any = None, activation: str | None = None, **_: Any) -> Any:
    """hidden_states [B,D,L] · weight [D,taps] · bias [D]; None for an activation that the op does not have."""
    if activation not in ("silu", "swish") or weight.shape[1] < 2:
        return None
    x, (width, taps) = hidden_states.transpose(1, 2).to(weight.dtype), weight.shape
    bias = x.new_zeros(width) if bias is None else bias.to(x.dtype)
    y, _last = _ops()[1].causal_conv(x, weight.t(), bias, x.new_zeros(x.shape[0], taps - 1, width))
    return y.transpose(1, 2).to(hidden_states.dtype)


def _steps(dt: Any, bias: Any, softplus: bool) -> Any:
    import torch

    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return torch.nn.functional.softplus(dt) if softplus else dt


def _mamba(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
           delta_softplus: bool = False, return_last_state: bool = False, **_: Any) -> Any:
    """hidden_states, dt, z [B,D,L] · A [D,N] · B, C [B,N,L] · D, delta_bias [D]."""
    import torch

    wide, x = _wide(hidden_states), hidden_states.transpose(1, 2)
    dt = _steps(dt.transpose(1, 2), delta_bias, delta_softplus)
    skip = x.new_zeros(x.shape[2], dtype=wide) if D is None else D.to(wide)
    gate = None if z is None else z.transpose(1, 2).to(wide)
    first = x.new_zeros(x.shape[0], x.shape[2], A.shape[1], dtype=wide)
    rows = (v.transpose(1, 2).to(wide) for v in (B, C))
    y, last = _ops()[1].selective_scan(x.to(wide), dt.to(wide), A.to(wide), *rows, skip, gate, first)
    y = y.transpose(1, 2).to(hidden_states.dtype if D is None else torch.promote_types(hidden_states.dtype, D.dtype))
    return (y, last) if return_last_state else y


def _mamba2(hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int = 0, D: Any = None, dt_bias: Any = None,
            initial_states: Any = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
            return_final_states: bool = False, **_: Any) -> Any:
    """hidden_states [B,L,H,P] · dt [B,L,H] · A, D, dt_bias [H] · B, C [B,L,G,N]; states are [B,H,P,N]."""
    wide, x = _wide(hidden_states), hidden_states
    dt = _steps(dt, dt_bias, dt_softplus).clamp(*dt_limit).to(wide)
    if initial_states is None:
        first = x.new_zeros(x.shape[0], x.shape[2], B.shape[3], x.shape[3], dtype=wide)
    else:
        first = initial_states.transpose(2, 3).to(wide)
    beta, v, q, k = (t.transpose(1, 2) for t in (dt, x.to(wide), C.to(wide), B.to(wide)))
    y, last = _ops()[1].gated_delta_rule(q, k, v, (A.to(wide) * dt).transpose(1, 2), beta, first, 1.0, False)
    y = y.transpose(1, 2).contiguous()
    y = y if D is None else y + D.to(wide)[:, None] * x.to(wide)
    return (y, last.transpose(2, 3)) if return_final_states else y


def _delta_rule(query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, initial_state: Any = None,
                output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **_: Any) -> Any:
    """query, key [B,L,H,K] · value [B,L,H,V] · g, beta [B,L,H]; states are [B,H,K,V]."""
    import torch

    wide = _wide(query)
    q, k, v, gate, rate = (t.transpose(1, 2).to(wide) for t in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    shape = (*v.shape[:2], k.shape[3], v.shape[3])
    first = v.new_zeros(shape) if initial_state is None else initial_state.to(wide)
    out, last = _ops()[1].gated_delta_rule(q, k, v, gate, rate, first, float(k.shape[3]) ** -0.5, True)
    return out.transpose(1, 2).to(query.dtype), last if output_final_state else None


def _one_by_one(query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None, *rest: Any, **named: Any) -> Any:
    """The rule without an argument for the length of chunks."""
    return _delta_rule(query, key, value, g, beta, 1, initial_state, *rest, **named)


SCANS: dict[str, Callable[..., Any]] = {"causal_conv1d_fn": _conv, "mamba_selective_scan": _mamba, "mamba2_chunk_scan": _mamba2,
                                        "torch_chunk_gated_delta_rule": _delta_rule, "torch_recurrent_gated_delta_rule": _one_by_one}
