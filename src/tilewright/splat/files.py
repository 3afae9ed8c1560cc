"""Scenes in files: `.ply` as 3-D Gaussian splatting writes it, `.splat` (32 bytes a Gaussian, no harmonics) and `.spz` (packed, version 2).

A file that is cut short, damaged or lacks a field is a FormatError that says what is missing; nothing in a file is trusted to size memory.
"""
from __future__ import annotations

import gzip
import struct
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FormatError, InputError
from ..core.files import read_file, write_file
from ..transform.lib.splats import SH0
from .cameras import Array
from .scene import Scene

TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4", "double": "f8",
         "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8"}
SPLAT = np.dtype([("position", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("rotation", "u1", 4)])
MAGIC = 0x5053474E  # the first word of a .spz file
TERMS = {0: 0, 1: 3, 2: 8, 3: 15}  # harmonics beyond the first, by degree
MOST = 10_000_000  # Gaussians of an .spz file, as in the reference reader: a short file can unpack to anything


def load(path: str | PathLike[str]) -> Scene:
    """A scene from a .ply, .splat or .spz file."""
    path = Path(path)
    reader = {".ply": read_ply, ".splat": read_splat, ".spz": read_spz}.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"splat: a scene is a .ply, .splat or .spz file, got {path.name!r}")
    return reader(read_file(path, subject="splat"), str(path))


def save(path: str | PathLike[str], scene: Scene) -> None:
    """Write a scene; the ending of the name says how."""
    writer = {".ply": write_ply, ".splat": write_splat, ".spz": write_spz}.get(Path(path).suffix.lower())
    if writer is None:
        raise InputError(f"splat: a scene is written as .ply, .splat or .spz, got {Path(path).name!r}")
    write_file(path, writer(scene), subject="splat")


def read_ply(data: bytes, where: str) -> Scene:
    end = data.find(b"end_header\n")
    if not data.startswith(b"ply") or end < 0:
        raise FormatError(f"ply: {where} has no header of a ply file")
    form, count, columns, element = "", -1, list[tuple[str, str]](), ""
    for line in data[:end].decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if words[:1] == ["format"] and len(words) > 1:
            form = words[1]
        elif words[:1] == ["element"] and len(words) == 3:
            element = words[1]
            if element == "vertex":
                count = int(words[2]) if words[2].isdigit() and len(words[2]) < 19 else -1
            elif count < 0:
                raise FormatError(f"ply: the first element must be 'vertex', got {element!r:.80} ({where})")
        elif words[:1] == ["property"] and element == "vertex":
            if len(words) != 3 or words[1] not in TYPES:
                raise FormatError(f"ply: a property of a vertex must be a number with a known type, got {line!r:.120} ({where})")
            columns.append((words[2], TYPES[words[1]]))
    if count < 0 or len({n for n, _ in columns}) != len(columns):
        raise FormatError(f"ply: the header must name one element 'vertex' with properties of different names ({where})")
    body = data[end + len(b"end_header\n") :]
    names = [n for n, _ in columns]
    rest = sorted((n for n in names if n.startswith("f_rest_") and n[7:].isdigit() and len(n) < 12), key=lambda n: int(n[7:]))
    needed = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    missing = [n for n in needed if n not in names]
    if missing:
        raise FormatError(f"ply: {where} is no scene of Gaussians, it lacks {', '.join(missing)}")
    if len(rest) // 3 not in TERMS.values() or len(rest) % 3 or rest != [f"f_rest_{i}" for i in range(len(rest))]:
        raise FormatError(f"ply: there must be 0, 9, 24 or 45 properties f_rest_0, f_rest_1, …, got {len(rest)} ({where})")
    table = _ply_rows(body, form, count, columns, where)

    def matrix(*columns: str) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.stack([table[n] for n in columns], -1).astype(np.float32) if columns else np.zeros((count, 0), np.float32)

    high = matrix(*rest).reshape(count, 3, len(rest) // 3).transpose(0, 2, 1)  # a channel's terms stand together in the file
    sh = np.concatenate([matrix("f_dc_0", "f_dc_1", "f_dc_2")[:, None], high], 1)
    return Scene(matrix("x", "y", "z"), matrix("scale_0", "scale_1", "scale_2"), matrix("rot_0", "rot_1", "rot_2", "rot_3"),
                 table["opacity"], sh)


def _ply_rows(body: bytes, form: str, count: int, columns: list[tuple[str, str]], where: str) -> Any:
    if form in ("binary_little_endian", "binary_big_endian"):
        order = "<" if "little" in form else ">"
        row = np.dtype([(name, order + kind) for name, kind in columns])
        if len(body) < count * row.itemsize:
            raise FormatError(f"ply: {where} is cut short, {count} vertices need {count * row.itemsize:,} bytes, got {len(body):,}")
        return np.frombuffer(body, row, count)
    if form != "ascii":
        raise FormatError(f"ply: the format must be ascii or binary, got {form!r:.80} ({where})")
    words = body.split(None, count * len(columns) if count < 1 << 40 else -1)
    if len(words) < count * len(columns):
        raise FormatError(f"ply: {where} is cut short, {count} vertices need {count * len(columns):,} numbers, got {len(words):,}")
    try:
        table = np.array(words[: count * len(columns)], np.float64).reshape(count, len(columns))
    except ValueError as e:
        raise FormatError(f"ply: {e!s:.200} ({where})") from e
    return {name: table[:, i] for i, (name, _) in enumerate(columns)}


def write_ply(scene: Scene) -> bytes:
    n, terms = len(scene), scene.sh.shape[1] - 1
    names = ["x", "y", "z", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3)), *(f"f_rest_{i}" for i in range(3 * terms)), "opacity",
             *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    high = scene.sh[:, 1:].transpose(0, 2, 1).reshape(n, 3 * terms)
    table = np.concatenate([scene.means, np.zeros((n, 3)), scene.sh[:, 0], high, scene.logits[:, None], scene.log_scales, scene.quats], 1)
    properties = "".join(f"property float {name}\n" for name in names)
    return f"ply\nformat binary_little_endian 1.0\nelement vertex {n}\n{properties}end_header\n".encode() + table.astype("<f4").tobytes()


def _logit(opacity: Array) -> Array:
    p = np.clip(opacity, 1e-6, 1 - 1e-6)
    found: Array = np.log(p / (1 - p))
    return found


def read_splat(data: bytes, where: str) -> Scene:
    if len(data) % SPLAT.itemsize:
        raise FormatError(f"splat: a file has {SPLAT.itemsize} bytes a Gaussian, got {len(data):,} bytes, which end inside one ({where})")
    rows = np.frombuffer(data, SPLAT)
    color = rows["color"].astype(np.float32) / 255
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.log(np.maximum(rows["scale"], 1e-30))
    return Scene(rows["position"], scales, (rows["rotation"].astype(np.float32) - 128) / 128, _logit(color[:, 3]),
                 ((color[:, :3] - 0.5) / SH0)[:, None])


def write_splat(scene: Scene) -> bytes:
    """Largest first, as viewers that draw while they load want it. Harmonics beyond the first are lost."""
    means, scales, quats, opacity, sh = scene.arrays()
    order = np.argsort(-(scales.astype(float).prod(1) * opacity), kind="stable")
    rows = np.zeros(len(scene), SPLAT)
    rows["position"], rows["scale"] = means[order], scales[order]
    color = np.concatenate([sh[:, 0] * SH0 + 0.5, opacity[:, None]], 1)[order]
    rows["color"] = np.clip(np.nan_to_num(color) * 255 + 0.5, 0, 255).astype(np.uint8)
    unit = quats / np.maximum(np.linalg.norm(quats, axis=1, keepdims=True), 1e-12)
    rows["rotation"] = np.clip(np.rint(np.nan_to_num(unit[order]) * 128 + 128), 0, 255).astype(np.uint8)
    return rows.tobytes()


def read_spz(data: bytes, where: str) -> Scene:
    raw, _ = _unpacked(data, 16, where)
    if len(raw) < 16:
        raise FormatError(f"spz: {where} is cut short")
    magic, version, n, degree, fraction, _, _ = struct.unpack_from("<IIIBBBB", raw)
    if magic != MAGIC or version != 2 or degree not in TERMS or fraction > 23:
        raise FormatError(f"spz: version 2 with harmonics of degree 0 to 3 is read, got version {version}, degree {degree} ({where})")
    terms = TERMS[degree]
    sizes = (9, 1, 3, 3, 3, 3 * terms)
    if n > MOST:
        raise FormatError(f"spz: at most {MOST:,} Gaussians are read, got {n:,} ({where})")
    raw, whole = _unpacked(data, 16 + n * sum(sizes), where)
    if not whole or len(raw) < 16 + n * sum(sizes):
        raise FormatError(f"spz: {where} is cut short, {n} Gaussians need {16 + n * sum(sizes):,} bytes, got {len(raw):,}")
    parts, at = [], 16
    for size in sizes:
        parts.append(np.frombuffer(raw, np.uint8, n * size, at).reshape(n, size))
        at += n * size
    fixed = parts[0].reshape(n, 3, 3).astype(np.int32)
    whole_ = fixed[..., 0] | fixed[..., 1] << 8 | fixed[..., 2] << 16
    position = ((whole_ ^ 0x800000) - 0x800000) / float(1 << fraction)
    color = ((parts[2].astype(np.float32) / 255) - 0.5) / 0.15
    xyz = parts[4].astype(np.float32) / 127.5 - 1
    w = np.sqrt(np.maximum(0, 1 - (xyz**2).sum(1, keepdims=True)))
    high = (parts[5].reshape(n, terms, 3).astype(np.float32) - 128) / 128
    return Scene(position, parts[3].astype(np.float32) / 16 - 10, np.concatenate([w, xyz], 1), _logit(parts[1][:, 0] / 255),
                 np.concatenate([color[:, None], high], 1))


def _unpacked(data: bytes, size: int, where: str) -> tuple[bytes, bool]:
    """The first `size` bytes of a gzip stream, or fewer; and whether it goes on or ends there with the right checksum."""
    try:
        stream = zlib.decompressobj(31)
        raw = stream.decompress(data, size)
        more = stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as e:
        raise FormatError(f"spz: {where} is no whole gzip stream ({e})") from e
    return raw, bool(more) or stream.eof


def write_spz(scene: Scene) -> bytes:
    """Positions in steps of 1/4096, scales of 1/16 of their logarithm, all else in bytes."""
    n, fraction = len(scene), 12
    parts = (scene.means, scene.log_scales, scene.quats, scene.sh)
    finite = np.stack([np.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in parts]).all(0)
    if not finite.all():
        raise InputError(f"spz: {int((~finite).sum())} Gaussians are not finite; scene.take(...) the others first")
    fixed = np.rint(scene.means.astype(float) * (1 << fraction)).astype(np.int64)
    if n and np.abs(fixed).max() >= 1 << 23:
        raise InputError(f"spz: positions must lie within {1 << (23 - fraction)} of the origin, got {np.abs(scene.means).max():.4g}")
    positions = np.stack([(fixed >> s) & 255 for s in (0, 8, 16)], -1)
    unit = scene.quats / np.maximum(np.linalg.norm(scene.quats, axis=1, keepdims=True), 1e-12)
    unit = np.where(unit[:, :1] < 0, -unit, unit)
    _, _, _, opacity, sh = scene.arrays()
    columns = [positions, opacity * 255, (sh[:, 0] * 0.15 + 0.5) * 255, (scene.log_scales + 10) * 16, (unit[:, 1:] + 1) * 127.5,
               sh[:, 1:] * 128 + 128]
    body = b"".join(np.clip(np.rint(p), 0, 255).astype(np.uint8).tobytes() for p in columns)
    header = struct.pack("<IIIBBBB", MAGIC, 2, n, scene.degree, fraction, 0, 0)
    return gzip.compress(header + body, mtime=0)
