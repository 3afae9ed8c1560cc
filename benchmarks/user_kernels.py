"""The kernels of examples/kernels beside our own templates: both in one run, call by call, the least of several.

    python benchmarks/user_kernels.py                 every kernel
    python benchmarks/user_kernels.py softmax matmul  kernels whose name contains one of the words
    python benchmarks/user_kernels.py --device cuda   the kernels for GPUs, on torch tensors there
    python benchmarks/user_kernels.py --small         calls of a millisecond at most: for a machine with other work
    python benchmarks/user_kernels.py --json out.jsonl

A share is the template's time over the kernel's: 1.0 is as fast. `roofline` is the kernel's share of what the machine can do, from a copy
and a product that are measured first.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "examples" / "kernels")]

import attention  # noqa: E402
import layer_norm  # noqa: E402
import matmul  # noqa: E402
import softmax  # noqa: E402
import stencil  # noqa: E402
import vector_add  # noqa: E402

import tilewright as tw  # noqa: E402

LIMITS = {"vector_add": 0.9, "softmax": 0.9, "layer_norm": 0.9, "layer_norm_backward": 0.9, "stencil": 0.9, "matmul": 0.8, "attention": 0.8}


@dataclass
class Case:
    """A kernel and the template's way, both jitted, on the same arguments."""

    name: str
    sizes: str
    kernel: Callable[..., Any]
    template: Callable[..., Any]
    args: tuple[Any, ...]
    flops: float
    bytes: float

    def calls(self) -> list[Callable[[], Any]]:
        return [partial(tw.jit(f), *self.args) for f in (self.kernel, self.template)]


def least(fns: list[Callable[[], Any]], finish: Callable[[], Any], seconds: float = 1.0) -> list[float]:
    """The shortest time of each, taken in turns."""
    for f in fns:
        f()
        f()
    best = [float("inf")] * len(fns)
    end = time.perf_counter() + seconds * len(fns)
    rounds = 0
    while time.perf_counter() < end or rounds < 5:
        for i, f in enumerate(fns):
            finish()
            start = time.perf_counter()
            f()
            finish()
            best[i] = min(best[i], time.perf_counter() - start)
        rounds += 1
    return best


def cases(device: str, small: bool = False) -> list[Case]:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        made = rng.standard_normal(shape, np.float32)
        if device == "cpu":
            return made
        import torch

        return torch.from_numpy(made).to(device, torch.bfloat16)

    gpu = device != "cpu"
    item = 2 if gpu else 4
    made: list[Case] = []
    for n in (100_000, 1_000_000 if small else 10_000_000):
        made.append(Case("vector_add", f"{n:,}", vector_add.vector_add, tw.add, (array(n), array(n)), n, 3 * n * item))
    for m, n in ((1000, 777), (512, 1024)) if small else ((4096, 1024), (8192, 4096), (1000, 777)):
        x, w, b, g = array(m, n), array(n), array(n), array(m, n)
        size, shown = m * n * item, f"{m} x {n}"
        made.append(Case("softmax", shown, softmax.softmax, tw.softmax, (x,), 5 * m * n, 2 * size))
        made.append(Case("layer_norm", shown, layer_norm.layer_norm, tw.layer_norm, (x, w, b), 7 * m * n, 2 * size))
        made.append(Case("layer_norm_backward", shown, gradients(layer_norm.layer_norm), gradients(tw.layer_norm), (x, w, b, g),
                         15 * m * n, 5 * size))
    for h, w in ((512, 512), (301, 777)) if small else ((2048, 2048), (1001, 3333)):
        made.append(Case("stencil", f"{h} x {w}", stencil.stencil, five_points, (array(h, w),), 4 * h * w, 2 * h * w * item))
    product = matmul.matmul_gpu if gpu else matmul.matmul
    for m, k, n in ((256, 256, 256), (201, 333, 199)) if small else ((512, 512, 512), (1024, 1024, 1024), (777, 1111, 999)):
        moved = (m * k + k * n + m * n) * item
        made.append(Case("matmul", f"{m} x {k} x {n}", product, tw.matmul, (array(m, k), array(k, n)), 2 * m * k * n, moved))
    flash = attention.attention_tiles if gpu else attention.attention
    for h, s, d in ((4, 200, 64), (2, 201, 128)) if small else ((12, 512, 64), (8, 1000, 128)):
        args = (array(h, s, d), array(h, s, d), array(h, s, d))
        made.append(Case("attention", f"{h} x {s} x {d}", flash, heads, args, 4 * h * s * s * d, 4 * h * s * d * item))
    return made


def gradients(norm: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w, b, g: tw.grad(lambda *p: tw.sum(norm(*p) * g), argnums=(0, 1, 2))(x, w, b)


def five_points(x: Any) -> Any:
    return (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * 0.25


def heads(q: Any, k: Any, v: Any) -> Any:
    return tw.attention(q[None], k[None], v[None])[0]


def machine(device: str, small: bool, finish: Callable[[], Any]) -> tuple[float, float]:
    """Multiplications and additions a second, and bytes a second, of a large product and a large sum of our own."""
    every = cases(device, small)
    big = next(c for c in every if c.name == "matmul")
    wide = [c for c in every if c.name == "vector_add"][1]
    times = least([big.calls()[1], wide.calls()[1]], finish)
    return big.flops / times[0], wide.bytes / times[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each of a pair")
    options = parser.parse_args()

    def finish() -> None:
        if options.device != "cpu":
            import torch

            torch.cuda.synchronize()

    flops, memory = machine(options.device, options.small, finish)
    print(f"this machine: {flops / 1e9:.0f} GFLOP/s in a product of ours, {memory / 1e9:.1f} GB/s in a sum of ours\n")
    print(f"{'kernel':20} {'sizes':18} {'kernel':>10} {'template':>10} {'share':>6} {'roofline':>8}")
    shares: dict[str, list[float]] = {}
    rows = []
    for c in cases(options.device, options.small):
        if options.words and not any(w in c.name for w in options.words):
            continue
        a, b = least(c.calls(), finish, options.seconds)
        roof = max(c.flops / flops, c.bytes / memory) / a
        shares.setdefault(c.name, []).append(b / a)
        rows.append({"kernel": c.name, "sizes": c.sizes, "us": a * 1e6, "template_us": b * 1e6, "share": b / a, "roofline": roof})
        print(f"{c.name:20} {c.sizes:18} {a * 1e6:8.0f}us {b * 1e6:8.0f}us {b / a:6.2f} {roof:8.2f}", flush=True)
    print()
    failed = 0
    for name, found in shares.items():
        mean = float(np.exp(np.mean(np.log(found))))
        ok = mean >= LIMITS[name]
        failed += not ok
        print(f"{name:20} share {mean:.2f} (at least {LIMITS[name]}: {'reached' if ok else 'NOT reached'})")
    if options.json:
        Path(options.json).write_text("".join(json.dumps(r) + "\n" for r in rows))
    return failed


if __name__ == "__main__":
    sys.exit(main())
