"""Ops of com.microsoft that ONNX Runtime has for GPUs alone, beside PyTorch: what its optimizer writes for diffusion models and T5."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as TF

from tests.fresh import fresh_rng
from tests.onnx.models import one, ours

MS = "com.microsoft"


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def t(array: Any) -> torch.Tensor:
    return torch.from_numpy(array)


def group_norm(last: int) -> Any:
    x, gamma, beta = f(2, 8, 5, 6), f(8), f(8)
    want: Any = TF.silu(TF.group_norm(t(x), 4, t(gamma), t(beta), 1e-5))
    x, want = (x.transpose(0, 2, 3, 1).copy(), want.permute(0, 2, 3, 1)) if last else (x, want)
    return one("GroupNorm", [x, gamma, beta], domain=MS, groups=4, activation=1, channels_last=last, epsilon=1e-5), [want]


def skip_group_norm(*shape: int) -> Any:
    x, gamma, beta, skip, bias = f(2, 5, 6, 8), f(8), f(8), f(*shape), f(8)
    total = x + (skip if skip.ndim == 4 else skip[:, None, None]) + bias
    want = TF.group_norm(t(total.transpose(0, 3, 1, 2)), 2, t(gamma), t(beta), 1e-5).permute(0, 2, 3, 1)
    return one("SkipGroupNorm", [x, gamma, beta, skip, bias], domain=MS, groups=2, outputs=2, epsilon=1e-5), [want, total]


def bias_split_gelu() -> Any:
    x, bias = f(2, 3, 16), f(16)
    left, right = t(x + bias).chunk(2, -1)
    return one("BiasSplitGelu", [x, bias], domain=MS), [left * TF.gelu(right)]


def gemm_fast_gelu() -> Any:
    x, w, bias = f(2, 3, 16), f(16, 4), f(4)
    return one("GemmFastGelu", [x, w, bias], domain=MS), [TF.gelu(t(x @ w + bias), approximate="tanh")]


def nhwc_conv() -> Any:
    x, w, bias = f(2, 5, 6, 8), f(6, 4, 3, 3), f(6)
    want = TF.conv2d(t(x.transpose(0, 3, 1, 2)), t(w), t(bias), padding=1, groups=2).permute(0, 2, 3, 1)
    return one("NhwcConv", [x, w.transpose(0, 2, 3, 1).copy(), bias], domain=MS, pads=[1, 1, 1, 1], group=2), [want]


def relative_position_bias(both: int) -> Any:
    from transformers.models.t5.modeling_t5 import T5Attention

    table, away = f(32, 4), torch.arange(40)[None] - torch.arange(150)[:, None]
    at = T5Attention._relative_position_bucket(away, bidirectional=bool(both), num_buckets=32, max_distance=128).numpy()
    return one("RelativePositionBias", [table, np.array([150]), np.array([40])], domain=MS, fixed=(1, 2), is_bidirectional=both,
               max_distance=128), [table[at].transpose(2, 0, 1)[None]]


def gated_position_bias() -> Any:
    query, bias, places, w, w_bias, scale = f(2, 5, 8), f(8), f(1, 2, 5, 5), f(4, 6), f(6), f(1, 2, 1, 1)
    rows = t(query + bias).reshape(2, 5, 2, 4).transpose(1, 2) @ t(w) + t(w_bias)
    u, r = torch.sigmoid(rows.view(2, 2, 5, 2, 3).sum(-1)).chunk(2, -1)
    want = (u * (r * t(scale) - 1) + 2) * t(places)
    return one("GatedRelativePositionBias", [query, bias, places, w, w_bias, scale], domain=MS, num_heads=2), [want]


def gated_delta_net() -> Any:
    q, k, v, decay, beta, state = f(2, 5, 2, 8), f(2, 5, 2, 8), f(2, 5, 4, 6), f(2, 5, 4), f(2, 5, 4), f(2, 4, 6, 8)
    a_log, dt_bias = f(4), f(4)
    wide = [x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k)]
    wide_q, wide_k = (np.repeat(x, 2, 2).astype(np.float64) for x in wide)
    g, rate = -np.exp(a_log) * np.logaddexp(0, decay + dt_bias), 1 / (1 + np.exp(-beta))
    s, outs = state.astype(np.float64), []
    for i in range(5):
        s = s * np.exp(g[:, i])[..., None, None]
        correction = rate[:, i][..., None] * (v[:, i] - np.einsum("bhvk,bhk->bhv", s, wide_k[:, i]))
        s = s + correction[..., None] * wide_k[:, i][:, :, None]
        outs.append(np.einsum("bhvk,bhk->bhv", s, wide_q[:, i]) / np.sqrt(8))
    proto = one("GatedDeltaNet", [q, k, v, None, decay, beta, state, a_log, dt_bias], domain=MS, outputs=2, gate_activation="qwen",
                beta_activation="sigmoid", qk_l2_norm=1)
    return proto, [np.stack(outs, 1), s]


def experts(*, sparse: bool) -> Any:
    """Two of four experts with gates apart, shares by a softmax or as PhiMoE's routers give them."""
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    x, router, gate, down, up = f(6, 8), f(6, 4), f(4, 16, 8), f(4, 8, 16), f(4, 16, 8)
    share, at = sparsemixer(t(router), 0.01, False) if sparse else torch.softmax(t(router), 1).topk(2)
    want = torch.zeros(6, 8)
    for row in range(6):
        for p, e in zip(share[row], at[row], strict=True):
            g = t(gate)[e] @ t(x)[row]
            want[row] += p * (t(down)[e] @ (g * torch.sigmoid(1.5 * g) * (t(up)[e] @ t(x)[row] + 1)))
    return one("MoE", [x, router, gate, None, down, None, up], domain=MS, k=2, activation_type="swiglu", activation_alpha=1.5,
               activation_beta=1.0, use_sparse_mixer=int(sparse)), [want]


CASES: dict[str, Any] = {
    "experts": lambda: experts(sparse=False), "experts_of_sparse_mixer": lambda: experts(sparse=True),
    "group_norm": lambda: group_norm(1), "group_norm_channels_first": lambda: group_norm(0),
    "skip_group_norm": lambda: skip_group_norm(2, 5, 6, 8), "skip_group_norm_of_a_row": lambda: skip_group_norm(2, 8),
    "bias_add": lambda: (one("BiasAdd", (p := [f(2, 3, 8), f(8), f(2, 3, 8)]), domain=MS), [p[0] + p[1] + p[2]]),
    "bias_split_gelu": bias_split_gelu, "gemm_fast_gelu": gemm_fast_gelu, "nhwc_conv": nhwc_conv,
    "relative_positions": lambda: relative_position_bias(0), "relative_positions_both_ways": lambda: relative_position_bias(1),
    "gated_positions": gated_position_bias, "gated_delta_net": gated_delta_net,
}


@pytest.mark.parametrize("name", CASES)
def test_what_onnx_runtime_has_for_gpus_alone(name: str) -> None:
    made, want = CASES[name]()
    for a, b in zip(ours(*made), want, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=5e-5, atol=5e-5)
