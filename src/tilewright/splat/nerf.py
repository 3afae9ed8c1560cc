"""Cameras as the synthetic scenes of NeRF have them: `transforms.json`, poses from camera to world with y up and z backwards."""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FormatError
from ..core.files import write_file
from .cameras import Array, Camera, focal
from .images import read_image

FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def read_transforms(path: Path) -> list[Camera]:
    """The cameras of one file; sizes that it does not name are those of the first picture."""
    try:
        data = json.loads(path.read_text())
        frames = data["frames"]
        poses = [np.asarray(f["transform_matrix"], float) for f in frames]
        files = [_picture(path.parent, str(f["file_path"])) for f in frames]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise FormatError(f"transforms: {path} must hold frames with file_path and transform_matrix ({type(e).__name__}: {e})") from e
    if any(p.shape != (4, 4) or not np.isfinite(p).all() or abs(np.linalg.det(p)) < 1e-9 for p in poses):
        raise FormatError(f"transforms: a transform_matrix is 4x4 and has an inverse ({path})")
    cameras = []
    for frame, pose, file in zip(frames, poses, files, strict=True):
        given = {**data, **frame}
        width, height = (int(given["w"]), int(given["h"])) if "w" in given and "h" in given else read_image(file).shape[1::-1]
        cameras.append(Camera(width, height, np.linalg.inv(pose @ FLIP).astype(np.float32), _intrinsics(given, width, height, path),
                              name=file.name, image=file))
    return cameras


def _picture(folder: Path, name: str) -> Path:
    path = folder / name
    return path if path.suffix else path.with_name(path.name + ".png")


def _intrinsics(given: dict[str, Any], width: int, height: int, path: Path) -> Array:
    try:
        if "fl_x" in given:
            fx, fy = float(given["fl_x"]), float(given.get("fl_y", given["fl_x"]))
        else:
            fx = fy = width / 2 / math.tan(float(given["camera_angle_x"]) / 2)
        return focal(width, height, fx, fy, (float(given.get("cx", width / 2)), float(given.get("cy", height / 2))))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
        raise FormatError(f"transforms: {path} must name camera_angle_x, or fl_x ({type(e).__name__}: {e})") from e


def save_transforms(path: str | Path, cameras: Sequence[Camera], files: Sequence[str]) -> None:
    """Write cameras and the names of their pictures."""
    frames = []
    for c, file in zip(cameras, files, strict=True):
        pose = np.linalg.inv(c.view.astype(float)) @ FLIP
        frames.append({"file_path": file, "transform_matrix": pose.tolist(), "w": c.width, "h": c.height, "fl_x": float(c.intrinsics[0, 0]),
                       "fl_y": float(c.intrinsics[1, 1]), "cx": float(c.intrinsics[0, 2]), "cy": float(c.intrinsics[1, 2])})
    write_file(path, json.dumps({"frames": frames}, indent=1).encode(), subject="transforms")
