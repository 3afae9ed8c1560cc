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
from .tokenizer import byte_of_character

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
MERGES = ("t h", "Ġ th", "Ġth e")
SPECIALS = ("<|im_start|>", "<|im_end|>")
HEAD = 32  # the block of a q8_0 cache
STATE, TAPS = 16, 4  # sizes of a mamba layer
PLAIN = by_name("F32")
Tensor = tuple[tuple[int, ...], int, Any]


def write_tiny_model(path: str | os.PathLike[str], *, format: str = "Q8_0", width: int = 64, layers: int = 2, experts: int = 0,  # noqa: A002
                     context: int = 128, template: str | None = CHATML, seed: int = 0, scale: float = 0.2, architecture: str = "llama",
                     vocab: int = 0) -> Path:
    """Write the model and return its path. `format` is that of every matrix; with `experts`, two of them serve each token. `architecture`
    is llama or mamba; `vocab` makes the vocabulary larger, by tokens that no text has.

    >>> import tempfile
    >>> write_tiny_model(tempfile.mkdtemp() + "/tiny.gguf").name
    'tiny.gguf'
    """
    rng, fmt = np.random.default_rng(seed), by_name(format)
    merged = [m.replace(" ", "") for m in MERGES]
    tokens = [*byte_of_character(), *merged, *SPECIALS]
    eos = len(tokens) - 1
    types = [1] * (len(tokens) - len(SPECIALS)) + [3] * len(SPECIALS) + [5] * (vocab - len(tokens))
    tokens += [f"<|{i}|>" for i in range(len(tokens), vocab)]
    sizes: dict[str, Any] = {"block_count": layers, "embedding_length": width, "context_length": context,
                             "attention.layer_norm_rms_epsilon": 1e-5}

    def matrix(*shape: int, of: Any = fmt) -> Tensor:
        return shape, of.type_id, of.quantize((rng.standard_normal(shape) * scale).astype(np.float32))

    def numbers(values: Any) -> Tensor:
        return values.shape, PLAIN.type_id, np.ascontiguousarray(values, np.float32)

    def vector(size: int) -> Tensor:
        return numbers(1 + 0.1 * rng.standard_normal(size))

    tensors = {"token_embd.weight": matrix(len(tokens), width), "output_norm.weight": vector(width)}
    narrow, size = max(1, width // HEAD // 2) * HEAD, 2 * width
    stack = (experts,) if experts else ()
    rank = -(-width // STATE)
    if architecture == "mamba":
        sizes |= {"ssm.conv_kernel": TAPS, "ssm.inner_size": size, "ssm.state_size": STATE, "ssm.time_step_rank": rank}
    else:
        sizes |= {"feed_forward_length": size, "attention.head_count": width // HEAD, "attention.head_count_kv": narrow // HEAD,
                  "rope.dimension_count": HEAD, **({"expert_count": experts, "expert_used_count": 2} if experts else {})}
    for i in range(layers):
        name, kind = f"blk.{i}.", "_exps" if experts else ""
        tensors[name + "attn_norm.weight"] = vector(width)
        if architecture == "mamba":
            tensors |= {name + "ssm_in.weight": matrix(2 * size, width), name + "ssm_x.weight": matrix(rank + 2 * STATE, size),
                        name + "ssm_conv1d.weight": numbers(rng.standard_normal((size, TAPS))), name + "ssm_conv1d.bias": vector(size),
                        name + "ssm_dt.weight": matrix(size, rank, of=PLAIN), name + "ssm_dt.bias": numbers(np.full(size, -3.0)),
                        name + "ssm_a": numbers(-np.tile(np.arange(1.0, STATE + 1), (size, 1))), name + "ssm_d": vector(size),
                        name + "ssm_out.weight": matrix(width, size)}
            continue
        tensors |= {name + "attn_q.weight": matrix(width, width),
                    name + "attn_k.weight": matrix(narrow, width), name + "attn_v.weight": matrix(narrow, width),
                    name + "attn_output.weight": matrix(width, width), name + "ffn_norm.weight": vector(width),
                    name + f"ffn_gate{kind}.weight": matrix(*stack, size, width),
                    name + f"ffn_up{kind}.weight": matrix(*stack, size, width),
                    name + f"ffn_down{kind}.weight": matrix(*stack, width, size)}
        if experts:
            tensors[name + "ffn_gate_inp.weight"] = ((experts, width), 0, rng.standard_normal((experts, width)).astype(np.float32))
    keys: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, architecture), ("general.name", STRING, "tiny"),
        *((f"{architecture}.{key}", F32 if isinstance(value, float) else U32, value) for key, value in sizes.items()),
        ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"), ("tokenizer.ggml.tokens", ARRAY, tokens),
        ("tokenizer.ggml.token_type", ARRAY, types), ("tokenizer.ggml.merges", ARRAY, list(MERGES)),
        ("tokenizer.ggml.eos_token_id", U32, eos), *([("tokenizer.chat_template", STRING, template)] if template is not None else []),
    ]
    write_file(path, gguf_bytes(keys, tensors), subject="tiny model")
    return Path(path)


def gguf_bytes(keys: list[tuple[str, int, Any]], tensors: dict[str, Tensor]) -> bytes:
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
