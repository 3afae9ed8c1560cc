"""Kernels on one NVIDIA GPU beside PyTorch (cuBLAS, cuDNN) and torch.compile (Triton), in one run.

    PYTHONPATH=src python benchmarks/gpu.py [--rows matmul,attention,...] [--json FILE]

Every contender is captured into a CUDA graph of several calls, so launch costs of Python are nobody's; graphs are replayed in turn and the
median per call is shown. Inputs are fresh random numbers. Each result of ours is checked against float64 (or float32 products of the same
operands) before it is timed; `error` is the norm of the difference over the norm of the reference.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_decode import decode
from gpu_decode_packed import decode_packed
from gpu_models import models
from gpu_packed import packed
from gpu_products import products
from gpu_tools import BF16, Table, error, measure, ours, rand, session, timed
from gpu_train import train
from gpu_variants import variants

import tilewright.ops as o
from tilewright.ops.attention.forward import Attention
from tilewright.ops.rows.norms import LayerNorm, RmsNorm, Softmax

THIN = [
    *((m, n, k) for m in (1, 16, 64, 256) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))),
    (128, 2304, 768), (128, 768, 768), (128, 3072, 768), (128, 768, 3072),
]  # fmt: skip
ATTENTION = [(4, 32, 4096, 128, True), (4, 32, 4096, 128, False), (16, 16, 1024, 64, True), (1, 32, 16384, 128, True)]


def matmul(table: Table) -> None:
    for m, n, k in [(s, s, s) for s in (512, 1024, 2048, 4096, 8192)] + THIN:
        a, b = rand(m, k), rand(n, k)
        out = torch.empty(m, n, device="cuda", dtype=BF16)
        call, y = ours(session(lambda x, w: o.Matmul(transpose_b=True)(x, w), a, b), a, b)
        times = measure({"ours": call, "cuBLAS": lambda a=a, b=b, out=out: torch.matmul(a, b.T, out=out)}, 4 if m * n * k > 1 << 36 else 20)
        table.add(f"matmul bf16 {m}x{n}x{k}", times, flops=2.0 * m * n * k, err=error(y, a.float() @ b.float().T))


def epilogue(table: Table) -> None:
    def plain(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.gelu(F.linear(x, w, b)) + r

    fused = torch.compile(plain)
    for m, n, k in ((4096, 4096, 4096), (8192, 3072, 768), (256, 14336, 4096)):
        x, w, b, r = rand(m, k), rand(n, k), rand(n), rand(m, n)
        s = session(lambda x, w, b, r: o.Add()(o.Gelu()(o.Add()(o.Matmul(transpose_b=True)(x, w), b)), r), x, w, b, r)
        call, y = ours(s, x, w, b, r)
        times = measure({"ours": call, "torch.compile": partial(fused, x, w, b, r), "eager": partial(plain, x, w, b, r)}, 8)
        wide = [t.float() for t in (x, w, b, r)]
        table.add(f"linear+bias+gelu+residual {m}x{n}x{k}", times, flops=2.0 * m * n * k, err=error(y, plain(*wide)))


def attention(table: Table) -> None:
    for b, h, s, d, causal in ATTENTION:
        q, k, v = rand(b, h, s, d), rand(b, h, s, d), rand(b, h, s, d)

        def build(q: Any, k: Any, v: Any, causal: bool = causal, d: int = d) -> Any:
            return o.Transpose(perm=(0, 2, 1, 3))(Attention(scale=d**-0.5, causal=causal)(q, k, v))

        call, y = ours(session(build, q, k, v), q, k, v)
        sdpa = lambda q=q, k=k, v=v, causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        times = measure({"ours": call, "SDPA": sdpa}, 4)
        few = F.scaled_dot_product_attention(q[:1, :1].float(), k[:1, :1].float(), v[:1, :1].float(), is_causal=causal)
        flops = 4.0 * b * h * s * s * d * (0.5 if causal else 1.0)
        table.add(f"attention {b}x{h}x{s}x{d}{' causal' if causal else ''}", times, flops=flops, err=error(y.transpose(1, 2)[:1, :1], few))


def attention_backward(table: Table) -> None:
    """All of dQ, dK and dV; both have the forward result and its logsumexps."""
    for b, h, s, d, causal in ATTENTION:
        q, k, v, g = (rand(b, h, s, d) for _ in range(4))
        forward, op = o.AttentionSaved(scale=d**-0.5, causal=causal), o.AttentionBackward(scale=d**-0.5, causal=causal, saved=True)
        given = (q, k, v, *session(lambda *x, op=forward: op(*x), q, k, v)(q, k, v), g)
        call, y = ours(session(lambda *x, op=op: op(*x), *given), *given)
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
        peer = lambda out=out, leaves=leaves, g=g: torch.autograd.grad(out, leaves, g, retain_graph=True)
        four = lambda f: lambda: [f() for _ in range(4)]  # autograd cannot be captured
        times = timed({"ours": four(call), "SDPA": four(peer)}, 4)
        few = [t[:1, :1].float().requires_grad_() for t in (q, k, v)]
        want = torch.autograd.grad(F.scaled_dot_product_attention(*few, is_causal=causal), few, g[:1, :1].float())
        err = max(error(a[:1, :1], w) for a, w in zip(y, want, strict=True))
        flops = 10.0 * b * h * s * s * d * (0.5 if causal else 1.0)
        table.add(f"attention backward {b}x{h}x{s}x{d}{' causal' if causal else ''}", times, flops=flops, err=err)


def rows(table: Table) -> None:
    n = 8192
    x, r, w, b = rand(n, n), rand(n, n), rand(n), rand(n)
    out = torch.empty_like(x)
    one = n * n * 2.0
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...], float]] = {
        "softmax": (lambda x: Softmax(axis=1)(x), lambda x: F.softmax(x, -1), (x,), 2),
        "layer norm": (
            lambda x, w, b: LayerNorm(eps=1e-5, affine="both")(x, w, b),
            lambda x, w, b: F.layer_norm(x, (n,), w, b),
            (x, w, b),
            2,
        ),
        "residual + RMS norm": (_residual_norm, lambda x, r, w: (x + r, F.rms_norm(x + r, (n,), w, 1e-5)), (x, r, w), 4),
        "GELU (erf)": (lambda x: o.Gelu()(x), F.gelu, (x,), 2),
        "SiLU": (lambda x: o.Silu()(x), F.silu, (x,), 2),
        "rope": (lambda x, c, s: o.Rope()(x, c, s), _rope, (rand(1, 64, n, 128), rand(n, 64), rand(n, 64)), 2),
        "cross-entropy": (
            lambda x, t: o.SoftmaxCrossEntropy()(x, t),
            lambda x, t: F.cross_entropy(x, t, reduction="none"),
            (x, torch.randint(0, n, (n,), device="cuda")),
            1,
        ),
    }
    for name, (fn, plain, tensors, moved) in cases.items():
        call, y = ours(session(fn, *tensors), *tensors)
        fused = torch.compile(plain)
        contenders = {
            "ours": call,
            "copy": lambda: out.copy_(x),
            "eager": lambda p=plain, t=tensors: p(*t),
            "torch.compile": lambda f=fused, t=tensors: f(*t),
        }
        times = measure(contenders, 8)
        copy = times.pop("copy")
        want = plain(*(t.float() if t.is_floating_point() else t for t in tensors))
        err = error(y[-1], want[-1]) if isinstance(want, tuple) else error(y, want)
        table.add(f"{name} 8192x8192", times, nbytes=moved * one, err=err)
        share = moved * one / times["ours"] / (2 * one / copy)
        table.rows[-1]["share_of_copy"] = share
        print(f"{'':42s} {share:.3f} of the copy's bandwidth ({2 * one / copy / 1e3:.0f} GB/s)")


def _residual_norm(x: Any, r: Any, w: Any) -> tuple[Any, Any]:
    total = o.Add()(x, r)
    return total, RmsNorm(eps=1e-5, affine="weight")(total, w)


def _rope(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


SECTIONS = {
    "matmul": matmul, "epilogue": epilogue, "attention": attention, "attention_backward": attention_backward, "rows": rows,
    "products": products, "decode": decode, "decode_packed": decode_packed, "packed": packed, "models": models, "train": train,
    "variants": variants,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(SECTIONS), help="sections to run")
    parser.add_argument("--json", default="", help="append JSON lines to this file")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; us per call, ratio to the best peer")
    table, failed = Table(), 0
    for name in arguments.rows.split(","):
        try:
            SECTIONS[name](table)
        except Exception:  # one section that fails must not cost the others
            traceback.print_exc()
            failed = 1
    if arguments.json:
        with open(arguments.json, "a") as f:
            f.writelines(json.dumps(row) + "\n" for row in table.rows)
    return failed


if __name__ == "__main__":
    sys.exit(main())
