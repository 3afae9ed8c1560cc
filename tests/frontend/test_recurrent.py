"""Recurrent cells with any batch, against torch's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw

from .check import check


def states(cell: nn.Module, batch: tuple[int, ...]) -> tuple[Any, ...]:
    h = torch.randn(*batch, 7)
    return (torch.randn(*batch, 5), (h, torch.randn(*batch, 7)) if isinstance(cell, nn.LSTMCell) else h)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell, partial(nn.RNNCell, nonlinearity="relu")])
def test_cells(kind: Any, bias: bool) -> None:
    cell = kind(5, 7, bias=bias)
    batch = tw.Dim("B", 1, 64)
    hidden = ({0: batch}, {0: batch}) if isinstance(cell, nn.LSTMCell) else {0: batch}
    check(cell, states(cell, (3,)), more=[states(cell, (n,)) for n in (1, 2, 64)], dynamic={"input": {0: batch}, "hx": hidden})
    check(cell, states(cell, ()))


def test_a_cell_compiled_for_any_batch() -> None:
    cell = nn.GRUCell(5, 7)
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(cell, states(cell, (3,)), dynamic_shapes=({0: batch}, {0: batch}))
    session = tw.compile(program)
    for n in (2, 5, 16):
        args = states(cell, (n,))
        torch.testing.assert_close(session(*args), cell(*args).detach(), rtol=1e-5, atol=1e-5)
