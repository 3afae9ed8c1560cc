"""One row per ATen op that moves, joins, reduces, gathers, makes or contracts: torch eager is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .check import check

T = torch.Tensor
Row = tuple[Callable[..., Any], tuple[Any, ...]]


def f(*shape: int) -> T:
    return torch.randn(shape)


def i(*shape: int, lo: int = 0, hi: int = 3) -> T:
    return torch.randint(lo, hi, shape)


_MHA: Any = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

SHAPE: dict[str, Row] = {
    "view": (lambda x: x.view(6, -1), (f(2, 3, 4),)),
    "reshape": (lambda x: x.transpose(0, 1).reshape(-1), (f(3, 4),)),
    "flatten": (lambda x: x.flatten(1), (f(2, 3, 4),)),
    "unflatten": (lambda x: x.unflatten(1, (2, 3)), (f(2, 6),)),
    "squeeze": (lambda x: x.squeeze(), (f(1, 3, 1),)),
    "squeeze dim": (lambda x: x.squeeze(0), (f(1, 3, 1),)),
    "squeeze dims": (lambda x: x.squeeze((0, 2)), (f(1, 3, 1),)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), (f(3),)),
    "expand": (lambda x: x.expand(2, -1, 4), (f(3, 1),)),
    "expand_as": (lambda x, y: x.expand_as(y), (f(3, 1), f(3, 4))),
    "permute": (lambda x: x.permute(2, 0, 1), (f(2, 3, 4),)),
    "transpose": (lambda x: x.transpose(-1, 0), (f(2, 3, 4),)),
    "t": (lambda x: x.t(), (f(2, 3),)),
    "T": (lambda x: x.T, (f(2, 3),)),
    "mT": (lambda x: x.mT, (f(2, 3, 4),)),
    "movedim": (lambda x: torch.movedim(x, 0, -1), (f(2, 3, 4),)),
    "movedims": (lambda x: torch.movedim(x, (0, 1), (2, 0)), (f(2, 3, 4),)),
    "slice": (lambda x: x[1:3, ::2], (f(4, 5),)),
    "slice end": (lambda x: x[..., -3:-1], (f(4, 5),)),
    "slice past": (lambda x: x[2:100], (f(4),)),
    "slice empty": (lambda x: x[3:1], (f(4, 2),)),
    "select": (lambda x: x[:, 1], (f(3, 4),)),
    "select -1": (lambda x: x[-1], (f(3, 4),)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (f(3, 4),)),
    "split": (lambda x: x.split(2, 1), (f(3, 5),)),
    "split sizes": (lambda x: torch.split(x, [1, 4], -1), (f(3, 5),)),
    "chunk": (lambda x: x.chunk(3, 0), (f(7, 2),)),
    "chunk 1": (lambda x: x.chunk(1), (f(7),)),
    "tensor_split": (lambda x: torch.tensor_split(x, 3, 1), (f(2, 7),)),
    "unbind": (lambda x: x.unbind(1), (f(2, 3, 2),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (f(2, 3), f(2, 1))),
    "cat promotes": (lambda x, y: torch.cat([x, y]), (f(2), i(3))),
    "cat empty": (lambda x, y: torch.cat([x, y]), (f(0), f(3))),
    "stack": (lambda x, y: torch.stack([x, y], -1), (f(2, 3), f(2, 3))),
    "repeat": (lambda x: x.repeat(2, 3, 1), (f(3, 2),)),
    "tile": (lambda x: torch.tile(x, (2,)), (f(3, 2),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), (f(2, 3),)),
    "flip": (lambda x: x.flip(0, -1), (f(2, 3, 4),)),
    "flip of long rows": (lambda x: x.flip(-1) * 2, (f(3, 177),)),
    "roll": (lambda x: torch.roll(x, (1, -2), (0, 1)), (f(3, 5),)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), (f(2, 3),)),
    "pad negative": (lambda x: F.pad(x, (-1, 2)), (f(2, 5),)),
    "pad reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"), (f(1, 2, 5),)),
    "antialiased bytes": (lambda x: (F.interpolate(x, (5, 11), mode="bilinear", antialias=True),
                                     F.interpolate(x, (13, 4), mode="bicubic", antialias=True)), (i(2, 3, 9, 7, hi=256).to(torch.uint8),)),
    "reflect and cut": (lambda x: (F.pad(x, (4, -3), mode="reflect"), F.pad(x, (-4, 4), mode="reflect"),
                                   F.pad(x, (2, -2), mode="circular")), (f(1, 2, 5),)),
    "pad the edge of nothing": (lambda x: (F.pad(x, (-5, 4), mode="replicate"), F.pad(x, (4, -7), mode="replicate")), (f(1, 2, 5),)),
    "pad bool": (lambda x: F.pad(x, (1, 0), value=True), (i(2, 3).bool(),)),
    "slice scatter by steps": (lambda x, y: [torch.slice_scatter(x, y, 1, a, b, 3) for a, b in ((1, 8), (-8, 100), (0, 7))],
                               (f(4, 9), f(4, 3))),
    "slice scatter of nothing by steps": (lambda x, y: torch.slice_scatter(x, y, 1, 20, 30, 3), (f(4, 9), f(4, 0))),
    "diag embed": (lambda x: [torch.diag_embed(x, k) for k in (0, 1, -2)] + [torch.diag_embed(x, 1, 0, 2)], (f(3, 4),)),
    "diagonal scatter": (lambda x, y: [x.diagonal_scatter(y[:, :n], k, 1, 2) for k, n in ((0, 4), (3, 3), (-3, 1), (6, 0))],
                         (f(2, 4, 6), f(2, 4))),
    "diff": (lambda x: torch.diff(x, dim=0), (f(4, 3),)),
    "diff prepend": (lambda x: torch.diff(x, dim=-1, prepend=x[:, :1] - 1), (i(2, 4),)),
    "unfold-free windows": (lambda x: torch.stack([x[k : k + 3] for k in range(3)]), (f(6),)),
    "broadcast_to": (lambda x: torch.broadcast_to(x, (2, 3)), (f(3),)),
    "zero size": (lambda x: x.reshape(0, 6) + 1, (f(0, 2, 3),)),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), (f(2), f(3))),
    "slice assign": (lambda x: _set(x), (f(3, 4),)),
}


def _set(x: T) -> T:
    y = x.clone()
    y[:, 1:3] = 2.0
    y[0] += 1
    return y


REDUCE: dict[str, Row] = {
    "sum": (lambda x: x.sum(), (f(3, 4),)),
    "sum dim": (lambda x: x.sum(1, keepdim=True), (f(3, 4),)),
    "sum int": (lambda x: x.int().sum(0), (i(3, 4),)),
    "sum bool": (lambda x: x.bool().sum(), (i(9),)),
    "sum dtype": (lambda x: x.sum(dtype=torch.float64), (f(9),)),
    "mean": (lambda x: x.mean(), (f(9),)),
    "mean dims": (lambda x: x.mean((0, -1)), (f(2, 3, 4),)),
    "amax": (lambda x: x.amax(1), (f(3, 4),)),
    "amin": (lambda x: x.amin((0, 1)), (f(3, 4),)),
    "max": (lambda x: x.max(), (f(9),)),
    "max dim": (lambda x: torch.max(x, 1), (f(3, 4),)),
    "min dim": (lambda x: torch.min(x, 0, keepdim=True), (f(3, 4),)),
    "argmax": (lambda x: x.argmax(-1), (f(3, 4),)),
    "argmax all": (lambda x: x.argmax(), (f(3, 4),)),
    "argmin": (lambda x: x.argmin(0, keepdim=True), (f(3, 4),)),
    "prod": (lambda x: x.prod(), (f(5),)),
    "prod dim": (lambda x: x.prod(1), (f(5, 2),)),
    "any": (lambda x: (x > 1).any(), (f(9),)),
    "any dim": (lambda x: x.any(1), (i(4, 2),)),
    "any of bytes is a byte": (lambda x: (x.any(1), x.all(), torch.any(x, 0, True), x.ne(1).all(1)), (i(4, 2).to(torch.uint8),)),
    "all": (lambda x: (x > -3).all(0), (f(3, 4),)),
    "var": (lambda x: x.var(), (f(3, 4),)),
    "var dim": (lambda x: x.var(1, unbiased=False), (f(3, 4),)),
    "std": (lambda x: x.std((0, 2), keepdim=True, correction=0), (f(3, 4, 2),)),
    "var_mean": (lambda x: torch.var_mean(x, 1), (f(3, 4),)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (f(3, 4),)),
    "norm": (lambda x: x.norm(dim=-1, keepdim=True), (f(3, 4),)),
    "vector_norm 1": (lambda x: torch.linalg.vector_norm(x, 1), (f(3, 4),)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (f(3, 4),)),
    "cumsum": (lambda x: x.cumsum(1), (f(3, 4),)),
    "cumsum bool": (lambda x: x.bool().cumsum(-1), (i(3, 4),)),
    "topk": (lambda x: torch.topk(x, 2), (f(3, 5),)),
    "topk smallest": (lambda x: torch.topk(x, 3, 0, largest=False), (f(5, 2),)),
    "sum rank 0": (lambda x: x.sum(), (f(),)),
    "mean zero size": (lambda x: x.sum(0), (f(0, 3),)),
    "cosine_similarity": (F.cosine_similarity, (f(3, 4), f(3, 4))),
}

INDEX: dict[str, Row] = {
    "embedding": (F.embedding, (i(2, 3, hi=5), f(5, 4))),
    "index_select": (lambda x, k: x.index_select(1, k), (f(2, 5), i(4, hi=5))),
    "gather": (lambda x, k: x.gather(1, k), (f(3, 4), i(3, 2, hi=4))),
    "gather corner": (lambda x, k: x.gather(0, k), (f(3, 4), i(2, 2))),
    "index": (lambda x, k: x[k], (f(5, 3), i(2, 4, lo=-5, hi=5))),
    "index 2": (lambda x, k, m: x[k, m], (f(4, 5, 2), i(3, 1, hi=4), i(2, lo=-5, hi=5))),
    "index middle": (lambda x, k, m: x[:, k, m], (f(2, 4, 5), i(3, hi=4), i(3, hi=5))),
    "index apart": (lambda x, k, m: x[k, :, m], (f(4, 3, 5), i(3, hi=4), i(3, hi=5))),
    "index last": (lambda x, k: x[:, k], (f(2, 4), i(3, lo=-4, hi=4))),
    "index const": (lambda x: x[[0, 2]], (f(3, 4),)),
    "take_along_dim": (lambda x, k: torch.take_along_dim(x, k, 1), (f(3, 4), i(3, 2, hi=4))),
    "tril": (lambda x: x.tril(), (f(4, 5),)),
    "triu": (lambda x: x.triu(1), (f(2, 4, 4),)),
    "tril -1": (lambda x: x.tril(-1), (i(4, 4),)),
    "one_hot-free": (lambda x: (x[:, None] == torch.arange(5)).float(), (i(3, hi=5),)),
    "bucket mask": (lambda x: torch.arange(x.shape[1])[None, :] <= torch.arange(x.shape[1])[:, None], (f(2, 4),)),
}

CREATE: dict[str, Row] = {
    "arange": (lambda x: x + torch.arange(3), (f(3),)),
    "arange step": (lambda x: x + torch.arange(1, 7, 2), (f(3),)),
    "arange f": (lambda x: x + torch.arange(0.5, 2.0, 0.5), (f(3),)),
    "arange i32": (lambda x: torch.arange(3, dtype=torch.int32), (f(3),)),
    "arange f32 of ints": (lambda x: x + torch.arange(0, 6, 2, dtype=torch.float32), (f(3),)),
    "linspace": (lambda x: x + torch.linspace(-1, 1, 3), (f(3),)),
    "full": (lambda x: x + torch.full((2, 3), 2.5), (f(3),)),
    "zeros": (lambda x: torch.zeros(2, 3, dtype=torch.bool), (f(3),)),
    "ones_like": (torch.ones_like, (f(3),)),
    "full_like": (lambda x: torch.full_like(x, 3), (f(3),)),
    "new_ones": (lambda x: x.new_ones(2), (f(3),)),
    "new_full": (lambda x: x.new_full((2,), 7), (f(3),)),
    "new_zeros": (lambda x: x.new_zeros(2), (i(3),)),
    "tensor": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), (f(3),)),
    "scalar tensor": (lambda x: x * torch.tensor(2.0), (f(3),)),
    "eye": (lambda x: x @ torch.eye(3), (f(2, 3),)),
    "zeros_like": (torch.zeros_like, (i(2, 2),)),
}

MATMUL: dict[str, Row] = {
    "linear": (F.linear, (f(2, 3, 4), f(5, 4), f(5))),
    "linear rank 1": (F.linear, (f(4), f(5, 4), f(5))),
    "linear no bias": (F.linear, (f(2, 4), f(5, 4))),
    "mm": (torch.mm, (f(2, 3), f(3, 4))),
    "bmm": (torch.bmm, (f(2, 3, 4), f(2, 4, 5))),
    "matmul 1 1": (torch.matmul, (f(4), f(4))),
    "matmul 1 2": (torch.matmul, (f(4), f(4, 3))),
    "matmul 2 1": (torch.matmul, (f(3, 4), f(4))),
    "matmul 3 1": (torch.matmul, (f(2, 3, 4), f(4))),
    "matmul 1 3": (torch.matmul, (f(3), f(2, 3, 4))),
    "matmul batch": (torch.matmul, (f(2, 1, 3, 4), f(5, 4, 2))),
    "addmm": (torch.addmm, (f(4), f(2, 3), f(3, 4))),
    "addmm scaled": (lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), (f(2, 4), f(2, 3), f(3, 4))),
    "baddbmm": (torch.baddbmm, (f(2, 3, 5), f(2, 3, 4), f(2, 4, 5))),
    "mv": (torch.mv, (f(3, 4), f(4))),
    "dot": (torch.dot, (f(4), f(4))),
    "outer": (torch.outer, (f(3), f(4))),
    "einsum": (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), (f(2, 2, 3, 4), f(2, 2, 5, 4))),
    "einsum sum": (lambda x, y: torch.einsum("ij,kj->i", x, y), (f(3, 4), f(2, 4))),
    "int matmul": (lambda x, y: x @ y, (i(2, 3), i(3, 2))),
}

NETWORK: dict[str, Row] = {
    "depthwise with long windows": (lambda x, w: [F.conv2d(x, w, stride=(1, k), padding=(2, 5), groups=20) for k in (1, 2)],
                                    (f(2, 20, 6, 15), f(20, 1, 5, 13))),
    "results of padding cut off": (lambda x, w: F.conv1d(x, w, padding=4, dilation=2)[..., :-4].relu(), (f(2, 8, 11), f(6, 8, 3))),
    "layer_norm": (lambda x, w, c: F.layer_norm(x, (4,), w, c), (f(2, 3, 4), f(4), f(4))),
    "layer_norm none": (lambda x: F.layer_norm(x, (3, 4)), (f(2, 3, 4),)),
    "layer_norm w": (lambda x, w: F.layer_norm(x, (4,), w), (f(2, 4), f(4))),
    "layer_norm b": (lambda x, c: F.layer_norm(x, (4,), None, c), (f(2, 4), f(4))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-5), (f(2, 4), f(4))),
    "rms_norm eps": (lambda x: F.rms_norm(x, (4,)), (f(2, 4),)),
    "group_norm": (lambda x, w, c: F.group_norm(x, 2, w, c), (f(2, 4, 3), f(4), f(4))),
    "group_norm none": (lambda x: F.group_norm(x, 2), (f(2, 4, 3, 2),)),
    "batch_norm": (F.batch_norm, (f(2, 3, 4), f(3), torch.rand(3) + 0.5, f(3), f(3))),
    "batch_norm none": (F.batch_norm, (f(2, 3), f(3), torch.rand(3) + 0.5)),
    "instance_norm": (lambda x: F.instance_norm(x), (f(2, 3, 5),)),
    "conv1d": (lambda x, w, c: F.conv1d(x, w, c, 2, 1), (f(2, 3, 7), f(4, 3, 3), f(4))),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (f(1, 3, 7, 8), f(4, 3, 3, 2))),
    "conv2d groups": (lambda x, w, c: F.conv2d(x, w, c, groups=2), (f(1, 4, 5, 5), f(6, 2, 3, 3), f(6))),
    "conv2d same": (lambda x, w: F.conv2d(x, w, padding="same"), (f(1, 3, 5, 6), f(2, 3, 2, 4))),
    "conv2d unbatched": (F.conv2d, (f(3, 5, 5), f(2, 3, 3, 3), f(2))),
    "conv_transpose1d": (lambda x, w, c: F.conv_transpose1d(x, w, c, 2, 1, 1), (f(2, 3, 5), f(3, 4, 3), f(4))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2), (f(1, 4, 3, 3), f(4, 2, 2, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (f(2, 3, 7, 8),)),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (f(1, 2, 5, 5),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (f(2, 3, 7),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (f(2, 3, 7, 8),)),
    "avg_pool2d pad": (lambda x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False), (f(1, 2, 5, 5),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3), (f(2, 3, 9),)),
    "adaptive 1": (lambda x: F.adaptive_avg_pool2d(x, 1), (f(2, 3, 5, 7),)),
    "adaptive even": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (f(2, 3, 4, 9),)),
    "adaptive maxima": (lambda x: (F.adaptive_max_pool2d(x, (4, 3)), *F.adaptive_max_pool2d(x, 2, return_indices=True)), (f(1, 2, 5, 7),)),
    "adaptive odd": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (f(1, 2, 5, 7),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (f(1, 8, 3, 2),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (f(1, 2, 3, 4),)),
    "sdpa": (F.scaled_dot_product_attention, (f(2, 3, 4, 8), f(2, 3, 5, 8), f(2, 3, 5, 6))),
    "sdpa rank 3": (F.scaled_dot_product_attention, (f(3, 4, 8), f(3, 5, 8), f(3, 5, 8))),
    "sdpa causal scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (f(1, 2, 4, 8), f(1, 2, 4, 8), f(1, 2, 4, 8)),
    ),
    "sdpa mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0),
        (f(2, 2, 4, 8), f(2, 2, 5, 8), f(2, 2, 5, 8), f(2, 1, 4, 5)),
    ),
    "sdpa bias": (F.scaled_dot_product_attention, (f(2, 2, 4, 8), f(2, 2, 5, 8), f(2, 2, 5, 8), f(4, 5))),
    "sdpa rank 3 bias": (F.scaled_dot_product_attention, (f(3, 4, 8), f(3, 5, 8), f(3, 5, 8), f(3, 4, 5))),
    "sdpa gqa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (f(1, 4, 3, 8), f(1, 2, 3, 8), f(1, 2, 3, 8))),
    "multi-head": (lambda x: _MHA(x, x, x, need_weights=False)[0], (f(2, 3, 8),)),
}

ALL = {
    f"{group} {k}": v
    for group, rows in (
        ("shape", SHAPE),
        ("reduce", REDUCE),
        ("index", INDEX),
        ("create", CREATE),
        ("matmul", MATMUL),
        ("network", NETWORK),
    )
    for k, v in rows.items()
}


@pytest.mark.parametrize("name", ALL)
def test_op(name: str) -> None:
    fn, args = ALL[name]
    check(fn, args)
