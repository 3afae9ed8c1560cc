"""What a scene is trained from: photographs with their cameras, and points to begin with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import STRANGE, FileError, FormatError, InputError, MissingFileError
from ..core.files import read_file, write_file
from .cameras import FAR, Array, Camera, focal
from .colmap import find_model, read_colmap
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
        width, height = _size(given, path) if "w" in given and "h" in given else _named(file, path).shape[1::-1]
        cameras.append(Camera(width, height, np.linalg.inv(pose @ FLIP).astype(np.float32), _intrinsics(given, width, height, path),
                              name=file.name, image=file))
        if not np.abs(cameras[-1].position).max() < FAR:
            raise FormatError(f"transforms: frame {len(cameras) - 1} has no place in 32-bit floats, got transform_matrix "
                              f"{pose.tolist()!s:.300} ({path})")
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


def _named(file: Path, source: Path) -> Array:
    """A picture that the files at `source` name; an error says so."""
    try:
        return read_image(file)
    except (FileError, FormatError) as e:
        raise type(e)(f"{e} (named in {source})") from e


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


HELD_OUT = 8  # every eighth view is for testing where a folder does not say


@dataclass(eq=False)
class Views:
    """Cameras and their pictures [H,W,3], those held out, and points with colours (perhaps none)."""

    cameras: list[Camera]
    pictures: list[Array]
    test_cameras: list[Camera]
    test_pictures: list[Array]
    points: Array
    colors: Array

    @property
    def extent(self) -> float:
        """How far apart the cameras stand: the length that sizes and steps are measured by."""
        places = np.stack([c.position for c in self.cameras])
        return max(float(np.linalg.norm(places - places.mean(0), axis=1).max()) * 1.1, 1e-3)


def load_views(folder: str | Path, *, scale: float = 1.0, background: Sequence[float] = (1, 1, 1)) -> Views:
    """Read a folder of COLMAP (`sparse/0` and `images`) or of NeRF (`transforms.json` or `transforms_train.json` and `_test`).

    Pictures with an alpha channel are laid over the background. `scale` below 1 makes pictures smaller.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingFileError(f"splat: there is no folder {folder}")
    none = np.zeros((0, 3), np.float32)
    points, colors, test = none, none, list[Camera]()
    model = find_model(folder)
    if (folder / "transforms_train.json").is_file():
        cameras = read_transforms(folder / "transforms_train.json")
        test = read_transforms(folder / "transforms_test.json") if (folder / "transforms_test.json").is_file() else []
    elif (folder / "transforms.json").is_file():
        cameras = read_transforms(folder / "transforms.json")
    elif model is not None:
        cameras, points, colors = read_colmap(model, folder / "images")
    else:
        raise FormatError(f"splat: {folder} must hold sparse/0/cameras.bin (or .txt) of COLMAP, or transforms.json")
    if not test and len(cameras) > HELD_OUT:
        test, cameras = cameras[::HELD_OUT], [c for i, c in enumerate(cameras) if i % HELD_OUT]
    if not cameras:
        raise FormatError(f"splat: {folder} names no images")
    cameras, pictures = _pictures(folder, cameras, scale, background)
    test, test_pictures = _pictures(folder, test, scale, background)
    return Views(cameras, pictures, test, test_pictures, points, colors)


def _pictures(folder: Path, cameras: list[Camera], scale: float, background: Sequence[float]) -> tuple[list[Camera], list[Array]]:
    fitted, pictures = [], []
    for c in cameras:
        assert c.image is not None
        picture = _named(c.image, folder)
        if picture.shape[2] == 4:
            picture = picture[..., :3] * picture[..., 3:] + np.asarray(background, np.float32) * (1 - picture[..., 3:])
        if picture.shape[:2] != (c.height, c.width):  # the files of many scenes name the size before it was halved
            ratio = picture.shape[1] / c.width
            c = c.resized(ratio)
            if abs(c.height - picture.shape[0]) > 1:
                raise InputError(f"splat: {c.image} is {picture.shape[1]}x{picture.shape[0]}, its camera {c.width}x{c.height}")
            c = Camera(picture.shape[1], picture.shape[0], c.view, c.intrinsics, c.model, c.name, c.image)
        if scale != 1:
            c = c.resized(scale)
            picture = shrink(picture, c.width, c.height)
        fitted.append(c)
        pictures.append(np.ascontiguousarray(picture, np.float32))
    return fitted, pictures


def shrink(picture: Array, width: int, height: int) -> Array:
    """A smaller picture: every pixel is the mean of those it covers, with parts of pixels at the borders."""
    for axis, size in ((0, height), (1, width)):
        old = picture.shape[axis]
        total = np.concatenate([np.zeros_like(np.take(picture, [0], axis)), np.cumsum(picture, axis, dtype=np.float64)], axis)
        at = np.arange(size + 1) * (old / size)
        low = np.minimum(at.astype(int), old - 1)
        part = (at - low).reshape([-1 if a == axis else 1 for a in range(picture.ndim)])
        edges = np.take(total, low, axis) * (1 - part) + np.take(total, low + 1, axis) * part
        picture = np.diff(edges, axis=axis) / (old / size)
    return picture.astype(np.float32)
