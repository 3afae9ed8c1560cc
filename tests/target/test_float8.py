"""Floats of eight bits: conversions are ml_dtypes' and PyTorch's bit for bit, on every feature level; they are stored like other floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.kernels.harness import KERNEL, address, target
from tilewright.core.dtypes import DType, f8e4m3, f8e5m2, f32
from tilewright.tile.builder import KernelBuilder

KINDS = [f8e4m3, f8e5m2]
THEIRS = {f8e4m3: torch.float8_e4m3fn, f8e5m2: torch.float8_e5m2}
rng = fresh_rng()


def interesting(dtype: DType) -> Any:
    """All numbers of the dtype, the points between two of them and their neighbours, both signs, and random bits."""
    codes = np.arange(256, dtype=np.uint8).view(dtype.np).astype(np.float32)
    finite = np.sort(codes[np.isfinite(codes)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    near = np.concatenate([finite, middle, np.array([464, 465, 480, 61440, 61439, 65536, 1e30, 1e-30, np.inf, np.nan, 0.0], np.float32)])
    both = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    noise = np.frombuffer(rng.bytes(4 * 2000), np.float32)
    return np.concatenate([both, -both, noise, rng.normal(size=3000).astype(np.float32) * 30])


def same(got: Any, want: Any) -> bool:
    """Equal bits; any NaN is a NaN."""
    a, b = np.isnan(got.astype(np.float32)), np.isnan(want.astype(np.float32))
    return bool(np.array_equal(a, b) and np.array_equal(got.view(np.uint8)[~a], want.view(np.uint8)[~b]))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_conversions_on_every_level(dtype: DType, level: str) -> None:
    with np.errstate(all="ignore"):
        x = interesting(dtype)
        x = x[: len(x) // 16 * 16]
        want = x.astype(dtype.np)
    b = KernelBuilder(f"narrow_{dtype}_{level}")
    source, made, back = b.view("x", f32, (1,)), b.view("y", dtype, (1,)), b.view("z", f32, (1,))
    tile = b.cast(b.load(source, (b.pid * 16,), (16,)), dtype)
    b.store(made, (b.pid * 16,), tile)
    b.store(back, (b.pid * 16,), b.cast(tile, f32))
    got, wide = np.zeros(len(x), dtype.np), np.zeros(len(x), np.float32)
    words = np.array([v.ctypes.data for v in (x, got, wide)], np.int64)
    spec = replace(target(level), checks=False)  # nobody says where its buffers end
    KERNEL(address(b.build(), spec))(words.ctypes.data, 0, len(x) // 16, 0)
    assert same(got, want)
    np.testing.assert_array_equal(wide, want.astype(np.float32))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_casts_are_ml_dtypes_and_pytorchs(dtype: DType) -> None:
    with np.errstate(all="ignore"):
        x = interesting(dtype)
        want = x.astype(dtype.np)
    got = np.asarray(tw.astype(x, dtype.name))
    assert got.dtype == dtype.np and same(got, want)
    top = float(ml_dtypes.finfo(dtype.np).max)
    small = x[np.abs(x) < top]
    theirs = torch.from_numpy(small).to(THEIRS[dtype]).view(torch.uint8).numpy().view(dtype.np)
    assert same(np.asarray(tw.astype(small, dtype.name)), theirs)
    codes = np.arange(256, dtype=np.uint8).view(dtype.np)
    np.testing.assert_array_equal(tw.astype(codes, "f32"), codes.astype(np.float32))
    held = np.asarray(tw.astype(x, dtype.name, saturate=True))
    with np.errstate(all="ignore"):
        assert same(held, np.clip(x, -top, top).astype(dtype.np))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_arithmetic_is_done_in_f32(dtype: DType) -> None:
    a, b = (rng.uniform(0.5, 4, (5, 33)).astype(dtype.np) for _ in range(2))
    f = tw.jit(lambda a, b: (a * b, tw.sum(a, axis=1), a @ b.T, tw.exp(a), a > b))
    product, total, matrix, power, larger = (np.asarray(v) for v in f(a, b))
    x, y = a.astype(np.float32), b.astype(np.float32)
    assert total.dtype == matrix.dtype == dtype.np and same(product, (x * y).astype(dtype.np))
    step = 2.0 ** -(3 if dtype is f8e4m3 else 2)
    for got, want in ((total, x.sum(1)), (matrix, x @ y.T), (power, np.exp(x))):
        inside = want < 400  # e4m3 ends at 448
        np.testing.assert_allclose(got.astype(np.float32)[inside], want[inside], rtol=step)
    np.testing.assert_array_equal(larger, x > y)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_weights_stored_in_eight_bits(dtype: DType) -> None:
    x, w = rng.normal(size=(7, 40)).astype(np.float32), rng.normal(size=(40, 19)).astype(np.float32).astype(dtype.np)
    want = x.astype(np.float64) @ w.astype(np.float64)
    for f in (lambda x: x @ tw.astype(w, "f32"), lambda x: x @ w):
        np.testing.assert_allclose(np.asarray(tw.jit(f)(x)), want, rtol=1e-4, atol=1e-4)
    g = tw.grad(lambda x: (tw.astype(tw.astype(x, dtype.name), "f32") * 3.0).sum())(x)  # the cast's cotangent is a cast
    np.testing.assert_array_equal(g, np.full_like(x, 3.0))


def test_torch_tensors_and_promotion() -> None:
    t = torch.randn(4, 5).to(torch.float8_e4m3fn)
    out = tw.jit(lambda x: x * 2)(t)
    assert out.dtype == torch.float8_e4m3fn and torch.equal(out.float(), t.float() * 2)
    a, b = np.ones(3, f8e4m3.np), np.ones(3, f8e5m2.np)
    assert np.asarray(tw.add(a, b)).dtype == np.float32 and np.asarray(tw.add(a, np.ones(3, np.float16))).dtype == np.float16
