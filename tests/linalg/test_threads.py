"""Factorisations whose parts several threads take: the same bits on any number of them, alone and in a batch, and the right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.e2e.test_bits import use_every_thread
from tests.fresh import fresh_rng
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core.dtypes import dtype as dtype_of
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.linalg import Lu


def sessions(op: Any, *shapes: tuple[int, ...], dtype: str) -> list[tw.Session]:
    graph = Graph("factors")
    found = op(*(graph.input(TensorType(dtype_of(np.dtype(dtype)), s), f"x{i}") for i, s in enumerate(shapes)))
    graph.outputs = list(found) if isinstance(found, tuple) else [found]
    return [compile_graph(graph, graph_signature(graph), target_spec("cpu"), threads=n) for n in (1, 2, 3)]


def same(op: Any, x: Any) -> list[Any]:
    """The results, after seeing that threads and company do not change them."""
    found = []
    for session in sessions(op, x.shape, dtype=str(x.dtype)):
        found.append(session(x))
        use_every_thread(session)
        found += [session(x) for _ in range(3)]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))
    single = sessions(op, x.shape[1:], dtype=str(x.dtype))[0]
    assert all(np.array_equal(a, b[-1]) for a, b in zip(single(x[-1]), found[0], strict=True))
    return list(found[0])


@pytest.mark.parametrize(("m", "n", "dtype"), [(200, 200, "f4"), (70, 150, "f8")])
def test_lu(m: int, n: int, dtype: str) -> None:
    """Several panels, the last not full; blocks of columns behind the last one, and none."""
    a = fresh_rng().standard_normal((2, m, n)).astype(dtype)
    packed, pivots, order = same(Lu(), a)
    k = min(m, n)
    low, up = np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[:, :k])
    moved = np.take_along_axis(a, order[..., None].astype(np.int64), axis=1)
    np.testing.assert_allclose(low.astype("f8") @ up.astype("f8"), moved, atol=200 * k * float(np.finfo(dtype).eps))
    assert np.abs(low).max() <= 1
    for i in range(2):
        rows = np.arange(m)
        for j, p in enumerate(pivots[i]):
            rows[[j, p]] = rows[[p, j]]
        assert np.array_equal(rows, order[i])
