"""Random nested loops and branches: compiled code against the interpreter, one thread against two, with and without passes; derivatives
against differences, batching against a stack of cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.control.programs import Maker
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.verify import verify
from tilewright.plan import barriers
from tilewright.transform.jvp import jvp_graph
from tilewright.transform.vjp import vjp_graph
from tilewright.transform.vmap import batch_graph


def compiled(graph: Graph, arrays: list[Any], **options: Any) -> list[Any]:
    out = tw.compile(graph, validation="strict", **options)(*arrays)
    return list(out) if isinstance(out, tuple) else [out]


def draw(graph: Graph, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, v.shape).astype(v.dtype.np) for v in graph.inputs]


@pytest.mark.parametrize("seed", range(12))
def test_small_programs(seed: int) -> None:
    """Everything on one thread: loops are that thread's alone."""
    graph = Maker(seed, 3).program()
    verify(graph)
    arrays = draw(graph, seed)
    want = run(graph, arrays)
    for options in ({"threads": 2}, {"threads": 1, "passes": ["simplify-control"]}, {"threads": 1, "passes": ["fuse"]}):
        for got, expected in zip(compiled(graph, arrays, **options), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(100, 110))
def test_threads_in_lockstep(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel on all threads: barriers in loops, and the same bits for any number of threads."""
    monkeypatch.setattr(barriers, "SERIAL_NS", 0.0)
    graph = Maker(seed, 70).program()
    arrays = draw(graph, seed)
    alone = compiled(graph, arrays, threads=1)
    for got, expected in zip(alone, run(graph, arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    session = tw.compile(graph, threads=3)
    for _ in range(3):
        out = session(*arrays)
        for got, expected in zip(out if isinstance(out, tuple) else (out,), alone, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("seed", range(200, 208))
def test_derivatives(seed: int) -> None:
    graph = Maker(seed, 3, dtype=dt.f64, bounded=True).program()
    rng, arrays, n = np.random.default_rng(seed), draw(graph, seed), len(graph.inputs)
    reverse, found = vjp_graph(graph, [True] * n)
    forward, moved = jvp_graph(graph, [True] * n)
    verify(reverse)
    verify(forward)
    cotangents = [rng.normal(size=v.shape) for v in graph.outputs]
    tangents = [rng.normal(size=v.shape) for v in graph.inputs]
    pushed = compiled(forward, [*arrays, *tangents])[len(graph.outputs) :]
    pulled = compiled(reverse, [*arrays, *cotangents])
    ahead = sum(float(np.sum(t * c)) for t, c in zip(pushed, [c for c, m in zip(cotangents, moved, strict=True) if m], strict=True))
    back = sum(float(np.sum(g * t)) for g, t in zip(pulled, [t for t, f in zip(tangents, found, strict=True) if f], strict=True))
    assert abs(ahead - back) <= 1e-7 * (1 + abs(ahead))
    h = 1e-6
    sides = [run(graph, [a + s * h * t for a, t in zip(arrays, tangents, strict=True)]) for s in (1, -1)]
    slope = sum(float(np.sum((p - m) * c)) for p, m, c in zip(*sides, cotangents, strict=True)) / (2 * h)
    assert abs(ahead - slope) <= 1e-5 * (1 + abs(slope))


@pytest.mark.parametrize("seed", range(300, 306))
def test_batching(seed: int) -> None:
    """All inputs batched, and only the first: predicates differ from case to case."""
    graph = Maker(seed, 3, dtype=dt.f64).program()
    rng, n = np.random.default_rng(seed), len(graph.inputs)
    rows = [[rng.uniform(-1, 1, v.shape) for v in graph.inputs] for _ in range(3)]
    for flags in ([True] * n, [i == 0 for i in range(n)]):
        made, _ = batch_graph(graph, flags, 3, [True] * len(graph.outputs))
        verify(made)
        got = compiled(made, [np.stack([r[i] for r in rows]) if f else rows[0][i] for i, f in enumerate(flags)])
        for k, row in enumerate(rows):
            case = [row[i] if f else rows[0][i] for i, f in enumerate(flags)]
            for a, b in zip(got, run(graph, case), strict=True):
                np.testing.assert_allclose(a[k], b, rtol=1e-8, atol=1e-9)
