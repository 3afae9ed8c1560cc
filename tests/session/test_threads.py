"""Several threads compile, trace and call at once: everything gives what one thread gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.shaken import at_once


def test_compiles_in_threads() -> None:
    torch.manual_seed(int(fresh_rng().integers(2**31)))
    models = [torch.nn.Sequential(torch.nn.Linear(8, 8 + k), torch.nn.GELU(), torch.nn.Linear(8 + k, 3)).eval() for k in range(6)]
    x = torch.randn(4, 8)

    def work(k: int) -> None:
        torch.testing.assert_close(tw.compile(models[k], (x,))(x), models[k](x).detach())

    at_once(6, work)


def test_compiles_beside_torch_compile() -> None:
    """torch.compile traces with the same globals as torch.export."""
    x = torch.randn(4, 8)

    def work(k: int) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8 + k), torch.nn.Tanh()).eval()
        session = torch.compile(model, backend="eager") if k % 2 else tw.compile(model, (x,))
        torch.testing.assert_close(session(x).detach(), model(x).detach())

    at_once(4, work)


def test_programs_that_torch_makes_functional_in_threads() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[:, 1:].mul_(2)
            y[0] = 0
            return y

    x = torch.randn(5, 6)

    def work(k: int) -> None:
        np.testing.assert_array_equal(tw.compile(Writes(), (x,))(x), Writes()(x))

    at_once(4, work)


def test_jitted_functions_are_traced_in_threads() -> None:
    shared = tw.jit(lambda x, y: (tw.sin(x) * y).sum(0))
    rng = fresh_rng()
    data = [(rng.standard_normal((3 + k % 2, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)) for k in range(8)]
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        x, y = data[k]
        own = tw.jit(tw.grad(lambda x: (x * x * y).sum()))
        found[k] = shared(x, y), own(x)

    at_once(8, work)
    for k, (x, y) in enumerate(data):
        np.testing.assert_array_equal(found[k][0], shared(x, y))
        np.testing.assert_allclose(found[k][1], 2 * x * y, rtol=1e-6)


def test_modules_become_functions_in_threads() -> None:
    modules = [torch.nn.Sequential(torch.nn.Linear(4, 3 + k), torch.nn.ReLU()).eval() for k in range(4)]
    x = torch.randn(2, 4)

    def work(k: int) -> None:
        apply, params = tw.from_torch(modules[k], (x,))
        np.testing.assert_allclose(apply(params, x.numpy()), modules[k](x).detach().numpy(), rtol=1e-5, atol=1e-6)

    at_once(4, work)
