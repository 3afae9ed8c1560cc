"""Safetensors files of named arrays, written in one go, and read back into fresh arrays or mapped.

The format is eight bytes (the header's length), a JSON header (dtype, shape and place of each array, and a map of strings) and the arrays,
little endian, one after another. Other programs read these files with the package `safetensors`, which is not needed here.
A file is not trusted: sizes, places and dtypes are checked before anything is allocated, and arrays against their checksums.
"""
from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from .checksums import DIGITS, Reading, checksums, count_pieces
from .errors import CheckpointError, FormatError, TilewrightError
from .files import open_file, write_file

Array = np.ndarray[Any, Any]
HEADER_LIMIT = 100_000_000  # bytes; the package has the same limit
ALIGN, RANK = 8, 64  # the alignment of data, and the most axes that NumPy has
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_), "U8": np.dtype("<u1"), "U16": np.dtype("<u2"), "U32": np.dtype("<u4"), "U64": np.dtype("<u8"),
    "I8": np.dtype("<i1"), "I16": np.dtype("<i2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "C64": np.dtype("<c8"),
}
NAMES = {d: name for name, d in DTYPES.items()}


def dtype_name(array: Array) -> str | None:
    """The name of an array's dtype in such a file; None where it has none."""
    return NAMES.get(array.dtype) or NAMES.get(array.dtype.newbyteorder("="))


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str], *, subject: str = "checkpoint",
                  error: type[TilewrightError] = CheckpointError) -> None:
    """Write the arrays and the strings to `path`, atomically."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):  # wide ones first: all are aligned
        kind = dtype_name(array)
        if name in header:
            raise error(f"{subject}: {name!r} is the name of a safetensors file's own entry; give the array another one")
        if kind is None:
            raise error(f"{subject}: {name!r} has dtype {array.dtype}; a safetensors file can hold {' '.join(DTYPES)}")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)

    def write(handle: BinaryIO) -> None:
        handle.write(struct.pack("<Q", len(text)) + text)
        for name in header:
            if name != "__metadata__":
                array = tensors[name]
                handle.write(_bytes(np.ascontiguousarray(array, DTYPES[header[name]["dtype"]])))

    write_file(path, write, subject=subject, error=error)


def tensor_sums(tensors: Mapping[str, Array]) -> dict[str, str]:
    """Checksums of the arrays as they will be written."""
    found = {name: np.ascontiguousarray(a, DTYPES[kind]) for name, a in tensors.items() if (kind := dtype_name(a)) is not None}
    return dict(zip(found, checksums([memoryview(_bytes(a)) for a in found.values()]), strict=True))


def _bytes(array: Array) -> Any:
    """The memory of a contiguous array, byte by byte."""
    return array.reshape(-1).view(np.uint8).data


def open_tensors(path: Path) -> BinaryIO:
    """The file, for `read_header` and `read_tensor`."""
    return os.fdopen(open_file(path, subject="checkpoint", error=CheckpointError), "rb")


def read_header(handle: BinaryIO, path: Path, subject: str = "checkpoint") -> tuple[dict[str, Any], dict[str, str], int]:
    """(entry by name, metadata, offset of the first array), all checked against the file's size."""
    size = os.fstat(handle.fileno()).st_size
    start = handle.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_LIMIT + 1
    if length > min(HEADER_LIMIT, size - 8):
        raise FormatError(f"{subject}: the header does not fit the file of {size} bytes: not a whole safetensors file ({path})")
    try:
        header = json.loads(handle.read(length))
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{subject}: the header is not valid JSON: {e} ({path})") from e
    if not isinstance(header, dict):
        raise FormatError(f"{subject}: the header must be a JSON object, got a {type(header).__name__} ({path})")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"{subject}: '__metadata__' must map names to strings ({path})")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _start(item[1], path, subject)):
        if not _is_whole(entry, end):
            raise FormatError(f"{subject}: tensor {name!r:.200} does not fit its place: {entry!s:.200} ({path})")
        end = entry["data_offsets"][1]
    if 8 + length + end != size:
        raise FormatError(f"{subject}: the tensors end at byte {8 + length + end} of a file of {size} bytes; it is damaged ({path})")
    return header, metadata, 8 + length


def _start(entry: Any, path: Path, subject: str) -> Any:
    try:
        start, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"{subject}: a tensor has no data_offsets: {entry!s:.200} ({path})") from None
    if type(start) is not int or type(end) is not int:
        raise FormatError(f"{subject}: data_offsets must be integers: {entry!s:.200} ({path})")
    return start, end


def _is_whole(entry: dict[str, Any], start: int) -> bool:
    """Whether an entry begins at `start` and is as long as its dtype and shape say."""
    shape, dtype = entry.get("shape"), DTYPES.get(str(entry.get("dtype")))
    if dtype is None or not isinstance(shape, list) or len(shape) > RANK or not all(type(n) is int and n >= 0 for n in shape):
        return False
    if prod(max(n, 1) for n in shape) * dtype.itemsize >= 1 << 62:  # also where the array is empty: NumPy multiplies its sizes
        return False
    return bool(entry["data_offsets"] == [start, start + prod(shape) * dtype.itemsize])


def read_tensors(handle: BinaryIO, entries: Mapping[str, dict[str, Any]], base: int, sums: Mapping[str, str],
                 path: Path) -> dict[str, Array]:
    """The arrays, in memory of their own: writable, so that a step may be given them to overwrite. `sums` are their checksums, where the
    file has any."""
    for name, e in entries.items():
        if name in sums and len(sums[name]) != DIGITS * count_pieces(e["data_offsets"][1] - e["data_offsets"][0]):
            raise FormatError(f"checkpoint: the checksum of {name!r} has {len(sums[name])} digits, which do not fit its size ({path})")
    arrays = {name: np.empty(e["shape"], DTYPES[e["dtype"]]) for name, e in entries.items()}
    places = [(base + entries[name]["data_offsets"][0], memoryview(_bytes(a)), sums.get(name)) for name, a in arrays.items()]
    wrong = Reading(handle.fileno(), places).finish()
    if wrong is not None:
        name = list(arrays)[wrong[0]]
        raise FormatError(f"checkpoint: tensor {name!r} is damaged at or after its byte {wrong[1]}: it does not match its checksum; "
                          f"use another copy of the file ({path})")
    return {name: truths(a) for name, a in arrays.items()}


def map_tensors(path: Path, *, subject: str) -> dict[str, Array]:
    """The arrays as views of the mapped file, which are read when they are used."""
    with os.fdopen(open_file(path, subject=subject), "rb") as handle:
        entries, _, base = read_header(handle, path, subject)
        data = np.memmap(handle, np.uint8, "r").view(np.ndarray)[base:]
    found = {}
    for name, e in entries.items():
        view = data[slice(*e["data_offsets"])].view(DTYPES[e["dtype"]]).reshape(e["shape"])
        found[name] = truths(view if view.flags.aligned else view.copy())
    return found


def truths(a: Array) -> Array:
    """The array; of truth values that are neither 0 nor 1, which compiled code would take for something else, a copy with 1 for them."""
    if a.dtype.kind != "b":
        return a
    raw = a.view(np.uint8)
    return a if raw.max(initial=0) <= 1 else raw != 0
