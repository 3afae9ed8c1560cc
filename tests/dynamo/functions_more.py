"""The other rows of `functions.py`: writes to memory, products, pictures, losses, random numbers."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .functions import CL, CL3, aten, c64, f32, f64, i8, i32, i64, i_, inf, inside, ints, nan, r, row, strided, u, u8, z


# ---- writing to memory
def swap(y: Any) -> Any:
    y = y.clone().reshape(-1, 4)
    y[:, [2, 0]] = y[:, [0, 2]]
    return y


def chain(a: Any) -> Any:
    a += 1
    a *= 2
    aten.sigmoid_(a)
    a = a.view(64)
    a += 3
    aten.relu_(a)
    return a


def slices(a: Any) -> Any:
    x = torch.zeros_like(a)
    b = x + 1
    x[:, 3] = 3.0
    c = x.clone()
    x[4, :] = 4.0
    return x, b, c, x + 1


def shifted(a: Any) -> None:
    a[:, 20:40] = a[:, 20:40] + 1
    a[:, 2:11] = a[:, 1:10] + 2


def filled(a: Any) -> Any:
    b = a + 1
    a.view(64).copy_(torch.tensor([66.0]))
    return b, a + 2


def cached(cache: Any, x: Any) -> Any:
    cache[:1, 1:5] = x * 2
    return x.transpose(1, 2) @ cache[:1, :5].transpose(1, 2).transpose(2, 3)


def longformer(scores: Any) -> Any:
    n = 4
    big = scores.new_zeros(6, 4, n, 2 * n + 1)
    big[:, :-1, :, n:] = scores[:, :, :n, : n + 1]
    t = big.view(2, 3, 16, 2 * n + 1).transpose(2, 1)
    t[:, :n, :, : n + 1] = torch.full_like(t[:, :n, :, : n + 1], -inf)
    return t


def two_views(x: Any) -> Any:
    a, b = x[:3], x[2:]
    a.add_(1)
    b.mul_(2)
    return a + 0, b.sum()


def diagonal(x: Any) -> Any:
    x.diagonal().fill_(0)
    x.t()[0].add_(5)
    return x @ x


row("writes", "copy_ back", lambda a: (b := a + 1, a.copy_(b), c := a + 2, a * b / c)[-1], lambda: (r(64),), grad=False)
row("writes", "a view is filled", filled, lambda: (r(1, 64),), grad=False)
row("writes", "chain in place", chain, lambda: (r(1, 64),), grad=False)
row("writes", "relu_", lambda a: torch.relu_(a), lambda: (r(1, 64),), grad=False)
row("writes", "int of rank 0", lambda x: (t := x.ceil(), x.add_(10), t)[-1], lambda: (z((), dtype=i64),))
row("writes", "slices", slices, lambda: (r(8, 8),))
row("writes", "shifted slices", shifted, lambda: (r(1, 64),), grad=False)
row("writes", "slice filled", lambda a: a[:2, :2].fill_(10), lambda: (r(8, 8),), grad=False)
row("writes", "flip onto itself", lambda a: a.copy_(a.flip(0)), lambda: (u(20),), grad=False)
row("writes", "copy_ broadcasts", lambda x, y: x.cos().copy_(y).sin(), lambda: (r(8, 8), r(8)))
row("writes", "element set", lambda a, b: inside(lambda a, b: b.__setitem__(0, a.abs().max().to(a.dtype)), lambda a, b: b * 1)(a, b),
    lambda: (r(8, 8).half(), r(8)), grad=False)
row("writes", "columns swapped", lambda x: swap(x) + x, lambda: (r(2, 4),))
row("writes", "cat of what changes", lambda x: (t := torch.cat([x]), x.sin_(), t)[-1], lambda: (torch.ones(2),), grad=False)
row("writes", "cache update", cached, lambda: (z(2, 8, 3, 4), r(1, 4, 3, 4)), grad=False)
row("writes", "scores into diagonals", longformer, lambda: (r(6, 3, 8, 9),), dynamic=False)
row("writes", "two overlapping views", two_views, lambda: (r(5, 3),), grad=False)
row("writes", "diagonal filled", diagonal, lambda: (r(4, 4),), grad=False, rtol=1e-5)
row("writes", "nothing written", lambda x: F.leaky_relu(x, 5.29, inplace=True), lambda: (r(0),), grad=False)
row("writes", "strided argument", lambda x, y: x.mul_(y).sum(), lambda: (strided((4, 6), (13, 2)), r(4, 1)), grad=False)
row("writes", "bf16 argument", lambda x, y: (x.add_(y), x.mul_(2))[-1] + 1, lambda: (r(9).bfloat16(), r(9)), grad=False)
row("writes", "bool argument", lambda x, y: (x.logical_or_(y), x.sum())[-1], lambda: (r(9) > 0, r(9) > 0))
row("writes", "fill_ and zero_", lambda x, y: (x.fill_(3), y.zero_(), x + y)[-1], lambda: (r(3, 4), r(3, 4).t().contiguous().t()),
    grad=False)
row("writes", "fill of a tensor", lambda x: (t := torch.ones_like(x), aten.fill.Scalar(t, 2), aten.fill.Tensor(t, torch.tensor(3.0))),
    lambda: (r(4, 4),))
row("writes", "transposed argument", lambda x: x.t().add_(1).mul_(x.t()), lambda: (r(4, 6),), grad=False)
row("writes", "argument and its view are results", lambda x: (x.add_(1), x.view(-1), x[0]), lambda: (r(4, 6),), grad=False)
row("writes", "out= of several ops", lambda x, o: (torch.add(x, 1, out=o), torch.mul(o, 2, out=o))[-1], lambda: (r(4), r(4)), grad=False)
row("writes", "set then read in a loop", lambda x: inside(*[lambda x, k=k: x.__setitem__(k, x[k - 1] * 2) for k in range(1, 5)],
    lambda x: x.sum())(x), lambda: (r(5, 2),), grad=False)
row("writes", "complex argument", lambda x: (x.mul_(2j), x.real.add_(1), x + 0)[-1], lambda: (r(4, dtype=c64),), grad=False)
row("writes", "squeeze_ and t_", lambda x: (x + 1).squeeze_().t_(), lambda: (r(1, 3, 4),))
row("writes", "masked_fill_ of an argument", lambda x, m: x.masked_fill_(m, 0).sum(), lambda: (r(4, 4), r(4, 1) > 0), grad=False)
row("writes", "scatter_ into an argument", lambda x, i: x.scatter_(1, i, 1.0).sum(), lambda: (r(4, 4), i_(4, 4, 2)), grad=False)
row("writes", "index_add_ into an argument", lambda x, i, s: x.index_add_(0, i, s), lambda: (r(5, 3), torch.tensor([1, 1, 4]), r(3, 3)),
    grad=False)
row("writes", "resize", lambda x: aten.resize(x, (1, 3, 2, 3)), lambda: (r(100),), dynamic=False, grad=False)

# ---- products
row("products", "addmm", lambda a, b, c: torch.addmm(a + 1, b + 2, c + 3) + 4, lambda: (r(8, 8), r(8, 8), r(8, 8)), rtol=1e-5)
row("products", "bmm", lambda a, b: (torch.bmm(a, b), torch.bmm(a + 1, b + 2) + 3, torch.bmm(a.permute(0, 2, 1), b)), lambda: (r(2, 8, 8),
    r(2, 8, 8)), rtol=1e-5)
row("products", "with i8 weights", lambda a, b, s: torch.mm(a, b.to(a.dtype)) * s + s, lambda: (r(8, 8), ints(8, 8, low=-128, high=127,
    dtype=i8), r(8)), rtol=1e-5, atol=1e-4)
row("products", "packed nibbles", lambda a, b: torch.mm(a, torch.cat((b & 0xF, b >> 4), 1).reshape(-1, 8).to(a.dtype).sub(8)), lambda: (r(8,
    8), ints(4, 8, low=0, high=255, dtype=u8)), rtol=1e-5, atol=1e-4)
row("products", "ints", lambda a, b: (a @ b, a.mv(b[:, 0]), torch.einsum("ij,jk->ik", a, b)), lambda: (ints(3, 4), ints(4, 5)))
row("products", "i8 and i32", lambda a, b: (a @ b, a.int() @ b.int()), lambda: (ints(3, 4, dtype=i8), ints(4, 5, dtype=i8)))
row("products", "baddbmm beta", lambda a, b, c: (aten.baddbmm(a, b, c, beta=0.0), aten.baddbmm(a, b, c, beta=1.0)), lambda: (torch.full((6,
    1, 10), nan), r(6, 12, 6), r(6, 6, 10)), grad=False, rtol=1e-5)
row("products", "views of operands", lambda a, b: torch.mm(a.view(32, 32), b.view(32, 32)), lambda: (r(32, 32).t(), r(1, 32,
    32).transpose(0, 1)), dynamic=False, rtol=1e-5, atol=1e-4)
row("products", "vectors", lambda a, b, c: (a @ b, c @ a, torch.dot(a, b), torch.outer(a, b), torch.addmv(c[:, 0], c, a), torch.addr(c, c[:,
    0], a)), lambda: (r(6), r(6), r(4, 6)), rtol=1e-5)
row("products", "broadcast batches", lambda a, b: (a @ b, torch.einsum("aij,bjk->abik", a[:, 0], b[0])), lambda: (r(2, 1, 3, 4), r(1, 5, 4,
    6)), rtol=1e-5)
row("products", "f16", lambda a, b: (a @ b, F.linear(a, b.t())), lambda: (r(5, 16).half(), r(16, 7).half()), rtol=2e-3, atol=2e-3)
row("products", "bf16", lambda a, b: (a @ b, torch.baddbmm(a[None, :, :7], a[None], b[None])), lambda: (r(5, 16).bfloat16(), r(16,
    7).bfloat16()), atol=2e-2)
row("products", "f64 linear", lambda x, w, b: F.linear(x, w, b), lambda: (r(2, 8, dtype=f64), r(16, 8, dtype=f64), r(16, dtype=f64)))
row("products", "rotations", lambda c, v, t: (th := v.norm(dim=-1), torch.einsum("...ij,...bj->...bi", torch.stack([1 - v[:, 0] * th, v[:,
    1], v[:, 2]] * 3, -1).reshape(-1, 3, 3), c) + t)[1].sum(),
    lambda: (torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)))
row("products", "attention strided", lambda q, k, v: F.scaled_dot_product_attention(q.transpose(1, 2).contiguous(), k.transpose(1, 2),
    v.transpose(1, 2), scale=0.125)[:2], lambda: (r(4, 2, 4, 2), r(4, 2, 4, 2), r(4, 2, 4, 2)))
row("products", "attention by hand", lambda q, k, v: ((q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))).softmax(-1) @ v, lambda: (r(2, 3,
    5, 8), r(2, 3, 7, 8), r(2, 3, 7, 8)), rtol=1e-5)
row("products", "attention bool mask, gqa", lambda q, k, v, m: (F.scaled_dot_product_attention(q, k, v, m),
    F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)),
    lambda: (r(2, 4, 5, 8), r(2, 4, 7, 8), r(2, 4, 7, 8), r(5, 7) > -1), rtol=1e-5)
row("products", "attention bf16", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), lambda: (r(1, 2, 5,
    8).bfloat16(), r(1, 2, 5, 8).bfloat16(), r(1, 2, 5, 8).bfloat16()), atol=2e-2)
row("products", "zeros added", lambda x, y: (x @ y + torch.zeros(8, 8), (x @ y) * torch.ones(8, 8), x @ y + torch.zeros(3, 8, 8)),
    lambda: (u(8, 8), u(8, 8)), rtol=1e-5)
row("products", "cdist, kron, tensordot", lambda x, y: (torch.cdist(x, y), torch.kron(x, y), torch.tensordot(x, y, ([1], [1]))),
    lambda: (r(3, 4), r(5, 4)), rtol=1e-4, atol=1e-5)
row("products", "bilinear, cosine", lambda x, y, w: (F.bilinear(x, y, w), F.cosine_similarity(x, y[:, :4]), F.pairwise_distance(x, y[:,
    :4])), lambda: (r(3, 4), r(3, 5), r(6, 4, 5)), rtol=1e-5)

# ---- convolutions, pools, resizing, padding
row("pictures", "conv and relu", lambda x, w, b: F.relu(F.conv2d(x, w, b)), lambda: (r(2, 5, 16, 16), r(6, 5, 3, 3), r(6)), rtol=1e-3,
    atol=6e-5)
row("pictures", "conv transposed", lambda x, w, b: aten.convolution(x, w, b, [4], [0], [1], True, [0], 1), lambda: (r(2, 12, 30), r(12, 6,
    8), r(6)), rtol=1e-5, atol=1e-4)
row("pictures", "conv depthwise", lambda x, w: F.conv2d(x, w, groups=w.shape[0]).sum(), lambda: (r(2, 3, 16, 20), r(3, 1, 5, 5)), rtol=1e-5,
    atol=1e-3)
row("pictures", "conv dilation from a size", lambda x, w: F.conv2d(x, w, dilation=[x.size(0)]).sum(), lambda: (r(2, 1, 16, 20), r(1, 1, 5,
    5)), rtol=1e-5, atol=1e-3, dynamic=False)
row("pictures", "conv3d", lambda x, w, b: F.conv3d(x, w, b), lambda: (r(1, 3, 8, 9, 10), r(3, 3, 5, 5, 5), r(3)), rtol=1e-3, atol=1e-4)
row("pictures", "conv channels last", lambda x, w: F.conv2d(x, w), lambda: (r(2, 3, 8, 8).to(memory_format=CL), r(3, 3, 1,
    1).to(memory_format=CL)), rtol=1e-4)
row("pictures", "conv weight channels last", lambda x, w: F.conv2d(x, w, padding=1), lambda: (r(2, 3, 8, 8), r(4, 3, 3,
    3).to(memory_format=CL)), rtol=1e-4, atol=1e-4)
row("pictures", "conv3d channels last", lambda x, w: F.conv3d(x, w), lambda: (r(2, 3, 6, 6, 6).to(memory_format=CL3), r(3, 3, 1, 1, 1)),
    rtol=1e-4)
row("pictures", "conv without a batch", lambda x, w: aten.convolution(x.unsqueeze(0), w, None, [4, 4], [2, 2], [1, 1], False, [0, 0], 1),
    lambda: (r(1, 3, 24, 24).to(memory_format=CL).squeeze(0), r(4, 3, 11, 11).to(memory_format=CL)), rtol=1e-3, atol=1e-3)
row("pictures", "conv padding words", lambda x, w: (F.conv2d(x, w, padding="same"), F.conv1d(x[:, :, 0], w[:, :, 0], padding="valid",
    stride=2)), lambda: (r(2, 3, 9, 8), r(4, 3, 3, 3)), rtol=1e-4, atol=1e-4)
row("pictures", "conv backward op", lambda g, x, w: aten.convolution_backward(g, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True,
    True, True]), lambda: (r(3, 4, 3, 3), r(3, 4, 5, 5), r(4, 4, 3, 3)), grad=False, rtol=1e-4, atol=1e-4)
row("pictures", "conv backward masks", lambda g, x, w: aten.convolution_backward(g, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
    [True, False, False])[0], lambda: (r(3, 4, 3, 3), r(3, 4, 5, 5), r(4, 4, 3, 3)), grad=False, rtol=1e-4, atol=1e-4)
row("pictures", "conv backward 3d", lambda g, x, w: aten.convolution_backward(g, x, w, [4], [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1,
    [True, True, True]), lambda: (r(3, 4, 3, 3, 3), r(3, 4, 5, 5, 5), r(4, 4, 3, 3, 3)), grad=False, rtol=1e-4, atol=1e-4)
row("pictures", "conv, pad, as_strided", lambda x, w: F.pad(F.conv2d(x, w), (2, 2, 2, 2)).as_strided((2, 6, 2, 20, 12), (2400, 400, 160, 1,
    20)).clone(memory_format=torch.contiguous_format), lambda: (r(2, 4, 16, 16), r(6, 4, 1, 1)), rtol=1e-4, atol=1e-5, dynamic=False)
row("pictures", "upsampled and joined", lambda x, y, w: F.conv2d(torch.cat([F.interpolate(x, scale_factor=2), y], 1), w), lambda: (r(2, 2,
    6, 7), r(2, 6, 12, 14), r(5, 8, 1, 1)), rtol=1e-4, atol=1e-5)
row("pictures", "adaptive averages", lambda x: (F.adaptive_avg_pool2d(x, (6, 6)), F.adaptive_avg_pool2d(x + 1, (2, 5)),
    F.adaptive_avg_pool2d(x, (4, 4)), F.adaptive_avg_pool1d(x[0], 3), F.adaptive_avg_pool2d(x, (None, 3))), lambda: (r(2, 4, 16, 13),))
row("pictures", "adaptive averages small", lambda x: (F.adaptive_avg_pool2d(x, (6, 6)), F.adaptive_avg_pool2d(x, 3)), lambda: (r(2, 4, 3,
    3),))
row("pictures", "adaptive averages of size 0", lambda x, y: (F.adaptive_avg_pool1d(x, 0), F.adaptive_avg_pool2d(y, 0)), lambda: (r(1, 2),
    r(1, 2, 3)), dynamic=False, grad=False)
row("pictures", "adaptive averages bf16", lambda x, y: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(y, 1)), lambda: (r(4, 3, 7,
    7).bfloat16(), r(4, 3, 7, 7).half()))
row("pictures", "adaptive maxima", lambda x: (F.adaptive_max_pool2d(x, (6, 6), return_indices=True), F.adaptive_max_pool2d(x, (4, 4)),
    F.adaptive_max_pool1d(x[0], 3)), lambda: (r(2, 4, 16, 13),))
row("pictures", "adaptive average and argmax", lambda x: torch.argmax(F.adaptive_avg_pool1d(x, 2)), lambda: (u(4, 4, 3, dtype=f64),))
row("pictures", "fractional maxima", lambda x, s: (aten.fractional_max_pool2d(x, (3, 3), (2, 2), s), aten.fractional_max_pool2d(x, (1, 1),
    (16, 16), s)), lambda: (r(1, 4, 16, 16), u(1, 4, 2)), grad=False)
row("pictures", "max_pool2d", lambda x: (aten.max_pool2d_with_indices(x, [3, 3], [2, 2]), aten.max_pool2d_with_indices(x, [3, 3], [2, 2],
    [1, 1]), aten.max_pool2d_with_indices(x, [3], [2], [1]), aten.max_pool2d_with_indices(x, [3, 3], [])), lambda: (r(2, 4, 16, 16),),
    grad=False)
row("pictures", "max_pool2d ceil", lambda x: (aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [0, 0], [1, 1], True), F.max_pool2d(x, 1, 2,
    ceil_mode=True), aten.max_pool2d_with_indices(x, [13, 13], [])), lambda: (r(2, 2, 27, 28),), grad=False)
row("pictures", "max_pool2d dilated", lambda x: aten.max_pool2d_with_indices(x, [3, 2], [2, 1], [1, 1], [1, 2]), lambda: (r(2, 2, 3, 6),),
    grad=False)
row("pictures", "max_pool2d ties and nan", lambda x: (F.max_pool2d(x, 2, return_indices=True), F.max_pool2d(x.index_fill(3,
    torch.tensor([2]), nan), 3, 1)), lambda: (z(1, 2, 6, 6),), grad=False)
row("pictures", "max_pool1d, 3d", lambda x: (F.max_pool1d(x[0, 0], 3, 2, 1), F.max_pool3d(x, 2), F.max_pool3d(x, 3, 2, 1, ceil_mode=True)),
    lambda: (r(2, 3, 5, 6, 7),))
row("pictures", "max_pool channels last", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (r(2, 4, 9, 9).to(memory_format=CL),))
row("pictures", "max_pool bf16", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (r(2, 4, 9, 9).bfloat16(),))
row("pictures", "avg_pool2d", lambda x: (aten.avg_pool2d(x, [3, 3], [2, 2]), aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]), aten.avg_pool2d(x,
    [3], [2], [1]), aten.avg_pool2d(x, [3, 3], [2, 2], [0, 0], True), aten.avg_pool2d(x, [13, 13], [1, 1])), lambda: (r(2, 4, 16, 17),),
    grad=False)
row("pictures", "avg_pool2d counts", lambda x: (aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1], count_include_pad=False), aten.avg_pool2d(x, [3,
    3], [2, 2], [1, 1], divisor_override=3), aten.avg_pool2d(x, 3, 2, 1, True), aten.avg_pool2d(x, 3, 2, 1, True, False)), lambda: (r(1, 3,
    6, 8),))
row("pictures", "avg_pool1d, 3d", lambda x: (F.avg_pool1d(x[0, 0], 3, 2, 1), F.avg_pool3d(x, 2), F.avg_pool3d(x, 3, 2, 1, True, False),
    F.lp_pool2d(x[0].abs(), 2, 2)), lambda: (r(2, 3, 5, 6, 7),), grad=False)
row("pictures", "max_pool backward", lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], True, i),
    lambda: (lambda x: (r(2, 4, 6, 8), x, aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1], [1, 1], True)[1]))(r(2, 4, 10, 14)),
        grad=False)
row("pictures", "max_pool backward, gaps", lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [1, 1], [2, 2], [0, 0], [1, 1],
    False, i),
    lambda: (lambda x: (r(2, 4, 5, 7), x, aten.max_pool2d_with_indices(x, [1, 1], [2, 2])[1]))(r(2, 4, 10, 14)), grad=False)
row("pictures", "max_pool backward, dilated", lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [3, 2], [2, 1], [1, 1], [1, 2],
    False, i),
    lambda: (lambda x: (r(2, 2, 2, 6), x, aten.max_pool2d_with_indices(x, [3, 2], [2, 1], [1, 1], [1, 2])[1]))(r(2, 2, 3, 6)), grad=False)
row("pictures", "avg_pool backward", lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], True, False, None), lambda: (r(2,
    4, 7, 7), r(2, 4, 14, 14)), grad=False)
row("pictures", "avg_pool backward, overlaps", lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [1, 1], [1, 1], True, False, None),
    lambda: (r(1, 1, 20, 15), r(1, 1, 20, 15)), grad=False)
row("pictures", "avg_pool backward, gaps", lambda g, x: (aten.avg_pool2d_backward(g, x, [1, 1], [2, 2], [0, 0], False, False, None)),
    lambda: (r(1, 6, 11, 11), r(1, 6, 21, 21)), grad=False)
row("pictures", "avg_pool3d backward", lambda g, x: aten.avg_pool3d_backward(g, x, [3] * 3, [1] * 3, [1] * 3, True, False, None),
    lambda: (r(1, 1, 6, 7, 8), r(1, 1, 6, 7, 8)), grad=False)
row("pictures", "nearest", lambda a: (aten.upsample_nearest1d(a[0], [74], None), aten.upsample_nearest2d(a, [14, 16]),
    aten.upsample_nearest2d(a, [5, 9]), aten.upsample_nearest2d(a, None, [2.0, 2.0]), F.interpolate(a, (9, 5), mode="nearest-exact")),
    lambda: (r(2, 4, 7, 8),))
row("pictures", "nearest 3d", lambda a: (aten.upsample_nearest3d(a, [8, 9, 10], None), aten.upsample_nearest3d(a, None, [2.0, 2.0, 2.0])),
    lambda: (r(2, 2, 4, 3, 5),))
row("pictures", "nearest backward", lambda a: [aten.upsample_nearest2d_backward(a, output_size=[6, 12], input_size=[3, 3, *s]) for s in ((3,
    6), (4, 5), (2, 8), (4, 7))], lambda: (r(3, 3, 6, 12),), grad=False)
row("pictures", "bilinear", lambda a: (aten.upsample_bilinear2d(a, [45, 45], False, None), aten.upsample_bilinear2d(a, None, True, [2.0,
    2.0]), F.interpolate(a, (5, 6), mode="bilinear", antialias=True)), lambda: (r(2, 4, 17, 18),), atol=2.5e-5)
row("pictures", "linear, trilinear, area", lambda a: (F.interpolate(a[0, 0], 9, mode="linear"), F.interpolate(a, (3, 4, 9),
    mode="trilinear"), F.interpolate(a, (3, 4, 2), mode="area"), F.interpolate(a, scale_factor=1.5, mode="trilinear", align_corners=True)),
    lambda: (r(2, 2, 5, 6, 7),), atol=2.5e-5)
row("pictures", "bicubic", lambda a: (aten.upsample_bicubic2d(a, (28, 28), True), aten.upsample_bicubic2d(a, (28, 56), False)),
    lambda: (r(2, 3, 14, 12),), rtol=1e-3, atol=2e-5)
row("pictures", "grid_sample", lambda a, g: [F.grid_sample(a, g, m, p, c) for m in ("bilinear", "nearest") for p in ("zeros", "border",
    "reflection") for c in (False, True)], lambda: (r(2, 3, 12, 12), u(2, 10, 10, 2) * 2.4 - 1.2), atol=2e-4, grad=False)
row("pictures", "grid_sample with gradients", lambda a, g: F.grid_sample(a, g, align_corners=False), lambda: (r(2, 3, 12, 12), u(2, 5, 5,
    2) * 2 - 1), rtol=1e-4, atol=2e-4)
row("pictures", "affine_grid", lambda t: F.affine_grid(t, [2, 3, 5, 6], align_corners=False), lambda: (r(2, 2, 3),))
row("pictures", "reflection_pad", lambda a: (F.pad(a, (5, 2, 3, 4), mode="reflect"), F.pad(a[0], (1, 1), mode="reflect"), F.pad(a, (1, 2, 3,
    4), mode="replicate"), F.pad(a, (1, 2, 3, 4), mode="circular")), lambda: (r(1, 2, 8, 8),))
for _p in ((0, 0, 0, 0), (1, 2, 3, 4), (0, -1, 2, 2), (2, 2, -1, 0)):
    row("pictures", f"reflection_pad backward {_p}", lambda g, x, p=_p: aten.reflection_pad2d_backward(g, x, p),
        lambda p=_p: (lambda x: (torch.randn_like(aten.reflection_pad2d(x, p)), x))(r(1, 1, 8, 8)), grad=False)
row("pictures", "constant pads", lambda a: (F.pad(a, (0, 1), value=6.0), F.pad(a, (1, 2, 3, 4), value=99.0), F.pad(a, (0, 0, 3, 4, 0, 0),
    value=6.0), F.pad(a, (-1, 2)), F.pad(a, (0, 0)), F.pad(a, (-2, -1, 1, -1))), lambda: (r(2, 4, 4, 4),))
row("pictures", "pads of bools", lambda a, b: (aten.constant_pad_nd(a, (1, 1), 1.0) & b, aten.constant_pad_nd(a, (1, 1), 0.0) & b),
    lambda: (r(4) > 0, torch.ones(6, dtype=torch.bool)))
row("pictures", "pads of ints", lambda x: F.pad(x.to(f32), (0, 3, 0, 0)), lambda: (torch.ones(1, 1, 13, dtype=i32),))
row("pictures", "pad and compare f64", lambda x: torch.gt(F.pad(x, (1, 0)), x), lambda: (u(1, 2, 2, 1, dtype=f64),))
row("pictures", "pad and softmax", lambda x: F.pad(x, (0, 1)).softmax(-1), lambda: (u(12, 32, 63),))
row("pictures", "unfold, fold", lambda x: (F.unfold(x, 4, stride=4), F.fold(F.unfold(x, 3, padding=1), (16, 16), 3, padding=1)),
    lambda: (r(2, 3, 16, 16),), rtol=1e-5)
row("pictures", "local_response_norm", lambda x: F.local_response_norm(x, 3), lambda: (r(2, 6, 5, 5),))
row("pictures", "max_unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), lambda: (r(2, 3, 6, 6),))  # type: ignore[arg-type]

# ---- norms, losses, transforms
row("losses", "layer_norm", lambda x, w, b: (F.relu(F.layer_norm(x, (32,), w, b)), F.group_norm(x, 4), F.rms_norm(x, (32,)),
    F.normalize(x)), lambda: (r(16, 32), r(32), r(32)), rtol=1e-5)
row("losses", "batch_norm eval", lambda x, m, v, w, b: F.relu(F.batch_norm(x, m, v, w, b)), lambda: (r(2, 10, 8, 8), r(10), u(10) + 0.5,
    r(10), r(10)), rtol=1e-5, grad=False)
row("losses", "batch_norm training", lambda x, w, b: (F.batch_norm(x, None, None, w, b, True), F.instance_norm(x)), lambda: (r(2, 10, 8, 8),
    r(10), r(10)), rtol=1e-5, atol=1e-4)
row("losses", "batch_norm updates", lambda x, m, v: F.batch_norm(x, m, v, training=True, momentum=0.3), lambda: (r(4, 10, 3), r(10),
    u(10) + 0.5), rtol=1e-5, grad=False)
row("losses", "batch_norm bf16", lambda x, m, v, w: F.batch_norm(x, m, v, w, w, training=True), lambda: (r(4, 10, 3).bfloat16(), r(10),
    u(10) + 0.5, r(10)), grad=False, atol=2e-2)
row("losses", "batch_norm bf16 gradients", lambda x, w: F.batch_norm(x, None, None, w, w, training=True), lambda: (r(4, 5, 3).bfloat16(),
    r(5).bfloat16()), atol=3e-2)
row("losses", "batch_norm f16 gradients", lambda x, w: F.batch_norm(x, None, None, w, w, training=True), lambda: (r(4, 5, 3).half(),
    r(5).half()), atol=5e-3)
row("losses", "nll_loss op", lambda a, b: aten.nll_loss_forward(a, b, None, 1, -100), lambda: (r(5, 5), torch.tensor([-100, -100, 3, -100,
    -100])), grad=False)
row("losses", "nll_loss backward op", lambda g, a, b: aten.nll_loss_backward(g, a, b, None, 1, -100, torch.tensor(1.0)), lambda: (r(()),
    r(5, 5), torch.tensor([-100, 1, 3, -100, -100])), grad=False)
row("losses", "cross_entropy forms", lambda x, t, w: (F.cross_entropy(x, t), F.cross_entropy(x, t, w), F.cross_entropy(x, t,
    label_smoothing=0.1), F.cross_entropy(x, t, ignore_index=2, reduction="sum"), F.cross_entropy(x, x.softmax(1))), lambda: (r(6, 5), i_(5,
    6), u(5)), rtol=1e-5, grad=False)
row("losses", "cross_entropy and logsumexp", lambda x, t: (F.cross_entropy(x / 64.0, t, ignore_index=5), (x / 64.0).logsumexp(-1)),
    lambda: (r(51, 40), i_(40, 51)), rtol=1e-5)
row("losses", "cross_entropy of pictures", lambda x, t: (F.cross_entropy(x, t), F.nll_loss(x, t, reduction="none")), lambda: (r(2, 5, 3, 4),
    i_(5, 2, 3, 4)), rtol=1e-5)
row("losses", "others", lambda a, b: (F.l1_loss(a, b), F.mse_loss(a, b), F.smooth_l1_loss(a, b), F.huber_loss(a, b), F.kl_div(a,
    b.softmax(-1)), F.soft_margin_loss(a, b.sign()), F.poisson_nll_loss(a, b.abs()), F.gaussian_nll_loss(a, b, b.abs() + 1)), lambda: (r(2,
    3, 6), r(2, 3, 6)), rtol=1e-5, grad=False)
row("losses", "binary", lambda a, b: (F.binary_cross_entropy(a.sigmoid(), b), F.binary_cross_entropy_with_logits(a, b),
    F.binary_cross_entropy_with_logits(a, b, pos_weight=b + 1)), lambda: (r(4, 5), u(4, 5)), rtol=1e-5, grad=False)
row("losses", "margins", lambda a, b, t: (F.multi_margin_loss(a, t), F.triplet_margin_loss(a, b, a + b), F.margin_ranking_loss(a, b,
    (a - b).sign()), F.hinge_embedding_loss(a, b.sign()), F.cosine_embedding_loss(a, b, torch.ones(4)), F.multilabel_soft_margin_loss(a,
    (b > 0).float())), lambda: (r(4, 5), r(4, 5), i_(5, 4)), rtol=1e-5)
row("losses", "ctc_loss", lambda x, t: F.ctc_loss(x.log_softmax(2), t, torch.full((2,), 6), torch.full((2,), 3)), lambda: (r(6, 2, 5),
    torch.randint(1, 5, (2, 3))), grad=False)
row("losses", "fft", lambda x: (torch.fft.fftn(x), torch.fft.fftn(x).real + 1, torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x)),
    torch.fft.ifft2(x), torch.fft.fftshift(x)), lambda: (r(8, 6, 8),), rtol=1e-4, atol=1e-4)
row("losses", "fft of norms", lambda x: (torch.fft.fft(x, n=5, norm="ortho"), torch.fft.hfft(x), torch.fft.ihfft(x.real),
    torch.fft.irfft2(x)), lambda: (r(6, 8, dtype=c64),), rtol=1e-4, atol=1e-4, grad=False)
row("losses", "stft", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), lambda: (r(2, 100),), rtol=1e-4,
    atol=1e-4)
row("losses", "istft", lambda x: torch.istft(torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), 16, 4,
    window=torch.hann_window(16)), lambda: (r(2, 100),), rtol=1e-4, atol=1e-4)
row("losses", "gumbel by hand", lambda x, e: (y := ((x + e) / 0.5).softmax(-1), torch.zeros_like(y).scatter_(-1, y.argmax(-1, keepdim=True),
    1.0) - y.detach() + y)[1], lambda: (r(4, 6), r(4, 6)))
row("losses", "detach and no_grad", lambda x: (x[0].detach(), (x * x.detach()).sum(), torch.no_grad()(lambda t: t * 2)(x) + x),
    lambda: (r(4, 4),))
row("losses", "dropout of 0 and 1", lambda a: (F.dropout(a, 0.0, True) + a, F.dropout(a, 1.0, True) + a, F.dropout(a, 0.5, False) * 2),
    lambda: (r(55),))
row("losses", "numpy", lambda x: torch.from_numpy(np.arange(4.0)) + x, lambda: (r(4, dtype=f64),), dynamic=False)

row("indexing", "complex rows", lambda x, i, s: (x.index_add(0, i, s), x.index_copy(1, i, s.mT), x.scatter_add(0, i[:, None].expand(3, 4),
    s), x.scatter(1, i[None].expand(4, 3), s.mT), x[i], x.index_put((i, i), s[:, 0], accumulate=True), x.gather(1, i[None].expand(4, 3)),
    torch.lerp(x[:3], s, 0.25 + 0.5j), torch.lerp(x[:3], s, s)), lambda: (r(4, 4, dtype=c64), torch.tensor([3, 0, 2]), r(3, 4, dtype=c64)))
row("indexing", "complex rows reduced", lambda x, i, s: x.scatter(0, i[:, None].expand(3, 4), s, reduce="add"),
    lambda: (r(4, 4, dtype=c64), torch.tensor([3, 0, 2]), r(3, 4, dtype=c64)), grad=False)

# ---- random numbers: shapes, dtypes
row("random", "like", lambda x: (torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 10), torch.empty_like(x),
    torch.bernoulli(x.sigmoid())), lambda: (r(4, 3, 5, 5).to(memory_format=CL),), random=True, grad=False)
row("random", "sizes", lambda x: (torch.rand(3, x.shape[0]), torch.randn(4), torch.randint(-4, 7, (9,), dtype=i32), torch.randperm(8),
    torch.empty(2, 3), aten.new_empty(x, [1, 2]), aten.empty_strided([2, 3], [1, 2])), lambda: (r(5),), random=True, grad=False)
row("random", "in place", lambda x: (x.bernoulli_(0.3), torch.empty(5).uniform_(-1, 1), torch.empty(5).normal_(2, 3),
    torch.empty(5).exponential_(), torch.empty(5).log_normal_(), torch.empty(5).geometric_(0.3), torch.empty(5).cauchy_()), lambda: (r(5),),
    random=True, grad=False)
row("random", "dropouts", lambda x: (F.dropout(x), F.dropout2d(x), F.alpha_dropout(x, training=True), F.feature_alpha_dropout(x,
    training=True), F.rrelu(x, training=True)), lambda: (r(4, 3, 5, 5),), random=True, grad=False)
row("random", "bernoulli of 0 and 1", lambda a: torch.bernoulli(a), lambda: (torch.tensor([1.0, 1, 0, 0, 1]),))
row("random", "multinomial", lambda x: (x.multinomial(3), x.multinomial(9, replacement=True), torch.normal(x, 1.0), torch.poisson(x)),
    lambda: (u(4, 6),), random=True, grad=False, splits=1)
row("random", "of nothing", lambda x: torch.randn_like(x.min(dim=1).values), lambda: (u(10, 3, 0),), random=True, grad=False)
row("random", "gumbel_softmax", lambda x: F.gumbel_softmax(x, hard=True), lambda: (r(4, 6),), random=True, grad=False)
