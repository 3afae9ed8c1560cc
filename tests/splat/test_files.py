"""Scenes, cameras and pictures in files: what was written comes back, foreign layouts are read, and bad files are errors that say why."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import FormatError, InputError, MissingFileError
from tilewright.splat.data import read_colmap, read_transforms, shrink
from tilewright.splat.files import read_ply, read_splat, read_spz, write_ply, write_splat, write_spz
from tilewright.splat.images import _png


def scene(count: int = 7, degree: int = 2) -> tw.splat.Scene:
    rng = fresh_rng()
    return tw.splat.Scene(rng.normal(size=(count, 3)), rng.uniform(-6, -1, (count, 3)), rng.normal(size=(count, 4)), rng.normal(size=count),
                          rng.normal(size=(count, (degree + 1) ** 2, 3)) * 0.3)


@pytest.mark.parametrize("count", [0, 7])
@pytest.mark.parametrize("degree", range(4))
def test_a_ply_file_keeps_every_bit(count: int, degree: int, tmp_path: Path) -> None:
    old = scene(count, degree)
    tw.splat.save(tmp_path / "s.ply", old)
    new = tw.splat.load(tmp_path / "s.ply")
    for name in ("means", "log_scales", "quats", "logits", "sh"):
        np.testing.assert_array_equal(getattr(new, name), getattr(old, name))


def test_ply_fields_lie_where_others_look_for_them() -> None:
    """f_rest holds all terms of red, then of green, then of blue."""
    old = scene(2, 1)
    data = write_ply(old)
    end = data.index(b"end_header\n") + 11
    names = [line.split()[2] for line in data[:end].decode().splitlines() if line.startswith("property")]
    rows = np.frombuffer(data[end:], "<f4").reshape(2, len(names))
    assert names[:3] == ["x", "y", "z"]
    np.testing.assert_array_equal(rows[:, names.index("f_rest_0")], old.sh[:, 1, 0])
    np.testing.assert_array_equal(rows[:, names.index("f_rest_2")], old.sh[:, 3, 0])
    np.testing.assert_array_equal(rows[:, names.index("f_rest_3")], old.sh[:, 1, 1])


def test_text_and_big_endian_and_doubles_are_read() -> None:
    old = scene(3, 0)
    names = ["rot_0", "rot_1", "rot_2", "rot_3", "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2"]
    table = np.concatenate([old.quats, old.means, old.sh[:, 0], old.logits[:, None], old.log_scales], 1)
    head = "".join(f"property double {n}\n" for n in names) + "end_header\n"
    text = f"ply\nformat ascii 1.0\ncomment made by hand\nelement vertex 3\n{head}" + "\n".join(" ".join(map(str, r)) for r in table)
    big = f"ply\nformat binary_big_endian 1.0\nelement vertex 3\n{head}".encode() + table.astype(">f8").tobytes()
    for data in (text.encode(), big):
        new = read_ply(data, "s.ply")
        np.testing.assert_allclose(new.means, old.means, rtol=1e-6)
        np.testing.assert_allclose(new.quats, old.quats, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d[:-3], "cut short"),
        (lambda d: d.replace(b"property float opacity", b"property float opacitY"), "lacks opacity"),
        (lambda d: d.replace(b"property float f_rest_8\n", b"property float f_other\n"), "0, 9, 24 or 45 properties"),
        (lambda d: b"ply" + d[40:], "header must name one element|must be ascii|no header"),
        (lambda d: b"stl" + d, "no header of a ply file"),
        (lambda d: d.replace(b"property float x", b"property list uchar int x"), "a property of a vertex"),
        (lambda d: d.replace(b"element vertex 7", b"element vertex 99999999999"), "cut short"),
    ],
)
def test_bad_ply_files_say_why(change: Any, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        read_ply(change(write_ply(scene(7, 1))), "s.ply")


def test_packed_files_come_back_within_their_steps() -> None:
    old = scene(50, 3)
    unit = old.quats / np.linalg.norm(old.quats, axis=1, keepdims=True)
    new = read_spz(write_spz(old), "s.spz")
    assert np.abs(new.means - old.means).max() <= 0.5 / 4096 + 1e-6
    assert np.abs(new.log_scales - old.log_scales).max() <= 0.5 / 16 + 1e-5
    # w follows from the other three: where it is near 0, half a step of them is a tenth of it
    assert np.abs(np.abs((new.quats * unit).sum(1)) - 1).max() < 0.01
    opacity = [1 / (1 + np.exp(-s.logits)) for s in (old, new)]
    assert np.abs(opacity[0] - opacity[1]).max() <= 0.5 / 255 + 1e-5
    assert np.abs(new.sh[:, 0] - old.sh[:, 0]).max() <= 0.5 / (255 * 0.15) + 1e-5
    assert np.abs(new.sh[:, 1:] - np.clip(old.sh[:, 1:], -1, 127 / 128)).max() <= 0.5 / 128 + 1e-5
    small = read_splat(write_splat(old), "s.splat")
    order = [int(np.argmin(((old.means - m) ** 2).sum(1))) for m in small.means]
    np.testing.assert_array_equal(small.means, old.means[order])
    np.testing.assert_allclose(small.log_scales, old.log_scales[order], atol=1e-5)
    assert np.abs(np.abs((small.quats / np.linalg.norm(small.quats, axis=1, keepdims=True) * unit[order]).sum(1)) - 1).max() < 0.002


def test_bad_packed_files_say_why(tmp_path: Path) -> None:
    data = write_spz(scene(9, 1))
    with pytest.raises(FormatError, match=r"cut short|gzip"):
        read_spz(data[:-20], "s.spz")
    raw = gzip.decompress(data)
    with pytest.raises(FormatError, match="9 Gaussians need"):
        read_spz(gzip.compress(raw[:-1]), "s.spz")
    with pytest.raises(FormatError, match="got version 7"):
        read_spz(gzip.compress(raw[:4] + struct.pack("<I", 7) + raw[8:]), "s.spz")
    with pytest.raises(FormatError, match="end inside one"):
        read_splat(write_splat(scene())[:-1], "s.splat")
    with pytest.raises(InputError, match=r"a \.ply, \.splat or \.spz file"):
        tw.splat.load(tmp_path / "s.obj")
    with pytest.raises(MissingFileError, match=r"splat: could not read .*: No such file or directory"):
        tw.splat.load(tmp_path / "s.ply")
    far = scene(1)
    far.means[:] = 5000
    with pytest.raises(InputError, match="must lie within 2048 of the origin"):
        write_spz(far)


def test_pngs_of_every_filter_are_read(tmp_path: Path) -> None:
    picture = fresh_rng().integers(0, 256, (6, 5, 3)).astype(np.uint8)
    tw.splat.write_png(tmp_path / "p.png", picture)
    np.testing.assert_array_equal(np.rint(tw.splat.read_image(tmp_path / "p.png") * 255), picture)
    flat = picture.astype(int).reshape(6, 15)
    rows = []
    for y, kind in enumerate((0, 1, 2, 3, 4, 4)):
        left, up = np.concatenate([np.zeros(3, int), flat[y, :-3]]), flat[y - 1] if y else np.zeros(15, int)
        corner = np.concatenate([np.zeros(3, int), up[:-3]])
        p = left + up - corner
        other = np.where(abs(p - up) <= abs(p - corner), up, corner)
        paeth = np.where((abs(p - left) <= abs(p - up)) & (abs(p - left) <= abs(p - corner)), left, other)
        guess = (np.zeros(15, int), left, up, (left + up) // 2, paeth)[kind]
        rows.append(bytes([kind]) + ((flat[y] - guess) % 256).astype(np.uint8).tobytes())

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 6, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"".join(rows)))
    np.testing.assert_array_equal(np.rint(_png(data + chunk(b"IEND", b"")) * 255), picture)
    (tmp_path / "cut.png").write_bytes(data[:60])
    with pytest.raises(FormatError, match="is no whole PNG file"):
        tw.splat.read_image(tmp_path / "cut.png")


def test_a_gif_has_its_frames(tmp_path: Path) -> None:
    """Decoded again by the rules of the format."""
    rng = fresh_rng()
    frames = [np.repeat(rng.uniform(0, 1, (40, 1, 3)), 60, 1) + rng.uniform(0, 0.1, (40, 60, 3)) for _ in range(3)]
    tw.splat.write_gif(tmp_path / "a.gif", frames)
    data = (tmp_path / "a.gif").read_bytes()
    palette = np.frombuffer(data[13 : 13 + 768], np.uint8).reshape(256, 3)
    at, found = 13 + 768, []
    while data[at] != 0x3B:
        if data[at] == 0x21:
            at += 2
        else:
            at += 11
        body = b""
        while data[at]:
            body += data[at + 1 : at + 1 + data[at]]
            at += 1 + data[at]
        at += 1
        if len(body) > 20:
            found.append(palette[unpacked(body)].reshape(40, 60, 3) / 255)
    assert len(found) == 3
    for got, want in zip(found, frames, strict=True):
        assert np.abs(got - np.clip(want, 0, 1)).max() < 0.2
        assert np.abs(got.mean((0, 1)) - np.clip(want, 0, 1).mean((0, 1))).max() < 0.02


def unpacked(body: bytes) -> list[int]:
    bits, size, table, out, before, at = int.from_bytes(body, "little"), 9, list[list[int]](), list[int](), list[int](), 0
    while True:
        code = bits >> at & ((1 << size) - 1)
        at += size
        if code == 257:
            return out
        if code == 256:
            table, size, before = [[i] for i in range(256)] + [[], []], 9, []
            continue
        entry = table[code] if code < len(table) else [*before, before[0]]
        out += entry
        if before:
            table.append([*before, entry[0]])
        if len(table) == 1 << size and size < 12:
            size += 1
        before = entry


def test_transforms_are_read_as_they_were_written(tmp_path: Path) -> None:
    cameras = tw.splat.orbit(radius=3, count=3, width=20, height=16)
    for i, c in enumerate(cameras):
        tw.splat.write_png(tmp_path / f"{i}.png", np.full((c.height, c.width, 4), 0.5))
    tw.splat.save_transforms(tmp_path / "transforms.json", cameras, [f"{i}.png" for i in range(3)])
    for old, new in zip(cameras, read_transforms(tmp_path / "transforms.json"), strict=True):
        np.testing.assert_allclose(new.view, old.view, atol=1e-5)
        np.testing.assert_allclose(new.intrinsics, old.intrinsics, atol=1e-4)
    views = tw.splat.load_views(tmp_path, background=(1, 1, 1), scale=0.5)
    assert (views.cameras[0].width, views.pictures[0].shape) == (10, (8, 10, 3))
    np.testing.assert_allclose(views.pictures[0], 0.75, atol=0.005)  # half over white
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": [{"file_path": "0"}]}))
    with pytest.raises(FormatError, match="frames: file_path, transform_matrix"):
        tw.splat.load_views(tmp_path)
    with pytest.raises(MissingFileError, match="there is no folder"):
        tw.splat.load_views(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"must hold sparse/0/cameras\.bin"):
        tw.splat.load_views(tmp_path / "empty")


def colmap_folder(folder: Path, binary: bool) -> None:
    """Two cameras, two images and three points, in COLMAP's own layouts."""
    folder.mkdir()
    if not binary:
        (folder / "cameras.txt").write_text("# cameras\n1 PINHOLE 20 16 25 26 9.5 8.5\n2 SIMPLE_RADIAL 20 16 30 10 8 0.0\n")
        (folder / "images.txt").write_text("# images\n7 1 0 0 0 0.5 0 2 1 b side.png\n1 2 3 4 5 6\n8 0 1 0 0 0 0 3 2 a.png\n\n")
        (folder / "points3D.txt").write_text("# points\n1 0.5 1 2 255 0 51 0.1 1 2\n2 1 1 1 0 255 0 0.1\n3 0 0 0 0 0 255 0.1\n")
        return
    cameras = struct.pack("<Q", 2) + struct.pack("<iiQQ4d", 1, 1, 20, 16, 25, 26, 9.5, 8.5)
    cameras += struct.pack("<iiQQ4d", 2, 2, 20, 16, 30, 10, 8, 0)
    images = struct.pack("<Q", 2) + struct.pack("<i7di", 7, 1, 0, 0, 0, 0.5, 0, 2, 1) + b"b side.png\0" + struct.pack("<Qddq", 1, 1, 2, 3)
    images += struct.pack("<i7di", 8, 0, 1, 0, 0, 0, 0, 3, 2) + b"a.png\0" + struct.pack("<Q", 0)
    points = struct.pack("<Q", 3) + struct.pack("<Q3d3BdQii", 1, 0.5, 1, 2, 255, 0, 51, 0.1, 1, 1, 2)
    points += struct.pack("<Q3d3BdQ", 2, 1, 1, 1, 0, 255, 0, 0.1, 0) + struct.pack("<Q3d3BdQ", 3, 0, 0, 0, 0, 0, 255, 0.1, 0)
    for name, data in (("cameras", cameras), ("images", images), ("points3D", points)):
        (folder / f"{name}.bin").write_bytes(data)


@pytest.mark.parametrize("binary", [False, True])
def test_colmap_text_and_binary_mean_the_same(binary: bool, tmp_path: Path) -> None:
    colmap_folder(tmp_path / "0", binary)
    cameras, points, colors = read_colmap(tmp_path / "0", tmp_path / "images")
    assert [c.name for c in cameras] == ["a.png", "b side.png"]
    np.testing.assert_allclose(cameras[1].intrinsics, np.array([[25, 0, 9.5], [0, 26, 8.5], [0, 0, 1]]))
    np.testing.assert_allclose(cameras[1].position, [-0.5, 0, -2])
    np.testing.assert_allclose(cameras[0].view, [[1, 0, 0, 0], [0, -1, 0, 0], [0, 0, -1, 3], [0, 0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(points[0], [0.5, 1, 2])
    np.testing.assert_allclose(colors[0], [1, 0, 0.2])


def test_bad_colmap_files_say_why(tmp_path: Path) -> None:
    colmap_folder(tmp_path / "0", True)
    for name in ("cameras", "images", "points3D"):
        path = tmp_path / "0" / f"{name}.bin"
        data = path.read_bytes()
        path.write_bytes(data[:-5])
        with pytest.raises(FormatError, match="cut short"):
            read_colmap(tmp_path / "0", tmp_path)
        path.write_bytes(data)
    colmap_folder(tmp_path / "1", False)
    (tmp_path / "1" / "cameras.txt").write_text("1 SIMPLE_RADIAL 20 16 30 10 8 0.1\n")
    with pytest.raises(FormatError, match="undistort them first"):
        read_colmap(tmp_path / "1", tmp_path)
    (tmp_path / "1" / "cameras.txt").write_text("3 PINHOLE 20 16 25 26 9.5 8.5\n")
    with pytest.raises(FormatError, match="names camera 2, which cameras does not hold"):
        read_colmap(tmp_path / "1", tmp_path)


def test_damaged_files_are_errors_of_ours(tmp_path: Path) -> None:
    """Bytes changed, cut out and cut off at random: what is read is a scene or an error that names the file's fault."""
    rng = fresh_rng()
    tw.splat.write_png(tmp_path / "p.png", rng.uniform(size=(9, 7, 3)))
    colmap_folder(tmp_path / "0", True)
    colmap_folder(tmp_path / "1", False)
    whole = {"ply": write_ply(scene(5, 1)), "splat": write_splat(scene(5)), "spz": write_spz(scene(5, 2))}
    whole["png"] = (tmp_path / "p.png").read_bytes()
    model = {p: p.read_bytes() for folder in ("0", "1") for p in sorted((tmp_path / folder).iterdir())}

    def damaged(data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(0, max(len(out), 1)))
            if rng.random() < 0.5 and out:
                out[min(at, len(out) - 1)] = int(rng.integers(0, 256))
            elif rng.random() < 0.5:
                del out[at : at + int(rng.integers(1, 9))]
            else:
                del out[at:]
        return bytes(out)

    refused = 0
    for i in range(160):
        kind = list(whole)[i % len(whole)]
        path = tmp_path / f"bad.{kind}"
        path.write_bytes(damaged(whole[kind]))
        try:
            tw.splat.read_image(path) if kind == "png" else tw.splat.load(path)
        except FormatError:
            refused += 1
        path = list(model)[i % len(model)]
        path.write_bytes(damaged(model[path]))
        try:
            read_colmap(path.parent, tmp_path)
        except FormatError:
            refused += 1
        path.write_bytes(model[path])
    assert refused > 80


def test_shrinking_keeps_the_mean() -> None:
    picture = fresh_rng().uniform(size=(13, 17, 3)).astype(np.float32)
    small = shrink(picture, 5, 4)
    assert small.shape == (4, 5, 3)
    np.testing.assert_allclose(small.mean((0, 1)), picture.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(shrink(picture, 17, 13), picture, atol=1e-6)


def test_empty_scenes_are_scenes(tmp_path: Path) -> None:
    for ending in ("ply", "splat", "spz"):
        tw.splat.save(tmp_path / f"e.{ending}", scene(0))
        assert len(tw.splat.load(tmp_path / f"e.{ending}")) == 0


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
def test_pictures_of_pillow_are_read(mode: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "P": 3}[mode]
    for height, width in ((1, 1), (1, 9), (9, 1), (30, 23)):  # smooth: Pillow picks all filters
        smooth = np.clip(np.cumsum(fresh_rng().integers(-3, 4, (height, width, channels)), 1) + 128, 0, 255).astype(np.uint8)
        made = image.fromarray(smooth if channels > 1 else smooth[..., 0])
        made = made.convert("P") if mode == "P" else made
        made.save(tmp_path / "p.png")
        wanted = np.asarray(made.convert("RGBA" if channels in (2, 4) else "RGB"))
        if mode != "P" or made.info.get("bits", 8) == 8:
            np.testing.assert_array_equal(np.rint(tw.splat.read_image(tmp_path / "p.png") * 255), wanted)


def test_short_files_do_not_unpack_to_gigabytes(tmp_path: Path) -> None:
    header = struct.pack("<IIIBBBB", 0x5053474E, 2, 4_000_000_000, 3, 12, 0, 0)
    (tmp_path / "s.spz").write_bytes(gzip.compress(header + bytes(1000)))
    with pytest.raises(FormatError, match=r"spz: at most 10,000,000 Gaussians are read, got 4,000,000,000 \(.*s\.spz\)"):
        tw.splat.load(tmp_path / "s.spz")
    for width, height in ((1 << 17, 3), (60000, 60000)):
        ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + ihdr + struct.pack(">I", zlib.crc32(ihdr)))
        with pytest.raises(FormatError, match=rf"p\.png is no whole PNG file .* got {width}x{height}"):
            tw.splat.read_image(tmp_path / "p.png")


@pytest.mark.parametrize(("change", "text"), [
    ({"w": 0}, "w and h are the pixels of a picture, got 0 and 5"), ({"w": "many"}, "got 'many' and 5"), ({"h": 10**400}, "w and h are"),
    ({"fl_x": float("inf")}, "focal lengths are positive and finite"), ({"fl_x": -3}, "focal lengths are positive"),
    ({"fl_x": 10**400}, "must name camera_angle_x, or fl_x"), ({"cx": float("nan")}, "focal lengths are"),
    ({"transform_matrix": np.full((4, 4), 1e30).tolist()}, "a transform_matrix is 4x4"), ({"transform_matrix": 10**400}, "must hold"),
    ({"file_path": "\0"}, "could not read"), ({"file_path": "none"}, "could not read"), ({"file_path": 3}, "could not read")])
def test_transforms_are_not_trusted(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    tw.splat.write_png(tmp_path / "p.png", np.zeros((5, 6, 3)))
    frame = {"file_path": "p.png", "transform_matrix": np.eye(4).tolist(), "w": 6, "h": 5, "fl_x": 7.0}
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": [frame | change]}))
    with pytest.raises((FormatError, tw.FileError), match=re.escape(text)) as found:
        tw.splat.load_views(tmp_path)
    assert str(tmp_path) in str(found.value)
