"""Functions of PyTorch that compute with sizes: slices at halves and ends, masks of positions, reshapes, pads and writes whose places are
expressions of sizes. Each is right at any size at which its parts fit."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .program import Picks, Unfit
from .torch_layers import drawn, floats
from .torch_ops import OPS, Run, axis_of, op

BEFORE = frozenset(OPS)


def size_of(p: Picks) -> Any:
    """An expression of a size, in 0 .. n."""
    k = 1 + p(3)
    return p.of((lambda n: n // 2, lambda n: (n + 1) // 2, lambda n: n - n // 3, lambda n: min(n, k), lambda n: max(n - k, 0),
                 lambda n: n % k,
                 lambda n: n // k, lambda n: n - 1, lambda n: n // 4 * 2, lambda n: (n * 2 - 1) // 3, lambda n: n))  # fmt: skip


@op
def part(x: Any, y: Any, p: Picks) -> Run:
    axis, a, b, k = axis_of(x, p), size_of(p), size_of(p), 1 + p(3)
    return p.of((lambda x, y: x.narrow(axis, 0, a(x.shape[axis])),
                 lambda x, y: x.narrow(axis, a(x.shape[axis]), x.shape[axis] - a(x.shape[axis])),
                 lambda x, y: x.movedim(axis, 0)[-k:].movedim(0, axis), lambda x, y: x.movedim(axis, 0)[k:],
                 lambda x, y: x.movedim(axis, 0)[:-k],
                 lambda x, y: x.movedim(axis, -1)[..., a(x.shape[axis]) :: k],
                 lambda x, y: x.movedim(axis, 0)[: a(x.shape[axis])][: b(x.shape[axis])],
                 lambda x, y: x.movedim(axis, 0)[b(x.shape[axis]) :][a(x.shape[axis]) :],
                 lambda x, y: x.movedim(axis, 0)[::k].flip(0), lambda x, y: x.select(axis, x.shape[axis] - 1),
                 lambda x, y: x.split(k, axis)[-1],
                 lambda x, y: x.chunk(2, axis)[-1], lambda x, y: x.tensor_split(3, axis)[1]))  # fmt: skip


@op
def joined(x: Any, y: Any, p: Picks) -> Run:
    axis, a, k = axis_of(x, p), size_of(p), 1 + p(3)

    def halves(x: Any) -> tuple[Any, Any]:
        n = x.shape[axis]
        return x.narrow(axis, 0, a(n)), x.narrow(axis, a(n), n - a(n))

    return p.of((lambda x, y: torch.cat(halves(x)[::-1], axis), lambda x, y: torch.cat([x, halves(x)[0]], axis),
                 lambda x, y: torch.cat([x.flip(axis), x], axis),
                 lambda x, y: torch.stack([x, x * 2], axis).flatten(axis % x.dim(), axis % x.dim() + 1),
                 lambda x, y: x.repeat_interleave(k, axis), lambda x, y: x.roll(a(x.shape[axis]), axis), lambda x, y: x.roll(k, axis),
                 lambda x, y: torch.cat([halves(x)[1], y], axis), lambda x, y: torch.cat([x[:1], y[-1:]], 0),
                 lambda x, y: x.unsqueeze(0).expand(x.shape[axis], *x.shape).sum(0) if x.shape[axis] < 9 else x * 9,
                 lambda x, y: x.repeat(k, *([1] * (x.dim() - 1)))))  # fmt: skip


@op
def shaped(x: Any, y: Any, p: Picks) -> Run:
    axis, k = axis_of(x, p), 2 + p(2)

    def even(x: Any) -> Any:
        x = x.movedim(axis, 0)
        return x[: x.shape[0] // k * k]

    return p.of((lambda x, y: x.reshape(-1), lambda x, y: x.reshape(x.shape[0], -1), lambda x, y: x.flatten(0, 1) if x.dim() > 1 else x,
                 lambda x, y: even(x).unflatten(0, (-1, k)), lambda x, y: even(x).reshape(k, -1, *even(x).shape[1:]).transpose(0, 1),
                 lambda x, y: even(x).unflatten(0, (-1, k)).sum(1), lambda x, y: x.transpose(0, -1).reshape(x.shape[-1], -1),
                 lambda x, y: x.movedim(axis, 0).unfold(0, k, 1), lambda x, y: x.movedim(axis, 0).unfold(0, 2, k).flatten(),
                 lambda x, y: x.new_zeros(x.shape[axis], k).add(1),
                 lambda x, y: torch.full((x.shape[0],), float(k), device=x.device) * x.shape[axis]))  # fmt: skip


@op
def placed_by(x: Any, y: Any, p: Picks) -> Run:
    """Positions and counts."""
    axis, a, k = axis_of(x, p), size_of(p), 1 + p(3)

    def line(x: Any) -> Any:
        return torch.arange(x.shape[axis], device=x.device).reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])

    def square(x: Any) -> Any:
        n = torch.arange(x.shape[-1], device=x.device)
        return n[:, None] - n[None]

    return p.of((lambda x, y: floats(x) + line(x), lambda x, y: torch.where(line(x) < a(x.shape[axis]), x, 0 * x),
                 lambda x, y: floats(x) / max(x.shape[axis], 1),
                 lambda x, y: floats(x) * math.sqrt(x.shape[axis] + 1), lambda x, y: x * (x.shape[axis] - k),
                 lambda x, y: x.masked_fill(line(x) % 2 == 0, 1),
                 lambda x, y: floats(x) @ (square(x) >= 0).to(floats(x).dtype),
                 lambda x, y: floats(x) @ (square(x).abs() <= k).to(floats(x).dtype),
                 lambda x, y: x.index_select(axis, line(x).reshape(-1).flip(0)),
                 lambda x, y: x.index_select(axis, line(x).reshape(-1) // 2),
                 lambda x, y: x.movedim(axis, 0)[(line(x).reshape(-1) + k) % x.shape[axis]],
                 lambda x, y: floats(x).sum(axis) / x.shape[axis],
                 lambda x, y: torch.linspace(0, 1, x.shape[axis], device=x.device).to(floats(x).dtype) * floats(x).sum(),
                 lambda x, y: torch.eye(x.shape[axis], device=x.device) * k, lambda x, y: x.tril(k) if x.dim() > 1 else x))  # fmt: skip


@op
def wide(x: Any, y: Any, p: Picks) -> Run:
    """Pads, windows, pools, products and attention over sizes that vary."""
    axis, a, k = axis_of(x, p), size_of(p), 1 + p(3)
    if x.is_complex() or x.dtype == torch.bool:
        raise Unfit

    def rows(x: Any) -> Any:
        x = floats(x).movedim(axis, -1)
        return x.reshape(1, -1, x.shape[-1]) if x.dim() != 3 else x

    w = drawn(p, (2, 1, k), floats(x))
    return p.of((lambda x, y: F.pad(x, (a(x.shape[-1]), k)), lambda x, y: F.pad(x, (k, x.shape[-1] - k)),
                 lambda x, y: F.pad(x, (0, -a(x.shape[-1]))),
                 lambda x, y: F.conv1d(rows(x).sum(1, keepdim=True), w, padding=k // 2),
                 lambda x, y: F.max_pool1d(rows(x).detach(), 2, 1 + k % 2),
                 lambda x, y: F.avg_pool1d(rows(x), 2, k), lambda x, y: F.interpolate(rows(x), scale_factor=2),
                 lambda x, y: rows(x) @ rows(x).mT,
                 lambda x, y: F.interpolate(rows(x), size=a(x.shape[axis]) + 1, mode="linear"),
                 lambda x, y: F.scaled_dot_product_attention(rows(x).mT, rows(x).mT, rows(x).mT, is_causal=bool(k % 2)),
                 lambda x, y: F.pad(rows(x), (k, 1), mode="replicate"), lambda x, y: F.adaptive_avg_pool1d(rows(x), 2),
                 lambda x, y: F.layer_norm(floats(x), (x.shape[-1],), eps=1e-2), lambda x, y: rows(x).softmax(-1)))  # fmt: skip


@op
def replaced(x: Any, y: Any, p: Picks) -> Run:
    """A copy, parts of which are written."""
    axis, a, b, k = axis_of(x, p), size_of(p), size_of(p), 1 + p(3)

    def halves(t: Any) -> tuple[Any, Any]:
        t, n = t.movedim(axis, 0), t.shape[axis]
        return t[: a(n)], t[n - a(n) :]

    def run(x: Any, y: Any) -> Any:
        t = x.clone()
        first, last = halves(t)
        if kind == 0:
            first.zero_()
        elif kind == 1:
            last.copy_(halves(x)[0])
        elif kind == 2:
            first.add_(halves(x)[1])
        elif kind == 3:
            t.movedim(axis, 0)[b(x.shape[axis]) :] = k
        elif kind == 4:
            last.mul_(2)
            first.neg_()
        else:
            t.movedim(axis, 0)[::k] = x.movedim(axis, 0)[::k] * 3
        return t

    kind = p(6)
    if x.dtype == torch.bool:
        raise Unfit
    return run


SIZED = tuple(name for name in OPS if name not in BEFORE)
