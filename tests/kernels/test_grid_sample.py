"""Samples between the elements of images: every mode, padding and rank beside PyTorch, places outside, NaN and infinities among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw


class Sample(torch.nn.Module):
    def __init__(self, mode: str, padding: str, align: bool) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": align}

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, **self.options)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_are_pytorchs(mode: str, padding: str, align: bool) -> None:
    module = Sample(mode, padding, align)
    x, grid = torch.randn(2, 9, 7, 5), torch.rand(2, 3, 11, 2) * 4 - 2
    if mode == "nearest":
        grid = torch.round(grid * 8) / 8 + 0.01  # away from the middle between two elements
    special = torch.tensor([float("nan"), 0.5, float("inf"), float("-inf"), 1e30, 0.0])
    grid[1, 0, :3] = special.reshape(3, 2)
    session = tw.compile(module, (x, grid), threads=1)
    torch.testing.assert_close(session(x, grid), module(x, grid), rtol=1e-5, atol=2e-5, equal_nan=True)
    assert session.executable is not None
    assert len(session.executable.launches) <= 8


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_of_volumes(mode: str) -> None:
    module = Sample(mode, "zeros", align=False)
    x, grid = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64), torch.rand(2, 2, 3, 5, 3, dtype=torch.float64) * 3 - 1.5
    torch.testing.assert_close(tw.compile(module, (x, grid), threads=1)(x, grid), module(x, grid))


def test_gradients_are_pytorchs() -> None:
    from tilewright.ops.index.weighted import grid_sample
    from tilewright.transform.trace import built

    x, grid = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.rand(2, 3, 2, 2, dtype=torch.float64) * 2.4 - 1.2
    for mode in ("linear", "cubic"):
        leaves = [t.clone().requires_grad_() for t in (x, grid)]
        F.grid_sample(leaves[0], leaves[1], mode=f"bi{mode}", align_corners=False).square().sum().backward()

        def loss(a: Any, b: Any, mode: str = mode) -> Any:
            return tw.sum(built(lambda u, v: grid_sample(u, v, mode=mode, padding="zeros", align=False), a, b) ** 2)

        got = tw.grad(loss, argnums=(0, 1))(x.numpy(), grid.numpy())
        for g, leaf in zip(got, leaves, strict=True):
            torch.testing.assert_close(torch.from_numpy(g.__array__()), leaf.grad, rtol=1e-9, atol=1e-9)
