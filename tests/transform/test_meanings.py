"""What functions of arrays mean where a plain formula would do something else: small integers, equal numbers, arrays that change later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ShapeError


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64],
                         ids=lambda d: np.dtype(d).name)
def test_sums_and_powers_of_integers_are_numpys(dtype: Any) -> None:
    """Sums and products of small integers are i64 or u64 (200 + 100 is no 44), powers stay integers and wrap."""
    info = np.iinfo(dtype) if dtype is not np.bool_ else None
    x = np.array([1, 0, 1] if info is None else [info.max, info.max, 3, info.min + 1, info.max // 2], dtype)
    for name in ("sum", "prod", "cumsum", "cumprod"):
        got, want = getattr(tw, name)(x, axis=0), getattr(np, name)(x, axis=0)
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want)
    if info is not None:
        e = np.array([5, 2, 9, 7, 0], dtype)
        for got, want in ((tw.power(x, e), np.power(x, e)), (tw.jit(lambda x: x**7)(x), x**7), (tw.jit(lambda x: x**3)(x), x**3)):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        if info.min < 0:
            ends = np.array([info.min, info.min, 6], dtype)
            np.testing.assert_array_equal(tw.gcd(ends, np.array([1, 6, info.min], dtype)), [1, 2, 2])
    else:
        with pytest.raises(ShapeError, match="neg: a bool has no negative"):
            tw.jit(lambda x: -x)(x)


def test_the_deviation_of_equal_numbers_has_a_derivative() -> None:
    """0, as in PyTorch: a constant feature must not turn a whole gradient into NaN."""
    x = np.stack([np.full(5, 3.0), np.arange(5.0) ** 2, np.zeros(5)])
    t = torch.tensor(x, requires_grad=True)
    (t.std(1, correction=0) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    got = tw.grad(lambda x: (tw.std(x, axis=1) * np.array([1.0, 2.0, 3.0])).sum())(x)
    assert t.grad is not None and np.isfinite(got).all()
    np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tw.std(x, axis=1), x.std(1), rtol=1e-12)
    assert np.isnan(tw.std(np.array([1.0, np.nan])))


def test_an_array_that_a_function_closes_over_is_taken_as_it_was() -> None:
    """All uses of it agree, packed for a product or read where it is, after it has been changed too; trace again to see the change."""
    w, x = np.ones((64, 64), np.float32), np.ones((2, 64), np.float32)
    f = tw.jit(lambda x: (x @ w, x + w[0], w * x.sum()))
    before = f(x)
    w[:] = 7
    for a, b in zip(before, f(x), strict=True):
        np.testing.assert_array_equal(a, b)
    f.clear()
    np.testing.assert_array_equal(f(x)[1], np.full((2, 64), 8.0))
