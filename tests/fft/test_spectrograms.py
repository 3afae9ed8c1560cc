"""Short-time Fourier transforms against PyTorch: values, derivatives, the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ShapeError

rng = fresh_rng()


@pytest.mark.parametrize("n,hop,width,center,normalized", [(16, 4, 16, True, False), (15, 5, 9, True, True), (8, 8, 8, False, False)])
def test_there_and_back(n: int, hop: int, width: int, center: bool, normalized: bool) -> None:
    x, window = rng.normal(size=(2, 3, 50)), rng.random(width) + 0.1
    tensor, weights = torch.from_numpy(x).requires_grad_(), torch.from_numpy(window)
    flat = torch.stft(tensor.reshape(6, 50), n, hop, width, weights, center, "reflect", normalized, return_complex=True)
    want = flat.reshape(2, 3, n // 2 + 1, -1)
    options: Any = {"hop": hop, "window": window, "center": center, "normalized": normalized}
    got = tw.fft.stft(x, n, **options)
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-9, atol=1e-9)
    factor = rng.normal(size=want.shape)
    (want.abs() * torch.from_numpy(factor)).sum().backward()
    grad = tw.grad(lambda x: (abs(tw.fft.stft(x, n, **options)) * factor).sum())(x)
    assert tensor.grad is not None
    np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=1e-7, atol=1e-7)
    back = tw.fft.istft(got, n, **options)
    np.testing.assert_allclose(back, x[..., : back.shape[-1]], rtol=1e-7, atol=1e-7)
    assert tw.fft.istft(got, n, **options, length=60).shape == (2, 3, 60)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="stft: needs a signal longer than a window"):
        tw.fft.stft(np.zeros(7), 16)
    with pytest.raises(ShapeError, match=r"istft: needs a spectrum \[..., 9, frames\]"):
        tw.fft.istft(np.zeros((8, 3), complex), 16)
    with pytest.raises(ShapeError, match="stft: needs a window of at most 16 elements"):
        tw.fft.stft(np.zeros(40), 16, window=np.ones(17))
