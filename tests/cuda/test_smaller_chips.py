"""Chips of one architecture differ: blocks of capability 8.6 and 8.9 have 99 KB of shared memory where those of 8.0 have 163."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import graph
from tilewright.core.dtypes import bf16, f32, f64
from tilewright.ops.attention.forward import Attention

CASES = {
    "f64 product": lambda: graph(lambda x, y: o.Matmul()(x, y), *((f64, (2048, 2048)),) * 2),
    "f32 product": lambda: graph(lambda x, y: o.Matmul()(x, y), *((f32, (2048, 2048)),) * 2),
    "bf16 product": lambda: graph(lambda x, y: o.Matmul(transpose_b=True)(x, y), *((bf16, (4096, 4096)),) * 2),
    "attention": lambda: graph(lambda q, k, v: Attention(scale=0.1)(q, k, v), *((bf16, (4, 8, 512, 128)),) * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_ask_for_the_shared_memory_that_there_is(name: str) -> None:
    def most(capability: tuple[int, int]) -> int:
        with fake_gpu(capability, run=False) as fake:
            session: Any = tw.compile(CASES[name](), target="cuda")
            session(*(np.zeros(tuple(map(int, v.type.shape)), v.type.dtype.np) for v in session.model.graph.inputs))
            assert session.model.target.l1d == fake.shared
            return max(int(k.dynamic_shared) for k in session.executable.code.values())

    assert most((8, 6)) <= 99 << 10
    if name == "f64 product":
        assert most((8, 0)) > 99 << 10  # else this test could not fail
