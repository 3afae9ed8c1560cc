"""Philox 4x32-10 as its authors describe it (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), on Python's integers, and what
the random ops make of its words. `tests/ops/test_random.py` holds it to the published answers."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import torch

LOW = (1 << 32) - 1


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c, (k0, k1) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = ((right >> 32) ^ c[1] ^ k0, right & LOW, (left >> 32) ^ c[3] ^ k1, left & LOW)
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c


def blocks(a: dict[str, Any], key: Any, counter: Any) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """The block of every element, in order, and the shape."""
    pairs = torch.broadcast_tensors(key.view(torch.int64), counter.to(torch.int64))
    keys, counters = (p.reshape(-1).tolist() for p in pairs)
    split = [((k & LOW, k >> 32 & LOW), (c & LOW, c >> 32 & LOW, a.get("stream", 0), 0)) for k, c in zip(keys, counters, strict=True)]
    return [philox4x32(c, k) for k, c in split], list(pairs[0].shape)


def random_bits(a: dict[str, Any], key: Any, counter: Any) -> Any:
    found, shape = blocks(a, key, counter)
    word, wide = a.get("word", 0), "dtype" in a and a["dtype"].name == "u64"
    numbers = [b[word] | (b[word + 1] << 32 if wide else 0) for b in found]
    return torch.tensor(numbers, dtype=torch.uint64).to(torch.uint64 if wide else torch.uint32).reshape(shape)


DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def random_uniform(a: dict[str, Any], key: Any, counter: Any) -> Any:
    found, shape = blocks(a, key, counter)
    dtype = DTYPES[a["dtype"].name] if "dtype" in a else torch.float32
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}[dtype]
    exact = [((b[0] | b[1] << 32) >> 11 if digits == 53 else b[0] >> (32 - digits)) * 2.0**-digits for b in found]
    return torch.tensor(exact, dtype=torch.float64).to(dtype).reshape(shape)


def random_normal(a: dict[str, Any], key: Any, counter: Any) -> Any:
    found, shape = blocks(a, key, counter)
    dtype = DTYPES[a["dtype"].name] if "dtype" in a else torch.float32
    if dtype == torch.float64:
        u = torch.tensor([((b[0] | b[1] << 32) >> 1) * 2.0**-63 + 2.0**-64 for b in found], dtype=torch.float64)
        turn = torch.tensor([((b[2] | b[3] << 32) >> 11) * 2.0**-53 for b in found], dtype=torch.float64)
    else:
        u = torch.tensor([b[0] >> 1 for b in found], dtype=torch.float32) * 2.0**-31 + 2.0**-32
        turn = torch.tensor([(b[1] >> 8) * 2.0**-24 for b in found], dtype=torch.float64)
    return ((-2 * u.double().log()).sqrt() * (2 * pi * turn).cos()).to(dtype).reshape(shape)


RANDOM: dict[str, Callable[..., Any]] = {"random_bits": random_bits, "random_uniform": random_uniform, "random_normal": random_normal}
