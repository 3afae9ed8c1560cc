"""Steps of recurrent layers in graphs of AOTAutograd. On a GPU PyTorch makes two products and one op of its own of a step, whose backward
pass reads a workspace; here a step is plain ops on every device, which are fused with what stands around them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .tracing import exchanged_kernels


def _gates(x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    import torch

    linear = torch.nn.functional.linear
    return linear(x, w_ih, b_ih).unsafe_chunk(count, 1), linear(h, w_hh, b_hh).unsafe_chunk(count, 1)


def _gru(x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    mine, old = _gates(x, h, w_ih, w_hh, b_ih, b_hh, 3)
    reset, keep = ((old[k] + mine[k]).sigmoid() for k in (0, 1))
    new = (mine[2] + old[2] * reset).tanh()
    return (h - new) * keep + new


def _lstm(x: Any, state: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, Any]:
    h, cell = state
    add, keep, new, show = (b + a for a, b in zip(*_gates(x, h, w_ih, w_hh, b_ih, b_hh, 4), strict=True))
    cell = keep.sigmoid() * cell + add.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell


def _plain() -> Iterator[tuple[Any, Any, Callable[..., Any]]]:
    import torch

    for op, kernel in ((torch.ops.aten.gru_cell.default, _gru), (torch.ops.aten.lstm_cell.default, _lstm)):
        yield op, torch._C.DispatchKey.CompositeImplicitAutograd, kernel


plain_cells = exchanged_kernels(_plain)  # inside, steps of recurrent layers are traced as plain ops
