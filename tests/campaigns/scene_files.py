"""Scenes (.ply, .splat, .spz), pictures (.png) and folders of COLMAP and NeRF with changed bytes and values: an error that names the file,
or a scene, a picture or cameras that are finite where they must be. Some scenes are drawn."""

from __future__ import annotations

import functools
import gzip
import json
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.splat.cameras import look_at
from tilewright.splat.files import write_ply, write_splat, write_spz
from tilewright.splat.images import SIGNATURE, as_bytes
from tilewright.splat.scene import Scene

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, TREE, Change, changed_bytes, changed_text, changed_tree, drawn

KINDS = ("ply", "ply_ascii", "ply_header", "splat", "spz", "spz_inner", "png", "png_chunks", "png_pixels", "transforms", "transforms_bytes",
         "colmap", "colmap_text")
TEXT = ("number", "near", "word", "drop", "double", "swap", "insert")


@dataclass(frozen=True)
class Case:
    kind: str
    changes: tuple[Change, ...]
    drawn: bool  # the scene is rendered


@functools.cache
def scene() -> Scene:
    rng = np.random.default_rng(0)
    n = 5
    return Scene(rng.standard_normal((n, 3)), rng.uniform(-3, -1, (n, 3)), rng.standard_normal((n, 4)), rng.standard_normal(n),
                 rng.standard_normal((n, 4, 3)))


@functools.cache
def ascii_ply() -> bytes:
    raw = write_ply(scene())
    end = raw.index(b"end_header\n") + 11
    rows = np.frombuffer(raw[end:], "<f4").reshape(len(scene()), -1)
    text = "\n".join(" ".join(f"{v:.7g}" for v in row) for row in rows)
    return raw[:end].replace(b"binary_little_endian", b"ascii") + text.encode()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@functools.cache
def rows(depth: int, kind: int) -> tuple[bytes, bytes, bytes]:
    """IHDR, the rows behind their filters, and a palette."""
    rng, height, width = np.random.default_rng(1), 6, 7
    step = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind] * depth // 8
    lines = rng.integers(0, 256, (height, 1 + width * step), np.uint8)
    lines[:, 0] = np.arange(height) % 5
    return struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0), lines.tobytes(), as_bytes(rng.random((1, 250, 3))).tobytes()


def png(case: Case) -> bytes:
    """Chunks whose checksums are right, one of them changed."""
    pick = case.changes[0].at if case.changes else 0
    header, lines, palette = rows((8, 16)[pick % 2], (0, 2, 3, 4, 6)[pick // 2 % 5])
    parts = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", lines), (b"IEND", b"")]
    for c in case.changes:
        k = c.value % 3 if case.kind == "png_chunks" else 2
        parts[k] = parts[k][0], changed_bytes(parts[k][1], (c,))
    if case.kind == "png_chunks" and pick % 3 == 0:
        parts = [parts[i] for i in np.random.default_rng(pick).integers(0, 4, 4)]
    return SIGNATURE + b"".join(chunk(k, zlib.compress(b, 1) if k == b"IDAT" else b) for k, b in parts)


@functools.cache
def transforms() -> Any:
    cameras = [look_at((k, 1, -2), width=7, height=6) for k in range(2)]
    pose = [np.linalg.inv(c.view.astype(float)).tolist() for c in cameras]
    return {"camera_angle_x": 0.9, "frames": [{"file_path": "p.png", "transform_matrix": pose[0], "w": 7, "h": 6},
                                              {"file_path": "p", "transform_matrix": pose[1], "fl_x": 9.0, "cx": 3.5}]}


@functools.cache
def colmap() -> dict[str, bytes]:
    images = struct.pack("<Q", 2)
    for k, name in enumerate((b"p.png\0", b"p.png\0")):
        images += struct.pack("<i7di", k, 1, 0, 0.1 * k, 0, 0.5, 0, 2, 1) + name + struct.pack("<Qddq", 1, 1, 2, 3)
    points = struct.pack("<Q", 2) + b"".join(struct.pack("<Q3d3BdQii", k, 1, 2, k, 9, 8, 7, 0.5, 1, 3, 4) for k in range(2))
    return {"cameras.bin": struct.pack("<QiiQQ4d", 1, 1, 1, 7, 6, 5, 5, 3.5, 3), "images.bin": images, "points3D.bin": points}


@functools.cache
def colmap_text() -> dict[str, str]:
    return {"cameras.txt": "# c\n1 PINHOLE 7 6 5 5 3.5 3\n2 SIMPLE_PINHOLE 7 6 5 3.5 3\n",
            "images.txt": "# i\n7 1 0 0 0 0.5 0 2 1 p.png\n1 2 3 4 5 6\n8 0 1 0 0 0 0 3 2 p.png\n\n",
            "points3D.txt": "# p\n1 0.5 1 2 10 20 30 0.1 1 2\n2 1 1 1 1 2 3 0.1\n"}


def draw(rng: np.random.Generator) -> Case:
    kind = str(rng.choice(KINDS))
    hows = TREE if kind == "transforms" else TEXT if kind in ("colmap_text", "ply_header") else BYTES
    return Case(kind, drawn(rng, hows), bool(rng.random() < 0.01))


def write(folder: Path, case: Case) -> Path:
    """The mutated file, or its folder."""
    kind = case.kind
    if kind.startswith(("transforms", "colmap")):
        (folder / "images").mkdir()
        good = SIGNATURE + b"".join(chunk(k, zlib.compress(b) if k == b"IDAT" else b) for k, b in zip(
            (b"IHDR", b"IDAT", b"IEND"), (*rows(8, 6)[:2], b""), strict=True))
        (folder / "p.png").write_bytes(good)
        (folder / "images" / "p.png").write_bytes(good)
    if kind == "transforms":
        (folder / "transforms.json").write_text(json.dumps(changed_tree(transforms(), case.changes)))
    elif kind == "transforms_bytes":
        (folder / "transforms.json").write_bytes(changed_bytes(json.dumps(transforms()).encode(), case.changes))
    elif kind == "colmap":
        for k, (name, data) in enumerate(colmap().items()):
            (folder / name).write_bytes(changed_bytes(data, tuple(c for c in case.changes if c.at % 3 == k)))
    elif kind == "colmap_text":
        for k, (name, text) in enumerate(colmap_text().items()):
            (folder / name).write_text(changed_text(text, tuple(c for c in case.changes if c.at % 3 == k), ["exp"]))
    else:
        path = folder / f"m.{kind.partition('_')[0]}"
        if kind.startswith("png"):
            data = png(case) if kind != "png" else changed_bytes(png(Case(kind, (), False)), case.changes)
        elif kind == "ply_header":
            head, mark, body = write_ply(scene()).partition(b"end_header\n")
            data = changed_text(head.decode(), case.changes, ["exp"]).encode() + mark + body
        elif kind == "spz_inner":
            data = gzip.compress(changed_bytes(gzip.decompress(write_spz(scene())), case.changes), 1)
        else:
            made = {"ply": lambda: write_ply(scene()), "ply_ascii": ascii_ply, "splat": lambda: write_splat(scene()),  # type: ignore[operator]
                    "spz": lambda: write_spz(scene())}[kind]()
            data = changed_bytes(made, case.changes)
        path.write_bytes(data)
        return path
    return folder


def run(case: Case) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), case)
        try:
            found: Any = tw.splat.load_views(path) if path.is_dir() else (
                tw.splat.read_image(path) if path.suffix == ".png" else tw.splat.load(path))
        except (tw.FormatError, tw.FileError, tw.InputError) as e:
            assert name in str(e), f"the error does not name the file: {e}"
            assert len(str(e)) < 2000, f"an error of {len(str(e))} characters"
            return
    if isinstance(found, np.ndarray):
        assert found.ndim == 3 and found.shape[2] in (3, 4) and found.min() >= 0 and found.max() <= 1
    elif path.is_dir() or not isinstance(found, Scene):
        for c, picture in zip(found.cameras, found.pictures, strict=True):
            assert picture.shape == (c.height, c.width, 3) and np.isfinite(c.view).all() and np.isfinite(c.intrinsics).all()
        assert np.isfinite(found.points).all() and np.isfinite(found.extent)
    else:
        found.bounds()
        assert len(found) <= 4096
        if case.drawn and len(found) == len(scene()) and found.degree == 1:
            picture = found.render(look_at((0, 0, -4), width=16, height=16)).color
            assert np.asarray(picture).shape == (16, 16, 3)


CAMPAIGN = Campaign(draw=draw, check=run, quick=150, memory=1024 * MB, keep=("kind",))
