"""Kernels of Gaussian splats on every instruction-set level and in pieces: wide rows, lists of many chunks, indices that are nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.ops.base import REGISTRY, single
from tilewright.ops.functions import add, mul
from tilewright.ops.row_map import RowMap
from tilewright.ops.splats import tiles_of

from .harness import run_graph
from .test_registry import build, values

LEVELS = ("avx512", "avx2", "baseline")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["row_map", "splat_bin", "splat_rasterize", "splat_rasterize_backward"])
def test_every_level_is_the_reference(name: str, level: str) -> None:
    op = REGISTRY[name]
    graph = build(op, op.samples[1])
    inputs = [*values(op.samples[1], {"N": 5, "M": 3}, fresh_rng()), np.zeros(5, "i1"), np.zeros(3, "i1")]
    for parts in (1, 3):
        got, error = run_graph(graph, inputs, level, parts)
        assert not error.any()
        for g, w in zip(got, run(graph, inputs), strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(w).max(initial=0))))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 16, 37, 1030])
def test_wide_rows_are_transposed_in_squares(rows: int, level: str) -> None:
    width = 19

    def body(_: Graph, v: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(add(mul(x, 2.0), v[-1]) for x in v[:-1])

    op = RowMap(body=single(body, *[TensorType(f32, (16,))] * (width + 1)), groups=(width - 2, 2), summed=(False, True))
    graph = Graph("rows")
    ends = [graph.input(TensorType(f32, s)) for s in ((2, rows, width), (1, rows, 1))]
    graph.outputs = list(op(*ends))
    rng = fresh_rng()
    x, y = (rng.normal(size=v.shape).astype(np.float32) for v in ends)
    (got, sums), _ = run_graph(graph, [x, y], level)
    np.testing.assert_allclose(got, (2 * x + y)[..., :-2], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sums.sum(1), (2 * x + y)[..., -2:].astype(float).sum(1), rtol=1e-4, atol=1e-3)


def crowded(rng: np.random.Generator, count: int, width: int, height: int) -> list[Any]:
    """Every splat in every tile: lists longer than a chunk."""
    across, down = tiles_of(width, height)
    tiles = across * down
    means = rng.uniform(0, max(width, height), (1, count, 2))
    conics = np.stack([rng.uniform(0.02, 0.2, (1, count)), rng.uniform(-0.01, 0.01, (1, count)), rng.uniform(0.02, 0.2, (1, count))], -1)
    floats = [means, conics, rng.uniform(0.02, 0.7, (1, count)), rng.uniform(0, 1, (1, count, 3)), rng.uniform(1, 2, (1, count))]
    ids, slots = np.tile(np.arange(count), tiles), np.arange(count)[None, :] * tiles + np.arange(tiles)[:, None]
    starts, spans = np.arange(tiles + 1) * count, np.stack([np.arange(count) * tiles, np.full(count, tiles)], -1)
    return [*(a.astype(np.float32) for a in floats), *(a.astype(np.int32).reshape(1, *shape) for a, shape in
            ((ids, (-1,)), (slots, (-1,)), (starts, (-1,)), (spans, (count, 2))))]


def graph_of(name: str, arrays: list[Any], **attrs: Any) -> Graph:
    from tilewright.core.dtypes import dtype

    graph = Graph(name)
    graph.outputs = list(REGISTRY[name](**attrs)(*(graph.input(TensorType(dtype(a.dtype), a.shape)) for a in arrays)))
    return graph


@pytest.mark.parametrize("level", LEVELS)
def test_lists_of_many_chunks(level: str) -> None:
    """150 splats a tile, and pixels that end on the way."""
    rng = fresh_rng()
    scene, size = crowded(rng, 150, 20, 9), {"width": 20, "height": 9}
    got, _ = run_graph(graph_of("splat_rasterize", scene, **size), scene, level)
    want = REGISTRY["splat_rasterize"](**size).ref(*scene)
    sure = got[3] == want[3]  # the last splat may differ where a threshold is met to the last bit
    assert sure.mean() > 0.95
    for g, w in zip(got[:3], want[:3], strict=True):
        np.testing.assert_allclose(g[sure], w[sure], atol=2e-5)
    cotangents = [rng.normal(size=g.shape).astype(np.float32) for g in got[:3]]
    given = [*scene, got[2], got[3], *cotangents]
    back, _ = run_graph(graph_of("splat_rasterize_backward", given, **size), given, level)
    for g, w in zip(back, REGISTRY["splat_rasterize_backward"](**size).ref(*given), strict=True):
        assert np.linalg.norm(g - w) <= 2e-3 * np.linalg.norm(w)  # alphas at the threshold may count on one side only


def test_nonsense_in_the_lists_stays_inside_the_buffers() -> None:
    rng = fresh_rng()
    scene, size = crowded(rng, 5, 20, 9), {"width": 20, "height": 9}
    for i in range(5, 9):
        scene[i] = rng.integers(-(2**31), 2**31 - 1, scene[i].shape).astype(np.int32)
    got, _ = run_graph(graph_of("splat_rasterize", scene, **size), scene)
    given = [*scene, got[2], got[3], *(np.ones_like(g) for g in got[:3])]
    back, _ = run_graph(graph_of("splat_rasterize_backward", given, **size), given)
    assert [g.shape for g in back] == [a.shape for a in scene[:5]]
    rects = rng.integers(-(2**31), 2**31 - 1, (1, 4, 4)).astype(np.int32)
    order = rng.integers(-(2**31), 2**31 - 1, (1, 4)).astype(np.int32)
    lists, _ = run_graph(graph_of("splat_bin", [rects, order], capacity=3, **size), [rects, order])
    assert (np.diff(lists[2][0]) >= 0).all()
