"""Functions over arrays that are written in other ops: general products, ropes, norms over channels, exact sums, writes at indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng

rng = fresh_rng()


def randn(*shape: int) -> Any:
    return rng.normal(size=shape)


def turned(x: Any, angles: Any) -> Any:
    """Halves as complex numbers times the angle's."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], -1)


def test_dot_general() -> None:
    a, b = randn(3, 2, 5, 4), randn(5, 3, 6, 4)
    got = tw.dot_general(a, b, contract=((2, -1), (0, 3)), batch=((0,), (1,)))
    np.testing.assert_allclose(got, np.einsum("bmkj,kbnj->bmn", a, b), rtol=1e-12, atol=1e-12)
    with pytest.raises(tw.ShapeError, match=r"dot_general: contract axes must pair up in size, got \(0,\) of f64\[3,2,5,4\]"):
        tw.dot_general(a, b, contract=((0,), (0,)))
    with pytest.raises(tw.ShapeError, match="dot_general: an axis is given twice"):
        tw.dot_general(a, a, contract=((0,), (0,)), batch=((0,), (0,)))


def test_ropes() -> None:
    x, rows, columns = randn(2, 3, 5, 8), randn(3, 2), randn(5, 2)
    got = tw.axial_rope(x, (np.cos(rows), np.sin(rows)), (np.cos(columns), np.sin(columns)))
    want = np.concatenate([turned(x[..., :4], rows[:, None, :]), turned(x[..., 4:], columns[None, :, :])], -1)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    one = randn(3, 4)
    np.testing.assert_allclose(tw.rope(x[0, 0, :3], np.cos(one), np.sin(one)), turned(x[0, 0, :3], one), rtol=1e-12, atol=1e-13)
    with pytest.raises(tw.ShapeError, match=r"axial_rope: needs x\[...,H,W,D\] with D a multiple of 4"):
        tw.axial_rope(x, (rows, rows), (rows, rows))


def test_layer_norm_2d() -> None:
    x, w, b = randn(2, 6, 3, 4), randn(6), randn(6)
    t = torch.from_numpy(x).permute(0, 2, 3, 1)
    want = torch.nn.functional.layer_norm(t, (6,), torch.from_numpy(w), torch.from_numpy(b), 1e-6).permute(0, 3, 1, 2)
    np.testing.assert_allclose(tw.layer_norm_2d(x, w, b), want.numpy(), rtol=1e-11, atol=1e-12)
    with pytest.raises(tw.ShapeError, match=r"layer_norm_2d: needs x\[N,C,H,W\], got f64\[6\]"):
        tw.layer_norm_2d(w)


def test_compensated_sums_are_exact() -> None:
    """Sums whose terms cancel: math.fsum is exact."""
    n = 1001
    x = randn(n) * 10.0 ** rng.uniform(-8, 8, n)
    x = np.concatenate([x, -x, randn(7)])
    rng.shuffle(x)
    want = math.fsum(x)
    rest = (len(x) * 2.0**-53) ** 2 * np.abs(x).sum()  # what such a sum may lose however small it is (Ogita, Rump, Oishi)
    assert abs(float(tw.sum(x, compensated=True)) - want) <= 4 * np.spacing(abs(want)) + rest
    rows = x[:2002].reshape(2, 7, 143).astype(np.float32)
    got = tw.sum(rows, axis=(0, 2), keepdims=True, compensated=True)
    exact = np.array([math.fsum(rows[:, i].ravel().astype(float)) for i in range(7)])
    np.testing.assert_allclose(got.ravel(), exact.astype(np.float32), rtol=2e-7, atol=1e-6)
    np.testing.assert_allclose(tw.grad(lambda v: tw.sum(v * v, compensated=True))(x[:5]), 2 * x[:5], rtol=1e-12)
    np.testing.assert_array_equal(tw.sum(np.zeros((0, 3)), axis=0, compensated=True), np.zeros(3))


@pytest.mark.parametrize("shape", [(1, 1, 4, 5), (1, 4, 5), (1, 1, 4, 0)])
def test_constant_matrices_with_axes_of_one(shape: tuple[int, ...]) -> None:
    x, w = randn(2, 3, 4), randn(*shape)
    np.testing.assert_allclose(tw.jit(lambda x: x @ w)(x), x @ w, rtol=1e-12, atol=1e-13)


def test_scatter_and_index_dtypes() -> None:
    x, ids, rows = randn(5, 3), np.array([4, 0, 4, 3]), randn(4, 3)
    want = x.copy()
    for i, r in zip(ids, rows, strict=True):
        want[i] = r
    np.testing.assert_array_equal(tw.scatter(x, ids, rows), want)
    np.maximum.at(x, ids, rows)
    np.testing.assert_array_equal(tw.scatter(x, ids, rows, mode="max"), x)
    assert tw.argmax(x, axis=1, dtype="i32").dtype == np.int32
    assert tw.top_k(x, 2, dtype="u8")[1].dtype == np.uint8
    with pytest.raises(tw.ExecutionError, match="scatter: index out of range, got 7"):
        tw.jit(lambda x, i, r: tw.scatter(x, i, r))(x, np.array([7]), rows[:1])
