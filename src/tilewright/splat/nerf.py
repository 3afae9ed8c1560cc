"""Cameras as the synthetic scenes of NeRF have them: `transforms.json`, poses from camera to world with y up and z backwards."""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import STRANGE, FormatError
from ..core.files import read_file, write_file
from .cameras import FAR, Array, Camera, focal
from .images import read_image

FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def read_transforms(path: Path) -> list[Camera]:
    """The cameras of one file; sizes that it does not name are those of the first picture."""
    try:
        data = json.loads(read_file(path, subject="transforms"))
        frames = data["frames"]
        poses = [np.asarray(f["transform_matrix"], float) for f in frames]
        files = [_picture(path.parent, str(f["file_path"])) for f in frames]
    except STRANGE as e:
        raise FormatError(f"transforms: {path} must hold frames: file_path, transform_matrix ({type(e).__name__}: {e!s:.200})") from e
    if any(p.shape != (4, 4) or not np.abs(p).max() < FAR or abs(np.linalg.det(p)) < 1e-9 for p in poses):
        raise FormatError(f"transforms: a transform_matrix is 4x4 and has an inverse ({path})")
    cameras = []
    for frame, pose, file in zip(frames, poses, files, strict=True):
        given = {**data, **frame}
        width, height = _size(given, path) if "w" in given and "h" in given else read_image(file).shape[1::-1]
        cameras.append(Camera(width, height, np.linalg.inv(pose @ FLIP).astype(np.float32), _intrinsics(given, width, height, path),
                              name=file.name, image=file))
    return cameras


def _size(given: dict[str, Any], path: Path) -> tuple[int, int]:
    try:
        width, height = int(given["w"]), int(given["h"])
    except STRANGE:
        width = height = 0
    if not 0 < width < 1 << 20 or not 0 < height < 1 << 20:
        raise FormatError(f"transforms: w and h are the pixels of a picture, got {given['w']!r:.60} and {given['h']!r:.60} ({path})")
    return width, height


def _picture(folder: Path, name: str) -> Path:
    path = folder / name
    return path if path.suffix else path.parent / f"{path.name}.png"


def _intrinsics(given: dict[str, Any], width: int, height: int, path: Path) -> Array:
    try:
        if "fl_x" in given:
            fx, fy = float(given["fl_x"]), float(given.get("fl_y", given["fl_x"]))
        else:
            fx = fy = width / 2 / math.tan(float(given["camera_angle_x"]) / 2)
        center = float(given.get("cx", width / 2)), float(given.get("cy", height / 2))
    except STRANGE as e:
        raise FormatError(f"transforms: {path} must name camera_angle_x, or fl_x ({type(e).__name__}: {e!s:.200})") from e
    if not 0 < min(fx, fy) <= max(fx, fy) < FAR or not max(map(abs, center)) < FAR:
        raise FormatError(f"transforms: focal lengths are positive and finite, got {fx:.6g}, {fy:.6g} and center {center} ({path})")
    return focal(width, height, fx, fy, center)


def save_transforms(path: str | Path, cameras: Sequence[Camera], files: Sequence[str]) -> None:
    """Write cameras and the names of their pictures."""
    frames = []
    for c, file in zip(cameras, files, strict=True):
        pose = np.linalg.inv(c.view.astype(float)) @ FLIP
        frames.append({"file_path": file, "transform_matrix": pose.tolist(), "w": c.width, "h": c.height, "fl_x": float(c.intrinsics[0, 0]),
                       "fl_y": float(c.intrinsics[1, 1]), "cx": float(c.intrinsics[0, 2]), "cy": float(c.intrinsics[1, 2])})
    write_file(path, json.dumps({"frames": frames}, indent=1).encode(), subject="transforms")
