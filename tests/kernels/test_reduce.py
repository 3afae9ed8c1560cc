"""Reductions over columns, over long rows in chunks, over several axes, and indices of extremes; with producers and consumers fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright import ops as O
from tilewright.core.dims import sym
from tilewright.core.dtypes import dtype
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.ops.families import f32
from tilewright.passes.pipeline import run_pipeline

from .harness import run_graph

CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((300, 7), (0,)), ((300, 130), (0,)), ((5, 33, 70), (1,)), ((3, 40, 5, 66), (0, 2)), ((40000,), (0,)), ((2, 40000), (1,)),
    ((20000, 3), (0,)), ((70, 300, 9), (0, 1)), ((3, 70, 300), (0, 2)), ((1, 5), (0,)), ((20000, 2, 3), (0, 2)),
    ((17000, 2, 3), (0,)), ((3, 17000, 1, 5), (1,)), ((2, 130, 130, 3), (1, 2)), ((17000, 3, 1, 2), (0,)),
    ((4100, 70), (0,)), ((41, 130, 70), (0, 1)), ((1100, 5, 66), (0,)),  # spread
]  # fmt: skip
KINDS: dict[str, type[O.Op]] = {"sum": O.Sum, "mean": O.Mean, "max": O.Max, "min": O.Min, "prod": O.Prod}


def draw(kind: str, shape: tuple[int, ...]) -> Any:
    rng = fresh_rng()
    if kind == "prod":
        return rng.uniform(0.99, 1.01, shape).astype("f4")
    return rng.standard_normal(shape).astype("f4")


@pytest.mark.parametrize("shape,axes", [
    ((0, 5), (0,)), ((0, 0), (0,)), ((5, 0), (0,)), ((0, 3, 70), (0,)), ((3, 0, 4), (0, 1)), ((2, 0), (1,))])  # fmt: skip
def test_of_nothing(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.zeros(shape, "f4")
    for op, want in ((O.Sum, x.sum(axes)), (O.Prod, x.prod(axes))):
        g = Graph("nothing")
        g.outputs = [op(axes=axes)(g.input(TensorType(dtype("f32"), shape), "x"))]
        np.testing.assert_array_equal(run_graph(g, [x])[0][0], want)


@pytest.mark.parametrize("shape,axes", CASES)
def test_reductions(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for kind, op in KINDS.items():
        x = draw(kind, shape)
        g = Graph(kind)
        v = g.input(TensorType(dtype("f32"), shape), "x")
        g.outputs = [op(axes=axes)(v), op(axes=axes, keepdims=True)(v)]  # type: ignore[call-arg]
        exact = x.astype(np.float64)  # NumPy adds along an outer axis in one chain: in f32 its error is larger than ours
        wanted = [getattr(np, kind)(exact, axis=axes, keepdims=keepdims) for keepdims in (False, True)]
        many = np.sqrt(x.size)  # roundings add up at random: the limits are eight and sixty times what was met; of a product it is a share
        for got, want in zip(run_graph(g, [x], parts=2)[0], wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-6 * (many if kind == "prod" else 1), atol=0 if kind == "prod" else 1e-5 * many)


@pytest.mark.parametrize("shape,axes", [((300, 70), (0,)), ((4100, 70), (0,)), ((20000, 3), (0,)), ((2, 40000), (1,)), ((40, 9), (1,))])
def test_neighbours_are_fused(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """A producer that is itself an output, and a consumer with an operand of the result's shape."""
    g = Graph("fused")
    x, y = g.input(f32(*shape), "x"), g.input(f32(*(1 if a in axes else d for a, d in enumerate(shape))), "y")
    s = O.add(x, y)
    total = O.sum_(O.square(s), axes, keepdims=True)
    g.outputs = [O.mul(O.sqrt(total), y), s]
    arrays = [draw("", shape), draw("", tuple(int(d) for d in y.shape))]
    made = run_pipeline(g)
    assert sum(n.op.name == "fused" for n in made.nodes) == 1
    for got, want in zip(run_graph(made, arrays, parts=2)[0], run(g, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("op", [O.sum_, O.mean])
@pytest.mark.parametrize("n,columns", [(3, 3), (16384, 3), (16385, 3), (50000, 3), (4100, 70)])
def test_a_column_is_summed_like_a_row(n: int, columns: int, op: Any) -> None:
    """Bit for bit, alone or among others, for a static and a symbolic length."""
    x = fresh_rng().standard_normal((n, columns)).astype("f4")

    def total(array: Any, axis: int, *, symbolic: bool = False) -> Any:
        g = Graph("sum")
        shape = tuple(sym("L", 1, 1 << 20) if symbolic and a == axis else d for a, d in enumerate(array.shape))
        g.outputs = [op(g.input(f32(*shape), "x"), (axis,))]
        return run_graph(g, [array])[0][0]

    want = np.array([total(np.ascontiguousarray(x[:, i]), 0) for i in range(3)]).view("u4")
    np.testing.assert_array_equal(total(x, 0).view("u4")[:3], want)
    np.testing.assert_array_equal(total(np.ascontiguousarray(x.T), 1).view("u4")[:3], want)
    if n >= 64:
        np.testing.assert_array_equal(total(x, 0, symbolic=True).view("u4")[:3], want)


def test_the_error_of_a_long_sum_stays_small() -> None:
    x = np.full(1 << 22, 0.1, "f4")
    g = Graph("sum")
    g.outputs = [O.sum_(g.input(f32(1 << 22), "x"), (0,))]
    exact = float(np.float64(np.float32(0.1)) * x.size)
    assert abs(float(run_graph(g, [x])[0][0]) - exact) < 5e-6 * exact  # a single chain would be off by 1e-2


@pytest.mark.parametrize("op", [O.ArgMax, O.ArgMin])
@pytest.mark.parametrize("shape,axis", [((3, 1000), 1), ((200, 70), 0), ((4, 50, 7), 1), ((70000,), 0), ((5, 3), 1)])
def test_extremes(op: Any, shape: tuple[int, ...], axis: int) -> None:
    rng = fresh_rng()
    for special in (False, True):
        x = rng.integers(-40, 40, shape).astype("f4")  # ties
        if special:
            x.flat[rng.integers(0, x.size, 4)] = np.nan
        g = Graph("arg")
        g.outputs = [op(axis=axis)(O.mul(g.input(f32(*shape), "x"), 2.0))]
        (got,), _ = run_graph(run_pipeline(g), [x])
        np.testing.assert_array_equal(got, (np.argmax if op is O.ArgMax else np.argmin)(x, axis))


@pytest.mark.parametrize("shape,axes", [((40, 2, 4), (1,)), ((3, 16, 5), (1,)), ((5000, 3), (0,)), ((2, 333, 7), (1,)), ((129, 32), (0,)),
                                        ((40000, 5), (0,)), ((64, 24), (0,)), ((130, 3, 70), (1,))])
def test_few_rows_and_few_columns_have_the_bits_of_rows(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Elements across memory are added in the order of those side by side."""
    x = draw("sum", shape)
    order = (*(i for i in range(len(shape)) if i not in axes), *axes)
    beside = np.ascontiguousarray(x.transpose(order))
    for op in (O.Sum, O.Mean):
        across, along = Graph("across"), Graph("along")
        across.outputs = [op(axes=axes)(across.input(f32(*shape), "x"))]
        along.outputs = [op(axes=tuple(range(len(shape) - len(axes), len(shape))))(along.input(f32(*beside.shape), "x"))]
        (got,), _ = run_graph(across, [x])
        (want,), _ = run_graph(along, [beside])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(5, 3, 40), (2, 16, 17), (2, 17, 16), (1, 200, 70), (4, 64, 5)])
def test_softmax_across_memory_has_the_bits_of_rows(shape: tuple[int, ...]) -> None:
    x = draw("sum", shape)
    across, along = Graph("across"), Graph("along")
    across.outputs = [O.Softmax(axis=1)(across.input(f32(*shape), "x"))]
    along.outputs = [O.Softmax(axis=2)(along.input(f32(shape[0], shape[2], shape[1]), "x"))]
    (got,), _ = run_graph(across, [x])
    (want,), _ = run_graph(along, [np.ascontiguousarray(x.transpose(0, 2, 1))])
    np.testing.assert_array_equal(got, want.transpose(0, 2, 1))
