"""The record of a model in a GGUF file: metadata under the architecture's name, with llama.cpp's meaning."""
from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import FormatError
from .config import MOST_CONTEXT, MOST_LAYERS, Mixer, ModelConfig, Recurrence, RopeConfig, every_layer, require_known
from .fields import Fields

if TYPE_CHECKING:
    from ..frontend.gguf import GGUFFile
    from ..ops.quant import PackedTensor

# Keys that change what a model computes, and the values with which they do not.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,), "attention.clamp_kqv": (0.0,), "attention.max_alibi_bias": (0.0,), "use_parallel_residual": (False,),
    "logit_scale": (0.0, 1.0), "residual_scale": (0.0, 1.0), "embedding_scale": (0.0, 1.0), "expert_shared_count": (0,),
    "expert_weights_scale": (0.0, 1.0), "expert_weights_norm": (True,), "expert_gating_func": (0, 1), "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1), "expert_group_count": (0, 1), "nextn_predict_layers": (0,), "attention.temperature_scale": (0.0,),
}
KINDS = {"none": "none", "linear": "linear", "longrope": "longrope"}


def from_gguf(file: GGUFFile) -> ModelConfig:
    """The record of a GGUF file; whatever makes no sense is a FormatError."""
    source = file.metadata.source
    arch = file.metadata.text("general.architecture")
    require_known(arch, source)
    fields = Fields(file.metadata, "gguf: metadata", source, f"{arch}.")
    for key, values in NEUTRAL.items():
        fields.only(key, *values)
    width = fields.integer("embedding_length", high=1 << 20)
    layers = fields.integer("block_count", high=MOST_LAYERS)
    if arch in ("mamba", "mamba2"):
        return _recurrent(arch, fields, layers, width, _embedding(file).shape[0]).checked(source)
    heads = fields.integer("attention.head_count", high=1 << 16)
    head_dim = fields.integer("attention.key_length", max(1, width // heads), high=1024)
    fields.only("attention.value_length", head_dim)
    eps = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    config = ModelConfig(
        arch, layers, width, heads, fields.integer("attention.head_count_kv", heads, high=1 << 16), head_dim, _embedding(file).shape[0],
        fields.integer("context_length", high=MOST_CONTEXT), norm_eps=fields.number(f"attention.{eps}", 1e-5, high=1.0),
        rope=None if arch == "gpt2" else _rope(fields, file, head_dim),
        attention_scale=fields.number("attention.scale", 0.0) or 1.0 / sqrt(head_dim),
        experts=fields.integer("expert_count", 0, low=0, high=1 << 16),
        experts_used=fields.integer("expert_used_count", 0, low=0, high=1 << 16))
    return _features(config, fields, file).checked(source)


def _embedding(file: GGUFFile) -> PackedTensor:
    found = file.tensor("token_embd.weight")
    if len(found.shape) != 2:
        raise FormatError(f"llm: tensor 'token_embd.weight' must have two axes, got shape {list(found.shape)} ({file.metadata.source})")
    return found


def _recurrent(arch: str, fields: Fields, layers: int, width: int, vocab: int) -> ModelConfig:
    """A model of recurrent layers alone."""
    fields.only("ssm.dt_b_c_rms", False)
    return ModelConfig(
        arch, layers, width, 0, 0, 0, vocab, fields.integer("context_length", high=MOST_CONTEXT),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-5, high=1.0), rope=None, feeds=False,
        recurrence=_recurrence(arch, fields), mixers=("recurrent",) * layers)


def _recurrence(arch: str, fields: Fields) -> Recurrence:
    """The keys `ssm.*`: `time_step_rank` is a rank for mamba, and the number of heads for the others."""
    inner, state = fields.integer("ssm.inner_size", high=1 << 24), fields.integer("ssm.state_size", high=1 << 16)
    taps, rank = fields.integer("ssm.conv_kernel", low=2, high=64), fields.integer("ssm.time_step_rank", high=1 << 20)
    if arch == "mamba":
        return Recurrence("mamba", inner, state, taps, rank=rank, conv_bias=None, biases=True)
    groups = fields.integer("ssm.group_count", 1, high=1 << 16)
    if arch == "qwen3next":
        return Recurrence("delta", inner, state, taps, heads=rank, groups=groups, conv_bias=False)
    return Recurrence("mamba2", inner, state, taps, heads=rank, groups=groups, norm_groups=groups, conv_bias=None, biases=True)


def _features(c: ModelConfig, fields: Fields, file: GGUFFile) -> ModelConfig:
    """What an architecture's name implies."""
    arch = c.architecture
    window = fields.integer("attention.sliding_window", 0, low=0) or None
    if arch == "llama":
        return replace(c, interleaved_rows=True, windows=every_layer(c.layers, window))
    if arch == "gpt2":
        return replace(c, norm="layer", activation="gelu_tanh", gated=False)
    if arch == "phi3":
        return replace(c, windows=every_layer(c.layers, window))
    if arch == "qwen3next":
        period = fields.integer("full_attention_interval", 4, high=MOST_LAYERS)
        kinds: list[Mixer] = ["recurrent" if (i + 1) % period else "attention" for i in range(c.layers)]
        return replace(c, recurrence=_recurrence(arch, fields), mixers=tuple(kinds), feed_norm="post_attention_norm", gated_attention=True,
                       shared_expert=True)
    if arch == "falcon-h1":
        normed = "blk.0.ssm_norm.weight" in file.tensors
        found = _recurrence(arch, fields)
        return replace(c, recurrence=found if normed else replace(found, norm_groups=0), mixers=("both",) * c.layers)
    if arch in ("gemma2", "gemma3"):
        gemma2 = arch == "gemma2"
        scale = c.attention_scale
        if c.layers == (46 if gemma2 else 62):  # the 27B models scale by their width
            scale = 1.0 / sqrt(c.width / c.heads)
        base = fields.number("rope.freq_base_swa", 10000.0, low=1.0)
        local = None if gemma2 else replace(c.rope or RopeConfig(), base=base, scale=1.0)
        return replace(
            c, activation="gelu_tanh", embedding_scale=sqrt(c.width), attention_scale=scale, local_rope=local,
            windows=every_layer(c.layers, window, 2 if gemma2 else 6),
            attention_softcap=fields.number("attn_logit_softcapping", 50.0 if gemma2 else 0.0) or None,
            logit_softcap=fields.number("final_logit_softcapping", 30.0 if gemma2 else 0.0) or None)
    return c


def _rope(fields: Fields, file: GGUFFile, head_dim: int) -> RopeConfig:
    kind = fields.choice("rope.scaling.type", "none", KINDS)
    factor = 1.0 if kind == "longrope" else fields.number("rope.scaling.factor", 1.0) or 1.0
    rope = RopeConfig(fields.number("rope.freq_base", 10000.0, low=1.0), fields.integer("rope.dimension_count", head_dim), 1.0 / factor,
                      magnitude=fields.number("rope.scaling.attn_factor", 1.0, above=True))
    short, long = (_factors(file, f"rope_factors_{which}.weight") for which in ("short", "long"))
    if not short and not long:
        return replace(rope, factors=_factors(file, "rope_freqs.weight"))
    return replace(rope, factors=short, long_factors=long, original=fields.integer("rope.scaling.original_context_length"))


def _factors(file: GGUFFile, name: str) -> tuple[float, ...]:
    """Divisors of the frequencies (Llama 3.1 and later, Phi 3)."""
    found = file.tensors.get(name)
    if found is None:
        return ()
    values = np.asarray(found.dequantize(), np.float64).reshape(-1)
    if values.size > 1024 or not (np.isfinite(values) & (values > 0)).all():
        raise FormatError(f"llm: tensor {name!r} must have at most 1024 positive numbers, got {values.size} ({file.metadata.source})")
    return tuple(float(v) for v in values)
