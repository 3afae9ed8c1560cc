"""Special functions, writes at indices and norms with their statistics: the imported graph, run by the interpreter, equals torch eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .check import check

T = torch.Tensor
ids = torch.tensor([[0, 2, 2, 1], [1, 0, 0, 3], [2, 2, 2, 2]])
EDGE = torch.tensor([[0.1, -0.3, float("nan")], [float("inf"), -float("inf"), 0.0]])


def f(*shape: int) -> T:
    return torch.randn(shape)


def _norm_backward(g: T, x: T, mean: T, inverse: T) -> Any:
    return torch.ops.aten.native_layer_norm_backward(g, x, [4], mean, inverse, x[0], x[1], [True, True, True])


def reduced(reduce: str, include_self: bool) -> Callable[..., Any]:
    return lambda x, i, y: torch.scatter_reduce(x, 1, i, y, reduce, include_self=include_self)


ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scatter_reduce prod": (reduced("prod", True), (f(3, 5), ids, f(3, 4))),
    "scatter_reduce amax": (reduced("amax", False), (f(3, 5), ids, f(4, 6))),
    "scatter_reduce mean": (reduced("mean", False), (f(3, 5), ids, f(3, 4))),
    "scatter_reduce mean of integers": (reduced("mean", True), (torch.arange(15).reshape(3, 5), ids, torch.arange(12).reshape(3, 4))),
    "max_unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), (2, 2)), (f(1, 2, 4, 6),)),
    "nonzero_static": (lambda x: torch.nonzero_static(x > 0, size=4, fill_value=-7), (f(3, 3),)),
    "instance_norm": (lambda x: F.instance_norm(x, weight=torch.tensor([1.0, 2.0])), (f(3, 2, 5),)),
    "layer norm with statistics": (lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5), (f(3, 4),)),
    "derivative of a layer norm by its statistics": (
        lambda g, x: _norm_backward(g, x, *torch.native_layer_norm(x, [4], x[0], x[1], 1e-3)[1:]), (f(3, 4), f(3, 4))),
    "derivative of a layer norm by other statistics": (lambda g, x: _norm_backward(g, x, x[:, :1] + 1, x[:, 1:2] * 2), (f(3, 4), f(3, 4))),
    "derivative of a resize": (lambda g: torch.ops.aten.upsample_bilinear2d_backward(g, [33, 9], [1, 2, 20, 40], False), (f(1, 2, 33, 9),)),
    "derivative of nearest": (lambda g: torch.ops.aten.upsample_nearest2d_backward(g, [3, 9], [1, 2, 20, 4]), (f(1, 2, 3, 9),)),
    "derivative of a wide resize": (lambda g: torch.ops.aten.upsample_bicubic2d_backward(g, [3, 90], [1, 2, 3, 4], True),
                                    (f(1, 2, 3, 90),)),
    "derivative of antialiasing": (lambda g: torch.ops.aten._upsample_bilinear2d_aa_backward(g, [7, 90], [1, 2, 40, 91], False),
                                   (f(1, 2, 7, 90),)),
    "group norm with statistics": (lambda x: torch.native_group_norm(x, None, None, 2, 6, 5, 3, 1e-5), (f(2, 6, 5),)),
    "negative eps": (lambda x: F.group_norm(x, 2, eps=-1e-3), (f(2, 6, 5),)),
    "topk of a number": (lambda x: torch.topk(x, 1), (f(),)),
    "std_mean": (lambda x: torch.std_mean(x, 1, keepdim=True), (f(3, 4),)),
    "std of large numbers": (lambda x: torch.std(x, 1), (f(3, 40) * 1e25,)),
    "rows that are -inf": (lambda x: torch.ops.aten._safe_softmax(x, 1), (torch.tensor([[-float("inf")] * 3, [1.0, 2.0, 3.0]]),)),
    "integer powers": (lambda x, y: x**y, (torch.tensor([-2, -1, 1, 3, 2]), torch.tensor([3, -3, -1, 0, 62]))),
    "legendre": (torch.special.legendre_polynomial_p, (f(5), torch.tensor([0.0, 1.0, 5.0, 7.0, -1.0]))),
    "frexp": (torch.frexp, (8 * f(7),)),
    "mvlgamma": (lambda x: torch.mvlgamma(x, 3), (f(5).abs() + 2,)),
    "float_power": (lambda x: torch.float_power(x, 2), (torch.arange(4),)),
    "xlogy": (lambda x: torch.xlogy(x, 0.0), (torch.tensor([0.0, 1.0]),)),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, torch.sign(x), 0.3, reduction="sum"), (f(5), f(5))),
    "pad circular": (lambda x: F.pad(x, (-1, 2, 1, 0), mode="circular"), (f(2, 3, 4, 5),)),
    "pdist": (lambda x: torch.pdist(x, 3.0), (f(5, 3),)),
    "prelu of a number": (F.prelu, (-f().abs(), torch.tensor([0.3]))),
    "ormqr": (lambda a, t, x: torch.ormqr(a, t, x, transpose=True), (*torch.geqrf(f(5, 3)), f(5, 2))),
    "searchsorted, many edges": (lambda e, x: torch.searchsorted(e, x, right=True), (f(257).sort()[0].round(decimals=1), EDGE)),
    "searchsorted, rows of many edges": (torch.searchsorted, (torch.randint(-50, 50, (2, 3, 512)).sort()[0],
                                                              torch.randint(-55, 55, (2, 3, 36)))),
    "bucketize, many edges": (lambda x, e: torch.bucketize(x, e, out_int32=True), (EDGE, f(1000).sort()[0].round(decimals=1))),
    "searchsorted, NaN behind the edges": (torch.searchsorted, (torch.cat([f(300).sort()[0], torch.full((9,), float("nan"))]),
                                                                f(36).clamp(-1, 1))),
    "searchsorted, NaN behind few edges": (torch.searchsorted, (torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0, torch.nan]), f(36).clamp(-1, 1))),
    "histc, one edge given twice": (lambda x: torch.histc(x, 5, 1, 1), (f(40),)),
    "histc": (lambda x: torch.histc(x, 5, -1, 1), (torch.tensor([float("nan"), 0.0, 1.0, -1.0, 2.0, -0.3, -2.0]),)),
    "histc of integers": (lambda x: torch.histc(x.float(), 9, -2, 6), (torch.randint(-5, 9, (70,)),)),
    "histc of places": (lambda x: torch.histc(x.argmax(-1).float(), 7, 0, 6).to(torch.int32).cumsum(0), (f(60, 7),)),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), (f(6),)),
}


@pytest.mark.parametrize("name", ROWS)
def test_special(name: str) -> None:
    fn, args = ROWS[name]
    check(fn, args)
