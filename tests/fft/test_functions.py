"""`tw.fft` against NumPy in f64, gradients against PyTorch, programs from torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ShapeError, UnsupportedError

ft = tw.fft


def real(*shape: int) -> Any:
    return fresh_rng().normal(size=shape)


def whole(*shape: int) -> Any:
    return real(*shape) + 1j * real(*shape)


@pytest.mark.parametrize("n", [1, 12, 67, 1024])
def test_lengths(n: int) -> None:
    """Powers of two, mixed radixes, a prime with its own stage, one that takes a convolution, and a transform in two rounds."""
    z, x = whole(3, n), real(3, n)
    np.testing.assert_allclose(ft.fft(z), np.fft.fft(z), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ft.rfft(x), np.fft.rfft(x), rtol=1e-10, atol=1e-10)
    if n > 1:
        np.testing.assert_allclose(ft.irfft(np.fft.rfft(x), n), x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [128, 448, 512, 1792])
def test_rows_by_one_kernel(n: int) -> None:
    """Single precision against NumPy in double; a row alone gives the bits it has in a batch."""
    x, z = real(5, n).astype("f4"), whole(5, n).astype("c8")
    half = np.fft.rfft(real(5, n)).astype("c8")
    for ours, theirs, v in ((ft.fft, np.fft.fft, z), (ft.ifft, np.fft.ifft, z), (ft.fft, np.fft.fft, x), (ft.rfft, np.fft.rfft, x),
                            (ft.irfft, np.fft.irfft, half)):
        got, want = np.asarray(ours(v)), theirs(v.astype("c16" if v.dtype.kind == "c" else "f8"))
        # each of the log2(n) steps rounds by less than eps of the largest value
        np.testing.assert_allclose(got, want, rtol=0, atol=np.finfo("f4").eps * np.log2(n) * np.abs(want).max())
        assert np.array_equal(np.asarray(ours(v[3])), got[3])


def test_single_precision_rows_and_columns() -> None:
    z = whole(40, 96).astype("c8")
    for axis in (0, 1):
        np.testing.assert_allclose(ft.fft(z, axis=axis), np.fft.fft(z, axis=axis), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [37, 64])
def test_real_transforms_of_columns(columns: int) -> None:
    """The columns become the real parts of complex rows: a copy whose two sides run along different axes, and one side in steps of two."""
    x = real(33, columns)
    got = tw.jit(lambda x: tw.abs(ft.rfft(x, axis=0)))(x)
    np.testing.assert_allclose(got, np.abs(np.fft.rfft(x, axis=0)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_forms_and_normalisations(name: str, norm: Any) -> None:
    x = real(4, 9) if name in ("rfft", "ihfft") else whole(4, 9)
    ours, theirs = getattr(ft, name), getattr(np.fft, name)
    for axis, n in ((-1, None), (0, 7), (1, 12)):
        np.testing.assert_allclose(ours(x, n, axis, norm), theirs(x, n, axis, norm), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"])
def test_several_axes(name: str) -> None:
    x = real(3, 6, 5) if name.startswith("rfft") else whole(3, 6, 5)
    ours, theirs = getattr(ft, name), getattr(np.fft, name)
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(ours(x, (4, 8), (1, 0)), theirs(x, (4, 8), (1, 0)), rtol=1e-10, atol=1e-11)


def test_shifts_and_frequencies() -> None:
    x = real(5, 6)
    np.testing.assert_array_equal(ft.fftshift(x), np.fft.fftshift(x))
    np.testing.assert_array_equal(ft.ifftshift(x, axes=0), np.fft.ifftshift(x, axes=0))
    np.testing.assert_allclose(ft.fftfreq(7, 0.5), np.fft.fftfreq(7, 0.5), rtol=1e-6)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("n", [7, 8])
def test_gradients_are_pytorchs(name: str, n: int) -> None:
    x = real(3, n) if name == "rfft" else whole(3, n)
    ours, theirs = getattr(ft, name), getattr(torch.fft, name)
    t = torch.from_numpy(x.copy()).requires_grad_()
    y = theirs(t, n)
    weight = real(*y.shape)
    ((y.real**2 + y.imag if y.is_complex() else y**2) * torch.from_numpy(weight)).sum().backward()

    def loss(v: Any) -> Any:
        z = ours(v, n)
        return tw.sum((tw.real(z) ** 2 + tw.imag(z)) * weight)

    assert t.grad is not None
    np.testing.assert_allclose(tw.grad(loss)(x), t.grad.numpy(), rtol=1e-9, atol=1e-10)


class Spectral(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.fft.rfft2(x, norm="ortho")
        return torch.fft.irfft2(z * 0.5, s=x.shape[-2:], norm="ortho"), z.abs(), torch.fft.fft(x).real, torch.fft.fftshift(z)


def test_a_torch_module() -> None:
    x = torch.randn(2, 8, 10)
    for got, want in zip(tw.compile(Spectral(), (x,))(x), Spectral()(x), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


class Transform(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.aten._fft_c2c(x, [1], 0, True)
        return found


def test_a_run_time_length_is_refused() -> None:
    n = torch.export.Dim("n", min=3, max=100)
    with pytest.raises(UnsupportedError, match="a Fourier transform needs static sizes along its axes, got n elements"):
        tw.compile(Transform(), (torch.randn(4, 20, dtype=torch.complex64),), dynamic_shapes=({1: n},))


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="rfft: needs real operands, got c128"):
        ft.rfft(whole(4))
    with pytest.raises(ShapeError, match="norm must be one of backward, ortho, forward, got norm='other'"):
        ft.fft(whole(4), norm="other")
    with pytest.raises(ShapeError, match="fft: axis must be in"):
        ft.fft(whole(4), axis=3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [1, 12, 37])
def test_numbers_of_sixteen_bits_are_transformed_in_f32(dtype: Any, n: int) -> None:
    x = np.random.default_rng(n).normal(size=(3, n)).astype(dtype)
    for ours, numpy in ((ft.rfft, np.fft.rfft), (ft.fft, np.fft.fft), (ft.ihfft, np.fft.ihfft)):
        got = np.asarray(ours(x))
        assert got.dtype == np.complex64
        np.testing.assert_allclose(got, numpy(x.astype(np.float64)), rtol=1e-5, atol=2e-5)
    back = np.asarray(ft.irfft(x, n=2 * n))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, np.fft.irfft(x.astype(np.float64), n=2 * n), rtol=1e-5, atol=1e-5)
