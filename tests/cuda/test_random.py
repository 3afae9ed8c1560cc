"""Random numbers and grouped products on a GPU, run by the emulator: the bits of the CPU target, the published words of the generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph
from tests.ops.oracle_random import philox4x32
from tests.ops.test_random import PUBLISHED
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, f16, f32, f64, i64, u32, u64
from tilewright.ir.interp import run as run_graph
from tilewright.ops import functions as F
from tilewright.ops.random import draws

KEY = np.array(0x299F31D0A4093822, np.uint64)


def test_words() -> None:
    """The published answer whose counter has two words: (0, 0, 0, 0) under key (0, 0); and blocks of another implementation."""
    g = graph(lambda k, c: o.RandomBits()(k, c), (u64, ()), (u32, (300,)))
    (out,) = Emulated(g)(np.zeros((), np.uint64), np.arange(300, dtype=np.uint32))
    assert out[0] == PUBLISHED[0][2][0]
    np.testing.assert_array_equal(out, [philox4x32((i, 0, 0, 0), (0, 0))[0] for i in range(300)])


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (2, 300), (), (0, 4)], ids=str)
def test_the_numbers_are_those_of_the_cpu(dtype: DType, shape: tuple[int, ...]) -> None:
    """Uniform numbers and masks to the bit; normal ones within the error of log and cos."""
    g = graph(lambda k: (draws.uniform(k, shape, dtype), draws.normal(k, shape, dtype), draws.kept(k, shape, 0.3)), (u64, ()))
    uniform, normal, kept = Emulated(g)(KEY)
    wants = tw.compile(g)(KEY)
    np.testing.assert_array_equal(uniform, wants[0])
    np.testing.assert_array_equal(kept, wants[2])
    tolerance = {"f64": 1e-13, "f32": 3e-6, "f16": 2e-3, "bf16": 2e-2}[dtype.name]
    np.testing.assert_allclose(normal.astype(np.float64), wants[1].astype(np.float64), rtol=tolerance, atol=tolerance)


def test_a_dropout_beside_other_work_and_any_length() -> None:
    n = sym("n", 1, 600)
    g = graph(lambda k, x: F.add(draws.dropout(k, F.mul(x, 2), 0.5), x), (u64, ()), (f32, (n, 5)))
    for rows in (1, 9, 400):
        x = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5) + 1
        (got,) = Emulated(g)(KEY, x)
        (want,) = run_graph(g, [KEY, x])
        np.testing.assert_array_equal(got, want)
        assert rows < 9 or set(np.unique(got / x)) == {1.0, 5.0}


def test_integers_and_orders() -> None:
    g = graph(lambda k: (draws.integers(k, (200,), 10), draws.integers(k, (200,), 3 << 40), draws.permutation(k, 50)), (u64, ()))
    for got, want in zip(Emulated(g)(KEY), tw.compile(g)(KEY), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_session_draws_a_seed_for_every_call(rng: np.random.Generator) -> None:
    """The CPU session's numbers, from the same generator; narrower integers are widened on the way."""
    net, x = torch.nn.Dropout(0.5), torch.ones(40, 7)
    with fake_gpu():
        session: Any = tw.compile(net, (x,), target="cuda")
        torch.manual_seed(4)
        got = [session(x.numpy()).numpy() for _ in range(3)]
        looked_up: Any = tw.compile(lambda t, i: t[i], (x, torch.arange(5)), target="cuda")
        np.testing.assert_array_equal(looked_up(x.numpy(), np.arange(5, dtype=np.int32)).numpy(), x[:5].numpy())
    torch.manual_seed(4)
    cpu = tw.compile(net, (x,))
    for result in got:
        np.testing.assert_array_equal(result, cpu(x).numpy())
    assert not np.array_equal(got[0], got[1])


@pytest.mark.parametrize("transpose_b", [False, True])
def test_grouped_products(transpose_b: bool, rng: np.random.Generator) -> None:
    """Several blocks of rows, groups of none, rows of no group, constant matrices and others; their derivative too."""
    w = rng.standard_normal((3, 11, 9) if transpose_b else (3, 9, 11)).astype(np.float32)
    x, ends = rng.standard_normal((150, 9)).astype(np.float32), np.array([140, 140, 147])

    def check(g: Any, *inputs: Any) -> None:
        for got, want in zip(Emulated(g)(*inputs), run_graph(g, inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)

    op = o.GroupedGemm(transpose_b=transpose_b)
    check(graph(lambda a, e: F.relu(op(a, a.node.graph.constant(w, "w"), e)), (f32, x.shape), (i64, (3,))), x, ends)
    check(graph(lambda a, e, b: op(a, b, e), (f32, x.shape), (i64, (3,)), (f32, w.shape)), x, ends, w)
    y = rng.standard_normal((150, 11)).astype(np.float32)
    check(graph(lambda a, b, e: o.GroupedOuter()(a, b, e), (f32, x.shape), (f32, y.shape), (i64, (3,))), x, y, ends)
