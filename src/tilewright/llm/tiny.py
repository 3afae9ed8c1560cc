"""A tiny random language model as a whole GGUF file, vocabulary and chat template included: for examples and tests.

It talks nonsense, in a fraction of a second, through the same code as a real model. The file is written here and not by the gguf
package, so that an example needs nothing that Tilewright does not need itself.
"""
from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import write_file
from ..frontend.gguf.writer import write_gguf
from ..ops.quant import by_name
from .chat import CHATML
from .tokenizer_pieces import byte_of_character

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
MERGES = ("t h", "Ġ th", "Ġth e")
SPECIALS = ("<|im_start|>", "<|im_end|>")
HEAD = 32  # the block of a q8_0 cache


def write_tiny_model(path: str | os.PathLike[str], *, format: str = "Q8_0", width: int = 64, layers: int = 2, experts: int = 0,  # noqa: A002
                     context: int = 128, template: str | None = CHATML, seed: int = 0, scale: float = 0.2) -> Path:
    """Write the model and return its path. `format` is that of every matrix; with `experts`, two of them serve each token.

    >>> import tempfile
    >>> write_tiny_model(tempfile.mkdtemp() + "/tiny.gguf").name
    'tiny.gguf'
    """
    rng, fmt = np.random.default_rng(seed), by_name(format)
    merged = [m.replace(" ", "") for m in MERGES]
    tokens = [*byte_of_character(), *merged, *SPECIALS]
    eos = len(tokens) - 1
    keys: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"), ("general.name", STRING, "tiny"), ("llama.block_count", U32, layers),
        ("llama.embedding_length", U32, width), ("llama.feed_forward_length", U32, 2 * width), ("llama.context_length", U32, context),
        ("llama.attention.head_count", U32, width // HEAD), ("llama.attention.head_count_kv", U32, max(1, width // HEAD // 2)),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), ("llama.rope.dimension_count", U32, HEAD),
        ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"), ("tokenizer.ggml.tokens", ARRAY, tokens),
        ("tokenizer.ggml.token_type", ARRAY, [1] * (len(tokens) - len(SPECIALS)) + [3] * len(SPECIALS)),
        ("tokenizer.ggml.merges", ARRAY, list(MERGES)), ("tokenizer.ggml.eos_token_id", U32, eos),
    ]
    if template is not None:
        keys.append(("tokenizer.chat_template", STRING, template))
    if experts:
        keys += [("llama.expert_count", U32, experts), ("llama.expert_used_count", U32, 2)]

    def matrix(*shape: int) -> tuple[tuple[int, ...], int, Any]:
        return shape, fmt.type_id, fmt.quantise((rng.standard_normal(shape) * scale).astype(np.float32))

    def vector(size: int) -> tuple[tuple[int, ...], int, Any]:
        return (size,), by_name("F32").type_id, (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    narrow, size = max(1, width // HEAD // 2) * HEAD, 2 * width
    tensors = {"token_embd.weight": matrix(len(tokens), width), "output_norm.weight": vector(width)}
    stack = (experts,) if experts else ()
    for i in range(layers):
        name, kind = f"blk.{i}.", "_exps" if experts else ""
        tensors |= {name + "attn_norm.weight": vector(width), name + "attn_q.weight": matrix(width, width),
                    name + "attn_k.weight": matrix(narrow, width), name + "attn_v.weight": matrix(narrow, width),
                    name + "attn_output.weight": matrix(width, width), name + "ffn_norm.weight": vector(width),
                    name + f"ffn_gate{kind}.weight": matrix(*stack, size, width),
                    name + f"ffn_up{kind}.weight": matrix(*stack, size, width),
                    name + f"ffn_down{kind}.weight": matrix(*stack, width, size)}
        if experts:
            tensors[name + "ffn_gate_inp.weight"] = ((experts, width), 0, rng.standard_normal((experts, width)).astype(np.float32))
    write_file(path, gguf_bytes(keys, tensors), subject="tiny model")
    return Path(path)


def gguf_bytes(keys: list[tuple[str, int, Any]], tensors: dict[str, tuple[tuple[int, ...], int, Any]]) -> bytes:
    """A GGUF file, version 3. Keys: name, kind, value. Tensors: shape with the packed axis last, type number, bytes."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def plain(kind: int, value: Any) -> bytes:
        return text(value) if kind == STRING else struct.pack({U32: "<I", I32: "<i", F32: "<f"}[kind], value)

    def entry(name: str, kind: int, value: Any) -> bytes:
        if kind != ARRAY:
            return text(name) + struct.pack("<I", kind) + plain(kind, value)
        inner = STRING if isinstance(value[0], str) else I32
        return text(name) + struct.pack("<IIQ", ARRAY, inner, len(value)) + b"".join(plain(inner, v) for v in value)

    out = io.BytesIO()
    made = {n: (shape, kind, values.nbytes, (values,)) for n, (shape, kind, values) in tensors.items()}
    write_gguf(out, b"".join(entry(*k) for k in keys), len(keys), made)
    return out.getvalue()
