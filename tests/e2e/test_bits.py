"""What is promised about bits: any thread count, any company in the batch, any run, any compile give the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.e2e.families import FAMILIES, Family, imported
from tests.fresh import fresh_rng
from tests.models import plain
from tilewright.compile import compile_graph, target_spec
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import Matmul
from tilewright.runtime.native import layout as L

NAMES = [n for n in FAMILIES if FAMILIES[n].rows]


def compiled(name: str, *, dynamic: bool = True, b: int = 2, s: int = 7, threads: int | None = None) -> tw.Session:
    found = imported(name, dynamic=dynamic, b=b, s=s)
    return compile_graph(found.graph, found.signature, target_spec("cpu"), threads=threads)


def rows(args: tuple[Any, ...], at: slice) -> tuple[Any, ...]:
    return tuple(a[at].contiguous() for a in args)


def use_every_thread(session: tw.Session) -> None:
    """Make launches that are too small for several threads run on all of them, so that small models test the split too."""
    assert session.executable is not None
    alone = np.array([launch.serial for launch in session.executable.launches], np.int64)
    for workspace in session._free:
        for _, instance, job in workspace.instances.values():
            instance.thunks[:, L.THUNK_FLAGS] = L.BARRIER + L.SERIAL * alone
            job[L.JOB_THREADS], job[L.JOB_LIGHT] = session.threads, 0


@pytest.mark.parametrize("name", NAMES)
def test_thread_counts(name: str) -> None:
    sessions = [compiled(name, threads=n) for n in (1, 2, 3)]
    for b, s in [(1, 33), (3, 12)]:
        args = FAMILIES[name].args(b, s)
        outs = []
        for session in sessions:
            outs.append(session(*args))
            use_every_thread(session)
            outs.append(session(*args))
        assert all(torch.equal(outs[0], o) for o in outs[1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_or_in_a_batch(name: str) -> None:
    family, session = FAMILIES[name], compiled(name)
    for b, s in [(2, 5), (5, 18), (16, 9)]:
        args = family.args(b, s)
        whole = session(*args)
        for i in (0, 1, b - 1):
            assert torch.equal(session(*rows(args, slice(i, i + 1)))[0], whole[i]), f"row {i} of {b}"
        assert torch.equal(session(*rows(args, slice(1, b)))[:], whole[1:])


@pytest.mark.parametrize("name", NAMES)
def test_runs_repeat(name: str) -> None:
    session = compiled(name)
    args = FAMILIES[name].args(3, 20)
    first = session(*args)
    assert all(torch.equal(session(*args), first) for _ in range(5))


@pytest.mark.parametrize("name", NAMES)
def test_static_and_dynamic_compiles_agree(name: str) -> None:
    family, dynamic = FAMILIES[name], compiled(name)
    shapes = [(1, 1), (2, 7)] if name in ("mlp", "block", "gpt2") else [(2, 7)]
    for b, s in shapes:
        static = compiled(name, dynamic=False, b=b, s=s)
        args = family.args(b, s)
        assert torch.equal(static(*args), dynamic(*args)), f"batch {b}, length {s}"


@pytest.mark.parametrize("name", ["gpt2", "llama", "block-manual-causal"])
def test_a_causal_prefix_keeps_its_bits(name: str) -> None:
    """What comes later does not change what came before: a prompt fed whole or cut gives the same bits."""
    session = compiled(name)
    args = FAMILIES[name].args(2, 40)
    whole = session(*args)
    for s in (1, 2, 17, 33, 39):
        assert torch.equal(session(*(a[:, :s].contiguous() for a in args)), whole[:, :s]), f"first {s}"


WIDE = Family(lambda: plain.randomised(plain.Block(128, 2)), lambda b, s: (torch.randn(b, s, 128),),
              {"x": {0: sym("B", 1, 16), 1: sym("S", 1, 256)}})


def test_a_block_that_really_uses_its_threads() -> None:
    module = WIDE.build()
    sessions = [tw.compile(module, WIDE.args(2, 7), dynamic=WIDE.dynamic, threads=n) for n in (1, 2, 3)]
    for b, s in [(1, 100), (4, 64), (3, 129), (1, 256)]:
        args = WIDE.args(b, s)
        outs = [session(*args) for session in sessions]
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(outs[0], outs[2])
        assert torch.equal(sessions[1](*rows(args, slice(0, 1)))[0], outs[0][0])


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f16", marks=pytest.mark.slow), pytest.param("f64", marks=pytest.mark.slow)])
def test_other_dtypes(dtype: str) -> None:
    module = WIDE.build()
    outs = []
    args = WIDE.args(3, 50)
    for threads in (1, 2, 3):
        session = tw.compile(module, WIDE.args(2, 7), dynamic=WIDE.dynamic, dtype=dtype, threads=threads)
        outs.append(session(*args))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(session(*rows(args, slice(2, 3)))[0], outs[0][2])


@pytest.mark.parametrize("kind", ["f2", "f4", "bfloat16"])
def test_products_with_few_and_many_rows(kind: str) -> None:
    """One register tile of rows has a kernel of its own; small floats are widened once for many rows and in place for few."""
    import ml_dtypes

    rng = fresh_rng()
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    for n, k in ((70, 1100), (64, 300), (5, 512)):
        w = (rng.standard_normal((n, k)) * 0.1).astype(dtype)
        graph = Graph()
        x = graph.input(TensorType(f32, (sym("M", 1, 512), k)), "x")
        graph.outputs = [Matmul(transpose_b=True)(x, graph.constant(w, "w"))]
        session = tw.compile(graph)
        assert session.executable is not None and session.executable.launches[-1].variants
        for m in (1, 5, 6, 7, 13, 140):
            rows_ = rng.standard_normal((m, k)).astype(np.float32)
            got = session(rows_)
            np.testing.assert_allclose(got, rows_.astype(np.float64) @ w.astype(np.float64).T, rtol=0, atol=2e-5)  # five times what is seen
            for i in {0, m // 2, m - 1}:
                np.testing.assert_array_equal(session(rows_[i : i + 1])[0], got[i])
