"""Hugging Face models (config.json and a state dict) under GGUF's names, so that one decoder builds both."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log, pi, sqrt
from typing import Any

import numpy as np

from ..core.errors import FormatError, UnsupportedError
from ..ops.quant import PackedTensor
from .config import ModelConfig, RopeConfig, require_known
from .weights import plain_tensor

Array = np.ndarray[Any, Any]
Json = Mapping[str, Any]
TYPES = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
         "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3": "gemma3", "phi3": "phi3", "gpt2": "gpt2"}

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
}
GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm"}
GPT2 = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down"}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd", "wpe": "position_embd",
       "ln_f": "output_norm"}
EXPERT = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
IGNORED = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")


def config_from_json(raw: Json) -> ModelConfig:
    """The record of a config.json."""
    kind = raw.get("model_type")
    if kind == "gemma3" and "text_config" in raw:
        raw = {**raw["text_config"], "model_type": "gemma3_text"}
    require_known(TYPES.get(str(kind), str(kind)))
    arch = TYPES[str(kind)]

    def integer(*keys: str, default: int | None = None) -> int:
        value = next((raw[k] for k in keys if raw.get(k) is not None), default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FormatError(f"llm: config.json needs a positive integer {keys[0]!r}, got {value!r}")
        return value

    width, heads = integer("hidden_size", "n_embd"), integer("num_attention_heads", "n_head")
    head_dim = integer("head_dim", default=width // heads)
    layers = integer("num_hidden_layers", "n_layer")
    c = ModelConfig(
        arch, layers, width, heads, integer("num_key_value_heads", default=heads), head_dim, integer("vocab_size"),
        integer("max_position_embeddings", "n_positions"), norm_eps=float(raw.get("rms_norm_eps", raw.get("layer_norm_epsilon", 1e-5))),
        attention_scale=1.0 / sqrt(head_dim), windows=_windows(raw, layers, arch))
    c = replace(c, rope=_rope(raw, c, "full_attention"))
    if arch == "gpt2":
        return replace(c, norm="layer", activation="gelu_tanh", gated=False, rope=None)
    if arch in ("gemma2", "gemma3"):
        return replace(
            c, activation="gelu_tanh", embedding_scale=sqrt(width),
            attention_scale=float(raw.get("query_pre_attn_scalar", head_dim)) ** -0.5,
            attention_softcap=raw.get("attn_logit_softcapping"), logit_softcap=raw.get("final_logit_softcapping"),
            local_rope=_rope(raw, c, "sliding_attention") if arch == "gemma3" else None)
    if kind in ("mixtral", "qwen3_moe"):
        if raw.get("mlp_only_layers") or int(raw.get("decoder_sparse_step", 1)) != 1:
            raise UnsupportedError("llm: experts in some layers only are not supported")
        return replace(c, experts=integer("num_local_experts", "num_experts"), experts_used=integer("num_experts_per_tok"),
                       renormalise_experts=kind == "mixtral" or bool(raw.get("norm_topk_prob", False)))
    return c


def _windows(raw: Json, layers: int, arch: str) -> tuple[int | None, ...]:
    window, types = raw.get("sliding_window"), raw.get("layer_types")
    if window is None or (arch.startswith("qwen") and not raw.get("use_sliding_window")):
        return ()
    if types is not None:
        return tuple(int(window) if t == "sliding_attention" else None for t in types)
    if arch in ("gemma2", "gemma3"):
        period = 2 if arch == "gemma2" else int(raw.get("sliding_window_pattern", 6))
        return tuple(None if i % period == period - 1 else int(window) for i in range(layers))
    return (int(window),) * layers


def _rope(raw: Json, c: ModelConfig, layer_type: str) -> RopeConfig:
    found: Any = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if layer_type in found:
        found = found[layer_type] or {}
    local = layer_type == "sliding_attention"
    base = float(found.get("rope_theta", raw.get("rope_local_base_freq", 10000.0) if local else raw.get("rope_theta", 10000.0)))
    share = float(found.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)))
    rope = RopeConfig(base, int(c.head_dim * share))
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default" or (local and "rope_local_base_freq" in raw):
        return rope
    if kind == "linear":
        return replace(rope, scale=1.0 / float(found["factor"]))
    if kind == "llama3":
        return replace(rope, factors=_llama3(rope, found))
    if kind in ("longrope", "su"):
        original = int(found.get("original_max_position_embeddings", raw.get("original_max_position_embeddings", c.context)))
        factor = c.context / original
        magnitude = found.get("attention_factor") or (sqrt(1 + log(factor) / log(original)) if factor > 1 else 1.0)
        which = "long_factor" if c.context > original else "short_factor"
        return replace(rope, factors=tuple(map(float, found[which])), magnitude=float(magnitude))
    raise UnsupportedError(f"llm: rope type {kind!r} is not supported; supported: default linear llama3 longrope")


def _llama3(rope: RopeConfig, found: Json) -> tuple[float, ...]:
    """Divisors of the frequencies: 1 for fast ones, `factor` for slow ones, smooth between."""
    factor, low, high = (float(found[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(found["original_max_position_embeddings"])
    out = []
    for i in range(0, rope.dims, 2):
        wavelength = 2 * pi * rope.base ** (i / rope.dims)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1.0 / ((1 - smooth) / factor + smooth))
    return tuple(out)


def tensors_from_state(state: Mapping[str, Callable[[], Array]], config: ModelConfig) -> dict[str, PackedTensor]:
    """Tensors under GGUF's names. `state` maps names to functions that give the array (so that a file is read once, tensor by tensor)."""
    arch = config.architecture
    out: dict[str, PackedTensor] = {}
    experts: dict[str, dict[int, Array]] = {}

    def put(name: str, array: Array) -> None:
        out[name] = plain_tensor(name, array)

    for name, get in state.items():
        if name.endswith(IGNORED):
            continue
        layer, rest, suffix = _split(name)
        if layer is None:
            if rest not in TOP:
                raise FormatError(f"llm: no place for tensor {name!r} in a {arch} model")
            put(f"{TOP[rest]}.{suffix}", _norm_weight(get(), TOP[rest], arch))
            continue
        if ".experts" in rest:
            _expert(rest, suffix, f"blk.{layer}.", get(), experts, put)
            continue
        table = GPT2 if arch == "gpt2" else {**LAYER, **GEMMA} if arch.startswith("gemma") else LAYER
        if rest not in table:
            raise FormatError(f"llm: no place for tensor {name!r} in a {arch} model")
        array = get()
        if arch == "gpt2" and array.ndim == 2:  # stored [in, out]
            array = np.ascontiguousarray(array.T)
        put(f"blk.{layer}.{table[rest]}.{suffix}", _norm_weight(array, table[rest], arch))
    for name, parts in experts.items():
        put(name, np.stack([parts[i] for i in sorted(parts)]))
    return out


def place_of(module: str, config: ModelConfig) -> str:
    """GGUF's name of a linear layer: `model.layers.0.self_attn.q_proj` -> `blk.0.attn_q`."""
    layer, rest, _ = _split(module + ".weight")
    table = GPT2 if config.architecture == "gpt2" else LAYER
    if layer is None and TOP.get(rest) == "output":
        return "output"
    if layer is None or rest not in table or layer >= config.layers:
        raise FormatError(f"llm: a {config.architecture} model of {config.layers} layers has no linear layer {module!r}")
    return f"blk.{layer}.{table[rest]}"


def _split(name: str) -> tuple[int | None, str, str]:
    """`model.layers.3.mlp.up_proj.weight` -> 3, `mlp.up_proj`, `weight`."""
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model.", "transformer."):
        if name.startswith(prefix):
            name = name[len(prefix):]
            break
    stem, _, suffix = name.rpartition(".")
    for prefix in ("layers.", "h."):
        if name.startswith(prefix):
            number, _, rest = name[len(prefix):].partition(".")
            if rest.rpartition(".")[2] not in ("weight", "bias"):  # stacked experts are parameters without a suffix
                return int(number), rest, "weight"
            return int(number), rest.rpartition(".")[0], suffix
    return None, stem, suffix


def _norm_weight(array: Array, name: str, arch: str) -> Array:
    """Gemma stores its norm weights as the difference from 1."""
    return array.astype(np.float32) + 1 if arch.startswith("gemma") and name.endswith("norm") else array


def _expert(rest: str, suffix: str, prefix: str, array: Array, experts: dict[str, dict[int, Array]],
            put: Callable[[str, Array], None]) -> None:
    part = rest.split("experts.")[1].split(".")
    if part[0].isdigit():  # one matrix an expert
        experts.setdefault(f"{prefix}ffn_{EXPERT[part[1]]}_exps.{suffix}", {})[int(part[0])] = array
    elif part[0] == "gate_up_proj":  # all experts, gate above up
        half = array.shape[1] // 2
        put(f"{prefix}ffn_gate_exps.weight", array[:, :half])
        put(f"{prefix}ffn_up_exps.weight", array[:, half:])
    else:
        put(f"{prefix}ffn_down_exps.weight", array)
