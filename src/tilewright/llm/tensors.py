"""Which tensors a model has, by its configuration: names and shapes, compared with what a file holds before anything is made of it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.errors import FormatError
from .config import ModelConfig

Shape = tuple[int, ...]
READ = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # by `gguf_config.py`
JOINED = ("phi3", "gpt2")  # architectures with q, k and v in one matrix; gate and up, where there are both
NORMED = ("qwen3", "qwen3moe", "gemma3", "qwen3next")  # architectures with norms of q and k


def check_tensors(shapes: Mapping[str, Shape], config: ModelConfig, source: str) -> None:
    """FormatError for a tensor that is missing, one too many, or of another shape than the configuration says."""
    known, kind = {name for name in READ if name in shapes}, f"a {config.architecture} model of {config.layers} layers"
    for name, shape, needed in expected(config, shapes):
        known.add(name)
        found = shapes.get(name)
        if found is None and needed:
            raise FormatError(f"llm: tensor {name!r} is missing; {kind} needs it ({source})")
        if found is not None and needed is False:
            raise FormatError(f"llm: tensor {name!r} has no place in this model, by its configuration ({source})")
        if found is not None and found != shape:
            raise FormatError(f"llm: tensor {name!r} must have shape {list(shape)}, got {list(found)} ({source})")
    if others := shapes.keys() - known:
        raise FormatError(f"llm: no place for tensor {min(others)!r:.200} in {kind} ({source})")


def expected(c: ModelConfig, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape, bool | None]]:
    """Name and shape of every tensor, and whether it must be there (None: it may)."""
    width, wide, narrow = c.width, c.heads * c.head_dim, c.kv_heads * c.head_dim
    layered = c.norm == "layer"

    def norm(name: str) -> Iterator[tuple[str, Shape, bool | None]]:
        yield f"{name}.weight", (width,), True
        yield f"{name}.bias", (width,), layered

    def linear(name: str, n: int, k: int, bias: bool | None) -> Iterator[tuple[str, Shape, bool | None]]:
        yield f"{name}.weight", (n, k), True
        yield f"{name}.bias", (n,), bias

    yield "token_embd.weight", (c.vocab, width), True
    yield from norm("output_norm")
    yield "output.weight", (c.vocab, width), None if c.tied is None else not c.tied
    if c.learned_positions:
        yield "position_embd.weight", (c.context, width), True
    inner, output, feed = c.biases
    for i in range(c.layers):
        name = f"blk.{i}."
        yield from norm(name + "attn_norm")
        if c.layer_mixer(i) != "recurrent":
            if c.architecture in JOINED and name + "attn_qkv.weight" in shapes:
                yield from linear(name + "attn_qkv", wide + 2 * narrow, width, inner)
            else:
                for part, n in (("attn_q", wide * (2 if c.gated_attention else 1)), ("attn_k", narrow), ("attn_v", narrow)):
                    yield from linear(name + part, n, width, inner)
            for part in ("attn_q_norm", "attn_k_norm"):
                yield f"{name}{part}.weight", (c.head_dim,), c.architecture in NORMED
            yield from linear(name + "attn_output", width, wide, output)
        if c.layer_mixer(i) != "attention":
            yield from _recurrent(c, name, shapes)
        if not c.feeds:
            continue
        yield from norm(name + c.feed_norm)
        if c.architecture.startswith("gemma"):
            yield from norm(name + "post_attention_norm")
            yield from norm(name + "post_ffw_norm")
        yield from _feed_forward(c, name, shapes, feed)


def _recurrent(c: ModelConfig, name: str, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape, bool | None]]:
    """The tensors of a recurrence. GGUF gives numbers of heads an axis more."""
    r, width = c.recurrence, c.width
    assert r is not None

    def numbers(tensor: str, *kinds: Shape) -> tuple[str, Shape, bool]:
        found = shapes.get(name + tensor)
        return name + tensor, found if found in kinds else kinds[0], True

    yield name + "ssm_conv1d.weight", (r.channels, r.taps), True
    yield name + "ssm_conv1d.bias", (r.channels,), r.conv_bias
    yield name + "ssm_out.weight", (width, r.inner), True
    yield name + "ssm_out.bias", (width,), r.biases and None
    if r.kind == "mamba":
        yield name + "ssm_in.weight", (2 * r.inner, width), True
        yield name + "ssm_in.bias", (2 * r.inner,), r.biases and None
        yield name + "ssm_x.weight", (r.rank + 2 * r.state, r.inner), True
        yield name + "ssm_dt.weight", (r.inner, r.rank), True
        yield name + "ssm_dt.bias", (r.inner,), True
        yield name + "ssm_a", (r.inner, r.state), True
        yield name + "ssm_d", (r.inner,), True
        return
    yield name + "ssm_dt.bias", (r.heads,), True
    yield numbers("ssm_a", (r.heads,), (r.heads, 1))
    if r.kind == "mamba2":
        yield name + "ssm_in.weight", (r.inner + r.channels + r.heads, width), True
        yield name + "ssm_in.bias", (r.inner + r.channels + r.heads,), r.biases and None
        yield numbers("ssm_d", (r.heads,), (r.heads, 1))
        if r.norm_groups:
            yield numbers("ssm_norm.weight", (r.inner,), (r.norm_groups, r.inner // r.norm_groups))
        return
    yield name + "ssm_norm.weight", (r.inner // r.heads,), True
    yield name + "ssm_ba.weight", (2 * r.heads, width), True
    yield name + "attn_qkv.weight", (r.channels, width), True
    yield name + "attn_gate.weight", (r.inner, width), True


def _feed_forward(c: ModelConfig, name: str, shapes: Mapping[str, Shape], bias: bool | None) -> Iterator[tuple[str, Shape, bool | None]]:
    """The size between the matrices is what the configuration says; else what the first of them has."""
    def size(tensor: str, axis: int) -> int:
        found = shapes.get(tensor, ())
        return c.hidden if c.hidden is not None else found[axis] if len(found) > axis else 1

    if c.experts:
        hidden = size(name + "ffn_gate_exps.weight", 1)
        yield name + "ffn_gate_inp.weight", (c.experts, c.width), True
        for part, n, k in (("gate", hidden, c.width), ("up", hidden, c.width), ("down", c.width, hidden)):
            yield f"{name}ffn_{part}_exps.weight", (c.experts, n, k), True
        if c.shared_expert:
            found = shapes.get(name + "ffn_up_shexp.weight", ())
            hidden, gate = found[0] if found else 1, name + "ffn_gate_inp_shexp.weight"
            yield gate, (1, c.width) if shapes.get(gate) == (1, c.width) else (c.width,), True
            for part, n, k in (("gate", hidden, c.width), ("up", hidden, c.width), ("down", c.width, hidden)):
                yield f"{name}ffn_{part}_shexp.weight", (n, k), True
        return
    joined = c.gated and c.architecture in JOINED and name + "ffn_gate.weight" not in shapes
    hidden = size(name + "ffn_down.weight", 1)
    parts = [("ffn_up", hidden * (2 if joined else 1), c.width), ("ffn_down", c.width, hidden)]
    for part, n, k in parts if joined or not c.gated else [("ffn_gate", hidden, c.width), *parts]:
        yield f"{name}{part}.weight", (n, k), True
        yield f"{name}{part}.bias", (n,), bias
