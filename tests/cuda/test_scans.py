"""Running sums, products, extremes and logsumexps by groups of threads, emulated, against the references and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.launching import Emulated, graph
from tests.fresh import fresh_rng
from tilewright.core.dtypes import DType, bf16, f16, f32, f64, i32
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.ops.rows.cumulative import CumMax, CumMin, CumProd, CumSum, LinearRecurrence, LogCumSumExp
from tilewright.transform.vjp import pull_back

CASES: list[tuple[Any, DType, tuple[int, ...]]] = [
    (CumSum(1), f32, (3, 1000)), (CumSum(1, reverse=True), f32, (2, 77)), (CumSum(0, exclusive=True, reverse=True), f64, (300, 5)),
    (CumSum(1), bf16, (2, 4100)), (CumProd(1, exclusive=True), f16, (3, 40)), (CumProd(0), f32, (65, 33)),
    (CumMax(1), f32, (3, 300)), (CumMax(1), bf16, (2, 64)), (CumMin(0), f32, (100, 40)), (CumMax(0), f32, (4200, 1)),
    (CumMin(1), i32, (2, 9)), (LogCumSumExp(1), f32, (3, 264)), (LogCumSumExp(0), f64, (50, 3)), (CumMin(0), i32, (4100, 2)),
    (CumSum(1), f32, (0, 5)), (CumMax(0), f32, (0, 5)),
]


@pytest.mark.parametrize(("op", "dtype", "shape"), CASES, ids=str)
def test_running(op: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    rng = fresh_rng()
    x = (rng.integers(-9, 9, shape) if dtype.is_int else rng.normal(size=shape) * (0.2 if isinstance(op, CumProd) else 1)).astype(dtype.np)
    if isinstance(op, CumProd):
        x += np.asarray(1, dtype.np)
    emulated = Emulated(graph(op, (dtype, shape)))
    assert all(isinstance(x.kernel, BlockKernel) and x.kernel.threads >= 32 for x in emulated.program.launches)
    wants = op.ref(x if dtype.is_int else x.astype(np.float64))
    for got, want in zip(emulated(x), wants if isinstance(wants, tuple) else (wants,), strict=True):
        limit = {"f32": 1e-6, "f64": 1e-13, "bf16": 1e-2, "f16": 1e-3}.get(dtype.name, 0)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=limit, atol=limit)


@pytest.mark.parametrize(("shape", "axis"), [((2, 40), 1), ((40, 33), 0)], ids=str)
def test_nan_and_infinities(shape: tuple[int, int], axis: int) -> None:
    rng = fresh_rng()
    x = rng.normal(size=shape).astype(np.float32)
    x.reshape(-1)[rng.integers(0, x.size, 6)] = [np.nan, np.inf, -np.inf, np.inf, -np.inf, -np.inf]
    for op, fn in ((CumMax(axis), torch.cummax), (LogCumSumExp(axis), torch.logcumsumexp), (CumSum(axis), torch.cumsum)):
        got = Emulated(graph(op, (f32, shape)))(x)
        want = fn(torch.from_numpy(x), axis)
        for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_allclose(g, w.numpy(), rtol=1e-5, atol=1e-5)


def test_a_flipped_operand() -> None:
    from tilewright.ops import functions as F

    x = fresh_rng().normal(size=(3, 50)).astype(np.float32)
    got = Emulated(graph(lambda v: CumSum(1)(F.flip(v, (1,))), (f32, x.shape)))(x)[0]
    np.testing.assert_allclose(got, np.cumsum(x[:, ::-1].astype(np.float64), 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((3, 264), 1), ((70, 33), 0), ((2, 4100), 1)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences(shape: tuple[int, int], axis: int, reverse: bool) -> None:
    rng = fresh_rng()
    a, x = rng.uniform(-1.1, 1.1, shape).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    op = LinearRecurrence(axis, reverse)
    emulated = Emulated(graph(lambda u, v: op(u, v), (f32, shape), (f32, shape)))
    assert len(emulated.program.launches) == (3 if shape[axis] > 4096 else 1)
    np.testing.assert_allclose(emulated(a, x)[0], op.ref(a.astype(np.float64), x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_gradients_of_products_are_scans() -> None:
    """However long the axis: a recurrence and a running product, right where elements are 0."""
    rng = fresh_rng()
    x, g = rng.normal(size=(3, 40)), rng.normal(size=(3, 40))
    x[1, 5], x[2, 7], x[2, 30] = 0, 0, 0
    body = graph(CumProd(1), (f64, x.shape))
    emulated = Emulated(graph(lambda u, v: pull_back(body, u.node.graph, (u,), (v,), (True,)), (f64, x.shape), (f64, x.shape)))
    assert len(emulated.program.launches) <= 6
    leaf = torch.from_numpy(x).requires_grad_()
    (want,) = torch.autograd.grad(leaf.cumprod(1), leaf, torch.from_numpy(g))
    np.testing.assert_allclose(emulated(x, g)[0], want.numpy(), rtol=1e-9, atol=1e-12)
