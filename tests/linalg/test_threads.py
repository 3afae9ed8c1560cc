"""Factorisations whose parts several threads take: the same bits on any number of them, alone and in a batch, and the right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.e2e.test_bits import use_every_thread
from tests.fresh import fresh_rng
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core.dtypes import dtype as dtype_of
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.linalg import eigh
from tilewright.ops.linalg.spectra import Eig, Eigh, Svd
from tilewright.ops.linalg.systems import Lu


def sessions(op: Any, *shapes: tuple[int, ...], dtype: str) -> list[tw.Session]:
    graph = Graph("factors")
    found = op(*(graph.input(TensorType(dtype_of(np.dtype(dtype)), s), f"x{i}") for i, s in enumerate(shapes)))
    graph.outputs = list(found) if isinstance(found, tuple) else [found]
    return [compile_graph(graph, graph_signature(graph), target_spec("cpu"), threads=n) for n in (1, 2, 3)]


def same(op: Any, x: Any) -> list[Any]:
    """The results, after seeing that threads and company do not change them."""
    found = []
    for session in sessions(op, x.shape, dtype=str(x.dtype)):
        found.append(session(x))
        use_every_thread(session)
        found += [session(x) for _ in range(3)]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))
    single = sessions(op, x.shape[1:], dtype=str(x.dtype))[0]
    assert all(np.array_equal(a, b[-1]) for a, b in zip(single(x[-1]), found[0], strict=True))
    return list(found[0])


@pytest.mark.parametrize(("m", "n", "dtype"), [(200, 200, "f4"), (70, 150, "f8")])
def test_lu(m: int, n: int, dtype: str) -> None:
    """Several panels, the last not full; blocks of columns behind the last one, and none."""
    a = fresh_rng().standard_normal((2, m, n)).astype(dtype)
    packed, pivots, order = same(Lu(), a)
    k = min(m, n)
    low, up = np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[:, :k])
    moved = np.take_along_axis(a, order[..., None].astype(np.int64), axis=1)
    np.testing.assert_allclose(low.astype("f8") @ up.astype("f8"), moved, atol=200 * k * float(np.finfo(dtype).eps))
    assert np.abs(low).max() <= 1
    for i in range(2):
        rows = np.arange(m)
        for j, p in enumerate(pivots[i]):
            rows[[j, p]] = rows[[p, j]]
        assert np.array_equal(rows, order[i])


def check_vectors(a: Any, w: Any, v: Any) -> None:
    """Values as NumPy finds them in f64, orthonormal vectors, and that they belong together, all within a few rounding errors a row."""
    n, wide = a.shape[-1], a.astype("f8")
    limit = 2 * n * float(np.finfo(a.dtype).eps)
    want = np.linalg.eigvalsh(wide)
    size, vectors = max(np.abs(want).max(), 1e-300), v.astype("f8")
    assert np.abs(w - want).max() <= limit * size
    assert np.abs(np.swapaxes(vectors, -1, -2) @ vectors - np.eye(n)).max() <= limit
    assert np.abs(wide @ vectors - vectors * w[..., None, :]).max() <= limit * size


def test_factors_of_no_matrix_beside_others() -> None:
    """The memory that its counters would lie in holds what the first program left there: numbers below zero."""

    @tw.jit
    def both(x: Any, none: Any) -> Any:
        return tw.linalg.solve(-(x @ x), x), tw.linalg.solve(none, none)

    x = (np.eye(130) + np.ones((130, 130))).astype(np.float32)
    for _ in range(3):
        full, empty = both(x, np.zeros((0, 100, 100), np.float32))
        assert empty.shape == (0, 100, 100)
        np.testing.assert_allclose(full, -np.linalg.inv(x.astype(np.float64)), atol=1e-4)


@pytest.mark.parametrize("room", [(1.25, 16), (0.25, 0)])
def test_eigenvectors(room: tuple[float, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where most rotations find no room in the record and are applied by another kernel."""
    monkeypatch.setattr(eigh, "ROOM", room)
    x = fresh_rng().standard_normal((2, 70, 70)).astype("f4")
    a = x + np.swapaxes(x, 1, 2)
    w, v = same(Eigh(), a)
    check_vectors(a, w, v)
    assert np.array_equal(w, sessions(Eigh(vectors=False), a.shape, dtype="f4")[0](a))


@pytest.mark.parametrize(("n", "dtype"), [(30, "f4"), (60, "f4"), (60, "f8")])
def test_eigenvectors_of_special_matrices(n: int, dtype: str) -> None:
    """Low rank, zeros, one value only, tiny and huge elements; NaN comes back."""
    session = sessions(Eigh(), (n, n), dtype=dtype)[0]
    low = fresh_rng().standard_normal((n, 3))
    far = 1e30 if dtype == "f4" else 1e200
    for a in (np.ones((n, n)), low @ low.T, low @ low.T / far, low @ low.T * far / n, np.zeros((n, n)), np.eye(n)):
        check_vectors(a.astype(dtype), *session(a.astype(dtype)))
    bad = np.ones((n, n), dtype)
    bad[3, 5] = np.nan
    assert np.isnan(session(bad)[0]).all()


def check_singular(a: Any, s: Any, u: Any, vt: Any) -> None:
    wide, left, right = a.astype("f8"), u.astype("f8"), vt.astype("f8")
    limit = 2 * max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
    want = np.linalg.svd(wide, compute_uv=False)
    size, one = max(want.max(), 1e-300), np.eye(want.shape[-1])
    assert np.abs(s - want).max() <= limit * size
    assert np.abs(np.swapaxes(left, -1, -2) @ left - one).max() <= limit
    assert np.abs(right @ np.swapaxes(right, -1, -2) - one).max() <= limit
    assert np.abs((left * s[..., None, :]) @ right - wide).max() <= limit * size


@pytest.mark.parametrize(("m", "n", "dtype"), [(100, 90, "f4"), (70, 75, "f8"), (90, 7, "f4"), (9, 120, "f8")])
def test_singular_vectors(m: int, n: int, dtype: str) -> None:
    a = fresh_rng().standard_normal((2, m, n)).astype(dtype)
    s, u, vt = same(Svd(), a)
    check_singular(a, s, u, vt)
    alone = sessions(Svd(vectors=False), a.shape, dtype=dtype)[0](a)
    assert np.abs(s - alone).max() <= 40 * float(np.finfo(dtype).eps) * s.max()  # two algorithms of LAPACK


@pytest.mark.parametrize(("n", "dtype"), [(20, "f4"), (70, "f4"), (70, "f8")])
def test_singular_vectors_of_special_matrices(n: int, dtype: str) -> None:
    session = sessions(Svd(), (n, n), dtype=dtype)[0]
    low = fresh_rng().standard_normal((n, 3)) @ fresh_rng().standard_normal((3, n))
    far = 1e30 if dtype == "f4" else 1e200
    for a in (np.ones((n, n)), low, low / far, low * far / n, np.zeros((n, n)), np.eye(n)):
        check_singular(a.astype(dtype), *session(a.astype(dtype)))
    bad = np.ones((n, n), dtype)
    bad[3, 5] = np.nan
    assert all(np.isnan(x).all() for x in session(bad))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_eigenvalues_of_general_matrices(dtype: str) -> None:
    a = fresh_rng().standard_normal((3, 40, 40)).astype(dtype)
    re, im, vr, vi = same(Eig(), a)
    w, v = re + 1j * im.astype("f8"), vr + 1j * vi.astype("f8")
    assert np.abs(a.astype("f8") @ v - v * w[:, None]).max() <= 200 * float(np.finfo(dtype).eps) * np.abs(w).max()
    assert np.array_equal(re, np.sort(re, axis=-1))
