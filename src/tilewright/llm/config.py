"""What a decoder-only language model looks like: one record for every architecture, whatever it was read from."""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from ..core.errors import FormatError, UnsupportedError

MOST_LAYERS = 4096
MOST_CONTEXT = 1 << 30
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: base, rotated dims of a head, a linear factor, and frequency divisors per pair where the file has them."""

    base: float = 10000.0
    dims: int = 0
    scale: float = 1.0  # positions are multiplied by this
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0  # cos and sin are multiplied by this
    long_factors: tuple[float, ...] = ()  # the factors of contexts longer than `original`
    original: int = 0

    def at(self, context: int) -> RopeConfig:
        """For a context of this length: one set of factors."""
        factors = self.long_factors if self.long_factors and context > self.original else self.factors
        return replace(self, factors=factors, long_factors=(), original=0)


Mixer = str  # attention, recurrent or both


@dataclass(frozen=True)
class Recurrence:
    """The recurrent part of a layer: a causal convolution of every channel, then a scan whose memory has a fixed size."""

    kind: Literal["mamba", "mamba2", "delta"]
    inner: int  # channels of the scan: the values of all heads
    state: int  # numbers that a channel keeps: the size of a key
    taps: int  # length of the convolution
    rank: int = 0  # mamba: columns of the matrix that makes time steps
    heads: int = 1  # mamba2, delta: that share a decay
    groups: int = 1  # mamba2, delta: of heads that share their queries and keys
    norm_groups: int = 1  # mamba2: parts of the channels that are normed by themselves; 0: there is no norm
    gate_first: bool = True  # mamba2: the gate comes before the norm
    steps: tuple[float, float] = (0.0, inf)  # mamba2: limits of time steps
    conv_bias: bool | None = True
    biases: bool = False  # the matrices may have biases
    in_scales: tuple[float, ...] = ()  # mamba2: of the parts of the input matrix's result: gate, values, keys, queries, steps

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.inner if self.kind == "mamba" else self.inner + 2 * self.groups * self.state

    @property
    def memory(self) -> tuple[int, ...]:
        """The shape of what the scan keeps."""
        return (self.inner, self.state) if self.kind == "mamba" else (self.heads, self.state, self.inner // self.heads)


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
    activation: Activation = "silu"
    gated: bool = True
    rope: RopeConfig | None = RopeConfig()  # None: learned positions, or no attention
    local_rope: RopeConfig | None = None  # rope of layers with a window, where it differs
    attention_scale: float = 0.0
    inverse_layer_scale: bool = False  # the attention of layer i is scaled by 1 / (i + 1), too
    windows: tuple[int | None, ...] = ()  # per layer, how far back it sees; () when every layer sees everything
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    experts: int = 0
    experts_used: int = 0
    renormalise_experts: bool = True
    interleaved_rows: bool = False  # rows of q and k are stored in the order of interleaved pairs
    hidden: int | None = None  # rows of the feed-forward matrices (of an expert's); None: the tensors say
    tied: bool | None = None  # the embedding is the output matrix; None: where there is no other
    biases: tuple[bool | None, bool | None, bool | None] = (None, None, None)  # whether q, k and v, the output, the feed-forward have one

    recurrence: Recurrence | None = None
    mixers: tuple[Mixer, ...] = ()  # per layer, what mixes tokens; () when every layer is attention alone
    feeds: bool = True  # layers have a feed-forward part
    feed_norm: str = "ffn_norm"  # the name of its norm
    gated_attention: bool = False  # the query's matrix makes a gate for the result, too
    shared_expert: bool = False  # beside the experts, one that serves every token, with a gate of its own
    scales: tuple[tuple[str, float], ...] = ()  # matrices by name whose results are scaled

    def layer_mixer(self, layer: int) -> Mixer:
        return self.mixers[layer] if self.mixers else "attention"

    @property
    def learned_positions(self) -> bool:
        return self.rope is None and self.recurrence is None

    def scale(self, matrix: str) -> float:
        return next((factor for name, factor in self.scales if name == matrix), 1.0)

    def layer_window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def layer_rope(self, layer: int) -> RopeConfig | None:
        return self.local_rope if self.local_rope is not None and self.layer_window(layer) is not None else self.rope

    def layer_scale(self, layer: int) -> float:
        return self.attention_scale / (layer + 1) if self.inverse_layer_scale else self.attention_scale

    def at(self, context: int) -> ModelConfig:
        """For a context of this length."""
        return replace(self, rope=self.rope and self.rope.at(context), local_rope=self.local_rope and self.local_rope.at(context))

    def checked(self, source: str) -> ModelConfig:
        """Itself, if its values fit each other; FormatError that names the file otherwise. Ranges are the readers' to check."""
        def need(ok: bool, rule: str) -> None:
            if not ok:
                raise FormatError(f"llm: {rule} ({source})")

        need(not self.mixers or len(self.mixers) == self.layers, f"{len(self.mixers)} kinds of layers for {self.layers} layers")
        if (r := self.recurrence) is not None:
            need(r.inner % r.heads == 0, f"{r.inner} channels of a recurrence cannot be {r.heads} heads")
            need(r.heads % r.groups == 0, f"{r.heads} heads of a recurrence cannot be {r.groups} groups")
            need(not r.norm_groups or r.inner % r.norm_groups == 0, f"{r.inner} channels of a norm cannot be {r.norm_groups} groups")
        if set(self.mixers) == {"recurrent"}:
            return self
        need(self.heads % self.kv_heads == 0, f"{self.heads} heads of {self.head_dim} elements cannot share {self.kv_heads} key heads")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                need(2 <= rope.dims <= self.head_dim and rope.dims % 2 == 0,
                     f"rotated dims must be even and in 2..{self.head_dim}, the size of a head, got {rope.dims}")
                for factors in (rope.factors, rope.long_factors):
                    need(not factors or len(factors) == rope.dims // 2, f"{len(factors)} rope factors for {rope.dims // 2} frequencies")
        need(self.rope is None or self.head_dim % 2 == 0, f"the size of a head must be even, got {self.head_dim}")
        need(not self.windows or len(self.windows) == self.layers, f"{len(self.windows)} windows for {self.layers} layers")
        need(self.experts_used <= self.experts, f"{self.experts_used} of {self.experts} experts cannot serve a token")
        need(bool(self.experts_used) == bool(self.experts), f"no experts of {self.experts} serve a token")
        return self


ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt2", "mamba", "mamba2", "qwen3next", "falcon-h1")


def require_known(architecture: str, source: str = "") -> None:
    if architecture not in ARCHITECTURES:
        where = f" ({source})" if source else ""
        raise UnsupportedError(f"llm: architecture {architecture!r:.60} is not supported; supported: {' '.join(ARCHITECTURES)}{where}")


def every_layer(layers: int, window: int | None, period: int = 0) -> tuple[int | None, ...]:
    """The window of each layer; with a period, its last layer sees everything."""
    if window is None:
        return ()
    return tuple(None if period and i % period == period - 1 else window for i in range(layers))
