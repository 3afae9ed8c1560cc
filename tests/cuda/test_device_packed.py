"""On a GPU: products with packed matrices in every format, every number of rows, poisoned memory, against float64. Skipped where there is
none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.test_device import poison
from tests.cuda.test_qdot import matrix, rounded
from tests.cuda.test_qgemm import TOLERANCE
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.quant_dot import GPU_FORMATS
from tilewright.runtime import cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")


@pytest.mark.parametrize("name", GPU_FORMATS)
def test_products_with_packed_matrices(name: str, rng: np.random.Generator) -> None:
    """Up to 16 rows activations are rounded to eight bits and nothing else is; beyond, and where the number is not known, all is bf16."""
    n, k = 520, 1536
    raw, numbers = matrix(rng, name, n, k)

    def build(m: Any) -> Any:
        g = Graph("q")
        x = g.input(TensorType(f32, (m, k)), "x")
        g.outputs = [o.QMatmul(format=name, n=n, k=k)(x, g.constant(raw, "w"))]
        return tw.compile(g, target="cuda")

    unknown = build(sym("S", 1, 1024))
    for m in (1, 7, 16, 17, 40, 100, 512, 700):
        x = rng.standard_normal((m, k)).astype(np.float32)
        given = torch.from_numpy(x).cuda()
        few = m <= 16
        want = rounded(x) @ numbers.T if few else given.bfloat16().double().cpu().numpy() @ numbers.T
        poison()
        y = build(m)(given).cpu().numpy()
        assert np.linalg.norm(y - want) <= (2e-5 if few else TOLERANCE) * np.linalg.norm(want), m
        poison()
        y = unknown(given).cpu().numpy()
        want = given.bfloat16().double().cpu().numpy() @ numbers.T
        assert np.linalg.norm(y - want) <= TOLERANCE * np.linalg.norm(want), m
