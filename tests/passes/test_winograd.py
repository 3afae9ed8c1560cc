"""Which convolutions become Winograd's, and that those of small floats are as exact as their dtype."""

from __future__ import annotations

from typing import Any

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


PAIRS = host_target().multiplies_pairs


def test_large_weights_in_bf16_stay_direct() -> None:
    """Tiles of 2x2 save a half, which pairs of bf16 numbers save without a transform where an image has too few tiles for it."""
    x = torch.randn(1, 512, 3, 3)
    conv = nn.Conv2d(512, 256, 3, padding=1)
    assert "2x2 results a tile" in shown(conv, x)
    assert "results a tile" not in shown(conv.bfloat16(), x.bfloat16())


def test_weights_of_few_tiles_in_bf16_stay_direct() -> None:
    """Reading a weight for each of 36 positions takes longer than the direct sum over a small image saves, whatever the batch. Tiles of
    2x2 in pairs have 16 positions."""
    conv = nn.Conv2d(128, 128, 3, padding=1).bfloat16()
    small = shown(conv, torch.randn(4, 128, 14, 14).bfloat16())
    assert "2x2 results a tile" in small if PAIRS else "results a tile" not in small
    large = shown(conv, torch.randn(1, 128, 28, 28).bfloat16())
    if host_target().has("amx-tile", "amx-bf16"):
        assert "results a tile" not in large
    else:
        assert f"{'2x2' if PAIRS else '4x4'} results a tile" in large


@pytest.mark.skipif(not PAIRS, reason="tiles are rounded to bf16 only where pairs of such numbers are multiplied fast")
@pytest.mark.parametrize(("results", "size", "kernel", "groups"), [(64, (14, 15), (3, 3), 1), (90, (7, 7), (3, 3), 1),
                                                                   (72, (3, 8, 9), (2, 3, 3), 1), (128, (7, 7), (3, 3), 2),
                                                                   (180, (5, 6), (3, 3), 2)])
def test_tiles_of_pairs(results: int, size: tuple[int, ...], kernel: tuple[int, ...], groups: int) -> None:
    """Their error is at most three times that of rounding the exact result, and no bit depends on the batch, the order of axes or the
    threads. Also where panels of weights end early and taps have a third axis; a residual is added before the result is rounded."""
    kind: Any = nn.Conv2d if len(size) == 2 else nn.Conv3d
    channels = 66 * groups
    conv = kind(channels, results, kernel, padding=1, groups=groups).bfloat16().eval()

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x) + y)

    out = tuple(d + 3 - k for d, k in zip(size, kernel, strict=True))
    x, y = torch.randn(3, channels, *size).bfloat16(), torch.randn(3, results, *out).bfloat16()
    session = tw.compile(Residual().eval(), (x, y), threads=2)
    assert "2x2 results a tile" in str(session.report())
    found = torch.as_tensor(session(x, y))
    direct = getattr(nn.functional, f"conv{len(size)}d")
    assert conv.bias is not None
    want = torch.relu(direct(x.double(), conv.weight.double(), conv.bias.double(), padding=1, groups=groups) + y.double())
    rounding = (want.bfloat16().double() - want).norm()
    assert 0.5 * rounding < (found.double() - want).norm() < 3 * rounding
    alone = tw.compile(Residual().eval(), (x[:1], y[:1]), threads=1)
    assert torch.equal(torch.as_tensor(alone(x[1:2], y[1:2])), found[1:2])
    last = torch.channels_last if len(size) == 2 else torch.channels_last_3d
    turned = tw.compile(Residual().eval(), (x.to(memory_format=last), y), threads=1)
    assert torch.equal(torch.as_tensor(turned(x.to(memory_format=last), y)), found)
