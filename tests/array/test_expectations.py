"""What users of NumPy, JAX and PyTorch expect of names, dtypes and derivatives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.array import machine
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


def test_scalars_of_numpy_inside_functions() -> None:
    """A comparison of a header without axes is a scalar, which native code must not take for a header."""
    assert tw.count_nonzero(tw.asarray(3.0)).item() == 1
    assert tw.count_nonzero(tw.asarray(False)).tolist() == 0
    made = machine.reduction("sum", np.float32(2.0), (), False)  # type: ignore[arg-type]
    assert made is None or made == 2
    found: Any = machine.elementwise("exp", [np.float32(0.0)], np.dtype(np.float32))  # type: ignore[list-item]
    assert found in (None, 1)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.parametrize("number", [300, -1, 2**70, -(2**70)])
def test_comparisons_with_integers_beyond_the_dtype(dtype: str, number: int) -> None:
    a = np.array([0, 1, 250 if dtype == "uint8" else 2**63 - 1], dtype)
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        fn: Any = getattr(tw, name)
        for wanted, made in (
            (getattr(np, name)(a, number), lambda x, fn=fn: fn(x, number)),
            (getattr(np, name)(number, a), lambda x, fn=fn: fn(number, x)),
        ):
            assert np.asarray(made(tw.asarray(a))).tolist() == np.asarray(tw.jit(made)(a)).tolist() == wanted.tolist()
            with tw.lazy():
                assert np.asarray(made(tw.asarray(a))).tolist() == wanted.tolist()
    x = tw.asarray(a)
    assert (x == number).tolist() == (a == number).tolist()
    assert (x < number).tolist() == (a < number).tolist()
    np.testing.assert_allclose((x / number).tolist(), a / np.float64(number), rtol=1e-6)
    np.testing.assert_allclose(tw.atan2(number, x).tolist(), np.arctan2(np.float64(number), a), rtol=1e-6)


def test_integers_stay_integers_where_there_is_no_nan() -> None:
    a = np.array([2**53 + 1, -7, 2**53 + 3])
    for name in ("nanmax", "nanmin", "nansum", "nanprod", "ptp"):
        made = getattr(tw, name)(tw.asarray(a))
        assert (made.dtype, made.item()) == (np.int64, getattr(np, name)(a))
    assert tw.any(tw.zeros(0, dtype=tw.float16)).dtype == tw.all(tw.zeros((0, 2), dtype=tw.bfloat16), axis=0).dtype == tw.bool


def test_bools_and_small_floats_as_numpy_has_them() -> None:
    mask = np.array([True, False, True])
    assert tw.clip(tw.asarray(mask), -1, 5).tolist() == np.clip(mask, -1, 5).tolist()
    assert tw.fmax(tw.asarray(mask), False).tolist() == mask.tolist()
    assert tw.insert(tw.asarray(mask), 1, 1).tolist() == [True, True, False, True]
    nan = np.array([np.nan, 0, -1, 2], np.float32)
    np.testing.assert_array_equal(tw.heaviside(tw.asarray(nan), 0.5), np.heaviside(nan, 0.5))
    np.testing.assert_array_equal(tw.jit(lambda x: tw.heaviside(x, 0.5))(nan), np.heaviside(nan, 0.5))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.array([1, 2, 0, -3], dtype)
        assert tw.nextafter(tw.asarray(x), tw.asarray(-x)).tolist() == np.nextafter(x, -x).tolist()
        assert tw.jit(tw.nextafter)(x, -x).tolist() == np.nextafter(x, -x).tolist()
    half = tw.ones((2, 2), dtype=tw.float16)
    assert tw.tensordot(half, half, 1).tolist() == [[2, 2], [2, 2]]
    assert tw.outer(tw.ones((2, 2)), tw.ones(3)).shape == (4, 3)


MASK = np.array([[True, False, True, True], [False, False, False, True], [True, True, False, False]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of a mean of nothing
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}], ids=str)
def test_reductions_where_a_mask_holds(name: str, options: dict[str, Any]) -> None:
    a = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    more: dict[str, Any] = {"initial": -0.5} if name in ("max", "min") else {"initial": 2.0} if name in ("sum", "prod") else {}
    fn: Any = getattr(tw, name)
    for mask in (MASK, MASK[0], None):
        given = options | more | ({} if mask is None else {"where": mask})
        wanted = getattr(np, name)(a, **given)
        x: Any = tw.asarray(a)
        for made in (fn(x, **given), getattr(x, name)(**given), getattr(np, name)(x, **given), fn(a, **given)):
            np.testing.assert_allclose(np.asarray(made), wanted, rtol=1e-5)
    assert tw.max(tw.zeros((0, 2)), axis=0, initial=3.0).tolist() == tw.amax(tw.zeros((0, 2)), axis=0, initial=3.0).tolist() == [3, 3]
    with pytest.raises(ArgumentError, match="max: a mask needs `initial`, the max of nothing"):
        tw.max(tw.zeros(3), where=tw.asarray([True, False, True]))


def test_elements_where_a_mask_does_not_hold_stay() -> None:
    out: Any = tw.full((3, 4), 7.0)
    made = tw.divide(tw.ones((3, 4)), 2.0, out=out, where=tw.asarray(MASK))
    assert made is out
    assert made.tolist() == np.where(MASK, 0.5, 7.0).tolist()
    kept: Any = np.full((3, 4), 7, np.float32)
    assert tw.exp(np.zeros((3, 4), np.float32), out=kept, where=MASK) is kept
    assert kept.tolist() == np.where(MASK, 1.0, 7.0).tolist()
    with pytest.raises(ArgumentError, match="exp: `where` needs `out`"):
        tw.exp(tw.zeros(3), where=tw.ones(3, dtype=tw.bool))


def test_tensors_have_the_shape_of_their_array() -> None:
    for x in (tw.asarray(2.5), tw.ones((2, 3)).T, tw.ones((2, 3))[:, ::2], tw.zeros((0, 2))):
        made = x.torch()
        assert (tuple(made.shape), made.tolist()) == (x.shape, x.tolist())


def test_deviations_leave_no_range() -> None:
    for size in (1e25, 1e-30):
        x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32) * np.float32(size)
        for axis in (0, 1, None):
            np.testing.assert_allclose(np.asarray(tw.std(tw.asarray(x), axis=axis)), x.astype(np.float64).std(axis), 1e-6)
