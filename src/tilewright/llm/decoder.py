"""A decoder-only transformer as an ordinary graph over the ops of this package, for every architecture that `ModelConfig` can describe.

Symbols: P tokens are in the caches already (given by the call), S new ones come in. The caches are donated inputs; the logits are those
of the last new token alone. One graph serves prompts of any length and decoding. What mixes tokens is attention, a recurrence
(`recurrent.py`), or the sum of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops as o
from ..core import dtypes as dt
from ..core.dims import Dim, Expr, sym
from ..core.dtypes import dtype
from ..core.errors import FormatError
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops.attention.q8_cache import BLOCK as Q8_BLOCK
from ..ops.index.sampling import NUMBERS, SETTINGS
from ..ops.packed.products import codebooks
from . import recurrent
from .config import ModelConfig, RopeConfig
from .weights import Weights

Array = np.ndarray[Any, Any]


def rope_tables(rope: RopeConfig, positions: int) -> tuple[Array, Array]:
    """cos and sin, f32[positions, dims / 2]."""
    exponent = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    frequency = (np.float32(1.0) / np.power(np.float32(rope.base), exponent)).astype(np.float32)
    if rope.factors:
        if len(rope.factors) != len(frequency):
            raise FormatError(f"llm: {len(rope.factors)} rope factors for {len(frequency)} frequencies")
        frequency = frequency / np.asarray(rope.factors, np.float32)
    frequency = frequency * np.float32(rope.scale)
    angle = np.arange(positions, dtype=np.float32)[:, None] * frequency[None, :]
    magnitude = np.float32(rope.magnitude)
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


Cache = tuple[Value, ...]
Caches = tuple[Cache, ...]  # the caches of a layer
CHUNK = 256  # most new tokens of one call: bounds the memory of intermediate values


@dataclass
class Decoder:
    """The graph under construction. `adapt(name, x, y)` may add to the result y of the matrix `name` (LoRA)."""

    config: ModelConfig
    weights: Weights
    capacity: int
    cache: str = "f16"  # f16, f32, bf16 or q8_0
    adapt: Callable[[Decoder, str, Value, Value], Value] | None = None
    chunk: int = CHUNK
    sampled: bool = True  # the graph chooses the next token
    rows: int | None = None  # new tokens of a call, where it is for one number of them
    narrow: bool = False  # several queries at once are rounded to the cache's dtype, where tensor cores want one dtype
    graph: Graph = field(init=False)
    past: Expr = field(init=False)
    new: Dim = field(init=False)
    _tables: dict[RopeConfig, tuple[Value, Value]] = field(default_factory=dict, init=False)

    def build(self) -> Graph:
        """Inputs: ids, then those of `Sample` beside the logits, then the caches of each layer (`layer_caches`). Outputs: logits
        f32[vocab], the chosen token, the caches. Without `sampled`: neither what `Sample` reads nor the token."""
        c = self.config
        self.graph = Graph(c.architecture)
        self.past, self.new = sym("P", 0, max(self.capacity - 1, 1)), self.rows or sym("S", 1, min(self.chunk, self.capacity))
        ids = self.graph.input(TensorType(dt.i64, (self.new,)), "ids")
        beside = self.choice() if self.sampled else []
        first = len(self.graph.inputs)
        caches = [self.layer_caches(i) for i in range(c.layers)]
        x = self.embed(ids)
        after: list[Value] = []
        for i, own in enumerate(caches):
            x, own = self.layer(i, x, own)
            after += [part for cache in own for part in cache]
        logits = self.logits(x)
        found = [logits, o.Sample()(logits, *beside, name="sample")] if self.sampled else [logits]
        self.graph.outputs = [*found, *after]
        self.graph.donated = {first + i: len(found) + i for i in range(len(after))}
        self.graph.call_symbols = tuple(self.past.symbols) if self.attends else ()
        return self.graph

    @property
    def attends(self) -> bool:
        """Whether anything depends on how many tokens came before, but by what a recurrence keeps of them."""
        return any(self.config.layer_mixer(i) != "recurrent" for i in range(self.config.layers))

    def choice(self) -> list[Value]:
        """What `Sample` reads beside the logits."""
        types = {"seen": (dt.u8, self.config.vocab), "settings": (dt.f32, len(SETTINGS)), "numbers": (dt.i64, len(NUMBERS))}
        return [self.graph.input(TensorType(d, (n,)), name) for name, (d, n) in types.items()]

    # --- caches -------------------------------------------------------------------------------------------------------
    def layer_caches(self, i: int, suffix: str = "") -> Caches:
        """Keys and values where the layer attends, then the convolution and the memory where it is recurrent."""
        mixer, found = self.config.layer_mixer(i), []
        if mixer != "recurrent":
            found += [self.new_cache(f"k{i}{suffix}"), self.new_cache(f"v{i}{suffix}")]
        if mixer != "attention":
            found += [(part,) for part in recurrent.new_state(self, f"{i}{suffix}")]
        return tuple(found)

    def new_cache(self, name: str) -> Cache:
        """One array; for q8_0 the quantized values, and the scale of every block of 32."""
        c = self.config
        shape = (1, c.kv_heads, self.capacity, c.head_dim)
        if self.cache != "q8_0":
            return (self.graph.input(TensorType(dtype(self.cache), shape), name),)
        scales = TensorType(dt.f16, (*shape[:3], c.head_dim // Q8_BLOCK))
        return self.graph.input(TensorType(dt.i8, shape), name), self.graph.input(scales, name + "_scale")

    def append(self, cache: Cache, new: Value, name: str) -> Cache:
        parts: Cache = (new,) if self.cache != "q8_0" else o.Q8Blocks()(new, name=f"{name}_blocks")
        update = o.UpdateSlice(axis=2, start=self.past)
        return tuple(update(old, part, name=f"{name}_next{i or ''}") for i, (old, part) in enumerate(zip(cache, parts, strict=True)))

    def read(self, k: Cache, v: Cache) -> list[Value]:
        """What the caches hold after this call's tokens, in the order in which attention takes them."""
        return [o.slice_(part, 2, 0, self.past + self.new) for pair in zip(k, v, strict=True) for part in pair]

    # --- pieces -------------------------------------------------------------------------------------------------------
    def embed(self, ids: Value) -> Value:
        c = self.config
        table = self.weights.matrix("token_embd.weight", c.vocab, c.width)
        x: Value = o.QGather(format=table.format, k=table.k)(self.constant(table.data), ids, *self.books(table.format), name="embed")
        if c.embedding_scale != 1.0:
            x = o.mul(x, c.embedding_scale)
        if c.learned_positions:
            rows = self.weights.tensor("position_embd.weight").shape[0]
            table = self.weights.matrix("position_embd.weight", rows, c.width)
            op = o.QGather(format=table.format, k=table.k)
            x = o.add(x, op(self.constant(table.data), self.positions(), *self.books(table.format), name="positions"))
        return x

    def positions(self) -> Value:
        return o.iota(self.graph, (self.new,), 0, dt.i64, start=self.past)

    def layer(self, i: int, x: Value, caches: Caches) -> tuple[Value, Caches]:
        c, name, mixer = self.config, f"blk.{i}.", self.config.layer_mixer(i)
        h = self.norm(x, name + "attn_norm")
        only_last = i == c.layers - 1  # nothing but the last token's result is used after the last layer's attention
        if only_last:
            x = o.slice_(x, 0, self.new - 1, 1)
        mixed: list[Value] = []
        after: Caches = ()
        if mixer != "recurrent":
            q, new_k, new_v, gate = self.qkv(name, h, only_last=only_last)
            y, k, v = self.attend(i, q, new_k, new_v, caches[0], caches[1], self.past + self.new - 1 if only_last else self.past)
            y = o.reshape(o.transpose(y, (0, 2, 1, 3)), (y.shape[2], c.heads * c.head_dim))
            mixed.append(self.attended(name, y, gate))
            after = k, v
        if mixer != "attention":
            rows = recurrent.Rows(self.new, [(caches[-2][0], caches[-1][0])])
            mixed.append(recurrent.mix(self, i, h, rows, only_last))
            after = (*after, *((part,) for part in rows.states[0]))
        return self.after_mixing(i, x, mixed), after

    def attended(self, name: str, y: Value, gate: Value | None) -> Value:
        return self.linear(name + "attn_output", y if gate is None else o.mul(y, o.sigmoid(gate)), self.config.width)

    def after_mixing(self, i: int, x: Value, mixed: list[Value]) -> Value:
        """The rest of a layer, row by row."""
        c, name = self.config, f"blk.{i}."
        y = mixed[0] if len(mixed) == 1 else o.add(*mixed)
        if c.feed_norm != "post_attention_norm" and name + "post_attention_norm.weight" in self.weights:
            y = self.norm(y, name + "post_attention_norm")
        x = o.add(x, y)
        if not c.feeds:
            return x
        h = self.norm(x, name + c.feed_norm)
        h = self.experts(name, h) if c.experts else self.feed_forward(name, h)
        if name + "post_ffw_norm.weight" in self.weights:
            h = self.norm(h, name + "post_ffw_norm")
        return o.add(x, h)

    def attend(self, i: int, q: Value, k: Value, v: Value, k_cache: Cache, v_cache: Cache, start: Dim) -> tuple[Value, Cache, Cache]:
        """Append k and v to the caches and attend; q's first row stands at position `start`."""
        c = self.config
        rope = c.layer_rope(i)
        if rope is not None:
            q, k = self.rotate(q, rope, start), self.rotate(k, rope, self.past)
        k_cache, v_cache = self.append(k_cache, k, f"k{i}"), self.append(v_cache, v, f"v{i}")
        narrow = self.narrow and q.shape[2] != 1 and self.cache != "f32" and c.head_dim % 8 == 0 and c.head_dim <= 128
        kind = o.Q8Attention if self.cache == "q8_0" and not narrow else o.Attention
        op = kind(scale=c.layer_scale(i), causal=True, offset=start, window=c.layer_window(i), softcap=c.attention_softcap)
        seen = (k_cache, v_cache)
        if narrow:
            seen = self.unpacked(k_cache), self.unpacked(v_cache)
            q = o.cast(q, seen[0][0].dtype)
        y: Value = op(q, *self.read(*seen), name=f"attention{i}")
        return o.cast(y, dt.f32) if narrow else y, k_cache, v_cache

    def unpacked(self, cache: Cache) -> Cache:
        """A cache as floats. Values become f16, all that there is room for: memory whose size follows the position would need a graph of
        its own for every position."""
        if len(cache) == 1:
            return cache
        quantized, scales = cache
        blocks = o.reshape(quantized, (*quantized.shape[:3], self.config.head_dim // Q8_BLOCK, Q8_BLOCK))
        return (o.reshape(o.mul(o.cast(blocks, dt.f16), o.reshape(scales, (*scales.shape, 1))), quantized.shape),)

    def qkv(self, name: str, h: Value, *, only_last: bool) -> tuple[Value, Value, Value, Value | None]:
        """q, k and v, [1, heads, rows, head size] each, normed where the model does; q for the last row alone where nothing else is needed.
        The gate of the result, [rows, heads x head size], where there is one."""
        c = self.config
        wide, narrow, gate = c.heads * c.head_dim, c.kv_heads * c.head_dim, None
        if name + "attn_qkv.weight" in self.weights:
            q, k, v = o.split(self.linear(name + "attn_qkv", h, wide + 2 * narrow), 1, (wide, narrow, narrow))
            if only_last:
                q = o.slice_(q, 0, self.new - 1, 1)
        else:
            q = self.linear(name + "attn_q", o.slice_(h, 0, self.new - 1, 1) if only_last else h, wide * (2 if c.gated_attention else 1))
            k, v = self.linear(name + "attn_k", h, narrow), self.linear(name + "attn_v", h, narrow)
        if c.gated_attention:  # every head has its query, then its gate
            both = o.split(o.reshape(q, (q.shape[0], c.heads, 2 * c.head_dim)), 2, (c.head_dim, c.head_dim))
            q, gate = (o.reshape(part, (q.shape[0], wide)) for part in both)
        q, k, v = self.split_heads(q, c.heads), self.split_heads(k, c.kv_heads), self.split_heads(v, c.kv_heads)
        return self.head_norm(q, name + "attn_q_norm"), self.head_norm(k, name + "attn_k_norm"), v, gate

    def split_heads(self, x: Value, heads: int) -> Value:
        return o.transpose(o.reshape(x, (1, x.shape[0], heads, self.config.head_dim)), (0, 2, 1, 3))

    def head_norm(self, x: Value, name: str) -> Value:
        if name + ".weight" not in self.weights:
            return x
        return o.emit(o.RmsNorm(eps=self.config.norm_eps, affine="weight"), x, self.vector(name + ".weight", self.config.head_dim))

    def rotate(self, x: Value, rope: RopeConfig, start: Dim) -> Value:
        if rope not in self._tables:
            cos, sin = rope_tables(rope, self.capacity)
            self._tables[rope] = self.graph.constant(cos, "cos"), self.graph.constant(sin, "sin")
        rows = x.shape[2]
        cos_rows, sin_rows = (o.slice_(t, 0, start, rows) for t in self._tables[rope])
        return o.emit(o.Rope(n_rot=None if rope.dims == self.config.head_dim else rope.dims), x, cos_rows, sin_rows)

    def feed_forward(self, name: str, h: Value, kind: str = "") -> Value:
        c = self.config
        if not c.gated:
            size = self.weights.tensor(f"{name}ffn_up{kind}.weight").shape[0]
            return self.linear(name + "ffn_down" + kind, self.activate(self.linear(name + "ffn_up" + kind, h, size)), c.width)
        if f"{name}ffn_gate{kind}.weight" in self.weights:
            size = self.weights.tensor(f"{name}ffn_gate{kind}.weight").shape[0]
            gate, up = self.linear(name + "ffn_gate" + kind, h, size), self.linear(name + "ffn_up" + kind, h, size)
        else:  # both in one matrix
            size = self.weights.tensor(f"{name}ffn_up{kind}.weight").shape[0] // 2
            gate, up = o.split(self.linear(name + "ffn_up" + kind, h, 2 * size), 1, (size, size))
        return self.linear(name + "ffn_down" + kind, o.mul(self.activate(gate), up), c.width)

    def experts(self, name: str, h: Value) -> Value:
        """Every token goes through `experts_used` of the experts, weighted by the softmax of the router."""
        c = self.config
        size = self.weights.tensor(name + "ffn_gate_exps.weight").shape[1]
        scores = o.softmax(self.linear(name + "ffn_gate_inp", h, c.experts), 1)
        share, chosen = o.TopK(k=c.experts_used, axis=1)(scores)
        if c.renormalise_experts:
            share = o.div(share, o.sum_(share, (1,), keepdims=True))
        x = o.reshape(h, (h.shape[0], 1, c.width))
        gate, up = (self.expert_linear(name + f"ffn_{n}_exps", x, chosen, size) for n in ("gate", "up"))
        y = self.expert_linear(name + "ffn_down_exps", o.mul(self.activate(gate), up), chosen, c.width)
        y = o.sum_(o.mul(y, o.reshape(share, (*share.shape, 1))), (1,))
        if not c.shared_expert:
            return y
        weight = self.numbers(name + "ffn_gate_inp_shexp.weight", c.width)
        gate = o.sigmoid(o.sum_(o.mul(h, weight), (1,), keepdims=True))
        return o.add(y, o.mul(self.feed_forward(name, h, "_shexp"), gate))

    def activate(self, x: Value) -> Value:
        kind = self.config.activation
        if kind in ("silu", "relu"):
            return o.silu(x) if kind == "silu" else o.relu(x)
        return o.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")

    def logits(self, x: Value) -> Value:
        c = self.config
        h = self.norm(x, "output_norm")
        name = "output" if "output.weight" in self.weights else "token_embd"
        y = o.reshape(self.linear(name, h, c.vocab), self.logits_shape())
        if name == "token_embd" and c.scale("output") != 1.0:
            y = o.mul(y, c.scale("output"))
        return o.mul(o.tanh(o.div(y, c.logit_softcap)), c.logit_softcap) if c.logit_softcap is not None else y

    def logits_shape(self) -> tuple[int, ...]:
        return (self.config.vocab,)

    # --- weights ------------------------------------------------------------------------------------------------------
    def constant(self, data: Any) -> Value:
        return self.graph.constant(data, data.name)

    def books(self, format_: str) -> list[Value]:
        return [self.graph.constant(table, f"book_{format_}_{i}") for i, table in enumerate(codebooks(format_))]

    def vector(self, name: str, size: int) -> Value:
        return self.graph.constant(self.weights.vector(name, size), name)

    def numbers(self, name: str, *shape: int) -> Value:
        """A tensor that is no matrix, f32."""
        return self.graph.constant(self.weights.numbers(name, *shape), name)

    def norm(self, x: Value, name: str) -> Value:
        c = self.config
        scale = self.vector(name + ".weight", c.width)
        if c.norm == "layer":
            return o.emit(o.LayerNorm(eps=c.norm_eps, affine="both"), x, scale, self.vector(name + ".bias", c.width), name=name)
        return o.emit(o.RmsNorm(eps=c.norm_eps, affine="weight"), x, scale, name=name)

    def linear(self, name: str, x: Value, n: int) -> Value:
        k = x.shape[-1]
        assert isinstance(k, int)
        w = self.weights.matrix(name + ".weight", n, k)
        y: Value = o.QMatmul(format=w.format, n=w.n, k=w.k)(x, self.constant(w.data), *self.books(w.format), name=name)
        if self.adapt is not None:
            y = self.adapt(self, name, x, y)
        if (scale := self.config.scale(name.rpartition(".")[2])) != 1.0:
            y = o.mul(y, scale)
        return o.add(y, self.vector(name + ".bias", n)) if name + ".bias" in self.weights else y

    def expert_linear(self, name: str, x: Value, chosen: Value, n: int) -> Value:
        k = x.shape[-1]
        assert isinstance(k, int)
        w = self.weights.matrix(name + ".weight", n, k, self.config.experts)
        op = o.QExperts(format=w.format, n=n, k=k, experts=w.experts)
        return o.emit(op, x, self.constant(w.data), chosen, *self.books(w.format), name=name)
