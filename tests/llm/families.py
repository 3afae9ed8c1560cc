"""Small random models of every architecture, made by transformers, and the same weights in our decoder."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tilewright.llm.hf import tensors_from_state
from tilewright.llm.hf_config import config_from_json
from tilewright.llm.loading import assemble
from tilewright.llm.model import LLM
from tilewright.llm.tokenizer import SpecialIds, Tokenizer
from tilewright.llm.weights import Weights

VOCAB = 131
SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "max_position_embeddings": 64, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}
RECURRENT: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1,
                             "eos_token_id": 2}


def configs() -> dict[str, Callable[[], Any]]:
    """Name -> a function that gives a transformers config."""
    import transformers as tf

    return {
        "llama": lambda: tf.LlamaConfig(**SIZES),
        "llama_tied": lambda: tf.LlamaConfig(**{**SIZES, "tie_word_embeddings": True, "attention_bias": True}),
        "llama3_rope": lambda: tf.LlamaConfig(**SIZES, rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}),
        "wide_heads": lambda: tf.LlamaConfig(**SIZES, head_dim=32),
        "mistral": lambda: tf.MistralConfig(**SIZES, sliding_window=5),
        "qwen2": lambda: tf.Qwen2Config(**SIZES),
        "qwen3": lambda: tf.Qwen3Config(**SIZES, head_dim=16),
        "gemma2": lambda: tf.Gemma2Config(**{**SIZES, "tie_word_embeddings": True}, head_dim=16, query_pre_attn_scalar=24,
                                          sliding_window=4),
        "gemma3": lambda: tf.Gemma3TextConfig(**{**SIZES, "tie_word_embeddings": True}, head_dim=16, query_pre_attn_scalar=24,
                                              sliding_window=4),
        "phi3": lambda: tf.Phi3Config(**SIZES, sliding_window=7),
        "gpt2": lambda: tf.GPT2Config(n_embd=48, n_layer=3, n_head=4, n_positions=64, vocab_size=VOCAB),
        "mixtral": lambda: tf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
        "qwen3moe": lambda: tf.Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
                                              norm_topk_prob=False, decoder_sparse_step=1),
        "mamba": lambda: tf.MambaConfig(**RECURRENT, state_size=5, time_step_rank=7),
        "mamba2": lambda: tf.Mamba2Config(**RECURRENT, num_heads=6, head_dim=16, state_size=9, n_groups=2, chunk_size=8, conv_kernel=3,
                                          time_step_limit=(0.01, 0.6)),
        "qwen3next": lambda: tf.Qwen3NextConfig(
            **SIZES, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=4,
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
            layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "falcon_h1": lambda: tf.FalconH1Config(
            **SIZES, mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=2, mamba_chunk_size=8,
            key_multiplier=0.7, ssm_multipliers=[0.9, 1.1, 0.8, 1.2, 0.7], lm_head_multiplier=0.6, embedding_multiplier=1.7,
            mlp_multipliers=[0.8, 1.3], attention_in_multiplier=1.1, attention_out_multiplier=0.9, ssm_in_multiplier=1.2,
            ssm_out_multiplier=0.8),
    }


def make(name: str, seed: int = 0, config: Any = None) -> Any:
    """A transformers model with weights large enough that every part of it matters. `config` is another than the name's."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = configs()[name]() if config is None else config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            spread = 0.3 if "norm" in key or "ln_" in key or key.endswith("bias") else 0.15
            p.add_(torch.randn_like(p) * spread)
    return model


def ours(model: Any, *, cache_dtype: str = "f32", context_length: int = 64, **options: Any) -> LLM:
    config = config_from_json(model.config.to_dict())
    state = {k: (lambda v=v: v.detach().numpy()) for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    weights = Weights(tensors_from_state(state, config), config)
    return assemble(config, weights, letters(), context_length=context_length, cache_dtype=cache_dtype, **options)


def letters() -> Tokenizer:
    """Token i is the character with that number, as far as there are tokens."""
    return Tokenizer([chr(i) for i in range(VOCAB)], [1] * VOCAB, SpecialIds(eos=2),
                     lambda by_text: lambda text, first: [ord(c) for c in text], lambda text: text.encode())


def reference(model: Any, ids: list[int]) -> Any:
    """Logits at every position, f32[len(ids), vocab]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def relative(got: Any, want: Any) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())
