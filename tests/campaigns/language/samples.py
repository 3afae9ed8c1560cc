"""Small whole models of every architecture as plain data, which a campaign changes before it writes them: GGUF files and folders in
Hugging Face's layout, vocabulary and chat template included. Written by hand, so that every byte can lie."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.llm.chat import CHATML
from tilewright.llm.hf_config import config_from_json
from tilewright.llm.tokenizer import byte_of_character
from tilewright.llm.weights import expected

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
CODES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", 10: "<Q", 11: "<q", 12: "<d"}
SPECIALS = ("<|im_start|>", "<|im_end|>", "<unk>")
MERGES = ("t h", "Ġ th", "Ġth e")
TOKENS = (*byte_of_character(), *(m.replace(" ", "") for m in MERGES), *SPECIALS)
SCORED = ("<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "t", "h", "e", "th", "▁th", "▁the")
WIDTH, HEADS, KV, HEAD, LAYERS, HIDDEN, CONTEXT, EXPERTS = 32, 4, 2, 8, 2, 48, 64, 4
PLAIN = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": len(TOKENS),
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "head_dim": HEAD,
    "eos_token_id": len(TOKENS) - 2,
}
GEMMA = {**PLAIN, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "sliding_window": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **PLAIN,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {**PLAIN, "sliding_window": 9},
    "mixtral": {**PLAIN, "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    "qwen2": {**PLAIN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {**PLAIN, "attention_bias": False, "layer_types": ["full_attention", "full_attention"]},
    "qwen3_moe": {**PLAIN, "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "gemma2": GEMMA,
    "gemma3_text": {
        **GEMMA,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi3": {
        **PLAIN,
        "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]},
    },
    "gpt2": {
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": CONTEXT,
        "vocab_size": len(TOKENS),
        "n_inner": HIDDEN,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
}
for kind, config in CONFIGS.items():
    config["model_type"] = kind


@cache
def tensors(kind: str) -> dict[str, Any]:
    """Random tensors of a model under GGUF's names, f32."""
    rng, config = np.random.default_rng(len(kind)), config_from_json(CONFIGS[kind])
    shapes: dict[str, tuple[int, ...]] = {}
    if kind in ("phi3", "gpt2"):
        shapes = {f"blk.{i}.attn_qkv.weight": () for i in range(LAYERS)}
    return {
        name: (rng.standard_normal(shape) * 0.1 + (name.endswith("norm.weight"))).astype(np.float32)
        for name, shape, needed in expected(config, shapes)
        if needed
    }


HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
HF_GEMMA = {
    **HF_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
HF_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
}


def hf_tensors(kind: str) -> dict[str, Any]:
    """The same under Hugging Face's names."""
    names = HF_GPT2 if kind == "gpt2" else HF_GEMMA if kind.startswith("gemma") else HF_NAMES
    out: dict[str, Any] = {}
    for name, array in tensors(kind).items():
        stem, suffix = name.rsplit(".", 1)
        parts = stem.split(".")
        prefix = "" if parts[0] != "blk" else f"{'transformer.h' if kind == 'gpt2' else 'model.layers'}.{parts[1]}."
        rest = parts[-1]
        if rest.endswith("_exps"):
            part = rest.removeprefix("ffn_").removesuffix("_exps")
            for e in range(len(array)):
                out[f"{prefix}mlp.experts.{e}.{part}_proj.weight"] = array[e]
        elif kind == "phi3" and rest == "ffn_up":
            out[f"{prefix}mlp.gate_up_proj.{suffix}"] = array
        else:
            out[f"{prefix}{names[rest]}.{suffix}"] = array.T if kind == "gpt2" and array.ndim == 2 and prefix else array
    return out


Key = tuple[str, int, Any]  # name, kind, value; an array's value is (kind of its elements, elements)


@cache
def gguf_keys(kind: str) -> tuple[Key, ...]:
    c = config_from_json(CONFIGS[kind])
    arch = c.architecture
    eps = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    keys: list[Key] = [
        ("general.architecture", STRING, arch),
        ("general.name", STRING, "small"),
        ("general.alignment", U32, 32),
        (f"{arch}.block_count", U32, LAYERS),
        (f"{arch}.embedding_length", U32, WIDTH),
        (f"{arch}.context_length", U32, CONTEXT),
        (f"{arch}.feed_forward_length", U32, HIDDEN),
        (f"{arch}.attention.head_count", U32, HEADS),
        (f"{arch}.attention.head_count_kv", U32, c.kv_heads),
        (f"{arch}.attention.key_length", U32, HEAD),
        (f"{arch}.attention.{eps}", F32, 1e-5),
        (f"{arch}.rope.dimension_count", U32, HEAD),
        (f"{arch}.rope.freq_base", F32, 1e4),
        (f"{arch}.rope.scaling.type", STRING, "none"),
        (f"{arch}.attention.sliding_window", U32, 16),
    ]
    if c.experts:
        keys += [(f"{arch}.expert_count", U32, c.experts), (f"{arch}.expert_used_count", U32, 2)]
    if arch in ("qwen2", "gemma2"):  # a vocabulary by scores
        keys += [
            ("tokenizer.ggml.model", STRING, "llama"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, SCORED)),
            ("tokenizer.ggml.scores", ARRAY, (F32, tuple(-float(i) for i in range(len(SCORED))))),
            ("tokenizer.ggml.token_type", ARRAY, (I32, (2, 3, 3, *(6,) * 256, *(1,) * 7))),
            ("tokenizer.ggml.add_bos_token", BOOL, True),
            ("tokenizer.ggml.add_space_prefix", BOOL, True),
        ]
    elif arch == "gemma3":
        keys += [
            ("tokenizer.ggml.model", STRING, "t5"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, SCORED)),
            ("tokenizer.ggml.scores", ARRAY, (F32, tuple(-float(i) for i in range(len(SCORED))))),
            ("tokenizer.ggml.token_type", ARRAY, (I32, (2, 3, 3, *(6,) * 256, *(1,) * 7))),
            ("tokenizer.ggml.remove_extra_whitespaces", BOOL, True),
            ("tokenizer.ggml.unknown_token_id", U32, 0),
        ]
    else:
        count = len(TOKENS) - len(SPECIALS)
        keys += [
            ("tokenizer.ggml.model", STRING, "gpt2"),
            ("tokenizer.ggml.pre", STRING, "llama3" if arch == "phi3" else "gpt-2"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, TOKENS)),
            ("tokenizer.ggml.merges", ARRAY, (STRING, MERGES)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, (*(1,) * count, 3, 3, 2))),
        ]
    keys += [
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, len(TOKENS) - 2),
        ("tokenizer.chat_template", STRING, CHATML),
    ]
    return tuple(keys)


def text(value: str | bytes) -> bytes:
    raw = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def packed(kind: int, value: Any) -> bytes:
    """A value under a kind, whether it is one of that kind or not."""
    if kind == STRING:
        return text(value if isinstance(value, (str, bytes)) else str(value))
    if kind == ARRAY:
        inner, items = value if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) else (U32, (1,))
        return struct.pack("<IQ", inner & 0xFFFFFFFF, len(items)) + b"".join(packed(inner, i) for i in items)
    if kind not in CODES:
        return bytes(8)
    try:
        return struct.pack(CODES[kind], value)
    except (struct.error, TypeError, ValueError, OverflowError):
        return struct.pack("<q", hash(str(value)) % (1 << 62))[: struct.calcsize(CODES[kind])]


Tensor = tuple[str, tuple[int, ...], int, bytes, int | None]  # name, shape, type, data, an offset that is not its own


def gguf_tensors(kind: str) -> list[Tensor]:
    return [(name, array.shape, 0, array.tobytes(), None) for name, array in tensors(kind).items()]


def gguf_file(keys: list[Key], parts: list[Tensor], counts: tuple[int, int] | None = None) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, *(n & 0xFFFFFFFFFFFFFFFF for n in counts or (len(parts), len(keys))))
    head += b"".join(text(name) + struct.pack("<I", kind & 0xFFFFFFFF) + packed(kind, value) for name, kind, value in keys)
    data, at = [], 0
    for name, shape, kind, content, offset in parts:
        dims = [d & 0xFFFFFFFFFFFFFFFF for d in reversed(shape)]
        place = (at if offset is None else offset) & 0xFFFFFFFFFFFFFFFF
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind & 0xFFFFFFFF, place)
        data += [content, bytes(-len(content) % 32)]
        at += len(content) + len(data[-1])
    return b"".join([head, bytes(-len(head) % 32), *data])


@cache
def tokenizer_json(kind: str = "bytes") -> Any:
    """A tokenizer.json: byte-level pairs, or scores with bytes to fall back on."""
    added = [
        {
            "id": len(TOKENS) - len(SPECIALS) + i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": i != 1,
        }
        for i, t in enumerate(SPECIALS)
    ]
    if kind == "bytes":
        vocabulary = {t: i for i, t in enumerate(TOKENS)}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "  "}, "content": " "}],
            },
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                ],
            },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [vocabulary["<|im_start|>"]], "tokens": ["<|im_start|>"]}},
            },
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [m.split(" ") for m in MERGES],
            },
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[t, -float(i)] for i, t in enumerate(SCORED)]},
    }


def safetensors_bytes(arrays: dict[str, Any], header: dict[str, Any] | None = None) -> bytes:
    """A safetensors file; `header` overrides entries, whatever the data is."""
    import json

    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, at = [], 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        entries[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    head = json.dumps({**entries, **(header or {})}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data)


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
