"""Sorting, running products, pooling, resizing, transposed convolution, shifts and products of groups as functions of arrays: results and
gradients against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng

rng = fresh_rng()
F = torch.nn.functional


def randn(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


CASES: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "sort": (lambda x: tw.sort(x, 1, descending=True), lambda x: torch.sort(x, 1, descending=True)[0], ((3, 7, 2),)),
    "cumprod": (lambda x: tw.cumprod(x, -1), lambda x: torch.cumprod(x, -1), ((3, 6),)),
    "cumsum": (lambda x: tw.cumsum(x, 1, exclusive=True, reverse=True), lambda x: x.flip(1).cumsum(1).flip(1) - x, ((3, 6),)),
    "group_norm": (lambda x, w, b: tw.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 5), (4,), (4,))),
    "conv_transpose": (lambda x, w: tw.conv_transpose(x, w, stride=2, padding=1, output_padding=1, groups=2),
                       lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2), ((1, 4, 3, 5), (4, 2, 3, 3))),
    "sum_pool": (lambda x: tw.pool(x, 3, kind="sum", stride=2, padding=1), lambda x: F.avg_pool2d(x, 3, 2, 1) * 9, ((2, 3, 7, 6),)),
    "dilated_sum_pool": (lambda x: tw.pool(x, 3, kind="sum", dilation=2),
                         lambda x: F.conv1d(x, torch.ones(2, 1, 3).to(x), stride=3, dilation=2, groups=2), ((2, 2, 12),)),
    "min_pool": (lambda x: tw.pool(x, 3, kind="min", stride=2, padding=1), lambda x: -F.max_pool2d(-x, 3, 2, 1), ((2, 3, 7, 6),)),
    "prod_pool": (lambda x: tw.pool(x, (2, 1, 2), kind="prod"), lambda x: x.unfold(2, 2, 2).unfold(4, 2, 2).prod(-1).prod(-1),
                  ((1, 2, 4, 3, 5),)),
    "max_pool": (lambda x: tw.max_pool(x, 3, stride=2, padding=1), lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 7, 6),)),
    "mean_pool": (lambda x: tw.mean_pool(x, (2, 3), padding=(1, 0), count_padding=False),
                  lambda x: F.avg_pool2d(x, (2, 3), None, (1, 0), count_include_pad=False), ((1, 2, 5, 7),)),
    "adaptive_pool": (lambda x: tw.adaptive_pool(x, (3, 2)), lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ((1, 2, 7, 5),)),
    "resize": (lambda x: tw.resize(x, (5, 9), mode="linear"), lambda x: F.interpolate(x, (5, 9), mode="bilinear"), ((1, 2, 4, 6),)),
    "lora_matmul": (lambda x, w, a, b: tw.lora_matmul(x, w, a, b, scale=0.5), lambda x, w, a, b: x @ w + 0.5 * (x @ a @ b),
                    ((5, 4), (4, 6), (4, 2), (2, 6))),
    "grouped_matmul": (lambda x, w: tw.grouped_matmul(x, w, np.array([2, 0, 1, 2])),
                       lambda x, w: torch.einsum("mk,mkn->mn", x, w[torch.tensor([2, 0, 1, 2])]), ((4, 3), (3, 3, 5))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    ours, theirs, shapes = CASES[name]
    arrays = [randn(*s) for s in shapes]
    tensors = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in arrays]
    want = theirs(*tensors)
    weight = randn(*want.shape)
    (want * torch.from_numpy(weight)).sum().backward()
    value, grads = tw.jit(lambda *xs: (ours(*xs), tw.grad(lambda xs: (ours(*xs) * weight).sum())(xs)))(*arrays)
    np.testing.assert_allclose(value, want.detach().numpy(), rtol=1e-4, atol=1e-5)
    for g, t in zip(grads, tensors, strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(g, t.grad.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("special", [np.nan, -np.inf])
def test_tangents_of_a_max_pool_come_from_the_element_that_it_names(special: float) -> None:
    x, t = randn(2, 2, 5, 6), randn(2, 2, 5, 6)
    x[0, 0], x[1, 1, 2, 3] = -np.inf, special
    got = tw.jvp(lambda x: tw.max_pool(x, 3, stride=1, padding=1), (x,), (t,))[1]
    want = torch.func.jvp(lambda x: F.max_pool2d(x, 3, 1, 1), (torch.from_numpy(x),), (torch.from_numpy(t),))[1]
    np.testing.assert_array_equal(got, want.numpy())


def test_indices_shifts_and_finite_numbers() -> None:
    x = rng.integers(0, 4, (3, 9)).astype(np.float32)
    np.testing.assert_array_equal(tw.argsort(x, dtype="i32"), np.argsort(x, kind="stable").astype(np.int32))
    y = randn(1, 2, 6, 6)
    values, where = tw.max_pool(y, 2, indices=True)
    want, places = F.max_pool2d(torch.from_numpy(y), 2, return_indices=True)
    np.testing.assert_array_equal(values, want.numpy())
    np.testing.assert_array_equal(where, places.numpy())
    n = rng.integers(-100, 100, 8)
    got = tw.jit(lambda n: (n << 3, n >> 2, 1 << (n & 7)))(n)
    for a, b in zip(got, (n << 3, n >> 2, 1 << (n & 7)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert tw.isfinite(np.array([1.0, np.inf, -np.inf, np.nan])).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("call", "text"), [
    (lambda: tw.pool(np.ones((1, 1, 4), np.float32), 2, kind="or"), "pool: kind must be sum, prod, min, max or mean"),
    (lambda: tw.max_pool(np.ones((1, 1, 4, 4), np.float32), 0), "max_pool: kernel, stride and dilation must be positive"),
    (lambda: tw.max_pool(np.ones((4, 4), np.float32), 2), r"max_pool: needs x\[N,C,\*sizes\], got f32\[4,4\]"),
    (lambda: tw.sort(np.ones(3, np.float32), 2), "sort: axis must be in -1..0, got axis=2"),
    (lambda: tw.conv_transpose(randn(1, 3, 4), randn(2, 3, 3)), "conv: "),
], ids=range(5))
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises(tw.ShapeError, match=rf"^{text}.*\(test_windows.py:\d+\)$"):
        call()


def test_a_group_out_of_range() -> None:
    with pytest.raises(tw.ExecutionError, match=r"^grouped_matmul: index out of range, got 3 at position 1; must be in 0..2 \(test_w"):
        tw.jit(lambda x, w, i: tw.grouped_matmul(x, w, i))(randn(2, 3), randn(3, 3, 4), np.array([0, 3]))
