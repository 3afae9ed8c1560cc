"""Layers of PyTorch as steps of random programs: convolutions, pools, resizes, norms, attention, losses, windows, samples and writes at
indices, over values of any rank, dtype and layout. Weights are constants, or computed from another value of the program.

What rounding alone decides is kept out: which of two equal elements a pool takes is compared by values, never by gradients of ties.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .program import Picks, Unfit
from .torch_ops import NAMES, OPS, Run, axis_of, op


def drawn(p: Picks, shape: tuple[int, ...], like: Any) -> Any:
    """A constant of quarters."""
    g = torch.Generator().manual_seed(p(1 << 16))
    return (torch.randint(-6, 7, shape, generator=g) / 4).to(like.dtype).to(like.device)


def weights(p: Picks, shape: tuple[int, ...], x: Any, y: Any) -> Any:
    """(x, y) -> a tensor of this shape: a constant, or y's elements in turn."""
    n = torch.Size(shape).numel()
    if p(3) or not y.numel() or not y.dtype.is_floating_point or not n:
        made = drawn(p, shape, x)
        return lambda x, y: made
    turns = -(-n // y.numel())
    return lambda x, y: y.reshape(-1).repeat(turns)[:n].reshape(shape).to(x.dtype)


def floats(x: Any) -> Any:
    if x.is_complex():
        raise Unfit
    return x if x.is_floating_point() else x.to(torch.float32)


def image(x: Any, nd: int) -> Any:
    """x as [N, C, ...] with nd axes of pixels, by views."""
    x = floats(x)
    while x.dim() < nd + 1:
        x = x.unsqueeze(0)
    return x.flatten(0, x.dim() - nd - 2) if x.dim() > nd + 2 else x


def placed(x: Any, p: Picks) -> tuple[int, Any]:
    """How many axes of pixels, and x seen so; the caller's function does the same."""
    nd = p.of((2, 1, 2, 3))
    seen = image(x, nd)
    if any(n > 40 for n in seen.shape) or not seen.numel():
        raise Unfit
    return nd, seen


def each(p: Picks, nd: int, choices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(p.of(choices) for _ in range(nd))


@op
def conv(x: Any, y: Any, p: Picks) -> Run:
    nd, seen = placed(x, p)
    c = seen.shape[-nd - 1]
    groups = p.of([g for g in (1, 1, c, 2, 3) if c % g == 0])
    out = groups * (1 + p(6))
    k, s, d, pad = each(p, nd, (3, 1, 2, 4)), each(p, nd, (1, 1, 2, 3)), each(p, nd, (1, 1, 2)), each(p, nd, (0, 1, 2))
    w, b = weights(p, (out, c // groups, *k), seen, y), drawn(p, (out,), seen) if p(2) else None
    fn: Any = (F.conv1d, F.conv2d, F.conv3d)[nd - 1]
    return lambda x, y: fn(image(x, nd), w(image(x, nd), y), b, s, pad, d, groups)


@op
def conv_transpose(x: Any, y: Any, p: Picks) -> Run:
    nd, seen = placed(x, p)
    c = seen.shape[-nd - 1]
    groups = p.of([g for g in (1, 1, c, 2) if c % g == 0])
    k, s, d, pad = each(p, nd, (3, 1, 2, 4)), each(p, nd, (1, 2, 3)), each(p, nd, (1, 1, 2)), each(p, nd, (0, 1))
    more = tuple(p(max(a, b)) for a, b in zip(s, d, strict=True))
    w, b = weights(p, (c, 1 + p(4), *k), seen, y), None
    fn: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[nd - 1]
    return lambda x, y: fn(image(x, nd), w(image(x, nd), y), b, s, pad, more, groups, d)


@op
def pool(x: Any, y: Any, p: Picks) -> Run:
    nd, _ = placed(x, p)
    k, s, d, ceil = each(p, nd, (2, 3, 1)), each(p, nd, (1, 2, 3)), each(p, nd, (1, 1, 2)), bool(p(2))
    pad, size = tuple(p(n // 2 + 1) for n in k), each(p, nd, (1, 2, 3, 5))
    average: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[nd - 1]
    largest: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[nd - 1]
    over: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[nd - 1]
    top: Any = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[nd - 1]
    include, kind = bool(p(2)), p(5)
    if kind in (2, 4) and x.requires_grad:  # gradients of ties
        raise Unfit
    return (lambda x, y: average(image(x, nd), k, s, pad, ceil, include), lambda x, y: over(image(x, nd), size),
            lambda x, y: largest(image(x, nd), k, s, pad, d, ceil), lambda x, y: average(image(x, nd), k, s, pad, ceil),
            lambda x, y: top(image(x, nd), size))[kind]  # fmt: skip


@op
def pad(x: Any, y: Any, p: Picks) -> Run:
    nd, _ = placed(x, p)
    mode = p.of(("constant", "reflect", "replicate", "circular", "constant"))
    by = tuple(p.of((0, 1, 2, -1, 3)) for _ in range(2 * nd))
    value = p.of((0.0, 1.5, float("-inf")))
    return lambda x, y: F.pad(image(x, nd), by, mode, value) if mode == "constant" else F.pad(image(x, nd), by, mode)


@op
def resize(x: Any, y: Any, p: Picks) -> Run:
    nd, seen = placed(x, p)
    mode = p.of(("nearest", "nearest-exact", ("linear", "bilinear", "trilinear")[nd - 1], "area", "bicubic" if nd == 2 else "nearest"))
    corners = bool(p(2)) if mode.endswith("linear") or mode == "bicubic" else None
    smooth = mode in ("bilinear", "bicubic") and p(2) == 0
    size = tuple(1 + p(9) for _ in range(nd))
    scale = p.of((2, 0.5, 1.5, None, None))
    whole = seen.dim() == nd + 1

    def run(x: Any, y: Any) -> Any:
        x = image(x, nd)
        x = x.unsqueeze(0) if whole else x
        return F.interpolate(x, size if scale is None else None, scale, mode, corners, antialias=smooth)

    return run


@op
def norm(x: Any, y: Any, p: Picks) -> Run:
    nd, seen = placed(x, p)
    c, last = seen.shape[-nd - 1], seen.shape[-1]
    groups = p.of([g for g in (1, c, 2, 3) if c % g == 0])
    w, b = drawn(p, (c,), seen), drawn(p, (c,), seen) if p(2) else None
    w1, b1 = drawn(p, (last,), seen), drawn(p, (last,), seen) if p(2) else None
    kinds = [lambda x, y: F.layer_norm(floats(x), (last,), w1, b1, 1e-2), lambda x, y: F.rms_norm(floats(x), (last,), w1, 1e-2)]
    if seen.dim() == nd + 2:
        kinds += [lambda x, y: F.group_norm(image(x, nd), groups, w, b, 1e-2),
                  lambda x, y: F.batch_norm(image(x, nd), w * 0.5, w.abs() + 0.5, w, b, False, 0.1, 1e-2),
                  lambda x, y: F.batch_norm(image(x, nd), None, None, w, b, True, 0.1, 1e-2),
                  lambda x, y: F.instance_norm(image(x, nd), None, None, w, b, True, 0.1, 1e-2)]  # fmt: skip
    return p.of(kinds)


@op
def attend(x: Any, y: Any, p: Picks) -> Run:
    if floats(x).dim() < 2 or x.shape[-1] == 0:
        raise Unfit
    rows, causal, kind = x.shape[-2], bool(p(2)), p(4)
    mask = torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril(p(3)) if kind == 1 else \
        drawn(p, (rows, rows), floats(x)) if kind == 2 else None  # fmt: skip

    def run(x: Any, y: Any) -> Any:
        q = floats(x)
        k, v = (y.to(q.dtype) if y.shape == x.shape and not y.is_complex() else q.flip(-1)), q * 0.5
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal and mask is None)

    return run


@op
def dense(x: Any, y: Any, p: Picks) -> Run:
    seen = floats(x)
    if not x.dim():
        raise Unfit
    n, out = x.shape[-1], 1 + p(20)
    w, b = weights(p, (out, n), seen, y), drawn(p, (out,), seen) if p(2) else None
    h = drawn(p, (out, out), seen)
    kinds = [lambda x, y: F.linear(floats(x), w(floats(x), y), b), lambda x, y: floats(x) @ w(floats(x), y).mT,
             lambda x, y: torch.relu(F.linear(floats(x), w(floats(x), y), b)) @ h, lambda x, y: F.linear(floats(x), w(floats(x), y)).mT]
    return p.of(kinds)


@op
def einsum(x: Any, y: Any, p: Picks) -> Run:
    if not x.dim() or not y.dim() or x.dtype == torch.bool or y.dtype == torch.bool or x.dim() + y.dim() > 6:
        raise Unfit
    a = "".join("abcdef"[p(4) if p(3) == 0 else i] for i in range(x.dim()))
    b = "".join("abcdef"[p(4) if p(2) == 0 else i] for i in range(y.dim()))
    names = sorted(set(a + b))
    out = "".join(n for n in names if p(2))
    if torch.Size([(x.shape + y.shape)[(a + b).index(n)] for n in names]).numel() > 1 << 16:
        raise Unfit
    return lambda x, y: torch.einsum(f"{a},{b}->{out}", x, y.to(x.dtype))


@op
def places(x: Any, y: Any, p: Picks) -> Run:
    """Reading and writing at slices and indices."""
    axis = axis_of(x, p)
    n = x.shape[axis]
    if not n:
        raise Unfit
    start, step = p(n), 1 + p(3)
    stop = start + p(n - start + 1)
    at = torch.tensor([p(n) for _ in range(1 + p(4))], device=x.device)
    alone = torch.tensor(sorted({p(n) for _ in range(3)}), device=x.device)
    times = 1 + p(3)
    kinds = [lambda x, y: torch.slice_scatter(x, x.narrow(axis, 0, len(range(start, stop, step))) * 2, axis, start, stop, step),
             lambda x, y: torch.select_scatter(x, x.select(axis, 0) * 2, axis, start),
             lambda x, y: x.index_copy(axis, alone, x.index_select(axis, alone.flip(0)) * 2),
             lambda x, y: x.index_fill(axis, at, 3), lambda x, y: x.index_select(axis, at),
             lambda x, y: x.index_add(axis, at, x.index_select(axis, at)),
             lambda x, y: x.movedim(axis, 0)[at, ...], lambda x, y: x.movedim(axis, -1)[..., at],
             lambda x, y: x.repeat_interleave(times, axis), lambda x, y: x.tile(2),
             lambda x, y: x.movedim(axis, 0)[start:stop:step].movedim(0, axis),
             lambda x, y: torch.cat([x.narrow(axis, start, stop - start), x.flip(axis), x.narrow(axis, 0, start)], axis),
             lambda x, y: torch.stack(x.unbind(axis)[::-1], axis), lambda x, y: x.flip(tuple(range(x.dim()))),
             lambda x, y: torch.rot90(x, 1 + times, (axis, (axis + 1) % x.dim())), lambda x, y: x.roll((start, 1), (axis, 0)),
             lambda x, y: x.scatter(axis, at.reshape([-1 if a == axis % x.dim() else 1 for a in range(x.dim())]), 2),
             lambda x, y: torch.cat(x.split(1 + start, axis)[::-1], axis), lambda x, y: x.diff(dim=axis, prepend=x.narrow(axis, 0, 1)),
             lambda x, y: torch.stack([x, y.to(x.dtype)], axis).sum(axis)]  # fmt: skip
    return p.of(kinds)


@op
def windows(x: Any, y: Any, p: Picks) -> Run:
    seen = image(x, 2)
    if seen.dim() != 4 or not seen.numel() or any(n > 20 for n in seen.shape):
        raise Unfit
    k, s, d, by = each(p, 2, (2, 1, 3)), each(p, 2, (1, 2)), each(p, 2, (1, 2)), each(p, 2, (0, 1))
    factor, c = p.of((2, 3)), seen.shape[1]
    h, w = seen.shape[2:]
    kinds = [lambda x, y: F.unfold(image(x, 2), k, d, by, s),
             lambda x, y: F.fold(F.unfold(image(x, 2), k, d, by, s), (h, w), k, d, by, s),
             lambda x, y: F.pixel_unshuffle(image(x, 2), factor), lambda x, y: F.pixel_shuffle(image(x, 2), factor),
             lambda x, y: F.channel_shuffle(image(x, 2), factor if c % factor == 0 else 1),
             lambda x, y: image(x, 2).unfold(2, k[0], s[0]).unfold(3, k[1], s[1]),
             lambda x, y: image(x, 2).unfold(3, k[0], s[0]).flip(-1).sum(-1),
             lambda x, y: image(x, 2).contiguous(memory_format=torch.channels_last),
             lambda x, y: image(x, 2).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
             lambda x, y: F.local_response_norm(image(x, 2), 3)]  # fmt: skip
    return p.of(kinds)


@op
def sample(x: Any, y: Any, p: Picks) -> Run:
    seen = image(x, 2)
    if seen.dim() != 4 or not seen.numel() or any(n > 20 for n in seen.shape) or x.dtype in (torch.float16, torch.bfloat16):
        raise Unfit
    mode, edge, corners = p.of(("bilinear", "nearest", "bicubic")), p.of(("zeros", "border", "reflection")), bool(p(2))
    grid = drawn(p, (seen.shape[0], 1 + p(5), 1 + p(5), 2), seen) * 0.37 + 0.11
    return lambda x, y: F.grid_sample(image(x, 2), grid, mode, edge, corners)


@op
def looked_up(x: Any, y: Any, p: Picks) -> Run:
    if x.is_complex() or x.numel() > 400:
        raise Unfit
    rows, width = 1 + p(9), 1 + p(7)
    table = weights(p, (rows, width), torch.zeros((), device=x.device), y)

    def index(x: Any) -> Any:
        return torch.nan_to_num(x.to(torch.float32), 1.0, 1.0, 1.0).clamp(-50, 50).to(torch.int64).remainder(rows)

    mode = p.of(("sum", "mean", "max"))
    zero = torch.zeros((), device=x.device)
    kinds = [lambda x, y: F.embedding(index(x), table(zero, y)),
             lambda x, y: F.embedding_bag(index(x).reshape(1, -1), table(zero, y), mode=mode) if x.numel() else index(x),
             lambda x, y: table(zero, y)[index(x)], lambda x, y: table(zero, y).index_select(0, index(x).reshape(-1)).cumsum(0)]
    if mode == "max" and y.requires_grad:
        raise Unfit
    return p.of(kinds)


@op
def loss(x: Any, y: Any, p: Picks) -> Run:
    seen = floats(x)
    if x.dim() < 2 or not x.numel() or x.dtype in (torch.float16, torch.bfloat16):
        raise Unfit
    n, c = seen.shape[0], seen.shape[1]
    how, smooth = p.of(("mean", "sum", "none")), p.of((0.0, 0.1))
    goal = torch.tensor([p(c) for _ in range(n)], device=x.device)
    ignored = torch.where(torch.arange(n, device=x.device) % 2 == 0, goal, -100)
    weight = drawn(p, (c,), seen).abs() + 0.5
    kinds = [lambda x, y: F.cross_entropy(floats(x).flatten(2).mean(2) if x.dim() > 2 else floats(x), goal, weight, reduction=how,
                                          label_smoothing=smooth),
             lambda x, y: F.cross_entropy(floats(x).flatten(1), ignored, reduction="sum"),
             lambda x, y: F.smooth_l1_loss(floats(x), floats(x).flip(0), reduction=how),
             lambda x, y: F.huber_loss(floats(x), floats(x).flip(1), how, 0.5),
             lambda x, y: F.mse_loss(floats(x), floats(x).flip(0), reduction=how),
             lambda x, y: F.binary_cross_entropy_with_logits(floats(x), torch.sigmoid(floats(x).flip(0)), reduction=how),
             lambda x, y: F.kl_div(floats(x).log_softmax(1), floats(x).flip(0).softmax(1), reduction=how),
             lambda x, y: F.cosine_similarity(floats(x), floats(x).flip(1) + 1, 1),
             lambda x, y: F.pairwise_distance(floats(x), floats(x).flip(0) + 1),
             lambda x, y: F.normalize(floats(x) + 0.5, dim=1), lambda x, y: F.glu(torch.cat([floats(x), floats(x)], 1), 1)]  # fmt: skip
    return p.of(kinds)


LAYERS = tuple(name for name in OPS if name not in NAMES)
