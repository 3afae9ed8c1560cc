"""Fourier transforms by groups of threads, emulated, against NumPy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.launching import Emulated, graph
from tests.fresh import fresh_rng
from tilewright.core.dtypes import DType, f32, f64
from tilewright.ops.fourier.transforms import Dft, RealDft, RealDftBack, to_complex, to_pairs

# (rows, elements): a part of a warp, a warp, blocks, every radix, lanes that are not whole, two rounds, a convolution, one element
SIZES = [(3, 8), (5, 64), (2, 256), (3, 192), (1, 1024), (2, 1000), (9, 12), (2, 31), (3, 67), (1, 2310), (1, 1)]


@pytest.mark.parametrize(("size", "dtype"), [(s, (f32, f64)[i % 2]) for i, s in enumerate(SIZES)], ids=str)
def test_transforms_of_rows(size: tuple[int, int], dtype: DType) -> None:
    rng = fresh_rng()
    inverse, scale = bool(rng.integers(2)), float(rng.uniform(0.5, 2))
    x = rng.normal(size=(*size, 2)).astype(dtype.np)
    emulated = Emulated(graph(Dft(inverse, scale), (dtype, x.shape)))
    assert not any(k.threads == 1 for k in kernels(emulated))
    z = to_complex(x.astype(np.float64))
    want = (np.fft.ifft(z) * size[1] if inverse else np.fft.fft(z)) * scale
    close(emulated(x)[0], to_pairs(want, np.float64), dtype)


@pytest.mark.parametrize("size", [(3, 128), (2, 2048), (2, 6), (2, 15), (1, 1000), (0, 128)], ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_real_transforms(size: tuple[int, int], full: bool) -> None:
    x = fresh_rng().normal(size=size).astype(np.float32)
    got = Emulated(graph(RealDft(full=full), (f32, size)))(x)[0]
    close(got, to_pairs((np.fft.fft if full else np.fft.rfft)(x.astype(np.float64)), np.float64), f32)


@pytest.mark.parametrize("size", [(3, 128), (2, 2048), (2, 6), (2, 15)], ids=str)
def test_real_transforms_back(size: tuple[int, int]) -> None:
    x = fresh_rng().normal(size=(size[0], size[1] // 2 + 1, 2)).astype(np.float32)
    got = Emulated(graph(RealDftBack(size[1]), (f32, x.shape)))(x)[0]
    close(got, np.fft.irfft(to_complex(x.astype(np.float64)), size[1], norm="forward"), f32)


def test_nan_stays_in_its_row() -> None:
    x = fresh_rng().normal(size=(4, 64, 2)).astype(np.float32)
    x[1, 5] = np.nan
    got = Emulated(graph(Dft(), (f32, x.shape)))(x)[0]
    assert np.isnan(got[1]).all()
    close(got[2:], to_pairs(np.fft.fft(to_complex(x.astype(np.float64))[2:]), np.float64), f32)


def kernels(emulated: Emulated) -> list[Any]:
    return [x.kernel for x in emulated.program.launches if x.kernel.name.startswith("dft")]


def close(got: Any, want: Any, dtype: DType) -> None:
    size = np.abs(want).max(initial=1e-30)
    np.testing.assert_allclose(got / size, want / size, rtol=0, atol=2e-6 if dtype is f32 else 1e-14)
