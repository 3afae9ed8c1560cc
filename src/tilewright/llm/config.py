"""What a decoder-only language model looks like: one record for every architecture, read from GGUF metadata."""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..core.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from ..frontend.gguf import GGUFFile, Metadata


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: base, rotated dims of a head, a linear factor, and frequency divisors per pair where the file has them."""

    base: float = 10000.0
    dims: int = 0
    scale: float = 1.0  # positions are multiplied by this
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0  # cos and sin are multiplied by this


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and features. Weights have the names that GGUF gives them, whatever they were loaded from."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    activation: Literal["silu", "gelu_tanh"] = "silu"
    gated: bool = True
    rope: RopeConfig | None = RopeConfig()  # None: learned positions
    local_rope: RopeConfig | None = None  # of layers with a window, where it differs
    attention_scale: float = 0.0
    windows: tuple[int | None, ...] = ()  # per layer, how far back it sees; () when every layer sees everything
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    experts: int = 0
    experts_used: int = 0
    renormalise_experts: bool = True
    interleaved_rows: bool = False  # rows of q and k are stored in the order of interleaved pairs

    def layer_window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def layer_rope(self, layer: int) -> RopeConfig | None:
        return self.local_rope if self.local_rope is not None and self.layer_window(layer) is not None else self.rope


ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt2")


def require_known(architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(f"llm: architecture {architecture!r} is not supported; supported: {' '.join(ARCHITECTURES)}")


def from_gguf(file: GGUFFile) -> ModelConfig:
    """The record of a GGUF file; whatever makes no sense is a FormatError."""
    meta = file.metadata
    arch = meta.text("general.architecture")
    require_known(arch)

    def integer(key: str, default: int | None = None) -> int:
        return meta.integer(f"{arch}.{key}") if default is None else meta.integer(f"{arch}.{key}", default)

    width, heads = integer("embedding_length"), integer("attention.head_count")
    layers, kv_heads = integer("block_count"), integer("attention.head_count_kv", heads)
    positive = {"embedding_length": width, "attention.head_count": heads, "block_count": layers, "attention.head_count_kv": kv_heads}
    for key, value in positive.items():
        if not 1 <= value <= 1 << 20:
            raise FormatError(f"llm: {arch}.{key} must be in 1..{1 << 20}, got {value}")
    head_dim = integer("attention.key_length", width // heads)
    if heads % kv_heads or head_dim < 2 or head_dim > 1024:
        raise FormatError(f"llm: {heads} heads of {head_dim} elements cannot share {kv_heads} key heads")
    vocab = file.tensor("token_embd.weight").rows
    config = ModelConfig(
        arch, layers, width, heads, kv_heads, head_dim, vocab, integer("context_length"),
        rope=RopeConfig(meta.number(f"{arch}.rope.freq_base", 10000.0), integer("rope.dimension_count", head_dim),
                        1.0 / _linear_factor(meta, arch), _factors(file)),
        attention_scale=1.0 / sqrt(head_dim), experts=integer("expert_count", 0), experts_used=integer("expert_used_count", 0),
    )
    eps = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    config = replace(config, norm_eps=meta.number(f"{arch}.attention.{eps}", 1e-5))
    return _features(config, meta)


def every_layer(layers: int, window: int | None, period: int = 0) -> tuple[int | None, ...]:
    """The window of each layer; with a period, its last layer sees everything."""
    if window is None:
        return ()
    return tuple(None if period and i % period == period - 1 else window for i in range(layers))


def _features(c: ModelConfig, meta: Metadata) -> ModelConfig:
    """What an architecture's name implies."""
    arch = c.architecture
    window = meta.integer(f"{arch}.attention.sliding_window", 0) or None
    if arch == "llama":
        return replace(c, interleaved_rows=True, windows=every_layer(c.layers, window))
    if arch == "gpt2":
        return replace(c, norm="layer", activation="gelu_tanh", gated=False, rope=None)
    if arch == "phi3":
        return replace(c, windows=every_layer(c.layers, window))
    if arch in ("gemma2", "gemma3"):
        gemma2 = arch == "gemma2"
        scale = c.attention_scale
        if c.layers == (46 if gemma2 else 62):  # the 27B models scale by their width
            scale = 1.0 / sqrt(c.width / c.heads)
        local = None if gemma2 else replace(c.rope or RopeConfig(), base=meta.number(f"{arch}.rope.freq_base_swa", 10000.0), scale=1.0)
        return replace(
            c, activation="gelu_tanh", embedding_scale=sqrt(c.width), attention_scale=scale, local_rope=local,
            windows=every_layer(c.layers, window, 2 if gemma2 else 6),
            attention_softcap=meta.number(f"{arch}.attn_logit_softcapping", 50.0 if gemma2 else 0.0) or None,
            logit_softcap=meta.number(f"{arch}.final_logit_softcapping", 30.0 if gemma2 else 0.0) or None)
    return c


def _linear_factor(meta: Metadata, arch: str) -> float:
    kind = meta.text(f"{arch}.rope.scaling.type", "none")
    if kind in ("none", "linear"):
        factor = meta.number(f"{arch}.rope.scaling.factor", 1.0)
        return factor if factor > 0 else 1.0
    if kind == "longrope":
        return 1.0
    raise UnsupportedError(f"llm: rope scaling {kind!r} is not supported; supported: none linear longrope")


def _factors(file: GGUFFile) -> tuple[float, ...]:
    """Divisors of the frequencies (Llama 3.1 and later); phi3's short factors are chosen by the context length when the graph is built."""
    found = file.tensors.get("rope_freqs.weight")
    return () if found is None else tuple(float(v) for v in np.asarray(found.dequantise()).reshape(-1))
