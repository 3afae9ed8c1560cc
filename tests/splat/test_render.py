"""Gaussian splatting against a dense float64 reference in PyTorch: pixels and gradients, bad input, cameras in batches, threads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.splat.dense import NAMES, Scene, look_at, random_scene, render
from tilewright.compile import build
from tilewright.core.errors import ExecutionError, ShapeError, UnsupportedError
from tilewright.core.pytree import flatten
from tilewright.ops.splats import SplatRasterizeBackward

SIZES = [(37, 29), (16, 16), (5, 3), (33, 17), (1, 1), (48, 31), (64, 20), (23, 40), (17, 65), (32, 32)]
OPTIONS: list[dict[str, Any]] = [{}, {"antialias": True}, {"camera": "fisheye"}, {"blur": 0.0}]


def args_of(scene: Scene) -> list[Any]:
    return [scene.arrays[n] for n in NAMES]


@functools.cache
def compiled(width: int, height: int, options: tuple[tuple[str, Any], ...]) -> Any:
    """Weighted sum of all pixels, the pictures, and gradients to every input."""

    def loss(args: Any, background: Any, cotangents: Any) -> Any:
        image = tw.splat_render(*args, background=background, width=width, height=height, **dict(options))
        return sum(tw.sum(x * g) for x, g in zip(image, cotangents, strict=True)), image

    return tw.jit(tw.value_and_grad(loss, argnums=(0, 1), has_aux=True))


def compared(scene: Scene, background: Any, rng: np.random.Generator) -> tuple[float, float]:
    """The largest error of a pixel, and of a gradient relative to its norm; doubtful pixels do not count."""
    leaves = {k: torch.tensor(v).double().requires_grad_() for k, v in scene.arrays.items()}
    behind = torch.tensor(background).double().requires_grad_()
    *want, doubtful = render(leaves, scene.width, scene.height, background=behind, **scene.options)
    sure = ~doubtful.numpy()
    images = [w.detach().numpy() for w in want]
    cotangents = [(rng.normal(size=w.shape) * sure.reshape(sure.shape + (1,) * (w.ndim - 2))).astype(np.float32) for w in images]
    both = compiled(scene.width, scene.height, tuple(scene.options.items()))
    (_, image), grads = both(args_of(scene), background, cotangents)
    pixels = max(float(np.abs(g - w)[sure].max(initial=0)) for g, w in zip(image, images, strict=True))
    total = torch.stack([(w * torch.tensor(g)).sum() for w, g in zip(want, cotangents, strict=True)]).sum()
    found = torch.autograd.grad(total, [*leaves.values(), behind], allow_unused=True)
    worst = 0.0
    for got, expected in zip([*grads[0], grads[1]], found, strict=True):
        exact = np.zeros(got.shape) if expected is None else torch.nan_to_num(expected).numpy()
        assert np.isfinite(got).all()
        worst = max(worst, float(np.linalg.norm(got - exact) / max(float(np.linalg.norm(exact)), 1e-3)))
    return pixels, worst


@pytest.mark.parametrize("number", range(20))
def test_pixels_and_gradients_are_those_of_every_gaussian_at_every_pixel(number: int) -> None:
    rng = fresh_rng()
    kind = number % len(SIZES)
    width, height = SIZES[kind]
    scene = random_scene(rng, count=(40, 3, 90)[kind % 3], width=width, height=height, degree=kind % 4, **OPTIONS[kind // 2 % 4])
    if number % 5 == 0:  # what no scene should hold
        for name, row, value in (("means", 1, np.nan), ("scales", 2, np.inf), ("quats", 3, 0.0), ("opacities", 4, np.nan)):
            if len(scene.arrays["means"]) > row:
                scene.arrays[name][row] = value
    pixels, gradients = compared(scene, rng.uniform(size=3).astype(np.float32), rng)
    assert pixels <= 1e-5
    assert gradients <= 1e-4


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the depth's cotangent gradients are wrong, and it is noticed."""
    real = SplatRasterizeBackward.__call__
    compiled.cache_clear()
    monkeypatch.setattr(SplatRasterizeBackward, "__call__", lambda self, *v, **k: real(self, *v[:12], v[13], v[13], **k))
    rng = fresh_rng()
    _, gradients = compared(random_scene(rng, count=20, width=20, height=18), np.ones(3, np.float32), rng)
    compiled.cache_clear()
    assert gradients > 1e-3


def plain(count: int = 30, width: int = 40, height: int = 24, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    scene = random_scene(np.random.default_rng(seed), count=count, width=width, height=height)
    return args_of(scene), {"width": width, "height": height}


def test_an_empty_scene_is_its_background() -> None:
    args, size = plain(0)
    image = tw.splat_render(*args, background=np.array([0.2, 0.4, 0.6], np.float32), **size)
    np.testing.assert_array_equal(image.color, np.broadcast_to(np.array([0.2, 0.4, 0.6], np.float32), (24, 40, 3)))
    np.testing.assert_array_equal(image.alpha, 0)
    grads = tw.grad(lambda a: tw.sum(tw.splat_render(*a, **size).color))(args)
    assert [g.shape for g in grads] == [a.shape for a in args]
    assert all((g == 0).all() for g in grads)


def test_gaussians_behind_the_camera_draw_nothing() -> None:
    args, size = plain()
    args[0] = args[0] + np.linalg.inv(args[5])[:3, 3] * 3  # beyond the camera, seen from the origin
    image = tw.splat_render(*args, **size)
    assert not image.color.any()
    assert not image.alpha.any()


def test_zero_scales_are_dots_and_vanish_with_antialiasing() -> None:
    args, size = plain()
    args[1] = np.zeros_like(args[1])
    assert tw.splat_render(*args, **size).alpha.any()
    assert not tw.splat_render(*args, antialias=True, **size).alpha.any()
    grads = tw.grad(lambda a: tw.sum(tw.splat_render(*a, antialias=True, **size).color))(args)
    assert all(np.isfinite(g).all() for g in grads)


def test_cameras_in_a_batch_are_the_cameras_one_by_one() -> None:
    args, size = plain()
    views = np.stack([look_at((3 * np.cos(t), 0.5, 3 * np.sin(t))) for t in (0.1, 1.3, 2.9)]).astype(np.float32)
    single = [tw.splat_render(*args[:5], v, args[6], **size) for v in views]  # type: ignore[call-arg]
    batch = tw.splat_render(*args[:5], views, args[6], **size)  # type: ignore[arg-type, call-arg]
    mapped = tw.vmap(lambda v: tw.splat_render(*args[:5], v, args[6], **size))(views)  # type: ignore[call-arg]
    pairs = tw.vmap(lambda v: tw.splat_render(*args[:5], v, args[6], **size))(np.stack([views[:2], views[1:]]))  # type: ignore[call-arg]
    for i, one in enumerate(single):
        for name in ("color", "depth", "alpha"):
            np.testing.assert_array_equal(getattr(batch, name)[i], getattr(one, name))
            np.testing.assert_array_equal(getattr(mapped, name)[i], getattr(one, name))
    np.testing.assert_array_equal(pairs.color[1, 1], single[2].color)


def test_gradients_of_a_batch_are_the_sum() -> None:
    args, size = plain()
    views = np.stack([look_at((3 * np.cos(t), 0.5, 3 * np.sin(t))) for t in (0.1, 1.3)]).astype(np.float32)

    def loss(scene: Any, view: Any) -> Any:
        return tw.sum(tw.splat_render(*scene, view, args[6], **size).color ** 2)  # type: ignore[call-arg]

    scene = tuple(args[:5])
    whole, poses = tw.grad(loss, argnums=(0, 1))(scene, views)
    parts = [tw.grad(loss, argnums=(0, 1))(scene, v) for v in views]
    for g, *each in zip(whole, *(p[0] for p in parts), strict=True):
        np.testing.assert_allclose(g, sum(each), rtol=1e-5, atol=1e-5 * np.abs(g).max())
    for i, (_, pose) in enumerate(parts):
        np.testing.assert_allclose(poses[i], pose, rtol=1e-5, atol=1e-5 * np.abs(pose).max())


def test_prepare_and_rasterize_are_render() -> None:
    args, size = plain()
    view = tw.splat_prepare(*args, **size)
    image = tw.splat_rasterize(view, **size)
    np.testing.assert_array_equal(image.color[0], tw.splat_render(*args, **size).color)
    counts = np.diff(view.starts[0])
    assert counts.sum() == view.spans[0, :, 1].sum() == view.starts[0, -1]
    for tile in np.flatnonzero(counts):  # front to back
        ids = view.ids[0, view.starts[0, tile] : view.starts[0, tile + 1]]
        assert (np.diff(view.depths[0, ids]) >= 0).all()
    assert sorted(view.slots[0, : counts.sum()]) == list(range(counts.sum()))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    scene = random_scene(np.random.default_rng(3), count=300, width=70, height=50)
    size: dict[str, Any] = {"width": 70, "height": 50}

    def both(*args: Any) -> Any:
        return tw.value_and_grad(lambda *a: tw.sum(tw.splat_render(*a, **size).color ** 2), argnums=tuple(range(7)))(*args)

    model = tw.jit(both).lower(*args_of(scene)).model
    first, *others = ([np.asarray(x) for x in flatten(build(model, threads=n)(*args_of(scene)))[0]] for n in (1, 2, 5))
    for got in others:
        for a, b in zip(got, first, strict=True):
            np.testing.assert_array_equal(a, b)


def test_lists_that_do_not_fit_say_how_long_they_are() -> None:
    args, size = plain()
    need = int(tw.splat_prepare(*args, **size).starts[0, -1])
    with pytest.raises(ExecutionError, match=f"camera 0 need {need} entries, more than their capacity; pass capacity={need} or more"):
        tw.splat_render(*args, capacity=need - 1, **size)
    np.testing.assert_array_equal(tw.splat_render(*args, capacity=need, **size).color, tw.splat_render(*args, **size).color)


@pytest.mark.parametrize(
    ("index", "change", "match"),
    [
        (0, lambda x: x[:, :2], r"means must be \[30,3\], got f32\[30,2\]"),
        (3, lambda x: x[:5], r"opacities must be \[30\], got f32\[5\]"),
        (4, lambda x: x[:, :5], r"sh must be \[30,K,3\] with K = 1, 4, 9 or 16"),
        (1, lambda x: x.astype(np.float64), "scales must be f32, got f64.*cast first"),
        (5, lambda x: x[:3], r"viewmats must be \[C,4,4\] or \[4,4\]"),
    ],
)
def test_wrong_shapes_are_named(index: int, change: Any, match: str) -> None:
    args, size = plain()
    args[index] = change(args[index])
    with pytest.raises(ShapeError, match=match):
        tw.splat_render(*args, **size)


def test_wrong_options_are_named() -> None:
    args, size = plain()
    with pytest.raises(ShapeError, match="camera must be pinhole or fisheye, got 'round'"):
        tw.splat_render(*args, camera="round", **size)
    with pytest.raises(ShapeError, match="an image has at least one pixel, got width=0"):
        tw.splat_render(*args, width=0, height=3)
    with pytest.raises(ShapeError, match=r"background must be \[3\] or \[1,3\]"):
        tw.splat_render(*args, background=np.zeros(4, np.float32), **size)
    with pytest.raises(UnsupportedError, match="splats have a first derivative only"):
        tw.grad(lambda m: tw.sum(tw.grad(lambda m: tw.sum(tw.splat_render(m, *args[1:], **size).color))(m)))(args[0])
