"""Ops that PyTorch uses on GPUs alone: recurrent cells of its own, cuDNN's samples. Here on a CPU, by tensors that claim to be on a GPU or
by kernels that stand in."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tilewright as tw
from tilewright.dynamo.cells import plain_cells

from .check import check

CELLS: dict[Any, Any] = {torch.nn.GRUCell: torch.gru_cell, torch.nn.LSTMCell: torch.lstm_cell, torch.nn.RNNCell: torch.rnn_tanh_cell}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_plain_ops(kind: Any, bias: bool) -> None:
    gates = {"GRUCell": 3, "LSTMCell": 4}.get(kind.__name__, 1)

    def step(x: Any, h: Any, *weights: Any) -> Any:
        return CELLS[kind](x, [h, h] if kind is torch.nn.LSTMCell else h, *weights)

    with FakeTensorMode(), enable_python_dispatcher(), plain_cells:
        made = lambda *shape: torch.empty(shape, device="cuda")
        weights = [made(gates * 8, 5), made(gates * 8, 8), *([made(gates * 8)] * 2 if bias else [])]
        found = make_fx(step)(made(3, 5), made(3, 8), *weights).graph
    assert not [n for n in found.nodes if "cell" in str(n.target)]
    assert sum("mm" in str(n.target) for n in found.nodes) == 2
    cell = kind(5, 8, bias=bias)
    with enable_python_dispatcher(), plain_cells:
        x, h = torch.randn(3, 5), torch.randn(3, 8)
        torch.testing.assert_close(step(x, h, *cell.parameters()), cell(x, (h, h) if kind is torch.nn.LSTMCell else h))


class Steps(torch.nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for t in range(3):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("kind", CELLS)
def test_steps(kind: Any) -> None:
    check(Steps(kind), torch.randn(4, 3, 5), grad=True)


@pytest.fixture
def cudnn() -> Iterator[None]:
    """cuDNN's ops with kernels on CPUs that compute the same."""
    made = torch.library.Library("aten", "IMPL")
    sampler = torch.ops.aten.grid_sampler_2d.default
    backward = torch.ops.aten.grid_sampler_2d_backward.default
    for key in ("CPU", "Meta"):
        made.impl("cudnn_grid_sampler", lambda x, grid: sampler(x, grid, 0, 0, True), key)
        made.impl("cudnn_grid_sampler_backward", lambda x, grid, g: backward(g, x, grid, 0, 0, True, [True, True]), key)
    yield
    made._destroy()


class Sampled(torch.nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.cudnn_grid_sampler(x.exp(), grid).sin()


def test_cudnn_samples(cudnn: None) -> None:
    x, grid = torch.randn(2, 3, 6, 7), torch.rand(2, 4, 5, 2) * 2.4 - 1.2
    want = F.grid_sample(x.exp(), grid, align_corners=True).sin()
    torch.testing.assert_close(tw.compile(Sampled(), (x, grid))(x, grid), want)
    check(Sampled(), x.requires_grad_(), grid.requires_grad_(), grad=True)
