"""Every field of a config.json that changes what a model computes is honoured, as transformers does, or refused by name."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fresh import fresh_rng
from tests.llm.families import RECURRENT, SIZES, VOCAB, make, ours, reference, relative
from tilewright.core.errors import FormatError, TilewrightError, UnsupportedError
from tilewright.llm.config import ModelConfig
from tilewright.llm.hf_config import ACTIVATIONS, DEFAULTS, config_from_json

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SMALL = {**SIZES, "num_hidden_layers": 2}
TIED = {**SMALL, "tie_word_embeddings": True, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 4}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": VOCAB}


def lists(count: int, low: float) -> list[float]:
    return [low + 0.25 * i for i in range(count)]


LONG = {"rope_type": "longrope", "short_factor": lists(6, 1.0), "long_factor": lists(6, 2.0)}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL), "mistral": ("MistralConfig", SMALL), "qwen2": ("Qwen2Config", {**SMALL, "num_hidden_layers": 3}),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16, "num_hidden_layers": 3}), "gemma2": ("Gemma2Config", TIED),
    "gemma3": ("Gemma3TextConfig", {**TIED, "num_hidden_layers": 3}), "phi3": ("Phi3Config", SMALL), "gpt2": ("GPT2Config", GPT2),
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {**SMALL, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    "mamba": ("MambaConfig", {**RECURRENT, "num_hidden_layers": 2}),
    "mamba2": ("Mamba2Config", {**RECURRENT, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 16, "n_groups": 1, "state_size": 8}),
    "qwen3_next": ("Qwen3NextConfig", {
        **SMALL, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "num_experts": 4,
        "linear_num_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16}),
    "falcon_h1": ("FalconH1Config", {**SMALL, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2}),
}
HONOURED: list[tuple[str, dict[str, Any]]] = [
    *(("llama", {"hidden_act": a}) for a in ("relu", "gelu", "gelu_new", "swish")),
    ("llama", {"attention_bias": True, "mlp_bias": True}), ("llama", {"rms_norm_eps": 0.05}), ("llama", {"num_key_value_heads": None}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 300.0}}), ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}), ("llama", {"sliding_window": 3}),
    ("llama", {"rope_parameters": {**LONG, "original_max_position_embeddings": 32, "factor": 3.0}}), ("mistral", {"sliding_window": None}),
    ("mistral", {"hidden_act": "gelu_pytorch_tanh", "head_dim": 20, "sliding_window": 3}), ("mixtral", {"sliding_window": 3}),
    ("mixtral", {"hidden_act": "relu", "num_experts_per_tok": 3}), ("qwen2", {"hidden_act": "gelu"}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}), ("qwen2", {"sliding_window": 3}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ("qwen3", {"attention_bias": True}), ("qwen3_moe", {"norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 3}),
    ("qwen3_moe", {"hidden_act": "relu", "attention_bias": True}), ("gemma2", {"hidden_activation": "silu"}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": 3.0}), ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"attention_bias": True, "layer_types": ["full_attention", "sliding_attention"]}), ("gemma3", {"sliding_window_pattern": 2}),
    ("gemma3", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9000.0},
                                    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    ("gemma3", {"hidden_activation": "relu", "final_logit_softcapping": 4.0}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 100.0}}),
    ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}), ("phi3", {"hidden_act": "relu", "sliding_window": 3}),
    ("phi3", {"rope_parameters": {**LONG, "attention_factor": 1.5}, "original_max_position_embeddings": 32}),
    ("gpt2", {"activation_function": "relu"}), ("gpt2", {"activation_function": "gelu"}), ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}), ("gpt2", {"n_inner": 64, "layer_norm_epsilon": 0.03}),
    ("mamba", {"use_bias": True, "use_conv_bias": False}), ("mamba", {"expand": 3, "conv_kernel": 2, "layer_norm_epsilon": 0.1}),
    ("mamba2", {"use_bias": True, "use_conv_bias": False}), ("qwen3_next", {"full_attention_interval": 2, "norm_topk_prob": False}),
    ("qwen3_next", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 50.0},
                    "layer_types": ["full_attention"] * 2}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}), ("falcon_h1", {"mamba_rms_norm": True}),
    ("falcon_h1", {"mamba_d_ssm": None, "mamba_conv_bias": False, "tie_word_embeddings": True, "lm_head_multiplier": 0.5}),
    ("gpt2", {"reorder_and_upcast_attn": True}), ("gpt2", {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("kind", "fields"), [  # a part of them in every run
    pytest.param(k, f, id=f"{k}-{'-'.join(f)}-{i}", marks=pytest.mark.slow if i % 6 else ()) for i, (k, f) in enumerate(HONOURED)
])  # fmt: skip
def test_a_field_does_what_it_does_in_transformers(kind: str, fields: dict[str, Any]) -> None:
    import transformers as tf

    name, sizes = KINDS[kind]
    model = make(name, config=getattr(tf, name)(**{**sizes, **fields}))
    ids = [int(i) for i in fresh_rng().integers(0, VOCAB, 17)]
    llm = ours(model, context_length=24)
    assert relative(llm.feed(llm.start(), ids), reference(model, ids)[-1]) < 2e-5


def test_long_factors_are_those_of_a_long_context() -> None:
    """The length that the model is loaded for decides, not that of a prompt: transformers changes its mind in the middle of a text."""
    import transformers as tf

    model = make("phi3", config=tf.Phi3Config(**SMALL, rope_parameters=LONG, original_max_position_embeddings=16))
    ids = [int(i) for i in fresh_rng().integers(0, VOCAB, 20)]
    for length, context in ((20, 40), (15, 16)):
        llm = ours(model, context_length=context)
        assert relative(llm.feed(llm.start(), ids[:length]), reference(model, ids[:length])[-1]) < 2e-5


def test_the_comparison_sees_a_field_that_is_ignored() -> None:
    """Each of these fields matters: with it left out of our reading the logits are others."""
    import transformers as tf

    for kind, fields in HONOURED:
        if kind in ("llama", "gpt2") and not {"num_key_value_heads", "sliding_window", "reorder_and_upcast_attn", "mlp_bias"} & set(fields):
            name, sizes = KINDS[kind]
            with_it, without = (config_from_json(getattr(tf, name)(**{**sizes, **f}).to_dict()) for f in (fields, {}))
            assert with_it != without or fields == {"hidden_act": "swish"}, (kind, fields)


@pytest.mark.parametrize("kind", sorted(DEFAULTS))
def test_a_missing_field_is_transformers_default(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[kind]
    sizes = {"n_embd": 512, "n_layer": 3, "n_head": 4, "vocab_size": 50} if kind == "gpt2" else {
        "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 32, "intermediate_size": 100, "vocab_size": 50}
    if kind == "mamba2":  # whose heads have to fit
        sizes["hidden_size"] = 4096
    written = cls(**sizes).to_dict()
    assert config_from_json({"model_type": kind, **sizes}) == config_from_json(written)
    other = {**written, "tie_word_embeddings": not written["tie_word_embeddings"]}
    assert config_from_json({"model_type": kind, **sizes}) != config_from_json(other)


def test_activations_are_those_of_transformers() -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 401, dtype=torch.float64)
    ours_ = {"silu": torch.nn.functional.silu, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
             "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh")}
    for name, kind in ACTIVATIONS.items():
        assert torch.allclose(ACT2FN[name](x), ours_[kind](x), atol=1e-6), name


BASE = {"model_type": "llama", **SMALL}
REFUSED: list[tuple[dict[str, Any], type[TilewrightError], str]] = [
    ({"hidden_act": "quick_gelu"}, UnsupportedError, r"'hidden_act' is 'quick_gelu', which is not supported; supported: silu"),
    ({"hidden_act": 3}, FormatError, "'hidden_act' must be a string, got 3"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, UnsupportedError, "'rope_type' is 'yarn', which is not supported"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedError, "'rope_type' is 'dynamic'"),
    ({"rope_scaling": {"rope_type": "linear"}}, FormatError, "'factor' must be a number above 0 and at most 1e\\+12, got nothing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, FormatError, "'factor' must be a number above 0"),
    ({"rope_scaling": [1]}, FormatError, r"'rope_scaling' must be an object, got \[1\]"),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, FormatError, "'high_freq_factor' must be above low_freq_factor, 1"),
    ({"rope_scaling": {**LONG, "short_factor": [1.0]}}, FormatError, "'short_factor' must be a list of 6 numbers"),
    ({"rope_scaling": {**LONG, "short_factor": [0.0] * 6}}, FormatError, "'0' must be a number above 0"),
    ({"rope_theta": float("nan")}, FormatError, "'rope_theta' must be a number of at least 1 and at most 1e\\+12, got nan"),
    ({"rope_theta": "x"}, FormatError, "'rope_theta' must be a number"),
    ({"rope_theta": 10**400}, FormatError, "got an integer of 1329 bits"),
    ({"partial_rotary_factor": 0.5}, UnsupportedError, "'partial_rotary_factor' is 0.5"),
    ({"quantization_config": {"bits": 4}}, UnsupportedError, "'quantization_config' is"),
    ({"use_bidirectional_attention": True}, UnsupportedError, "'use_bidirectional_attention' is True"),
    ({"num_hidden_layers": 10**9}, FormatError, r"'num_hidden_layers' must be an integer in 1\.\.4096, got 1000000000"),
    ({"num_hidden_layers": 2.5}, FormatError, "'num_hidden_layers' must be an integer"),
    ({"num_hidden_layers": True}, FormatError, "got True"),
    ({"hidden_size": -3}, FormatError, r"'hidden_size' must be an integer in 1\.\."),
    ({"hidden_size": None}, FormatError, "'hidden_size' must be an integer in .*, got nothing"),
    ({"num_attention_heads": 0}, FormatError, "'num_attention_heads' must be"),
    ({"num_key_value_heads": 3}, FormatError, "4 heads of 12 elements cannot share 3 key heads"),
    ({"head_dim": 13}, FormatError, "rotated dims must be even and in 2..13, the size of a head, got 13"),
    ({"rms_norm_eps": -1e-5}, FormatError, "'rms_norm_eps' must be a number of at least 0 and at most 1, got -1e-05"),
    ({"rms_norm_eps": [1]}, FormatError, r"'rms_norm_eps' must be a number .*, got \[1\]"),
    ({"attention_bias": "yes"}, FormatError, "'attention_bias' must be true or false, got 'yes'"),
    ({"tie_word_embeddings": 1}, FormatError, "'tie_word_embeddings' must be true or false"),
    ({"vocab_size": 1 << 40}, FormatError, "'vocab_size' must be"), ({"max_position_embeddings": "64"}, FormatError, "got '64'"),
    ({"model_type": None}, FormatError, "'model_type' must be a string, got nothing"),
    ({"model_type": ["llama"]}, FormatError, "'model_type' must be a string"),
    ({"model_type": "rwkv"}, UnsupportedError, "architecture 'rwkv' is not supported"),
    ({"model_type": "mamba", "expand": 0}, FormatError, "'expand' must be an integer in 1"),
    ({"model_type": "mamba", "hidden_act": "gelu"}, UnsupportedError, "'hidden_act' is 'gelu', which is not supported; supported: silu"),
    ({"model_type": "mamba2", "num_heads": 7, "head_dim": 12}, FormatError, "'head_dim' must be 96 / num_heads, 7, got 12"),
    ({"model_type": "mamba2", "num_heads": 6, "head_dim": 16, "n_groups": 4}, FormatError, "6 heads of a recurrence cannot be 4 groups"),
    ({"model_type": "mamba2", "num_heads": 6, "head_dim": 16, "n_groups": 1, "time_step_limit": [1, 0]}, FormatError,
     "'time_step_limit' must be two numbers, the smaller first"),
    ({"model_type": "qwen3_next", "layer_types": ["full_attention"]}, FormatError, "a list of 2 names, one a layer"),
    ({"model_type": "qwen3_next", "layer_types": ["full_attention", "hybrid"]}, UnsupportedError, "'layer_types' is 'hybrid'"),
    ({"model_type": "falcon_h1", "mamba_proj_bias": True}, UnsupportedError, "'mamba_proj_bias' is True"),
    ({"model_type": "falcon_h1", "mamba_d_head": 3}, FormatError, "'mamba_d_head' must be 1024 / mamba_n_heads, 128, got 3"),
    ({"model_type": "falcon_h1", "ssm_multipliers": [1.0]}, FormatError, "'ssm_multipliers' must be a list of 5 numbers"),
    ({"model_type": "mistral", "sliding_window": 0}, FormatError, "'sliding_window' must be an integer in 1"),
    ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"]}, FormatError, "a list of 2 names, one a layer"),
    ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention", "chunked_attention"]}, UnsupportedError,
     "'layer_types' is 'chunked_attention'"),
    ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, FormatError,
     "'sliding_window' must be a positive integer where layer_types has sliding_attention"),
    ({"model_type": "gemma2", "attn_logit_softcapping": 0.0}, FormatError, "'attn_logit_softcapping' must be a number above 0"),
    ({"model_type": "gemma2", "query_pre_attn_scalar": -1}, FormatError, "'query_pre_attn_scalar' must be a number above 0"),
    ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}}, FormatError, "an object with full_attention and sliding"),
    ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, UnsupportedError, "'attn_logit_softcapping' is 5.0"),
    ({"model_type": "gemma3", "text_config": 3}, FormatError, "'text_config' must be an object, got 3"),
    ({"rope_parameters": {"full_attention": {}}}, UnsupportedError, "'rope_parameters' is .*one for all layers is"),
    ({"model_type": "mixtral", "num_experts_per_tok": 9}, FormatError, "9 of 8 experts cannot serve a token"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, UnsupportedError, r"'mlp_only_layers' is \[0\]"),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, UnsupportedError, "'decoder_sparse_step' is 2"),
    ({"model_type": "gpt2", "add_cross_attention": True}, UnsupportedError, "'add_cross_attention' is True"),
]


@pytest.mark.parametrize(("fields", "error", "message"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], error: type[TilewrightError], message: str) -> None:
    with pytest.raises(error, match=rf"(?s){message}.*\(the/config\.json\)$"):
        config_from_json({**BASE, **fields}, "the/config.json")


def test_a_record_says_what_does_not_fit() -> None:
    plain = ModelConfig("llama", 2, 48, 4, 2, 12, 99, 64)
    with pytest.raises(FormatError, match=r"rotated dims must be even and in 2\.\.12, the size of a head, got 0 \(x\)"):
        plain.checked("x")
