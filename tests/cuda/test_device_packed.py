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
from tilewright.build.packing import pack_constants
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.launch import Buffer, ConstBuffer, Packed
from tilewright.kernels.quant.cuda.fragments import ROWS
from tilewright.ops.packed.quant_dot import FORMATS, GPU_FORMATS
from tilewright.ops.structure import ConstantData
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda import launch as cuda_launch
from tilewright.runtime.cuda.constants import device_constants, host_constants

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")


@pytest.mark.parametrize("name", GPU_FORMATS)
def test_products_with_packed_matrices(name: str, rng: np.random.Generator) -> None:
    """Activations of one row are rounded to eight bits and nothing else is; of more, and where the number is not known, all is bf16."""
    n, k = 520, 1536
    raw, numbers = matrix(rng, name, n, k)

    def build(m: Any) -> Any:
        g = Graph("q")
        x = g.input(TensorType(f32, (m, k)), "x")
        g.outputs = [o.QMatmul(format=name, n=n, k=k)(x, g.constant(raw, "w"))]
        return tw.compile(g, target="cuda")

    unknown = build(sym("S", 1, 1024))
    for m in (1, 2, 7, 16, 17, 40, 100, 512, 700):
        x = rng.standard_normal((m, k)).astype(np.float32)
        given = torch.from_numpy(x).cuda()
        one = m == 1
        want = rounded(x) @ numbers.T if one else given.bfloat16().double().cpu().numpy() @ numbers.T
        poison()
        y = build(m)(given).cpu().numpy()
        assert np.linalg.norm(y - want) <= (2e-5 if one else TOLERANCE) * np.linalg.norm(want), m
        poison()
        y = unknown(given).cpu().numpy()
        want = given.bfloat16().double().cpu().numpy() @ numbers.T
        assert np.linalg.norm(y - want) <= TOLERANCE * np.linalg.norm(want), m


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_matrices_are_laid_out_on_the_gpu_as_on_the_host(name: str, rng: np.random.Generator) -> None:
    data = ConstantData(matrix(rng, name, 1003, 2048)[0], "w")
    c = ConstBuffer(data, Buffer("w", "const", 0, 0), Packed("fragments", ROWS, False, name))
    (want,) = pack_constants([c])
    poison()
    (made,) = device_constants([c], host_constants([c], 1))
    got = np.empty(made.nbytes, np.uint8)
    assert cuda_launch.library().cuMemcpyDtoHAsync_v2(got.ctypes.data, made.address, made.nbytes, 0) == 0
    cuda_launch.check(cuda_launch.library().cuStreamSynchronize(0), "cuStreamSynchronize", name)
    np.testing.assert_array_equal(got, want.reshape(-1).view(np.uint8))
