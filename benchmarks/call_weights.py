"""Products and convolutions whose weights come with the call, beside PyTorch's.

    python benchmarks/call_weights.py [--dtype bf16] [words …]     one thread; alternating calls, least CPU time of each
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from nbits import least

import tilewright as tw

PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (128, 768, 3072), (16, 1024, 1024), (4, 2048, 2048), (1, 2048, 2048), (127, 129, 131),
            (64, 4096, 512), (2048, 64, 64))  # m, n, k
BATCHES = ((8, 128, 128, 64), (96, 64, 64, 64), (16, 256, 256, 256), (12, 1, 512, 64), (4, 33, 17, 65))  # batch, m, n, k
IMAGES = ((1, 64, 64, 56, 3, 1), (1, 256, 256, 14, 3, 1), (1, 512, 512, 7, 3, 1), (4, 64, 64, 64, 1, 1), (1, 256, 1024, 14, 1, 1),
          (1, 3, 64, 224, 7, 2), (4, 64, 128, 64, 3, 2), (1, 16, 33, 17, 3, 1))  # batch, channels, results, side, window, step


def cases(dtype: torch.dtype) -> list[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]]:
    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) / 4).to(dtype)

    found: list[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]] = []
    for m, n, k in PRODUCTS:
        found.append((f"matmul {m}x{k} by {k}x{n}", torch.matmul, (draw(m, k), draw(k, n))))
        found.append((f"linear {m}x{k} by {n}x{k}", F.linear, (draw(m, k), draw(n, k))))
    for batch, m, n, k in BATCHES:
        found.append((f"batch {batch}x{m}x{k}x{n}", torch.matmul, (draw(batch, m, k), draw(batch, k, n))))
    for batch, c, results, side, window, step in IMAGES:
        conv = partial(F.conv2d, stride=step, padding=window // 2)
        found.append((f"conv {batch}x{c}x{side}² to {results}, {window}x{window} step {step}", conv,
                      (draw(batch, c, side, side), draw(results, c, window, window))))
    found.append(("conv grouped", partial(F.conv2d, padding=1, groups=4), (draw(4, 64, 64, 64), draw(64, 16, 3, 3))))
    found.append(("conv 3-D", partial(F.conv3d, padding=1), (draw(1, 16, 16, 32, 32), draw(32, 16, 3, 3, 3))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"))
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, fn, inputs in cases({"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[args.dtype]):
        if args.words and not any(w in name for w in args.words):
            continue

        class Module(torch.nn.Module):
            def forward(self, *xs: torch.Tensor, fn: Callable[..., Any] = fn) -> Any:
                return fn(*xs)

        session = tw.compile(Module(), inputs, threads=1)
        us = {k: t * 1e6 for k, t in least({"ours": partial(session, *inputs), "torch": partial(fn, *inputs)}, 0.7).items()}
        print(f"{args.dtype} {name:40s} {us['ours']:9.0f} us, PyTorch {us['torch']:9.0f} ({us['torch'] / us['ours']:.2f})", flush=True)


if __name__ == "__main__":
    main()
