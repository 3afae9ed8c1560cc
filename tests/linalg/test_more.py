"""Eigenvalues of matrices that are not symmetric, reflections, histograms and bags: against NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ExecutionError, ShapeError

rng = fresh_rng()
their_ormqr: Any = torch.ormqr
SPECIAL = {"identity": np.eye(3), "zero": np.zeros((3, 3)), "turn": np.array([[0.0, 1], [-1, 0]]), "jordan": np.array([[2.0, 1], [0, 2]]),
           "cycle": np.roll(np.eye(7), 1, 0), "large": 1e200 * np.array([[1.0, 2], [3, 4]]),
           "small": 1e-200 * np.array([[1.0, 2], [-3, 4]])}


@pytest.mark.parametrize("name", [*SPECIAL, "1", "5", "33"])
def test_eigenvalues(name: str) -> None:
    a = SPECIAL[name] if name in SPECIAL else rng.normal(size=(int(name), int(name)))
    w, v = tw.linalg.eig(a)
    scale = np.abs(a).max(initial=0) or 1.0
    np.testing.assert_allclose(a / scale @ v, v * (w / scale), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, rtol=1e-12)
    assert np.array_equal(w, tw.linalg.eigvals(a)) or np.allclose(w / scale, tw.linalg.eigvals(a) / scale, atol=1e-12)
    assert np.array_equal(np.sort_complex(w), np.sort_complex(w.conj()))  # exact pairs
    if name != "jordan":  # its two equal eigenvalues are ill-conditioned
        theirs = np.linalg.eigvals(a)
        limit = 1e-12 * np.linalg.norm(np.linalg.inv(v), axis=1).max()  # how far a rounding error of the matrix moves an eigenvalue
        np.testing.assert_allclose(np.sort((w / scale).real), np.sort((theirs / scale).real), atol=limit)
        np.testing.assert_allclose(np.sort((w / scale).imag), np.sort((theirs / scale).imag), atol=limit)


def test_reflections() -> None:
    a = rng.normal(size=(6, 4))
    packed, tau = tw.linalg.geqrf(a)
    q = tw.linalg.householder_product(packed, tau)
    np.testing.assert_allclose(q @ np.triu(packed[:4]), a, atol=1e-12)
    other = rng.normal(size=(6, 3))
    for left, transpose in ((True, False), (True, True), (False, False), (False, True)):
        given = other if left else other.T.copy()
        theirs = their_ormqr(*map(torch.from_numpy, (packed, tau, given)), left=left, transpose=transpose)
        np.testing.assert_allclose(tw.linalg.ormqr(packed, tau, given, left=left, transpose=transpose), theirs.numpy(), atol=1e-12)
    with pytest.raises(ShapeError, match="geqrf: needs matrices"):
        tw.linalg.geqrf(np.zeros(3))


def test_histograms_and_counts() -> None:
    x = rng.normal(size=200)
    counts, edges = tw.histogram(x, 13)
    want = np.histogram(x, 13)
    assert np.array_equal(counts, want[0])
    np.testing.assert_allclose(edges, want[1])
    weights, own = rng.random(200), np.array([-1.0, -0.2, 0.1, 2.0])
    np.testing.assert_allclose(tw.histogram(x, own, weights=weights, density=True)[0],
                               np.histogram(x, own, weights=weights, density=True)[0])
    counts, _ = tw.histogram(x, 4, range=(-1.0, 1.0))
    assert np.array_equal(counts, np.histogram(x, 4, range=(-1.0, 1.0))[0])
    ids = rng.integers(0, 7, 50)
    assert np.array_equal(tw.bincount(ids, length=9), np.bincount(ids, minlength=9))
    np.testing.assert_allclose(tw.bincount(ids, weights[:50], length=7), np.bincount(ids, weights[:50], minlength=7))
    with pytest.raises(ExecutionError, match="index out of range"):
        tw.bincount(np.array([3]), length=3)
    with pytest.raises(ShapeError, match="bincount: needs integers"):
        tw.bincount(np.array([3.0]), length=3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    table, ids, offsets = rng.normal(size=(9, 4)), rng.integers(0, 9, 12), np.array([0, 5, 5, 7])
    tensors = [torch.from_numpy(v) for v in (ids, table, offsets)]
    tensors[1].requires_grad_()
    theirs: Any = torch.nn.functional.embedding_bag
    want = theirs(*tensors, mode=mode)
    np.testing.assert_allclose(tw.embedding_bag(table, ids, offsets, mode=mode), want.detach().numpy(), atol=1e-12)
    weight = rng.normal(size=want.shape)
    (want * torch.from_numpy(weight)).sum().backward()
    got: Any = tw.grad(lambda t: (tw.embedding_bag(t, ids, offsets, mode=mode) * weight).sum())(table)
    assert tensors[1].grad is not None
    np.testing.assert_allclose(got, tensors[1].grad.numpy(), atol=1e-12)


def test_nan_in_a_matrix_is_nan_everywhere_and_nothing_else() -> None:
    """Numbers that compare with nothing still have one place each in the order of eigenvalues: no place stays what memory held before."""
    a = np.eye(6) + 0.1
    a[2, 3] = a[3, 2] = np.nan
    for found in (tw.linalg.eigh(a), tw.linalg.eig(a), (tw.linalg.eigvalsh(a), tw.linalg.eigvals(a))):
        for values in found:
            assert np.isnan(values).all()
    s = tw.linalg.svd(a)[1]
    assert np.isnan(s).any() and not (s == 0).any()
