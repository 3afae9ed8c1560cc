"""Attention backward with biases, soft caps and other head sizes, and convolutions with groups and three axes, beside PyTorch; both also on
the path of older chips. Each result is checked against float32 before it is timed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from gpu_tools import Table, error, measure, ours, rand, session, timed

import tilewright.ops as o

# batch, heads, length, head size, bias of all heads, soft cap, target
ATTENTION: tuple[tuple[int, int, int, int, bool, float | None, str], ...] = (
    (4, 32, 4096, 128, True, None, "cuda"), (16, 16, 1024, 64, True, None, "cuda"), (4, 32, 4096, 96, False, None, "cuda"),
    (4, 32, 4096, 128, False, 30.0, "cuda"), (4, 32, 4096, 128, False, None, "sm_80"), (16, 16, 1024, 64, True, None, "sm_80"),
)  # fmt: skip
# batch, channels, sizes, results, taps of every axis, groups, target; step one, padding that keeps the sizes
CONVOLUTIONS: tuple[tuple[int, int, tuple[int, ...], int, int, int, str], ...] = (
    (32, 256, (56, 56), 256, 3, 32, "cuda"), (32, 512, (28, 28), 512, 3, 4, "cuda"), (4, 64, (32, 56, 56), 64, 3, 1, "cuda"),
    (32, 128, (56, 56), 128, 3, 32, "cuda"), (32, 256, (56, 56), 256, 3, 256, "cuda"),
    (32, 128, (28, 28), 128, 3, 1, "sm_80"), (32, 256, (14, 14), 1024, 1, 1, "sm_80"),
)  # fmt: skip


def variants(table: Table) -> None:
    for case in ATTENTION:
        _backward(table, *case)
    for shape in CONVOLUTIONS:
        _convolution(table, *shape)


def _scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, cap: float | None) -> torch.Tensor:
    if cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    s = cap * torch.tanh(q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 / cap))
    return torch.softmax(s if bias is None else s + bias, -1) @ v


def _backward(table: Table, b: int, h: int, s: int, d: int, biased: bool, cap: float | None, target: str) -> None:
    """dQ, dK and dV, and the bias's cotangent; both have the forward result and its logsumexps."""
    q, k, v, g = (rand(b, h, s, d) for _ in range(4))
    extras = (rand(1, h, s, s),) if biased else ()
    attrs: dict[str, Any] = {"scale": d**-0.5, "softcap": cap, "has_bias": biased}
    forward, op = o.AttentionSaved(**attrs), o.AttentionBackward(**attrs, with_scores=biased, saved=True)

    def build(*x: Any) -> Any:
        dq, dk, dv, *scores = op(*x)
        return [dq, dk, dv, *(o.Sum(axes=(0,), keepdims=True)(y) for y in scores)]

    given = (q, k, v, *extras, *session(lambda *x: forward(*x), q, k, v, *extras, target=target)(q, k, v, *extras), g)
    call, y = ours(session(build, *given, target=target), *given)
    leaves = [t.clone().requires_grad_() for t in (q, k, v, *extras)]
    contenders = {"ours": call}
    if cap is None:  # PyTorch's kernels have no soft cap
        out = _scores(*leaves[:3], leaves[3] if biased else None, None)
        contenders["SDPA"] = lambda: torch.autograd.grad(out, leaves, g, retain_graph=True)
    times = timed({name: lambda f=f: [f() for _ in range(4)] for name, f in contenders.items()}, 4)
    few = [t[:1, :1].float().requires_grad_() for t in (q, k, v)]
    seen = _scores(*few, extras[0][:1, :1].float() if biased else None, cap)
    want = torch.autograd.grad(seen, few, g[:1, :1].float())
    err = max(error(a[:1, :1], w) for a, w in zip(y[:3], want, strict=True))
    said = f"{' bias' if biased else ''}{' soft cap' if cap is not None else ''}{', sm_80 path' if target == 'sm_80' else ''}"
    table.add(f"attention backward {b}x{h}x{s}x{d}{said}", times, flops=10.0 * b * h * s * s * d, err=err)


def _convolution(table: Table, n: int, c: int, sizes: tuple[int, ...], out: int, taps: int, groups: int, target: str) -> None:
    axes, pad = len(sizes), taps // 2
    x, w = rand(n, c, *sizes), rand(out, c // groups, *(taps,) * axes)
    op = o.Conv(stride=(1,) * axes, padding=((pad, pad),) * axes, dilation=(1,) * axes, groups=groups)
    call, y = ours(session(lambda a, b: op(a, b), x, w, target=target), x, w)
    plain: Any = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    last = x.to(memory_format=torch.channels_last if axes == 2 else torch.channels_last_3d)
    contenders = {
        "ours": call, "cuDNN": lambda: plain(x, w, padding=pad, groups=groups),
        "cuDNN, channels last": lambda: plain(last, w, padding=pad, groups=groups),
    }  # fmt: skip
    times = measure(contenders, 4)
    want = plain(x[:1].float(), w.float(), padding=pad, groups=groups)
    flops = 2.0 * y.numel() * w.numel() / out
    said = f"{n}x{c}x{'x'.join(map(str, sizes))}, {out} of {taps} taps{f', {groups} groups' if groups > 1 else ''}"
    table.add(f"convolution {said}{', sm_80 path' if target == 'sm_80' else ''}", times, flops=flops, err=error(y[:1], want))
