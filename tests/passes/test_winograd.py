"""Which convolutions become Winograd's, and that those of small floats are as exact as their dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.target.cpu.host import host_target


def shown(module: nn.Module, x: torch.Tensor) -> str:
    return str(tw.compile(module.eval(), (x,)).report())


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float32, 2.0**-20)])
def test_small_floats_are_transformed_in_f32(dtype: torch.dtype, unit: float) -> None:
    conv = nn.Conv2d(20, 18, 3, padding=1).to(dtype)
    x = torch.randn(2, 20, 14, 15).to(dtype)
    session = tw.compile(conv.eval(), (x,))
    assert "results a tile" in str(session.report())
    want = nn.functional.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)  # type: ignore[union-attr]
    found = torch.as_tensor(session(x)).double()
    assert (found - want).norm() < unit * want.norm()  # half a unit in the last place for each result, and hardly more


def test_large_weights_in_bf16_stay_direct() -> None:
    """Tiles of 2x2 save a half, which pairs of bf16 numbers save without a transform."""
    x = torch.randn(1, 512, 3, 3)
    conv = nn.Conv2d(512, 256, 3, padding=1)
    assert "2x2 results a tile" in shown(conv, x)
    assert "results a tile" not in shown(conv.bfloat16(), x.bfloat16())


def test_weights_of_few_tiles_in_bf16_stay_direct() -> None:
    """Reading a weight for each of 36 positions takes longer than the direct sum over a small image saves, whatever the batch."""
    conv = nn.Conv2d(128, 128, 3, padding=1).bfloat16()
    assert "results a tile" not in shown(conv, torch.randn(4, 128, 14, 14).bfloat16())
    assert ("4x4 results a tile" in shown(conv, torch.randn(1, 128, 28, 28).bfloat16())) is not host_target().has("amx-tile", "amx-bf16")
