"""Folders in Hugging Face's layout with changed configurations, indices, headers and tokenizers: opened and used, or a typed error that
names the folder or the file in it."""

from __future__ import annotations

import copy
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.llm.chat import CHATML

from .engine.campaign import MB, Campaign
from .language import samples as s
from .language.mutate import change, scramble, weird
from .language.use import examine


@dataclass(frozen=True)
class Edit:
    op: str
    at: int
    how: int


@dataclass(frozen=True)
class Folder:
    kind: str
    tokenizer: str
    shards: bool
    edits: tuple[Edit, ...]
    whole: bool


OPS = (
    "config",
    "config",
    "config",
    "field",
    "field",
    "config_text",
    "tokenizer",
    "tokenizer",
    "tokenizer_text",
    "settings",
    "generation",
    "drop",
    "twice",
    "name",
    "entry",
    "entry",
    "header",
    "tensors",
    "index",
    "index_text",
    "lost",
)


def draw(rng: np.random.Generator) -> Folder:
    edits = tuple(
        Edit(str(rng.choice(OPS)), int(rng.integers(1 << 20)), int(rng.integers(1 << 30))) for _ in range(int(rng.integers(1, 4)))
    )
    return Folder(
        str(rng.choice(list(s.CONFIGS))), str(rng.choice(["bytes", "scores"])), bool(rng.random() < 0.2), edits, bool(rng.random() < 0.003)
    )


FIELDS = (
    "hidden_act",
    "hidden_activation",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "partial_rotary_factor",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "head_dim",
    "num_key_value_heads",
    "text_config",
    "quantization_config",
    "use_bidirectional_attention",
    "max_window_layers",
    "sliding_window_pattern",
    "mlp_only_layers",
    "model_type",
    "scale_attn_by_inverse_layer_idx",
    "attn_logit_softcapping",
    "rope_local_base_freq",
    "num_local_experts",
    "n_embd",
    "n_inner",
)


def build(subject: Folder) -> dict[str, bytes]:
    arrays = dict(s.hf_tensors(subject.kind))
    files: dict[str, Any] = {
        "config.json": copy.deepcopy(s.CONFIGS[subject.kind]),
        "tokenizer.json": copy.deepcopy(s.tokenizer_json(subject.tokenizer)),
        "tokenizer_config.json": {
            "eos_token": "<|im_end|>",
            "bos_token": {"content": "<|im_start|>"},
            "add_bos_token": True,
            "chat_template": [{"name": "default", "template": CHATML}],
        },
        "generation_config.json": {"eos_token_id": [2, 3], "bos_token_id": 1},
    }
    names = {
        "config": "config.json",
        "tokenizer": "tokenizer.json",
        "settings": "tokenizer_config.json",
        "generation": "generation_config.json",
    }
    entries: dict[str, Any] = {}
    late: list[Edit] = []
    halves = [list(arrays)[0::2], list(arrays)[1::2]] if subject.shards else [list(arrays)]
    shards = [f"model-{i}.safetensors" for i in range(len(halves))] if subject.shards else ["model.safetensors"]
    if subject.shards:
        files["model.safetensors.index.json"] = {
            "metadata": {},
            "weight_map": {n: f for h, f in zip(halves, shards, strict=True) for n in h},
        }
    for e in subject.edits:
        name = list(arrays)[e.at % len(arrays)] if arrays else ""
        if e.op in names:
            files[names[e.op]] = change(files[names[e.op]], e.at, e.how)
        elif e.op == "field" and isinstance(files["config.json"], dict):
            files["config.json"][FIELDS[e.at % len(FIELDS)]] = weird(e.how)
        elif e.op == "index" and subject.shards:
            files["model.safetensors.index.json"] = change(files["model.safetensors.index.json"], e.at, e.how)
        elif e.op == "drop":
            arrays.pop(name, None)
        elif e.op == "twice" and name:
            arrays["x." + name if e.how % 2 else name.replace("model.", "")] = arrays[name]
        elif e.op == "name" and name:
            arrays[str(weird(e.how))[:200] if e.how % 2 else name.replace("0", "9")] = arrays.pop(name)
        elif e.op == "entry" and name:
            array = arrays[name]
            entry = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}
            entries[name] = (
                change(entry, e.at, e.how) if e.how % 3 else {**entry, "dtype": ("F16", "BF16", "I64", "U8", "F64", "BOOL")[e.how % 6]}
            )
        elif e.op == "tensors" and name:
            old = arrays[name]
            new = (old.reshape(-1), np.atleast_1d(old)[:1], old[None], np.zeros((0, 3), np.float32), np.float32(3))
            arrays[name] = np.asarray(new[e.how % len(new)])
        else:
            late.append(e)
    out = {name: json.dumps(value).encode() for name, value in files.items()}
    for half, shard in zip(halves, shards, strict=True):
        kept = {n: arrays[n] for n in (arrays if not subject.shards else [n for n in half if n in arrays])}
        out[shard] = s.safetensors_bytes(kept, {n: e for n, e in entries.items() if n in kept})
    for e in late:
        target = {
            "config_text": "config.json",
            "tokenizer_text": "tokenizer.json",
            "index_text": "model.safetensors.index.json",
            "header": shards[e.how % len(shards)],
        }.get(e.op)
        if target in out:
            out[target] = scramble(out[target], e.at, e.how, 9000)
        elif e.op == "lost":
            del out[sorted(out)[e.at % len(out)]]
    return out


def check(subject: Folder) -> None:
    with tempfile.TemporaryDirectory(prefix="campaign") as folder:
        path = Path(folder) / "model"
        s.write_folder(path, build(subject))
        examine(path, whole=subject.whole)


CAMPAIGN = Campaign(draw=draw, check=check, quick=60, memory=1900 * MB, keep=("kind", "tokenizer"), seconds=30.0)
