"""Cameras and points as COLMAP writes them, text and binary: cameras, images and points3D in a folder such as `sparse/0`."""
from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import STRANGE, FormatError, MissingFileError
from ..core.files import read_file
from .cameras import FAR, Array, Camera, focal

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
