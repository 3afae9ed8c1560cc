"""Gaussian splats on the CUDA target, emulated: tile lists, compositing, its backward pass and the projection against their references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.launching import Emulated
from tests.kernels.test_registry import build, values
from tilewright.ir.interp import run
from tilewright.ops.base import REGISTRY

NAMES = ("row_map", "splat_bin", "splat_rasterize", "splat_rasterize_backward")


@pytest.mark.parametrize(("name", "index"), [(n, i) for n in NAMES for i in range(2)])
def test_emulated_kernels_are_the_reference(name: str, index: int) -> None:
    op = REGISTRY[name]
    graph = build(op, op.samples[index])
    arrays = [*values(op.samples[index], {"N": 5, "M": 3}, np.random.default_rng(index)), np.zeros(5, "i1"), np.zeros(3, "i1")]
    emulated = Emulated(graph)
    got, want = emulated(*arrays), run(graph, arrays)
    assert not emulated.errors.any()
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(w).max(initial=0))))
