"""Convolutions of patches as products, and the gradients of their weights, against PyTorch; what stays a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nn

import tilewright.ops as o
from tests.cuda.launching import graph
from tests.fresh import fresh_rng
from tilewright.core.dtypes import f32, f64
from tilewright.ir.interp import run
from tilewright.ops import functions as F
from tilewright.passes.base import Log
from tilewright.passes.patch_products import PatchProducts


def conv(kernel: tuple[int, ...], **changed: Any) -> o.Conv:
    n = len(kernel)
    return o.Conv(**{"stride": kernel, "padding": ((0, 0),) * n, "dilation": (1,) * n, **changed})


def products(g: Any) -> list[str]:
    out = PatchProducts().run(g.clone()[0], Log())
    return [n.op.name for n in out.nodes if n.op.name in ("conv", "matmul", "weight_gradient", "add")]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("image", "kernel"), [((9, 13), (4, 3)), ((32,), (16,)), ((5, 8, 6), (2, 4, 3))], ids=str)
def test_patches(image: tuple[int, ...], kernel: tuple[int, ...], bias: bool) -> None:
    """Rows and columns behind the last window are left out."""
    rng, n = fresh_rng(), len(kernel)
    x, w, b = (rng.normal(size=s) for s in ((2, 3, *image), (20, 3, *kernel), (20, *(1,) * n)))
    given = (x, w, b) if bias else (x, w)
    g = graph(lambda v, u, *s: F.add(conv(kernel)(v, u), *s) if bias else conv(kernel)(v, u), *((f64, a.shape) for a in given))
    assert products(g) == ["matmul", *(["add"] if bias else [])]
    got = run(PatchProducts().run(g.clone()[0], Log()), given)[0]
    torch_conv: Any = (nn.conv1d, nn.conv2d, nn.conv3d)[n - 1]
    want = torch_conv(*(torch.from_numpy(v) for v in (x, w)), torch.from_numpy(b.reshape(-1)) if bias else None, kernel)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("image", [(8, 6), (9, 8)], ids=str)
def test_gradients_of_their_weights(image: tuple[int, int]) -> None:
    rng, kernel = fresh_rng(), (4, 3)
    x, w = (torch.from_numpy(rng.normal(size=s)).requires_grad_() for s in ((2, 3, *image), (20, 3, *kernel)))
    y = nn.conv2d(x, w, None, kernel)
    g = torch.from_numpy(rng.normal(size=tuple(y.shape)))
    y.backward(g)
    op = o.WeightGradient(kernel=kernel, stride=kernel, dilation=(1, 1), padding=((0, 0),) * 2)
    made = graph(lambda v, u: op(v, u), *((f64, tuple(t.shape)) for t in (x, g)))
    assert products(made) == ["matmul"]
    got = run(PatchProducts().run(made.clone()[0], Log()), (x.detach().numpy(), g.numpy()))[0]
    np.testing.assert_allclose(got, w.grad.numpy(), rtol=1e-10, atol=1e-10)  # type: ignore[union-attr]


@pytest.mark.parametrize("changed", [
    {"stride": (3, 4)}, {"padding": ((0, 0), (1, 0))}, {"dilation": (1, 2)}, {"groups": 3}, {"channels": 40}, {"kernel": (1, 1)},
], ids=str)  # fmt: skip
def test_what_stays_a_convolution(changed: dict[str, Any]) -> None:
    """Windows that overlap or leave the image, groups, and many channels, whose taps are read as they lie."""
    changed = dict(changed)
    kernel, channels = changed.pop("kernel", (4, 4)), changed.pop("channels", 3)
    each = channels // changed.get("groups", 1)
    g = graph(lambda v, u: conv(kernel, **changed)(v, u), (f32, (1, channels, 16, 16)), (f32, (24, each, *kernel)))
    assert products(g) == ["conv"]
