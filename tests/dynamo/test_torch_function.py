"""Functions of arrays inside PyTorch: tensors come back as tensors, and autograd sees them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw


def f(x: Any, w: Any) -> Any:
    return tw.tanh(x @ w).sum(), {"a": x * 2, "n": 3}


def reference(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.tanh(x @ w).sum(), {"a": x * 2, "n": 3}


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("wrap", [tw.torch_function, tw.jit])
def test_gradients(wrap: Any) -> None:
    g, (x, w) = wrap(f), pair()
    for _ in range(2):
        got, want = g(x, w), reference(x, w)
        assert got[1]["n"] == 3 and got[0].requires_grad
        torch.testing.assert_close(got[0], want[0])
        mine = torch.autograd.grad(got[0] * 2 + got[1]["a"].square().sum(), (x, w))
        theirs = torch.autograd.grad(want[0] * 2 + want[1]["a"].square().sum(), (x, w))
        torch.testing.assert_close(mine, theirs)


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(lambda x, w: tw.torch_function(f)(x, w)[0], pair())


def test_in_the_middle_of_a_model() -> None:
    act = tw.torch_function(lambda x: x * tw.sigmoid(x))
    layers = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    x = torch.randn(5, 4)
    grads = []
    for call in (act, torch.nn.functional.silu):
        for layer in layers:
            layer.zero_grad()
        layers[1](call(layers[0](x))).square().sum().backward()
        grads.append([p.grad.clone() for layer in layers for p in layer.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_jit_gives_tensors_for_tensors(dtype: Any) -> None:
    g = tw.jit(lambda x: (x, tw.where(x, 1, 0) if dtype is torch.bool else x + x))
    x = torch.randn(3, 4).to(dtype)
    for _ in range(2):
        same, more = g(x)
        assert isinstance(same, torch.Tensor) and same.dtype is dtype and torch.equal(same, x)
        assert isinstance(more, torch.Tensor)
    with torch.no_grad():
        assert not g(x.float().requires_grad_())[1].requires_grad
    assert isinstance(g(np.ones(3))[0], np.ndarray)


def test_donated_tensors_are_written() -> None:
    step = tw.jit(lambda x, g: x - 0.5 * g, donate=0)
    x, g = torch.ones(4), torch.ones(4)
    new = step(x, g)
    assert torch.equal(new, torch.full((4,), 0.5)) and new.data_ptr() == x.data_ptr()
    with pytest.raises(tw.InputError, match="overwrites its donated arguments, and a tensor among them requires a gradient"):
        step(x, g.requires_grad_())


def test_integers_and_unused_arguments() -> None:
    g = tw.torch_function(lambda x, i, y: (tw.take(x, i, axis=0), i + 1))
    x, i, y = torch.randn(4, 3, requires_grad=True), torch.tensor([1, 1, 3]), torch.randn(2, requires_grad=True)
    rows, more = g(x, i, y)
    assert not more.requires_grad and torch.equal(more, i + 1)
    rows.sum().backward()
    want = torch.zeros(4, 3).index_add(0, i, torch.ones(3, 3))
    assert x.grad is not None and torch.equal(x.grad, want)
    assert y.grad is None or not y.grad.any()


def test_bad_input() -> None:
    with pytest.raises(tw.InputError, match="torch_function: needs a function, got a int"):
        tw.torch_function(3)  # type: ignore[arg-type]
    x = torch.ones(2, requires_grad=True)
    (g,) = torch.autograd.grad(tw.torch_function(lambda x: x * x * x)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        g.sum().backward()
    with pytest.raises(tw.InputError, match="must lie on one device, the CPU or a GPU, got meta"):
        tw.torch_function(lambda x: x)(torch.ones(2, device="meta"))
