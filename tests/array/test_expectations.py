"""What users of NumPy, JAX and PyTorch expect of names, dtypes and derivatives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ArgumentError


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

    def attend(q: Any, k: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)

    torch.testing.assert_close(tw.compile(attend, (q, k))(q, k), attend(q, k), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_small_floats_stay_in_range(dtype: str) -> None:
    x = (tw.arange(200_000, dtype=tw.float32) % 5 + 100).astype(dtype)  # a sum beyond f16, more elements than bf16 counts
    want = x.astype("float64").numpy()
    for name in ("mean", "std", "var", "nanmean", "nanstd", "average", "median", "logsumexp"):
        expected = np.log(np.exp(want - 104).sum()) + 104 if name == "logsumexp" else getattr(np, name)(want)
        got = getattr(tw, name)(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(float(got), expected, rtol=1e-2, err_msg=name)
    rows = x.reshape(200, 1000)
    np.testing.assert_allclose(rows.mean(axis=1).astype("float64").numpy(), want.reshape(200, 1000).mean(1), rtol=1e-2)


def test_out_of_every_function_and_of_numpy_arrays() -> None:
    n: Any = np.zeros(3, np.float32)
    o = tw.zeros(3)
    functions = {name: getattr(tw, name) for name in ("cumsum", "divmod")}
    assert tw.add(np.ones(3, np.float32), 1, out=n) is n and n.tolist() == [2, 2, 2]
    assert tw.median(tw.ones((4, 3)), axis=0, out=o) is o and o.tolist() == [1, 1, 1]
    assert functions["cumsum"](tw.ones(3), out=o) is o and o.tolist() == [1, 2, 3]
    y: Any = tw.zeros(3)
    x: Any = tw.ones(3)
    assert np.add(x, 1, where=np.array([True, False, True]), out=y) is y and y.tolist() == [2, 0, 2]
    with pytest.raises(ArgumentError, match="out: the function has 2 results"):
        functions["divmod"](tw.ones(3), 2.0, out=o)


def test_what_numpy_writes_and_names() -> None:
    x: Any = tw.zeros((2, 3))
    np.put_along_axis(x, np.array([[1], [2]]), 9, axis=1)
    assert x.tolist() == [[0, 9, 0], [0, 0, 9]]
    assert np.resize(tw.arange(2), (2, 2)).tolist() == [[0, 1], [0, 1]]
    assert [t.tolist() for t in divmod(tw.asarray([7, 8]), 3)] == [[2, 2], [1, 2]]
    assert (tw.asarray([1, 2]) + [1, 1]).tolist() == [2, 3]
    mask = tw.zeros(2, dtype=tw.bool)
    mask[0] = 1
    assert mask.tolist() == [True, False]
    assert tw.sort(tw.asarray([[3, 1], [2, 0]]), axis=None).tolist() == [0, 1, 2, 3]
    assert tw.argsort(tw.asarray([2, 1]), kind="stable").tolist() == [1, 0]
    with pytest.raises(ArgumentError, match="at most 64 axes, got 65"):
        tw.ones([1] * 65)
    assert "shape=(5000,)" in repr(tw.arange(5000))
