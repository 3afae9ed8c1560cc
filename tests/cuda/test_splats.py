"""Gaussian splats on the CUDA target, emulated: tile lists, compositing, its backward pass and the projection against their references."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.launching import Emulated
from tests.kernels.test_registry import build, values
from tilewright.core.dtypes import dtype
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.kernels.splat.bins import CAPACITY
from tilewright.ops.base import REGISTRY
from tilewright.ops.splats import SplatBin, SplatRasterize, SplatRasterizeBackward

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


def scene(rng: np.random.Generator, cameras: int, count: int, width: int, height: int) -> list[np.ndarray]:
    """Splats of every kind, behind one another: opaque ones that end pixels, transparent ones, some that are drawn nowhere."""
    means = rng.uniform(-4, [width + 4, height + 4], (cameras, count, 2))
    spread, lean = rng.uniform(1, 6, (2, cameras, count)), rng.uniform(-0.4, 0.4, (cameras, count))
    conics = np.stack([1 / spread[0] ** 2, lean / (spread[0] * spread[1]), 1 / spread[1] ** 2], -1)
    opacities = rng.choice([0.0, 0.2, 0.7, 0.999], (cameras, count))
    colors, depths = rng.uniform(0, 1, (cameras, count, 3)), rng.uniform(1, 9, (cameras, count))
    reach = 3 * spread.max(0)[..., None]
    low, high = np.floor((means - reach) / 16), np.ceil((means + reach) / 16)
    rects = np.stack([low[..., 0], high[..., 0], low[..., 1], high[..., 1]], -1).astype(np.int32)
    order = np.argsort(depths, axis=1).astype(np.int32)
    lists = SplatBin(width=width, height=height, capacity=count * 9).ref(rects, order)
    return [*(a.astype(np.float32) for a in (means, conics, opacities, colors, depths)), *lists]


SIZES = [(5, 33, 3), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((37, 21, 24), (16, 16, 70)))]


@pytest.mark.parametrize(("width", "height", "count"), SIZES)
def test_scenes_of_odd_sizes(width: int, height: int, count: int) -> None:
    given = scene(np.random.default_rng(count), 2, count, width, height)  # fixed: an alpha at the very limit may be drawn or not
    graph = Graph("scene")
    inputs = [graph.input(TensorType(dtype(a.dtype), a.shape), f"x{i}") for i, a in enumerate(given)]
    drawn = SplatRasterize(width=width, height=height)
    color, depth, left, last = graph.add(drawn, *inputs).values
    back = graph.add(SplatRasterizeBackward(width=width, height=height), *inputs, left, last, color, depth, left).values
    graph.outputs = [color, depth, left, *back]
    emulated = Emulated(graph)
    got, want = emulated(*given), run(graph, given)
    assert not emulated.errors.any() and len([k for k in emulated.program.launches if "16x8 pixels" in k.note]) == 2
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(w).max(initial=0))))


LISTS = [(1, 0, 33, 17), (1, 40, 16, 16), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((2, 37, 70, 37), (1, 5, 320, 240)))]


@pytest.mark.parametrize(("cameras", "count", "width", "height"), LISTS)
def test_tile_lists_are_those_of_the_reference(cameras: int, count: int, width: int, height: int, rng: np.random.Generator) -> None:
    """No splats, all in one tile, several cameras, more tiles than one pass of the sort has digits; rectangles beyond the image."""
    rects = np.sort(rng.integers(-3, width // 16 + 2, (cameras, count, 2, 2)), -1).reshape(cameras, count, 4).astype(np.int32)
    order = np.argsort(rng.normal(size=(cameras, count)), 1).astype(np.int32)
    op = SplatBin(width=width, height=height, capacity=count * 300)
    graph = Graph("lists")
    inputs = [graph.input(TensorType(dtype("i32"), a.shape), f"x{i}") for i, a in enumerate((rects, order))]
    graph.outputs = list(graph.add(op, *inputs).values)
    emulated = Emulated(graph)
    ids, slots, starts, spans = emulated(rects, order)
    want = op.ref(rects, order)
    assert not emulated.errors.any()
    np.testing.assert_array_equal(starts, want[2])
    np.testing.assert_array_equal(spans, want[3])
    for c in range(cameras):
        for got, right in ((ids, want[0]), (slots, want[1])):
            np.testing.assert_array_equal(got[c, : starts[c, -1]], right[c, : starts[c, -1]])


def test_too_many_entries_are_reported() -> None:
    rects, order = np.tile(np.array([0, 2, 0, 2], np.int32), (1, 9, 1)), np.arange(9, dtype=np.int32)[None]
    graph = Graph("lists")
    inputs = [graph.input(TensorType(dtype("i32"), a.shape), f"x{i}") for i, a in enumerate((rects, order))]
    graph.outputs = list(graph.add(SplatBin(width=32, height=32, capacity=30), *inputs).values)
    emulated = Emulated(graph)
    emulated(rects, order)
    assert emulated.errors.tolist() == [CAPACITY, 0, 0, 36]
