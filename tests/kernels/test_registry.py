"""Every sample of every op in the registry runs as native code and agrees with its NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.ops  # noqa: F401 - fills the registry
from tilewright.core.dims import evaluate
from tilewright.core.dtypes import i8
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.ops.base import REGISTRY, Sample
from tilewright.ops.families import M, N
from tilewright.passes.pipeline import run_pipeline

from .harness import run_graph

# Products of packed integers need a constant matrix (test_qdot.py); control flow runs in whole sessions (tests/control).
SKIPPED = ("input", "constant", "qdot", "qexperts_dot", "scan", "cond", "while")
CASES = [(name, i) for name, op in sorted(REGISTRY.items()) for i in range(len(op.samples)) if name not in SKIPPED]
RTOL = {"f32": 2e-5, "f64": 1e-11, "bf16": 2e-2, "f16": 2e-3, "c64": 2e-5, "c128": 1e-11}


def build(op: Any, sample: Sample) -> Graph:
    g = Graph(op.name)
    ins = [g.input(t, f"x{i}") for i, t in enumerate(sample.types)]
    g.outputs = list(g.add(op(**sample.attrs), *ins).values)
    for dim in (N, M):  # symbols that no operand binds
        g.input(TensorType(i8, (dim,)), "shape")
    return g


def values(sample: Sample, env: dict[str, int], rng: np.random.Generator) -> list[Any]:
    out = []
    for i, t in enumerate(sample.types):
        low, high = (s[i] if not isinstance(s, (int, float)) else s for s in (sample.low, sample.high))
        shape = tuple(evaluate(d, env) for d in t.shape)
        if t.dtype.is_bool:
            out.append(rng.random(shape) < 0.5)
        elif t.dtype.is_int:
            out.append(rng.integers(max(int(low), 0) if t.dtype.kind == "u" else int(low), int(high) + 1, shape).astype(t.dtype.np))
        elif t.dtype.kind == "c":
            out.append((rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(t.dtype.np))
        else:
            out.append(rng.uniform(low, high, shape).astype(t.dtype.np))
    return sample.fitted(out)


@pytest.mark.parametrize("name,index", CASES, ids=[f"{n}-{i}" for n, i in CASES])
def test_native_equals_reference(name: str, index: int) -> None:
    op = REGISTRY[name]
    graph = build(op, op.samples[index])
    rng = np.random.default_rng(index)
    inputs = [*values(op.samples[index], {"N": 5, "M": 3}, rng), np.zeros(5, "i1"), np.zeros(3, "i1")]
    want = run(graph, inputs)
    got, error = run_graph(run_pipeline(graph), inputs)
    assert not error.any()
    for g, w, v in zip(got, want, graph.outputs, strict=True):
        if v.dtype.is_float or v.dtype.kind == "c":
            wide = np.complex128 if v.dtype.kind == "c" else np.float64
            x, y = g.astype(wide), np.asarray(w).astype(wide)
            np.testing.assert_allclose(
                x, y, rtol=RTOL[v.dtype.name], atol=RTOL[v.dtype.name] * max(1.0, float(np.abs(y[np.isfinite(y)]).max(initial=0)))
            )
        else:
            np.testing.assert_array_equal(g, w)
