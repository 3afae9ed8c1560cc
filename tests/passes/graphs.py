"""Graphs and comparisons that the pass tests share."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tilewright import ops as o
from tilewright.ir.graph import Graph
from tilewright.ir.interp import bind_symbols, run
from tilewright.ir.verify import verify
from tilewright.passes.base import Log, Pass
from tilewright.passes.pipeline import run_pipeline

TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "float16": 2e-2, "bfloat16": 8e-2}


def arrays_for(graph: Graph, seed: int = 0, **sizes: int) -> list[np.ndarray[Any, Any]]:
    """Random inputs: floats normal, integers small and valid, bools mixed."""
    rng = np.random.default_rng(seed)
    found = []
    for v in graph.inputs:
        shape = tuple(d if isinstance(d, int) else _value(d, sizes) for d in v.shape)
        if v.dtype.is_bool:
            a: Any = rng.random(shape) < 0.6
        elif v.dtype.is_int:
            a = rng.integers(0, 3, shape)
        else:
            a = rng.standard_normal(shape)
        found.append(np.asarray(a).astype(v.dtype.np))
    return found


def _value(d: Any, sizes: dict[str, int]) -> int:
    from tilewright.core.dims import evaluate

    return evaluate(d, sizes)


def assert_same(got: Sequence[Any], want: Sequence[Any], tolerance: float | None = None) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
            continue
        exact = b.astype(np.float64)
        finite = exact[np.isfinite(exact)]
        limit = TOLERANCE[str(b.dtype)] if tolerance is None else tolerance
        scale = max(1.0, float(np.abs(finite).max()) if finite.size else 1.0)
        np.testing.assert_allclose(a.astype(np.float64), exact, rtol=limit, atol=limit * scale)


def apply(graph: Graph, *passes: Pass) -> tuple[Graph, Log]:
    """The passes on a copy, verified after each."""
    log = Log()
    result, _ = graph.clone()
    for p in passes:
        with log.entered(p.name):
            result = p.run(result, log)
        verify(result)
    return result, log


def optimised(graph: Graph, disable: Collection[str] = (), seed: int = 0, tolerance: float | None = None, **sizes: int) -> Graph:
    """The whole pipeline, verified after each pass; the interpreter must give the same before and after."""
    result = run_pipeline(graph, disable=disable, verify=True)
    inputs = arrays_for(graph, seed, **sizes)
    bind_symbols(graph, inputs)
    assert_same(run(result, inputs), run(graph, inputs), tolerance)
    return result


def names(graph: Graph) -> list[str]:
    """What is computed: ops that are neither sources nor views; a region as the ops of its body."""
    found = []
    for n in graph.nodes:
        if isinstance(n.op, o.Fused):
            found.append("+".join(k.op.name for k in n.op.body.nodes if k.operands))
        elif not n.op.traits.source and not n.op.traits.view:
            found.append(n.op.name)
    return found
