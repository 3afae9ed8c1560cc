"""Linear algebra of complex matrices against NumPy and PyTorch: values, derivatives, batches, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.linalg.test_functions import regular
from tilewright.core.errors import ExecutionError, ShapeError

rng = fresh_rng()


def draw(*shape: int) -> Any:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def hermitian(a: Any) -> Any:
    return a @ np.conj(np.swapaxes(a, -1, -2)) + np.eye(a.shape[-1])


FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b),
    "solve": (tw.linalg.solve, torch.linalg.solve),
    "inv": (lambda a, b: tw.linalg.inv(a) @ b, lambda a, b: torch.linalg.inv(a) @ b),
    "solve_triangular": (lambda a, b: tw.linalg.solve_triangular(a, b, lower=False),
                         lambda a, b: torch.linalg.solve_triangular(a.triu(), b, upper=True)),
    "cholesky": (lambda a, b: tw.linalg.cholesky(a @ tw.conj(a).swapaxes(-1, -2) + np.eye(4)) @ b,
                 lambda a, b: torch.linalg.cholesky(a @ a.mH + torch.eye(4)) @ b),
    "qr": (lambda a, b: abs(tw.linalg.qr(a)[1]) + abs(tw.conj(tw.linalg.qr(a)[0]).swapaxes(-1, -2) @ b).sum(),
           lambda a, b: abs(torch.linalg.qr(a)[1]) + abs(torch.linalg.qr(a)[0].mH @ b).sum()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    a, b = regular(draw(4, 4) + 3 * np.eye(4)), draw(4, 2)
    x, y = (torch.from_numpy(v).requires_grad_() for v in (a, b))
    want = theirs(x, y)
    np.testing.assert_allclose(tw.jit(ours)(a, b), want.detach().numpy(), rtol=1e-9, atol=1e-9)
    weight = draw(*want.shape)
    total = (want * torch.from_numpy(weight)).sum()
    (total.real + 2 * total.imag).backward()

    def loss(a: Any, b: Any) -> Any:
        total = (ours(a, b) * weight).sum()
        return tw.real(total) + 2 * tw.imag(total)

    for mine, t in zip(tw.grad(loss, argnums=(0, 1))(a, b), (x, y), strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(mine, t.grad.numpy(), rtol=1e-7, atol=1e-7)


def test_batches_single_precision_and_the_frontend() -> None:
    a, b = (v.astype(np.complex64) for v in (regular(draw(3, 5, 5) + 4 * np.eye(5)), draw(3, 5, 2)))
    np.testing.assert_allclose(tw.vmap(tw.linalg.solve)(a, b), np.linalg.solve(a, b), rtol=1e-4, atol=1e-4)
    x = torch.from_numpy(a)
    session = tw.compile(lambda x: (torch.linalg.inv(x), torch.linalg.cholesky(x @ x.mH)), (x,))
    for ours, theirs in zip(session(x), (torch.linalg.inv(x), torch.linalg.cholesky(x @ x.mH)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_errors() -> None:
    with pytest.raises(ExecutionError, match="not positive definite"):
        tw.linalg.cholesky(-hermitian(draw(3, 3)))
    with pytest.raises(ExecutionError, match="the matrix is singular"):
        tw.linalg.solve(np.zeros((2, 2), complex), draw(2, 1))
    with pytest.raises(ShapeError, match="svd: is not defined for complex matrices"):
        tw.linalg.svd(draw(3, 2))
