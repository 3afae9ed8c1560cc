"""What users of NumPy, JAX and PyTorch expect of names, dtypes and derivatives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16, ml_dtypes.bfloat16, tw.bfloat16], ids=str)
def test_a_dtype_by_any_of_its_names(dtype: Any) -> None:
    made = (tw.ones(2, dtype=dtype), tw.array([1.0, 2.0], dtype=dtype), tw.astype(tw.arange(2), dtype), tw.full((2,), 3, dtype=dtype))
    assert {a.dtype for a in made} == {np.dtype(ml_dtypes.bfloat16)}
    assert tw.jit(lambda x: tw.zeros((2,), dtype=dtype) + tw.astype(x, dtype))(np.ones(2, np.float32)).dtype == ml_dtypes.bfloat16


def test_every_dtype_of_torch_that_numpy_has() -> None:
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"):
        assert tw.zeros(1, dtype=getattr(torch, name)).dtype == np.dtype(name)
    with pytest.raises(tw.TilewrightError, match=r"torch\.qint8 is not one of bool"):
        tw.zeros(1, dtype=torch.qint8)


@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc"])
def test_rounding_has_no_derivative(name: str) -> None:
    x = np.array([0.3, 1.7, -2.2], np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    (wanted,) = torch.autograd.grad(getattr(torch, name)(leaf).sum(), leaf)
    assert np.array_equal(tw.grad(lambda v: getattr(tw, name)(v).sum())(x), wanted.numpy())
    through = tw.grad(lambda v: (v + tw.stop_gradient(getattr(tw, name)(v) - v)).sum())(x)
    assert np.array_equal(through, np.ones(3))


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (4, 4), (4, 2)])
def test_causal_attention_ends_with_the_last_key(queries: int, keys: int) -> None:
    """Query i sees keys 0 .. i + keys - queries; one that sees none gives zeros."""
    values = np.arange(1.0, keys + 1, dtype=np.float32)
    got = tw.attention(np.ones((1, 1, queries, 4), "f4"), np.ones((1, 1, keys, 4), "f4"), values.reshape(1, 1, keys, 1), causal=True)
    wanted = [values[: i + keys - queries + 1].mean() if i + keys - queries >= 0 else 0.0 for i in range(queries)]
    np.testing.assert_allclose(np.asarray(got).ravel(), wanted, rtol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (4, 4)])
def test_a_module_keeps_pytorchs_causal(queries: int, keys: int) -> None:
    q, k = torch.randn(1, 1, queries, 4), torch.randn(1, 1, keys, 4)
    attend = lambda q, k: torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)
    torch.testing.assert_close(tw.compile(attend, (q, k))(q, k), attend(q, k), rtol=1e-4, atol=1e-5)
