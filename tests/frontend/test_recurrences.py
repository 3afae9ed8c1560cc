"""transformers' state-space models: their scans are single nodes, of any length, beside eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as T

import tilewright as tw
from tests.models.plain import Logits
from tilewright.frontend.torch.recurrences import SCANS

PLAIN: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False}
HEADS: dict[str, Any] = {**PLAIN, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40}
CONFIGS: dict[str, tuple[Any, str]] = {
    "mamba": (lambda: T.MambaConfig(**PLAIN, state_size=6), "selective_scan"),
    "falcon_mamba": (lambda: T.FalconMambaConfig(**PLAIN, state_size=6), "selective_scan"),
    "mamba2": (lambda: T.Mamba2Config(**PLAIN, num_heads=8, head_dim=8, state_size=10, n_groups=2, chunk_size=8), "gated_delta_rule"),
    "falcon_h1": (lambda: T.FalconH1Config(**HEADS, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_state=10, mamba_n_groups=2, mamba_chunk_size=8,
                                           ssm_in_multiplier=0.7), "gated_delta_rule"),
    "qwen3_next": (lambda: T.Qwen3NextConfig(
        **HEADS, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=4, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24), "gated_delta_rule"),
}


def module(name: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(3)
    model = T.AutoModelForCausalLM.from_config(CONFIGS[name][0]())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return Logits(model).eval().to(dtype)


def check(session: Any, model: Any, ids: Any, tolerance: float) -> None:
    with torch.no_grad():
        want = model(ids).double()
    assert (session(ids).double() - want).abs().max() < tolerance * want.abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_scans_are_single_nodes(name: str) -> None:
    """A batch, and a length that is no multiple of a chunk."""
    model, op = module(name), CONFIGS[name][1]
    ids = torch.randint(0, 61, (2, 19))
    session = tw.compile(model, (ids,))
    check(session, model, ids, 2e-5)
    names = [launch["name"] for launch in session.report().data["launches"]]
    assert sum(n.startswith(op) for n in names) == 2
    assert sum(n.startswith("causal_conv") for n in names) == 2
    assert len(names) < 130, "nothing is unrolled"


@pytest.mark.parametrize("name", ["mamba", "mamba2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("falcon_h1", "qwen3_next"))])
def test_any_length(name: str) -> None:
    model = module(name)
    session = tw.compile(model, (torch.zeros(2, 9, dtype=torch.int64),), dynamic={"x": {1: "L"}})
    for length in (1, 7, 8, 9, 16, 33):
        check(session, model, torch.randint(0, 61, (2, length)), 2e-5)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_next"])
def test_bf16(name: str) -> None:
    model = module(name, torch.bfloat16)
    ids = torch.randint(0, 61, (1, 13))
    check(tw.compile(model, (ids,)), model, ids, 5e-2)


def test_transformers_is_left_as_it_was() -> None:
    from transformers.models.mamba import modeling_mamba as m
    from transformers.models.qwen3_next import modeling_qwen3_next as q

    before = {fn: vars(x)[fn] for x in (m, q) for fn in SCANS if fn in vars(x)}
    tw.compile(module("mamba"), (torch.zeros(1, 3, dtype=torch.int64),))
    assert len(before) == 4
    assert before == {fn: vars(x)[fn] for x in (m, q) for fn in SCANS if fn in vars(x)}
