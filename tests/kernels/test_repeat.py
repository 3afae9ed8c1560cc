"""Gathers whose known indices name every element several times in a row (nearest neighbours) shuffle registers; PyTorch is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.dtypes import bf16, f32, i64, u8
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import functions as F

from .interpreted import interpret_graph


def taken(dtype: Any, shape: tuple[int, ...], ids: Any) -> Graph:
    """1 + the elements of the last axis at `ids`."""
    graph = Graph("taken")
    x = graph.input(TensorType(dtype, shape), "x")
    picked = F.gather(x, graph.constant(np.asarray(ids), "ids"), axis=len(shape) - 1)
    graph.outputs = [F.add(picked, graph.constant(np.ones((), dtype.np), "one"))]
    return graph


def kernels(session: Any) -> set[str]:
    return {launch.kernel.name.rpartition("_")[0] for launch in session.executable.launches}


@pytest.mark.parametrize("dtype", [f32, bf16, i64, u8], ids=str)
@pytest.mark.parametrize(("size", "times"), [(17, 2), (300, 3), (16, 16), (5, 7)])
def test_every_element_several_times(dtype: Any, size: int, times: int) -> None:
    x = np.arange(3 * size).reshape(3, size).astype(dtype.np)
    graph = taken(dtype, (3, size), np.arange(size * times) // times)
    session = tw.compile(graph)
    assert kernels(session) == {"repeat"}
    want = torch.from_numpy(x.astype(np.float32)).repeat_interleave(times, 1).numpy().astype(dtype.np) + np.ones((), dtype.np)
    np.testing.assert_array_equal(np.asarray(session(x)).astype(np.float64), want.astype(np.float64))
    (got,), _ = interpret_graph(graph, [x])
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("ids", [[0, 0, 1, 2, 2, 2], [0, 1, 2], [2, 2, 1, 1, 0, 0], [0, 0, 1, 1, 2]])
def test_other_indices_are_gathered(ids: list[int]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    session = tw.compile(taken(f32, (2, 3), ids))
    assert "repeat" not in kernels(session)
    np.testing.assert_array_equal(np.asarray(session(x)), x[:, ids] + 1)


def test_regions_alike_but_for_known_indices_have_launches_of_their_own() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    picks = [np.arange(8) // 2, np.array([1, 1, 2, 2, 3, 3, 3, 3]), np.arange(8) // 2]
    graph = Graph("two")
    given = graph.input(TensorType(f32, x.shape), "x")
    graph.outputs = [F.gather(given, graph.constant(ids), axis=1) for ids in picks]
    for got, ids in zip(tw.compile(graph)(x), picks, strict=True):
        assert np.array_equal(got, x[:, ids])
