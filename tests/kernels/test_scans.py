"""Running sums, products, extremes and logsumexps: long axes in chunks, rows and columns alike, the tile instruction on every level against
the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32 as f32_dtype
from tilewright.ir.graph import Graph
from tilewright.ops import CumMax, CumMin, CumProd, CumSum, LogCumSumExp, Op
from tilewright.ops.families import f32, f64
from tilewright.tile import interp
from tilewright.tile.builder import KernelBuilder

from .harness import address, run_graph, target


def run(op: Op, x: Any, symbolic: int | None = None) -> Any:
    g = Graph("scan")
    shape = tuple(sym("L", 0, 1 << 20) if a == symbolic else d for a, d in enumerate(x.shape))
    g.outputs = [op(g.input(f32(*shape), "x"))]
    return run_graph(g, [x], parts=2)[0][0]


@pytest.mark.parametrize("shape,axis", [((40000,), 0), ((2, 16385), 1), ((16400, 5), 0), ((3, 20000, 2), 1)])
@pytest.mark.parametrize("exclusive,reverse", [(False, False), (True, False), (False, True), (True, True)])
def test_long_axes(shape: tuple[int, ...], axis: int, exclusive: bool, reverse: bool) -> None:
    x = fresh_rng().standard_normal(shape).astype("f4")
    op = CumSum(axis=axis, exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(run(op, x), op.ref(x), rtol=1e-5, atol=1e-5)
    y = np.exp(x / 100).astype("f4")
    prod = CumProd(axis=axis, exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(run(prod, y), prod.ref(y), rtol=1e-4)


@pytest.mark.parametrize("n", [1, 33, 16384, 16385, 50001])
def test_a_column_has_the_bits_of_a_row(n: int) -> None:
    x = fresh_rng().standard_normal((n, 3)).astype("f4")
    want = np.stack([run(CumSum(axis=0), np.ascontiguousarray(x[:, i])) for i in range(3)], 1)
    np.testing.assert_array_equal(run(CumSum(axis=0), x).view("u4"), want.view("u4"))
    np.testing.assert_array_equal(run(CumSum(axis=1), np.ascontiguousarray(x.T)).T.view("u4"), want.view("u4"))
    np.testing.assert_array_equal(run(CumSum(axis=0), x, symbolic=0).view("u4"), want.view("u4"))


@pytest.mark.parametrize("shape,axis", [((40000,), 0), ((3, 37), 1), ((37, 19), 0), ((16400, 3), 0), ((2, 5, 3), 1), ((0, 3), 0)])
@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_extremes_and_logsumexps(name: str, dtype: str, shape: tuple[int, ...], axis: int) -> None:
    rng = fresh_rng()
    x = np.round(rng.standard_normal(shape) * 4).astype(dtype)  # many equal elements
    x[rng.random(shape) < 0.1] = -np.inf
    x[(rng.random(shape) < 0.01) & (np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))]) > 20)] = np.nan
    op: Op = {"cummax": CumMax, "cummin": CumMin, "logcumsumexp": LogCumSumExp}[name](axis=axis)
    g = Graph("scan")
    value = op(g.input({"f4": f32, "f8": f64}[dtype](*shape), "x"))
    g.outputs = list(value) if isinstance(value, tuple) else [value]
    got, want = run_graph(g, [x], parts=2)[0], getattr(torch, name)(torch.from_numpy(x), axis)
    if name == "logcumsumexp":
        np.testing.assert_allclose(got[0], want.numpy(), rtol=1e-6 if dtype == "f4" else 1e-12, atol=1e-6 if dtype == "f4" else 1e-12)
    else:
        np.testing.assert_array_equal(got[0], want[0].numpy())
        np.testing.assert_array_equal(got[1], want[1].numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.bool, torch.int64])
def test_extremes_of_other_dtypes_and_layouts(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 34, 7)).to(dtype) if dtype is torch.bool else torch.randint(-9, 9, (5, 34, 7)).to(dtype)

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (*x.transpose(0, 1).cummax(0), *x[:, ::2].cummin(2))

    for got, want in zip(tw.compile(Both(), (x,), threads=1)(x), Both()(x), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("fn", ["sum", "prod"])
def test_the_instruction(level: str, fn: str) -> None:
    from .harness import KERNEL

    spec = target(level)
    lanes = spec.vector_bits // 32
    b = KernelBuilder("scan_instruction")
    x, y = (b.view(n, f32_dtype, (1,)) for n in "xy")
    b.store(y, (0,), b.scan(fn, b.load(x, (0,), (lanes,))))
    kernel = b.build()
    kernel.name = f"scan_{fn}"
    data = fresh_rng().standard_normal(lanes).astype("f4")
    want, got = np.zeros_like(data), np.zeros_like(data)
    interp.run(kernel, [data, want], 1)
    words = np.array([data.ctypes.data, got.ctypes.data], np.int64)
    KERNEL(address(kernel, replace(spec, checks=False)))(words.ctypes.data, 0, 1, 0)  # nobody says where its buffers end
    np.testing.assert_array_equal(got.view("u4"), want.view("u4"))
    most = 3e-7 * float(np.abs(data).sum())  # a number is added four times at most, half a unit of what is added each time
    np.testing.assert_allclose(got, (np.cumsum if fn == "sum" else np.cumprod)(data.astype("f8")), rtol=1e-5, atol=most)


def test_the_gradient_of_a_product_behind_a_zero_is_no_nan() -> None:
    """What comes back to the elements behind it leaves the range of f32, and is multiplied by 0."""
    x = np.full(60, 30.0, np.float32)
    x[3] = 0
    leaf = torch.from_numpy(x).requires_grad_()
    (want,) = torch.autograd.grad(leaf.cumprod(0).sum(), leaf)
    got = tw.grad(lambda v: tw.cumprod(v, 0).sum())(x)
    np.testing.assert_allclose(got[4:], want.numpy()[4:])
    np.testing.assert_allclose(got[:3], want.numpy()[:3], rtol=1e-6)
