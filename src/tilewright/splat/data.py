"""What a scene is trained from: photographs with their cameras, and points to begin with."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import STRANGE, FileError, FormatError, InputError, MissingFileError
from ..core.files import read_file, write_file
from .cameras import FAR, Array, Camera, focal
from .images import read_image

# --- Cameras and points as COLMAP writes them, text and binary: cameras, images and points3D in a folder such as `sparse/0`.

# name, number of parameters, how many of them are focal lengths; the rest behind the principal point is distortion
MODELS = {0: ("SIMPLE_PINHOLE", 3, 1), 1: ("PINHOLE", 4, 2), 2: ("SIMPLE_RADIAL", 4, 1), 3: ("RADIAL", 5, 1), 4: ("OPENCV", 8, 2),
          5: ("OPENCV_FISHEYE", 8, 2)}
BY_NAME = {name: (count, focals) for name, count, focals in MODELS.values()}


class _Bytes:
    """Reads little-endian numbers off a file; one that ends too soon is a FormatError."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, read_file(path, subject="colmap"), 0

    def take(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + form)
        if self.at + size > len(self.data):
            raise FormatError(f"colmap: {self.path} is cut short at byte {len(self.data):,}")
        self.at += size
        return struct.unpack_from("<" + form, self.data, self.at - size)

    def skip(self, size: int) -> None:
        if self.at + size > len(self.data):
            raise FormatError(f"colmap: {self.path} is cut short at byte {len(self.data):,}")
        self.at += size

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise FormatError(f"colmap: {self.path} is cut short inside a name")
        found = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return found


def find_model(folder: Path) -> Path | None:
    """The folder with COLMAP's files, at `folder` or where COLMAP puts it below."""
    for place in (folder, folder / "sparse" / "0", folder / "sparse", folder / "colmap" / "sparse" / "0"):
        if any((place / f"cameras.{ending}").is_file() for ending in ("bin", "txt")):
            return place
    return None


def read_colmap(folder: Path, images: Path) -> tuple[list[Camera], Array, Array]:
    """Cameras sorted by name (their photographs in `images`), points [N,3] and their colours between 0 and 1."""
    binary = (folder / "cameras.bin").is_file()
    for name in ("cameras", "images"):
        if not (folder / f"{name}.{'bin' if binary else 'txt'}").is_file():
            raise MissingFileError(f"colmap: there is no {name}.{'bin' if binary else 'txt'} in {folder}")
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that f32 does not hold are found below
        try:
            lenses = dict(_cameras_bin(folder) if binary else _cameras_txt(folder))
            views = list(_images_bin(folder) if binary else _images_txt(folder))
            points, colors = _points_bin(folder) if binary else _points_txt(folder)
        except FormatError as e:
            raise e if str(folder) in str(e) else FormatError(f"{e} ({folder})") from None
        except STRANGE as e:
            raise FormatError(f"colmap: a file in {folder} could not be read ({type(e).__name__}: {e!s:.200})") from e
        cameras = [_camera(lenses, view, folder, images) for view in sorted(views, key=lambda v: v[0])]
    finite = (np.abs(points) < FAR).all(1)
    return cameras, points[finite], colors[finite]


def _camera(lenses: dict[int, tuple[int, int, Array, str]], given: tuple[str, Any, Any, int], folder: Path, images: Path) -> Camera:
    name, q, t, lens = given
    if lens not in lenses:
        raise FormatError(f"colmap: image {name!r:.200} names camera {lens}, which cameras does not hold ({folder})")
    width, height, k, model = lenses[lens]
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = rotation(q), t
    view = view.astype(np.float32)
    if not np.abs(view).max() < FAR or not np.abs(k).max() < FAR or k[0, 0] <= 0 or k[1, 1] <= 0:
        raise FormatError(f"colmap: image {name!r:.200} has no finite pose and positive focal length ({folder})")
    return Camera(width, height, view, k, model, name, images / name)


def rotation(q: Any) -> Array:
    """The matrix of a quaternion w, x, y, z."""
    w, x, y, z = np.asarray(q, float) / max(float(np.linalg.norm(q)), 1e-12)
    return np.array([[1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                     [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                     [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]])


def _lens(name: str, width: int, height: int, numbers: tuple[float, ...]) -> tuple[int, int, Array, str]:
    if name not in BY_NAME or len(numbers) != BY_NAME[name][0]:
        raise FormatError(f"colmap: camera models are {' '.join(BY_NAME)}, got {name:.80} with {len(numbers)} parameters")
    focals = BY_NAME[name][1]
    if not 0 < width < 1 << 20 or not 0 < height < 1 << 20:
        raise FormatError(f"colmap: a camera has at least one pixel, got {width}x{height}")
    bent = numbers[focals + 2 :]
    if any(abs(b) > 1e-6 for b in bent):
        raise FormatError(f"colmap: the images are distorted ({name} {bent}); undistort them first (colmap image_undistorter)")
    k = focal(width, height, numbers[0], numbers[focals - 1], (numbers[focals], numbers[focals + 1]))
    return width, height, k, "fisheye" if name == "OPENCV_FISHEYE" else "pinhole"


def _lines(path: Path) -> Iterator[list[str]]:
    for line in read_file(path, subject="colmap").decode("utf-8", "replace").splitlines():
        if not line.startswith("#"):
            yield line.split()


def _cameras_txt(folder: Path) -> Iterator[tuple[int, tuple[int, int, Array, str]]]:
    for words in _lines(folder / "cameras.txt"):
        if words:
            yield int(words[0]), _lens(words[1], int(words[2]), int(words[3]), tuple(float(w) for w in words[4:]))


def _cameras_bin(folder: Path) -> Iterator[tuple[int, tuple[int, int, Array, str]]]:
    data = _Bytes(folder / "cameras.bin")
    for _ in range(data.take("Q")[0]):
        number, model, width, height = data.take("iiQQ")
        if model not in MODELS:
            raise FormatError(f"colmap: camera models are {' '.join(BY_NAME)}, got number {model}; undistort the images first")
        name, count, _ = MODELS[model]
        yield number, _lens(name, width, height, data.take("d" * count))


def _images_txt(folder: Path) -> Iterator[tuple[str, Any, Any, int]]:
    """Every second line holds the points of an image, perhaps none."""
    lines = list(_lines(folder / "images.txt"))
    for words in lines[::2]:
        if words:
            numbers = [float(w) for w in words[1:8]]
            yield " ".join(words[9:]), numbers[:4], numbers[4:], int(words[8])


def _images_bin(folder: Path) -> Iterator[tuple[str, Any, Any, int]]:
    data = _Bytes(folder / "images.bin")
    for _ in range(data.take("Q")[0]):
        _, *numbers = data.take("i7d")
        lens = data.take("i")[0]
        name = data.text()
        data.skip(24 * data.take("Q")[0])
        yield name, numbers[:4], numbers[4:], lens


def _points_txt(folder: Path) -> tuple[Array, Array]:
    if not (folder / "points3D.txt").is_file():
        return np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    rows = np.array([[float(w) for w in words[1:7]] for words in _lines(folder / "points3D.txt") if words], np.float64).reshape(-1, 6)
    return rows[:, :3].astype(np.float32), (rows[:, 3:] / 255).astype(np.float32)


def _points_bin(folder: Path) -> tuple[Array, Array]:
    if not (folder / "points3D.bin").is_file():
        return np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    data = _Bytes(folder / "points3D.bin")
    points, colors = [], []
    for _ in range(data.take("Q")[0]):
        _, x, y, z, r, g, b, _ = data.take("Q3d3Bd")
        data.skip(8 * data.take("Q")[0])
        points.append((x, y, z))
        colors.append((r, g, b))
    return np.array(points, np.float32).reshape(-1, 3), np.array(colors, np.float32).reshape(-1, 3) / 255

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
    if not os.path.isdir(folder):
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
