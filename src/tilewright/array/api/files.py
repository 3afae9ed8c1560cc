"""Files of Arrays: `.npy`, `.npz` and `.safetensors`, written whole or not at all, and read without trusting what they say.

Sizes are compared with the file before anything is allocated; a file that is cut short, damaged or holds something else than numbers is a
FormatError. No file can hold code: pickled objects are refused.
"""
from __future__ import annotations

import ast
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...core import tensor_file
from ...core.errors import STRANGE, ArgumentError, FileError, FormatError, TilewrightError
from ...core.files import open_file, reader_of, write_file
from ...core.syntax import parse_python
from ..arrays import ArrayLike, wrap
from .base import Header, header

ENDINGS = (".npy", ".npz", ".safetensors")
HEADER = 10_000  # bytes, as in NumPy
PACKED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # how many bytes one byte of a member can hold
DAMAGED = (*STRANGE, EOFError, OSError, RuntimeError, MemoryError, SyntaxError, zipfile.BadZipFile, zlib.error)


def save(path: Any, x: ArrayLike | Mapping[str, ArrayLike]) -> None:
    """Write an Array to an `.npy` file; several of them, given as a dict, to an `.npz` or `.safetensors` file, by the name's ending."""
    path = Path(path)
    if path.suffix == ".npy":
        array = _numpy_file(header(x, "save"), path)
        write_file(path, lambda file: np.lib.format.write_array(file, array, allow_pickle=False), subject="save")
        return
    if path.suffix not in ENDINGS:
        raise ArgumentError(f"save: the name must end in .npy, .npz or .safetensors, got {path.name!r}")
    if not isinstance(x, dict):
        raise ArgumentError(f"save: a {path.suffix} file holds a dict of Arrays, got a {type(x).__name__}")
    arrays = {str(k): header(v, "save") for k, v in x.items()}
    if len(arrays) != len(x):
        raise ArgumentError(f"save: names must differ as text, got {', '.join(map(repr, x))}")
    if path.suffix == ".npz":
        given = {k: _numpy_file(a, path) for k, a in arrays.items()}
        write_file(path, lambda file: write_zip(file, given), subject="save")
    else:
        wrong = [k for k, a in arrays.items() if tensor_file.dtype_name(a) is None or k == "__metadata__"]
        if wrong:
            raise ArgumentError(f"save: a .safetensors file cannot hold {arrays[wrong[0]].dtype} by the name {wrong[0]!r}")
        tensor_file.write_tensors(path, arrays, {}, subject="save", error=FileError)


def load_arrays(path: Any) -> Any:
    """The Array of an `.npy` file, or the dict of Arrays of an `.npz` or `.safetensors` file. Files are mapped where they can be: elements
    are read when they are used."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ArgumentError(f"load_arrays: the name must end in .npy, .npz or .safetensors, got {path.name!r}{reader_of(path)}")
    if path.suffix == ".safetensors":
        return {k: wrap(a) for k, a in tensor_file.map_tensors(path, subject="load_arrays").items()}
    found = read_numpy(path, "load_arrays")
    if isinstance(found, dict) != (path.suffix == ".npz"):
        raise FormatError(f"load_arrays: {path} is {'an .npz' if isinstance(found, dict) else 'an .npy'} file; its name must say so")
    return {k: wrap(a) for k, a in found.items()} if isinstance(found, dict) else wrap(found)


def read_numpy(path: Path, subject: str) -> Header | dict[str, Header]:
    """The array of an `.npy` file, mapped, or the arrays of an `.npz` file."""
    try:
        with os.fdopen(open_file(path, subject=subject), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(2) != b"PK":
                file.seek(0)
                kind, shape, order = _array_header(file, size)
                found = np.memmap(file, kind, "r", file.tell(), shape, order).view(np.ndarray) if 0 not in shape else np.zeros(shape, kind)
                return _native(found)
            with zipfile.ZipFile(file) as members:
                if sum(m.compress_size for m in members.infolist()) > size:
                    raise ValueError("its members overlap")
                return {m.filename.removesuffix(".npy"): _member(members, m) for m in members.infolist()}
    except TilewrightError:
        raise
    except DAMAGED as e:
        raise FormatError(f"{subject}: {path}: {str(e) or type(e).__name__:.600}") from e


def _member(members: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header:
    if not info.filename.endswith(".npy"):
        raise ValueError(f"{info.filename!r} is no array")
    if info.compress_type not in PACKED:  # NumPy writes no other kinds, and a few bytes of theirs may be gigabytes
        raise ValueError(f"{info.filename!r} must be stored or deflated, got compression {info.compress_type}")
    if info.file_size > info.compress_size * PACKED[info.compress_type]:
        raise ValueError(f"{info.filename!r} declares {info.file_size:,} bytes, which its {info.compress_size:,} cannot hold")
    with members.open(info) as file:
        kind, shape, order = _array_header(file, info.file_size)
        count = math.prod(shape) * kind.itemsize
        data = file.read(count)
        if len(data) != count:
            raise ValueError(f"{info.filename!r} is cut short, {count:,} bytes are declared, got {len(data):,}")
        if file.read(1):  # the checksum is compared at the end
            raise ValueError(f"{info.filename!r} is longer than its array")
    return _native(np.frombuffer(data, kind).reshape(shape, order=order))


def _array_header(file: Any, size: int) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    """dtype, shape and order of an array that begins here and ends within `size` bytes."""
    start = file.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise ValueError("it does not begin as an array of NumPy's does")
    length = int.from_bytes(file.read(2 if start[6] == 1 else 4), "little")
    if length > HEADER:
        raise ValueError(f"the header of an array has at most {HEADER:,} bytes, got {length:,}")
    text = file.read(length).decode("latin1").strip()
    found = ast.literal_eval(parse_python(text, "eval"))  # NumPy's own reader may take seconds for a damaged one
    shape, fortran, kind = found["shape"], found["fortran_order"], np.dtype(str(found["descr"]))
    if not isinstance(shape, tuple) or not all(type(n) is int for n in shape) or type(fortran) is not bool:
        raise ValueError(f"shape must be a tuple of integers and fortran_order a truth value, got {shape!s:.100} and {fortran!s:.100}")
    if kind.kind not in "biufc" or kind.char in "gG":
        more = "; NumPy's files do not say which 16-bit or 8-bit float they hold, use .safetensors" if kind.kind == "V" else ""
        raise ValueError(f"it must hold numbers, got {kind}{more}")
    if any(n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) * kind.itemsize > 1 << 62:
        raise ValueError(f"it declares an impossible shape {shape!s:.100}")
    if math.prod(shape) * kind.itemsize > size - file.tell():
        raise ValueError(f"it is cut short, {kind}{list(shape)} needs {math.prod(shape) * kind.itemsize:,} bytes")
    return kind, shape, "F" if fortran else "C"


def _native(a: Header) -> Header:
    """An array in native byte order whose truth values are 0 or 1; a mapped one stays mapped where it is so already."""
    return tensor_file.truths(a) if a.dtype.kind == "b" else np.asarray(a, np.dtype(a.dtype.type))


def _numpy_file(a: Header, path: Path) -> Header:
    """What NumPy's file formats can hold."""
    if a.dtype.isbuiltin == 2:  # registered by ml_dtypes
        raise ArgumentError(f"save: a {path.suffix} file cannot hold {a.dtype.name}; use .safetensors")
    return a


def write_zip(file: BinaryIO, arrays: dict[str, Header]) -> None:
    """The contents of an `.npz` file; any text is a name."""
    with zipfile.ZipFile(file, "w") as members:
        for name, array in arrays.items():
            with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
