"""Alike launches side by side run as one (`build/cuda_beside.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph, reference
from tilewright import ops as o
from tilewright.core.dtypes import bf16, f32, i64
from tilewright.core.errors import ExecutionError
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.launch import Launch
from tilewright.ops import functions as F
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas


class Tables(torch.nn.Module):
    """Means of rows of several tables, joined, and a row that is joined with them."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(rows, width) for _ in range(tables))

    def forward(self, first: Any, ids: Any) -> Any:
        return torch.stack([first, *(t(ids[:, i]).mean(1) for i, t in enumerate(self.tables))], 1)


def names(session: Any) -> list[str]:
    return [x.name for x in session.executable.launches]


@pytest.mark.parametrize("width", [8, 5])
def test_lookups_of_many_tables(width: int, rng: np.random.Generator) -> None:
    """One launch of means of rows, one of copies; an index that is out of range names its own table."""
    net = Tables(5, 9, width)
    first, ids = torch.from_numpy(rng.standard_normal((6, width)).astype(np.float32)), torch.from_numpy(rng.integers(0, 9, (6, 5, 3)))
    with fake_gpu():
        session: Any = tw.compile(net, (first, ids), target="cuda")
        found = session.report().data["launches"]
        assert len(found) == 2 and "5 launches side by side" in found[0]["note"], names(session)
        for _ in range(2):  # the second time inputs and results lie elsewhere
            y = session(first.numpy(), ids.numpy())
            np.testing.assert_allclose(y.numpy(), net(first, ids).detach().numpy(), rtol=1e-5, atol=1e-6)
            ids = ids.flip(0).contiguous()
        ids[4, 3, 1] = 9
        session(first.numpy(), ids.numpy())
        with pytest.raises(ExecutionError, match=r"index out of range, got 9 .*must be in 0..8 .*tables\.3"):
            session.synchronize()


def test_lookups_into_parts_of_a_concatenation(rng: np.random.Generator) -> None:
    """They write one buffer, each its own part of it: one launch."""
    tables, ids = rng.standard_normal((4, 9, 8)).astype(np.float32), rng.integers(0, 9, (6, 4))
    stack = lambda t, i: o.Concat(axis=1)(*(F.gather(F.reshape(F.slice_(t, 0, n, 1), (9, 8)), F.reshape(F.slice_(i, 1, n, 1), (6,)))
                                            for n in range(4)))
    run = Emulated(graph(stack, (f32, tables.shape), (i64, ids.shape)))
    assert [x.name.endswith("and 3 more") for x in run.program.launches] == [True], [x.name for x in run.program.launches]
    np.testing.assert_array_equal(run(tables, ids)[0], np.concatenate([tables[n][ids[:, n]] for n in range(4)], 1))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_parts_of_different_sizes(arch: str, dtype: Any, rng: np.random.Generator) -> None:
    """Blocks of the smaller launches end; text of the joined kernel assembles."""
    sizes = (67, 70, 40, 33)
    g = graph(lambda *xs: [o.relu(x) for x in xs] + [o.Concat(axis=0)(*xs)], *((dtype, (n, 64)) for n in sizes))
    run = Emulated(g, arch)
    joined = [x for x in run.program.launches if "side by side" in x.note]
    assert len(joined) >= 1 and len(run.program.launches) <= 3, [x.name for x in run.program.launches]
    inputs = [rng.standard_normal((n, 64)).astype(dtype.np) for n in sizes]
    for got, want in zip(run(*inputs), reference(g, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    if find_ptxas() is not None:
        for x in joined:
            assemble(emit_cuda(x.kernel, cuda_target(arch)), arch)


def order(fn: Any, *types: Any) -> list[Launch]:
    return Emulated(graph(fn, *types)).program.launches


def test_what_depends_on_another_stays_behind_it(rng: np.random.Generator) -> None:
    """A chain of alike launches is no row of them, and neither is what writes over a state that others read."""
    soft = o.Softmax(axis=1)
    chain = order(lambda x: soft(soft(x)), (f32, (40, 96)))
    assert [x.note for x in chain if "side by side" in x.note] == [] and len(chain) == 2
    two = order(lambda x, y: [soft(soft(x)), soft(soft(y))], (f32, (40, 96)), (f32, (40, 96)))
    assert [x.note.count("2 launches side by side") for x in two] == [1, 1]
    g = graph(lambda x, y: [soft(soft(x)), soft(soft(y))], (f32, (40, 96)), (f32, (40, 96)))
    inputs = [rng.standard_normal((40, 96)).astype(np.float32) for _ in range(2)]
    for got, want in zip(Emulated(g)(*inputs), reference(g, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_side_by_side(arch: str, rng: np.random.Generator) -> None:
    """Block programs: three products of f32 with matrices of their own, of which two are alike."""
    types = [(f32, (20, 48)), (f32, (48, 40)), (f32, (48, 40)), (f32, (48, 40)), (f32, (37, 48))]
    g = graph(lambda x, a, b, c, y: [o.matmul(x, a), o.matmul(x, b), o.matmul(y, c)], *types)
    run = Emulated(g, arch)
    (kernel,) = (x.kernel for x in run.program.launches)
    assert isinstance(kernel, TiledKernel) and kernel.beside == 3
    inputs = [rng.standard_normal(shape).astype(np.float32) for _, shape in types]
    for got, want in zip(run(*inputs), reference(g, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
