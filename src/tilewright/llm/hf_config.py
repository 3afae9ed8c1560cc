"""The record of a Hugging Face model, from its config.json, with transformers' meaning and defaults."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, log, pi, sqrt
from typing import Any

from ..core.errors import UnsupportedError
from .config import MOST_CONTEXT, MOST_LAYERS, Activation, ModelConfig, Recurrence, RopeConfig, every_layer, require_known
from .fields import Fields

TYPES = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
         "gemma2": "gemma2", "gemma3_text": "gemma3", "gemma3": "gemma3", "phi3": "phi3", "gpt2": "gpt2",
         "mamba": "mamba", "mamba2": "mamba2", "qwen3_next": "qwen3next", "falcon_h1": "falcon-h1"}
# What transformers takes for a field that is missing, where it is not the same for all.
GEMMA: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
                         "sliding_window": 4096, "query_pre_attn_scalar": 256}
QWEN: dict[str, Any] = {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
                "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": QWEN, "qwen3": {**QWEN, "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096, "num_experts": 128,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "gemma2": {**GEMMA, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**GEMMA, "max_position_embeddings": 131072, "rope_theta": 1e6, "sliding_window_pattern": 6},
    "phi3": {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "mamba": {"expand": 2, "state_size": 16, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "mamba2": {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "expand": 2},
    "qwen3_next": {"num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "num_experts": 512,
                   "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True, "partial_rotary_factor": 0.25},
    "falcon_h1": {"num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "mamba_n_heads": 128,
                  "mamba_d_ssm": 1024, "mamba_d_state": 256, "mamba_expand": 2},
    "gpt2": {"max_position_embeddings": 1024, "activation_function": "gelu_new", "tie_word_embeddings": True},
}
ALWAYS: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0,
                          "tie_word_embeddings": False}
ACTIVATIONS: dict[str, str] = {
    "silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
}
# Other names of a field (GPT-2's).
OTHER = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
OFF = ("num_key_value_heads", "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "mamba_d_ssm")  # null means none of it
LAYERS = {"full_attention": "full", "sliding_attention": "sliding"}
UNBOUNDED = 1 << 20  # tokens: the context of a model that has no positions
WINDOWED = ("mistral", "mixtral", "phi3", "qwen3_moe")  # every layer has the window
# Fields that change what a model computes, and the values with which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (False,), "add_cross_attention": (False,), "is_encoder_decoder": (False,), "quantization_config": (),
}


def config_from_json(raw: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """The record of a config.json."""
    whole = Fields(raw, "config.json", source)
    kind = whole.raw("model_type")
    if not isinstance(kind, str):
        raise whole.fail("model_type", "a string", kind)
    for key, values in NEUTRAL.items():
        whole.only(key, *values)
    if kind == "gemma3" and "text_config" in whole:
        inner = whole.section("text_config")
        raw, kind = {"tie_word_embeddings": whole.raw("tie_word_embeddings"), **inner.values}, "gemma3_text"
    require_known(TYPES.get(kind, kind), source)
    kind = "gemma3_text" if kind == "gemma3" else kind
    given = {key: raw[OTHER[key]] for key in OTHER if raw.get(key) is None and OTHER[key] in raw}
    plain = {k: v for k, v in {**raw, **given}.items() if v is not None or k in OFF}  # a null counts as missing elsewhere
    return _config(kind, Fields({**ALWAYS, **DEFAULTS[kind], **plain}, "config.json", source)).checked(source)


def _config(kind: str, f: Fields) -> ModelConfig:
    for key, values in NEUTRAL.items():
        f.only(key, *values)
    arch = TYPES[kind]
    if kind in ("mamba", "mamba2"):
        return _recurrent(kind, f)
    width, heads = f.integer("hidden_size", high=1 << 20), f.integer("num_attention_heads", high=1 << 16)
    layers, gemma = f.integer("num_hidden_layers", high=MOST_LAYERS), arch.startswith("gemma")
    kv_heads = f.integer("num_key_value_heads", heads, high=1 << 16)
    head_dim = f.integer("head_dim", max(1, width // heads), high=1024)
    name = "hidden_activation" if gemma else "activation_function" if arch == "gpt2" else "hidden_act"
    activation: Activation = f.choice(name, "gelu_pytorch_tanh", ACTIVATIONS)  # type: ignore[assignment]
    attention, feed = (arch == "gpt2" or f.flag(key, False) for key in ("attention_bias", "mlp_bias"))
    if kind not in ("llama", "gpt2"):
        feed = False
    biases = (arch in ("gpt2", "qwen2") or attention, attention, feed)
    if kind in ("mistral", "mixtral", "phi3", "qwen2"):
        biases = (kind == "qwen2", False, False)
    c = ModelConfig(
        arch, layers, width, heads, kv_heads, head_dim, f.integer("vocab_size", high=1 << 24),
        f.integer("max_position_embeddings", high=MOST_CONTEXT), activation=activation,
        norm_eps=f.number("layer_norm_epsilon" if arch == "gpt2" else "rms_norm_eps", high=1.0),
        attention_scale=1.0 / sqrt(head_dim), windows=_windows(kind, f, layers), tied=f.flag("tie_word_embeddings", False), biases=biases,
        hidden=f.integer("n_inner", 4 * width) if arch == "gpt2" else f.integer("intermediate_size"))
    if arch == "gpt2":
        scale = c.attention_scale if f.flag("scale_attn_weights", True) else 1.0
        return replace(c, norm="layer", gated=False, rope=None, attention_scale=scale,
                       inverse_layer_scale=f.flag("scale_attn_by_inverse_layer_idx", False))
    c = replace(c, rope=_rope(kind, f, c))
    if arch == "gemma3":
        f.only("attn_logit_softcapping")  # transformers does not use it there
    if gemma:
        return replace(
            c, embedding_scale=sqrt(width), attention_scale=f.number("query_pre_attn_scalar", above=True) ** -0.5,
            attention_softcap=f.optional("attn_logit_softcapping"), logit_softcap=f.optional("final_logit_softcapping"),
            local_rope=_rope(kind, f, c, local=True) if arch == "gemma3" else None)
    if kind == "falcon_h1":
        return _falcon(c, f)
    if kind == "qwen3_next":
        c = _delta_net(c, f)
    if kind in ("mixtral", "qwen3_moe", "qwen3_next"):
        mixtral = kind == "mixtral"
        f.only("mlp_only_layers", [])
        f.only("decoder_sparse_step", 1)
        return replace(c, experts=f.integer("num_local_experts" if mixtral or "num_local_experts" in f else "num_experts", high=1 << 16),
                       experts_used=f.integer("num_experts_per_tok", high=1 << 16),
                       hidden=c.hidden if mixtral else f.integer("moe_intermediate_size"),
                       renormalise_experts=mixtral or f.flag("norm_topk_prob", False))
    return c


def _recurrent(kind: str, f: Fields) -> ModelConfig:
    """A model of recurrent layers alone."""
    width, layers = f.integer("hidden_size", high=1 << 20), f.integer("num_hidden_layers", high=MOST_LAYERS)
    f.choice("hidden_act", "silu", {"silu": "silu", "swish": "silu"})
    inner = f.integer("expand", high=1 << 10) * width
    common: dict[str, Any] = {"conv_bias": f.flag("use_conv_bias", True), "biases": f.flag("use_bias", False)}
    state, taps = f.integer("state_size", high=1 << 16), f.integer("conv_kernel", 4, low=2, high=64)
    if kind == "mamba":
        rank = f.raw("time_step_rank", "auto")
        found = Recurrence("mamba", inner, state, taps, rank=-(-width // 16) if rank == "auto" else f.integer("time_step_rank"), **common)
    else:
        heads, size = f.integer("num_heads", high=1 << 16), f.integer("head_dim", high=1 << 16)
        if heads * size != inner:
            raise f.fail("head_dim", f"{inner} / num_heads, {heads}", size)
        groups = f.integer("n_groups", high=1 << 16)
        found = Recurrence("mamba2", inner, state, taps, heads=heads, groups=groups, norm_groups=groups, steps=_limits(f), **common)
    return ModelConfig(
        kind, layers, width, 0, 0, 0, f.integer("vocab_size", high=1 << 24), UNBOUNDED, norm_eps=f.number("layer_norm_epsilon", high=1.0),
        rope=None, feeds=False, recurrence=found, mixers=("recurrent",) * layers, tied=f.flag("tie_word_embeddings", False))


def _limits(f: Fields) -> tuple[float, float]:
    """The limits of time steps. (JSON has no infinity: transformers writes one in words.)"""
    value = f.raw("time_step_limit", [0.0, inf])
    if isinstance(value, list):
        value = [inf if v == {"__float__": "Infinity"} else v for v in value]
    numbers = isinstance(value, (list, tuple)) and len(value) == 2 and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in value)
    if not numbers or not 0 <= value[0] <= value[1]:
        raise f.fail("time_step_limit", "two numbers, the smaller first", value)
    return float(value[0]), float(value[1])


def _delta_net(c: ModelConfig, f: Fields) -> ModelConfig:
    """Qwen3-Next: gated delta nets, every fourth layer (or those that `layer_types` names) gated attention."""
    period = f.integer("full_attention_interval", 4, high=MOST_LAYERS)
    types = f.raw("layer_types", ["linear_attention" if (i + 1) % period else "full_attention" for i in range(c.layers)])
    if not isinstance(types, list) or len(types) != c.layers:
        raise f.fail("layer_types", f"a list of {c.layers} names, one a layer", types)
    known = {"linear_attention": "recurrent", "full_attention": "attention"}
    mixers = tuple(Fields({"layer_types": t}, f.subject, f.source).choice("layer_types", "", known) for t in types)
    heads = f.integer("linear_num_value_heads", 32, high=1 << 16)
    found = Recurrence("delta", heads * f.integer("linear_value_head_dim", 128, high=1 << 16),
                       f.integer("linear_key_head_dim", 128, high=1 << 16), f.integer("linear_conv_kernel_dim", 4, low=2, high=64),
                       heads=heads, groups=f.integer("linear_num_key_heads", 16, high=1 << 16), conv_bias=False)
    return replace(c, recurrence=found, mixers=mixers, feed_norm="post_attention_norm", gated_attention=True, shared_expert=True)


def _falcon(c: ModelConfig, f: Fields) -> ModelConfig:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, results scaled by multipliers."""
    for key in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"):
        f.only(key, False)
    heads, groups = f.integer("mamba_n_heads", high=1 << 16), f.integer("mamba_n_groups", 1, high=1 << 16)
    inner = f.integer("mamba_d_ssm", f.integer("mamba_expand", high=1 << 10) * c.width)
    size = f.raw("mamba_d_head", "auto")
    if size != "auto" and f.integer("mamba_d_head") * heads != inner:
        raise f.fail("mamba_d_head", f"{inner} / mamba_n_heads, {heads}", size)
    one = {key: f.number(f"{key}_multiplier", 1.0) for key in
           ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")}
    gate, down = f.numbers("mlp_multipliers", 2) if "mlp_multipliers" in f else (1.0, 1.0)
    parts = f.numbers("ssm_multipliers", 5) if "ssm_multipliers" in f else (1.0,) * 5
    found = Recurrence(
        "mamba2", inner, f.integer("mamba_d_state", high=1 << 16), f.integer("mamba_d_conv", 4, low=2, high=64), heads=heads, groups=groups,
        norm_groups=groups if f.flag("mamba_rms_norm", False) else 0, gate_first=not f.flag("mamba_norm_before_gate", True),
        steps=_limits(f), conv_bias=f.flag("mamba_conv_bias", True), in_scales=tuple(one["ssm_in"] * p for p in parts))
    scales = {"attn_q": one["attention_in"], "attn_k": one["attention_in"] * one["key"], "attn_v": one["attention_in"],
              "attn_output": one["attention_out"], "ssm_out": one["ssm_out"], "ffn_gate": gate, "ffn_down": down, "output": one["lm_head"]}
    return replace(c, recurrence=found, mixers=("both",) * c.layers, embedding_scale=one["embedding"],
                   scales=tuple((name, s) for name, s in scales.items() if s != 1.0))


def _windows(kind: str, f: Fields, layers: int) -> tuple[int | None, ...]:
    """How far back each layer sees."""
    window = f.integer("sliding_window") if "sliding_window" in f else None
    if kind.startswith("qwen") and not f.flag("use_sliding_window", False):
        window = None
    if kind in WINDOWED:
        return every_layer(layers, window)
    if kind in ("llama", "gpt2", "qwen3_next", "falcon_h1"):
        return ()
    types = f.raw("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise f.fail("layer_types", f"a list of {layers} names, one a layer", types)
        kinds = [Fields({"layer_types": t}, f.subject, f.source).choice("layer_types", "", LAYERS) for t in types]
        if "sliding" in kinds and window is None:
            raise f.fail("sliding_window", "a positive integer where layer_types has sliding_attention", f.raw("sliding_window"))
        return tuple(window if k == "sliding" else None for k in kinds) if "sliding" in kinds else ()
    if kind.startswith("gemma"):
        return every_layer(layers, window, 2 if kind == "gemma2" else f.integer("sliding_window_pattern", 6))
    first = f.integer("max_window_layers", low=0)
    return tuple(None if i < first else window for i in range(layers)) if window is not None and first < layers else ()


def _rope(kind: str, f: Fields, c: ModelConfig, *, local: bool = False) -> RopeConfig:
    """`rope_scaling`, or `rope_parameters` as newer files call it; Gemma 3 has one for layers that see everything, one for the others."""
    old, new = f.section("rope_scaling"), f.section("rope_parameters")
    found = old if old.values else new
    if kind == "gemma3_text":
        if new.values and not {"full_attention", "sliding_attention"} & set(new.values):
            raise f.fail("rope_parameters", "an object with full_attention and sliding_attention", dict(new.values))
        inner = new.section("sliding_attention" if local else "full_attention")
        found = replace(inner, values={**inner.values, **({} if local else old.values)})
    elif {"full_attention", "sliding_attention"} & set(found.values):
        raise f.refuse("rope_parameters", dict(found.values), "one for all layers is")
    theta = f.number("rope_local_base_freq", 10000.0, low=1.0) if local else f.number("rope_theta", low=1.0)
    share = found.number("partial_rotary_factor", f.number("partial_rotary_factor", 1.0, high=1.0, above=True), high=1.0, above=True)
    if share != 1.0 and kind not in ("phi3", "qwen3_next"):
        raise f.refuse("partial_rotary_factor", share, "supported: 1, and for phi3 and qwen3_next others")
    rope = RopeConfig(found.number("rope_theta", theta, low=1.0), int(c.head_dim * share))
    name = found.raw("rope_type", found.raw("type", "default"))
    if name in ("su", "yarn") and kind == "phi3":  # older names
        name = "longrope"
    if name == "default":
        return rope
    if name == "linear":
        return replace(rope, scale=1.0 / found.number("factor", above=True))
    if name == "llama3":
        return replace(rope, factors=_llama3(rope, found, c.context))
    if name == "longrope":
        own = f.integer("original_max_position_embeddings", c.context) if kind == "phi3" else c.context
        original = own if kind == "phi3" else found.integer("original_max_position_embeddings", own)
        factor = found.number("factor", c.context / original, above=True)
        magnitude = sqrt(1 + log(factor) / log(original)) if factor > 1 and original > 1 else 1.0
        short, long = (found.numbers(key, rope.dims // 2) for key in ("short_factor", "long_factor"))
        return replace(rope, factors=short, long_factors=long, original=original,
                       magnitude=found.number("attention_factor", magnitude, above=True))
    raise UnsupportedError(f"{found.subject}: 'rope_type' is {name!r:.60}, which is not supported; "
                           f"supported: default linear llama3 longrope ({f.source})")


def _llama3(rope: RopeConfig, found: Fields, context: int) -> tuple[float, ...]:
    """Divisors of the frequencies: 1 for fast ones, `factor` for slow ones, smooth between."""
    factor, low, high = (found.number(k, above=True) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = found.integer("original_max_position_embeddings", context)
    if high <= low:
        raise found.fail("high_freq_factor", f"above low_freq_factor, {low:g}", high)
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
