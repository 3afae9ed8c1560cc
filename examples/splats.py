"""A synthetic scene, pictures of it, and a scene of Gaussians trained from those pictures.

    python examples/splats.py                     a minute on two free cores
    python examples/splats.py --steps 600 -o out  quicker, and somewhere else

Balls on a chequered disc are ray-traced from 40 places; 32 of the pictures are for training. Points on the surfaces, with noise, are what
the training begins with, as if structure from motion had found them. The pictures of the views that were held out are compared with
what the trained scene shows there; `comparison.png` has both side by side, `scene.ply` the scene, `orbit.gif` a walk around it.
"""
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

Array = np.ndarray[Any, Any]
SIZE = 160
BALLS = (((0.0, 0.35, 0.0), 0.35, (0.9, 0.2, 0.15)), ((0.7, 0.22, 0.35), 0.22, (0.15, 0.5, 0.9)),
         ((-0.55, 0.25, 0.5), 0.25, (0.2, 0.75, 0.3)), ((-0.45, 0.18, -0.6), 0.18, (0.95, 0.75, 0.1)),
         ((0.5, 0.15, -0.55), 0.15, (0.6, 0.25, 0.8)))
LIGHT = np.array([0.5, 0.8, -0.3]) / np.linalg.norm([0.5, 0.8, -0.3])


def rays(camera: tw.splat.Camera) -> tuple[Array, Array]:
    """Where the camera stands, and a direction a pixel [H,W,3]."""
    y, x = np.mgrid[: camera.height, : camera.width] + 0.5
    k = camera.intrinsics
    local = np.stack([(x - k[0, 2]) / k[0, 0], (y - k[1, 2]) / k[1, 1], np.ones_like(x)], -1)
    world = local @ camera.view[:3, :3]
    return camera.position, world / np.linalg.norm(world, axis=-1, keepdims=True)


def hit(origin: Array, direction: Array) -> tuple[Array, Array, Array]:
    """Distance, normal and colour of what a ray meets first (infinite distance: nothing)."""
    far = np.full(direction.shape[:-1], np.inf)
    normal, color = np.zeros_like(direction), np.zeros_like(direction)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = -origin[..., 1] / direction[..., 1]
        at = origin + t[..., None] * direction
    disc = (t > 1e-4) & (np.hypot(at[..., 0], at[..., 2]) < 1.15)
    chequer = (np.floor(at[..., 0] * 3) + np.floor(at[..., 2] * 3)) % 2
    far = np.where(disc, t, far)
    normal[disc] = (0, 1, 0)
    color[disc] = np.where(chequer[disc][:, None] > 0, (0.85, 0.82, 0.75), (0.25, 0.28, 0.35))
    for centre, radius, paint in BALLS:
        to = origin - np.asarray(centre)
        b = (to * direction).sum(-1)
        inside = b * b - ((to * to).sum(-1) - radius * radius)
        t = -b - np.sqrt(np.maximum(inside, 0))
        here = (inside > 0) & (t > 1e-4) & (t < far)
        far = np.where(here, t, far)
        point = origin + t[..., None] * direction
        normal[here] = ((point - np.asarray(centre)) / radius)[here]
        stripe = np.sin(14 * (point[..., 1] + 0.4 * point[..., 0])) > 0
        color[here] = (np.asarray(paint) * np.where(stripe[..., None], 1.0, 0.75))[here]
    return far, normal, color


def trace(camera: tw.splat.Camera) -> tuple[Array, Array]:
    """A picture over white, nine rays a pixel weighted as a lens blurs, and the depth of each pixel's middle."""
    total, depth = np.zeros((camera.height, camera.width, 3)), np.zeros(())
    for dx, dy in ((x, y) for x in (-0.6, 0.0, 0.6) for y in (-0.6, 0.0, 0.6)):
        k = camera.intrinsics.copy()
        k[:2, 2] -= (dx, dy)
        weight = (0.25 if dx else 0.5) * (0.25 if dy else 0.5)
        origin, direction = rays(tw.splat.Camera(camera.width, camera.height, camera.view, k))
        origin = np.broadcast_to(origin, direction.shape)
        far, normal, color = hit(origin, direction)
        seen = np.isfinite(far)
        point = origin + np.where(seen, far, 0)[..., None] * direction
        shade = ~np.isfinite(hit(point + normal * 1e-3, np.broadcast_to(LIGHT, point.shape))[0])
        glance = np.maximum((normal * (LIGHT - direction) / np.linalg.norm(LIGHT - direction, axis=-1, keepdims=True)).sum(-1), 0) ** 20
        lit = 0.35 + 0.65 * np.maximum((normal @ LIGHT), 0) * shade
        total += np.where(seen[..., None], color * lit[..., None] + 0.1 * (glance * shade)[..., None], 1.0) * weight
        depth = far if weight == 0.25 else depth
    return np.clip(total, 0, 1).astype(np.float32), depth


def make_views(size: int = SIZE) -> tw.splat.Views:
    """32 pictures to train from, 8 to test with, and noisy points of the surfaces."""
    places = [c for i, e in enumerate((12, 28, 44, 60)) for c in tw.splat.orbit((0, 0.15, 0), radius=2.6 + 0.1 * i, count=10, elevation=e,
                                                                              width=size, height=size, fov=54)]
    rng = np.random.default_rng(0)
    train, test = [c for i, c in enumerate(places) if i % 5 != 2], places[2::5]
    points, colors, pictures = [], [], []
    for c in train:
        picture, far = trace(c)
        pictures.append(picture)
        origin, direction = rays(c)
        seen = np.argwhere(np.isfinite(far))
        some = seen[rng.choice(len(seen), 150, replace=False)]
        at = tuple(some.T)
        points.append(origin + far[at][:, None] * direction[at] + rng.normal(size=(len(some), 3)) * 0.01)
        colors.append(picture[at])
    return tw.splat.Views(train, pictures, test, [trace(c)[0] for c in test], np.concatenate(points).astype(np.float32),
                          np.concatenate(colors).astype(np.float32))


def main(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--size", type=int, default=SIZE, help="pixels of a picture's side")
    parser.add_argument("-o", "--output", type=Path, default=Path("splats"))
    args = parser.parse_args(argv)
    begin = time.perf_counter()
    views = make_views(args.size)
    print(f"{len(views.cameras)} views to train from, {len(views.test_cameras)} held out, {len(views.points)} points")
    options = tw.splat.Options(steps=args.steps, degree=1, degree_every=args.steps // 5, densify_from=args.steps // 20,
                               densify_until=args.steps // 2, reset_every=args.steps * 2, densify_gradient=2e-4, most=12_000, rate_sh=5e-3)
    trainer = tw.splat.Trainer(views, options, background=(1, 1, 1))

    def show(p: Any) -> None:
        if p.step % max(args.steps // 10, 1) == 0:
            print(f"step {p.step:5d}  loss {p.loss:.4f}  {p.count:6d} Gaussians  {time.perf_counter() - begin:5.0f} s", flush=True)

    trainer.run(each=show)
    quality = trainer.quality()
    args.output.mkdir(parents=True, exist_ok=True)
    tw.splat.save(args.output / "scene.ply", trainer.scene())
    held = zip(views.test_cameras[:4], views.test_pictures[:4], strict=True)
    pairs = [np.concatenate([truth, np.clip(trainer.picture(c), 0, 1)], 0) for c, truth in held]
    tw.splat.write_png(args.output / "comparison.png", np.concatenate(pairs, 1))
    circle = tw.splat.orbit((0, 0.15, 0), radius=2.7, count=24, elevation=25, width=args.size, height=args.size, fov=54)
    tw.splat.write_gif(args.output / "orbit.gif", [trainer.picture(c) for c in circle], seconds=0.08)
    print(f"{quality:.2f} dB on held-out views, {trainer.count} Gaussians, {time.perf_counter() - begin:.0f} s; see {args.output}")
    return quality


if __name__ == "__main__":
    main(sys.argv[1:])
