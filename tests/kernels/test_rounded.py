"""Norms and products that round their result to quantized values themselves: the bits of doing it afterwards, on every feature level."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.kernels.harness import run_graph
from tests.kernels.test_qdot import packed
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.kernels.quant import qdot
from tilewright.ops import LayerNorm, QDot, QuantizeRows, RmsNorm, quant
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.passes.base import Log
from tilewright.passes.fuse import Fuse

LEVELS = ["native", "avx512", "avx2", "baseline"]


def both(graph: Graph, inputs: list[Any], level: str) -> tuple[list[Any], list[Any], Graph]:
    """Results of the fused graph and of the plain one."""
    fused = Fuse().run(graph.clone()[0], Log())
    return run_graph(fused, inputs, level)[0], run_graph(graph, inputs, level)[0], fused


def names(graph: Graph) -> list[str]:
    return [str(n.op) for n in graph.nodes if not n.op.traits.source and not n.op.traits.view]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("also", [False, True])
def test_a_norm(kind: str, also: bool, level: str) -> None:
    rng, k = fresh_rng(), 96 if also else 160

    def body(g: Graph, v: tuple[Value, ...]) -> tuple[Value, ...]:
        x = F.add(v[0], v[1])
        scale = g.constant(rng.standard_normal(k).astype("f4"), "w")
        norm: Value = RmsNorm(eps=1e-5, affine="weight")(x, scale) if kind == "rms" else LayerNorm(eps=1e-5, affine="weight")(x, scale)
        codes = QuantizeRows()(norm)
        return (*codes, x, norm) if also else codes

    rows = sym("S", 1, 50)
    graph = single(body, TensorType(f32, (rows, k)), TensorType(f32, (rows, k)))
    x = [rng.standard_normal((5, k)).astype("f4") for _ in range(2)]
    got, want, fused = both(graph, x, level)
    assert len(names(fused)) == 1, "one region"
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("level", ["native", *(pytest.param(x, marks=pytest.mark.slow) for x in LEVELS[1:])])
@pytest.mark.parametrize("also, n, programs", [(False, 96, 8), (True, 96, 0), (False, 128, 0)])
def test_a_product(also: bool, n: int, programs: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`programs` of a thread from which on a matrix is large: with none, four panels are multiplied at once."""
    monkeypatch.setattr(qdot, "PROGRAMS", programs)
    rng, k = fresh_rng(), 64
    w = packed("Q4_1", n, k, rng)

    def body(g: Graph, v: tuple[Value, ...]) -> tuple[Value, ...]:
        y = F.mul(F.silu(QDot(format="Q4_1", n=n, k=k)(*QuantizeRows()(v[0]), g.constant(w, "w"))), v[1])
        codes = QuantizeRows()(y)
        return (*codes, y) if also else codes

    rows = sym("S", 1, 50)
    graph = single(body, TensorType(f32, (rows, k)), TensorType(f32, (rows, n)))
    x = [rng.standard_normal((9, k)).astype("f4"), rng.standard_normal((9, n)).astype("f4")]
    x[1][3, 32:64] = 0  # a block of zeros
    got, want, fused = both(graph, x, level)
    assert len(names(fused)) == 2, "the rounding of the input, and one region"
    for g, v in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, v)
    exact = quant.by_name("Q4_1").dequantize(w)
    assert exact.shape == (n, k)


def test_a_product_of_odd_width_is_rounded_afterwards() -> None:
    rng = fresh_rng()
    w = packed("Q8_0", 40, 32, rng)
    graph = single(lambda g, v: QDot(format="Q8_0", n=40, k=32)(*QuantizeRows()(v[0]), g.constant(w, "w")), TensorType(f32, (3, 32)))
    assert len(names(Fuse().run(graph, Log()))) == 2
