"""The demo's block is one model in two languages: its graph, interpreted, equals its NumPy form."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.cli.sample import Sample
from tilewright.core.dims import sym
from tilewright.ir.interp import run


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 7), (3, 16)])
def test_graph_equals_numpy(batch: int, length: int) -> None:
    sample = Sample(width=24, heads=3, seed=batch)
    x = sample.inputs(batch, length)
    exact = sample.numpy(x.astype(np.float64))
    [got] = run(sample.graph(batch, length), [x])
    np.testing.assert_allclose(got, exact, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(sample.numpy(x), exact, rtol=2e-5, atol=2e-5)


def test_lengths_may_be_symbolic() -> None:
    sample = Sample(width=8, heads=2)
    graph = sample.graph(1, sym("S", 1, 64))
    for length in (1, 5):
        x = sample.inputs(1, length)
        [got] = run(graph, [x])
        np.testing.assert_allclose(got, sample.numpy(x.astype(np.float64)), rtol=2e-5, atol=2e-5)
