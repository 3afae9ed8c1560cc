"""`tw.linalg` against NumPy in f64, derivatives against PyTorch, sizes that take several panels, bad matrices, and programs from torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ExecutionError, ShapeError

la = tw.linalg


def fresh(*shape: int, dtype: str = "f8", shift: float = 0.0) -> Any:
    x = fresh_rng().normal(size=shape)
    return (x + shift * np.eye(shape[-2], shape[-1])).astype(dtype) if shift else x.astype(dtype)


def regular(a: Any) -> Any:
    """The matrix with singular values of 0.5 and more: near a singular one any limit is too narrow once."""
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return (u * (s + 0.5)[..., None, :]) @ vt


def assert_close(got: Any, want: Any, tolerance: float = 1e-8) -> None:
    for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "inv": (la.inv, np.linalg.inv),
    "det": (la.det, np.linalg.det),
    "slogdet": (la.slogdet, lambda a: tuple(np.linalg.slogdet(a))),
    "power": (lambda a: la.matrix_power(a, -3), lambda a: np.linalg.matrix_power(a, -3)),
    "exp": (la.matrix_exp, lambda a: torch.matrix_exp(torch.from_numpy(a)).numpy()),
    "pinv": (la.pinv, np.linalg.pinv),
    "cond": (la.cond, np.linalg.cond),
    "svdvals": (la.svdvals, lambda a: np.linalg.svd(a, compute_uv=False)),
    "nuclear": (lambda a: la.matrix_norm(a, ord="nuc"), lambda a: np.linalg.norm(a, "nuc", axis=(-2, -1))),
    "trace": (la.trace, lambda a: np.trace(a, axis1=-2, axis2=-1)),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(2, 3, 3)])
def test_functions_of_one_matrix(name: str, shape: tuple[int, ...]) -> None:
    ours, theirs = UNARY[name]
    a = regular(fresh(*shape, shift=4.0))
    assert_close(ours(a), theirs(a), 1e-7)


@pytest.mark.parametrize("order", [0, 1, 2, 3, np.inf, -np.inf])
def test_vector_norms(order: float) -> None:
    x = fresh(3, 5)
    assert_close(la.vector_norm(x, axis=1, ord=order), np.linalg.norm(x, order, axis=1))
    assert np.all(tw.grad(lambda v: la.vector_norm(v))(np.zeros(3)) == 0)


@pytest.mark.parametrize(("n", "dtype"), [(47, "f8"), (130, "f4")])
def test_systems_of_many_sizes(n: int, dtype: str) -> None:
    """One panel, several, and a last one that is not full."""
    a, b = fresh(n, n, dtype=dtype, shift=2 * n**0.5), fresh(n, 3, dtype=dtype)
    tolerance = 2e-4 if dtype == "f4" else 1e-9
    assert_close(la.solve(a, b), np.linalg.solve(a.astype("f8"), b.astype("f8")), tolerance)
    assert_close(la.solve(a, b[:, 0]), np.linalg.solve(a, b[:, 0]), tolerance)
    spd = a @ a.T
    assert_close(la.cholesky(spd) / n, np.linalg.cholesky(spd.astype("f8")) / n, tolerance)
    p, low, up = la.lu(a)
    assert_close(p @ low @ up, a, tolerance * n)


def test_a_matrix_has_the_same_bits_alone_and_in_a_batch() -> None:
    a, b = fresh(5, 70, 70, dtype="f4", shift=20.0), fresh(5, 70, 9, dtype="f4")
    together = la.solve(a, b)
    for i in range(5):
        assert np.array_equal(la.solve(a[i], b[i]), together[i])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_least_squares_and_bases(shape: tuple[int, int]) -> None:
    a, b = regular(fresh(*shape)), fresh(shape[0], 2)
    for ours, theirs in zip(la.lstsq(a, b), np.linalg.lstsq(a, b, rcond=None), strict=True):
        assert_close(ours, theirs)
    u, s, vt = la.svd(a, full_matrices=True)
    assert_close(u.T @ u, np.eye(shape[0]))
    assert_close(vt @ vt.T, np.eye(shape[1]))
    assert_close(u[:, : len(s)] * s @ vt[: len(s)], a)
    q, r = la.qr(a, "complete")
    assert_close(q @ r, a)
    assert_close(q.T @ q, np.eye(shape[0]))


def test_spectra_of_larger_and_of_deficient_matrices() -> None:
    a = fresh(60, 60)
    w, v = la.eigh(a + a.T)
    assert_close(w, np.linalg.eigvalsh(a + a.T))
    assert_close(v @ np.diag(w) @ v.T, a + a.T)
    ones = np.ones((5, 4))
    u, s, vt = la.svd(ones, full_matrices=False)
    assert_close(s, np.array([20**0.5, 0, 0, 0]))
    assert_close(u.T @ u, np.eye(4))
    assert_close(vt @ vt.T, np.eye(4))
    assert la.matrix_rank(ones) == 1


@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "pinv", "nuclear"])
def test_gradients_are_pytorchs(name: str) -> None:
    a = regular(fresh(4, 4, shift=4.0))
    ours = UNARY[name][0]
    theirs: Any = {"inv": torch.linalg.inv, "det": torch.linalg.det, "slogdet": lambda x: torch.linalg.slogdet(x)[1],
                   "pinv": torch.linalg.pinv, "nuclear": lambda x: torch.linalg.matrix_norm(x, "nuc")}[name]
    x = torch.from_numpy(a.copy()).requires_grad_()
    theirs(x).sum().backward()
    got = tw.grad(lambda v: (ours(v)[1] if name == "slogdet" else ours(v)).sum())(a)
    assert x.grad is not None
    assert_close(got, x.grad.numpy(), 1e-7)


def test_the_backward_pass_of_a_system_factors_once() -> None:
    a, b = fresh(6, 6, shift=6.0), fresh(6, 2)
    session = tw.jit(tw.value_and_grad(lambda x, y: (la.solve(x, y) ** 2).sum())).lower(a, b)
    names = [r["name"] for r in session.report().data["launches"]]
    assert sum(n.startswith("solve") for n in names) == 1, names


def test_a_bad_matrix_is_named() -> None:
    singular = np.stack([np.eye(3), np.ones((3, 3))])
    with pytest.raises(ExecutionError, match=r"inv: the matrix is singular, got a pivot of 0 in column 1 of matrix 1 \(test_functions.py"):
        la.inv(singular)
    with pytest.raises(ExecutionError, match="cholesky: the matrix is not positive definite, got row 2"):
        la.cholesky(np.diag([1.0, 2.0, -1.0]))
    with pytest.raises(ShapeError, match="solve: needs square matrices, got x=f64"):
        la.solve(np.ones((2, 3)), np.ones((2, 1)))


class Whitening(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        c = x.mT @ x / x.shape[0] + 0.1 * torch.eye(x.shape[1])
        low = torch.linalg.cholesky(c)
        white = torch.linalg.solve_triangular(low, x.mT, upper=False)
        solved = torch.linalg.solve(c, x.mT)
        return white, torch.linalg.inv(c), torch.linalg.eigvalsh(c), torch.linalg.slogdet(c)[1], solved, torch.linalg.det(c)


def test_a_torch_module() -> None:
    x = torch.randn(20, 5)
    with torch.no_grad():
        want = Whitening()(x)
    for got, w in zip(tw.compile(Whitening(), (x,))(x), want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("m, n, mode", [(70, 52, "reduced"), (52, 70, "complete"), (70, 52, "complete")])
def test_qr_by_panels(m: int, n: int, mode: Any) -> None:
    """LAPACK's signs; a matrix alone gives the bits it has in a batch."""
    a = fresh(2, m, n)
    q, r = la.qr(a, mode)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (2, *q.shape[-1:] * 2)), atol=1e-12)
    np.testing.assert_allclose(r, np.linalg.qr(a, mode)[1], atol=1e-9)  # small elements of the last rows are ill-conditioned
    alone = la.qr(a[1], mode)
    assert np.array_equal(alone[0], q[1]) and np.array_equal(alone[1], r[1])
