"""Attention of f32 and f64 on a GPU: one block program, or products on all threads around a softmax, emulated against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.launching import Emulated, graph, program
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, bool_, f32, f64
from tilewright.ir.interp import run
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.ops import functions as F
from tilewright.ops.attention.backward import AttentionBackward
from tilewright.ops.attention.forward import Attention

CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {  # attributes; heads, heads of keys, queries, keys
    "plain": ({}, (2, 2, 9, 13)),
    "causal": ({"causal": True}, (3, 3, 11, 11)),
    "shared keys": ({"causal": True, "offset": 4}, (4, 2, 5, 9)),
    "capped": ({"softcap": 2.0}, (2, 1, 5, 9)),
    "nothing to see": ({"causal": True, "offset": -3}, (2, 2, 7, 6)),
    "window": ({"causal": True, "window": 3}, (2, 2, 9, 9)),
    "mask": ({"has_mask": True}, (2, 2, 5, 7)),
    "bias": ({"has_bias": True}, (2, 2, 5, 7)),
}


QUICK = {("shared keys", f32), ("mask", f64)}
RUNS = [pytest.param(n, d, marks=[] if (n, d) in QUICK else pytest.mark.slow, id=f"{n}-{d}") for n in CASES for d in (f32, f64)]


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_forward_and_backward(name: str, dtype: DType, rng: np.random.Generator) -> None:
    attrs, (heads, shared, rows, keys) = CASES[name]
    attrs = {"scale": 0.3, **attrs}
    shapes = [(1, heads, rows, 8), (1, shared, keys, 8), (1, shared, keys, 8)]
    arrays = [rng.standard_normal(s).astype(dtype.np) for s in shapes]
    types: list[tuple[DType, tuple[int, ...]]] = [(dtype, s) for s in shapes]
    if attrs.get("has_mask"):
        arrays.append(rng.random((1, 1, rows, keys)) < 0.5)
        arrays[-1][0, 0, 2] = False  # a row that sees nothing gives zeros
        types.append((bool_, (1, 1, rows, keys)))
    if attrs.get("has_bias"):
        arrays.append(rng.standard_normal((1, heads, rows, keys)).astype(dtype.np))
        types.append((dtype, (1, heads, rows, keys)))
    result = (dtype, shapes[0])
    for g, given in (
        (graph(lambda *x: Attention(**attrs)(*x), *types), arrays),
        (graph(lambda *x: AttentionBackward(**attrs)(*x), *types, result), [*arrays, rng.standard_normal(shapes[0]).astype(dtype.np)]),
    ):
        emulated = Emulated(g)
        whole = dtype is f32 and len(g.outputs) == 1  # one block program
        assert any(x.kernel.name.startswith("attention") for x in emulated.program.launches) == whole
        limit = 1e-5 if dtype is f32 else 1e-12
        for got, want in zip(emulated(*given), run(g, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=limit, atol=limit * 10)


def test_what_stays_one_kernel(rng: np.random.Generator) -> None:
    """One query row has a kernel of its own, and scores without end are not written to memory."""
    rows = sym("R", 0, 64)
    for types, names in (
        (((f32, (1, 2, 1, 64)), *((f32, (1, 2, 300, 64)),) * 2), {"decode"}),
        (((f32, (1, 64, 1 << 14, 64)),) * 3, {"attention", "pointwise"}),
        (((f32, (1, 2, rows, 64)),) * 3, {"attention", "pointwise"}),
        (((f64, (1, 2, rows, 64)),) * 3, {"matmul", "softmax", "transpose", "pointwise"}),
    ):
        found = {x.kernel.name.split("_")[0] for x in program(graph(lambda *x: Attention(scale=0.1)(*x), *types)).launches}
        assert found <= names, found
    emulated = Emulated(graph(lambda *x: Attention(scale=0.1)(*x), *((f32, (1, 2, rows, 8)),) * 3))
    for n in (0, 1, 17):
        given = [rng.standard_normal((1, 2, n, 8)).astype(np.float32) for _ in range(3)]
        np.testing.assert_allclose(emulated(*given)[0], run(emulated.graph, given)[0], rtol=1e-5, atol=1e-5)


def test_operands_that_do_not_lie_as_expected(rng: np.random.Generator) -> None:
    """Keys that a copy leaves transposed are read by a block program, not by one thread for every row."""

    def build(q: Any, keys: Any, v: Any) -> Any:
        copied = F.reshape(F.transpose(keys, (0, 2, 3, 1)), (1, 4, 64, 17))
        return Attention(scale=0.1)(q, F.transpose(copied, (0, 1, 3, 2)), v)

    g = graph(build, (bf16, (1, 4, 33, 64)), (bf16, (2, 17, 2, 64)), (bf16, (1, 4, 17, 64)))
    given = [rng.standard_normal(s).astype(bf16.np) for s in ((1, 4, 33, 64), (2, 17, 2, 64), (1, 4, 17, 64))]
    for arch in ("sm_90a", "sm_80"):
        emulated = Emulated(g, arch)
        assert [type(x.kernel) for x in emulated.program.launches if x.name.startswith("attention")] == [TiledKernel]
        got, want = (np.asarray(x[0], np.float64) for x in (emulated(*given), run(g, given)))
        np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("causal", [False, True])
def test_wide_heads_are_products_around_a_softmax(causal: bool, rng: np.random.Generator) -> None:
    shapes = [(1, 2, 9, 264), (1, 1, 13, 264), (1, 1, 13, 24)]
    g = graph(lambda *x: Attention(scale=0.1, causal=causal)(*x), *((bf16, s) for s in shapes))
    given = [rng.standard_normal(s).astype(bf16.np) for s in shapes]
    emulated = Emulated(g, "sm_80")
    assert not any(x.kernel.name.startswith("attention") for x in emulated.program.launches)
    got, want = (np.asarray(x[0], np.float64) for x in (emulated(*given), run(g, given)))
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02)
