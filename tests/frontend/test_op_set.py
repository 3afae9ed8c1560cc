"""PyTorch functions of the wider op set, compiled, against eager PyTorch on fresh inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

T = torch.Tensor
Row = tuple[Callable[..., Any], Callable[[], tuple[T, ...]]]


def f(*shape: int) -> Callable[[], tuple[T, ...]]:
    return lambda: (torch.randn(shape),)


ROWS: dict[str, Row] = {
    "sort": (lambda x: torch.sort(x, dim=0, descending=True), f(7, 5)),
    "argsort": (lambda x: torch.argsort(x, stable=True), f(3, 90)),
    "msort": (torch.msort, f(6, 3)),
    "kthvalue": (lambda x: torch.kthvalue(x, 3, dim=1), f(4, 9)),
    "topk": (lambda x: torch.topk(x, 3, largest=False), f(4, 200)),
    "cumprod": (lambda x: torch.cumprod(x, 1), f(3, 9)),
    "max_pool_indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), f(1, 2, 9, 8)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), f(1, 2, 4, 6, 4)),
    "adaptive_avg": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), f(1, 2, 7, 9)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), f(1, 2, 5, 6)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), f(1, 2, 5, 6)),
    "bilinear_corners": (lambda x: F.interpolate(x, (9, 4), mode="bilinear", align_corners=True), f(1, 2, 5, 6)),
    "linear": (lambda x: F.interpolate(x, 11, mode="linear"), f(1, 2, 5)),
    "trilinear": (lambda x: F.interpolate(x, (3, 4, 5), mode="trilinear"), f(1, 1, 2, 3, 4)),
    "gather_last": (lambda x: x[..., torch.tensor([2, 0, 2, 1])], f(5, 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_compiled_is_eager(name: str) -> None:
    fn, make = ROWS[name]

    class Module(torch.nn.Module):
        def forward(self, *x: T) -> Any:
            return fn(*x)

    args = make()
    want = fn(*args)
    got = tw.compile(Module(), args)(*args)
    for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=2e-5, atol=2e-6)
