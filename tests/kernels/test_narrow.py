"""Products of one or two columns as reductions, at every edge."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.kernels.interpreted import interpret_graph
from tilewright import ops as o
from tilewright.core.dtypes import bf16, f32
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
