"""Products of one or two columns, and of few rows with a matrix that lies along K, at every edge."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.kernels.interpreted import interpret_graph
from tilewright import ops as o
from tilewright.core.dtypes import bf16, f32, f64
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.ops import functions as F
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cpu.host import host_target


def product(x: Any, w: Any, *, constant: bool, alpha: float = 1.0) -> Graph:
    """tanh(alpha x @ w + row numbers)."""
    graph = Graph("product")
    dtype = bf16 if x.dtype == ml_dtypes.bfloat16 else f32
    left = graph.input(TensorType(dtype, x.shape), "x")
    right = graph.constant(w, "w") if constant else graph.input(TensorType(dtype, w.shape), "w")
    graph.outputs = [F.tanh(F.add(o.Matmul(alpha=alpha)(left, right), graph.constant(np.arange(w.shape[-1]).astype(w.dtype), "bias")))]
    return run_pipeline(graph, host_target())


@pytest.mark.parametrize(("shape", "n", "constant", "dtype"), [
    ((64, 16), 1, True, np.float32), ((131, 77), 1, True, np.float32), ((70, 200), 2, True, np.float32),
    ((2, 65, 129), 2, False, np.float32), ((3, 64, 64), 1, False, np.float32), ((100, 90), 1, True, ml_dtypes.bfloat16),
])  # fmt: skip
def test_few_columns(shape: tuple[int, ...], n: int, constant: bool, dtype: Any) -> None:
    rng = fresh_rng()
    x, w = rng.standard_normal(shape).astype(dtype), rng.standard_normal((*(() if constant else shape[:-2]), shape[-1], n)).astype(dtype)
    graph, arrays = product(x, w, constant=constant, alpha=0.25), [x] if constant else [x, w]
    assert any(launch.kernel.name.startswith("sum") for launch in select(graph, host_target()).launches) or dtype is ml_dtypes.bfloat16
    (got,), _ = interpret_graph(graph, arrays)
    want = np.tanh(0.25 * x.astype(np.float64) @ w.astype(np.float64) + np.arange(n))
    assert np.abs(got.astype(np.float64) - want).max() < (2e-6 if dtype is np.float32 else 2e-2)


@pytest.mark.parametrize(("shape", "n", "dtype", "kernel"), [
    ((2, 5), 33, np.float32, "matmul"), ((3, 1100), 16, np.float32, "matmul"), ((2, 4, 70), 17, np.float32, "matmul"),
    ((5, 64), 1, np.float32, "matmul"), ((7, 2), 50, np.float64, "matmul"),
    ((1, 1, 70), 40, np.float32, "sum"), ((1, 130), 9, np.float32, "sum"),
])  # fmt: skip
def test_few_rows(shape: tuple[int, ...], n: int, dtype: Any, kernel: str) -> None:
    rng = fresh_rng()
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, (n, shape[-1]), n))
    graph = Graph("product")
    kind = f64 if dtype is np.float64 else f32
    left, right, add = (graph.input(TensorType(kind, a.shape), name) for a, name in ((x, "x"), (w, "w"), (bias, "b")))
    graph.outputs = [F.tanh(F.add(o.Matmul(alpha=0.25, transpose_b=True)(left, right), add))]
    graph = run_pipeline(graph, host_target())
    (launch,) = select(graph, host_target()).launches
    assert launch.kernel.name.startswith(kernel) and (kernel == "sum" or "dot products" in launch.note)
    (got,), _ = interpret_graph(graph, [x, w, bias])
    want = np.tanh(0.25 * x.astype(np.float64) @ w.astype(np.float64).T + bias.astype(np.float64))
    assert np.abs(got.astype(np.float64) - want).max() < (4e-6 if dtype is np.float32 else 1e-12)
