"""A small random llama in packed formats, tied embedding, rows of q and k interleaved as in GGUF files: no file, no transformers."""
from __future__ import annotations

from typing import Any

import numpy as np

from tests.llm.families import VOCAB, letters
from tilewright.llm.config import ModelConfig, RopeConfig
from tilewright.llm.loading import assemble
from tilewright.llm.model import LLM
from tilewright.llm.weights import Weights, plain_tensor
from tilewright.ops.quant import FORMATS, PackedTensor

CONFIG = ModelConfig("llama", layers=2, width=64, heads=2, kv_heads=1, head_dim=32, vocab=VOCAB, context=256,
                     rope=RopeConfig(dims=32), attention_scale=32**-0.5, interleaved_rows=True)
HIDDEN = 96


def tensors(seed: int, formats: tuple[str, str] = ("Q4_1", "Q8_0")) -> dict[str, PackedTensor]:
    """Matrices in the first format, the embedding in the second."""
    rng, c = np.random.default_rng(seed), CONFIG

    def matrix(name: str, n: int, k: int) -> PackedTensor:
        fmt = FORMATS[formats[name == "token_embd.weight"]]
        return PackedTensor(name, fmt, (n, k), fmt.quantize((rng.standard_normal((n, k)) * k**-0.5).astype(np.float32)))

    sizes = {"attn_q": (c.heads * c.head_dim, c.width), "attn_k": (c.kv_heads * c.head_dim, c.width),
             "attn_v": (c.kv_heads * c.head_dim, c.width), "attn_output": (c.width, c.heads * c.head_dim),
             "ffn_gate": (HIDDEN, c.width), "ffn_up": (HIDDEN, c.width), "ffn_down": (c.width, HIDDEN)}
    found = {"token_embd.weight": matrix("token_embd.weight", c.vocab, c.width)}
    norms = ["output_norm.weight"]
    for i in range(c.layers):
        norms += [f"blk.{i}.attn_norm.weight", f"blk.{i}.ffn_norm.weight"]
        found |= {f"blk.{i}.{name}.weight": matrix(f"blk.{i}.{name}.weight", *size) for name, size in sizes.items()}
    return found | {name: plain_tensor(name, (1 + 0.1 * rng.standard_normal(c.width)).astype(np.float32)) for name in norms}


def model(seed: int = 0, weights: Weights | None = None, **options: Any) -> LLM:
    return assemble(CONFIG, Weights(tensors(seed), CONFIG) if weights is None else weights, letters(), **options)
