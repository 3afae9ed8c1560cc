"""A scene: Gaussians with their parameters as files and training have them (logarithms of scales, logits of opacities)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..core.errors import ExecutionError, InputError
from ..transform.lib.splats import SH0, SplatImage
from .cameras import Array, Camera

NEAR = 16  # places along a curve on either side where neighbours are looked for


@dataclass(eq=False)
class Scene:
    """N Gaussians: means [N,3] · log_scales [N,3] · quats [N,4] (w, x, y, z) · logits [N] of opacities · sh [N,K,3]."""

    means: Array
    log_scales: Array
    quats: Array
    logits: Array
    sh: Array

    def __post_init__(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # what f32 does not hold is infinite, and draws nothing
            for f in fields(self):
                setattr(self, f.name, np.ascontiguousarray(getattr(self, f.name), np.float32))
        n = len(self.means)
        shapes = {"means": (n, 3), "log_scales": (n, 3), "quats": (n, 4), "logits": (n,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise InputError(f"scene: {name} must be {list(shape)}, got {list(getattr(self, name).shape)}")
        if self.sh.ndim != 3 or self.sh.shape[0] != n or self.sh.shape[1] not in (1, 4, 9, 16) or self.sh.shape[2] != 3:
            raise InputError(f"scene: sh must be [{n},K,3] with K = 1, 4, 9 or 16, got {list(self.sh.shape)}")

    def __len__(self) -> int:
        return len(self.means)

    @property
    def degree(self) -> int:
        """The degree of the spherical harmonics."""
        return int(self.sh.shape[1] ** 0.5) - 1

    def arrays(self) -> tuple[Array, ...]:
        """Means, scales, quaternions, opacities and harmonics: the first operands of `tw.splat_render`."""
        with np.errstate(over="ignore"):
            return self.means, np.exp(self.log_scales), self.quats, 1 / (1 + np.exp(-self.logits)), self.sh

    def render(self, camera: Camera, *, background: Sequence[float] = (0, 0, 0), **options: Any) -> SplatImage:
        """A picture. Tile lists grow to what the view needs."""
        from ..array.functions import splat_render

        call = {"width": camera.width, "height": camera.height, "camera": camera.model, "background": np.asarray(background, np.float32),
                **options}
        try:
            found: SplatImage = splat_render(*self.arrays(), camera.view, camera.intrinsics, **call)
        except ExecutionError as e:
            need = needed_capacity(e)
            if need is None or "capacity" in options:
                raise
            found = splat_render(*self.arrays(), camera.view, camera.intrinsics, capacity=need, **call)
        return found

    def take(self, rows: Any) -> Scene:
        """Some of the Gaussians."""
        return Scene(*(getattr(self, f.name)[rows] for f in fields(self)))

    def bounds(self) -> tuple[Array, float]:
        """The middle of the scene and the radius that holds nine tenths of it; Gaussians that are not finite do not count."""
        good = self.means[np.isfinite(self.means).all(1)].astype(np.float64)  # squares of f32 overflow
        if not len(good):
            return np.zeros(3, np.float32), 1.0
        middle = np.median(good, axis=0)
        return middle.astype(np.float32), max(float(np.quantile(np.linalg.norm(good - middle, axis=1), 0.9)), 1e-3)

    @classmethod
    def from_points(cls, points: Any, colors: Any, *, degree: int = 3, opacity: float = 0.1, neighbours: int = 3) -> Scene:
        """One Gaussian a point, as wide as the way to its nearest neighbours; colours [N,3] between 0 and 1."""
        points, colors = np.asarray(points, np.float32), np.asarray(colors, np.float32)
        if points.ndim != 2 or points.shape[1] != 3 or colors.shape != points.shape:
            raise InputError(f"scene: points and colors must be [N,3], got {list(points.shape)} and {list(colors.shape)}")
        n = len(points)
        sh = np.zeros((n, (degree + 1) ** 2, 3), np.float32)
        sh[:, 0] = (colors - 0.5) / SH0
        scale = np.log(np.maximum(spacing(points, neighbours), 1e-6))
        quats = np.tile(np.array([1, 0, 0, 0], np.float32), (n, 1))
        return cls(points, np.repeat(scale[:, None], 3, 1), quats, np.full(n, np.log(opacity / (1 - opacity))), sh)


def needed_capacity(error: ExecutionError) -> int | None:
    """How long the tile lists must be, where that is what an error says; with some room."""
    _, found, text = str(error).partition("capacity=")
    digits = text.partition(" ")[0]
    return int(digits) * 5 // 4 if found and digits.isdigit() else None


def spacing(points: Array, neighbours: int) -> Array:
    """The mean distance of each point to its nearest neighbours: among those that lie near it along two curves that fill space."""
    n = len(points)
    if n <= 1:
        return np.full(n, 0.1, np.float32)
    points = np.nan_to_num(points.astype(np.float64))
    low = points.min(0)
    cells = (points - low) / max(float((points.max(0) - low).max()), 1e-9)
    around = np.array([s for s in range(-NEAR, NEAR + 1) if s])
    orders = [_along_curve(cells + shift) for shift in (0.0, 0.37)]
    places = [np.argsort(order) for order in orders]
    found = np.zeros(n, np.float32)
    for start in range(0, n, 1 << 14):
        rows = np.arange(start, min(start + (1 << 14), n))
        pairs = zip(orders, places, strict=True)
        near = np.concatenate([order[np.clip(place[rows][:, None] + around, 0, n - 1)] for order, place in pairs], 1)
        near.sort(axis=1)
        gap = np.linalg.norm(points[near] - points[rows][:, None], axis=2)
        gap[:, 1:][near[:, 1:] == near[:, :-1]] = np.inf  # met twice
        gap[near == rows[:, None]] = np.inf
        best = np.sort(gap, axis=1)[:, :neighbours]
        found[rows] = np.where(np.isfinite(best), best, 0).sum(1) / np.maximum(np.isfinite(best).sum(1), 1)
    return found


def _along_curve(cells: Array) -> Array:
    """Points between 0 and 1.4 in the order of the bits of their coordinates, interleaved."""
    grid = (cells * 700).astype(np.uint64)
    code = np.zeros(len(cells), np.uint64)
    for bit in range(10):
        for axis in range(3):
            code |= ((grid[:, axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(3 * bit + axis)
    return np.argsort(code, kind="stable")
