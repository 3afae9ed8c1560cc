"""The kernels of examples/kernels beside our own templates: both in one run, call by call, the least of several.

    python benchmarks/user_kernels.py                 every kernel
    python benchmarks/user_kernels.py softmax matmul  kernels whose name contains one of the words
    python benchmarks/user_kernels.py --device cuda   the kernels for GPUs, on torch tensors there
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
Case = tuple[str, str, Callable[[], Any], Callable[[], Any], float, float]  # name, sizes, kernel, template, flops, bytes


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


def cases(device: str) -> list[Case]:
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
    for n in (100_000, 10_000_000):
        x, y = array(n), array(n)
        add = tw.jit(lambda a, b: a + b)
        made.append(("vector_add", f"{n:,}", lambda x=x, y=y: vector_add.vector_add(x, y), lambda x=x, y=y: add(x, y), n, 3 * n * item))
    for m, n in ((4096, 1024), (8192, 4096), (1000, 777)):
        x, w, b, g = array(m, n), array(n), array(n), array(m, n)
        soft = tw.jit(lambda a: tw.softmax(a, axis=-1))
        norm = tw.jit(lambda a, w, b: tw.layer_norm(a, w, b))
        size = m * n * item
        made.append(("softmax", f"{m} x {n}", lambda x=x: softmax.softmax(x), lambda x=x: soft(x), 5 * m * n, 2 * size))
        ours = tw.jit(lambda a, w, b: layer_norm.norm_forward(a, w, b, 1e-5)[0])
        made.append(("layer_norm", f"{m} x {n}", lambda x=x, w=w, b=b: ours(x, w, b), lambda x=x, w=w, b=b: norm(x, w, b),
                     7 * m * n, 2 * size))
        back, theirs = (tw.jit(lambda a, w, b, g, f=f: tw.grad(lambda *p: tw.sum(f(*p) * g), argnums=(0, 1, 2))(a, w, b))
                        for f in (layer_norm.layer_norm, tw.layer_norm))
        made.append(("layer_norm_backward", f"{m} x {n}", lambda a=(x, w, b, g): back(*a), lambda a=(x, w, b, g): theirs(*a),
                     15 * m * n, 5 * size))
    for h, w in ((2048, 2048), (1001, 3333)):
        x = array(h, w)
        plain = tw.jit(lambda x: (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) * 0.25)
        made.append(("stencil", f"{h} x {w}", lambda x=x: stencil.stencil(x), lambda x=x: plain(x), 4 * h * w, 2 * h * w * item))
    product = matmul.matmul_tiles if gpu else matmul.matmul
    for m, k, n in ((512, 512, 512), (1024, 1024, 1024), (777, 1111, 999)):
        a, b = array(m, k), array(k, n)
        mul = tw.jit(lambda a, b: a @ b)
        made.append(("matmul", f"{m} x {k} x {n}", lambda a=a, b=b: product(a, b), lambda a=a, b=b: mul(a, b), 2 * m * k * n,
                     (m * k + k * n + m * n) * item))
    flash = attention.attention_tiles if gpu else attention.attention
    for h, s, d in ((12, 512, 64), (8, 1000, 128)):
        q, k, v = array(h, s, d), array(h, s, d), array(h, s, d)
        att = tw.jit(lambda q, k, v: tw.attention(q[None], k[None], v[None])[0])
        made.append(("attention", f"{h} x {s} x {d}", lambda q=q, k=k, v=v: flash(q, k, v), lambda q=q, k=k, v=v: att(q, k, v),
                     4 * h * s * s * d, 4 * h * s * d * item))
    return made


def machine(device: str, finish: Callable[[], Any]) -> tuple[float, float]:
    """Multiplications and additions a second, and bytes a second, of a large product and a large sum of our own."""
    every = cases(device)
    big = next(c for c in every if c[0] == "matmul" and c[1].startswith("1024"))
    wide = next(c for c in every if c[0] == "vector_add" and c[1] == "10,000,000")
    times = least([big[3], wide[3]], finish)
    return big[4] / times[0], wide[5] / times[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each of a pair")
    options = parser.parse_args()

    def finish() -> None:
        if options.device != "cpu":
            import torch

            torch.cuda.synchronize()

    flops, memory = machine(options.device, finish)
    print(f"this machine: {flops / 1e9:.0f} GFLOP/s in a product of ours, {memory / 1e9:.1f} GB/s in a sum of ours\n")
    print(f"{'kernel':20} {'sizes':18} {'kernel':>10} {'template':>10} {'share':>6} {'roofline':>8}")
    shares: dict[str, list[float]] = {}
    rows = []
    for name, sizes, ours, theirs, work, moved in cases(options.device):
        if options.words and not any(w in name for w in options.words):
            continue
        a, b = least([ours, theirs], finish, options.seconds)
        roof = max(work / flops, moved / memory) / a
        shares.setdefault(name, []).append(b / a)
        rows.append({"kernel": name, "sizes": sizes, "us": a * 1e6, "template_us": b * 1e6, "share": b / a, "roofline": roof})
        print(f"{name:20} {sizes:18} {a * 1e6:8.0f}us {b * 1e6:8.0f}us {b / a:6.2f} {roof:8.2f}", flush=True)
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
