"""Launches that move more than the last cache holds store past the caches; what they compute is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright import ops as O
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.ops.families import f32
from tilewright.target.cpu.emit import emit_kernel

from .harness import run_graph, target


def added(shape: tuple[int, int]) -> Graph:
    graph = Graph("added")
    x, column = graph.input(f32(*shape), "x"), graph.input(f32(shape[0], 1), "column")
    graph.outputs = [O.Add()(x, column)]
    return graph


@pytest.mark.parametrize("level", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize("shape", [(7, 1040), (5, 1101)])  # rows that start at cache lines, and rows that do not
def test_large_results_go_past_the_caches(shape: tuple[int, int], level: str) -> None:
    graph, spec = added(shape), replace(target(level), l3=1 << 10)
    program = select(graph, spec)
    rng = fresh_rng()
    x, column = rng.standard_normal(shape).astype("f4"), rng.standard_normal((shape[0], 1)).astype("f4")
    assert all(text in emit_kernel(program.launches[0].kernel, spec) for text in ("!nontemporal", "sfence"))
    (got,), _ = run_graph(graph, [x, column], level, program=program)
    np.testing.assert_array_equal(got, x + column)
    assert "!nontemporal" not in emit_kernel(select(graph, replace(spec, l3=1 << 20)).launches[0].kernel, spec)


def test_short_rows_and_what_a_kernel_reads_back_stay_in_the_caches() -> None:
    spec = replace(target("avx512"), l3=1 << 10)
    assert "!nontemporal" not in emit_kernel(select(added((70, 101)), spec).launches[0].kernel, spec)
    graph = Graph("softmax")
    graph.outputs = [O.Softmax(axis=1)(graph.input(TensorType(f32(1).dtype, (9, 2000)), "x"))]  # keeps powers in its result's memory
    assert "!nontemporal" not in emit_kernel(select(graph, spec).launches[0].kernel, spec)
