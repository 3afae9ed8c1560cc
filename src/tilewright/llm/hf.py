"""Tensors of Hugging Face models under GGUF's names, so that one decoder builds both. (Their config.json: `hf_config.py`.)"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..core.errors import FormatError
from ..ops.quant import PackedTensor
from .config import ModelConfig
from .weights import PLAIN, plain_tensor

Array = np.ndarray[Any, Any]

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
MAMBA = {"norm": "attn_norm", **{f"mixer.{part}": f"ssm_{to}" for part, to in (
    ("in_proj", "in"), ("conv1d", "conv1d"), ("x_proj", "x"), ("dt_proj", "dt"), ("dt_bias", "dt"), ("A_log", "a"), ("D", "d"),
    ("norm", "norm"), ("out_proj", "out"))}}
FALCON = {**LAYER, "pre_ff_layernorm": "ffn_norm", **{f"feed_forward.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")},
          **{name.replace("mixer", "mamba"): to for name, to in MAMBA.items() if name.startswith("mixer")}}
QWEN = {**LAYER, "post_attention_layernorm": "post_attention_norm", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
        "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
        **{f"mlp.shared_expert.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")},
        **{name.replace("mixer", "linear_attn"): to for name, to in MAMBA.items() if name.startswith("mixer")}}
OWN = {"gpt2": GPT2, "mamba": MAMBA, "mamba2": MAMBA, "falcon-h1": FALCON, "qwen3next": QWEN}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd", "wpe": "position_embd",
       "ln_f": "output_norm", "embeddings": "token_embd", "norm_f": "output_norm", "final_layernorm": "output_norm"}
EXPERT = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
IGNORED = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")


def tensors_from_state(state: Mapping[str, Callable[[], Array]], config: ModelConfig, source: str = "the model") -> dict[str, PackedTensor]:
    """Tensors under GGUF's names. `state` maps names to functions that give the array (so that a file is read once, tensor by tensor)."""
    arch = config.architecture
    out: dict[str, PackedTensor] = {}
    experts: dict[str, dict[int, Array]] = {}
    table = {**LAYER, **GEMMA} if arch.startswith("gemma") else OWN.get(arch, LAYER)

    def put(name: str, array: Array, of: str) -> None:
        if name in out:
            raise FormatError(f"llm: tensor {of!r} stands twice, under different names ({source})")
        out[name] = plain_tensor(name, array, f"{of!r}", f" ({source})")

    for name, get in state.items():
        if name.endswith(IGNORED):
            continue
        layer, rest, suffix = _split(name)
        known = suffix in ("weight", "bias") and (rest in TOP if layer is None else rest in table or _is_expert(rest))
        if not known or (layer is not None and layer >= config.layers):
            raise FormatError(f"llm: no place for tensor {name!r:.200} in a {arch} model of {config.layers} layers ({source})")
        if config.tied and layer is None and TOP[rest] == "output":
            continue
        array = get()
        if layer is None:
            put(f"{TOP[rest]}.{suffix}", _norm_weight(array, TOP[rest], arch), name)
        elif _is_expert(rest):
            _expert(name, rest, f"blk.{layer}.", array, experts, put, source)
        else:
            if arch == "gpt2" and array.ndim == 2:  # stored [in, out]
                array = np.ascontiguousarray(array.T)
            for place, part in _parts(f"{table[rest]}.{suffix}", rest, array, config):
                put(f"blk.{layer}.{place}", _norm_weight(part, place.partition(".")[0], arch), name)
    for name, parts in experts.items():
        if sorted(parts) != list(range(config.experts)) or len({(p.shape, p.dtype) for p in parts.values()}) != 1:
            raise FormatError(f"llm: tensor {name!r} must be of {config.experts} experts of one shape, got {len(parts)} parts ({source})")
        put(name, np.stack([parts[i] for i in range(config.experts)]), name)
    return out


def place_of(module: str, config: ModelConfig) -> str:
    """GGUF's name of a linear layer: `model.layers.0.self_attn.q_proj` -> `blk.0.attn_q`."""
    layer, rest, _ = _split(module + ".weight")
    table = OWN.get(config.architecture, LAYER)
    if layer is None and TOP.get(rest) == "output":
        return "output"
    if layer is None or rest not in table or layer >= config.layers:
        raise FormatError(f"llm: a {config.architecture} model of {config.layers} layers has no linear layer {module!r:.200}")
    return f"blk.{layer}.{table[rest]}"


def _is_expert(rest: str) -> bool:
    """Stacked experts, or one matrix of one expert."""
    part = rest.partition("experts.")[2].split(".")
    return part[0] in ("gate_up_proj", "down_proj") if len(part) == 1 else len(part) == 2 and part[0].isdecimal() and part[1] in EXPERT


def _split(name: str) -> tuple[int | None, str, str]:
    """`model.layers.3.mlp.up_proj.weight` -> 3, `mlp.up_proj`, `weight`."""
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model.", "transformer.", "backbone."):
        if name.startswith(prefix):
            name = name[len(prefix):]
            break
    stem, _, suffix = name.rpartition(".")
    for prefix in ("layers.", "h."):
        if name.startswith(prefix):
            number, _, rest = name[len(prefix):].partition(".")
            if not number.isdecimal() or len(number) > 6:
                return None, name, ""
            if rest.rpartition(".")[2] not in ("weight", "bias"):  # stacked experts are parameters without a suffix
                return int(number), rest, "weight"
            return int(number), rest.rpartition(".")[0], suffix
    return None, stem, suffix


def _norm_weight(array: Array, name: str, arch: str) -> Array:
    """Gemma and Qwen3-Next store weights of norms as the difference from 1, but for that of a recurrence."""
    own = (arch.startswith("gemma") or arch == "qwen3next") and name.endswith("norm") and name != "ssm_norm"
    return array.astype(np.float32) + 1 if own and str(array.dtype) in PLAIN else array


def _parts(place: str, rest: str, array: Array, config: ModelConfig) -> Iterator[tuple[str, Array]]:
    """What GGUF makes of a tensor of a layer: most are as they are, those of a recurrence are not."""
    r, leaf = config.recurrence, rest.rpartition(".")[2]
    if r is None or rest.count(".") != 1 or str(array.dtype) not in PLAIN:
        yield place, array
    elif leaf == "A_log":
        yield "ssm_a", -np.exp(array.astype(np.float32))
    elif leaf == "D":
        yield "ssm_d", array
    elif leaf == "dt_bias":
        yield "ssm_dt.bias", array
    elif leaf == "conv1d" and array.ndim == 3 and array.shape[1] == 1:
        yield place, array[:, 0]
    else:
        yield place, array


def _expert(name: str, rest: str, prefix: str, array: Array, experts: dict[str, dict[int, Array]],
            put: Callable[[str, Array, str], None], source: str) -> None:
    part = rest.partition("experts.")[2].split(".")
    if array.ndim != (2 if len(part) == 2 else 3):
        raise FormatError(f"llm: tensor {name!r} must have {2 if len(part) == 2 else 3} axes, got shape {list(array.shape)} ({source})")
    if len(part) == 2:  # one matrix an expert
        experts.setdefault(f"{prefix}ffn_{EXPERT[part[1]]}_exps.weight", {})[int(part[0])] = array
    elif part[0] == "gate_up_proj":  # all experts, gate above up
        half = array.shape[1] // 2
        put(f"{prefix}ffn_gate_exps.weight", array[:, :half], name)
        put(f"{prefix}ffn_up_exps.weight", array[:, half:], name)
    else:
        put(f"{prefix}ffn_down_exps.weight", array, name)
