"""Splats and long sorts on a GPU, against our own results on the CPU and against PyTorch's sorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.runtime.cuda import driver as cuda_driver

WHY = cuda_driver.available()
pytestmark = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")


def scene(rng: np.random.Generator, count: int, spread: float) -> list[Any]:
    scales = np.exp(rng.uniform(np.log(0.01), np.log(0.06), (count, 3)))
    arrays = (rng.normal(size=(count, 3)) * spread, scales, rng.normal(size=(count, 4)), rng.uniform(0.05, 1, count),
              rng.normal(size=(count, 16, 3)) * 0.2)
    return [a.astype(np.float32) for a in arrays]


def far_apart(got: Any, want: Any) -> float:
    """The norm of the difference over the norm."""
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))  # type: ignore[operator]


@pytest.mark.parametrize(("count", "spread", "width", "height"),
                         [(0, 1, 40, 30), (1, 0.1, 16, 16), (700, 0.02, 16, 16), (3000, 0.01, 333, 257), (20000, 0.7, 640, 361)])
def test_pictures_and_gradients_are_those_of_the_cpu(count: int, spread: float, width: int, height: int) -> None:
    rng = np.random.default_rng(count)
    views = np.stack([c.view for c in tw.splat.orbit(radius=3, count=2, width=width, height=height)])
    k = np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1]], np.float32)
    given = [*scene(rng, count, spread), views, k]
    cotangent = rng.normal(size=(2, height, width, 3)).astype(np.float32)

    def draw(*arrays: Any) -> Any:
        return tw.splat_render(*arrays, width=width, height=height)

    def loss(g: Any, *arrays: Any) -> Any:
        image = draw(*arrays)
        return tw.sum(image.color * g) + tw.sum(image.depth * 0.1) + tw.sum(image.alpha)

    grads = tw.jit(tw.grad(loss, argnums=tuple(range(1, 8))))
    on_gpu = [torch.from_numpy(a).cuda() for a in (cotangent, *given)]
    session = tw.jit(draw)
    for name, got, again, want in zip(("color", "depth", "alpha"), session(*on_gpu[1:]), session(*on_gpu[1:]), tw.jit(draw)(*given),
                                      strict=True):
        assert torch.equal(got, again), name
        assert far_apart(got.cpu().numpy(), np.asarray(want)) < 2e-5, name
    names = ("means", "scales", "quats", "opacities", "sh", "views", "intrinsics")
    for name, got, again, want in zip(names, grads(*on_gpu), grads(*on_gpu), grads(cotangent, *given), strict=True):
        assert torch.equal(got, again), name
        assert far_apart(got.cpu().numpy(), np.asarray(want)) < 1e-3, name


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8"])
@pytest.mark.parametrize(("shape", "dim"), [((3, 65), 1), ((40_000, 2), 0), ((1, 1_000_003), 1), ((5, 4096), 1)])
def test_long_sorts_are_those_of_torch(dtype: str, shape: tuple[int, ...], dim: int) -> None:
    x = (torch.randn(shape, dtype=torch.float64, device="cuda") * 1000).to(getattr(torch, dtype))
    if x.is_floating_point():
        x.view(-1)[::7] = float("nan")
        x.view(-1)[1::11] = -0.0
        x.view(-1)[2::11] = 0.0
        x.view(-1)[3::50] = -float("inf")
    for descending in (False, True):
        values, indices = tw.jit(lambda v, d=descending: (tw.sort(v, axis=dim, descending=d), tw.argsort(v, axis=dim, descending=d)))(x)
        want = torch.sort(x, dim=dim, descending=descending, stable=True)
        assert torch.equal(indices, want.indices)
        assert torch.equal(values.nan_to_num() if x.is_floating_point() else values,
                           want.values.nan_to_num() if x.is_floating_point() else want.values)
