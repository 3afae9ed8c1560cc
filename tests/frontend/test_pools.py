"""Pools of one to three axes against PyTorch: ceil mode, padding that counts or not, divisors, dilation, windows larger than the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ShapeError
from tilewright.frontend.torch import import_torch
from tilewright.ir.interp import run

AVERAGE: Any = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MAXIMUM: Any = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def drawn(rng: np.random.Generator, n: int, *, maximum: bool) -> tuple[Tensor, dict[str, Any]]:
    sizes, kernel, stride = ([int(k) for k in rng.integers(1, top, n)] for top in (7, 10, 9))
    options: dict[str, Any] = {"kernel_size": kernel, "stride": stride, "ceil_mode": bool(rng.random() < 0.8)}
    options["padding"] = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    if maximum:
        options["dilation"] = [int(k) for k in rng.integers(1, 4, n)]
    else:
        options["count_include_pad"] = bool(rng.random() < 0.5)
        if n > 1 and rng.random() < 0.3:
            options["divisor_override"] = int(rng.integers(1, 9))
    return torch.randn(2, 3, *sizes), options


def agrees(pool: Any, x: Tensor, options: dict[str, Any], *, session: bool) -> bool:
    """False where PyTorch refuses the call."""
    try:
        want = pool(x, **options)
    except RuntimeError:
        return False

    def model(x: Tensor) -> Tensor:
        out: Tensor = pool(x, **options)
        return out

    if session:
        got = tw.compile(model, (x,))(x).numpy()
    else:
        (got,) = run(import_torch(model, (x,)).graph, [x.numpy()])
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6, err_msg=f"{x.shape} {options}")
    return True


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("maximum", [False, True], ids=["average", "maximum"])
def test_any_window(n: int, maximum: bool) -> None:
    rng, done = fresh_rng(), 0
    for _ in range(3000):
        x, options = drawn(rng, n, maximum=maximum)
        done += agrees((MAXIMUM if maximum else AVERAGE)[n], x, options, session=done < 3)
        if done == 15:
            return
    raise AssertionError(f"PyTorch took only {done} of the calls")


@pytest.mark.parametrize("count", [True, False])
def test_a_window_far_larger_than_its_input(count: bool) -> None:
    """EfficientNet's last pool: one window of 1280 x 1280 over 7 x 7. Nothing as large as the window is made."""
    x = torch.randn(1, 8, 7, 7)
    options = {"kernel_size": 1280, "ceil_mode": True, "count_include_pad": count}
    assert agrees(F.avg_pool2d, x, options, session=True)
    session = tw.compile(lambda x: F.avg_pool2d(x, 1280, ceil_mode=True, padding=600, count_include_pad=count), (x,))
    torch.testing.assert_close(session(x), F.avg_pool2d(x, 1280, ceil_mode=True, padding=600, count_include_pad=count))
    assert agrees(F.avg_pool2d, x, {**options, "divisor_override": 3}, session=True)
    assert agrees(F.max_pool2d, x, {"kernel_size": 99, "stride": 200, "ceil_mode": True, "dilation": 2}, session=True)


def test_indices_of_a_large_window() -> None:
    x = torch.randn(2, 3, 5, 6)
    want = F.max_pool2d(x, 9, ceil_mode=True, return_indices=True)
    got = tw.compile(lambda x: F.max_pool2d(x, 9, ceil_mode=True, return_indices=True), (x,))(x)
    torch.testing.assert_close(got, want)


def test_of_arrays_and_their_derivatives() -> None:
    x = fresh_rng().normal(size=(2, 3, 5)).astype(np.float32)
    np.testing.assert_allclose(tw.mean_pool(x, 9, ceil_mode=True), x.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tw.max_pool(x, 9, ceil_mode=True), x.max(-1, keepdims=True))
    np.testing.assert_allclose(tw.grad(lambda v: tw.sum(tw.mean_pool(v, 9, ceil_mode=True)))(x), np.full(x.shape, 0.2), rtol=1e-6)
    leaf = torch.tensor(x, requires_grad=True)
    F.max_pool1d(leaf, 9, ceil_mode=True).sum().backward()
    np.testing.assert_array_equal(tw.grad(lambda v: tw.sum(tw.max_pool(v, 9, ceil_mode=True)))(x), leaf.grad)
    with pytest.raises(ShapeError, match="the kernel does not fit the padded input"):
        tw.max_pool(x, 9)
    with pytest.raises(ShapeError, match="the kernel does not fit the padded input"):
        tw.max_pool(x, 9, stride=2, ceil_mode=True)


@pytest.mark.parametrize("kernel, stride, padding", [((16, 12), (16, 12), 0), ((7, 9), (3, 5), (3, 4)), ((2, 6, 5), (1, 2, 4), (1, 0, 2))])
def test_wide_windows_far_apart(kernel: Any, stride: Any, padding: Any) -> None:
    """Channels first: the rows of a window are pooled side by side, so that its elements need not be read one by one."""
    x = torch.randn(2, 3, *((9, 40, 50) if len(kernel) == 3 else (40, 50)))
    x[0, 0, ..., 3] = torch.nan
    largest, mean = (F.max_pool3d, F.avg_pool3d) if len(kernel) == 3 else (F.max_pool2d, F.avg_pool2d)
    options = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": True}
    assert agrees(largest, x, options, session=True)
    assert agrees(mean, x, options, session=True)
    assert agrees(mean, x.double(), options | {"padding": 0, "ceil_mode": False}, session=True)
