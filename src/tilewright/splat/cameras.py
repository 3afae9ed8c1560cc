"""Cameras: a size, a pose (world to camera: x right, y down, z forward) and intrinsics in pixels."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError

Array = np.ndarray[Any, Any]
FAR = 1e15  # numbers of a camera in a file are smaller: products of larger ones overflow in f32


@dataclass(frozen=True, eq=False)
class Camera:
    """One view. `image` is the file of its photograph, where there is one."""

    width: int
    height: int
    view: Array  # [4,4]
    intrinsics: Array  # [3,3]
    model: str = "pinhole"
    name: str = ""
    image: Path | None = None

    @property
    def position(self) -> Array:
        """Where the camera stands in the world."""
        found: Array = -self.view[:3, :3].T @ self.view[:3, 3]
        return found

    def resized(self, scale: float) -> Camera:
        """The same view in another number of pixels."""
        width, height = max(1, round(self.width * scale)), max(1, round(self.height * scale))
        k = self.intrinsics.copy()
        k[0] *= width / self.width
        k[1] *= height / self.height
        return Camera(width, height, self.view, k, self.model, self.name, self.image)


def focal(width: int, height: int, focal_x: float, focal_y: float | None = None, center: tuple[float, float] | None = None) -> Array:
    """The matrix of intrinsics; the principal point is the middle of the picture unless given."""
    cx, cy = center or (width / 2, height / 2)
    return np.array([[focal_x, 0, cx], [0, focal_y or focal_x, cy], [0, 0, 1]], np.float32)


def look_at(eye: Sequence[float], target: Sequence[float] = (0, 0, 0), *, width: int = 640, height: int = 480, fov: float = 50.0,
            up: Sequence[float] = (0, 1, 0), model: str = "pinhole") -> Camera:
    """A camera at `eye` that looks at `target`; `fov` is the field of view across the picture, in degrees.

    >>> look_at((0, 0, -2)).view[:3, 3].round(3).tolist()
    [0.0, 0.0, 2.0]
    """
    at, to, above = (np.asarray(v, float) for v in (eye, target, up))
    if at.shape != (3,) or to.shape != (3,) or above.shape != (3,) or not 0 < fov < 180 or not all(
            np.abs(v).max() < FAR for v in (at, to, above)):
        raise InputError(f"camera: eye, target and up are three finite numbers and 0 < fov < 180, got {eye}, {target}, {up} and fov={fov}")
    forward = to - at
    side = np.cross(forward, above)
    if np.linalg.norm(side) < 1e-9 * max(1.0, float(np.linalg.norm(forward))):
        raise InputError(f"camera: eye and target must differ, and not along `up`, got {eye} and {target}")
    z, x = forward / np.linalg.norm(forward), side / np.linalg.norm(side)
    rotation = np.stack([x, np.cross(z, x), z])
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = rotation, -rotation @ at
    across = math.radians(fov)
    f = width / across if model == "fisheye" else width / 2 / math.tan(across / 2)
    return Camera(width, height, view.astype(np.float32), focal(width, height, f), model)


def orbit(target: Sequence[float] = (0, 0, 0), *, radius: float, count: int, elevation: float = 20.0, **options: Any) -> list[Camera]:
    """`count` cameras on a circle around a point, `elevation` degrees above it; other options are those of `look_at`. `up` is an axis."""
    up = np.asarray(options.get("up", (0, 1, 0)), float)
    if up.shape != (3,) or not 0 < (length := float(np.linalg.norm(up))) < FAR:
        raise InputError(f"camera: up is a direction, three finite numbers that are not all zero, got {options.get('up')}")
    up = up / length
    first = np.cross(up, (0, 0, 1) if abs(up[2]) < 0.9 else (1, 0, 0))
    first /= np.linalg.norm(first)
    second = np.cross(up, first)
    tilt = math.radians(elevation)
    cameras = []
    for angle in np.arange(count) * (2 * math.pi / max(count, 1)):
        offset = (math.cos(angle) * first + math.sin(angle) * second) * math.cos(tilt) + up * math.sin(tilt)
        cameras.append(look_at((np.asarray(target, float) + radius * offset).tolist(), target, **options))
    return cameras
