"""What one kernel for a whole encoder layer could save: launches of small layers, what each costs, and the whole call beside PyTorch eager.

    python benchmarks/encoder_layer.py
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import tilewright as tw
from tilewright.runtime.machine import peaks

SIZES = ((32, 2, 64, 4), (64, 4, 128, 8), (128, 4, 256, 16), (256, 4, 512, 32))  # width, heads, hidden width, tokens


def least(fn: Callable[[Any], Any], x: torch.Tensor, rounds: int) -> float:
    """Microseconds of the fastest call."""
    found = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        fn(x)
        found = min(found, time.perf_counter() - start)
    return found * 1e6


def main() -> None:
    torch.set_num_threads(1)
    print("width tokens launches  ours us  of them launching %  eager us  ratio")
    for width, heads, hidden, tokens in SIZES:
        module, x = torch.nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True).eval(), torch.randn(1, tokens, width)
        session = tw.compile(module, (x,), threads=1)
        count = len(session.report().data["launches"])
        with torch.no_grad():
            ours, eager = least(session, x, 3000), least(module, x, 300)
        share = 100 * count * peaks(1).launch / 1e3 / ours
        print(f"{width:5} {tokens:6} {count:8} {ours:8.2f} {share:20.2f} {eager:9.1f} {eager / ours:6.1f}")


if __name__ == "__main__":
    main()
