"""Attention on `mma.sync`, emulated, against the reference: masks, biases, soft caps, windows, key heads, head sizes, odd lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.launching import Emulated, graph
from tilewright.core.dtypes import bf16, bool_, f16
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.ops.attention.forward import Attention

# batch, heads, key heads, queries, keys, head size, and the op's options
CASES: list[tuple[Any, ...]] = [
    (2, 2, 2, 65, 70, 32, {"has_bias": True}), (1, 2, 1, 20, 130, 16, {"has_mask": True}),
    (1, 1, 1, 70, 70, 40, {"causal": True, "has_mask": True, "has_bias": True}), (1, 2, 2, 5, 33, 128, {"softcap": 2.0, "has_bias": True}),
    (1, 1, 1, 90, 90, 8, {"causal": True, "window": 20, "softcap": 1.5}),
    (1, 1, 1, 10, 4, 64, {"causal": True, "offset": -6, "has_mask": True}),
    (1, 1, 1, 3, 200, 24, {"causal": True, "offset": 197, "window": 9}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_reference(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    b, h, hk, sq, sk, d, options = case
    dtype, arch = (bf16, "sm_80") if sq % 2 else (f16, "sm_120")
    op = Attention(scale=d**-0.5, **options)
    arrays = [rng.standard_normal(s).astype(np.float32).astype(dtype.np) for s in ((b, h, sq, d), (b, hk, sk, d), (b, hk, sk, d))]
    types: list[Any] = [(dtype, a.shape) for a in arrays]
    if op.has_mask:
        arrays.append(rng.random((b, 1, sq, sk)) < 0.7)
        types.append((bool_, (b, 1, sq, sk)))
    if op.has_bias:
        shape = (b, 1, 1, sk) if sq % 2 else (h, sq, sk)
        arrays.append(rng.standard_normal(shape).astype(np.float32).astype(dtype.np))
        types.append((dtype, shape))
    emulated = Emulated(graph(lambda *x: op(*x), *types), arch)
    assert isinstance(emulated.program.launches[0].kernel, TiledKernel)
    (got,) = emulated(*arrays)
    want = op.ref(*(a.astype(np.float64) if a.dtype != bool else a for a in arrays))
    assert np.abs(got.astype(np.float64) - want).max() <= (2e-2 if dtype is bf16 else 3e-3)
