"""One safetensors file: the package `safetensors` checks it, the tensors are views of the mapped bytes."""

from __future__ import annotations

import json
import mmap
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import FormatError, UnsupportedError
from ...ops.quant import PackedTensor, by_name

FORMATS = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F64": "F64", "I8": "I8", "I16": "I16", "I32": "I32", "I64": "I64"}
HEADER_LIMIT = 32 << 20  # bytes; the package, which allows more, and Python take many times as many for it


def open_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, PackedTensor], dict[str, str]]:
    """(tensors by name, dtype by name of those in a type that has no format here). FormatError for a damaged file.

        tensors, others = open_safetensors("model.safetensors")
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as e:
        raise UnsupportedError("safetensors: the package is not installed; pip install tilewright[llm]") from e
    path = Path(path)
    with path.open("rb") as handle:
        length, first = os.fstat(handle.fileno()).st_size, handle.read(8)
        if len(first) < 8:
            raise FormatError(f"safetensors: a file has at least 8 bytes, got {length} ({path})")
        (size,) = struct.unpack("<Q", first)
        if size > min(HEADER_LIMIT, length - 8):
            raise FormatError(f"safetensors: the header of {size} bytes does not fit the file of {length}, or is longer than "
                              f"{HEADER_LIMIT} ({path})")
        data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        with safe_open(path, framework="numpy"):  # checks the header: offsets, overlap, sizes, the end of the file
            pass
        header: dict[str, Any] = json.loads(bytes(data[8 : 8 + size]))
    except (SafetensorError, OverflowError, ValueError, RecursionError) as e:
        raise FormatError(f"safetensors: {e!s:.600} ({path})") from e
    tensors: dict[str, PackedTensor] = {}
    others: dict[str, str] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in FORMATS:
            others[name] = entry["dtype"]
            continue
        tensors[name] = _tensor(name, entry, data, 8 + size, path)
    return tensors, others


def _tensor(name: str, entry: dict[str, Any], data: memoryview, base: int, path: Path) -> PackedTensor:
    fmt = by_name(FORMATS[entry["dtype"]])
    shape = tuple(int(d) for d in entry["shape"])
    start, end = entry["data_offsets"]
    if prod(max(d, 1) for d in shape) * fmt.bytes >= 1 << 62:
        raise FormatError(f"safetensors: tensor {name!r:.200} has an impossible shape {shape!r:.100} ({path})")
    if end - start != prod(shape) * fmt.bytes or base + end > len(data):
        raise FormatError(f"safetensors: tensor {name!r:.200} ({fmt}{list(shape)!s:.100}) does not fit its bytes {start} .. {end} ({path})")
    rows, width = prod(shape[:-1]), (shape[-1] if shape else 1) * fmt.bytes
    view = np.frombuffer(data, np.uint8, end - start, base + start) if end > start else np.zeros(0, np.uint8)
    view.setflags(write=False)
    return PackedTensor(name, fmt, shape, view.reshape(rows, width))
