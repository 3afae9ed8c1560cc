"""Ops that the host computes for a GPU: what is selected, what the report says, the copies and the results. Needs no GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32, f64
from tilewright.kernels.cuda.host import HostKernel
from tilewright.ops import functions as F
from tilewright.runtime.cuda import launch as cuda_launch
from tilewright.runtime.cuda.flow import Hosted, Straight, parts_of
from tilewright.runtime.cuda.walk import Flow


def test_singular_values_between_kernels(rng: np.random.Generator) -> None:
    """The operand is transposed and lies between two kernels of the device."""
    def fn(x: Any) -> Any:
        s, u, vt = o.Svd()(F.transpose(F.mul(x, 2.0), (0, 2, 1)))
        return F.mul(s, 0.5), u, vt

    run = Emulated(graph(fn, (f64, (3, 4, 7))))
    x = rng.standard_normal((3, 4, 7))
    s, u, vt = run(x)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=1e-12)
    np.testing.assert_allclose(u * (2 * s[:, None]) @ vt, np.swapaxes(2 * x, 1, 2), atol=1e-12)
    assert sum(isinstance(v.kernel, HostKernel) for v in run.program.launches) == 1


def test_eigenvalues_of_any_batch_and_of_none(rng: np.random.Generator) -> None:
    run = Emulated(graph(lambda x: o.Eig()(x), (f32, (sym("B", 0, 9), 3, 3))))
    x = rng.standard_normal((2, 3, 3)).astype(np.float32)
    x[1, 0, 0] = np.nan
    found = run(x)
    w = np.sort_complex(np.linalg.eigvals(x[0]))
    np.testing.assert_allclose(found[0][0] + 1j * found[1][0], w, atol=1e-5)
    assert all(np.isnan(part[1]).all() for part in found)
    assert [part.shape for part in run(x[:0])] == [(0, 3), (0, 3), (0, 3, 3), (0, 3, 3)]


def test_the_report_says_so() -> None:
    session: Any = tw.compile(graph(lambda x: F.mul(o.Svd(vectors=False)(F.mul(x, 2.0)), 2.0), (f32, (5, 5))), target="sm_90a")
    parts = parts_of(session.executable.program.block, {})
    assert [type(p) for p in parts] == [Straight, Hosted, Straight]
    assert "on the host, the GPU waits for NumPy" in str(session.report())


def test_copies(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a driver whose device memory is the host's own."""
    def copy(to: int, source: int, size: int, stream: int) -> int:
        ctypes.memmove(to, source, size)
        return 0

    library = SimpleNamespace(cuMemcpyDtoHAsync_v2=copy, cuMemcpyHtoDAsync_v2=copy, cuStreamSynchronize=lambda stream: 0)
    monkeypatch.setattr(cuda_launch, "library", lambda: library)
    session: Any = tw.compile(graph(lambda x: o.Svd()(x), (f64, (6, 4))), target="sm_90a")
    executable = session.executable
    flow = Flow(executable, {}, SimpleNamespace(address=0), {}, parts_of(executable.program.block, {}))  # type: ignore[arg-type]
    x, s, u, vt = rng.standard_normal((6, 4)), np.zeros(4), np.zeros((6, 4)), np.zeros((4, 4))
    flow.bind([v.ctypes.data for v in (x, s, u, vt)])
    flow.run(0)
    np.testing.assert_allclose(u * s @ vt, x, atol=1e-12)
